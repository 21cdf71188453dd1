//! Memory straight from the driver, while an allocator is off.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core as core;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::ipc::DeviceAllocation;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;

use crate::lock::lock;

/// What was allocated so, by address, and what each has to wait for.
pub(crate) struct Uncached<W> {
    /// How many there are, so that the usual free costs one load.
    count: AtomicUsize,
    books: Mutex<BTreeMap<CUdeviceptr, Block<W>>>,
}

/// One allocation of `cuMemAlloc`.
pub(crate) struct Block<W> {
    pub(crate) allocation: DeviceAllocation,
    /// What is waited for before the free, beside the uses that the allocation knows.
    pub(crate) users: W,
}

impl<W: Clone> Uncached<W> {
    pub(crate) const fn new() -> Self {
        Self { count: AtomicUsize::new(0), books: Mutex::new(BTreeMap::new()) }
    }

    /// Enters an allocation; its address.
    pub(crate) fn insert(&self, allocation: DeviceAllocation, users: W) -> CUdeviceptr {
        let address = allocation.as_raw();
        lock(&self.books).insert(address, Block { allocation, users });
        // Before its address is anybody's, who has to tell others of it.
        self.count.fetch_add(1, Ordering::Release);
        address
    }

    /// Looks at an allocation; nothing if it is none of these. The program's hook hears of what fails meanwhile after the unlock.
    #[inline]
    pub(crate) fn look<R>(&self, address: CUdeviceptr, at: impl FnOnce(&mut Block<W>) -> R) -> Option<R> {
        if self.count.load(Ordering::Acquire) == 0 {
            None
        } else {
            let _reports = core::LateReports::new();
            lock(&self.books).get_mut(&address).map(at)
        }
    }

    /// Frees an allocation, after `wait` for its users; false if it is none of these. What cannot be waited for or freed stays.
    #[inline]
    pub(crate) fn free<E: From<core::Error>>(
        &self,
        address: CUdeviceptr,
        wait: impl FnOnce(W) -> Result<(), E>,
    ) -> Result<bool, E> {
        if self.count.load(Ordering::Acquire) == 0 { Ok(false) } else { self.free_of_these(address, wait) }
    }

    #[cold]
    fn free_of_these<E: From<core::Error>>(
        &self,
        address: CUdeviceptr,
        wait: impl FnOnce(W) -> Result<(), E>,
    ) -> Result<bool, E> {
        // Not under the lock, and while it is in the books.
        let Some(users) = self.look(address, |block| block.users.clone()) else { return Ok(false) };
        wait(users)?;
        let Some(Block { allocation, users }) = lock(&self.books).remove(&address) else { return Ok(false) };
        if let Err(refused) = allocation.close() {
            lock(&self.books).insert(address, Block { allocation: refused.owner, users });
            return Err(refused.error.into());
        }
        self.count.fetch_sub(1, Ordering::Release);
        Ok(true)
    }

    /// Takes an allocation out of the books, if it is one of these.
    pub(crate) fn remove(&self, address: CUdeviceptr) -> Option<Block<W>> {
        let removed = lock(&self.books).remove(&address)?;
        self.count.fetch_sub(1, Ordering::Release);
        Some(removed)
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// An allocation's address and bytes.
    pub(crate) fn base(&self, address: CUdeviceptr) -> Option<(CUdeviceptr, usize)> {
        self.look(address, |block| (address, block.allocation.bytes()))
    }
}

crate::shown!([W] Uncached<W>, |it| count: it.count);
