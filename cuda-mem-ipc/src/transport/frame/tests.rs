//! Frames: what is written is read, and everything else is refused.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn encoded(frame: Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}

/// The same bytes with the checksum that they should have, so that the check in question is the one that refuses.
fn summed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = checksum(&bytes[..CHECKSUM_AT], &[&bytes[HEADER..]]);
    bytes[CHECKSUM_AT..HEADER].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The encoding is a promise to other releases: these bytes never change.
#[test]
fn the_encoding_is_as_documented() {
    let numbers = [3_u32.to_le_bytes(), 0x0102_u32.to_le_bytes()].concat();
    let frame = Frame::new(0x1122, 0x0102_0304_0506_0708, b"ab").unwrap().with_numbers(&numbers).unwrap();
    let expected = [
        b"CMIP",
        &[1, 0, 0x22, 0x11][..],
        &[8, 7, 6, 5, 4, 3, 2, 1],
        &[2, 0, 0, 0, 2, 0, 1, 0],
        &0xc9ae_3318_u32.to_le_bytes(),
        b"ab",
        &[3, 0, 0, 0, 2, 1, 0, 0],
    ];
    assert_eq!(encoded(frame), expected.concat());
    let parsed = Frame::parse(&expected.concat()).map(|frame| frame.numbers().collect::<Vec<_>>());
    assert_eq!(parsed, Ok(vec![3, 0x0102]));
}

#[test]
fn each_fault_is_named_with_its_value() {
    let good = encoded(Frame::new(20, 5, b"payload").unwrap());
    let changed = |at: usize, bytes: &[u8]| {
        let mut copy = good.clone();
        copy[at..at + bytes.len()].copy_from_slice(bytes);
        summed(copy)
    };
    let refused = |bytes: &[u8]| Frame::parse(bytes).unwrap_err();
    assert_eq!(refused(&good[..27]), FrameError::TooShort { bytes: 27 });
    assert_eq!(refused(&[]), FrameError::TooShort { bytes: 0 });
    assert_eq!(refused(&vec![0; MAX_FRAME + 1]), FrameError::TooLong { bytes: MAX_FRAME + 1 });
    assert_eq!(refused(&changed(0, b"HTTP")), FrameError::Magic { found: *b"HTTP" });
    assert_eq!(refused(&changed(4, &[0, 0])), FrameError::Version { found: 0 });
    assert_eq!(refused(&changed(4, &[2, 0])), FrameError::Version { found: 2 });
    assert_eq!(refused(&changed(22, &[2, 0])), FrameError::Flags { found: 2 });
    assert_eq!(refused(&changed(16, &[1, 64, 0, 0])), FrameError::Payload { bytes: MAX_PAYLOAD + 1 });
    assert_eq!(refused(&changed(16, &[255; 4])), FrameError::Payload { bytes: u32::MAX as usize });
    assert_eq!(refused(&changed(20, &[254, 0])), FrameError::Descriptors { count: 254 });
    assert_eq!(refused(&changed(16, &[6])), FrameError::Length { declared: 34, bytes: 35 });
    assert_eq!(refused(&changed(16, &[8])), FrameError::Length { declared: 36, bytes: 35 });
    assert_eq!(refused(&changed(20, &[1, 0, 1, 0])), FrameError::Length { declared: 39, bytes: 35 });
    let mut unsummed = good.clone();
    unsummed[30] ^= 0x80;
    assert!(matches!(refused(&unsummed), FrameError::Checksum { .. }));
    let number = (-1_i32).to_le_bytes();
    let negative = encoded(Frame::new(20, 5, b"").unwrap().with_numbers(&number).unwrap());
    assert_eq!(refused(&negative), FrameError::Number { number: -1 });
}

#[test]
fn the_longest_frame_is_one_and_nothing_longer_is_made() {
    let payload = vec![7; MAX_PAYLOAD + 1];
    let numbers = vec![0; 4 * MAX_DESCRIPTORS];
    let longest = Frame::new(16, u64::MAX, &payload[1..]).unwrap().with_numbers(&numbers).unwrap();
    let bytes = encoded(longest);
    assert_eq!(bytes.len(), MAX_FRAME);
    assert_eq!(Frame::parse(&bytes), Ok(longest));
    assert_eq!(Frame::new(16, 0, &payload), Err(FrameError::Payload { bytes: MAX_PAYLOAD + 1 }));
    let small = Frame::new(16, 0, b"").unwrap();
    for count in [MAX_DESCRIPTORS + 1, 65_536 + 1, usize::MAX] {
        assert_eq!(small.with_descriptors(count), Err(FrameError::Descriptors { count }));
    }
    let numbers = vec![0; 4 * MAX_DESCRIPTORS + 4];
    assert_eq!(small.with_numbers(&numbers), Err(FrameError::Descriptors { count: MAX_DESCRIPTORS + 1 }));
}

/// Kind, sequence, payload, and how many descriptors travel or which are named.
fn parts() -> impl Strategy<Value = (u16, u64, Vec<u8>, Result<usize, Vec<i32>>)> {
    let descriptors = prop_oneof![(0..=MAX_DESCRIPTORS).prop_map(Ok), vec(0..=i32::MAX, 0..6).prop_map(Err)];
    (any::<u16>(), any::<u64>(), vec(any::<u8>(), 0..300), descriptors)
}

fn bytes_of(
    (kind, sequence, payload, descriptors): &(u16, u64, Vec<u8>, Result<usize, Vec<i32>>),
) -> Vec<u8> {
    let frame = Frame::new(*kind, *sequence, payload).unwrap();
    match descriptors {
        Ok(count) => encoded(frame.with_descriptors(*count).unwrap()),
        Err(numbers) => {
            let numbers = numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
            encoded(frame.with_numbers(&numbers).unwrap())
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(parts in parts()) {
        let bytes = bytes_of(&parts);
        let frame = Frame::parse(&bytes).unwrap();
        let (kind, sequence, payload, descriptors) = parts;
        prop_assert_eq!((frame.kind(), frame.sequence(), frame.payload()), (kind, sequence, &*payload));
        prop_assert_eq!(frame.version(), MAX_VERSION);
        match descriptors {
            Ok(count) => prop_assert_eq!((frame.descriptors(), frame.is_by_number()), (count, false)),
            Err(numbers) => prop_assert_eq!(frame.numbers().collect::<Vec<_>>(), numbers),
        }
        prop_assert_eq!(encoded(frame), bytes);
    }

    #[test]
    fn any_bytes_are_refused_or_written_again_as_they_came(bytes: Vec<u8>, header: [u8; HEADER]) {
        // Few arbitrary bytes begin as a frame does: those that do are tried too, with the right checksum.
        let mut close = [&header[..], &bytes].concat();
        close[..8].copy_from_slice(&[b'C', b'M', b'I', b'P', 1, 0, 20, 0]);
        close[18] = 0;
        close[19] = 0;
        close[22] &= 1;
        close[23] = 0;
        let mut closer = close.clone();
        closer[16..18].copy_from_slice(&(bytes.len() as u16).to_le_bytes());
        closer[22] = 0;
        for bytes in [bytes, summed(close), summed(closer)] {
            if let Ok(frame) = Frame::parse(&bytes) {
                prop_assert_eq!(encoded(frame), bytes);
            }
        }
    }

    #[test]
    fn a_changed_bit_a_missing_byte_and_an_additional_one_are_noticed(
        parts in parts(), at: prop::sample::Index, bit in 0..8_u32, more in 1..40_usize,
    ) {
        let bytes = bytes_of(&parts);
        let at = at.index(bytes.len());
        let mut changed = bytes.clone();
        changed[at] ^= 1 << bit;
        prop_assert!(Frame::parse(&changed).is_err());
        prop_assert!(Frame::parse(&bytes[..at]).is_err());
        prop_assert!(Frame::parse(&[&bytes[..], &vec![0; more]].concat()).is_err());
    }
}
