//! Any bytes are a message of a shared pool or an error, and a message is written as it is read.

use cuda_mem_ipc::shared::wire::{Fence, LINES, MOST_HANDLES, Message, Place};

/// Whether the bytes are a kind, in two of them, and a payload that has it.
pub(crate) fn check(bytes: &[u8]) -> bool {
    let Some((kind, payload)) = bytes.split_first_chunk() else { return false };
    let kind = u16::from_le_bytes(*kind);
    let Ok(message) = Message::parse(kind, payload) else { return false };
    assert_eq!(message.encode(), (kind, payload.to_vec()));
    match message {
        Message::HandOver(part) => {
            assert!(part.len > 0 && part.offset.checked_add(part.len).is_some());
            if let Fence::Word { line, generation } = part.fence {
                assert!(line < LINES && generation > 0 && generation.cast_signed() > 0);
            }
        }
        Message::Release(release) => assert!(release.line < LINES && release.generation.cast_signed() >= 0),
        Message::Segment(segment) => {
            assert!(segment.bytes > 0 && usize::try_from(segment.bytes).is_ok());
            assert!((1..=MOST_HANDLES).contains(&segment.descriptors()));
            if let Place::Parts { parts, .. } = segment.place {
                assert_eq!(parts.sizes().iter().sum::<u64>(), segment.bytes);
            }
        }
        _ => {}
    }
    true
}
