//! How large the next segment is.
//!
//! A large block gets a segment of its own size, to the page. Small blocks share segments that grow with what is held, so
//! that what lies unused at the end of the last one stays below one part in 128 of the whole.

use super::classes::{LARGE, PAGE};

/// The smallest shared segment: one huge page.
pub(crate) const SMALLEST: usize = 2 << 20;
/// The largest shared segment: a larger one would not be ready sooner, byte for byte.
const LARGEST: usize = 64 << 20;
/// What part of the held bytes a new shared segment may be.
const PART: usize = 128;
/// What part of the bytes that were ever in use at once may be held beside them before more is pinned for a large block, but
/// never less than [`SPARE`]. Sizes that seldom come again cut up what is free; beyond this, pieces that fit nothing go back.
const SPARE_PART: usize = 4;
/// Less than this is not worth a wait for the device.
const SPARE: usize = 256 << 20;
/// What part of the held bytes may lie ready for small blocks that nobody has asked for yet.
const RESERVE_PART: usize = 256;

/// The bytes of a segment for a block of `block` bytes, which is rounded already, when `held` bytes are held.
pub(crate) fn segment_for(block: usize, held: usize) -> usize {
    if block >= LARGE {
        return block.next_multiple_of(PAGE);
    }
    let shared = shared_segment(held);
    // As many such blocks as fit without a rest: a program's blocks are often all alike.
    let blocks = (shared / block).max(1);
    (blocks * block).next_multiple_of(PAGE)
}

/// The bytes of a segment that is made ahead of requests.
pub(crate) fn segment_ahead(held: usize) -> usize {
    (held / RESERVE_PART).clamp(SMALLEST, LARGEST).next_multiple_of(PAGE)
}

/// Whether so few bytes are free for small blocks that a segment should be made ahead.
pub(crate) fn runs_short(free: usize, held: usize) -> bool {
    free < segment_ahead(held) / 2
}

/// The bytes to give back of `held`, when at most `most_used` were in use at once.
pub(crate) fn surplus(held: usize, most_used: usize) -> usize {
    held.saturating_sub(most_used.saturating_add((most_used / SPARE_PART).max(SPARE)))
}

fn shared_segment(held: usize) -> usize {
    (held / PART).clamp(SMALLEST, LARGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_blocks_get_their_own_size() {
        assert_eq!(segment_for(LARGE, 0), LARGE);
        assert_eq!(segment_for(LARGE + 256, 1 << 40), LARGE + PAGE);
    }

    #[test]
    fn shared_segments_grow_with_what_is_held_and_hold_whole_blocks() {
        assert_eq!(segment_for(256, 0), SMALLEST);
        assert_eq!(segment_for(256, 1 << 30), 8 << 20);
        assert_eq!(segment_for(256, 1 << 40), LARGEST);
        for block in [7 << 10, 100 << 10, 900 << 10] {
            let segment = segment_for(block, 1 << 30);
            assert!(segment % block < PAGE && segment <= 8 << 20, "{segment}");
        }
    }

    #[test]
    fn what_is_made_ahead_is_bounded() {
        for held in [0, 1 << 20, 1 << 28, 24 << 30, 1 << 40] {
            assert!(segment_ahead(held) <= (held / 100).max(SMALLEST));
            assert!(runs_short(0, held) && !runs_short(segment_ahead(held), held));
        }
    }
}
