//! A driver: a table of functions, initialised.
//!
//! # Safety
//!
//! Relies on the contract of [`cuda_mem_sys::Table`]: each accessor gives a function of exactly its type, valid for the
//! life of the process.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use cuda_mem_sys::{CUcontext, CUresult, Table};

use crate::constants::Constants;
use crate::deferred::{Deferred, catch_panic};
use crate::device::Device;
use crate::error::{DriverError, Error, Result, call};
use crate::fork;
use crate::host::registry::Registry;
use crate::idle::WhenIdle;
use crate::late_reports;

/// An initialised CUDA driver. Copies are handles to the same one.
///
/// Several drivers can live in one process: the system's ([`Driver::system`]) and any number over tables of their own
/// ([`Driver::over`]), such as simulated ones. What belongs to one is never passed to another.
///
/// ```
/// use cuda_mem_core::Driver;
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// println!("CUDA {}, {} devices", driver.version(), driver.device_count()?);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Driver {
    state: &'static State,
}

/// What one driver has, for the life of the process.
struct State {
    table: &'static Table,
    release_failures: AtomicU64,
    on_release_failure: RwLock<Option<Arc<ReleaseFailureHook>>>,
    registry: Registry,
    deferred: Deferred,
    when_idle: WhenIdle,
    constants: Constants,
    /// Milliseconds for which a wait is repeated that the driver refuses.
    patience: AtomicU64,
}

/// For so many milliseconds a wait is repeated that the driver refuses, before its work counts as running for ever.
const PATIENCE: u64 = 60_000;

type ReleaseFailureHook = dyn Fn(&Error) + Send + Sync;

/// Every driver that was initialised, so that one library gives one driver.
static DRIVERS: Mutex<Vec<&'static State>> = Mutex::new(Vec::new());

impl Driver {
    /// The system's driver, loaded and initialised at the first call.
    ///
    /// [`Table::system`] says which library that is. Wraps
    /// [`cuInit`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__INITIALIZE.html).
    ///
    /// # Errors
    ///
    /// [`Error::Load`] without a driver of CUDA 12.2 or newer, [`Error::Driver`] if it does not initialise (no device, say),
    /// [`Error::Forked`] in a forked child. A failure is not remembered: the next call tries again.
    pub fn system() -> Result<Self> {
        refuse_forked()?;
        Self::over(Table::system().map_err(Arc::new)?)
    }

    /// The driver behind a table, initialised if it was not yet. All tables of one library ([`Table::library`]) give the same driver,
    /// which calls through the first of them.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if it does not initialise, [`Error::Forked`] in a forked child.
    pub fn over(table: &'static Table) -> Result<Self> {
        refuse_forked()?;
        let initialising = fork::Initialising::begin();
        if let Some(known) = Self::known(&drivers(), table) {
            return Ok(known);
        }
        // Not under the lock: a table may look its functions up through another driver.
        let init = table.cuInit()?;
        // SAFETY: cuInit may be called at any time with flags 0, and more than once.
        let code = unsafe { init(0) };
        if code != CUresult::CUDA_SUCCESS {
            return Err(DriverError::new(table, "cuInit", code).into());
        }
        let mut drivers = drivers();
        if let Some(known) = Self::known(&drivers, table) {
            return Ok(known);
        }
        let state = Box::new(State {
            table,
            release_failures: AtomicU64::new(0),
            on_release_failure: RwLock::new(None),
            registry: Registry::default(),
            deferred: Deferred::default(),
            when_idle: WhenIdle::default(),
            constants: Constants::default(),
            patience: AtomicU64::new(PATIENCE),
        });
        let driver = Self { state: Box::leak(state) };
        drivers.push(driver.state);
        initialising.succeeded();
        Ok(driver)
    }

    /// What it says of its devices and never says otherwise.
    pub(crate) fn constants(self) -> &'static Constants {
        &self.state.constants
    }

    fn known(drivers: &[&'static State], table: &'static Table) -> Option<Self> {
        // Only tests know many, and ask for the last one.
        let library = table.library();
        drivers.iter().rev().find(|state| state.table.library() == library).map(|state| Self { state })
    }

    /// The functions of this driver.
    #[inline]
    #[must_use]
    pub fn table(self) -> &'static Table {
        self.state.table
    }

    /// The CUDA version of this driver: 1000 × major + 10 × minor.
    #[must_use]
    pub fn version(self) -> i32 {
        self.state.table.version()
    }

    /// How many devices there are.
    ///
    /// Wraps [`cuDeviceGetCount`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], [`Error::Forked`].
    pub fn device_count(self) -> Result<usize> {
        refuse_forked()?;
        let mut count: c_int = 0;
        // SAFETY: one int to write.
        unsafe { call!(self, cuDeviceGetCount(&mut count)) }?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The device with this number, from 0.
    ///
    /// Wraps [`cuDeviceGet`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html).
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchDevice`], [`Error::Driver`], [`Error::Forked`].
    pub fn device(self, ordinal: usize) -> Result<Device> {
        let count = self.device_count()?;
        let number = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
        let number = number.ok_or(Error::NoSuchDevice { ordinal, count })?;
        let mut raw = 0;
        // SAFETY: one device number to write.
        unsafe { call!(self, cuDeviceGet(&mut raw, number)) }?;
        Ok(Device::new(self, raw))
    }

    /// All devices.
    ///
    /// # Errors
    ///
    /// As [`Driver::device`].
    pub fn devices(self) -> Result<Vec<Device>> {
        (0..self.device_count()?).map(|ordinal| self.device(ordinal)).collect()
    }

    /// The device of the context that is current in the calling thread; none if no context is.
    ///
    /// Wraps [`cuCtxGetCurrent` and `cuCtxGetDevice`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CTX.html).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], [`Error::Forked`].
    pub fn current_device(self) -> Result<Option<Device>> {
        refuse_forked()?;
        let mut context: CUcontext = ptr::null_mut();
        // SAFETY: one handle to write.
        unsafe { call!(self, cuCtxGetCurrent(&mut context)) }?;
        if context.is_null() {
            return Ok(None);
        }
        let mut raw = 0;
        // SAFETY: one device number to write; a context is current.
        unsafe { call!(self, cuCtxGetDevice(&mut raw)) }?;
        Ok(Some(Device::new(self, raw)))
    }

    /// How many releases have failed so far: frees, unregistrations and destructions in `Drop`, which has nobody to
    /// return an error to.
    #[must_use]
    pub fn release_failures(self) -> u64 {
        self.state.release_failures.load(Ordering::Relaxed)
    }

    /// Has `hook` called for each release that fails from now on, in the thread where it fails: at once, or when the locks are gone that
    /// the thread has ([`LateReports`](crate::LateReports)), so that it may ask allocators what they have. It replaces an earlier hook.
    ///
    /// The hook must not panic: a panic in it is swallowed, because it would come out of a `Drop`.
    pub fn on_release_failure(self, hook: impl Fn(&Error) + Send + Sync + 'static) {
        let hook: Arc<ReleaseFailureHook> = Arc::new(hook);
        let mut slot = self.state.on_release_failure.write().unwrap_or_else(PoisonError::into_inner);
        let replaced = slot.replace(hook);
        drop(slot);
        // Outside the lock: what the old hook has captured may release something, and fail.
        drop(replaced);
    }

    /// How long a wait is repeated that the driver refuses, a minute as a rule: for tests of what comes then.
    #[doc(hidden)]
    pub fn set_patience(self, patience: Duration) {
        let milliseconds = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        self.state.patience.store(milliseconds, Ordering::Relaxed);
    }

    pub(crate) fn patience(self) -> Duration {
        Duration::from_millis(self.state.patience.load(Ordering::Relaxed))
    }

    /// Runs a release, twice if the first try fails by itself.
    ///
    /// A code that tells of a lost context may be that of earlier work, returned by a call that did act: then a second try
    /// would release something else. Any other code is the call's own, and it did nothing.
    pub(crate) fn attempt(self, mut release: impl FnMut() -> Result<()>) -> Result<()> {
        match release() {
            Err(Error::Driver(error)) if !error.context_is_lost() && !error.is_end() => release(),
            result => result,
        }
    }

    /// As [`Driver::attempt`], for a `Drop`, which has nobody to return an error to. True if it worked.
    pub(crate) fn release(self, release: impl FnMut() -> Result<()>) -> bool {
        let released = self.attempt(release);
        if let Err(error) = &released {
            self.report_release_failure(error);
        }
        released.is_ok()
    }

    /// Counts a release that failed, and tells the hook: for owners above this crate, whose `Drop` has nobody to return an error
    /// to. Nothing in a forked child and at the end of the process. A thread with [`LateReports`](crate::LateReports) tells later.
    #[cold]
    pub fn report_release_failure(self, error: &Error) {
        if fork::forked() || error.code() == Some(CUresult::CUDA_ERROR_DEINITIALIZED) {
            // A child has nothing to release; at process exit the driver gave everything back before us.
            return;
        }
        self.state.release_failures.fetch_add(1, Ordering::Relaxed);
        if !late_reports::put_off(self, error) {
            self.tell_release_failure(error);
        }
    }

    /// Tells the hook.
    pub(crate) fn tell_release_failure(self, error: &Error) {
        let hook = self.state.on_release_failure.read().unwrap_or_else(PoisonError::into_inner).clone();
        // Of a panic nobody is left to be told: the hook's documentation forbids it.
        catch_panic(|| {
            #[cfg(feature = "tracing")]
            tracing::warn!(%error, "a release failed");
            if let Some(hook) = hook {
                hook(error);
            }
        });
    }

    /// What waits to be released.
    pub(crate) fn deferred(self) -> &'static Deferred {
        &self.state.deferred
    }

    /// What waits until no stream is busy.
    pub(crate) fn when_idle(self) -> &'static WhenIdle {
        &self.state.when_idle
    }

    /// The host memory that is registered with this driver through this crate.
    pub(crate) fn registry(self) -> &'static Registry {
        &self.state.registry
    }
}

/// Every driver that was initialised.
pub(crate) fn all() -> Vec<Driver> {
    drivers().iter().map(|state| Driver { state }).collect()
}

fn drivers() -> MutexGuard<'static, Vec<&'static State>> {
    DRIVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A driver's name and text for a code.
pub(crate) fn describe(table: &Table, code: CUresult) -> (Option<&'static CStr>, Option<&'static CStr>) {
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

/// The first line of every call that returns a result.
#[inline]
pub(crate) fn refuse_forked() -> Result<()> {
    if fork::forked() { Err(Error::Forked) } else { Ok(()) }
}

impl PartialEq for Driver {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.state, other.state)
    }
}

impl Eq for Driver {}

impl Hash for Driver {
    fn hash<H: Hasher>(&self, state: &mut H) {
        ptr::hash(self.state, state);
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("version", &self.version())
            .field("release_failures", &self.release_failures())
            .finish_non_exhaustive()
    }
}
