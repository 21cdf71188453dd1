//! Which free block a request gets, one rule at a time.

use super::support::{KIB, MIB, allocate_at, hit, layout};
use crate::engine::segments::{Allocation, BlockState, Options, PoolError, SegmentHeap};

const BASE: u64 = 1 << 40;

fn heap(options: Options) -> SegmentHeap {
    SegmentHeap::new(options)
}

#[test]
fn the_smallest_that_fits_then_the_lowest() {
    let heap = &mut heap(Options::default());
    // Of the addresses the middle one is the lowest.
    let sizes = [(30 * MIB, 3), (20 * MIB, 1), (20 * MIB, 2)];
    let blocks = sizes.map(|(bytes, place)| allocate_at(heap, 0, bytes, BASE + place * (1 << 30)));
    for block in blocks {
        heap.free(block).unwrap();
    }
    let found = [15 * MIB, 15 * MIB, 15 * MIB].map(|bytes| hit(heap, 0, bytes).unwrap() - BASE);
    assert_eq!(found, [1 << 30, 2 << 30, 3 << 30]);
    assert_eq!(hit(heap, 0, 14 * MIB).unwrap(), BASE + (3 << 30) + 15 * MIB, "what the last left");
}

#[test]
fn streams_and_sorts_share_nothing() {
    let heap = &mut heap(Options::default());
    let block = allocate_at(heap, 1, 20 * MIB, BASE);
    heap.free(block).unwrap();
    assert_eq!(hit(heap, 0, 2 * MIB), None);
    assert_eq!(hit(heap, 2, 2 * MIB), None);
    assert_eq!(hit(heap, 1, MIB), None, "a small one does not come from a large segment");
    assert!(hit(heap, 1, MIB + 1).is_some());
}

#[test]
fn small_ones_are_split_to_the_last_512_bytes_and_large_ones_while_more_than_1_mib_is_left() {
    let heap = &mut heap(Options::default());
    allocate_at(heap, 0, MIB, BASE);
    let rest = hit(heap, 0, MIB - 512).unwrap();
    assert_eq!(heap.get(rest).unwrap().size, MIB - 512);
    assert!(hit(heap, 0, 512).is_some());

    let close = allocate_at(heap, 0, 19 * MIB, 2 * BASE);
    assert_eq!(heap.get(close).unwrap().size, 20 * MIB, "1 MiB is not split off");
    heap.free(close).unwrap();
    let less = hit(heap, 0, 19 * MIB - 512).unwrap();
    assert_eq!(heap.get(less).unwrap().size, 19 * MIB - 512);
}

#[test]
fn what_is_too_large_to_be_split_is_kept_for_its_like() {
    let heap = &mut heap(Options::default().with_max_split_size(Some(32 * MIB)));
    let block = allocate_at(heap, 0, 100 * MIB, BASE);
    heap.free(block).unwrap();
    assert_eq!(hit(heap, 0, 31 * MIB), None, "not for what may be split");
    assert_eq!(hit(heap, 0, 80 * MIB), None, "20 MiB too many");
    let whole = hit(heap, 0, 80 * MIB + 512).unwrap();
    assert_eq!(heap.get(whole).unwrap().size, 100 * MIB);
}

#[test]
fn a_new_segment_serves_the_request_it_was_made_for_even_if_no_search_would_find_it() {
    let heap = &mut heap(Options::default().with_max_split_size(Some(20 * MIB)));
    let block = allocate_at(heap, 0, 5 * MIB, BASE);
    assert_eq!(heap.get(block).unwrap().size, 5 * MIB);
    heap.free(block).unwrap();
    assert_eq!(hit(heap, 0, 5 * MIB), None, "20 MiB are too large to be split");
}

#[test]
fn a_pending_block_is_nobodys_and_joins_nothing() {
    let heap = &mut heap(Options::default());
    let first = allocate_at(heap, 0, 4 * MIB, BASE);
    let second = hit(heap, 0, 4 * MIB).unwrap();
    heap.free_pending(first).unwrap();
    heap.free(second).unwrap();
    let states = |heap: &SegmentHeap| -> Vec<_> {
        layout(heap)[0].4.iter().map(|block| (block.size / MIB, block.state)).collect()
    };
    assert_eq!(states(heap), [(4, BlockState::ActivePendingFree), (16, BlockState::Inactive)]);
    assert!(heap.release_cached().is_empty());
    assert_eq!(heap.complete(second), None);

    heap.complete(first).unwrap();
    assert_eq!(states(heap), [(20, BlockState::Inactive)]);
    assert_eq!(heap.complete(first), None);
}

#[test]
fn a_destroyed_streams_blocks_are_anothers() {
    let heap = &mut heap(Options::default());
    let free = allocate_at(heap, 1, 20 * MIB, BASE);
    let live = allocate_at(heap, 1, 30 * MIB, 2 * BASE);
    heap.free(free).unwrap();
    heap.adopt(1, 2);
    assert_eq!(hit(heap, 1, 20 * MIB), None);
    assert_eq!(hit(heap, 2, 20 * MIB).unwrap(), BASE);
    assert_eq!(heap.free(live).unwrap().stream, 2);
    assert_eq!(hit(heap, 2, 30 * MIB).unwrap(), 2 * BASE);
}

#[test]
fn new_options_leave_what_is_there() {
    let heap = &mut heap(Options::default());
    let block = allocate_at(heap, 0, 2 * MIB, BASE);
    heap.options = Options::default().with_roundup_power2_divisions([2; 16]);
    heap.free(block).unwrap();
    let next = hit(heap, 0, 9 * MIB).unwrap();
    assert_eq!((next, heap.get(next).unwrap().size), (BASE, 12 * MIB));
}

#[test]
fn a_segment_that_is_none_is_refused_and_stays_its_owners() {
    let heap = &mut heap(Options::default());
    let Allocation::Miss(wanted) = heap.allocate(0, 30 * MIB).unwrap() else { unreachable!() };
    let bytes = wanted.bytes;
    for address in [0, 128, 1, u64::MAX - 511] {
        assert_eq!(heap.add_segment(&wanted, address), Err(PoolError::BadSegment { address, bytes }));
    }
    heap.add_segment(&wanted, BASE).unwrap();
    for address in [BASE - 512, BASE, BASE + bytes - 512] {
        let error = heap.add_segment(&wanted, address);
        assert_eq!(error, Err(PoolError::Overlap { address, bytes, other: BASE }));
    }
    assert_eq!(heap.segments().count(), 1);
    heap.add_segment(&wanted, BASE - bytes).unwrap();
    heap.add_segment(&wanted, BASE + bytes).unwrap();
    // As pools of RMM give them.
    let odd = heap.add_segment(&wanted, BASE + 2 * bytes + 256).unwrap();
    assert_eq!(odd.address, BASE + 2 * bytes + 256);
}

#[test]
fn blocks_are_known_by_their_first_byte_and_segments_by_any() {
    let heap = &mut heap(Options::default());
    let block = allocate_at(heap, 0, 3 * KIB, BASE);
    assert_eq!(heap.segment_at(BASE + 2 * MIB - 1).unwrap().address, BASE);
    assert!(heap.segment_at(BASE + 2 * MIB).is_none() && heap.segment_at(BASE - 1).is_none());
    heap.free(block).unwrap();
    let again = hit(heap, 0, 3 * KIB).unwrap();
    assert_eq!(again, BASE);
    assert_eq!((heap.get(BASE + 512), heap.free(BASE + 512)), (None, None));
    assert!(heap.check_live_allocations(&[BASE].into()));
    assert!(!heap.check_live_allocations(&[BASE, BASE + 512].into()));
    assert!(!heap.check_live_allocations(&[BASE + 512].into()));
    heap.free_pending(again).unwrap();
    assert!(heap.check_live_allocations(&[].into()), "pending is not live");
}
