//! How large segments are.

use crate::engine::classes::{LARGE, PAGE};
use crate::pinned_cache::heap::{LARGEST, SMALLEST, segment_for};

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
