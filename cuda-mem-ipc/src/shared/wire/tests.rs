use proptest::prelude::*;

use super::*;

fn message() -> impl Strategy<Value = Message> {
    let uuid = any::<[u8; 16]>;
    let block = || prop::collection::vec(any::<u8>(), 64).prop_map(|bytes| bytes.try_into().unwrap());
    let sizes = prop::collection::vec(1..=1u64 << 50, 2..=MOST_HANDLES);
    let place = prop_oneof![
        uuid().prop_map(Place::Device),
        Just(Place::Host),
        (uuid(), block()).prop_map(|(uuid, block)| Place::DevicePool { uuid, block }),
        any::<u32>().prop_map(Place::Node),
        (uuid(), sizes).prop_map(|(uuid, sizes)| Place::Parts { uuid, sizes }),
    ];
    let segment = (any::<u64>(), any::<u64>(), 1..=isize::MAX as u64, place);
    prop_oneof![
        Just(Message::Offer),
        any::<(u64, u64)>().prop_map(|(segments, bytes)| Message::Accept { segments, bytes }),
        Just(Message::Ring),
        segment.prop_map(|(segment, generation, bytes, place)| {
            // Of several handles it is what they have together.
            let bytes = if let Place::Parts { sizes, .. } = &place { sizes.iter().sum() } else { bytes };
            Message::Segment(Segment { segment, generation, bytes, place })
        }),
        any::<u64>().prop_map(|segment| Message::Retire { segment }),
        any::<u64>().prop_map(|segment| Message::LetGo { segment }),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(message in message()) {
        let (kind, bytes) = message.encode();
        prop_assert_eq!(Message::parse(kind, &bytes), Ok(message));
    }

    #[test]
    fn a_message_has_one_length(message in message(), more in 1..100usize) {
        let (kind, mut bytes) = message.encode();
        for len in 0..bytes.len() {
            prop_assert!(Message::parse(kind, &bytes[..len]).is_err());
        }
        bytes.resize(bytes.len() + more, 0);
        prop_assert!(Message::parse(kind, &bytes).is_err());
    }

    /// No two entries of a ring mean the same, and no number is changed on the way.
    #[test]
    fn what_is_written_to_a_ring_is_read(junk in prop::collection::vec(prop_oneof![0..40u64, any::<u64>()], 7)) {
        let mut junk: [u64; 7] = junk.try_into().unwrap();
        if let Ok(said) = HandOver::of_entry(junk) {
            junk[6] = 0;
            prop_assert_eq!(said.to_entry(), junk);
            prop_assert_eq!(HandOver::of_entry(said.to_entry()), Ok(said));
        }
        if let Ok(said) = Release::of_entry(junk) {
            prop_assert_eq!(said.to_entry()[..3].to_vec(), junk[..3].to_vec());
            prop_assert_eq!(Release::of_entry(said.to_entry()), Ok(said));
        }
    }

    /// Whatever is read is written as it was: no two payloads mean the same, and no number is changed on the way.
    #[test]
    fn any_bytes_are_a_message_or_an_error(
        kind in FIRST_KIND - 1..=LET_GO + 1,
        bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..120),
    ) {
        if let Ok(message) = Message::parse(kind, &bytes) {
            prop_assert_eq!(message.encode(), (kind, bytes));
        }
    }
}

#[test]
fn numbers_that_no_message_has_are_named() {
    let good =
        HandOver { sequence: 0, segment: 0, offset: 0, len: 1, fence: Point { line: 0, generation: 1 } };
    let bad = [
        (HandOver { len: 0, ..good }, "length"),
        (HandOver { offset: u64::MAX, ..good }, "offset"),
        (HandOver { offset: isize::MAX as u64, ..good }, "offset"),
        (HandOver { fence: Point { line: LINES, ..good.fence }, ..good }, "line"),
        (HandOver { fence: Point { generation: 0, ..good.fence }, ..good }, "generation"),
        (HandOver { fence: Point { generation: LAST_GENERATION + 1, ..good.fence }, ..good }, "generation"),
    ];
    for (said, name) in bad {
        let refused = HandOver::of_entry(said.to_entry());
        assert!(
            matches!(refused, Err(MessageError::Value { field, .. }) if field == name),
            "{name}: {refused:?}"
        );
    }
    assert_eq!(Message::parse(15, &[]), Err(MessageError::Kind(15)));
    for sizes in [&[][..], &[1], &[1, 0], &[1; MOST_HANDLES + 1], &[1 << 62, 1 << 62], &[u64::MAX, 1]] {
        let bytes = sizes.iter().fold(0, |sum: u64, size| sum.wrapping_add(*size));
        let place = Place::Parts { uuid: [1; 16], sizes: sizes.to_vec() };
        let (kind, payload) = Message::Segment(Segment { segment: 1, generation: 2, bytes, place }).encode();
        assert!(matches!(Message::parse(kind, &payload), Err(MessageError::Value { .. })), "{sizes:?}");
    }
}
