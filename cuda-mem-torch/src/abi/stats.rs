//! Statistics, under PyTorch's names.
//!
//! # Safety
//!
//! Declares functions for C, whose callers answer for the places that they pass.

#![allow(unsafe_code, reason = "writes where C points to")]

use std::ffi::{c_int, c_void};

use cuda_mem_ipc::cuda_mem_pool::statistics::{DeviceStatistics, PoolStat, Stat};

use super::cuda_mem_torch_pool_id;
use super::devices::{DEVICES, if_made};
use super::error::entry;
use super::pointers::{given, write};

/// A figure that goes up and down.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct cuda_mem_torch_stat {
    /// Now.
    pub current: i64,
    /// The most since the peaks were reset.
    pub peak: i64,
    /// The sum of what was added since the accumulated figures were reset.
    pub allocated: i64,
    /// The sum of what was taken away since then.
    pub freed: i64,
}

/// A figure of all blocks, and of those of each kind of pool: PyTorch's `StatArray`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct cuda_mem_torch_stat_array {
    /// Of both.
    pub all: cuda_mem_torch_stat,
    /// Of blocks up to 1 MiB.
    pub small_pool: cuda_mem_torch_stat,
    /// Of all others.
    pub large_pool: cuda_mem_torch_stat,
}

/// All figures of a device, as `torch.cuda.memory_stats()` names them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct cuda_mem_torch_device_stats {
    /// Allocated blocks.
    pub allocation: cuda_mem_torch_stat_array,
    /// Pieces of memory that the driver gave.
    pub segment: cuda_mem_torch_stat_array,
    /// Allocated blocks, and freed ones that a stream still uses.
    pub active: cuda_mem_torch_stat_array,
    /// Free blocks beside others.
    pub inactive_split: cuda_mem_torch_stat_array,
    /// Bytes of `allocation`.
    pub allocated_bytes: cuda_mem_torch_stat_array,
    /// Bytes of `segment`.
    pub reserved_bytes: cuda_mem_torch_stat_array,
    /// Bytes of `active`.
    pub active_bytes: cuda_mem_torch_stat_array,
    /// Bytes of `inactive_split`.
    pub inactive_split_bytes: cuda_mem_torch_stat_array,
    /// Bytes of `active`, as they were asked for.
    pub requested_bytes: cuda_mem_torch_stat_array,
    /// Allocated blocks of `max_split_size` bytes and more.
    pub oversize_allocations: cuda_mem_torch_stat,
    /// Segments of as many.
    pub oversize_segments: cuda_mem_torch_stat,
    /// Requests for which cached memory went back to the driver first.
    pub num_alloc_retries: i64,
    /// Requests that failed for lack of memory.
    pub num_ooms: i64,
    /// Waits for all streams: for lack of memory, or before the cache was emptied.
    pub num_sync_all_streams: i64,
    /// Driver calls that got memory.
    pub num_device_alloc: i64,
    /// Driver calls that gave memory back.
    pub num_device_free: i64,
    /// Blocks of this many bytes and more are not cut up; -1 if all are.
    pub max_split_size: i64,
}

/// The statistics of a device; nothing but the option, before it is used.
///
/// # Safety
///
/// `stats` is a place for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_stats(
    device: c_int,
    stats: *mut cuda_mem_torch_device_stats,
) -> c_int {
    entry(|| {
        let option = || DEVICES.set_up(|setup| setup.options.segments.max_split_size);
        let found = match if_made(device)? {
            Some(device) => device.caching.statistics(),
            None => DeviceStatistics { max_split_size: option(), ..DeviceStatistics::default() },
        };
        // SAFETY: the caller's promise.
        unsafe { write(stats, found.into(), "stats") }
    })
}

/// Tells of the bytes of the segments of each private pool that ever had one: PyTorch's `reserved_bytes_by_private_pools`.
///
/// # Safety
///
/// `reserved` may be called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_reserved_by_private_pools(
    device: c_int,
    data: *mut c_void,
    reserved: Option<
        unsafe extern "C" fn(
            data: *mut c_void,
            pool: cuda_mem_torch_pool_id,
            bytes: cuda_mem_torch_stat_array,
        ),
    >,
) -> c_int {
    entry(|| {
        let reserved = given(reserved, "reserved")?;
        let Some(device) = if_made(device)? else { return Ok(()) };
        for (id, bytes) in device.caching.reserved_bytes_by_private_pool() {
            // SAFETY: the caller's promise.
            unsafe { reserved(data, id.into(), bytes.into()) };
        }
        Ok(())
    })
}

/// Has the peaks of a device start anew from what there is now.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_reset_peak_stats(device: c_int) -> c_int {
    entry(|| {
        if_made(device)?.into_iter().for_each(|device| device.caching.reset_peak_statistics());
        Ok(())
    })
}

/// Has the sums and counts of a device start anew from nothing.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_reset_accumulated_stats(device: c_int) -> c_int {
    entry(|| {
        if_made(device)?.into_iter().for_each(|device| device.caching.reset_accumulated_statistics());
        Ok(())
    })
}

pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl From<Stat> for cuda_mem_torch_stat {
    fn from(stat: Stat) -> Self {
        Self {
            current: signed(stat.current),
            peak: signed(stat.peak),
            allocated: signed(stat.allocated),
            freed: signed(stat.freed),
        }
    }
}

impl From<PoolStat> for cuda_mem_torch_stat_array {
    fn from(stat: PoolStat) -> Self {
        Self { all: stat.all.into(), small_pool: stat.small_pool.into(), large_pool: stat.large_pool.into() }
    }
}

impl From<DeviceStatistics> for cuda_mem_torch_device_stats {
    fn from(stats: DeviceStatistics) -> Self {
        Self {
            allocation: stats.allocation.into(),
            segment: stats.segment.into(),
            active: stats.active.into(),
            inactive_split: stats.inactive_split.into(),
            allocated_bytes: stats.allocated_bytes.into(),
            reserved_bytes: stats.reserved_bytes.into(),
            active_bytes: stats.active_bytes.into(),
            inactive_split_bytes: stats.inactive_split_bytes.into(),
            requested_bytes: stats.requested_bytes.into(),
            oversize_allocations: stats.oversize_allocations.into(),
            oversize_segments: stats.oversize_segments.into(),
            num_alloc_retries: signed(stats.num_alloc_retries),
            num_ooms: signed(stats.num_ooms),
            num_sync_all_streams: signed(stats.num_sync_all_streams),
            num_device_alloc: signed(stats.num_device_alloc),
            num_device_free: signed(stats.num_device_free),
            max_split_size: stats.max_split_size.map_or(-1, signed),
        }
    }
}
