//! Codes, and the message of the thread's last failure.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use cuda_mem_ipc::cuda_mem_pool::Error;
use cuda_mem_ipc::cuda_mem_pool::caching::SleepError;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::host::raw::PinError;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUresult;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Error as CoreError, forked};
use cuda_mem_ipc::cuda_mem_pool::segments::PoolError;

use super::pointers::c_text;
use super::source::SourceFailed;
use crate::HandleError;

/// All went well.
pub const CUDA_MEM_TORCH_OK: c_int = 0;
/// An argument is not what is accepted.
pub const CUDA_MEM_TORCH_INVALID_ARGUMENT: c_int = 1;
/// There is no more memory.
pub const CUDA_MEM_TORCH_OUT_OF_MEMORY: c_int = 2;
/// No block of this library begins at the address.
pub const CUDA_MEM_TORCH_NOT_OURS: c_int = 3;
/// The process was forked from one that had the driver.
pub const CUDA_MEM_TORCH_FORKED: c_int = 4;
/// The driver refused; [`cuda_mem_torch_last_driver_code`] says with what.
pub const CUDA_MEM_TORCH_DRIVER: c_int = 5;
/// A private pool is not as the call needs it, for a reason that has no code of its own.
pub const CUDA_MEM_TORCH_POOL: c_int = 6;
/// A stream captures a graph, and the call would have disturbed that.
pub const CUDA_MEM_TORCH_CAPTURING: c_int = 7;
/// The system refused.
pub const CUDA_MEM_TORCH_SYSTEM: c_int = 8;
/// The device or the memory cannot do this.
pub const CUDA_MEM_TORCH_UNSUPPORTED: c_int = 9;
/// Called from a function that was passed in, where it cannot be.
pub const CUDA_MEM_TORCH_IN_CALLBACK: c_int = 10;
/// A defect of this library.
pub const CUDA_MEM_TORCH_INTERNAL: c_int = 11;
/// A pool's source failed, and said so by [`cuda_mem_torch_source_failed`](super::cuda_mem_torch_source_failed).
pub const CUDA_MEM_TORCH_SOURCE_FAILED: c_int = 12;
/// A tag is not as the call needs it: it sleeps, is awake, or another call is at work with it.
pub const CUDA_MEM_TORCH_SLEEP: c_int = 13;
/// Allocations go to the pool already.
pub const CUDA_MEM_TORCH_POOL_BEGUN: c_int = 14;
/// No allocations go to the pool.
pub const CUDA_MEM_TORCH_POOL_NOT_BEGUN: c_int = 15;
/// Streams still use blocks of the pool that were freed.
pub const CUDA_MEM_TORCH_POOL_PENDING: c_int = 16;
/// There is no such pool.
pub const CUDA_MEM_TORCH_POOL_UNKNOWN: c_int = 17;
/// The pool's last use has ended.
pub const CUDA_MEM_TORCH_POOL_RELEASED: c_int = 18;

/// Why a call failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) code: c_int,
    pub(super) driver: c_int,
    pub(super) message: String,
}

/// Told without a lock and without memory of its own.
const FORKED: &CStr =
    c"the process was forked from one that had the driver: start processes that use CUDA with spawn";

/// The message and the driver's code of a failure.
type Last = (Option<CString>, c_int);

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new((None, 0)) };
}

/// Looks at the calling thread's last failure. A thread at its end has none, nor has a forked child.
fn look<R>(at: impl FnOnce(&Last) -> R) -> Option<R> {
    if forked() {
        return None;
    }
    LAST.try_with(|last| Some(at(&*last.try_borrow().ok()?))).ok().flatten()
}

impl Failure {
    pub(super) fn new(code: c_int, message: impl Into<String>) -> Self {
        Self { code, driver: 0, message: message.into() }
    }

    pub(super) fn argument(message: impl Into<String>) -> Self {
        Self::new(CUDA_MEM_TORCH_INVALID_ARGUMENT, message)
    }

    /// What came of `call`, which went past the layers below.
    pub(super) fn of_driver(call: &str, code: CUresult) -> Result<(), Self> {
        if code == CUresult::CUDA_SUCCESS {
            return Ok(());
        }
        let driver = code.0.cast_signed();
        Err(Self { driver, ..Self::new(CUDA_MEM_TORCH_DRIVER, format!("{call} failed with {driver}")) })
    }

    fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::new(
            CUDA_MEM_TORCH_INTERNAL,
            format!("a defect of cuda-mem: {}", text.unwrap_or("no reason was given")),
        )
    }

    #[cold]
    fn keep(self) -> c_int {
        // A thread at its end keeps nothing.
        let _ = LAST.try_with(|last| last.replace((Some(c_text(&self.message)), self.driver)));
        self.code
    }
}

/// Runs the body of a function that C calls.
#[inline]
pub(super) fn entry(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    entry_of_code(|| kept(body()))
}

/// As [`entry`], of a body that keeps its failures by [`kept`]: nothing of them is in the way of calls that are made all the time.
#[inline(always)]
pub(super) fn entry_of_code(body: impl FnOnce() -> c_int) -> c_int {
    // Before any lock, which a thread of the parent may have held.
    if forked() {
        return CUDA_MEM_TORCH_FORKED;
    }
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Failure::of_panic(&*panic).keep())
}

/// The code of a result, whose failure the thread keeps.
pub(super) fn kept(result: Result<(), Failure>) -> c_int {
    result.map_or_else(Failure::keep, |()| CUDA_MEM_TORCH_OK)
}

/// What to do next, of the failure that the calling thread met last: text in UTF-8, which stays until its next one. Empty
/// before the first. In a forked child it says so, whatever the parent had met.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_last_error() -> *const c_char {
    if forked() {
        return FORKED.as_ptr();
    }
    look(|(message, _)| Some(message.as_deref()?.as_ptr())).flatten().unwrap_or(c"".as_ptr())
}

/// The driver's code (`CUresult`) of that failure; 0 if the driver refused nothing.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_last_driver_code() -> c_int {
    look(|(_, driver)| *driver).unwrap_or(0)
}

/// The kind of an error below the allocators. Only what the caller could have passed otherwise is an argument.
fn code_of(error: &CoreError) -> c_int {
    match error {
        CoreError::Forked => CUDA_MEM_TORCH_FORKED,
        CoreError::Capturing { .. } => CUDA_MEM_TORCH_CAPTURING,
        CoreError::NotAllocated { .. } => CUDA_MEM_TORCH_NOT_OURS,
        CoreError::Driver(_) => CUDA_MEM_TORCH_DRIVER,
        CoreError::TooLarge { .. } | CoreError::OutOfHostMemory { .. } => CUDA_MEM_TORCH_OUT_OF_MEMORY,
        CoreError::Io { source, .. } if source.get_ref().is_some_and(|cause| cause.is::<SourceFailed>()) => {
            CUDA_MEM_TORCH_SOURCE_FAILED
        }
        CoreError::Load(_) | CoreError::Io { .. } | CoreError::LockLimit { .. } => CUDA_MEM_TORCH_SYSTEM,
        CoreError::Missing(_) | CoreError::Unsupported { .. } => CUDA_MEM_TORCH_UNSUPPORTED,
        _ => CUDA_MEM_TORCH_INVALID_ARGUMENT,
    }
}

impl From<CoreError> for Failure {
    fn from(error: CoreError) -> Self {
        let code = code_of(&error);
        let driver = error.code().map_or(0, |code| code.0.cast_signed());
        Self { driver, ..Self::new(code, error.to_string()) }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Core(_) if error.is_out_of_memory() => CUDA_MEM_TORCH_OUT_OF_MEMORY,
            Error::Core(error) => code_of(error),
            Error::Capturing => CUDA_MEM_TORCH_CAPTURING,
            Error::NoSuchPool { .. } => CUDA_MEM_TORCH_DRIVER,
            Error::OutOfMemory { .. } | Error::DeviceOutOfMemory(_) | Error::TooLarge { .. } => {
                CUDA_MEM_TORCH_OUT_OF_MEMORY
            }
            Error::UnknownAddress { .. } => CUDA_MEM_TORCH_NOT_OURS,
            Error::Pool(PoolError::AlreadyRouted { .. }) => CUDA_MEM_TORCH_POOL_BEGUN,
            Error::Pool(PoolError::NotRouted { .. }) => CUDA_MEM_TORCH_POOL_NOT_BEGUN,
            Error::Pool(PoolError::Pending { .. }) => CUDA_MEM_TORCH_POOL_PENDING,
            Error::Pool(PoolError::Unknown { .. }) => CUDA_MEM_TORCH_POOL_UNKNOWN,
            Error::Pool(PoolError::Released { .. }) => CUDA_MEM_TORCH_POOL_RELEASED,
            Error::Pool(_) | Error::OwnSource { .. } => CUDA_MEM_TORCH_POOL,
            Error::InCallback => CUDA_MEM_TORCH_IN_CALLBACK,
            Error::Sleep(SleepError::NoMemory { .. }) => CUDA_MEM_TORCH_OUT_OF_MEMORY,
            Error::Sleep(SleepError::NoBackup { .. }) => CUDA_MEM_TORCH_SYSTEM,
            Error::Sleep(SleepError::NotOfTag { .. }) => CUDA_MEM_TORCH_NOT_OURS,
            Error::Sleep(_) => CUDA_MEM_TORCH_SLEEP,
            Error::Unsupported { .. } | Error::NoPeerAccess { .. } | Error::NeedsDriver { .. } => {
                CUDA_MEM_TORCH_UNSUPPORTED
            }
            _ => CUDA_MEM_TORCH_INVALID_ARGUMENT,
        };
        let driver = error.driver_error().map_or(0, |error| error.code().0.cast_signed());
        Self { driver, ..Self::new(code, error.to_string()) }
    }
}

impl From<PinError> for Failure {
    fn from(error: PinError) -> Self {
        let driver = error.code().map_or(0, |code| code.0.cast_signed());
        Self { driver, ..Self::new(CUDA_MEM_TORCH_DRIVER, error.to_string()) }
    }
}

impl Failure {
    /// Why there is no pinned memory, as CUDA's runtime says it: `cudaHostAlloc` has the code of the driver.
    pub(super) fn without_pinned(error: Error) -> Self {
        if matches!(error, Error::OutOfMemory { .. } | Error::TooLarge { .. }) {
            let driver = CUresult::CUDA_ERROR_OUT_OF_MEMORY.0.cast_signed();
            return Self { driver, ..Self::new(CUDA_MEM_TORCH_DRIVER, error.to_string()) };
        }
        error.into()
    }
}

impl From<HandleError> for Failure {
    fn from(error: HandleError) -> Self {
        let code = match error {
            HandleError::Version { .. } | HandleError::Kind { .. } => CUDA_MEM_TORCH_UNSUPPORTED,
            HandleError::Exporter { .. } | HandleError::Busy => CUDA_MEM_TORCH_SYSTEM,
            HandleError::Length { .. } | HandleError::Value { .. } => CUDA_MEM_TORCH_INVALID_ARGUMENT,
        };
        Self::new(code, error.to_string())
    }
}
