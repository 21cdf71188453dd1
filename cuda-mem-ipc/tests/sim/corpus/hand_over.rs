//! Any bytes are a message of a shared pool or an error, and a message is written as it is read.

use cuda_mem_ipc::shared::wire::{HandOver, LINES, MOST_HANDLES, Message, Place, Release};

/// Whether the bytes are a kind, in two of them, and a payload that has it.
pub(crate) fn check(bytes: &[u8]) -> bool {
    let Some((kind, payload)) = bytes.split_first_chunk() else { return false };
    let kind = u16::from_le_bytes(*kind);
    check_entry(payload);
    let Ok(message) = Message::parse(kind, payload) else { return false };
    assert_eq!(message.encode(), (kind, payload.to_vec()));
    if let Message::Segment(segment) = message {
        assert!(segment.bytes > 0 && usize::try_from(segment.bytes).is_ok());
        assert!((1..=MOST_HANDLES).contains(&segment.descriptors()));
        if let Place::Parts { sizes, .. } = segment.place {
            assert_eq!(sizes.iter().sum::<u64>(), segment.bytes);
        }
    }
    true
}

/// The same bytes as an entry of either ring.
fn check_entry(payload: &[u8]) {
    let (words, _) = payload.as_chunks::<8>();
    let Some(words) = words.first_chunk::<6>() else { return };
    let [sequence, segment, offset, len, line, generation] = words.map(u64::from_le_bytes);
    let entry = [sequence, segment, offset, len, line, generation, 0];
    if let Ok(part) = HandOver::of_entry(entry) {
        assert!(part.len > 0 && part.offset.checked_add(part.len).is_some());
        assert!(part.fence.line < LINES && part.fence.generation.cast_signed() > 0);
        assert_eq!(part.to_entry(), entry);
    }
    if let Ok(release) = Release::of_entry(entry) {
        assert!(release.fence.line < LINES && release.fence.generation.cast_signed() >= 0);
    }
}
