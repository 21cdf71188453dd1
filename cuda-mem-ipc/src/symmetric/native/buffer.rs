//! Memory of a group for Rust programs: typed, without a registry of backends.

use std::marker::PhantomData;
use std::sync::Arc;

use cuda_mem_pool::cuda_mem_core::{DeviceCopy, Error as CoreError, Stream};

use super::Group;
use crate::primitive::{lock, refuse_forked};
use crate::symmetric::{PeerBuffer, Result, SymmetricMemory};

/// The same number of values on every rank of a [`Group`], each rank's within reach of all.
///
/// Dropped, this rank's part is given back behind its uses. All ranks allocate and drop in the same order, as with
/// [`SymmetricBackend`](crate::symmetric::SymmetricBackend).
/// The [module](crate::symmetric) has an example.
pub struct GroupBuffer<T> {
    memory: Arc<dyn SymmetricMemory>,
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
        let allocation = self.inner.alloc(bytes, self.device())?;
        let address = allocation.address();
        let memory = self.clone().rendezvous(allocation, address)?;
        Ok(GroupBuffer { memory, count, values: PhantomData })
    }

    /// Has the later work in `stream` wait for the earlier work of all ranks that call it. The host waits for nothing, but for the other ranks
    /// when it is called first. If a rank dies the stream goes on: ask [`check`](Self::check) before results are used.
    ///
    /// # Errors
    ///
    /// Those of [`SymmetricMemory::barrier`], and of [`alloc`](Self::alloc) when it is called first.
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        refuse_forked()?;
        let allocation = match &mut *lock(&self.inner.barrier) {
            Some(known) => Arc::clone(known),
            none => Arc::clone(none.insert(self.inner.alloc(0, self.device())?)),
        };
        let address = allocation.address();
        self.clone().rendezvous(allocation, address)?.barrier(stream, 0, None)
    }
}

impl<T> GroupBuffer<T> {
    /// How many values each rank has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
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

crate::shown!([T] GroupBuffer<T>, |it| len: it.count);
