//! The pair of functions that a memory pool of symmetric memory is made over.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::{self as core, Device, Stream, Uses};

use super::backends::Inner;
use super::{Backends, DeviceType, Error, Result, SymmetricBackend};

/// The backends that allocate without a group, which a memory pool does not name.
const ADMITTED: [&str; 2] = ["NVSHMEM", "NCCL"];

/// What a memory pool gets its memory from.
pub trait MempoolAllocator: Send + Sync {
    /// Memory on `device`, whatever device is current.
    ///
    /// # Errors
    ///
    /// Those of whoever allocates.
    fn alloc(&self, size: usize, device: Device, stream: &Stream) -> Result<CUdeviceptr>;

    /// Gives memory back, behind the work that still uses it.
    ///
    /// # Errors
    ///
    /// Those of whoever allocates. The memory is as it was then.
    fn free(&self, address: CUdeviceptr, size: usize, device: Device, stream: &Stream) -> Result<()>;
}

/// Symmetric memory for pools: of the backend that is chosen when it is first used, from then on.
///
/// NVSHMEM and NCCL are admitted: they allocate without a group, and refuse one. A backend that needs a group is refused by its
/// name.
///
/// ```
/// use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_ipc::symmetric::{Backends, DeviceType, Error};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let device = driver.device(0)?;
/// let stream = Stream::new(&device.primary_context()?)?;
/// let allocator = Backends::global().get_mempool_allocator(DeviceType::CUDA)?;
/// let refused = allocator.alloc(4096, device, &stream);
/// assert!(matches!(refused, Err(Error::NotForMempools { backend, .. }) if backend == "NATIVE"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SymmetricMempool {
    /// Not a handle: the backends know this allocator too.
    backends: Weak<Mutex<Inner>>,
    device_type: DeviceType,
    backend: OnceLock<Arc<dyn SymmetricBackend>>,
}

impl SymmetricMempool {
    /// An allocator over whichever backend is chosen for the device type when it is first used.
    #[must_use]
    pub fn new(backends: &Backends, device_type: DeviceType) -> Self {
        Self { backends: backends.downgrade(), device_type, backend: OnceLock::new() }
    }

    /// The backend, looked up by the first call that finds one and kept, if it may serve a pool.
    fn backend(&self) -> Result<&dyn SymmetricBackend> {
        let backend = match self.backend.get() {
            Some(backend) => backend,
            None => {
                let device_type = self.device_type;
                let backends = Backends::upgrade(&self.backends).ok_or(Error::NoBackend { device_type })?;
                let found = backends.get_backend(device_type)?;
                self.backend.get_or_init(|| found)
            }
        };
        if !ADMITTED.contains(&backend.name()) {
            return Err(Error::NotForMempools { backend: backend.name().to_owned(), accepted: &ADMITTED });
        }
        Ok(&**backend)
    }
}

impl MempoolAllocator for SymmetricMempool {
    /// The stream is not looked at: the memory is there when this returns.
    fn alloc(&self, size: usize, device: Device, _stream: &Stream) -> Result<CUdeviceptr> {
        Ok(self.backend()?.alloc(size, device, None)?.address)
    }

    /// Waits for `stream`, on the host, and then for the uses that the backend itself knows of. Neither size nor device is
    /// looked at: the backend knows its memory by its address.
    ///
    /// Work on other streams is known if `stream` waits for them, as it is to `cuMemFreeAsync`. There is no wait for the whole
    /// context: it would end the captures of others.
    fn free(&self, address: CUdeviceptr, _size: usize, _device: Device, stream: &Stream) -> Result<()> {
        let backend = self.backend()?;
        if stream.is_capturing()? {
            return Err(core::Error::Capturing { call: "cuda_symm_free" }.into());
        }
        let uses = Uses::new();
        uses.record_stream(stream)?;
        uses.wait()?;
        backend.free(address)
    }
}

impl fmt::Debug for SymmetricMempool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SymmetricMempool")
            .field("device_type", &self.device_type)
            .field("backend", &self.backend.get().map(|backend| backend.name()))
            .finish_non_exhaustive()
    }
}

/// Symmetric memory of `size` bytes for a memory pool, on `device`, whatever device is current: of the program's chosen backend
/// ([`Backends::global`]), which is looked up by the first call and kept. No group is passed.
///
/// # Capture
///
/// As the backend. The stream is not used.
///
/// # Errors
///
/// [`Error::NotForMempools`] for a backend that needs a group, [`Error::NoMempoolAllocator`], those of
/// [`SymmetricBackend::alloc`].
pub fn cuda_symm_alloc(size: usize, device: Device, stream: &Stream) -> Result<CUdeviceptr> {
    Backends::global().get_mempool_allocator(DeviceType::CUDA)?.alloc(size, device, stream)
}

/// Gives memory of [`cuda_symm_alloc`] back, behind the work that `stream` was given.
///
/// # Capture
///
/// [`Capturing`](core::Error::Capturing) if `stream` captures; the memory stays then.
///
/// # Errors
///
/// As [`cuda_symm_alloc`], and those of [`SymmetricBackend::free`].
pub fn cuda_symm_free(address: CUdeviceptr, size: usize, device: Device, stream: &Stream) -> Result<()> {
    Backends::global().get_mempool_allocator(DeviceType::CUDA)?.free(address, size, device, stream)
}
