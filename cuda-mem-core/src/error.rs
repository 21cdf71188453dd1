//! Errors: what was called, what the driver said, and what to do about it where that is known.
//!
//! # Safety
//!
//! Relies on the driver's texts being terminated strings that are part of it, as `cuGetErrorName` documents.

#![allow(unsafe_code, reason = "asks the driver for the texts of its codes")]

use std::ffi::{CStr, c_char};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Range, RangeInclusive};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use cuda_mem_sys::{CUresult, LoadError, MissingFunction, Table};

/// The result of whatever can fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
///
/// ```
/// use cuda_mem_core::{Driver, Error};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let missing = driver.device(99);
/// assert!(matches!(missing, Err(Error::NoSuchDevice { ordinal: 99, count }) if count == driver.device_count()?));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant names its fields")]
pub enum Error {
    /// There is no driver, or it is too old.
    #[error(transparent)]
    Load(#[from] Arc<LoadError>),
    /// The driver lacks a function.
    #[error(transparent)]
    Missing(#[from] MissingFunction),
    /// The driver refused a call.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The process was forked after the driver was initialised: the driver does not work in the child.
    #[error(
        "this process was forked after the CUDA driver was initialised; use CUDA in the parent, or start the child with exec"
    )]
    Forked,
    /// No such device.
    #[error("there is no device {ordinal}: this driver has {count}, numbered from 0")]
    NoSuchDevice { ordinal: usize, count: usize },
    /// A stream is recording a graph, in which this call would keep nothing alive, or which it would end; or an event is that of a capture.
    #[error(
        "{call} is not possible while a stream is capturing a graph, or with an event of a capture: the graph would outlive the memory, or the \
         capture would be lost; call it before or after the capture"
    )]
    Capturing { call: &'static str },
    /// A per-thread default stream was used in another thread, where its handle means another stream.
    #[error(
        "this is the default stream of another thread; take the calling thread's own with Stream::per_thread"
    )]
    WrongThread,
    /// Two things belong to different drivers or contexts.
    #[error("{what} belongs to another context or another driver")]
    ForeignContext { what: &'static str },
    /// A size in bytes does not fit the address space.
    #[error("{count} elements of {size} bytes do not fit the address space")]
    TooLarge { count: usize, size: usize },
    /// Memory is not aligned for what is to be in it.
    #[error("the address {address:#x} is not a multiple of {align}, which the element type needs")]
    Misaligned { address: u64, align: usize },
    /// Source and target of a copy share bytes.
    #[error("the source and the target of a copy overlap")]
    Overlapping,
    /// A range reaches beyond the end, or ends before it starts.
    #[error("there is no range {}..{} of {len} elements", range.start, range.end)]
    OutOfRange { range: Range<usize>, len: usize },
    /// Source and target of a copy differ in length.
    #[error("the source has {source_len} bytes and the target {target_len}; a copy needs equal lengths")]
    LengthMismatch { source_len: usize, target_len: usize },
    /// The memory overlaps pages that are registered already, in a way that cannot be shared.
    #[error("{:#x}..{:#x} overlaps memory that is already registered: {by}", range.start, range.end)]
    AlreadyRegistered { range: Range<usize>, by: RegisteredBy },
    /// Memory was given back to a source that it is not allocated from.
    #[error("no allocation of this source begins at {address:#x}: it is another's, or was freed already")]
    NotAllocated { address: u64 },
    /// Memory was given back with another size than it was allocated with.
    #[error("the memory at {address:#x} was freed as {given} bytes, and was allocated as {allocated}")]
    WrongSize { address: u64, given: usize, allocated: usize },
    /// Memory was to be unpinned that was not pinned by itself: its owner unregisters it.
    #[error(
        "{:#x}..{:#x} is not pinned by pin_memory, or no longer; whoever registered it unregisters it",
        range.start, range.end
    )]
    HeldByOwner { range: Range<usize> },
    /// A copy was to write memory that is only readable.
    #[error("the memory is read-only and cannot be the target of a copy")]
    ReadOnly,
    /// A private file mapping was to be registered read-only. The driver tries for ever to pin such pages (seen on hardware).
    #[error(
        "a private file mapping cannot be registered read-only; map the file shared, or register it for writing"
    )]
    PrivateReadOnly,
    /// The device cannot do this.
    #[error("{device} does not support {what}")]
    Unsupported { device: String, what: &'static str },
    /// The writer of a fence has failed or died, and the fence was completed in its place.
    #[error("the fence was poisoned: its writer ended before the work it stands for was done")]
    Poisoned,
    /// The owner of memory refused a use of it, for a reason of its own.
    #[error(transparent)]
    Owner(Arc<dyn std::error::Error + Send + Sync>),
    /// A fence was to be recorded on a line behind another stream's, and there is no event behind that one to wait for.
    #[error("the last fence of the line is on another stream, without an event that this one could wait for")]
    OtherStream,
    /// The driver refused a stream memory of another device, which has to let the stream's device in.
    #[error(
        "{refusal}. The memory lies on device {memory}, the stream is of device {stream}: use a stream of device {memory}, or let device \
         {stream} reach the memory (Context::enable_peer_access, MemoryPool::set_access)"
    )]
    OtherDevice { memory: i32, stream: i32, refusal: Box<Self> },
    /// The stream cannot be used: its owner has said that it ends ([`Stream::disown`](crate::Stream::disown)), or may have destroyed it
    /// ([`Stream::guest`](crate::Stream::guest)).
    #[error("the stream's owner has destroyed it, or may have: it cannot be used any more")]
    Disowned,
    /// The driver kept refusing to wait for work, which may run on: its memory was not given back.
    #[error("the driver refused for {} s to wait for the work that uses this memory, which stays allocated: {refusal}", waited.as_secs())]
    StillInUse { waited: Duration, refusal: Box<Self> },
    /// A wait took longer than it was allowed to.
    #[error("the wait did not end within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// A value that an option does not take.
    #[error("{option} is {value}; accepted are {} to {}", accepted.start(), accepted.end())]
    NotAccepted { option: &'static str, value: usize, accepted: RangeInclusive<usize> },
    /// A size or an offset that is no whole number of a device's pages, or a size of none.
    #[error("{what} is {value} bytes; accepted are multiples of {granularity}, and no size of 0")]
    NotGranular { what: &'static str, value: usize, granularity: usize },
    /// A value that has to be a power of two, or 0.
    #[error("{what} is {value}; accepted are 0 and powers of two")]
    NotAPowerOfTwo { what: &'static str, value: usize },
    /// Addresses were to be given back that have memory.
    #[error("{bytes} bytes are still mapped in this range of addresses; unmap them first")]
    StillMapped { bytes: usize },
    /// A descriptor from another process is not memory that can be shared safely.
    #[error(
        "the descriptor {why}; accepted is a file in memory (memfd) of whole pages, sealed against shrinking and growing"
    )]
    NotShared { why: &'static str },
    /// The current memory pool is neither the driver's own nor one that was made here, so that its owner may destroy it at any moment.
    #[error(
        "the current memory pool is another library's; name it with MemoryPool::borrow_raw while its owner keeps it"
    )]
    ForeignPool,
    /// Memory of another process is not what it was said to be.
    #[error("{what} of the imported memory is {found}, and was declared as {declared}")]
    NotAsDeclared { what: &'static str, declared: u64, found: u64 },
    /// Imported memory has another size than was declared. The driver maps a handle only as a whole, and does not tell its size.
    #[error("the imported memory does not have the declared size of {bytes} bytes")]
    NotWhole { bytes: usize },
    /// Memory was to be given to another process that was not made for it.
    #[error("this memory cannot be exported as {what}; it has to be created for that")]
    NotShareable { what: &'static str },
    /// What a copy reads from has failed or ended early. Some of the bytes before may have been copied.
    #[error("the source of a copy of {total} bytes failed at byte {at}: {source}")]
    Source { at: u64, total: u64, source: Arc<std::io::Error> },
    /// Some of the memory is not there.
    #[error(
        "{:#x}..{:#x} cannot be registered: nothing is mapped at {:#x}..{:#x}",
        range.start, range.end, hole.start, hole.end
    )]
    NotMapped { range: Range<usize>, hole: Range<usize> },
    /// Some pages are mapped but cannot be had.
    #[error(
        "the system has no page for some address in {:#x}..{:#x}: a mapped file ends before it, or there is no free huge page",
        range.start, range.end
    )]
    NoPage { range: Range<usize> },
    /// There is not enough free memory to bring in what is to be pinned; the system would end a process to have more.
    #[error("{bytes} bytes are not in memory yet, and this system has {available} left")]
    OutOfHostMemory { bytes: usize, available: usize },
    /// The process may not lock that much memory.
    #[error(
        "{bytes} bytes more than the {locked} that are locked already exceed the limit of {limit} bytes on locked memory; \
         raise it (ulimit -l, LimitMEMLOCK=)"
    )]
    LockLimit { bytes: usize, limit: u64, locked: u64, code: CUresult },
    /// A mapping of huge pages must have whole ones.
    #[error("{len} bytes are no whole number of huge pages of {page_size} bytes; ask for a multiple")]
    NotWholePages { len: usize, page_size: usize },
    /// The system has no huge pages of this size.
    #[error("there are no huge pages of {size} bytes; this system has {sizes:?}")]
    NoSuchPageSize { size: usize, sizes: Vec<usize> },
    /// There is no such NUMA node.
    #[error("there is no NUMA node {node}; this system has {nodes:?}")]
    NoSuchNumaNode { node: u32, nodes: Vec<u32> },
    /// The call was cancelled by a [`CancelToken`](crate::host::CancelToken).
    #[error("the call was cancelled")]
    Cancelled,
    /// A transfer was to give its memory back a second time.
    #[error("the transfer was polled to its end before, and has given its memory back")]
    GivenBack,
    /// The system refused a call.
    #[error("{call} failed: {source}")]
    Io { call: &'static str, source: Arc<std::io::Error> },
}

impl Error {
    /// The driver's result code, if the driver refused, or would.
    #[must_use]
    pub fn code(&self) -> Option<CUresult> {
        match self {
            Self::Driver(error) => Some(error.code()),
            Self::AlreadyRegistered { .. } => Some(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
            Self::NotMapped { .. } | Self::NoPage { .. } => Some(CUresult::CUDA_ERROR_INVALID_VALUE),
            Self::LockLimit { code, .. } => Some(*code),
            Self::OtherDevice { refusal, .. } | Self::StillInUse { refusal, .. } => refusal.code(),
            _ => None,
        }
    }

    /// Whether memory that was not given back for this may be later: a capture ends, a thread gives a point, a stream has passed.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Capturing { .. } | Self::WrongThread | Self::Disowned | Self::Timeout(_))
    }

    pub(crate) fn last_os(call: &'static str) -> Self {
        Self::Io { call, source: Arc::new(std::io::Error::last_os_error()) }
    }
}

/// An error, and the owner of the memory that it is about: nothing is lost with it.
///
/// The question mark turns it into its [`Error`] and drops the owner.
///
/// ```
/// use cuda_mem_core::{DeviceBuffer, Driver, Error, Stream, Transfer};
///
/// let stream = Stream::new(&Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?)?; // in a program: Driver::system()?
/// let device = DeviceBuffer::<u8>::zeroed(&stream, 4)?;
/// let refused = Transfer::upload(&stream, vec![1u8, 2, 3], &device.whole()).unwrap_err();
/// assert!(matches!(refused.error, Error::LengthMismatch { .. }));
/// assert_eq!(refused.owner, Some(vec![1, 2, 3]));
/// # Ok::<(), Error>(())
/// ```
pub struct Refused<O> {
    /// Why it was refused.
    pub error: Error,
    /// What was passed in, as it was. An option is none if a device may still use the memory: then it is leaked.
    pub owner: O,
}

impl<O> Refused<O> {
    pub(crate) fn new(error: Error, owner: O) -> Self {
        Self { error, owner }
    }

    /// Has `release` end an owner, whose drop would once more. After an error the owner comes back.
    pub(crate) fn unless_released(owner: O, release: impl FnOnce(&O) -> Result<()>) -> Result<(), Self> {
        match release(&owner) {
            Ok(()) => {
                let _ = ManuallyDrop::new(owner);
                Ok(())
            }
            Err(error) => Err(Self::new(error, owner)),
        }
    }
}

impl<O> From<Refused<O>> for Error {
    fn from(refused: Refused<O>) -> Self {
        refused.error
    }
}

// Not derived: an owner need not be printable for its error to be.
impl_debug!([O] Refused<O>, |it| error: it.error);

impl<O> fmt::Display for Refused<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<O> std::error::Error for Refused<O> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// What registered memory before. [`Error::AlreadyRegistered`] has it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisteredBy {
    /// A registration of ours that cannot be shared: it has other flags, or only a part of the range.
    Ours {
        /// Its addresses.
        range: Range<usize>,
    },
    /// Other code of this process.
    Others,
}

impl fmt::Display for RegisteredBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours { range } => {
                write!(f, "by a registration of {:#x}..{:#x} that cannot be shared", range.start, range.end)
            }
            Self::Others => {
                f.write_str("by other code in this process, with cuMemHostRegister or cuMemHostAlloc")
            }
        }
    }
}

/// A call that the driver refused.
///
/// ```
/// use cuda_mem_core::{DeviceBuffer, Driver, Error, Stream};
///
/// let stream = Stream::new(&Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?)?; // in a program: Driver::system()?
/// let Err(Error::Driver(error)) = DeviceBuffer::<u8>::uninit(&stream, 1 << 60) else { panic!("too much") };
/// assert_eq!((error.name(), error.bytes()), (Some("CUDA_ERROR_OUT_OF_MEMORY"), Some(1 << 60)));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverError {
    call: &'static str,
    code: CUresult,
    /// The driver's own name and text of the code; none if the driver does not know it either.
    name: Option<&'static CStr>,
    text: Option<&'static CStr>,
    bytes: Option<usize>,
}

impl DriverError {
    /// The function that was called.
    #[must_use]
    pub fn call(&self) -> &'static str {
        self.call
    }

    /// The code it returned. A newer driver may return codes that no constant names.
    #[must_use]
    pub fn code(&self) -> CUresult {
        self.code
    }

    /// The driver's name for the code, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    #[must_use]
    pub fn name(&self) -> Option<&'static str> {
        self.name.and_then(|name| name.to_str().ok())
    }

    /// The bytes that were asked for, where the call asks for bytes.
    #[must_use]
    pub fn bytes(&self) -> Option<usize> {
        self.bytes
    }

    #[cold]
    pub(crate) fn new(table: &Table, call: &'static str, code: CUresult) -> Self {
        let (name, text) = describe(table, code);
        Self { call, code, name, text, bytes: None }
    }

    /// Whether the code says that the context is lost, and that nothing runs there any more. Such a code is reported by whatever call
    /// comes next.
    ///
    /// These are the codes of which [the manual](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html) says that the
    /// context cannot be used any more or that every later call returns them (226, 700, 702, 710, 714 to 719, 721, 810), that the context
    /// was destroyed (709), and the two of memory and links after which the driver ends the work of the context by itself
    /// ([214](https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html), [220](https://docs.nvidia.com/deploy/xid-errors/index.html)).
    #[must_use]
    pub fn context_is_lost(&self) -> bool {
        matches!(
            self.code,
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
                | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
                | CUresult::CUDA_ERROR_CONTAINED
                | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
                | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
                | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
                | CUresult::CUDA_ERROR_ASSERT
                | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
                | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
                | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
                | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
                | CUresult::CUDA_ERROR_INVALID_PC
                | CUresult::CUDA_ERROR_LAUNCH_FAILED
                | CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK
                | CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED
        )
    }

    /// Whether the process ends, and the driver with it. What runs then runs on for a while.
    pub(crate) fn is_end(&self) -> bool {
        self.code == CUresult::CUDA_ERROR_DEINITIALIZED
    }

    /// Whether the code says that a capture is in the way.
    pub(crate) fn is_capture(&self) -> bool {
        (CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.0
            ..=CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD.0)
            .contains(&self.code.0)
    }

    pub(crate) fn with_bytes(mut self, bytes: usize) -> Self {
        self.bytes = Some(bytes);
        self
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.call)?;
        if let Some(bytes) = self.bytes {
            write!(f, " of {bytes} bytes")?;
        }
        match (self.name(), self.text.and_then(|text| text.to_str().ok())) {
            (Some(name), Some(text)) => write!(f, " failed: {name} ({}): {text}", self.code.0),
            (Some(name), None) => write!(f, " failed: {name} ({})", self.code.0),
            (None, _) => write!(f, " failed with code {}, which this driver does not name", self.code.0),
        }
    }
}

impl std::error::Error for DriverError {}

/// Adds the size to a driver's refusal.
pub(crate) trait WithBytes {
    fn with_bytes(self, bytes: usize) -> Self;
}

impl<T> WithBytes for Result<T> {
    fn with_bytes(self, bytes: usize) -> Self {
        self.map_err(|error| match error {
            Error::Driver(error) => Error::Driver(error.with_bytes(bytes)),
            other => other,
        })
    }
}

/// A driver's name and text for a code.
fn describe(table: &Table, code: CUresult) -> (Option<&'static CStr>, Option<&'static CStr>) {
    let mut name: *const c_char = ptr::null();
    let mut text: *const c_char = ptr::null();
    if let Ok(get_name) = table.cuGetErrorName() {
        // SAFETY: one pointer to write; any number may be asked for.
        let _ = unsafe { get_name(code, &mut name) };
    }
    if let Ok(get_text) = table.cuGetErrorString() {
        // SAFETY: as above.
        let _ = unsafe { get_text(code, &mut text) };
    }
    let string = |address: *const c_char| {
        // SAFETY: the driver returns null or a terminated string that is part of it, and it is never unloaded.
        (!address.is_null()).then(|| unsafe { CStr::from_ptr(address) })
    };
    (string(name), string(text))
}

/// Calls a driver function by name and turns its code into a result: `call!(driver, cuMemFree(address))`.
///
/// Expands to a call of a foreign function, so it stands in an `unsafe` block.
macro_rules! call {
    ($driver:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $driver.table().$function() {
            Ok(function) => $crate::error::check($driver.table(), stringify!($function), function($($argument),*)),
            Err(missing) => Err($crate::error::Error::Missing(missing)),
        }
    };
}
pub(crate) use call;

/// As `call!`, for functions that tell whether work is done: "not ready" is an answer, and costs no more than the call.
macro_rules! query {
    ($driver:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $driver.table().$function() {
            Ok(function) => $crate::error::check_ready($driver.table(), stringify!($function), function($($argument),*)),
            Err(missing) => Err($crate::error::Error::Missing(missing)),
        }
    };
}
pub(crate) use query;

#[inline]
pub(crate) fn check_ready(table: &Table, call: &'static str, code: CUresult) -> Result<bool> {
    if code == CUresult::CUDA_ERROR_NOT_READY { Ok(false) } else { check(table, call, code).map(|()| true) }
}

#[inline]
pub(crate) fn check(table: &Table, call: &'static str, code: CUresult) -> Result<()> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(DriverError::new(table, call, code).into()) }
}

/// The error, unless it tells of a lost context.
pub(crate) fn expect_lost(error: Error) -> Result<()> {
    match error {
        Error::Driver(error) if error.context_is_lost() => Ok(()),
        error => Err(error),
    }
}
