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
