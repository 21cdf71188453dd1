//! Private pools.
//!
//! # Safety
//!
//! Relies on the functions that C passes: they may be called by any thread until the pool's memory is given back, and do not unwind.

#![allow(unsafe_code, reason = "calls functions of C")]

use std::collections::HashSet;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use cuda_mem_ipc::cuda_mem_pool::segments::Filter;
use cuda_mem_ipc::cuda_mem_pool::{MempoolId, RawResource};

use super::devices::{Device, device, if_made, some};
use super::error::{Failure, entry};
use super::pointers::{Data, list, write, write_if};
use super::source::{Source, cuda_mem_torch_source};
use super::{cuda_mem_torch_pool_id, leaving, streams};

/// What functions of the program are passed, which another one of them takes back when it goes.
pub(super) struct Owned {
    pub(super) data: Data,
    pub(super) release: Option<unsafe extern "C" fn(*mut c_void)>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: what was promised for the functions; this is the last call of them.
            unsafe { release(self.data.raw()) };
        }
    }
}

impl From<cuda_mem_torch_pool_id> for MempoolId {
    fn from(id: cuda_mem_torch_pool_id) -> Self {
        Self(id.first, id.second)
    }
}

impl From<MempoolId> for cuda_mem_torch_pool_id {
    fn from(MempoolId(first, second): MempoolId) -> Self {
        Self { first, second }
    }
}

/// Makes a pool, or adds a use to it. With a `source`, which only a new pool takes, its segments come from there. Its `release` is
/// called when it is needed no more, also if this fails.
///
/// # Safety
///
/// `source` is null, or points to functions that may be called with their data until its `release` is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_create_or_incref_pool(
    device: c_int,
    pool: cuda_mem_torch_pool_id,
    source: *const cuda_mem_torch_source,
) -> c_int {
    // SAFETY: the caller's promise.
    let source = unsafe { source.as_ref() };
    // Before anything can fail: it is ours from here on.
    let source = source.map(|source| {
        let owned = Owned { data: Data::new(source.data), release: source.release };
        (owned, source.alloc, source.free)
    });
    entry(|| {
        let source = match source {
            None => None,
            Some((owned, Some(alloc), Some(free))) => {
                Some(Arc::new(Source { owned, alloc, free }) as Arc<dyn RawResource>)
            }
            Some(_) => return Err(Failure::argument("a source needs alloc and free; one of them is null")),
        };
        Ok(self::device(device)?.caching.create_or_incref_pool(pool.into(), source)?)
    })
}

/// How often a pool is in use; 0 if there is none.
///
/// # Safety
///
/// `count` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_pool_use_count(
    device: c_int,
    pool: cuda_mem_torch_pool_id,
    count: *mut u64,
) -> c_int {
    entry(|| {
        let found = if_made(device)?.map_or(0, |device| device.caching.pool_use_count(pool.into()));
        // SAFETY: the caller's promise.
        unsafe { write(count, found, "count") }
    })
}

/// Whether an allocation for this stream, in the calling thread, goes to the pool. A thread that ends a use of a pool waits for filters that
/// other threads ask: a filter must not wait for such a thread.
pub type cuda_mem_torch_filter = Option<unsafe extern "C" fn(data: *mut c_void, stream: *mut c_void) -> bool>;

/// From here on allocations that `filter` accepts go to the pool, which is made if there is none and has one use more. Of several
/// that accept one, the last begun decides. Null accepts all. `release`, which may be null, is called when the filter is needed no
/// more, also if this fails.
///
/// # Safety
///
/// They may be called with `data` by any thread until then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_begin_allocate_to_pool(
    device: c_int,
    pool: cuda_mem_torch_pool_id,
    filter: cuda_mem_torch_filter,
    data: *mut c_void,
    release: Option<unsafe extern "C" fn(data: *mut c_void)>,
) -> c_int {
    unsafe extern "C" fn all(_: *mut c_void, _: *mut c_void) -> bool {
        true
    }
    // Before anything can fail: it is ours from here on.
    let owned = Owned { data: Data::new(data), release };
    let filter = filter.unwrap_or(all);
    entry(|| {
        let accepts = move |stream: u64| {
            // The whole of it, which goes with this.
            let owned = &owned;
            // SAFETY: what was promised for the filter.
            unsafe { filter(owned.data.raw(), streams::handle_of(device, stream)) }
        };
        Ok(self::device(device)?.caching.begin_allocate_to_pool(pool.into(), Filter::new(accepts))?)
    })
}

/// Ends what [`cuda_mem_torch_begin_allocate_to_pool`] began. Its use of the pool stays. When no other route is left, captures of streams that
/// do not last (`cuda_mem_torch_ask_for_lasting`) are taken to have ended, also where a pool's last release ends its route.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_end_allocate_to_pool(device: c_int, pool: cuda_mem_torch_pool_id) -> c_int {
    entry(|| {
        let device = self::device(device)?;
        device.caching.end_allocate_to_pool(pool.into())?;
        forget_guests(device, true);
        Ok(())
    })
}

/// Behind the end of a route, and of its capture. One to a pool within the capture ends before that of the graph.
fn forget_guests(device: &Device, had_routes: bool) {
    if had_routes && !device.caching.has_routes() {
        device.context.forget_guests_captures();
    }
}

/// Ends one use of the pool. The last one ends its route, and its memory goes back when the cache is emptied, or when there is no other.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_release_pool(device: c_int, pool: cuda_mem_torch_pool_id) -> c_int {
    entry(|| {
        let device = self::device(device)?;
        let had_routes = device.caching.has_routes();
        device.caching.release_pool(pool.into())?;
        forget_guests(device, had_routes);
        Ok(())
    })
}

/// Whether the pool's free memory may serve requests that would else be out of memory.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_set_use_on_oom(
    device: c_int,
    pool: cuda_mem_torch_pool_id,
    use_on_oom: bool,
) -> c_int {
    entry(|| Ok(self::device(device)?.caching.set_use_on_oom(pool.into(), use_on_oom)?))
}

/// Has each request to the pool get the whole of the free block that is found for it.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_set_no_split(device: c_int, pool: cuda_mem_torch_pool_id) -> c_int {
    entry(|| Ok(self::device(device)?.caching.set_no_split(pool.into())?))
}

/// Gives cached memory back, of a device or of all: of a pool that was released, after a wait for what may use it; or with zeros of the
/// default pool, of tags and of all released ones, after a wait for all streams that were allocated for or recorded, but for those that
/// capture. What is still used stays. `bytes`, which may be null, gets how much.
///
/// # Safety
///
/// `bytes` is null or a place for a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_empty_cache(
    device: c_int,
    pool: cuda_mem_torch_pool_id,
    bytes: *mut usize,
) -> c_int {
    entry(|| {
        leaving::settle();
        let mut given = 0usize;
        let pool = MempoolId::from(pool);
        for device in some(device)? {
            if pool == MempoolId::NONE {
                device.caching.wait_for_streams()?;
            }
            given = given.saturating_add(device.caching.empty_pool_cache(pool)?);
        }
        // SAFETY: the caller's promise.
        unsafe { write_if(bytes, given) };
        Ok(())
    })
}

/// Whether exactly the blocks at these addresses are allocated, of all blocks of the pool.
///
/// # Safety
///
/// `addresses` points to `count` addresses, `are` is a place for the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_check_pool_live_allocations(
    device: c_int,
    pool: cuda_mem_torch_pool_id,
    addresses: *const *const c_void,
    count: usize,
    are: *mut bool,
) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let addresses = unsafe { list(addresses, count, "addresses") }?;
        let wanted: HashSet<u64> = addresses.iter().map(|address| address.addr() as u64).collect();
        let found = self::device(device)?.caching.check_pool_live_allocations(pool.into(), &wanted)?;
        // SAFETY: the caller's promise.
        unsafe { write(are, found, "are") }
    })
}
