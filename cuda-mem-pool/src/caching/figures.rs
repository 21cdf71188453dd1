//! What there is, for those who ask: statistics, snapshots, sizes, and the report of a request that found no memory.

use std::collections::{BTreeMap, HashMap, HashSet};

use cuda_mem_core::nvml;

use super::grow::unless_lost;
use super::hot::Request;
use super::record::event;
use super::seeing::StreamSegmentSize;
use super::shared::DeviceCache;
use super::slot::StreamSlot;
use crate::engine::paged::{Piece, SLAB};
use crate::error::{CachePool, CachedMemory, Error, OutOfMemoryReport, Result, choose_advice};
use crate::mempool_id::MempoolId;
use crate::primitive::{AtomicU64, Mutex, Ordering, lock};
use crate::snapshot::{Action, BlockInfo, BlockState, Frames, SegmentInfo, Snapshot};
use crate::statistics::{DeviceStatistics, PeakCounter, PoolSize, PoolStat, Stat};

/// The counters of an allocator.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// Blocks, which each heap counts by itself.
    pub(super) counter: PeakCounter,
    /// Memory, and requests that did not find any.
    counts: Mutex<DeviceStatistics>,
    /// The bytes of slabs, as they were whenever somebody looked.
    small: Mutex<Stat>,
    /// The most bytes that were held up to the last reset of the peaks.
    most_reserved: AtomicU64,
}

impl Figures {
    /// Changes counts that concern no block.
    pub(super) fn change(&self, change: impl FnOnce(&mut DeviceStatistics)) {
        change(&mut lock(&self.counts));
    }

    /// Counts a segment or a handle that the driver gave.
    pub(super) fn add_segment(&self, pool: PoolSize, bytes: u64) {
        let mut counts = lock(&self.counts);
        counts.segment.increase(pool, 1);
        counts.reserved_bytes.increase(pool, bytes);
        counts.num_device_alloc += 1;
    }

    /// Counts a segment or a handle that went back.
    pub(super) fn remove_segment(&self, pool: PoolSize, bytes: u64) {
        let mut counts = lock(&self.counts);
        counts.segment.decrease(pool, 1);
        counts.reserved_bytes.decrease(pool, bytes);
        counts.num_device_free += 1;
    }

    /// The most that was ever held, whatever was reset.
    pub(super) fn most_reserved(&self) -> u64 {
        let counts = lock(&self.counts);
        counts.reserved_bytes.all.peak.max(self.most_reserved.load(Ordering::Relaxed))
    }
}

impl DeviceCache {
    pub(super) fn statistics(&self) -> DeviceStatistics {
        let [small, large] = self.private.splits();
        let max_split_size = self.private.max_split_size();
        let (oversize_blocks, oversize_segments) =
            max_split_size.map_or((0, 0), |least| self.oversize(least));
        let bytes_of_slabs = self.bytes_of_slabs();
        self.count_all_frees();
        let mut counts = lock(&self.figures.counts);
        counts.inactive_split.set(small.0, large.0);
        counts.inactive_split_bytes.set(small.1, large.1);
        counts.oversize_allocations.set(oversize_blocks);
        counts.oversize_segments.set(oversize_segments);
        let mut of_small = lock(&self.figures.small);
        // Some of it may have gone back since.
        of_small.set(bytes_of_slabs.min(counts.reserved_bytes.large_pool.current));
        let reserved_bytes = cut_off(counts.reserved_bytes, *of_small);
        let mut statistics = DeviceStatistics { max_split_size, reserved_bytes, ..*counts };
        self.figures.counter.read(&mut statistics);
        statistics
    }

    pub(super) fn reset_peak_statistics(&self) {
        self.count_all_frees();
        let figures = &self.figures;
        figures.counter.reset_peak();
        let mut counts = lock(&figures.counts);
        figures.most_reserved.fetch_max(counts.reserved_bytes.all.peak, Ordering::Relaxed);
        counts.reset_peak();
        lock(&figures.small).reset_peak();
    }

    pub(super) fn reset_accumulated_statistics(&self) {
        self.count_all_frees();
        self.figures.counter.reset_accumulated();
        lock(&self.figures.counts).reset_accumulated();
        lock(&self.figures.small).reset_accumulated();
    }

    /// Counts the blocks that somebody has, and the segments of private pools, that have `least` bytes or more, as many as are not cut up any
    /// more: as in PyTorch, where what grows by pages is no such segment.
    fn oversize(&self, least: u64) -> (u64, u64) {
        let (private, segments) = self.private.oversize(least);
        let pending = self.pending.freed();
        let is_oversize = |piece: &Piece| {
            piece.requested.is_some() && piece.size as u64 >= least && !pending.contains(&piece.address)
        };
        let count = |slot| self.pieces(slot).iter().filter(|piece| is_oversize(piece)).count() as u64;
        (self.slots.iter().map(count).fold(private, u64::saturating_add), segments)
    }

    /// The bytes of the slabs of all heaps. Of a heap that another thread has right now, as many as it had when somebody last looked.
    fn bytes_of_slabs(&self) -> u64 {
        let of_slot = |slot: &StreamSlot| {
            if let Some(bytes) = slot.heap.try_with(|heap, _| heap.slab_bytes()) {
                slot.slab_bytes.store(bytes as u64, Ordering::Relaxed);
            }
            slot.slab_bytes.load(Ordering::Relaxed)
        };
        self.slots.iter().map(of_slot).fold(0, u64::saturating_add)
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        self.count_all_frees();
        let active = self.figures.counter.active_bytes();
        self.record.tell_moves();
        // While it is held no memory comes, goes or moves.
        let source = self.source.lock_to_look();
        let known = self.known(self.record.stacks());
        let mut segments = self.default_segments(&known);
        let device = known.device;
        let mut device_traces = vec![Vec::new(); device as usize];
        device_traces.push(self.record.history.entries());
        drop(source);
        segments.extend(self.private.segments(device, &known.stacks));
        // The next one shows it: what a program did last is the last entry of this one.
        self.record.tell(event(Action::Snapshot, 0, 0, active as usize), None);
        let tags = self.tags.pools().into_iter().map(|(id, name)| (device, id, name)).collect();
        Snapshot { segments, device_traces, allocator_settings: self.private.settings(), tags }
    }

    /// The segments of a snapshot, without stacks.
    pub(super) fn segments(&self) -> Vec<SegmentInfo> {
        self.count_all_frees();
        // While it is held no memory comes, goes or moves.
        let source = self.source.lock_to_look();
        let known = self.known(HashMap::new());
        let mut segments = self.default_segments(&known);
        drop(source);
        segments.extend(self.private.segments(known.device, &known.stacks));
        segments
    }

    fn known(&self, stacks: HashMap<u64, Frames>) -> Known {
        let device = u32::try_from(self.context.device().as_raw()).unwrap_or_default();
        Known { device, pending: self.pending.freed(), stacks }
    }

    fn default_segments(&self, known: &Known) -> Vec<SegmentInfo> {
        let heaps: Vec<_> = self.slots.iter().map(|slot| (slot, self.pieces(slot))).collect();
        heaps.iter().flat_map(|(slot, pieces)| known.segments(slot.handle(), pieces)).collect()
    }

    /// What a stream has, in the order of the addresses, when all frees are taken in.
    fn pieces(&self, slot: &StreamSlot) -> Vec<Piece> {
        slot.heap.with(|heap, guard| {
            self.drain(slot, heap, guard);
            heap.pieces()
        })
    }

    /// The mapped bytes by stream and size class.
    pub(super) fn stream_segment_sizes(&self) -> Result<Vec<StreamSegmentSize>> {
        // While it is held no memory comes, goes or moves.
        let _source = self.source.lock()?;
        let sizes_of = |slot: &StreamSlot| {
            let mut mapped = BTreeMap::new();
            for piece in self.pieces(slot) {
                let pool = if piece.in_slab { PoolSize::Small } else { PoolSize::Large };
                mapped.entry(!piece.in_slab).or_insert((pool, 0)).1 += piece.size as u64;
            }
            let (stream, handle) = (slot.stream_id(), slot.handle());
            let size =
                move |(pool, mapped)| Some(StreamSegmentSize { stream: stream?, handle, pool, mapped });
            mapped.into_values().filter_map(size)
        };
        Ok(self.slots.iter().flat_map(sizes_of).collect())
    }

    /// The largest free block of all pools and streams, in bytes.
    pub(super) fn largest_free_block(&self) -> Result<usize> {
        drop(self.source.lock()?);
        let of_heaps = self.slots.iter().map(|slot| largest_free(&self.pieces(slot)));
        Ok(of_heaps.fold(self.private.largest_free(), usize::max))
    }

    /// All that is known about a request that failed. Holds no lock when it asks the driver and the management library.
    pub(super) fn report(
        &self,
        slot: &StreamSlot,
        request: Request,
        pool: MempoolId,
    ) -> Result<OutOfMemoryReport> {
        self.count_all_frees();
        let mut live = DeviceStatistics::default();
        self.figures.counter.read(&mut live);
        let bytes = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let (in_blocks, active) =
            (bytes(live.allocated_bytes.all.current), bytes(live.active_bytes.all.current));
        // What the heaps have free, what of it can be put together to one block, and the largest that this one has in one piece.
        let (mut cached, mut movable, mut own) = (Vec::new(), 0usize, 0);
        let source = self.source.lock()?;
        for other in self.slots.iter() {
            let (bytes, largest, moves) = other
                .heap
                .with(|heap, _| (heap.free_bytes(), heap.largest_free(), source.movable(other.number, heap)));
            movable = movable.saturating_add(moves);
            if other.number == slot.number {
                own = largest;
            }
            if let Some(stream) = other.stream_id().filter(|_| bytes > 0) {
                cached.push(CachedMemory { pool: CachePool::Stream(stream), bytes, largest });
            }
        }
        let (limit, pinned) = (self.source.limit(), source.pinned());
        let reserved = source.reserved().saturating_add(self.source.segments());
        // Those who have the private pools' tables wait for the page source.
        drop(source);
        cached.extend(self.private.cached());
        // On a device that is lost nothing else tells of it.
        let device_free =
            unless_lost(self.context.memory_info().map_err(Error::from))?.map(|memory| memory.free);
        let room = device_free.unwrap_or(0).min(limit.saturating_sub(reserved)) / SLAB * SLAB;
        let movable = if self.moves { movable } else { 0 };
        let stream = slot.owner.stream().map(|stream| stream.id().as_raw());
        let of_private = stream.map_or(0, |stream| self.private.largest(pool, stream, room));
        let (together, largest) = match pool {
            MempoolId::NONE => {
                let together = own.max(movable.saturating_add(room));
                (together, together.max(of_private))
            }
            _ => (room, of_private),
        };
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
        report.advice = choose_advice(&report, self.moves, together);
        Ok(report)
    }
}

/// Counts the bytes of slabs as memory of small blocks. All memory of the default pool was counted as that of large ones.
fn cut_off(reserved: PoolStat, of_small: Stat) -> PoolStat {
    let PoolStat { all, small_pool: small, large_pool: large } = reserved;
    let small_pool = Stat {
        current: small.current.saturating_add(of_small.current),
        peak: small.peak.saturating_add(of_small.peak).min(all.peak),
        allocated: small.allocated.saturating_add(of_small.allocated),
        freed: small.freed.saturating_add(of_small.freed),
    };
    let large_pool = Stat {
        current: large.current.saturating_sub(of_small.current),
        peak: large.peak,
        allocated: large.allocated.saturating_add(of_small.freed),
        freed: large.freed.saturating_add(of_small.allocated),
    };
    PoolStat { all, small_pool, large_pool }
}

/// Whether a piece goes on where another ends.
fn joins(one: &Piece, next: &Piece) -> bool {
    one.in_slab == next.in_slab && one.address + one.size as u64 == next.address
}

/// The longest piece without a gap that is free.
fn largest_free(pieces: &[Piece]) -> usize {
    let is_free = |piece: &Piece| piece.requested.is_none();
    let runs = pieces.chunk_by(|one, next| is_free(one) && is_free(next) && joins(one, next));
    let free = runs.filter(|run| run.iter().all(is_free));
    free.map(|run| run.iter().map(|piece| piece.size).sum()).max().unwrap_or(0)
}

/// What a snapshot knows of blocks beside their heaps.
struct Known {
    device: u32,
    /// Blocks that were freed and are still in use by a stream.
    pending: HashSet<u64>,
    stacks: HashMap<u64, Frames>,
}

impl Known {
    /// The ranges of addresses that a stream has, each without a gap; those of small blocks are ranges of their own.
    fn segments(&self, stream: u64, pieces: &[Piece]) -> Vec<SegmentInfo> {
        let segment = |run: &[Piece]| {
            let is_small = run.first().is_some_and(|piece| piece.in_slab);
            let pool = if is_small { PoolSize::Small } else { PoolSize::Large };
            let blocks = run.iter().map(|piece| self.block(piece)).collect();
            SegmentInfo { stream, is_expandable: true, ..SegmentInfo::of(self.device, pool, blocks) }
        };
        pieces.chunk_by(joins).map(segment).collect()
    }

    fn block(&self, piece: &Piece) -> BlockInfo {
        let state = match piece.requested {
            None => BlockState::Inactive,
            Some(_) if self.pending.contains(&piece.address) => BlockState::ActivePendingFree,
            Some(_) => BlockState::ActiveAllocated,
        };
        let frames = match state {
            BlockState::Inactive => None,
            _ => self.stacks.get(&piece.address).cloned(),
        };
        let requested_size = piece.requested.unwrap_or(0) as u64;
        BlockInfo { address: piece.address, size: piece.size as u64, requested_size, state, frames }
    }
}
