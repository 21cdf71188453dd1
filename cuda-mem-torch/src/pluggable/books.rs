//! What is known of the program's allocations. No lock of these is held while a function of the program runs.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Device, LateReports, Stream, UsePoint, Uses};
use cuda_mem_ipc::cuda_mem_pool::segments::SMALL_SIZE;
use cuda_mem_ipc::cuda_mem_pool::snapshot::{BlockInfo, BlockState, Frame, SegmentInfo};
use cuda_mem_ipc::cuda_mem_pool::statistics::{DeviceStatistics, PoolSize, PoolStat, Stat};

use crate::lock::lock;

/// An allocation: what `free` is told of it, and who else uses it.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) size: usize,
    pub(super) device: Device,
    pub(super) stream: Stream,
    pub(super) uses: Uses,
    pub(super) frames: Option<Arc<[Frame]>>,
}

/// An allocation that was freed while other streams used it.
#[derive(Debug)]
pub(super) struct Freed {
    pub(super) address: CUdeviceptr,
    pub(super) block: Block,
    /// Behind the uses. None while one of the streams captures: there is no such point then.
    pub(super) points: Option<Vec<UsePoint>>,
}

#[derive(Debug, Default)]
pub(super) struct Books(Mutex<State>);

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) blocks: HashMap<CUdeviceptr, Block>,
    pub(super) freed: Vec<Freed>,
    devices: BTreeMap<i32, OfDevice>,
}

/// The figures of a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct OfDevice {
    /// Of single allocations. Each is a segment of its own, so the figures of segments are those of `active`, filled in when read.
    pub(super) statistics: DeviceStatistics,
    /// The peaks of these and of the private pools together, as of the last allocation.
    pub(super) peaks: DeviceStatistics,
    pub(super) fraction: f64,
    /// What was got from the program's `alloc`, or is being asked for, in bytes.
    pub(super) held: usize,
}

impl Default for OfDevice {
    fn default() -> Self {
        let none = DeviceStatistics::default();
        Self { statistics: none, peaks: none, fraction: 1.0, held: 0 }
    }
}

impl Block {
    pub(super) fn pool(&self) -> PoolSize {
        if self.size as u64 <= SMALL_SIZE { PoolSize::Small } else { PoolSize::Large }
    }

    pub(super) fn raw_stream(&self) -> u64 {
        self.stream.as_raw() as usize as u64
    }
}

impl Books {
    /// Runs `body` with the books, for which the program's hook may wait: what fails meanwhile it hears of afterwards.
    pub(super) fn with<R>(&self, body: impl FnOnce(&mut State) -> R) -> R {
        let _reports = LateReports::new();
        body(&mut lock(&self.0))
    }
}

impl State {
    pub(super) fn of(&mut self, device: Device) -> &mut OfDevice {
        self.devices.entry(device.as_raw()).or_default()
    }

    /// Counts a new allocation.
    pub(super) fn count_allocated(&mut self, block: &Block) {
        let statistics = &mut self.of(block.device).statistics;
        statistics.active.increase(block.pool(), 1);
        statistics.active_bytes.increase(block.pool(), block.size as u64);
        statistics.allocation.increase(block.pool(), 1);
        statistics.allocated_bytes.increase(block.pool(), block.size as u64);
    }

    /// Counts an allocation that nobody has any more.
    pub(super) fn count_free_requested(&mut self, block: &Block) {
        let statistics = &mut self.of(block.device).statistics;
        statistics.allocation.decrease(block.pool(), 1);
        statistics.allocated_bytes.decrease(block.pool(), block.size as u64);
    }

    /// Counts an allocation that nothing uses any more.
    pub(super) fn count_free_completed(&mut self, block: &Block) {
        let statistics = &mut self.of(block.device).statistics;
        statistics.active.decrease(block.pool(), 1);
        statistics.active_bytes.decrease(block.pool(), block.size as u64);
    }
}

/// An allocation as a segment of one block.
pub(super) fn segment(address: u64, block: &Block, state: BlockState) -> SegmentInfo {
    let size = block.size as u64;
    let info = BlockInfo { address, size, requested_size: size, state, frames: block.frames.clone() };
    let device = u32::try_from(block.device.as_raw()).unwrap_or_default();
    let (stream, frames) = (block.raw_stream(), block.frames.clone());
    SegmentInfo { stream, frames, ..SegmentInfo::of(device, block.pool(), vec![info]) }
}

/// Both together. A peak is at least what each had, and what both had at any allocation.
pub(super) fn sum(
    own: &DeviceStatistics,
    pools: &DeviceStatistics,
    peaks: &DeviceStatistics,
) -> DeviceStatistics {
    let stat = |own: Stat, pools: Stat, peak: Stat| {
        let current = own.current.saturating_add(pools.current);
        Stat {
            current,
            peak: [current, own.peak, pools.peak, peak.peak].into_iter().fold(0, u64::max),
            allocated: own.allocated.saturating_add(pools.allocated),
            freed: own.freed.saturating_add(pools.freed),
        }
    };
    let pool_stat = |own: PoolStat, pools: PoolStat, peak: PoolStat| PoolStat {
        all: stat(own.all, pools.all, peak.all),
        small_pool: stat(own.small_pool, pools.small_pool, peak.small_pool),
        large_pool: stat(own.large_pool, pools.large_pool, peak.large_pool),
    };
    DeviceStatistics {
        allocation: pool_stat(own.allocation, pools.allocation, peaks.allocation),
        segment: pool_stat(own.active, pools.segment, peaks.segment),
        active: pool_stat(own.active, pools.active, peaks.active),
        allocated_bytes: pool_stat(own.allocated_bytes, pools.allocated_bytes, peaks.allocated_bytes),
        reserved_bytes: pool_stat(own.active_bytes, pools.reserved_bytes, peaks.reserved_bytes),
        active_bytes: pool_stat(own.active_bytes, pools.active_bytes, peaks.active_bytes),
        requested_bytes: pool_stat(own.active_bytes, pools.requested_bytes, peaks.requested_bytes),
        num_alloc_retries: own.num_alloc_retries.saturating_add(pools.num_alloc_retries),
        num_ooms: own.num_ooms.saturating_add(pools.num_ooms),
        num_device_alloc: own.active.all.allocated.saturating_add(pools.num_device_alloc),
        num_device_free: own.active.all.freed.saturating_add(pools.num_device_free),
        ..*pools
    }
}
