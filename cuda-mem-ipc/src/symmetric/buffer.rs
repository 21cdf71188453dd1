//! An allocation that is given back.

use std::fmt;
use std::sync::Arc;

use cuda_mem_pool::cuda_mem_core::forked;
use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;

use super::{Allocated, Error, Result, SymmetricBackend, SymmetricMemory};

/// Symmetric memory of [`Backends::empty`](super::Backends::empty). Dropped, it is given back, but for one with an id, whose
/// address is kept for the next one. The [module](super) has an example.
///
/// If the backend has freed it before, with its group or by its address, it is of no use any more: its drop frees nothing, whoever
/// has the address by then.
pub struct SymmetricBuffer {
    backend: Arc<dyn SymmetricBackend>,
    allocated: Allocated,
    bytes: usize,
    /// Given back when it goes, in place of the memory.
    lease: Option<Box<dyn Send + Sync>>,
}

impl SymmetricBuffer {
    pub(super) fn new(
        backend: Arc<dyn SymmetricBackend>,
        allocated: Allocated,
        bytes: usize,
        lease: Option<Box<dyn Send + Sync>>,
    ) -> Self {
        Self { backend, allocated, bytes, lease }
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
        if self.lease.is_none() && !forked() {
            // It fails if the backend has freed it already, with its group.
            let _ = self.backend.free_if(self.allocated);
        }
    }
}

impl fmt::Debug for SymmetricBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SymmetricBuffer")
            .field("backend", &self.backend.name())
            .field("address", &format_args!("{:#x}", self.allocated.address))
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
