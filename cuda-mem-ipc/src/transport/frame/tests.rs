//! Frames: what is written is read, and everything else is refused.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn encoded(frame: Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}

/// The encoding is a promise to other releases: these bytes never change.
#[test]
fn the_encoding_is_as_documented() {
    let frame = Frame::new(0x1122, b"ab").unwrap().with_descriptors(3).unwrap();
    let expected = [b"CMIP", &[1, 0, 0x22, 0x11][..], &[2, 0, 0, 0, 3, 0, 0, 0], b"ab"].concat();
    assert_eq!(encoded(frame), expected);
    assert_eq!(Frame::parse(&expected), Ok(frame));
}

#[test]
fn each_fault_is_named_with_its_value() {
    let good = encoded(Frame::new(20, b"payload").unwrap());
    let refused = |at: usize, bytes: &[u8]| {
        let mut copy = good.clone();
        copy[at..at + bytes.len()].copy_from_slice(bytes);
        Frame::parse(&copy).unwrap_err()
    };
    assert_eq!(Frame::parse(&good[..15]), Err(FrameError::TooShort { bytes: 15 }));
    assert_eq!(Frame::parse(&[]), Err(FrameError::TooShort { bytes: 0 }));
    assert_eq!(Frame::parse(&vec![0; MAX_FRAME + 1]), Err(FrameError::TooLong { bytes: MAX_FRAME + 1 }));
    assert_eq!(refused(0, b"HTTP"), FrameError::Magic { found: *b"HTTP" });
    assert_eq!(refused(4, &[0, 0]), FrameError::Version { found: 0 });
    assert_eq!(refused(4, &[2, 0]), FrameError::Version { found: 2 });
    assert_eq!(refused(14, &[2, 0]), FrameError::NotZero { found: 2 });
    assert_eq!(refused(8, &[1, 64, 0, 0]), FrameError::Payload { bytes: MAX_PAYLOAD + 1 });
    assert_eq!(refused(8, &[255; 4]), FrameError::Payload { bytes: u32::MAX as usize });
    assert_eq!(refused(12, &[254, 0]), FrameError::Descriptors { count: 254 });
    assert_eq!(refused(8, &[6]), FrameError::Length { declared: 22, bytes: 23 });
    assert_eq!(refused(8, &[8]), FrameError::Length { declared: 24, bytes: 23 });
}

#[test]
fn the_longest_frame_is_one_and_nothing_longer_is_made() {
    let payload = vec![7; MAX_PAYLOAD + 1];
    let longest = Frame::new(16, &payload[1..]).unwrap().with_descriptors(MAX_DESCRIPTORS).unwrap();
    let bytes = encoded(longest);
    assert_eq!(bytes.len(), MAX_FRAME);
    assert_eq!(Frame::parse(&bytes), Ok(longest));
    assert_eq!(Frame::new(16, &payload), Err(FrameError::Payload { bytes: MAX_PAYLOAD + 1 }));
    let small = Frame::new(16, b"").unwrap();
    for count in [MAX_DESCRIPTORS + 1, 65_536 + 1, usize::MAX] {
        assert_eq!(small.with_descriptors(count), Err(FrameError::Descriptors { count }));
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        kind: u16, payload in vec(any::<u8>(), 0..300), count in 0..=MAX_DESCRIPTORS, more in 1..40_usize,
    ) {
        let frame = Frame::new(kind, &payload).unwrap().with_descriptors(count).unwrap();
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
