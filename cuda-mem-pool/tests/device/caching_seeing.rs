//! What the caching allocator tells of itself: statistics, history, snapshots, traces.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use cuda_mem_core::Stream;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::history::{HistoryOptions, RecordContext, backtrace};
use cuda_mem_pool::segments::{Filter, Options};
use cuda_mem_pool::snapshot::{Action, AllocatorSettings, BlockState, Frame, Snapshot, TraceEntry};
use cuda_mem_pool::statistics::{DeviceStatistics, PoolSize, PoolStat, Stat};
use cuda_mem_pool::{Error, MemoryResource, MempoolId};
use proptest::prelude::*;

use crate::common::World;
use crate::common::gate::Gate;
use crate::support::{allocator, shown};

fn recording(world: &World) -> CachingAllocator {
    let allocator = allocator(world);
    allocator.history().start(&HistoryOptions::default());
    allocator
}

/// Blocks by address, given back with the test.
struct Blocks<'a> {
    allocator: &'a CachingAllocator,
    live: Vec<u64>,
}

impl<'a> Blocks<'a> {
    fn new(allocator: &'a CachingAllocator) -> Self {
        Self { allocator, live: Vec::new() }
    }

    fn allocate(&mut self, bytes: usize, stream: &Stream) -> u64 {
        let address = self.allocator.allocate_by_address(bytes, stream).unwrap();
        self.live.push(address);
        address
    }

    fn free(&mut self, at: usize) {
        let address = self.live.swap_remove(at);
        // SAFETY: allocated above, once, and no work was ever given it.
        unsafe { self.allocator.free_by_address(address) }.unwrap();
    }
}

/// What a snapshot holds, as statistics call it: currents of all, of small and of large blocks.
fn recount(snapshot: &Snapshot) -> BTreeMap<&'static str, [u64; 3]> {
    let mut counts: BTreeMap<&'static str, [u64; 3]> = BTreeMap::new();
    let mut add = |key, small: bool, amount: u64| {
        let entry = counts.entry(key).or_default();
        entry[0] += amount;
        entry[if small { 1 } else { 2 }] += amount;
    };
    for key in
        ["allocation", "active", "allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes"]
    {
        add(key, true, 0);
    }
    for segment in &snapshot.segments {
        add("reserved_bytes", segment.segment_type == PoolSize::Small, segment.total_size);
    }
    let blocks = snapshot.segments.iter().flat_map(|segment| {
        segment.blocks.iter().map(|block| (segment.segment_type == PoolSize::Small, block))
    });
    for (small, block) in blocks {
        if block.state == BlockState::ActiveAllocated {
            add("allocation", small, 1);
            add("allocated_bytes", small, block.size);
        }
        if block.state != BlockState::Inactive {
            add("active", small, 1);
            add("active_bytes", small, block.size);
            add("requested_bytes", small, block.requested_size);
        }
    }
    counts
}

fn currents(statistics: &DeviceStatistics) -> BTreeMap<&'static str, [u64; 3]> {
    [
        ("allocation", statistics.allocation),
        ("active", statistics.active),
        ("allocated_bytes", statistics.allocated_bytes),
        ("active_bytes", statistics.active_bytes),
        ("requested_bytes", statistics.requested_bytes),
        ("reserved_bytes", statistics.reserved_bytes),
    ]
    .into_iter()
    .map(|(key, stat)| (key, [stat.all.current, stat.small_pool.current, stat.large_pool.current]))
    .collect()
}

/// Statistics, snapshot and history of one moment, against each other and against the page source's own books.
fn check(allocator: &CachingAllocator) {
    let (statistics, snapshot) = (allocator.statistics(), allocator.snapshot());
    assert_eq!(currents(&statistics), recount(&snapshot));
    let total: u64 = snapshot.segments.iter().map(|segment| segment.total_size).sum();
    let held = allocator.reserved_bytes() as u64;
    assert_eq!((statistics.reserved_bytes.all.current, total), (held, held));
    let handles = statistics.num_device_alloc - statistics.num_device_free;
    assert_eq!(statistics.segment.all.current, handles);
    let cut_up =
        snapshot.segments.iter().filter(|segment| segment.blocks.len() > 1 && !segment.is_expandable);
    let splits =
        cut_up.flat_map(|segment| &segment.blocks).filter(|block| block.state == BlockState::Inactive);
    let splits = splits.fold((0, 0), |(count, bytes), block| (count + 1, bytes + block.size));
    let told = (statistics.inactive_split.all.current, statistics.inactive_split_bytes.all.current);
    assert_eq!(told, splits);
    let [small, large] = [statistics.inactive_split.small_pool, statistics.inactive_split.large_pool];
    assert_eq!(small.current + large.current, told.0);
    for segment in &snapshot.segments {
        let mut at = segment.address;
        for block in &segment.blocks {
            assert_eq!(block.address, at);
            at += block.size;
        }
        assert_eq!(at, segment.address + segment.total_size);
    }
    follow(&allocator.history().entries(), &snapshot);
}

/// Ranges without a gap, with their streams; pages for small blocks are segments of their own in them.
fn runs(ranges: BTreeMap<u64, (u64, u64)>) -> Vec<(u64, u64, u64)> {
    let mut runs: Vec<(u64, u64, u64)> = Vec::new();
    for (start, (end, stream)) in ranges {
        match runs.last_mut() {
            Some(last) if last.1 == start && last.2 == stream => last.1 = end,
            _ => runs.push((start, end, stream)),
        }
    }
    runs
}

/// What is mapped and what is live after all entries, each of which has to fit those before; it ends as the snapshot is.
fn follow(entries: &[TraceEntry], snapshot: &Snapshot) {
    // By address; the history is recorded from the beginning.
    let mut mapped: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut live: HashMap<u64, u64> = HashMap::new();
    for entry in entries {
        let end = entry.address + entry.size;
        match entry.action {
            Action::SegmentMap => {
                let before = mapped.range(..end).next_back();
                assert!(before.is_none_or(|(_, (end, _))| *end <= entry.address), "mapped twice: {entry:?}");
                mapped.insert(entry.address, (end, entry.stream));
            }
            Action::SegmentUnmap => unmap(&mut mapped, entry),
            Action::Alloc => {
                assert_eq!(live.insert(entry.address, entry.size), None, "{entry:?}");
                let mut at = entry.address;
                while at < end {
                    let (_, (to, stream)) = mapped.range(..=at).next_back().unwrap();
                    assert!(*to > at && *stream == entry.stream, "not mapped: {entry:?}");
                    at = *to;
                }
            }
            Action::FreeCompleted => assert_eq!(live.remove(&entry.address), Some(entry.size), "{entry:?}"),
            Action::FreeRequested => assert_eq!(live.get(&entry.address), Some(&entry.size), "{entry:?}"),
            _ => {}
        }
    }
    let segments = snapshot.segments.iter();
    let segments =
        segments.map(|segment| (segment.address, (segment.address + segment.total_size, segment.stream)));
    assert_eq!(runs(mapped), runs(segments.collect()));
    let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    let blocks: HashMap<u64, u64> = blocks
        .filter(|block| block.state != BlockState::Inactive)
        .map(|block| (block.address, block.requested_size))
        .collect();
    assert_eq!(live, blocks);
}

/// What is unmapped was mapped as a whole, perhaps in pieces or as a part.
fn unmap(mapped: &mut BTreeMap<u64, (u64, u64)>, entry: &TraceEntry) {
    let (from, to) = (entry.address, entry.address + entry.size);
    let mut at = from;
    while at < to {
        let (start, (end, stream)) =
            mapped.range(..=at).next_back().map(|(start, map)| (*start, *map)).unwrap();
        assert!(end > at && stream == entry.stream, "was not mapped: {entry:?}");
        mapped.remove(&start);
        if start < from {
            mapped.insert(start, (from, stream));
        }
        if end > to {
            mapped.insert(to, (end, stream));
        }
        at = end;
    }
}

#[derive(Debug, Clone)]
enum Step {
    Allocate(usize, usize),
    Free(prop::sample::Index),
    /// Freed after another stream was entered as a user.
    FreeUsed(prop::sample::Index, usize),
    /// Freed by another thread.
    FreeElsewhere(prop::sample::Index),
    EmptyCache,
    ResetPeaks,
}

const STREAMS: usize = 3;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![1usize..3000, 1usize..(1 << 20), (1usize << 20)..(40 << 20)];
    let index = any::<prop::sample::Index>;
    let step = prop_oneof![
        10 => (size, 0..STREAMS).prop_map(|(size, stream)| Step::Allocate(size, stream)),
        5 => index().prop_map(Step::Free),
        2 => (index(), 0..STREAMS).prop_map(|(index, stream)| Step::FreeUsed(index, stream)),
        2 => index().prop_map(Step::FreeElsewhere),
        1 => Just(Step::EmptyCache),
        1 => Just(Step::ResetPeaks),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn statistics_are_what_a_recount_finds(steps in steps()) {
        let world = World::new();
        let allocator = recording(&world);
        let streams = [world.stream.clone(), world.new_stream(), world.new_stream()];
        let mut blocks = Blocks::new(&allocator);
        let mut reserved = 0;
        for step in steps {
            match step {
                Step::Allocate(bytes, stream) => {
                    blocks.allocate(bytes, &streams[stream]);
                }
                Step::Free(index) if !blocks.live.is_empty() => blocks.free(index.index(blocks.live.len())),
                Step::FreeUsed(index, stream) if !blocks.live.is_empty() => {
                    let at = index.index(blocks.live.len());
                    allocator.record_stream(blocks.live[at], &streams[stream]).unwrap();
                    blocks.free(at);
                }
                Step::FreeElsewhere(index) if !blocks.live.is_empty() => {
                    let at = index.index(blocks.live.len());
                    std::thread::scope(|scope| scope.spawn(|| blocks.free(at)).join().unwrap());
                }
                Step::EmptyCache => {
                    allocator.empty_cache().unwrap();
                }
                Step::ResetPeaks => {
                    allocator.reset_peak_statistics();
                    let statistics = allocator.statistics();
                    let Stat { current, peak, .. } = statistics.active_bytes.all;
                    prop_assert_eq!(current, peak);
                    let Stat { current, peak, .. } = statistics.reserved_bytes.all;
                    prop_assert_eq!(current, peak);
                    reserved = 0;
                }
                _ => {}
            }
            check(&allocator);
            // Seen after each step, of which none both gets memory and gives it back.
            reserved = reserved.max(allocator.reserved_bytes() as u64);
            prop_assert_eq!(allocator.statistics().reserved_bytes.all.peak, reserved);
        }
        while !blocks.live.is_empty() {
            blocks.free(0);
        }
    }
}

#[test]
fn sums_start_anew_when_they_are_reset() {
    let world = World::new();
    let allocator = allocator(&world);
    drop(allocator.allocate(30 << 20, &world.stream).unwrap());
    let before = allocator.statistics();
    assert!(before.num_device_alloc > 0 && before.reserved_bytes.all.allocated >= 30 << 20);
    assert_eq!(before.allocation.all, Stat { current: 0, peak: 1, allocated: 1, freed: 1 });
    allocator.reset_accumulated_statistics();
    let after = allocator.statistics();
    assert_eq!((after.num_device_alloc, after.reserved_bytes.all.allocated), (0, 0));
    assert_eq!(after.allocation.all, Stat { current: 0, peak: 1, allocated: 0, freed: 0 });
    assert_eq!(after.reserved_bytes.all.current, allocator.reserved_bytes() as u64);
}

/// As with PyTorch's expandable segments, whose tests count so.
#[test]
fn what_is_free_beside_blocks_of_private_pools_is_an_inactive_split() {
    let world = World::new();
    let allocator = recording(&world);
    let first = allocator.allocate(512, &world.stream).unwrap();
    assert_eq!(allocator.statistics().inactive_split.all.current, 0);
    let pool = MempoolId::for_user();
    allocator.begin_allocate_to_pool(pool, Filter::this_thread()).unwrap();
    let second = allocator.allocate(512, &world.stream).unwrap();
    allocator.end_allocate_to_pool(pool).unwrap();
    assert_eq!(allocator.statistics().inactive_split_bytes.small_pool.current, (2 << 20) - 512);
    drop((first, second));
    allocator.release_pool(pool).unwrap();
    world.stream.synchronize().unwrap();
    allocator.empty_cache().unwrap();
    let split = allocator.statistics().inactive_split_bytes.all;
    assert_eq!((split.current, split.peak), (0, (2 << 20) - 512));
}

/// What is counted only by who looks is counted by who resets, too: nobody may have looked in between.
#[test]
fn what_was_there_before_a_reset_is_in_no_figure_after_it() {
    let world = World::new();
    let (allocator, pool) = (allocator(&world), MempoolId::for_user());
    let large = allocator.allocate(30 << 20, &world.stream).unwrap();
    let small = allocator.allocate(512, &world.new_stream()).unwrap();
    allocator.begin_allocate_to_pool(pool, Filter::this_thread()).unwrap();
    let split = allocator.allocate(512, &world.stream).unwrap();
    allocator.end_allocate_to_pool(pool).unwrap();
    let figures = || {
        let statistics = allocator.statistics();
        [statistics.inactive_split.all, statistics.reserved_bytes.small_pool]
    };
    assert!(figures().iter().all(|stat| stat.current > 0));
    drop((small, split));
    allocator.release_pool(pool).unwrap();
    world.context.synchronize().unwrap();
    allocator.empty_cache().unwrap();
    allocator.reset_accumulated_statistics();
    allocator.reset_peak_statistics();
    assert_eq!(figures(), [Stat::default(); 2]);
    drop(large);
}

#[test]
fn memory_that_moves_is_unmapped_and_mapped() {
    let world = World::new();
    let (allocator, other) = (recording(&world), world.new_stream());
    let reserved = |allocator: &CachingAllocator| allocator.reserved_bytes();
    drop(allocator.allocate(64 << 20, &world.stream).unwrap());
    let held = reserved(&allocator);
    let seen = allocator.history().entries().len();
    // The other stream gets what is free on the first one.
    let block = allocator.allocate(64 << 20, &other).unwrap();
    assert_eq!(reserved(&allocator), held);
    let moved = allocator.history().entries().split_off(seen);
    let of = |action: Action, stream: &Stream| -> u64 {
        let stream = shown(stream);
        let entries = moved.iter().filter(|entry| entry.action == action && entry.stream == stream);
        entries.map(|entry| entry.size).sum()
    };
    assert_eq!(of(Action::SegmentUnmap, &world.stream), held as u64);
    assert_eq!(of(Action::SegmentMap, &other), held as u64);
    assert_eq!(moved.last().unwrap().action, Action::Alloc);
    check(&allocator);
    drop(block);
}

#[test]
fn a_request_that_fails_is_in_the_history() {
    let world = World::new();
    let options = CachingOptions::default().with_memory_fraction(0.001);
    let allocator = CachingAllocator::new(&world.context, &options).unwrap();
    allocator.history().start(&HistoryOptions::default());
    let bytes = world.context.device().total_memory().unwrap() / 100;
    let refused = allocator.allocate_by_address(bytes, &world.stream);
    assert!(matches!(refused, Err(Error::DeviceOutOfMemory(_))), "{refused:?}");
    let entries = allocator.history().entries();
    let oom = entries.iter().find(|entry| entry.action == Action::Oom).unwrap();
    assert_eq!(oom.size, bytes.next_multiple_of(512) as u64);
    assert!(oom.address > 0, "the device has free memory");
    let statistics = allocator.statistics();
    assert_eq!((statistics.num_ooms, statistics.num_alloc_retries), (1, 1));
    check(&allocator);
}

#[test]
fn stacks_come_with_entries_and_blocks() {
    let world = World::new();
    let allocator = allocator(&world);
    let unseen = allocator.allocate(1000, &world.stream).unwrap();
    let options = HistoryOptions::default().with_frames(RecordContext::Alloc, backtrace);
    allocator.history().start(&options);
    let block = allocator.allocate(2000, &world.stream).unwrap();
    // A test executable without symbols has stacks without names.
    let is_here = |frames: &Arc<[Frame]>| {
        frames.iter().any(|frame| frame.name.contains("stacks_come_with_entries_and_blocks"))
    };
    let has_names = is_here(&backtrace());
    let here = |frames: Option<&Arc<[Frame]>>| {
        frames.is_some_and(|frames| !frames.is_empty() && is_here(frames) == has_names)
    };
    let snapshot = allocator.snapshot();
    let stacks: Vec<(u64, bool)> = snapshot
        .segments
        .iter()
        .flat_map(|segment| &segment.blocks)
        .filter(|known| known.state == BlockState::ActiveAllocated)
        .map(|known| (known.requested_size, here(known.frames.as_ref())))
        .collect();
    assert_eq!(stacks, [(1000, false), (2000, true)]);
    let device = usize::try_from(world.context.device().as_raw()).unwrap();
    let entries = &snapshot.device_traces[device];
    assert!(entries.iter().any(|entry| entry.action == Action::Alloc && here(entry.frames.as_ref())));
    assert_eq!(entries.last().unwrap().action, Action::Alloc, "what was done last");
    let later = allocator.snapshot().device_traces;
    assert_eq!(later[device].last().unwrap().action, Action::Snapshot, "that one is in the next");
    drop((unseen, block));
}

/// As PyTorch's: where stacks of frees are not recorded, a free has that of its allocation.
#[test]
fn a_free_is_told_with_the_stack_of_its_allocation_unless_it_has_its_own() {
    let world = World::new();
    let allocator = allocator(&world);
    let other = Stream::new(&world.context).unwrap();
    let id = MempoolId::for_user();
    allocator.create_or_incref_pool(id, None).unwrap();
    let cases =
        [(RecordContext::State, None), (RecordContext::Alloc, Some(1)), (RecordContext::All, Some(2))];
    for (context, line_of_free) in cases {
        let line = Arc::new(AtomicU32::new(1));
        let told = {
            let line = Arc::clone(&line);
            move || {
                let line = line.load(Ordering::Relaxed);
                Arc::<[Frame]>::from([Frame { filename: "here".into(), line, name: "told".into() }])
            }
        };
        let mut blocks = Blocks::new(&allocator);
        let options = HistoryOptions::default().with_frames(context, told).with_clear_history(true);
        allocator.history().start(&options);
        blocks.allocate(1000, &world.stream);
        blocks.allocate(3 << 20, &world.stream);
        allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
        blocks.allocate(3000, &world.stream);
        allocator.end_allocate_to_pool(id).unwrap();
        allocator.record_stream(blocks.live[1], &other).unwrap();
        line.store(2, Ordering::Relaxed);
        while !blocks.live.is_empty() {
            blocks.free(0);
        }
        other.synchronize().unwrap();
        allocator.empty_cache().unwrap();
        let freed: Vec<_> = allocator
            .history()
            .entries()
            .iter()
            .filter(|entry| matches!(entry.action, Action::FreeRequested | Action::FreeCompleted))
            .map(|entry| entry.frames.as_ref().map(|frames| frames[0].line))
            .collect();
        assert_eq!(freed, [line_of_free; 6], "{context:?}");
        allocator.history().stop();
    }
    allocator.release_pool(id).unwrap();
}

/// PyTorch looks for who has the memory of a graph once it has recorded how it was got.
#[test]
fn stacks_stay_with_blocks_when_a_recording_ends() {
    let world = World::new();
    let allocator = allocator(&world);
    let told = || {
        let frame = Frame { filename: "here".into(), line: 1, name: "told".into() };
        Arc::<[Frame]>::from([frame])
    };
    allocator.history().start(&HistoryOptions::default().with_frames(RecordContext::All, told));
    let mut blocks = Blocks::new(&allocator);
    let (small, large) = (blocks.allocate(1000, &world.stream), blocks.allocate(8 << 20, &world.stream));
    let id = MempoolId::for_user();
    allocator.create_or_incref_pool(id, None).unwrap();
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    blocks.allocate(3000, &world.stream);
    allocator.end_allocate_to_pool(id).unwrap();
    blocks.allocate(5000, &world.stream);
    allocator.history().stop();
    let stacks = || {
        let segments = allocator.snapshot().segments;
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        let mut known: Vec<(u64, bool)> = blocks
            .filter(|block| block.state == BlockState::ActiveAllocated)
            .map(|block| (block.requested_size, block.frames.is_some()))
            .collect();
        known.sort_unstable();
        known
    };
    assert_eq!(stacks(), [(1000, true), (3000, true), (5000, true), (8 << 20, true)]);
    // Others at the same addresses have none.
    for block in [small, large] {
        let at = blocks.live.iter().position(|live| *live == block).unwrap();
        blocks.free(at);
    }
    let again = (blocks.allocate(1000, &world.stream), blocks.allocate(8 << 20, &world.stream));
    assert_eq!(again, (small, large));
    assert_eq!(stacks(), [(1000, false), (3000, true), (5000, true), (8 << 20, false)]);
    // Nor have they where a block of a private pool was, and one that another stream has used.
    let other = Stream::new(&world.context).unwrap();
    for block in blocks.live.drain(..2) {
        allocator.record_stream(block, &other).unwrap();
        // SAFETY: allocated above, and no work was ever given it.
        unsafe { allocator.free_by_address(block) }.unwrap();
    }
    other.synchronize().unwrap();
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    blocks.allocate(3000, &world.stream);
    allocator.end_allocate_to_pool(id).unwrap();
    blocks.allocate(5000, &world.stream);
    assert_eq!(stacks(), [(1000, false), (3000, false), (5000, false), (8 << 20, false)]);
    allocator.release_pool(id).unwrap();
}

/// As PyTorch's, whose programs know it by no other handle.
#[test]
fn the_legacy_default_stream_is_shown_as_0() {
    let world = World::new();
    let allocator = recording(&world);
    let stream = Stream::legacy(&world.context).unwrap();
    let mut blocks = Blocks::new(&allocator);
    let id = MempoolId::for_user();
    allocator.create_or_incref_pool(id, None).unwrap();
    blocks.allocate(1000, &stream);
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    blocks.allocate(3 << 20, &stream);
    allocator.end_allocate_to_pool(id).unwrap();
    let snapshot = allocator.snapshot();
    let pools: Vec<MempoolId> = snapshot.segments.iter().map(|segment| segment.segment_pool_id).collect();
    assert!(pools.contains(&id) && pools.contains(&MempoolId::NONE), "{pools:?}");
    assert!(snapshot.segments.iter().all(|segment| segment.stream == 0), "{:?}", snapshot.segments);
    while !blocks.live.is_empty() {
        blocks.free(0);
    }
    let entries = allocator.history().entries();
    assert!(entries.len() > 6 && entries.iter().all(|entry| entry.stream == 0), "{entries:?}");
    assert!(allocator.stream_segment_sizes().unwrap().iter().all(|size| size.handle == 0));
    allocator.release_pool(id).unwrap();
}

/// Also where memory goes back between two of the looks that they take.
#[test]
fn the_parts_of_what_is_held_are_the_whole_while_others_give_memory_back() {
    let world = World::new();
    let allocator = allocator(&world);
    let streams = [(); 3].map(|()| world.new_stream());
    let (allocator, is_over) = (&allocator, &AtomicBool::new(false));
    let is_torn = |held: &PoolStat| held.all.current != held.small_pool.current + held.large_pool.current;
    let torn = std::thread::scope(|scope| {
        for stream in &streams {
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let blocks = [(); 8].map(|()| allocator.allocate(1 << 20, stream).unwrap());
                    drop(blocks);
                    allocator.empty_cache().unwrap();
                }
            });
        }
        let torn = (0..4000).map(|_| allocator.statistics().reserved_bytes).find(is_torn);
        is_over.store(true, Ordering::Relaxed);
        torn
    });
    assert_eq!(torn, None);
}

/// At any point of the history, also between two entries of one change.
#[test]
fn blocks_in_use_are_never_told_of_as_unmapped() {
    let world = World::new();
    let allocator = recording(&world);
    let mut blocks = Blocks::new(&allocator);
    let mut state = 7u64;
    let mut below = |most: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    // Blocks that share handles with others, once enough have come and gone.
    for round in 0..3000 {
        if round % 100 == 0 {
            world.stream.synchronize().unwrap();
            allocator.empty_cache().unwrap();
        }
        if blocks.live.len() < 24 {
            blocks.allocate((1 << 20) + 1 + below(4 << 20) as usize, &world.stream);
        } else {
            blocks.free(below(24) as usize);
        }
    }
    let mut live = BTreeMap::new();
    let entries = allocator.history().entries();
    for entry in &entries {
        match entry.action {
            Action::Alloc => drop(live.insert(entry.address, entry.size)),
            Action::FreeCompleted => drop(live.remove(&entry.address)),
            Action::SegmentUnmap => {
                let last = live.range(..entry.address + entry.size).next_back();
                assert!(last.is_none_or(|(at, size)| at + size <= entry.address), "{entry:?}: {last:?}");
            }
            _ => {}
        }
    }
    assert!(entries.iter().any(|entry| entry.action == Action::SegmentUnmap), "nothing went back");
    while !blocks.live.is_empty() {
        blocks.free(0);
    }
}

/// As in PyTorch, whose pages are no segments.
#[test]
fn what_is_too_large_to_be_cut_up_is_counted() {
    let world = World::new();
    let options = Options::default().with_max_split_size(Some(32 << 20));
    let options = CachingOptions::default().with_segments(options);
    let (allocator, user) = (CachingAllocator::new(&world.context, &options).unwrap(), world.new_stream());
    let mut blocks = Blocks::new(&allocator);
    let counts = || {
        let statistics = allocator.statistics();
        (statistics.oversize_allocations.current, statistics.oversize_segments.current)
    };
    let of_default = blocks.allocate(32 << 20, &world.stream);
    blocks.allocate(31 << 20, &world.stream);
    assert_eq!(counts(), (1, 0));
    let id = MempoolId::for_user();
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    blocks.allocate(40 << 20, &world.stream);
    blocks.allocate(3 << 20, &world.stream);
    allocator.end_allocate_to_pool(id).unwrap();
    assert_eq!(counts(), (2, 1));
    // Nobody has it any more, though a stream still uses it.
    let gate = Gate::before(&user);
    allocator.record_stream(of_default, &user).unwrap();
    blocks.free(0);
    let pending = counts();
    gate.open();
    assert_eq!(pending, (1, 1));
    while !blocks.live.is_empty() {
        blocks.free(0);
    }
    assert_eq!((counts(), allocator.statistics().oversize_allocations.peak), ((0, 1), 2));
    allocator.reset_accumulated_statistics();
    allocator.release_pool(id).unwrap();
    world.context.synchronize().unwrap();
    allocator.empty_cache().unwrap();
    let statistics = allocator.statistics();
    assert_eq!(
        (statistics.oversize_segments, statistics.max_split_size),
        (Stat { freed: 1, peak: 1, ..Stat::default() }, Some(32 << 20))
    );
}

/// Those that hold, whatever they were when it was made.
#[test]
fn a_snapshot_tells_how_the_allocator_is_set_up() {
    let world = World::new();
    let allocator = allocator(&world);
    let settings = |allocator: &CachingAllocator| allocator.snapshot().allocator_settings;
    let default = AllocatorSettings {
        expandable_segments: true,
        roundup_power2_divisions: vec![0; 16],
        ..AllocatorSettings::default()
    };
    assert_eq!(settings(&allocator), default);
    let options = Options::default()
        .with_max_split_size(Some(64 << 20))
        .with_garbage_collection_threshold(Some(0.5))
        .with_roundup_power2_divisions([4; 16]);
    allocator.set_segment_options(options).unwrap();
    // SAFETY: nothing is captured.
    unsafe { allocator.set_graph_capture_record_stream_reuse(true) }.unwrap();
    let set = AllocatorSettings {
        max_split_size: Some(64 << 20),
        garbage_collection_threshold: 0.5,
        graph_capture_record_stream_reuse: true,
        roundup_power2_divisions: vec![4; 16],
        ..default
    };
    assert_eq!(settings(&allocator), set);
}

#[test]
fn segments_of_pages_alone_are_small() {
    let world = World::new();
    let allocator = allocator(&world);
    let small = allocator.allocate(1 << 20, &world.stream).unwrap();
    let snapshot = allocator.snapshot();
    assert!(snapshot.allocator_settings.expandable_segments);
    let segment = &snapshot.segments[0];
    assert!(segment.is_expandable);
    assert_eq!(segment.stream, shown(&world.stream));
    assert_eq!((segment.allocated_size, segment.active_size), (1 << 20, 1 << 20));
    let large = allocator.allocate(3 << 20, &world.stream).unwrap();
    let types = |of: PoolSize| {
        let snapshot = allocator.snapshot();
        snapshot.segments.iter().filter(|segment| segment.segment_type == of).count()
    };
    assert!(types(PoolSize::Large) > 0);
    drop((small, large));
}

/// Allocates and frees on the stream of the block that it is told of.
struct Meddler {
    allocator: Mutex<Option<CachingAllocator>>,
    stream: Stream,
}

impl Meddler {
    fn track(&self) {
        let allocator = self.allocator.lock().unwrap().clone();
        if let Some(allocator) = allocator {
            for bytes in [700, 5 << 20] {
                drop(allocator.allocate(bytes, &self.stream).unwrap());
            }
            drop(allocator.snapshot());
        }
    }
}

#[test]
fn a_tracker_may_allocate() {
    let world = World::new();
    let allocator = recording(&world);
    // Streams that any thread may use; a thread's own default stream is not.
    let (stream, other) = (world.new_stream(), world.new_stream());
    let meddler =
        Arc::new(Meddler { allocator: Mutex::new(Some(allocator.clone())), stream: stream.clone() });
    let tracking = meddler.clone();
    let id = allocator.history().attach(move |_| tracking.track());
    std::thread::scope(|scope| {
        for stream in [&stream, &other] {
            let allocator = &allocator;
            scope.spawn(move || {
                for step in 1..20 {
                    let block = allocator.allocate(step * 300_000, stream).unwrap();
                    allocator.record_stream(block.address(), &another(stream)).unwrap();
                    drop(block);
                }
                allocator.empty_cache().unwrap();
            });
        }
    });
    assert!(allocator.history().detach(id));
    *meddler.allocator.lock().unwrap() = None;
    assert!(allocator.statistics().allocation.all.allocated > 2 * 19);
}

/// Another stream of the same context.
fn another(stream: &Stream) -> Stream {
    Stream::new(stream.context()).unwrap()
}

#[test]
fn what_small_blocks_needed_counts_as_theirs() {
    let world = World::new();
    let allocator = allocator(&world);
    let held = || {
        let bytes = allocator.statistics().reserved_bytes;
        for stat in [bytes.small_pool, bytes.large_pool] {
            assert_eq!((stat.allocated - stat.freed, stat.peak.max(stat.current)), (stat.current, stat.peak));
        }
        assert_eq!(bytes.small_pool.current + bytes.large_pool.current, bytes.all.current);
        (bytes.small_pool.current, bytes.large_pool.current)
    };
    let large = allocator.allocate(30 << 20, &world.stream).unwrap();
    let (none, of_large) = held();
    assert!(none == 0 && of_large >= 30 << 20);
    // Another stream's, so that it does not fit into what is there.
    let small = allocator.allocate(512, &world.new_stream()).unwrap();
    let (of_small, still) = held();
    // The handles' rest is there for large blocks.
    assert!(of_small == 2 << 20 && still >= of_large, "{of_small} and {still} for {of_large}");
    let segments = allocator.snapshot().segments;
    let sum = |pool: PoolSize| -> u64 {
        segments.iter().filter(|segment| segment.segment_type == pool).map(|segment| segment.total_size).sum()
    };
    assert_eq!((sum(PoolSize::Small), sum(PoolSize::Large)), (of_small, still));
    drop((large, small));
    world.stream.synchronize().unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(held(), (0, 0));
    assert_eq!(allocator.statistics().reserved_bytes.small_pool.peak, of_small);
}
