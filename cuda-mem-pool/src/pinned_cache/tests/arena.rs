//! Arenas that end.

use cuda_mem_core::Driver;

use crate::pinned_cache::PinnedCacheOptions;
use crate::pinned_cache::shared::Shared;

/// The thread that pins ahead may be at it while the last handle goes, in a hook that it runs.
#[test]
fn a_segment_that_is_pinned_ahead_for_a_closed_arena_goes_back() {
    let driver = Driver::over(cuda_mem_sim::table()).unwrap();
    let context = driver.device(0).unwrap().primary_context().unwrap();
    let shared = Shared::new(&context, PinnedCacheOptions::default());
    let arena = shared.arena(None, None);
    let segment = shared.pin(&arena, 2 << 20, 0).unwrap();
    shared.close();
    arena.add_small(segment);
    assert_eq!(shared.figures.held(), 0);
}
