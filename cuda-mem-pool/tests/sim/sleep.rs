//! Tags when the driver refuses, and what figures say then.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cuda_mem_core::copy::{memcpy_async, memset_async};
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Driver, DriverError, Stream};
use cuda_mem_pool::caching::{Backup, CachingAllocator, CachingOptions, Restore, SleepError, Slept, Tag};
use cuda_mem_pool::segments::{Filter, Options};
use cuda_mem_pool::snapshot::Action;
use cuda_mem_pool::{Error, MempoolId};
use cuda_mem_sim::Sim;

use crate::blocks::{free, routed};
use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::common::is_filled;
use crate::common::kernels::Kernels;
use crate::rig::{on, on_simulator};

pub(crate) const MIB: usize = 1 << 20;
const UNKNOWN: CUresult = CUresult::CUDA_ERROR_UNKNOWN;

pub(crate) fn allocate_in(tag: &Tag, allocator: &CachingAllocator, bytes: usize, stream: &Stream) -> u64 {
    let _scope = tag.enter().unwrap();
    allocator.allocate_by_address(bytes, stream).unwrap()
}

/// Blocks of sevens with segments of their own that lie one behind the other, as the simulator's addresses do.
fn in_a_row(tag: &Tag, allocator: &CachingAllocator, sizes: &[usize], stream: &Stream) -> Vec<u64> {
    let blocks: Vec<_> = sizes.iter().map(|bytes| allocate_in(tag, allocator, *bytes, stream)).collect();
    let is_behind = |(pair, bytes): (&[u64], &usize)| pair[0] + *bytes as u64 == pair[1];
    assert!(blocks.windows(2).zip(sizes).all(is_behind), "{blocks:x?}");
    blocks.iter().zip(sizes).for_each(|(block, bytes)| fill(stream, *block, *bytes, 7));
    blocks
}

pub(crate) fn fill(stream: &Stream, address: u64, bytes: usize, value: u8) {
    // SAFETY: memory of the test, which nothing else uses.
    unsafe { memset_async(stream, address, value, bytes) }.unwrap();
    stream.synchronize().unwrap();
}

pub(crate) fn byte(stream: &Stream, address: u64) -> u8 {
    let host = [0u8; 1];
    // SAFETY: a byte on the host, which lives until the wait is over.
    unsafe { memcpy_async(stream, host.as_ptr().expose_provenance() as u64, address, 1) }.unwrap();
    stream.synchronize().unwrap();
    // SAFETY: a live byte, which the device wrote.
    unsafe { host.as_ptr().read_volatile() }
}

pub(crate) fn sleep(tag: &Tag, backup: Backup) -> Slept {
    // SAFETY: tests queue nothing that uses what sleeps.
    unsafe { Tag::sleep(&[tag], backup) }.unwrap()
}

#[test]
fn a_backup_of_bytes_that_were_put_to_sleep_in_two_parts_is_read_as_one() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        let blocks = in_a_row(&tag, &allocator, &[64 * MIB, 64 * MIB, 32 * MIB], &stream);
        let block = blocks[0];
        // The segment in the middle goes last.
        let keep = tag.keep(block + (100 << 20), 1, "a while").unwrap();
        sleep(&tag, Backup::Pinned);
        let mut read = vec![0; 161 * MIB];
        assert_eq!(tag.read_backup(block, &mut read).unwrap(), 64 * MIB);
        drop(keep);
        sleep(&tag, Backup::Pinned);
        assert_eq!(tag.read_backup(block, &mut read).unwrap(), 160 * MIB);
        assert!(is_filled(&read[..160 * MIB], 7));
        Tag::wake(&[&tag], Restore::Backup).unwrap();
        blocks.into_iter().for_each(|block| free(&allocator, block));
    });
}

#[test]
fn a_backup_is_read_as_it_was_saved_last() {
    on_simulator(|sim, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        let blocks = in_a_row(&tag, &allocator, &[64 * MIB, 64 * MIB, 32 * MIB], &stream);
        let block = blocks[0];
        // Saved, but the segment in the middle stays awake, and changes.
        sim.fail_call("cuMemUnmap", 2, UNKNOWN);
        assert_eq!(sleep(&tag, Backup::Pinned).freed, 96 * MIB);
        fill(&stream, block + (64 << 20), 64 * MIB, 9);
        assert_eq!(sleep(&tag, Backup::Pinned).freed, 64 * MIB);
        let mut read = vec![0; 160 * MIB];
        assert_eq!(tag.read_backup(block, &mut read).unwrap(), 160 * MIB);
        for (part, byte) in read.chunks(32 * MIB).zip([7, 7, 9, 9, 7]) {
            assert!(is_filled(part, byte), "{} for {byte}", part[0]);
        }
        Tag::wake(&[&tag], Restore::Backup).unwrap();
        assert_eq!([63, 64, 127, 128].map(|at| byte(&stream, block + (at << 20))), [7, 9, 9, 7]);
        blocks.into_iter().for_each(|block| free(&allocator, block));
    });
}

#[test]
fn a_range_is_kept_over_segments_and_refused_from_where_it_leaves_the_tag() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        let blocks = [(); 2].map(|()| allocate_in(&tag, &allocator, 12 * MIB, &stream));
        let (first, last) = (blocks[0].min(blocks[1]), blocks[0].max(blocks[1]));
        let refused = |address: u64, bytes: usize| match tag.keep(address, bytes, "a registration") {
            Err(Error::Sleep(SleepError::NotOfTag { address, .. })) => address,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(last, 13 * MIB), last + (12 << 20));
        assert_eq!(refused(u64::MAX, usize::MAX), u64::MAX);
        // The simulator's addresses lie one behind the other.
        assert_eq!(last - first, 12 << 20);
        let keep = tag.keep(first, 24 * MIB, "a registration").unwrap();
        assert_eq!(sleep(&tag, Backup::Discard).kept[0].bytes, 24 * MIB);
        drop(keep);
        Tag::wake(&[&tag], Restore::Nothing).unwrap();
        blocks.into_iter().for_each(|block| free(&allocator, block));
    });
}

/// It never left: its stream was busy when free memory was given back.
#[test]
fn a_segment_that_was_put_back_is_the_one_of_its_checkpoint() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        let block = allocate_in(&tag, &allocator, 3 * MIB, &stream);
        let checkpoint = allocator.checkpoint_pool(tag.pools()[0]).unwrap();
        free(&allocator, block);
        let gate = Gate::before(&stream);
        let (went, serial) = (allocator.empty_cache(), allocator.segments()[0].serial);
        gate.open();
        assert_eq!((went.unwrap(), serial), (0, Some(0)));
        // SAFETY: nothing uses the block that comes back.
        let restored = unsafe { allocator.restore_pool(tag.pools()[0], &checkpoint) }.unwrap();
        assert_eq!(restored.allocated, [block]);
        free(&allocator, block);
    });
}

/// Neither a pool that sleeps nor one that was released hands out what is free in it.
#[test]
fn the_largest_free_block_is_one_that_can_be_had() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        let block = allocate_in(&tag, &allocator, 3 * MIB, &stream);
        assert_eq!(allocator.largest_free_block().unwrap(), 17 * MIB);
        sleep(&tag, Backup::Discard);
        assert_eq!(allocator.largest_free_block().unwrap(), 0);
        Tag::wake(&[&tag], Restore::Nothing).unwrap();
        assert_eq!(allocator.largest_free_block().unwrap(), 17 * MIB);
        let id = MempoolId::for_user();
        let other = routed(&allocator, id, MIB / 2, &stream).unwrap();
        [block, other].into_iter().for_each(|block| free(&allocator, block));
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.largest_free_block().unwrap(), 2 * MIB);
        allocator.release_pool(id).unwrap();
        assert_eq!(allocator.largest_free_block().unwrap(), 0);
    });
}

#[test]
fn what_a_failed_wake_left_mapped_has_its_bytes_after_the_next() {
    on_simulator(|sim, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        let blocks = in_a_row(&tag, &allocator, &[64 * MIB, 64 * MIB, 32 * MIB], &stream);
        let block = blocks[0];
        sleep(&tag, Backup::Pinned);
        // The second segment cannot be let in, and not unmapped: it has no bytes yet.
        sim.fail_call("cuMemSetAccess", 2, UNKNOWN);
        sim.fail_call("cuMemUnmap", 2, UNKNOWN);
        Tag::wake(&[&tag], Restore::Backup).unwrap_err();
        let state = tag.state();
        assert!(state.is_asleep);
        assert_eq!((state.awake_bytes, state.asleep_bytes), (64 * MIB, 96 * MIB));
        assert_eq!(allocator.reserved_bytes(), 64 * MIB);
        assert_eq!(allocator.statistics().asleep_bytes, 96 << 20);
        // What is put to sleep again had nothing to be saved.
        let again = sleep(&tag, Backup::Pinned);
        assert_eq!((again.saved, again.freed, allocator.reserved_bytes()), (0, 64 * MIB, 0));
        sim.fail_call("cuMemSetAccess", 2, UNKNOWN);
        sim.fail_call("cuMemUnmap", 2, UNKNOWN);
        Tag::wake(&[&tag], Restore::Backup).unwrap_err();
        Tag::wake(&[&tag], Restore::Backup).unwrap();
        assert_eq!((allocator.reserved_bytes(), allocator.statistics().asleep_bytes), (160 * MIB, 0));
        for offset in [0, 64 * MIB, 80 * MIB, 128 * MIB, 160 * MIB - 1] {
            assert_eq!(byte(&stream, block + offset as u64), 7, "at {offset}");
        }
        blocks.into_iter().for_each(|block| free(&allocator, block));
    });
}

/// The wait for what it had copied is refused too.
#[test]
fn nothing_is_unmapped_or_filled_under_the_copies_of_a_wake_that_failed() {
    let calls = (1..).take_while(|nth| [0, 1].into_iter().all(|between| wake_with_two_faults(*nth, between)));
    assert!(calls.count() > 20);
}

/// Whether there are so many calls.
fn wake_with_two_faults(nth: u64, between: u64) -> bool {
    let sim = Sim::builder().memory(64 << 20).build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let allocator = CachingAllocator::new(&context, &CachingOptions::default()).unwrap();
    let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(&context).unwrap());
    let blocks = [3 * MIB, 1000].map(|bytes| allocate_in(&tag, &allocator, bytes, &stream));
    fill(&stream, blocks[0], 3 * MIB, 7);
    sleep(&tag, Backup::Pinned);
    // The second counts from the first on.
    [nth, nth + between].into_iter().for_each(|nth| sim.fail_nth_call_overall(nth, UNKNOWN));
    let woken = Tag::wake(&[&tag], Restore::Backup);
    let are_struck = !sim.struck().is_empty();
    sim.clear_faults();
    if woken.is_err() {
        Tag::wake(&[&tag], Restore::Filled(3)).unwrap();
        assert_eq!(byte(&stream, blocks[0]), 3, "call {nth}");
    }
    blocks.into_iter().for_each(|block| free(&allocator, block));
    drop((tag, allocator));
    assert!(sim.misuse().is_empty(), "call {nth}: {:?}", sim.misuse());
    are_struck
}

#[test]
fn a_tag_that_is_named_twice_counts_once() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        let block = allocate_in(&tag, &allocator, 40 * MIB, &stream);
        fill(&stream, block, 40 * MIB, 7);
        let again = allocator.tag("weights").unwrap();
        // SAFETY: nothing is queued that uses what sleeps.
        let slept = unsafe { Tag::sleep(&[&tag, &again, &tag], Backup::Pinned) }.unwrap();
        assert_eq!((slept.freed, slept.saved), (40 * MIB, 40 * MIB));
        Tag::wake(&[&again, &tag], Restore::Backup).unwrap();
        assert_eq!((tag.state().awake_bytes, byte(&stream, block)), (40 * MIB, 7));
        free(&allocator, block);
    });
}

#[test]
fn free_memory_of_a_tag_goes_back_but_for_what_a_graph_may_use() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        let (block, other) = (
            allocate_in(&tag, &allocator, 40 * MIB, &stream),
            allocate_in(&tag, &allocator, 60 * MIB, &stream),
        );
        free(&allocator, other);
        // Asleep it has no memory to give.
        sleep(&tag, Backup::Pinned);
        assert_eq!(allocator.empty_cache().unwrap(), 0);
        Tag::wake(&[&tag], Restore::Backup).unwrap();
        assert_eq!((allocator.empty_cache().unwrap(), tag.state().awake_bytes), (60 * MIB, 40 * MIB));
        // Others get it before they run out of memory.
        let other = allocate_in(&tag, &allocator, 60 * MIB, &stream);
        free(&allocator, other);
        allocator.set_limit(120 * MIB).unwrap();
        let untagged = allocator.allocate_by_address(70 * MIB, &stream).unwrap();
        assert_eq!(tag.state().awake_bytes, 40 * MIB);
        free(&allocator, untagged);
        allocator.set_limit(usize::MAX).unwrap();
        let capture = Capture::begin(&stream, RELAXED);
        let captured = allocate_in(&tag, &allocator, 60 * MIB, &stream);
        free(&allocator, captured);
        let graph = capture.end().unwrap();
        assert_eq!((allocator.empty_cache().unwrap(), tag.state().awake_bytes), (70 * MIB, 100 * MIB));
        drop(graph);
        free(&allocator, block);
    });
}

#[test]
fn work_on_a_stream_that_was_never_recorded_is_waited_for() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        let block = allocate_in(&tag, &allocator, 40 * MIB, &stream);
        let unknown = Stream::new(context).unwrap();
        for value in 0..10 {
            // SAFETY: memory of the test, which nothing else uses.
            unsafe { memset_async(&unknown, block, value, 40 * MIB) }.unwrap();
        }
        sleep(&tag, Backup::Pinned);
        Tag::wake(&[&tag], Restore::Backup).unwrap();
        assert_eq!((byte(&stream, block), byte(&stream, block + (40 << 20) - 1)), (9, 9));
        free(&allocator, block);
    });
}

#[test]
fn a_peer_reaches_what_woke_and_is_waited_for() {
    on(Sim::builder().devices(2), |_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (early, stream) = (allocator.tag("early").unwrap(), Stream::new(context).unwrap());
        let peer = context.driver().device(1).unwrap();
        let block = allocate_in(&early, &allocator, 40 * MIB, &stream);
        sleep(&early, Backup::Discard);
        allocator.enable_peer_access(peer).unwrap();
        let late = allocator.tag("late").unwrap();
        let other = allocate_in(&late, &allocator, 40 * MIB, &stream);
        sleep(&late, Backup::Discard);
        Tag::wake(&[&early, &late], Restore::Filled(0)).unwrap();
        let remote = peer.primary_context().unwrap();
        let (kernels, on_peer) = (Kernels::load(&remote), Stream::new(&remote).unwrap());
        for (tag, block) in [(&early, block), (&late, other)] {
            for value in 0..5 {
                // SAFETY: memory of the test, which nothing else uses.
                unsafe { kernels.fill_u32(&on_peer, block, 10 << 20, value) };
            }
            // What the peer runs is over when it sleeps.
            sleep(tag, Backup::Pinned);
            Tag::wake(&[tag], Restore::Backup).unwrap();
            assert_eq!((byte(&stream, block), byte(&stream, block + (40 << 20) - 4)), (4, 4));
            // SAFETY: as above.
            unsafe { kernels.add_one_u32(&on_peer, block, 10 << 20) };
            on_peer.synchronize().unwrap();
            assert_eq!(byte(&stream, block + (40 << 20) - 4), 5);
        }
        [block, other].into_iter().for_each(|block| free(&allocator, block));
    });
}

/// It may reach a part of the memory.
#[test]
fn a_peer_that_was_let_in_by_half_is_waited_for_too() {
    on(Sim::builder().devices(2), |sim, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        let blocks = [(); 2].map(|()| allocate_in(&tag, &allocator, 40 * MIB, &stream));
        let peer = context.driver().device(1).unwrap();
        sim.fail_call("cuMemSetAccess", 2, UNKNOWN);
        allocator.enable_peer_access(peer).unwrap_err();
        sim.clear_faults();
        // This is for it once it is let in.
        let other = allocate_in(&tag, &allocator, 40 * MIB, &stream);
        let remote = peer.primary_context().unwrap();
        let (kernels, on_peer) = (Kernels::load(&remote), Stream::new(&remote).unwrap());
        for value in 0..5 {
            // SAFETY: memory of the test, which nothing else uses and the peer reaches.
            unsafe { kernels.fill_u32(&on_peer, blocks[0], 10 << 20, value) };
        }
        sleep(&tag, Backup::Pinned);
        Tag::wake(&[&tag], Restore::Backup).unwrap();
        assert_eq!((byte(&stream, blocks[0]), byte(&stream, blocks[0] + (40 << 20) - 4)), (4, 4));
        allocator.enable_peer_access(peer).unwrap();
        // SAFETY: as above.
        unsafe { kernels.fill_u32(&on_peer, other, 10 << 20, 7) };
        on_peer.synchronize().unwrap();
        assert_eq!(byte(&stream, other), 7);
        blocks.into_iter().chain([other]).for_each(|block| free(&allocator, block));
    });
}

#[test]
fn memory_that_the_driver_refuses_to_take_is_told_and_counted_once() {
    let sim = Sim::builder().build();
    let driver = Driver::over(sim.table()).unwrap();
    let context = driver.device(0).unwrap().primary_context().unwrap();
    let allocator = CachingAllocator::new(&context, &CachingOptions::default()).unwrap();
    let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(&context).unwrap());
    let small = allocate_in(&tag, &allocator, 1000, &stream);
    let block = allocate_in(&tag, &allocator, 20 * MIB, &stream);
    (1..=6).for_each(|_| sim.fail_call("cuMemRelease", 1, UNKNOWN));
    let slept = sleep(&tag, Backup::Discard);
    assert!(!slept.refused.is_empty(), "{slept:?}");
    assert_eq!(tag.state().asleep_bytes, 22 * MIB);
    assert_eq!((allocator.reserved_bytes(), allocator.statistics().asleep_bytes), (0, 22 << 20));
    sim.clear_faults();
    Tag::wake(&[&tag], Restore::Nothing).unwrap();
    let statistics = allocator.statistics();
    assert_eq!((allocator.reserved_bytes(), statistics.asleep_bytes), (22 * MIB, 0));
    let reserved = statistics.reserved_bytes;
    assert_eq!((reserved.small_pool.current, reserved.large_pool.current), (2 << 20, 20 << 20));
    [small, block].into_iter().for_each(|block| free(&allocator, block));
}

/// Segments of a tag are whole pages, whatever the options say.
#[test]
fn figures_of_segments_of_an_odd_size_are_those_of_their_memory() {
    on_simulator(|_, context| {
        let segments = Options::default().with_large_segment_size(21 << 20);
        let options = CachingOptions::default().with_segments(segments).with_max_bytes(22 * MIB);
        let allocator = CachingAllocator::new(context, &options).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        let block = allocate_in(&tag, &allocator, 3 * MIB, &stream);
        assert_eq!(allocator.reserved_bytes(), 22 * MIB);
        sleep(&tag, Backup::Discard);
        assert_eq!((allocator.reserved_bytes(), allocator.statistics().asleep_bytes), (0, 22 << 20));
        Tag::wake(&[&tag], Restore::Nothing).unwrap();
        free(&allocator, block);
        stream.synchronize().unwrap();
        assert_eq!(allocator.empty_cache().unwrap(), 22 * MIB);
        assert_eq!(allocator.reserved_bytes(), 0);
        // The whole limit is there again.
        free(&allocator, allocator.allocate_by_address(22 * MIB, &stream).unwrap());
    });
}

#[test]
fn a_segment_that_the_driver_does_not_unmap_stays_in_its_tag() {
    on_simulator(|sim, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        let block = allocate_in(&tag, &allocator, 20 * MIB, &stream);
        free(&allocator, block);
        stream.synchronize().unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&told);
        let tracker = allocator.history().attach(move |entry| heard.lock().unwrap().push(entry.action));
        (0..2).for_each(|_| sim.fail_call("cuMemUnmap", 1, UNKNOWN));
        assert_eq!(allocator.empty_cache().unwrap_err().driver_error().map(DriverError::code), Some(UNKNOWN));
        assert_eq!(*told.lock().unwrap(), [Action::SegmentFree, Action::SegmentAlloc]);
        allocator.history().detach(tracker);
        assert_eq!((allocator.reserved_bytes(), tag.state().awake_bytes), (20 * MIB, 20 * MIB));
        assert_eq!(allocate_in(&tag, &allocator, 20 * MIB, &stream), block);
        fill(&stream, block, 20 * MIB, 7);
        assert_eq!(byte(&stream, block), 7);
        free(&allocator, block);
        assert_eq!(allocator.empty_cache().unwrap(), 20 * MIB);
        assert_eq!((allocator.reserved_bytes(), tag.has(block)), (0, false));
    });
}

/// Whoever works at it when it is given back.
#[test]
fn a_segment_that_the_driver_does_not_unmap_stays_while_a_peer_is_let_in() {
    on(Sim::builder().devices(2), |sim, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        let peer = context.driver().device(1).unwrap();
        let block = allocate_in(&tag, &allocator, 20 * MIB, &stream);
        free(&allocator, block);
        stream.synchronize().unwrap();
        sim.delay("cuMemSetAccess", Duration::from_millis(300));
        thread::scope(|scope| {
            scope.spawn(|| allocator.enable_peer_access(peer).unwrap());
            thread::sleep(Duration::from_millis(100));
            (0..2).for_each(|_| sim.fail_call("cuMemUnmap", 1, UNKNOWN));
            let refused = allocator.empty_cache().unwrap_err();
            assert_eq!(refused.driver_error().map(DriverError::code), Some(UNKNOWN));
        });
        sim.clear_faults();
        assert_eq!((allocator.reserved_bytes(), tag.has(block)), (20 * MIB, true));
        assert_eq!(allocate_in(&tag, &allocator, 20 * MIB, &stream), block);
        free(&allocator, block);
        assert_eq!(allocator.empty_cache().unwrap(), 20 * MIB);
        assert_eq!((allocator.reserved_bytes(), tag.has(block)), (0, false));
    });
}

#[test]
fn registrants_hear_that_a_segment_stayed() {
    on_simulator(|sim, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        let blocks = in_a_row(&tag, &allocator, &[64 * MIB; 2], &stream);
        let block = blocks[0];
        let heard = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&heard);
        allocator.on_backing_change(move |event| {
            tell.lock().unwrap().push((event.is_leaving, event.ranges.to_vec()));
            Ok(())
        });
        sim.fail_call("cuMemUnmap", 2, UNKNOWN);
        let slept = sleep(&tag, Backup::Discard);
        let (first, second, end) = (block, block + (64 << 20), block + (128 << 20));
        assert_eq!(slept.refused.len(), 1);
        assert_eq!((slept.refused[0].0.clone(), slept.freed), (second..end, 64 * MIB));
        let stayed = second..end;
        assert_eq!(
            *heard.lock().unwrap(),
            [(true, vec![first..second, second..end]), (false, Vec::from([stayed]))]
        );
        Tag::wake(&[&tag], Restore::Nothing).unwrap();
        blocks.into_iter().for_each(|block| free(&allocator, block));
    });
}

#[test]
fn a_wake_takes_what_the_allocator_has_free_within_its_limit() {
    on(Sim::builder().memory(256 << 20), |_, context| {
        let options = CachingOptions::default().with_max_bytes(100 * MIB);
        let allocator = CachingAllocator::new(context, &options).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        let block = allocate_in(&tag, &allocator, 60 * MIB, &stream);
        fill(&stream, block, 60 * MIB, 3);
        sleep(&tag, Backup::Pinned);
        let other = allocator.allocate_by_address(80 * MIB, &stream).unwrap();
        free(&allocator, other);
        assert!(allocator.reserved_bytes() >= 80 * MIB, "it is cached");
        Tag::wake(&[&tag], Restore::Backup).unwrap();
        assert_eq!(byte(&stream, block + (59 << 20)), 3);
        assert!(allocator.reserved_bytes() <= 100 * MIB);
        // Below what is held: nothing more is had, and what sleeps cannot wake.
        let before = allocator.reserved_bytes();
        assert_eq!(allocator.set_limit(30 * MIB).unwrap(), before - 60 * MIB);
        assert_eq!(allocator.reserved_bytes(), 60 * MIB);
        let refused = allocator.allocate_by_address(MIB, &stream).unwrap_err();
        assert!(matches!(refused, Error::DeviceOutOfMemory(_)), "{refused}");
        sleep(&tag, Backup::Pinned);
        let refused = Tag::wake(&[&tag], Restore::Backup).unwrap_err();
        assert!(refused.is_out_of_memory(), "{refused}");
        let Error::Sleep(SleepError::NoMemory { needed, missing, held: 0 }) = refused else {
            panic!("{refused}")
        };
        assert_eq!((needed, missing), (60 * MIB, 30 * MIB));
        allocator.set_limit(usize::MAX).unwrap();
        Tag::wake(&[&tag], Restore::Backup).unwrap();
        assert_eq!(byte(&stream, block), 3);
        free(&allocator, block);
    });
}

/// There is room without it.
#[test]
fn a_wake_does_without_a_segment_that_the_driver_does_not_take_back() {
    on_simulator(|sim, context| {
        let options = CachingOptions::default().with_max_bytes(50 * MIB);
        let allocator = CachingAllocator::new(context, &options).unwrap();
        let [tag, other] = ["weights", "cache"].map(|name| allocator.tag(name).unwrap());
        let (id, stream) = (MempoolId::for_user(), Stream::new(context).unwrap());
        let block = allocate_in(&tag, &allocator, 20 * MIB, &stream);
        sleep(&tag, Backup::Discard);
        free(&allocator, allocate_in(&other, &allocator, 20 * MIB, &stream));
        free(&allocator, routed(&allocator, id, 20 * MIB, &stream).unwrap());
        allocator.release_pool(id).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(allocator.reserved_bytes(), 40 * MIB);
        (0..2).for_each(|_| sim.fail_call("cuMemUnmap", 1, UNKNOWN));
        Tag::wake(&[&tag], Restore::Nothing).unwrap();
        assert_eq!((allocator.reserved_bytes(), other.state().awake_bytes), (40 * MIB, 20 * MIB));
        free(&allocator, block);
    });
}

#[test]
fn a_tag_that_sleeps_takes_no_pool_and_no_checkpoint() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, stream) = (allocator.tag("graphs").unwrap(), Stream::new(context).unwrap());
        let id = MempoolId::for_graph();
        tag.add_pool(id).unwrap();
        allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
        let block = allocator.allocate_by_address(MIB, &stream).unwrap();
        allocator.end_allocate_to_pool(id).unwrap();
        let checkpoint = allocator.checkpoint_pool(id).unwrap();
        free(&allocator, block);
        sleep(&tag, Backup::Pinned);
        let refused = tag.add_pool(MempoolId::for_user()).unwrap_err();
        assert!(matches!(refused, Error::Sleep(SleepError::Asleep { .. })), "{refused}");
        // SAFETY: nothing uses the pool's memory.
        let refused = unsafe { allocator.restore_pool(id, &checkpoint) }.unwrap_err();
        assert!(matches!(refused, Error::Sleep(SleepError::Asleep { .. })), "{refused}");
        Tag::wake(&[&tag], Restore::Backup).unwrap();
        // SAFETY: as above.
        unsafe { allocator.restore_pool(id, &checkpoint) }.unwrap();
        free(&allocator, block);
        allocator.release_pool(id).unwrap();
        allocator.empty_cache().unwrap();
    });
}

#[test]
fn much_memory_of_a_tag_is_few_handles_and_fills_the_limit_to_the_last_block() {
    on(Sim::builder().memory(2 << 30), |_, context| {
        let options = CachingOptions::default().with_max_bytes(1500 * MIB);
        let allocator = CachingAllocator::new(context, &options).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        let blocks: Vec<_> = (0..150).map(|_| allocate_in(&tag, &allocator, 10 * MIB, &stream)).collect();
        assert_eq!(tag.state().awake_bytes, 1500 * MIB, "no more than the blocks need");
        let segments = allocator.statistics().segment.all.current;
        assert!(segments <= 100, "{segments}");
        let scope = tag.enter().unwrap();
        let refused = allocator.allocate_by_address(10 * MIB, &stream).unwrap_err();
        assert!(matches!(refused, Error::DeviceOutOfMemory(_)), "{refused}");
        drop(scope);
        blocks.into_iter().for_each(|block| free(&allocator, block));
    });
}
