//! Memory of a group for Rust programs: typed, without a registry of backends.

use std::marker::PhantomData;
use std::sync::Arc;

use cuda_mem_pool::cuda_mem_core::{DeviceCopy, Error as CoreError, Stream, forked};

use super::Group;
use crate::primitive::refuse_forked;
use crate::symmetric::{Allocated, PeerBuffer, Result, SymmetricMemory};

/// The same number of values on every rank of a [`Group`], each rank's within reach of all.
///
/// Dropped, this rank's part is given back behind its uses. All ranks allocate and drop in the same order, as with
/// [`SymmetricBackend`](crate::symmetric::SymmetricBackend).
/// The [module](crate::symmetric) has an example.
pub struct GroupBuffer<T> {
    memory: Arc<dyn SymmetricMemory>,
    allocated: Allocated,
    group: Group,
    count: usize,
    values: PhantomData<fn() -> T>,
}

impl Group {
    /// Memory for `count` values on every rank. Every rank calls it, with the same count, and it returns when all have. What is in it is
    /// undefined.
    ///
    /// # Errors
    ///
    /// Those of [`SymmetricBackend::alloc`](crate::symmetric::SymmetricBackend::alloc) and
    /// [`rendezvous`](crate::symmetric::SymmetricBackend::rendezvous) of [`NativeBackend`](crate::symmetric::NativeBackend).
    pub fn alloc<T: DeviceCopy>(&self, count: usize) -> Result<GroupBuffer<T>> {
        refuse_forked()?;
        let too_large = CoreError::TooLarge { count, size: size_of::<T>() };
        let bytes = count.checked_mul(size_of::<T>()).ok_or(too_large)?;
        let allocated = self.alloc_bytes(bytes, self.device())?;
        match self.meet(allocated) {
            Ok(memory) => {
                Ok(GroupBuffer { memory, allocated, group: self.clone(), count, values: PhantomData })
            }
            Err(error) => {
                let _ = self.take(allocated.address, |found| found.allocated() == allocated);
                Err(error)
            }
        }
    }

    /// Has the later work in `stream` wait for the earlier work of all ranks that call it. The host waits for nothing, but for the other ranks
    /// when it is called first. If a rank dies the stream goes on: ask [`check`](Self::check) before results are used.
    ///
    /// # Errors
    ///
    /// Those of [`SymmetricMemory::barrier`], and of [`alloc`](Self::alloc) when it is called first.
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        refuse_forked()?;
        let allocated = self.barrier_words()?;
        self.meet(allocated)?.barrier(stream, 0, None)
    }

    fn meet(&self, allocated: Allocated) -> Result<Arc<dyn SymmetricMemory>> {
        let address = allocated.address;
        let backend = super::NAME;
        let allocation =
            self.find(address).ok_or(crate::symmetric::Error::UnknownAddress { address, backend })?;
        self.clone().rendezvous(allocation, address)
    }
}

impl<T> GroupBuffer<T> {
    /// How many values each rank has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// A rank's part; [`NotAccepted`](crate::symmetric::Error::NotAccepted) for a rank that there is not.
    pub fn of(&self, rank: usize) -> Result<PeerBuffer> {
        self.memory.get_buffer(rank, 0..self.count.saturating_mul(size_of::<T>()))
    }

    /// All that there is of it: addresses, signal pads and signals between two ranks.
    #[must_use]
    pub fn memory(&self) -> &Arc<dyn SymmetricMemory> {
        &self.memory
    }
}

impl<T> Drop for GroupBuffer<T> {
    fn drop(&mut self) {
        if !forked() {
            // What was freed with its group is nobody's any more.
            let _ = self.group.take(self.allocated.address, |found| found.allocated() == self.allocated);
        }
    }
}

crate::shown!([T] GroupBuffer<T>, |it| len: it.count);
