//! Private pools, one rule at a time.

use std::slice;

use super::support::{MIB, allocate_at, reserved};
use crate::engine::segments::{Block, Checkpoint, Filter, Options, PoolError, PoolTable, TakenSegment};
use crate::mempool_id::MempoolId;

const BASE: u64 = 1 << 40;
const ONE: MempoolId = MempoolId(0, 1);
const TWO: MempoolId = MempoolId(2, 0);

fn pools() -> PoolTable<&'static str> {
    PoolTable::new(Options::default())
}

fn checkpoint(pools: &mut PoolTable<&'static str>, id: MempoolId) -> Result<Checkpoint, PoolError> {
    pools.in_use(id)?.heap.checkpoint()
}

fn restore(pools: &mut PoolTable<&'static str>, checkpoint: &Checkpoint) -> Result<[Vec<u64>; 2], PoolError> {
    let addresses = |blocks: Vec<Block>| blocks.iter().map(|block| block.address).collect();
    Ok(pools.in_use(ONE)?.heap.restore(checkpoint)?.map(addresses))
}

fn take_cached(pools: &mut PoolTable<&'static str>, id: MempoolId) -> Vec<TakenSegment> {
    pools.take_cached(id).0
}

#[test]
fn uses_are_counted_and_the_last_one_makes_it_freeable() {
    let pools = &mut pools();
    assert_eq!(pools.create_or_incref(MempoolId::NONE, None), Err(PoolError::NoPool));
    assert_eq!(pools.release_pool(ONE).unwrap_err(), PoolError::Unknown { id: ONE });
    pools.create_or_incref(ONE, Some("theirs")).unwrap();
    assert_eq!(pools.create_or_incref(ONE, Some("others")), Err(PoolError::SourceIsSet { id: ONE }));
    pools.begin_allocate(ONE, Filter::new(|_| true)).unwrap();
    assert_eq!(
        pools.begin_allocate(ONE, Filter::new(|_| true)).unwrap_err(),
        PoolError::AlreadyRouted { id: ONE }
    );
    assert_eq!(pools.get(ONE).unwrap().uses, Some(2));
    assert!(pools.release_pool(ONE).unwrap().is_none());
    assert!(pools.release_pool(ONE).unwrap().is_some(), "the last use ends what goes to it");
    assert_eq!(pools.end_allocate(ONE, None).unwrap_err(), PoolError::NotRouted { id: ONE });
    assert_eq!(pools.get(ONE).unwrap().uses, Some(0));
    let released = PoolError::Released { id: ONE };
    assert_eq!(pools.release_pool(ONE).unwrap_err(), released);
    assert_eq!(pools.create_or_incref(ONE, None), Err(released));
    assert_eq!(pools.in_use(ONE).unwrap_err(), released);
    assert_eq!(checkpoint(pools, ONE).unwrap_err(), released);
    assert!(take_cached(pools, MempoolId::NONE).is_empty());
    assert_eq!(pools.get(ONE).unwrap_err(), PoolError::Unknown { id: ONE }, "forgotten without segments");
    pools.create_or_incref(ONE, None).unwrap();
}

#[test]
fn the_innermost_filter_that_accepts_has_the_allocation() {
    let pools = &mut pools();
    pools.begin_allocate(ONE, Filter::this_thread()).unwrap();
    pools.begin_allocate(TWO, Filter::stream(7)).unwrap();
    let routes = pools.routes().clone();
    assert_eq!((routes.find(7), routes.find(8)), (Some(TWO), Some(ONE)));
    let elsewhere = std::thread::spawn(move || (routes.find(7), routes.find(8))).join().unwrap();
    assert_eq!(elsewhere, (Some(TWO), None));
    // Whichever ends first, the other goes on.
    pools.end_allocate(ONE, None).unwrap();
    assert_eq!((pools.routes().find(7), pools.routes().find(8)), (Some(TWO), None));
    pools.end_allocate(TWO, None).unwrap();
    assert_eq!(pools.routes().find(7), None);
}

#[test]
fn blocks_outlive_their_pool_and_its_memory_goes_where_it_came_from() {
    let pools = &mut pools();
    pools.create_or_incref(ONE, Some("theirs")).unwrap();
    pools.create_or_incref(TWO, None).unwrap();
    let block = allocate_at(&mut pools.get_mut(ONE).unwrap().heap, 0, MIB, BASE);
    let other = allocate_at(&mut pools.get_mut(TWO).unwrap().heap, 0, 30 * MIB, 2 * BASE);
    pools.get_mut(TWO).unwrap().heap.free(other).unwrap();
    assert!(take_cached(pools, TWO).is_empty() && take_cached(pools, MempoolId::NONE).is_empty(), "in use");

    pools.release_pool(ONE).unwrap();
    pools.release_pool(TWO).unwrap();
    assert!(take_cached(pools, ONE).is_empty(), "a block is left");
    let taken = take_cached(pools, MempoolId::NONE);
    assert_eq!(taken.len(), 1);
    assert_eq!((taken[0].id, taken[0].segment.address), (TWO, 2 * BASE));
    let released = PoolError::Released { id: TWO };
    assert_eq!(pools.create_or_incref(TWO, None), Err(released), "its memory is on its way");
    assert!(take_cached(pools, MempoolId::NONE).is_empty() && pools.get(TWO).is_ok());
    assert!(pools.given_back(&taken[0]).is_some_and(|over| over.source.is_none()));
    assert!(pools.get(TWO).is_err());
    assert_eq!(pools.put_back(&taken[0]), Err(PoolError::Unknown { id: TWO }), "it went");

    pools.get_mut(ONE).unwrap().heap.free(block).unwrap();
    let taken = take_cached(pools, ONE).remove(0);
    assert_eq!((taken.segment.address, taken.segment.bytes), (BASE, 2 * MIB));
    // The source did not take it.
    pools.put_back(&taken).unwrap();
    assert_eq!(reserved(&pools.get(ONE).unwrap().heap), 2 * MIB);
    assert_eq!(take_cached(pools, ONE), slice::from_ref(&taken));
    assert_eq!(pools.given_back(&taken).unwrap().source, Some("theirs"));
    assert!(take_cached(pools, ONE).is_empty(), "there is no such pool, and that is no error");
}

#[test]
fn free_memory_serves_others_before_they_run_out_where_that_is_allowed() {
    let pools = &mut pools();
    for (id, address) in [(ONE, BASE), (TWO, 2 * BASE)] {
        pools.create_or_incref(id, None).unwrap();
        let heap = &mut pools.get_mut(id).unwrap().heap;
        let block = allocate_at(heap, 0, 30 * MIB, address);
        heap.free(block).unwrap();
    }
    assert_eq!(pools.allocate_on_oom(0, 20 * MIB), None);
    pools.in_use(TWO).unwrap().use_on_oom = true;
    assert_eq!(pools.allocate_on_oom(1, 20 * MIB), None, "another stream");
    let (id, block) = pools.allocate_on_oom(0, 20 * MIB).unwrap();
    let block = block.address;
    assert_eq!((id, block), (TWO, 2 * BASE));
    assert_eq!(pools.allocate_on_oom(0, 20 * MIB), None, "10 MiB are left");
    pools.get_mut(TWO).unwrap().heap.free(block).unwrap();
    pools.in_use(TWO).unwrap().use_on_oom = false;
    assert_eq!(pools.allocate_on_oom(0, 20 * MIB), None);
    pools.in_use(ONE).unwrap().use_on_oom = true;
    pools.get_mut(ONE).unwrap().is_captured = true;
    assert_eq!(pools.allocate_on_oom(0, 20 * MIB), None, "a graph's");
    pools.in_use(TWO).unwrap().use_on_oom = true;
    pools.release_pool(TWO).unwrap();
    assert_eq!(pools.allocate_on_oom(0, 20 * MIB), None, "released");
}

#[test]
fn a_pool_without_splits_hands_out_whole_segments() {
    let pools = &mut pools();
    pools.create_or_incref(ONE, None).unwrap();
    pools.in_use(ONE).unwrap().heap.no_split = true;
    let heap = &mut pools.get_mut(ONE).unwrap().heap;
    let block = allocate_at(heap, 0, 1000, BASE);
    assert_eq!(heap.get(block).unwrap().size, 2 * MIB);
    let next = allocate_at(heap, 0, 1000, 2 * BASE);
    assert_eq!(next, 2 * BASE);
}

#[test]
fn options_hold_for_pools_that_are_there_and_those_to_come() {
    let pools = &mut pools();
    pools.create_or_incref(ONE, None).unwrap();
    pools.set_options(Options::default().with_large_segment_size(64 * MIB));
    pools.create_or_incref(TWO, None).unwrap();
    for (id, address) in [(ONE, BASE), (TWO, 2 * BASE)] {
        let heap = &mut pools.get_mut(id).unwrap().heap;
        allocate_at(heap, 0, 2 * MIB, address);
        assert_eq!(reserved(heap), 64 * MIB);
    }
}

#[test]
fn a_checkpoint_brings_the_blocks_of_its_time_back() {
    let pools = &mut pools();
    pools.create_or_incref(ONE, None).unwrap();
    let heap = &mut pools.get_mut(ONE).unwrap().heap;
    let first = allocate_at(heap, 0, 4 * MIB, BASE);
    let second = allocate_at(heap, 0, 4 * MIB, BASE);
    heap.free(first).unwrap();
    let kept = checkpoint(pools, ONE).unwrap();

    // Later the first has shrunk, the second is gone, and there is a segment more.
    let heap = &mut pools.get_mut(ONE).unwrap().heap;
    let smaller = allocate_at(heap, 0, 2 * MIB, BASE);
    heap.free(second).unwrap();
    let large = allocate_at(heap, 0, 40 * MIB, 2 * BASE);
    let [freed, allocated] = restore(pools, &kept).unwrap();
    assert_eq!(freed, [smaller, large]);
    assert_eq!(allocated, [second]);
    let heap = &mut pools.get_mut(ONE).unwrap().heap;
    assert!(heap.check_live_allocations(&[second].into()));
    assert_eq!(allocate_at(heap, 0, 4 * MIB, 0), BASE, "free again, as it was");

    // The same once more: a checkpoint is not used up.
    assert_eq!(restore(pools, &kept).unwrap()[1].len(), 1);
    let heap = &mut pools.get_mut(ONE).unwrap().heap;
    let id = heap.allocated().next().unwrap().address;
    heap.free_pending(id).unwrap();
    let pending = PoolError::Pending { address: id };
    assert_eq!(restore(pools, &kept), Err(pending));
    assert_eq!(checkpoint(pools, ONE).unwrap_err(), pending);
    let heap = &mut pools.get_mut(ONE).unwrap().heap;
    heap.complete(id).unwrap();
    assert_eq!(heap.release_cached().len(), 2);
    allocate_at(heap, 0, 4 * MIB, BASE);
    let missing = PoolError::MissingSegment { address: BASE, bytes: 20 * MIB };
    assert_eq!(restore(pools, &kept), Err(missing));
}

/// What comes to its name next has segments of the same numbers, maybe at the same addresses.
#[test]
fn a_checkpoint_ends_with_its_pool() {
    let pools = &mut pools();
    pools.create_or_incref(ONE, None).unwrap();
    let block = allocate_at(&mut pools.get_mut(ONE).unwrap().heap, 0, 4 * MIB, BASE);
    let kept = checkpoint(pools, ONE).unwrap();
    pools.get_mut(ONE).unwrap().heap.free(block).unwrap();
    pools.release_pool(ONE).unwrap();
    let taken = take_cached(pools, ONE).remove(0);
    assert!(pools.given_back(&taken).is_some());
    pools.create_or_incref(ONE, None).unwrap();
    let other = allocate_at(&mut pools.get_mut(ONE).unwrap().heap, 0, 1000, BASE);
    let missing = PoolError::MissingSegment { address: BASE, bytes: 20 * MIB };
    assert_eq!(restore(pools, &kept), Err(missing));
    assert!(pools.get(ONE).unwrap().heap.check_live_allocations(&[other].into()));
}

#[test]
fn the_pool_of_all_other_requests_gives_back_what_is_free_and_is_nobodys_to_release() {
    let pools = &mut pools();
    assert!(pools.serve_default(true) && !pools.serve_default(true));
    let none = MempoolId::NONE;
    let block = allocate_at(&mut pools.get_mut(none).unwrap().heap, 0, MIB, BASE);
    assert!(take_cached(pools, none).is_empty());
    pools.get_mut(none).unwrap().heap.free(block).unwrap();
    let taken = take_cached(pools, none).remove(0);
    assert!(pools.given_back(&taken).is_none() && pools.get(none).is_ok(), "it goes on");
    let unknown = PoolError::Unknown { id: none };
    assert_eq!(pools.release_pool(none).unwrap_err(), unknown);
    assert_eq!(checkpoint(pools, none).unwrap_err(), unknown);
    assert_eq!(pools.create_or_incref(none, None), Err(PoolError::NoPool));
    assert!(pools.serve_default(false) && !pools.serve_default(false) && !pools.serves_default());
    assert!(pools.get(none).is_ok_and(|pool| pool.is_freeable()), "it waits to be emptied");
    assert!(pools.serve_default(true) && pools.serves_default());
}
