//! Memory straight from the driver, while an allocator is off.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::LateReports;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;

use crate::lock::lock;

/// What was allocated so, by address.
pub(crate) struct Uncached<B> {
    /// How many there are, so that the usual free costs one load.
    count: AtomicUsize,
    books: Mutex<BTreeMap<CUdeviceptr, B>>,
}

impl<B> Uncached<B> {
    pub(crate) const fn new() -> Self {
        Self { count: AtomicUsize::new(0), books: Mutex::new(BTreeMap::new()) }
    }

    pub(crate) fn insert(&self, address: CUdeviceptr, block: B) {
        lock(&self.books).insert(address, block);
        // Before the address is returned: only then can another thread learn of it.
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Looks at an allocation; nothing if it is none of these. The program's hook hears of what fails meanwhile after the unlock.
    #[inline]
    pub(crate) fn look<R>(&self, address: CUdeviceptr, at: impl FnOnce(&mut B) -> R) -> Option<R> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let _reports = LateReports::new();
        lock(&self.books).get_mut(&address).map(at)
    }

    /// Takes an allocation out of the books, if it is one of these.
    #[inline]
    pub(crate) fn remove(&self, address: CUdeviceptr) -> Option<B> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let removed = lock(&self.books).remove(&address)?;
        self.count.fetch_sub(1, Ordering::Release);
        Some(removed)
    }
}

crate::impl_debug!([B] Uncached<B>, |it| count: it.count);
