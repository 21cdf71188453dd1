//! Frames: what is written is read, and everything else is refused.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn frame(kind: u16, payload: &[u8], descriptors: usize) -> Frame<'_> {
    Frame { kind, payload, descriptors: u16::try_from(descriptors).unwrap() }
}

fn encoded(frame: Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}

/// The encoding is a promise to other releases: these bytes never change.
#[test]
fn the_encoding_is_as_documented() {
    let frame = frame(0x1122, b"ab", 3);
    let expected = [b"CMIP", &[1, 0, 0x22, 0x11][..], &[2, 0, 0, 0, 3, 0, 0, 0], b"ab"].concat();
    assert_eq!(encoded(frame), expected);
    assert_eq!(Frame::parse(&expected), Ok(frame));
}

#[test]
fn each_fault_is_named_with_its_value() {
    let good = encoded(frame(20, b"payload", 0));
    let refused = |at: usize, bytes: &[u8]| {
        let mut copy = good.clone();
        copy[at..at + bytes.len()].copy_from_slice(bytes);
        Frame::parse(&copy).unwrap_err()
    };
    let short = |found| Err(MessageError::Length { found, expected: HEADER });
    let value = |field, value| MessageError::Value { field, value };
    assert_eq!(Frame::parse(&good[..15]), short(15));
    assert_eq!(Frame::parse(&[]), short(0));
    assert_eq!(Frame::parse(&vec![0; MAX_FRAME + 1]), Err(value("length", MAX_FRAME as u64 + 1)));
    assert_eq!(refused(0, b"HTTP"), value("magic", u32::from_le_bytes(*b"HTTP").into()));
    assert_eq!(refused(4, &[0, 0]), value("version", 0));
    assert_eq!(refused(4, &[2, 0]), value("version", 2));
    assert_eq!(refused(14, &[2, 0]), value("last field", 2));
    assert_eq!(refused(12, &[254, 0]), value("number of descriptors", 254));
    for (said, expected) in [([6, 0, 0, 0], 22), ([8, 0, 0, 0], 24), ([255; 4], HEADER + u32::MAX as usize)] {
        assert_eq!(refused(8, &said), MessageError::Length { found: 23, expected });
    }
}

#[test]
fn the_longest_frame_is_one_and_nothing_longer_is() {
    let payload = vec![7; MAX_PAYLOAD + 1];
    let longest = frame(16, &payload[1..], MAX_DESCRIPTORS);
    let bytes = encoded(longest);
    assert_eq!(bytes.len(), MAX_FRAME);
    assert_eq!(Frame::parse(&bytes), Ok(longest));
    let longer = Frame::parse(&encoded(frame(16, &payload, 0))).map(|frame| frame.kind);
    assert_eq!(longer, Err(MessageError::Value { field: "length", value: MAX_FRAME as u64 + 1 }));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        kind: u16, payload in vec(any::<u8>(), 0..300), count in 0..=MAX_DESCRIPTORS, more in 1..40_usize,
    ) {
        let frame = frame(kind, &payload, count);
        let bytes = encoded(frame);
        prop_assert_eq!(Frame::parse(&bytes), Ok(frame));
        prop_assert_eq!((frame.kind, frame.payload, usize::from(frame.descriptors)), (kind, &*payload, count));
        for len in 0..bytes.len() {
            prop_assert!(Frame::parse(&bytes[..len]).is_err(), "a byte is missing");
        }
        prop_assert!(Frame::parse(&[&bytes[..], &vec![0; more]].concat()).is_err());
    }

    #[test]
    fn any_bytes_are_refused_or_written_again_as_they_came(bytes: Vec<u8>, header: [u8; HEADER]) {
        // Few arbitrary bytes begin as a frame does: those that do are tried too.
        let mut close = [&header[..], &bytes].concat();
        close[..8].copy_from_slice(&[b'C', b'M', b'I', b'P', 1, 0, 20, 0]);
        close[8..16].copy_from_slice(&[0, 0, 0, 0, header[12], 0, 0, 0]);
        close[8..10].copy_from_slice(&u16::try_from(bytes.len()).unwrap().to_le_bytes());
        for bytes in [bytes, close] {
            if let Ok(frame) = Frame::parse(&bytes) {
                prop_assert_eq!(encoded(frame), bytes);
            }
        }
    }
}
