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
        (any::<u32>(), block()).prop_map(|(node, block)| Place::NodePool { node, block }),
        (uuid(), sizes).prop_map(|(uuid, sizes)| Place::Parts { uuid, parts: Parts::new(&sizes).unwrap() }),
    ];
    let segment = (any::<u64>(), any::<u64>(), 1..=isize::MAX as u64, place);
    let event =
        prop::collection::vec(any::<u8>(), 64).prop_map(|bytes| Fence::Event(bytes.try_into().unwrap()));
    let word = (0..LINES, 1..=LAST).prop_map(|(line, generation)| Fence::Word { line, generation });
    let part = (0..=isize::MAX as u64 / 2, 1..=isize::MAX as u64 / 2);
    let hand_over = (any::<u64>(), any::<u64>(), part, prop_oneof![word, event]);
    prop_oneof![
        Just(Message::Offer(Offer::OURS)),
        any::<(u64, u64)>().prop_map(|(segments, bytes)| Message::Accept(Accept { segments, bytes })),
        Just(Message::Ring),
        Just(Message::Keep),
        segment.prop_map(|(segment, generation, bytes, place)| {
            // Of several handles it is what they have together.
            let together = |parts: Parts| parts.sizes().iter().sum();
            let bytes = if let Place::Parts { parts, .. } = place { together(parts) } else { bytes };
            Message::Segment(Segment { segment, generation, bytes, place })
        }),
        hand_over.prop_map(|(sequence, segment, (offset, len), fence)| {
            Message::HandOver(HandOver { sequence, segment, offset, len, fence })
        }),
        (any::<u64>(), 0..LINES, 0..=LAST).prop_map(|(sequence, line, generation)| {
            Message::Release(Release { sequence, line, generation })
        }),
        any::<u64>().prop_map(|segment| Message::Retire { segment }),
        any::<u64>().prop_map(|segment| Message::LetGo { segment }),
        any::<u64>().prop_map(|keepsake| Message::Forget { keepsake }),
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

    /// An entry of the ring is the payload.
    #[test]
    fn what_is_written_to_the_ring_is_read(message in message(), messages in any::<u64>(), junk in any::<[u64; 7]>()) {
        if let Message::HandOver(said) = message {
            match said.to_entry(messages) {
                Some(entry) => prop_assert_eq!(HandOver::of_entry(entry), Ok((said, messages))),
                None => prop_assert!(matches!(said.fence, Fence::Event(_))),
            }
        }
        if let Ok((said, messages)) = HandOver::of_entry(junk) {
            prop_assert_eq!(said.to_entry(messages), Some(junk));
        }
    }

    /// Whatever is read is written as it was: no two payloads mean the same, and no number is changed on the way.
    #[test]
    fn any_bytes_are_a_message_or_an_error(
        kind in FIRST_KIND - 1..=FORGET + 1,
        bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..120),
    ) {
        if let Ok(message) = Message::parse(kind, &bytes) {
            prop_assert_eq!(message.encode(), (kind, bytes));
        }
    }
}

#[test]
fn numbers_that_no_message_has_are_named() {
    let fence = Fence::Word { line: 0, generation: 1 };
    let good = HandOver { sequence: 0, segment: 0, offset: 0, len: 1, fence };
    let bad = [
        (HandOver { len: 0, ..good }, "length"),
        (HandOver { offset: u64::MAX, ..good }, "offset"),
        (HandOver { offset: isize::MAX as u64, ..good }, "offset"),
        (HandOver { fence: Fence::Word { line: LINES, generation: 1 }, ..good }, "line"),
        (HandOver { fence: Fence::Word { line: 0, generation: 0 }, ..good }, "generation"),
        (HandOver { fence: Fence::Word { line: 0, generation: LAST + 1 }, ..good }, "generation"),
    ];
    for (message, name) in bad {
        let (kind, bytes) = Message::HandOver(message).encode();
        let refused = Message::parse(kind, &bytes);
        assert!(
            matches!(refused, Err(WireError::Value { field, .. }) if field == name),
            "{name}: {refused:?}"
        );
    }
    assert_eq!(Message::parse(15, &[]), Err(WireError::Kind(15)));
    for sizes in [&[][..], &[1], &[1, 0], &[1; MOST_HANDLES + 1], &[1 << 62, 1 << 62], &[u64::MAX, 1]] {
        assert_eq!(Parts::new(sizes), None, "{sizes:?}");
    }
}
