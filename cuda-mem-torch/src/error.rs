//! Errors: what was asked for, what is accepted, and what to do instead.

use std::error::Error as StdError;
use std::sync::Arc;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Device};
use cuda_mem_ipc::cuda_mem_pool::{self as pool, MempoolId};
use cuda_mem_ipc::symmetric;

use crate::allocator::OutOfMemory;
use crate::dlpack::DlpackError;

use crate::ipc::HandleError;

/// The result of whatever can fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
///
/// ```
/// use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_torch::{CudaAllocator, NativeAllocator};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let device = driver.device(0)?;
/// let allocator = NativeAllocator::new(driver);
/// allocator.init(1)?;
/// let refused = allocator.malloc(1 << 45, device, &Stream::new(&device.primary_context()?)?); // 32 TiB
/// assert!(refused.unwrap_err().is_out_of_memory());
/// # Ok::<(), cuda_mem_torch::Error>(())
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant names its fields")]
pub enum Error {
    /// The driver, or the layer over it, refused.
    #[error(transparent)]
    Core(#[from] core::Error),
    /// The caching allocator refused. A request that failed for lack of memory is `DeviceOutOfMemory` in it.
    #[error(transparent)]
    Pool(#[from] pool::Error),
    /// Symmetric memory refused.
    #[error(transparent)]
    Symmetric(#[from] symmetric::Error),
    /// The registry of symmetric memory refused.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A pluggable allocator's functions have no more memory, or its memory fraction is used up.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// A function that a pluggable allocator was made of failed.
    #[error("the allocator's {function} function failed: {source}")]
    Function { function: &'static str, source: Arc<dyn StdError + Send + Sync> },
    /// A function gave an address that it gave before and that was not freed since.
    #[error(
        "the allocator's alloc function gave {address:#x}, which it gave before and which was not freed since"
    )]
    GivenTwice { address: u64 },
    /// Nothing was allocated at an address, or it was freed already.
    #[error("{address:#x} is no allocation of this allocator: it is another's, or was freed already")]
    UnknownPointer { address: u64 },
    /// A device that the allocator was not initialised for.
    #[error(
        "{device:?} is not initialised: init was called for {count} devices; call init with the number of devices"
    )]
    NotInitialized { device: Device, count: usize },
    /// More devices than are used in one process.
    #[error("init was called for {asked} devices; at the most {most} are used")]
    TooManyDevices { asked: usize, most: usize },
    /// Another allocator cannot take over.
    #[error(
        "the allocator {name:?} is initialised already and stays; change the allocator before the first use of CUDA memory"
    )]
    AlreadyInitialized { name: &'static str },
    /// Private pools are the program's own by one of its functions, and this call is not.
    #[error(
        "set_begin_allocate_to_pool was called, so that pools are the program's own, but {setter} was not: pool {id} cannot be handled"
    )]
    NoPoolFunction { setter: &'static str, id: MempoolId },
    /// A checkpoint is of another device.
    #[error("the checkpoint is of {of:?}, not of {asked:?}")]
    OtherDevice { of: Device, asked: Device },
    /// Bytes that name no memory of another process, or memory that cannot be shared.
    #[error(transparent)]
    Handle(#[from] HandleError),
    /// A tensor that cannot be taken or given.
    #[error(transparent)]
    Dlpack(#[from] DlpackError),
}

impl Error {
    /// Whether there was not enough memory, whoever says so: what PyTorch raises as `torch.OutOfMemoryError`.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory(_) => true,
            Self::Pool(error) => error.is_out_of_memory(),
            Self::Core(error) => error.code() == Some(core::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY),
            _ => false,
        }
    }
}

/// Why the registry refused. [`symm`](crate::symm) has an example.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant names its fields")]
pub enum RegistryError {
    /// No backend of this name is registered.
    #[error("no backend for {device_type} is called {name:?}; there are {known:?}")]
    UnknownBackend { device_type: &'static str, name: String, known: Vec<String> },
    /// A backend of this name is registered.
    #[error("there is a backend {name:?} for {device_type} already")]
    BackendExists { device_type: &'static str, name: String },
    /// No backend is registered for the device type.
    #[error("no backend is registered for {device_type}")]
    NoBackend { device_type: &'static str },
    /// The backend was used, and cannot be another one from then on.
    #[error("the backend for {device_type} is {used:?} and was used: it cannot be changed any more")]
    BackendInUse { device_type: &'static str, used: String },
    /// The backend does not serve a memory pool.
    #[error("{backend} allocates for a group, which a memory pool does not name; accepted are {accepted:?}")]
    NotForMempools { backend: String, accepted: &'static [&'static str] },
    /// No allocator of memory pools is registered for the device type.
    #[error("no allocator for memory pools is registered for {device_type}; there are those for {known:?}")]
    NoMempoolAllocator { device_type: &'static str, known: Vec<&'static str> },
    /// One is registered.
    #[error("an allocator for memory pools is registered for {device_type} already")]
    MempoolAllocatorExists { device_type: &'static str },
    /// The persistent allocation is alive.
    #[error("persistent allocation {id} is alive; drop it before it is asked for again")]
    PersistentAlive { id: u64 },
    /// The persistent allocation is another one.
    #[error("persistent allocation {id} is {was}, and was asked for as {asked}")]
    PersistentDiffers { id: u64, was: String, asked: String },
}
