//! What the allocator tells of itself: its own allocations, and the private pools.

use cuda_mem_ipc::cuda_mem_pool::snapshot::{BlockInfo, BlockState, SegmentInfo};
use cuda_mem_ipc::cuda_mem_pool::statistics::{DeviceStatistics, PoolStat, Stat};

use super::books::Block;

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
    let of = |field: fn(&DeviceStatistics) -> PoolStat| pool_stat(field(own), field(pools), field(peaks));
    let count = |field: fn(&DeviceStatistics) -> u64| field(own).saturating_add(field(pools));
    DeviceStatistics {
        asleep_bytes: 0,
        allocation: of(|all| all.allocation),
        segment: of(|all| all.segment),
        active: of(|all| all.active),
        inactive_split: of(|all| all.inactive_split),
        allocated_bytes: of(|all| all.allocated_bytes),
        reserved_bytes: of(|all| all.reserved_bytes),
        active_bytes: of(|all| all.active_bytes),
        inactive_split_bytes: of(|all| all.inactive_split_bytes),
        requested_bytes: of(|all| all.requested_bytes),
        oversize_allocations: stat(
            own.oversize_allocations,
            pools.oversize_allocations,
            peaks.oversize_allocations,
        ),
        oversize_segments: stat(own.oversize_segments, pools.oversize_segments, peaks.oversize_segments),
        num_alloc_retries: count(|all| all.num_alloc_retries),
        num_ooms: count(|all| all.num_ooms),
        num_sync_all_streams: count(|all| all.num_sync_all_streams),
        num_device_alloc: count(|all| all.num_device_alloc),
        num_device_free: count(|all| all.num_device_free),
        max_split_size: pools.max_split_size,
    }
}
