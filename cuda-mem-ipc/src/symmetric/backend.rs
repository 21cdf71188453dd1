//! What allocates symmetric memory, the owner of an allocation, and how the ranks tell each other what they are about to do.
//!
//! # Safety
//!
//! Relies on [`SymmetricBackend`]s giving an allocation to one receiver: a [`SymmetricBuffer`] frees the one that it asked for.

#![allow(unsafe_code, reason = "declares unsafe traits, and frees by one")]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::{Device, catch_panic, forked};

use super::{Error, Result, SymmetricMemory};

/// An allocation of a backend. Addresses come again, and this does not: two are equal if they are the same allocation.
/// [`NativeBackend::take`](super::NativeBackend::take) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Allocated {
    /// Where it begins.
    pub address: CUdeviceptr,
    /// Which it is of those that have had the address: no two of a backend have both in common.
    pub serial: u64,
}

/// Allocates memory on every rank alike, and tells each rank where the others have it. The [module](crate::symmetric) has an example.
///
/// # Safety
///
/// Memory that [`alloc`](Self::alloc) gives is its receiver's alone until it is freed or the backend ends, and so many bytes on that device.
/// Owners of memory are made over it.
///
/// All functions of [`NativeBackend`](super::NativeBackend) may be called while streams capture, with memory that no such stream uses.
pub unsafe trait SymmetricBackend: Send + Sync {
    /// What it is chosen by: `"NATIVE"`, `"NVSHMEM"`, `"NCCL"`.
    fn name(&self) -> &str;

    /// Memory on `device`, whatever device is current, that other ranks can reach after a rendezvous. All ranks of a group
    /// allocate the same sizes in the same order.
    ///
    /// # Errors
    ///
    /// Those of the backend. One that needs a group refuses to go without ([`Error::GroupNeeded`]); one that cannot have a group refuses one.
    fn alloc(&self, size: usize, device: Device, group: Option<&str>) -> Result<Allocated>;

    /// The allocation that an address lies in now; an error for one that is none of its own.
    fn find(&self, address: CUdeviceptr) -> Result<Allocated>;

    /// Gives memory back unless it has been already, also if another allocation has its address by now, which stays. It lives on while a
    /// [`SymmetricMemory`] of it does.
    ///
    /// ```compile_fail,E0133
    /// use cuda_mem_ipc::symmetric::{SymmetricBackend, SymmetricBuffer};
    ///
    /// fn free(buffer: &SymmetricBuffer, backend: &dyn SymmetricBackend) {
    ///     let found = backend.find(buffer.as_raw()).expect("the buffer is there");
    ///     let _ = backend.free(found); // another owner's
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the backend, for an allocation that is none of its own any more.
    ///
    /// # Safety
    ///
    /// The allocation is the caller's, and only work that the backend knows of uses it by its address from now on.
    unsafe fn free(&self, allocated: Allocated) -> Result<()>;

    /// Whether it is of no further use, so that another one of its name may take its place. Returns at once.
    fn has_ended(&self) -> bool {
        false
    }

    /// Brings the ranks together over an allocation, by any address in it. Every rank has to call it. Errors name the rank that is at fault.
    fn rendezvous(&self, address: CUdeviceptr, group: Option<&str>) -> Result<Arc<dyn SymmetricMemory>>;
}

/// Symmetric memory of a backend, given back when it is dropped. The [module](super) has an example.
///
/// If the backend has freed it before, with its group, it is of no use any more: its drop frees nothing, also if another allocation has the address by then.
pub struct SymmetricBuffer {
    backend: Arc<dyn SymmetricBackend>,
    allocated: Allocated,
    bytes: usize,
}

impl SymmetricBuffer {
    /// Memory of [`SymmetricBackend::alloc`]. What is in it is undefined. Errors: as there.
    pub fn new(
        backend: &Arc<dyn SymmetricBackend>,
        bytes: usize,
        device: Device,
        group: Option<&str>,
    ) -> Result<Self> {
        let allocated = backend.alloc(bytes, device, group)?;
        Ok(Self { backend: Arc::clone(backend), allocated, bytes })
    }

    /// The backend that it is of.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn SymmetricBackend> {
        &self.backend
    }

    /// Where it is on this rank's device.
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.allocated.address
    }

    /// How many bytes were asked for.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the backend has freed it.
    #[must_use]
    pub fn is_freed(&self) -> bool {
        self.backend.find(self.allocated.address).ok() != Some(self.allocated)
    }

    /// Brings the ranks together over it: [`SymmetricBackend::rendezvous`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Freed`] if the memory was.
    pub fn rendezvous(&self, group: Option<&str>) -> Result<Arc<dyn SymmetricMemory>> {
        let address = self.allocated.address;
        if self.backend.find(address)? != self.allocated {
            return Err(Error::Freed { address });
        }
        self.backend.rendezvous(address, group)
    }
}

impl Drop for SymmetricBuffer {
    fn drop(&mut self) {
        if !forked() {
            // It fails if the backend has freed it already, with its group. A panic goes no further: another one may be under way.
            // SAFETY: this buffer asked for the allocation, and no code can have its address from it any more.
            let _ = catch_panic(|| unsafe { self.backend.free(self.allocated) });
        }
    }
}

crate::impl_debug!(SymmetricBuffer, |it|
    backend: it.backend.name(), address: format_args!("{:#x}", it.allocated.address), bytes: it.bytes
);

/// A way for all ranks to hear what each of them says, once each time. A [`Group`](super::Group) is one, for ranks of a host; a program
/// that has ranks on more hosts brings its own, over whatever its ranks talk over.
///
/// Every rank calls [`all_gather`](Self::all_gather) equally often, in the same order.
///
/// # Safety
///
/// What `all_gather` returns was said by each rank in its own call of the same number: libraries are called on the strength of it, which read
/// memory of all ranks.
pub unsafe trait Exchange: fmt::Debug + Send + Sync {
    /// What the ranks together are called.
    fn name(&self) -> &str;

    /// This process's rank.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world_size(&self) -> usize;

    /// Says `bytes`, at most 16384, and returns what all ranks said, by rank, this one included.
    ///
    /// # Errors
    ///
    /// Those of the exchange when a rank did not say anything within `timeout`, or is gone. What the ranks say is not matched any more then:
    /// the exchange is of no further use.
    fn all_gather(&self, bytes: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>>;

    /// Whether all ranks are sound so far, as far as the exchange knows.
    ///
    /// # Errors
    ///
    /// [`Error::Broken`](super::Error::Broken), or what the exchange has instead, which names the rank.
    fn check(&self) -> Result<()>;
}
