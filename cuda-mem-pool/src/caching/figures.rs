//! Figures of an allocator: statistics, snapshots, sizes, and the report of a request that found no memory.

use std::collections::BTreeMap;

use cuda_mem_core::{StreamId, forked, nvml};

use super::CachingAllocator;
use super::callbacks::is_watching;
use super::grow::unless_lost;
use super::hot::Request;
use super::record::event;
use super::shared::{AllHeaps, DeviceCache};
use super::slot::StreamSlot;
use crate::engine::paged::{Piece, SLAB};
use crate::error::{CachedMemory, Error, OutOfMemoryReport, Result, choose_advice};
use crate::history::History;
use crate::mempool_id::MempoolId;
use crate::primitive::{Mutex, Ordering, lock};
use crate::snapshot::{Action, BlockInfo, BlockState, SegmentInfo, Snapshot, TraceEntry};
use crate::statistics::{DeviceStatistics, PeakCounter, PoolSize, PoolStat, Stat};

#[derive(Debug, Default)]
pub(super) struct Figures {
    /// Blocks, which each heap counts by itself.
    pub(super) counter: PeakCounter,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Memory, and requests that did not find any.
    all: DeviceStatistics,
    /// The bytes of slabs, as of each look.
    small: Stat,
    /// The bytes of the segments of each private pool that ever had one.
    of_pools: BTreeMap<MempoolId, PoolStat>,
}

impl Figures {
    /// Changes counts that concern no block.
    pub(super) fn change(&self, change: impl FnOnce(&mut DeviceStatistics)) {
        change(&mut lock(&self.counts).all);
    }

    /// Counts a segment or a handle that the driver gave.
    pub(super) fn add_segment(&self, id: MempoolId, pool: PoolSize, bytes: u64) {
        let Counts { all, of_pools, .. } = &mut *lock(&self.counts);
        if id != MempoolId::NONE {
            of_pools.entry(id).or_default().increase(pool, bytes);
        }
        all.segment.increase(pool, 1);
        all.reserved_bytes.increase(pool, bytes);
        all.num_device_alloc += 1;
    }

    /// Counts a segment or a handle that went back.
    pub(super) fn remove_segment(&self, id: MempoolId, pool: PoolSize, bytes: u64) {
        let Counts { all, of_pools, .. } = &mut *lock(&self.counts);
        if let Some(reserved) = of_pools.get_mut(&id) {
            reserved.decrease(pool, bytes);
        }
        all.segment.decrease(pool, 1);
        all.reserved_bytes.decrease(pool, bytes);
        all.num_device_free += 1;
    }

    /// The bytes that are held now, those of private pools included.
    pub(super) fn reserved(&self) -> usize {
        lock(&self.counts).all.reserved_bytes.all.current as usize
    }
}

/// What a stream has of the default pool for blocks of one size class.
/// [`CachingAllocator::stream_segment_sizes`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamSegmentSize {
    /// The stream; or the last one, if that has ended.
    pub stream: StreamId,
    /// Its handle, as it is or was; the default streams of all threads have the same.
    pub handle: u64,
    /// The blocks that are cut from it: small for pages that are cut up.
    pub pool: PoolSize,
    /// The bytes that are mapped, in use or free.
    pub mapped: u64,
}

/// Statistics, history, snapshots and callbacks. Makes no driver call.
///
/// ```
/// use cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
/// use cuda_mem_pool::history::HistoryOptions;
/// use cuda_mem_pool::MemoryResource;
/// use cuda_mem_pool::snapshot::Action;
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
/// allocator.history().start(&HistoryOptions::default());
/// let block = allocator.allocate(1000, &stream)?;
/// let actions: Vec<Action> = allocator.history().entries().iter().map(|entry| entry.action).collect();
/// assert_eq!(actions, [Action::SegmentMap, Action::Alloc]);
/// let snapshot = allocator.snapshot();
/// assert_eq!(snapshot.segments[0].requested_size, 1000);
/// assert_eq!(allocator.segments()[0].allocated_size, allocator.statistics().allocated_bytes.all.current);
/// let sizes = allocator.stream_segment_sizes()?;
/// assert_eq!((sizes[0].stream, sizes[0].mapped), (stream.id(), snapshot.segments[0].total_size));
/// snapshot.write_pickle(std::io::sink())?; // a file, for PyTorch's viewers and `cargo xtask report`
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl CachingAllocator {
    /// Reads the statistics, with PyTorch's keys. Those of blocks are of one moment, and those of memory are.
    ///
    /// Memory of the default pool serves blocks of all sizes: its `segment`, which are the driver's handles, count as large, and `reserved_bytes`
    /// of small blocks are their pages. As with PyTorch's expandable segments, `inactive_split` and `oversize_segments` are those of private
    /// pools alone. These, `oversize_allocations` and the memory of small blocks are counted when this is called: their peaks are of its calls.
    #[must_use]
    pub fn statistics(&self) -> DeviceStatistics {
        if forked() {
            return DeviceStatistics::default();
        }
        let shared = self.shared();
        let [small, large] = shared.private.splits();
        let max_split_size = shared.private.options().max_split_size;
        let (oversize_blocks, oversize_segments) =
            max_split_size.map_or((0, 0), |least| shared.oversize(least));
        let bytes_of_slabs = shared.bytes_of_slabs();
        shared.count_all_frees(None);
        let Counts { all, small: of_small, .. } = &mut *lock(&shared.figures.counts);
        all.inactive_split.set(small.0, large.0);
        all.inactive_split_bytes.set(small.1, large.1);
        all.oversize_allocations.set(oversize_blocks);
        all.oversize_segments.set(oversize_segments);
        // Some of it may have gone back since.
        of_small.set(bytes_of_slabs.min(all.reserved_bytes.large_pool.current));
        let reserved_bytes = cut_off(all.reserved_bytes, *of_small);
        let mut statistics = DeviceStatistics { max_split_size, reserved_bytes, ..*all };
        shared.figures.counter.read(&mut statistics);
        statistics
    }

    /// Has the peaks start anew from what there is now.
    pub fn reset_peak_statistics(&self) {
        if forked() {
            return;
        }
        // Slabs are counted only when figures are read: count them now.
        let _ = self.statistics();
        let figures = &self.shared().figures;
        figures.counter.reset_peak();
        let Counts { all, small, of_pools } = &mut *lock(&figures.counts);
        all.reset_peak();
        small.reset_peak();
        of_pools.values_mut().for_each(PoolStat::reset_peak);
    }

    /// Has the sums and counts start anew from nothing.
    pub fn reset_accumulated_statistics(&self) {
        if forked() {
            return;
        }
        let _ = self.statistics();
        let figures = &self.shared().figures;
        figures.counter.reset_accumulated();
        let Counts { all, small, of_pools, .. } = &mut *lock(&figures.counts);
        all.reset_accumulated();
        small.reset_accumulated();
        of_pools.values_mut().for_each(PoolStat::reset_accumulated);
    }

    /// The bytes of the segments of each private pool that ever had one, asleep or not. Peak and sums of one that is gone stay until reset.
    #[must_use]
    pub fn reserved_bytes_by_private_pool(&self) -> BTreeMap<MempoolId, PoolStat> {
        if forked() { BTreeMap::new() } else { lock(&self.shared().figures.counts).of_pools.clone() }
    }

    /// The largest free block in bytes: what some request would get without the driver. Pools that were released or sleep hand nothing out.
    pub fn largest_free_block(&self) -> Result<usize> {
        let shared = self.shared();
        drop(shared.source.lock()?);
        let is_free = |block: &BlockInfo| block.state == BlockState::Inactive;
        let of_segment = |segment: &SegmentInfo| {
            let runs = segment.blocks.chunk_by(|one, next| is_free(one) == is_free(next));
            let free = runs.filter(|run| is_free(&run[0]));
            free.map(|run| run.iter().map(|block| block.size).sum::<u64>()).max().unwrap_or(0)
        };
        let segments = shared.all_segments(false).0;
        let serves = |of: &&SegmentInfo| of.is_expandable || shared.private.serves(of.segment_pool_id);
        Ok(segments.iter().filter(serves).map(of_segment).max().unwrap_or(0) as usize)
    }

    /// The mapped bytes of the default pool, by stream and size class; PyTorch's expandable segments. Only streams with memory.
    pub fn stream_segment_sizes(&self) -> Result<Vec<StreamSegmentSize>> {
        let shared = self.shared();
        // While it is held no memory comes, goes or moves.
        let _source = shared.source.lock()?;
        let sizes_of = |slot: &StreamSlot| {
            let (small, all) = slot.heap.with(|heap, _| (heap.slab_bytes() as u64, heap.held_bytes() as u64));
            let (stream, handle) = (slot.stream_id(), slot.handle());
            let sizes = [(PoolSize::Small, small), (PoolSize::Large, all.saturating_sub(small))];
            let mapped = sizes.into_iter().filter(|(_, mapped)| *mapped > 0);
            mapped.map(move |(pool, mapped)| StreamSegmentSize { stream, handle, pool, mapped })
        };
        Ok(shared.slots.iter().flat_map(sizes_of).collect())
    }

    /// What happened lately, once it is recorded: blocks that come and go, requests that fail, and addresses that get and lose memory. What moves
    /// is unmapped where it was and mapped where it is, also where the driver keeps the old mapping for later.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.shared().record.history
    }

    /// Takes a snapshot of all memory and all blocks, and the history, in PyTorch's schema. A range of addresses with memory is one expandable
    /// segment; one that is cut up into pages alone is of small blocks. Segments of private pools have their pool's id.
    ///
    /// No memory comes, goes or moves meanwhile, and the blocks of each stream, and of private pools, are those of one moment; those that other
    /// threads take or free at this very time may be in the history alone, or in the segments alone.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        if forked() {
            return Snapshot::default();
        }
        let shared = self.shared();
        shared.count_all_frees(None);
        let active = shared.figures.counter.active_bytes();
        shared.record.emit_moves();
        let (segments, history) = shared.all_segments(true);
        let mut device_traces = vec![Vec::new(); shared.device_number() as usize];
        device_traces.push(history);
        // The next one shows it: what a program did last is the last entry of this one.
        shared.record.emit(event(Action::Snapshot, 0, 0, active), None);
        let tags = shared.tags.pools(&shared.private).into_iter();
        let tags = tags.map(|(id, name)| (shared.device_number(), id, name)).collect();
        Snapshot { segments, device_traces, allocator_settings: shared.private.settings(), tags }
    }

    /// All memory and all blocks, as [`CachingAllocator::snapshot`] has them, without the history, where this leaves no entry: for repeated calls.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        if forked() { Vec::new() } else { self.shared().all_segments(false).0 }
    }
}

impl DeviceCache {
    /// How many allocated blocks, and segments of private pools alone as in PyTorch, have `least` bytes or more.
    fn oversize(&self, least: u64) -> (u64, u64) {
        let segments = self.all_segments(false).0;
        let is_oversize =
            |block: &&BlockInfo| block.state == BlockState::ActiveAllocated && block.size >= least;
        let blocks = segments.iter().flat_map(|segment| &segment.blocks).filter(is_oversize).count();
        let is_oversize = |segment: &&SegmentInfo| !segment.is_expandable && segment.total_size >= least;
        (blocks as u64, segments.iter().filter(is_oversize).count() as u64)
    }

    /// The bytes of the slabs of all heaps. Of a heap that another thread holds, those of the last look.
    fn bytes_of_slabs(&self) -> u64 {
        let of_slot = |slot: &StreamSlot| {
            if let Some(bytes) = slot.heap.try_with(|heap, _| heap.slab_bytes()) {
                slot.slab_bytes.store(bytes as u64, Ordering::Relaxed);
            }
            slot.slab_bytes.load(Ordering::Relaxed)
        };
        self.slots.iter().map(of_slot).fold(0, u64::saturating_add)
    }

    fn device_number(&self) -> u32 {
        u32::try_from(self.context.device().as_raw()).unwrap_or_default()
    }

    /// All segments, and for a snapshot the history, which are those of a time at which no memory comes, goes or moves.
    /// Ranges of small blocks are segments of their own.
    fn all_segments(&self, for_snapshot: bool) -> (Vec<SegmentInfo>, Vec<TraceEntry>) {
        self.count_all_frees(None);
        // A watcher's thread has it.
        let source = (!is_watching()).then(|| self.source.lock_unchecked());
        let (device, pending) = (self.device_number(), self.pending.freed());
        let stacks = lock(&self.record.stacks).clone();
        let block = |&Piece { address, size, requested, .. }: &Piece| {
            let state = match requested {
                None => BlockState::Inactive,
                Some(_) if pending.contains(&address) => BlockState::ActivePendingFree,
                Some(_) => BlockState::ActiveAllocated,
            };
            let frames = requested.and_then(|_| stacks.get(&address).cloned());
            let requested_size = requested.unwrap_or(0) as u64;
            BlockInfo { address, size: size as u64, requested_size, state, frames }
        };
        let mut segments = Vec::new();
        for slot in self.slots.iter() {
            let pieces = self.with_drained(slot, |heap, _| heap.pieces());
            let joins = |one: &Piece, next: &Piece| {
                one.in_slab == next.in_slab && one.address + one.size as u64 == next.address
            };
            segments.extend(pieces.chunk_by(joins).map(|run| {
                let pool = if run[0].in_slab { PoolSize::Small } else { PoolSize::Large };
                let of = SegmentInfo::of(device, pool, run.iter().map(block).collect());
                SegmentInfo { stream: slot.handle(), is_expandable: true, ..of }
            }));
        }
        let history = if for_snapshot { self.record.history.entries() } else { Vec::new() };
        drop(source);
        segments.extend(self.pools().segments(device, &stacks));
        (segments, history)
    }

    /// All that is known about a request that failed. Holds no lock while it asks the driver and the management library for figures.
    pub(super) fn report(
        &self,
        slot: &StreamSlot,
        request: Request,
        pool: MempoolId,
    ) -> Result<OutOfMemoryReport> {
        self.count_all_frees(None);
        let mut live = DeviceStatistics::default();
        self.figures.counter.read(&mut live);
        let [in_blocks, active] =
            [live.allocated_bytes, live.active_bytes].map(|stat| stat.all.current as usize);
        // What the heaps have free, what of it can be put together to one block, and the largest that this one has in one piece.
        let (mut cached, mut movable, mut own) = (Vec::new(), 0usize, 0);
        // On a device that is lost nothing else tells of it.
        let device_free =
            unless_lost(self.context.memory_info().map_err(Error::from))?.map(|memory| memory.free);
        let mut source = self.source.lock()?;
        for other in self.slots.iter() {
            let is_other = other.number != slot.number;
            source.mark_free(other.number, &mut AllHeaps(self));
            let (bytes, (largest, block), moves) = other.heap.with(|heap, _| {
                (heap.free_bytes(), heap.largest_free(), source.movable(other.number, heap, is_other))
            });
            movable = movable.saturating_add(moves);
            own = if is_other { own } else { block };
            if bytes > 0 {
                let (stream, handle) = (Some(other.stream_id()), other.handle());
                cached.push(CachedMemory { pool: MempoolId::NONE, stream, handle, bytes, largest });
            }
        }
        let (limit, reserved, pinned) = (self.limit(), self.figures.reserved(), source.pinned());
        // What segments that are on their way have claimed is not left.
        let left = source.limit().saturating_sub(source.reserved());
        let room = device_free.unwrap_or(0).min(left) / SLAB * SLAB;
        let unit = source.handle_bytes(source.reserved().saturating_add(room));
        // Released first: threads that hold the private pools' tables wait for the page source.
        drop(source);
        cached.extend(self.pools().cached());
        let (moves, in_segments) = (self.options().moves, self.private.serves(MempoolId::NONE));
        let stream = slot.owner.stream().map(|stream| stream.id().as_raw());
        let of_pool = |id| stream.map_or(0, |stream| self.private.largest(id, stream, room));
        let (needed, together, of_heaps) = if in_segments {
            // The default pool is one of segments too, and gets nothing of heaps.
            let segment = self.private.options().segment_size(request.size as u64) as usize;
            (segment.next_multiple_of(SLAB), room, 0)
        } else {
            let new = room / unit * unit;
            let more = new.saturating_add(if moves { movable } else { 0 });
            // A small block needs a whole slab. No gap between large blocks has one, or the block would have got it.
            let gap = if request.size.min(own) > SLAB / 2 { own } else { 0 };
            let together = if pool == MempoolId::NONE { more.max(gap) } else { new };
            (if request.size > SLAB / 2 { request.requested } else { SLAB }, together, more.max(own))
        };
        let of_default = of_pool(MempoolId::NONE).max(of_heaps);
        let largest = if pool == MempoolId::NONE { of_default } else { of_pool(pool) };
        let mut report = OutOfMemoryReport {
            device: self.context.device(),
            requested: request.requested,
            free: device_free,
            total: self.total,
            limit: (limit != usize::MAX).then_some(limit),
            reserved,
            live: in_blocks,
            pending: active.saturating_sub(in_blocks),
            cached,
            pinned,
            largest,
            processes: nvml::processes(self.context.device()).ok(),
            advice: Vec::new(),
        };
        // Blocks of tags that sleep are counted, and nothing is held for them.
        let held = reserved.saturating_sub(report.pending).saturating_sub(report.cached_bytes());
        report.live = in_blocks.min(held);
        report.advice = choose_advice(&report, moves || in_segments, [needed, together, of_default]);
        Ok(report)
    }
}

/// Counts the bytes of slabs as memory of small blocks. All memory of the default pool was counted as that of large ones.
fn cut_off(mut reserved: PoolStat, of_small: Stat) -> PoolStat {
    let PoolStat { all, small_pool: small, large_pool: large } = &mut reserved;
    small.current = small.current.saturating_add(of_small.current);
    small.peak = small.peak.saturating_add(of_small.peak).min(all.peak);
    small.allocated = small.allocated.saturating_add(of_small.allocated);
    small.freed = small.freed.saturating_add(of_small.freed);
    large.current = large.current.saturating_sub(of_small.current);
    large.allocated = large.allocated.saturating_add(of_small.freed);
    large.freed = large.freed.saturating_add(of_small.allocated);
    reserved
}
