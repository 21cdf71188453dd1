//! Errors: what was asked for, what is accepted, and what to do instead.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use cuda_mem_ipc::cuda_mem_pool::caching::OutOfMemoryReport;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Device};
use cuda_mem_ipc::cuda_mem_pool::{self as pool, MempoolId};
use cuda_mem_ipc::symmetric;

use crate::dlpack::DlpackError;

/// The result of whatever can fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Calls a function of the program whose panic must not go on: an owner that is dropped may be behind it, and memory is to stay in the books.
pub(crate) fn no_panic<T>(function: &'static str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    let source = || Arc::new(std::io::Error::other("it panicked"));
    core::catch_panic(call).unwrap_or_else(|| Err(Error::Function { function, source: source() }))
}

/// Why a call failed.
///
/// ```
/// use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_torch::{CudaAllocator, NativeAllocator};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
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
    /// Whether there was not enough memory, of the driver or of a limit: what PyTorch raises as `torch.OutOfMemoryError`.
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
    /// The process was forked.
    #[error("{}", core::Error::Forked)]
    Forked,
}

/// A request that failed for lack of memory, as PyTorch tells its observers. Its text begins as that of PyTorch's error.
///
/// ```
/// use std::sync::Arc;
///
/// use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Driver;
/// use cuda_mem_torch::{CudaAllocator, NativeAllocator};
///
/// let allocator = NativeAllocator::new(Driver::over(cuda_mem_sim::table())?); // in a program: Driver::system()?
/// allocator.init(1)?;
/// allocator.attach_out_of_memory_observer(Arc::new(|event| println!("{} bytes: {event}", event.requested)))?;
/// # Ok::<(), cuda_mem_torch::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The device.
    pub device: Device,
    /// What was asked for, in bytes.
    pub requested: usize,
    /// The most that the allocator may hold: its share of the device's memory, in bytes.
    pub allowed: usize,
    /// What the device has, in bytes.
    pub total: usize,
    /// What the device had free, if it said so, in bytes.
    pub free: Option<usize>,
    /// What is allocated of the allocator, in bytes.
    pub allocated: usize,
}

impl From<&OutOfMemoryReport> for OutOfMemory {
    fn from(report: &OutOfMemoryReport) -> Self {
        Self {
            device: report.device,
            requested: report.requested,
            allowed: report.limit.unwrap_or(report.total),
            total: report.total,
            free: report.free,
            allocated: report.live,
        }
    }
}

/// Who is told of requests that fail for lack of memory.
pub type OutOfMemoryObserver = Arc<dyn Fn(&OutOfMemory) + Send + Sync>;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, requested, allowed, total, free, allocated } = self;
        f.write_str(&out_of_memory(device.as_raw(), *requested, *total, *free))?;
        if allowed < total {
            write!(f, "{} allowed; ", Bytes(*allowed))?;
        }
        write!(f, "{} is allocated here", Bytes(*allocated))
    }
}

/// How PyTorch's error begins.
pub(crate) fn out_of_memory(device: i32, requested: usize, total: usize, free: Option<usize>) -> String {
    let (requested, total) = (Bytes(requested), Bytes(total));
    let free = free.map_or_else(String::new, |free| format!(" of which {} is free", Bytes(free)));
    format!(
        "CUDA out of memory. Tried to allocate {requested}. GPU {device} has a total capacity of {total}{free}. "
    )
}

/// Bytes as PyTorch writes them.
pub(crate) struct Bytes(pub(crate) usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match units.into_iter().find(|(_, shift)| self.0 > 1 << shift) {
            Some((unit, shift)) => write!(f, "{:.2} {unit}", self.0 as f64 / (1u64 << shift) as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

/// The kinds that there are, for errors.
const KINDS: &str = "c (cuMemAlloc), e (mapped)";

/// Why bytes name no memory.
///
/// ```
/// use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Driver;
/// use cuda_mem_torch::{CudaAllocator, Error, NativeAllocator};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let allocator = NativeAllocator::new(driver);
/// allocator.init(1)?;
/// let context = driver.device(0)?.primary_context()?;
/// let wrong = context.with_current(|| allocator.ipc_dev_ptr(b"no handle"))?;
/// assert!(matches!(wrong, Err(Error::Handle(_))));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant names its fields")]
pub enum HandleError {
    /// They end too early, or late.
    #[error("a handle of {what} has {expected} bytes, not {found}")]
    Length { what: &'static str, expected: u64, found: usize },
    /// A later version.
    #[error("the handle is of version {found}, from a later PyTorch; known are the versions up to {known}")]
    Version { found: u8, known: u8 },
    /// A kind that there is not.
    #[error("the handle is of kind {found:#04x}; known are {KINDS}")]
    Kind { found: u8 },
    /// A number in it that cannot be.
    #[error("the handle says {what} {found}; accepted are {accepted}")]
    Value { what: &'static str, found: i128, accepted: &'static str },
    /// The exporter's descriptor was not to be had.
    #[error(
        "{call} for process {pid} failed: {source}, and {socket}; the process must be alive, and this one allowed to take its \
         descriptors (same user, ptrace_scope, container; Linux 5.6 or newer), or to connect to its socket (same user, same \
         network namespace)"
    )]
    Exporter { call: &'static str, pid: i32, source: Arc<std::io::Error>, socket: String },
    /// Somebody else's import or release of the same memory did not end in time.
    #[error("another import or release of the same memory did not end in time")]
    Busy,
}
