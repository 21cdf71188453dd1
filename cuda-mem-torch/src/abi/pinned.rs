//! Pinned host memory, of one cache for the process: what PyTorch calls its host allocator. Memory that is pinned where it is, by its address.
//!
//! Blocks are known by their addresses. A block that is freed serves again once the streams are done that were recorded for it.
//!
//! # Safety
//!
//! Relies on the callers of the functions for C: a block that is given back is used by no host thread any more and by streams only that were
//! recorded; a filter may be called by any thread until its `release` is, and does not unwind.

#![allow(unsafe_code, reason = "takes addresses and functions of C")]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use cuda_mem_ipc::cuda_mem_pool::PinnedCachingAllocator;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::host::raw::{pin_memory_with, unpin_memory_with};
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Error as CoreError, LateReports, Stream, forked};
use cuda_mem_ipc::cuda_mem_pool::pinned_cache::{DurationStat, PinnedBlock, PinnedCacheStatistics};

use super::error::{CUDA_MEM_TORCH_NOT_OURS, Failure, entry};
use super::pointers::{Data, given, write};
use super::pools::{Owned, cuda_mem_torch_filter};
use super::stats::{cuda_mem_torch_stat, signed};
use super::{cuda_mem_torch_pool_id, devices, streams};
use crate::lock::lock;

/// Lists of blocks, so that each is short and threads seldom wait for each other. A power of two.
const SHARDS: usize = 4096;

/// An allocated block.
struct Lent {
    block: PinnedBlock,
    /// Streams that captured when they were recorded, so that the block could not note them. It is behind them when it is freed.
    capturing: Vec<Stream>,
}

static CACHE: OnceLock<PinnedCachingAllocator> = OnceLock::new();
static LENT: [Mutex<Vec<Lent>>; SHARDS] = [const { Mutex::new(Vec::new()) }; SHARDS];
/// Blocks that were freed while such a stream still captured, and whether there are any.
static PARKED: Mutex<Vec<Lent>> = Mutex::new(Vec::new());
static ARE_PARKED: AtomicBool = AtomicBool::new(false);
/// Larger blocks are not kept when they are freed.
static MOST_CACHED: AtomicUsize = AtomicUsize::new(usize::MAX);

/// The cache, once it was opened.
fn cache() -> Result<&'static PinnedCachingAllocator, Failure> {
    CACHE.get().ok_or_else(|| Failure::argument("it is not open: call cuda_mem_torch_pinned_open"))
}

fn shard(address: *const c_void) -> MutexGuard<'static, Vec<Lent>> {
    // The high bits of the product depend on all bits of an address, whose low ones are zero.
    let mixed = (address.addr() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - SHARDS.ilog2());
    lock(&LENT[usize::try_from(mixed).unwrap_or(0) % SHARDS])
}

/// Calls `body` with the list of the block that begins at an address, and its place there.
fn find<R>(address: *mut c_void, body: impl FnOnce(&mut Vec<Lent>, usize) -> R) -> Result<R, Failure> {
    let mut shard = shard(address);
    let place = shard.iter().position(|lent| lent.block.as_ptr().cast() == address.cast_const());
    place.map(|place| body(&mut shard, place)).ok_or_else(|| {
        Failure::new(
            CUDA_MEM_TORCH_NOT_OURS,
            format!("no pinned block of this library begins at {address:p}"),
        )
    })
}

impl Lent {
    /// Gives the block back, or parks it while a stream captures that it has to be behind.
    fn give_back(mut self) {
        let block = &self.block;
        // Behind whatever else is refused it never serves again.
        self.capturing.retain(|stream| block.record_stream(stream).is_err());
        if !self.capturing.is_empty() {
            lock(&PARKED).push(self);
            return ARE_PARKED.store(true, Ordering::Relaxed);
        }
        let capacity = self.block.capacity();
        // In the place of one that is used others would go.
        let goes = self.block.len() > MOST_CACHED.load(Ordering::Relaxed) && self.block.is_unused();
        drop(self);
        if goes && let Some(cache) = CACHE.get() {
            let PinnedCacheStatistics { allocated_bytes, active_bytes, .. } = cache.statistics();
            let cached = allocated_bytes.current.saturating_sub(active_bytes.current);
            cache.trim_to(usize::try_from(cached).unwrap_or(usize::MAX).saturating_sub(capacity));
        }
    }
}

/// Gives parked blocks back whose streams capture no more.
fn give_back_parked() {
    // The lock of the list orders it: who sets it anew has pushed behind this take.
    if ARE_PARKED.load(Ordering::Relaxed) {
        ARE_PARKED.store(false, Ordering::Relaxed);
        let parked = std::mem::take(&mut *lock(&PARKED));
        parked.into_iter().for_each(Lent::give_back);
    }
}

/// Makes the cache, whose memory is pinned in the context of a device and serves all. Once it is there this does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_pinned_open(device: c_int) -> c_int {
    entry(|| {
        let device = devices::device(device)?;
        CACHE.get_or_init(|| PinnedCachingAllocator::new(&device.context));
        Ok(())
    })
}

/// Pinned memory of `bytes` bytes, at a multiple of 256. The cache has to be open. May be called while streams capture. Without memory it is
/// [`CUDA_MEM_TORCH_DRIVER`](super::CUDA_MEM_TORCH_DRIVER) with the driver's code 2, as for `cudaHostAlloc`.
///
/// # Safety
///
/// `address` is a place for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_pinned_malloc(bytes: usize, address: *mut *mut c_void) -> c_int {
    entry(|| {
        give_back_parked();
        let block = cache()?.allocate(bytes).map_err(Failure::without_pinned)?;
        let start = block.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: the caller's promise.
        unsafe { write(address, start, "address") }?;
        shard(start).push(Lent { block, capturing: Vec::new() });
        Ok(())
    })
}

/// Gives a block back. It serves again once the streams are done that were recorded for it.
///
/// # Safety
///
/// Nothing uses it but these streams.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_pinned_free(address: *mut c_void) -> c_int {
    entry(|| {
        find(address, Vec::swap_remove)?.give_back();
        Ok(())
    })
}

/// Says that a stream was given work that uses the block. Of an address at which none begins it is [`CUDA_MEM_TORCH_NOT_OURS`].
///
/// # Safety
///
/// `stream` is a stream of the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_pinned_record(
    address: *mut c_void,
    device: c_int,
    stream: *mut c_void,
) -> c_int {
    entry(|| {
        find(address, |_, _| ())?;
        // Without the lock: the program may be asked about the stream, and hears of what fails.
        streams::with(devices::device(device)?, stream, |stream| {
            let _reports = LateReports::new();
            find(address, |blocks, place| match blocks[place].block.record_stream(stream) {
                Err(CoreError::Capturing { .. }) => {
                    let capturing = &mut blocks[place].capturing;
                    if capturing.iter().all(|known| known.id() != stream.id()) {
                        capturing.push(stream.clone());
                    }
                    Ok(())
                }
                recorded => Ok(recorded?),
            })?
        })
    })
}

/// The bytes of a block, as they were asked for.
///
/// # Safety
///
/// `bytes` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_pinned_block_bytes(address: *mut c_void, bytes: *mut usize) -> c_int {
    entry(|| {
        let len = find(address, |blocks, place| blocks[place].block.len())?;
        // SAFETY: the caller's promise.
        unsafe { write(bytes, len, "bytes") }
    })
}

/// Is told of a block and its bytes.
pub type cuda_mem_torch_pinned_visit =
    Option<unsafe extern "C" fn(data: *mut c_void, address: *mut c_void, bytes: usize)>;

/// Calls `visit` for each allocated block.
///
/// # Safety
///
/// `visit` may be called with `data` now, by this thread. It does not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_pinned_blocks(
    visit: cuda_mem_torch_pinned_visit,
    data: *mut c_void,
) -> c_int {
    entry(|| {
        let visit = given(visit, "visit")?;
        for shard in &LENT {
            // It may free one of them.
            let of_shard = |lent: &Lent| (lent.block.as_ptr().cast_mut().cast::<c_void>(), lent.block.len());
            let found: Vec<_> = lock(shard).iter().map(of_shard).collect();
            for (address, bytes) in found {
                // SAFETY: the caller's promise.
                unsafe { visit(data, address, bytes) };
            }
        }
        Ok(())
    })
}

/// Gives everything that is free back to the system. The driver waits for all work of the context before.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_pinned_empty_cache() -> c_int {
    entry(|| {
        give_back_parked();
        CACHE.get().into_iter().for_each(PinnedCachingAllocator::empty_cache);
        Ok(())
    })
}

/// Keeps no block of more than `bytes` bytes when it is freed, unless streams still use it: PyTorch's `pinned_max_cached_size_mb`. All are kept at first.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_pinned_set_max_cached_size(bytes: usize) {
    MOST_CACHED.store(bytes, Ordering::Relaxed);
}

/// Whether the driver allocates the memory, which takes several times as long: it refused to register any, as under confidential computing.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_pinned_is_allocated_by_driver() -> bool {
    !forked() && CACHE.get().is_some_and(PinnedCachingAllocator::is_allocated_by_driver)
}

/// How long a kind of driver call took, in microseconds.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct cuda_mem_torch_duration {
    /// All calls together.
    pub total: i64,
    /// The longest since the peaks were last reset.
    pub max: i64,
    /// The shortest since then; 0 without calls.
    pub min: i64,
    /// How many there were.
    pub count: i64,
}

/// All figures of pinned memory, as `torch.cuda.host_memory_stats()` names them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct cuda_mem_torch_pinned_stats {
    /// Pieces of memory that the driver holds pinned.
    pub allocations: cuda_mem_torch_stat,
    /// Their bytes.
    pub allocated_bytes: cuda_mem_torch_stat,
    /// Allocated blocks.
    pub active_requests: cuda_mem_torch_stat,
    /// Their bytes.
    pub active_bytes: cuda_mem_torch_stat,
    /// Calls that pinned memory.
    pub num_host_alloc: i64,
    /// Calls that gave it back.
    pub num_host_free: i64,
    /// How long the former took.
    pub host_alloc_time: cuda_mem_torch_duration,
    /// How long the latter took.
    pub host_free_time: cuda_mem_torch_duration,
}

impl From<DurationStat> for cuda_mem_torch_duration {
    fn from(DurationStat { total, max, min, count, .. }: DurationStat) -> Self {
        Self { total: signed(total), max: signed(max), min: signed(min), count: signed(count) }
    }
}

impl From<PinnedCacheStatistics> for cuda_mem_torch_pinned_stats {
    fn from(found: PinnedCacheStatistics) -> Self {
        Self {
            allocations: found.allocations.into(),
            allocated_bytes: found.allocated_bytes.into(),
            active_requests: found.active_requests.into(),
            active_bytes: found.active_bytes.into(),
            num_host_alloc: signed(found.num_host_alloc),
            num_host_free: signed(found.num_host_free),
            host_alloc_time: found.host_alloc_time.into(),
            host_free_time: found.host_free_time.into(),
        }
    }
}

/// The statistics; zeros before the cache is open.
///
/// # Safety
///
/// `stats` is a place for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_pinned_statistics(stats: *mut cuda_mem_torch_pinned_stats) -> c_int {
    entry(|| {
        give_back_parked();
        let found = CACHE.get().map(PinnedCachingAllocator::statistics).unwrap_or_default();
        // SAFETY: the caller's promise.
        unsafe { write(stats, found.into(), "stats") }
    })
}

/// Has the peaks start anew from what there is now.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_pinned_reset_peak_stats() -> c_int {
    entry(|| {
        CACHE.get().into_iter().for_each(PinnedCachingAllocator::reset_peak_statistics);
        Ok(())
    })
}

/// Has the accumulated figures start anew from zero.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_pinned_reset_accumulated_stats() -> c_int {
    entry(|| {
        CACHE.get().into_iter().for_each(PinnedCachingAllocator::reset_accumulated_statistics);
        Ok(())
    })
}

/// From here on allocations that `filter` accepts go to the pool, which is made if there is none and has one use more. Of several
/// that accept one, the last begun decides. It is asked without a stream, in the thread that allocates; what it allocates here itself goes
/// to no pool. `release`, which may be null, is called when the filter is needed no more, also if this fails.
///
/// # Safety
///
/// They may be called with `data` by any thread until then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_pinned_begin_allocate_to_pool(
    pool: cuda_mem_torch_pool_id,
    filter: cuda_mem_torch_filter,
    data: *mut c_void,
    release: Option<unsafe extern "C" fn(data: *mut c_void)>,
) -> c_int {
    // Before anything can fail: it is ours from here on.
    let owned = Owned { data: Data::new(data), release };
    entry(|| {
        let filter = given(filter, "filter")?;
        let accepts = move |_| {
            // The whole of it, which goes with this.
            let owned = &owned;
            // SAFETY: the caller's promise.
            unsafe { filter(owned.data.raw(), std::ptr::null_mut()) }
        };
        Ok(cache()?.begin_allocate_to_pool(pool.into(), accepts)?)
    })
}

/// Ends what [`cuda_mem_torch_pinned_begin_allocate_to_pool`] began. The pool and its memory stay.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_pinned_end_allocate_to_pool(pool: cuda_mem_torch_pool_id) -> c_int {
    entry(|| Ok(cache()?.end_allocate_to_pool(pool.into())?))
}

/// Ends one use of a pool. With the last its memory goes back to the system, once its blocks are freed.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_pinned_release_pool(pool: cuda_mem_torch_pool_id) -> c_int {
    entry(|| Ok(cache()?.release_pool(pool.into())?))
}

/// Pins `bytes` bytes, for all devices: `torch.cuda`'s `pin_memory(ptr, size)`.
///
/// # Safety
///
/// The memory stays mapped until it is unpinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_pin_memory(address: *mut c_void, bytes: usize) -> c_int {
    entry(|| {
        let driver = devices::driver()?;
        // SAFETY: the caller's promise.
        Ok(unsafe { pin_memory_with(driver, address, bytes) }?)
    })
}

/// Unpins what begins there.
///
/// # Safety
///
/// No device uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_unpin_memory(address: *mut c_void) -> c_int {
    entry(|| {
        let driver = devices::driver()?;
        // SAFETY: the caller's promise.
        Ok(unsafe { unpin_memory_with(driver, address) }?)
    })
}
