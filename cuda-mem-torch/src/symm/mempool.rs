//! The pair of functions that a memory pool of symmetric memory is made over.
//!
//! # Safety
//!
//! Relies on [`SymmetricBackend`]s giving memory that is its receiver's until it is freed, which is what their implementers answer for.

#![allow(unsafe_code, reason = "declares and implements an unsafe trait")]

use std::sync::{Arc, Mutex, Weak};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Device, Stream, Uses};
use cuda_mem_ipc::symmetric::{self, Allocated, SymmetricBackend};

use super::backends::{Inner, lock_here};
use super::{Backends, DeviceType};
use crate::error::{RegistryError, Result};

/// The backends that allocate without a group, which a memory pool does not name.
const ADMITTED: [&str; 2] = ["NVSHMEM", "NCCL"];

/// What a memory pool gets its memory from. [`SymmetricMempool`] is one; the [module](super) has an example.
///
/// ```compile_fail,E0200
/// use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Device, Stream};
/// use cuda_mem_torch::{Result, symm::MempoolAllocator};
///
/// /// Gives memory that somebody has.
/// struct Liar(u64);
///
/// impl MempoolAllocator for Liar {
///     fn alloc(&self, _: usize, _: Device, _: &Stream) -> Result<u64> {
///         Ok(self.0)
///     }
///
///     unsafe fn free(&self, _: u64, _: usize, _: Device, _: &Stream) -> Result<()> {
///         Ok(())
///     }
/// }
/// ```
///
/// # Safety
///
/// Memory that [`alloc`](Self::alloc) gives is its receiver's alone until it is freed, and so many bytes on that device, which work that is
/// ordered behind the call on `stream` may use.
pub unsafe trait MempoolAllocator: Send + Sync {
    /// Memory on `device`, whatever device is current, for work of `stream`.
    fn alloc(&self, size: usize, device: Device, stream: &Stream) -> Result<CUdeviceptr>;

    /// Gives memory back, behind the work that still uses it.
    ///
    /// ```compile_fail,E0133
    /// use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{DeviceBuffer, Device, Stream};
    /// use cuda_mem_torch::symm::MempoolAllocator;
    ///
    /// fn free(theirs: &DeviceBuffer<u8>, allocator: &dyn MempoolAllocator, device: Device, stream: &Stream) {
    ///     let _ = allocator.free(theirs.as_raw(), theirs.len(), device, stream);
    /// }
    /// ```
    ///
    /// After an error the memory is as it was.
    ///
    /// # Safety
    ///
    /// The memory is the caller's, as [`alloc`](Self::alloc) gave it, and is given back once. Work that uses it was given to `stream`, or to a
    /// stream that it waits for.
    unsafe fn free(&self, address: CUdeviceptr, size: usize, device: Device, stream: &Stream) -> Result<()>;
}

/// Symmetric memory for pools: of the backend that is chosen when it is first used, from then on. When that has ended
/// ([`SymmetricBackend::has_ended`]) it is of whichever has taken its place, and what came of the one before goes back there.
///
/// NVSHMEM and NCCL are admitted: they allocate without a group, and refuse one. A backend that needs a group is refused by its
/// name. The [module](super) has an example.
pub struct SymmetricMempool {
    /// Not a handle: the backends know this allocator too.
    backends: Weak<Mutex<Inner>>,
    device_type: DeviceType,
    /// Those that were looked up: the last one serves.
    found: Mutex<Vec<Arc<dyn SymmetricBackend>>>,
}

impl SymmetricMempool {
    /// An allocator over whichever backend is chosen for the device type when it is first used.
    #[must_use]
    pub fn new(backends: &Backends, device_type: DeviceType) -> Self {
        Self { backends: Arc::downgrade(&backends.inner), device_type, found: Mutex::default() }
    }

    /// The backend, looked up by the first call that finds one and kept until it has ended, if it may serve a pool.
    fn backend(&self) -> Result<Arc<dyn SymmetricBackend>, RegistryError> {
        let last = lock_here(&self.found)?.last().cloned();
        let backend = match last {
            Some(last) if !last.has_ended() => last,
            // With none in its place, the one that has ended says why it does not serve.
            Some(last) => self.look_up().unwrap_or(last),
            None => self.look_up()?,
        };
        if !ADMITTED.contains(&backend.name()) {
            let backend = backend.name().to_owned();
            return Err(RegistryError::NotForMempools { backend, accepted: &ADMITTED });
        }
        Ok(backend)
    }

    fn look_up(&self) -> Result<Arc<dyn SymmetricBackend>, RegistryError> {
        let device_type = self.device_type;
        let inner = self.backends.upgrade();
        let inner = inner.ok_or(RegistryError::NoBackend { device_type: device_type.0 })?;
        let backend = Backends { inner }.get_backend(device_type)?;
        let mut found = lock_here(&self.found)?;
        if !found.last().is_some_and(|last| Arc::ptr_eq(last, &backend)) {
            found.push(Arc::clone(&backend));
        }
        Ok(backend)
    }

    /// The allocation that begins at an address, and whose it is. Of one that nobody knows the serving backend says so itself.
    fn owner(
        &self,
        serving: &dyn SymmetricBackend,
        address: CUdeviceptr,
    ) -> Result<(Arc<dyn SymmetricBackend>, Allocated)> {
        let found = lock_here(&self.found)?.clone();
        let mut known = found.into_iter().rev().filter_map(|backend| {
            let found = backend.find(address).ok()?;
            Some((backend, found))
        });
        if let Some(owner) = known.find(|(_, found)| found.address == address) {
            return Ok(owner);
        }
        serving.find(address)?;
        Err(symmetric::Error::UnknownAddress { address, backend: "a memory pool" }.into())
    }
}

// SAFETY: memory of a backend is its receiver's, by the contract of `SymmetricBackend`: from the return on, for it is told of no stream.
unsafe impl MempoolAllocator for SymmetricMempool {
    /// The stream is not looked at: the memory is there when this returns.
    fn alloc(&self, size: usize, device: Device, _stream: &Stream) -> Result<CUdeviceptr> {
        Ok(self.backend()?.alloc(size, device, None)?.address)
    }

    /// Waits for `stream`, on the host, and then for the uses that the backend itself knows of. Neither size nor device is
    /// looked at: the backend knows its memory by its address.
    ///
    /// Work on other streams is known if `stream` waits for them, as it is to `cuMemFreeAsync`. There is no wait for the whole
    /// context: it would end the captures of others.
    unsafe fn free(
        &self,
        address: CUdeviceptr,
        _size: usize,
        _device: Device,
        stream: &Stream,
    ) -> Result<()> {
        let serving = self.backend()?;
        if stream.is_capturing()? {
            return Err(core::Error::Capturing { call: "cuda_symm_free" }.into());
        }
        let (backend, allocated) = self.owner(&*serving, address)?;
        let uses = Uses::new();
        uses.record_stream(stream)?;
        uses.wait()?;
        // SAFETY: the caller's promise; its work was waited for.
        Ok(unsafe { backend.free(allocated) }?)
    }
}

crate::impl_debug!(SymmetricMempool, |it|
    device_type: it.device_type, backend: lock_here(&it.found).ok().and_then(|all| Some(all.last()?.name().to_owned()))
);

/// Symmetric memory of `size` bytes for a memory pool, on `device`, whatever device is current: of the program's chosen backend
/// ([`Backends::global`]), which is looked up by the first call and kept until it has ended. No group is passed.
///
/// # Errors
///
/// [`RegistryError::NotForMempools`] for a backend that needs a group; those of [`SymmetricBackend::alloc`].
pub fn cuda_symm_alloc(size: usize, device: Device, stream: &Stream) -> Result<CUdeviceptr> {
    Backends::global().get_mempool_allocator(DeviceType::CUDA)?.alloc(size, device, stream)
}

/// Gives memory of [`cuda_symm_alloc`] back, behind the work that `stream` was given. If that [captures](core::Error::Capturing) it stays.
///
/// # Safety
///
/// As [`MempoolAllocator::free`].
pub unsafe fn cuda_symm_free(
    address: CUdeviceptr,
    size: usize,
    device: Device,
    stream: &Stream,
) -> Result<()> {
    let allocator = Backends::global().get_mempool_allocator(DeviceType::CUDA)?;
    // SAFETY: the caller's promise.
    unsafe { allocator.free(address, size, device, stream) }
}
