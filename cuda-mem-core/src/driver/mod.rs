//! A driver: a table of functions, initialised.
//!
//! # Safety
//!
//! Relies on the contract of [`cuda_mem_sys::Table`]: each accessor gives a function of exactly its type, valid for the
//! life of the process.

#![allow(unsafe_code, reason = "calls driver functions")]

mod context;
pub(crate) mod deferred;
mod device;
mod event;
pub(crate) mod fork;
mod handle;
mod hooks;

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::hash::{Hash, Hasher};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

use cuda_mem_sys::{CUcontext, CUresult, LibraryId, Table};

use crate::error::{DriverError, Error, Result, call};

pub(crate) use context::{Bound, Relaxed, destroy_stream, refusal_in_host_function};
pub use context::{Context, MemoryInfo};
use deferred::Deferred;
use device::Constants;
pub use device::Device;
pub use event::Event;
pub(crate) use handle::{Handle, opaque};
use hooks::Failures;
pub use hooks::LateReports;
pub(crate) use hooks::are_late;

/// An initialised CUDA driver. Copies are handles to the same one.
///
/// Several drivers can live in one process: the system's ([`Driver::system`]) and any number over tables of their own
/// ([`Driver::over`]), such as simulated ones. What belongs to one is never passed to another.
///
/// ```
/// use cuda_mem_core::Driver;
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// println!("CUDA {}, {} devices", driver.version(), driver.device_count()?);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Driver {
    state: &'static State,
}

/// What a module above this one keeps for each driver, so that this one need not know it.
pub(crate) trait Service: Any + Default + Send + Sync {
    /// Its place, below [`SERVICES`], which no other service has.
    const SLOT: usize;
}

/// How many services there are.
const SERVICES: usize = 2;

/// What one driver has, for the life of the process.
struct State {
    table: &'static Table,
    failures: Failures,
    deferred: Deferred,
    services: [OnceLock<Box<dyn Any + Send + Sync>>; SERVICES],
    constants: Constants,
    /// Milliseconds for which a wait is repeated that the driver refuses.
    patience: AtomicU64,
}

/// For so many milliseconds a wait is repeated that the driver refuses, before its work counts as running for ever.
const PATIENCE: u64 = 60_000;

/// Every driver that was initialised, so that one library gives one driver.
static DRIVERS: Mutex<BTreeMap<LibraryId, &'static State>> = Mutex::new(BTreeMap::new());

impl Driver {
    /// The system's driver, loaded and initialised at the first call.
    ///
    /// [`Table::system`] says which library that is. Wraps
    /// [`cuInit`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__INITIALIZE.html).
    ///
    /// # Errors
    ///
    /// [`Error::Load`] without a driver of CUDA 12.2 or newer, [`Error::Driver`] if it does not initialise (no device, say). A failure is not
    /// remembered: the next call tries again.
    pub fn system() -> Result<Self> {
        refuse_forked()?;
        Self::over(Table::system().map_err(Arc::new)?)
    }

    /// The driver behind a table, initialised if it was not yet. All tables of one library ([`Table::library`]) give the same driver,
    /// which calls through the first of them.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if it does not initialise.
    pub fn over(table: &'static Table) -> Result<Self> {
        refuse_forked()?;
        let initialising = fork::Initialising::begin();
        let library = table.library();
        if let Some(state) = lock(&DRIVERS).get(&library) {
            return Ok(Self { state });
        }
        // Not under the lock: a table may look its functions up through another driver.
        let init = table.cuInit()?;
        // SAFETY: cuInit may be called at any time with flags 0, and more than once.
        let code = unsafe { init(0) };
        if code != CUresult::CUDA_SUCCESS {
            return Err(DriverError::new(table, "cuInit", code).into());
        }
        let mut drivers = lock(&DRIVERS);
        if let Some(state) = drivers.get(&library) {
            return Ok(Self { state });
        }
        let state = Box::new(State {
            table,
            failures: Failures::default(),
            deferred: Deferred::default(),
            services: [const { OnceLock::new() }; SERVICES],
            constants: Constants::default(),
            patience: AtomicU64::new(PATIENCE),
        });
        let driver = Self { state: Box::leak(state) };
        drivers.insert(library, driver.state);
        initialising.succeeded();
        Ok(driver)
    }

    /// What it says of its devices and never says otherwise.
    pub(crate) fn constants(self) -> &'static Constants {
        &self.state.constants
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
    /// [`Error::NoSuchDevice`].
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
    pub fn devices(self) -> Result<Vec<Device>> {
        (0..self.device_count()?).map(|ordinal| self.device(ordinal)).collect()
    }

    /// The device of the context that is current in the calling thread; none if no context is.
    ///
    /// Wraps [`cuCtxGetCurrent` and `cuCtxGetDevice`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CTX.html).
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

    /// Runs `body` in the thread's relaxed capture mode, for calls that the driver else refuses beside captures, and that end those: an
    /// allocation by `cuMemAlloc`, say, that has nothing to do with any capture. The mode is what it was afterwards, also after a panic.
    ///
    /// ```
    /// use cuda_mem_core::Driver;
    ///
    /// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
    /// let sum = driver.in_relaxed_capture_mode(|| 1 + 1)?;
    /// assert_eq!(sum, 2);
    /// # Ok::<(), cuda_mem_core::Error>(())
    /// ```
    ///
    /// Wraps [`cuThreadExchangeStreamCaptureMode`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html), twice.
    ///
    /// # Capture
    ///
    /// May be called while streams capture, and `body` may make any call but on a stream that captures.
    ///
    /// After an error `body` was not called.
    pub fn in_relaxed_capture_mode<R>(self, body: impl FnOnce() -> R) -> Result<R> {
        let _relaxed = Relaxed::enter(self)?;
        Ok(body())
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

    /// [`Error::ForeignContext`] for `what` if that belongs to another driver, whose memory and streams mean nothing here.
    #[inline]
    pub fn expect_same(self, other: Self, what: &'static str) -> Result<()> {
        if self == other { Ok(()) } else { Err(Error::ForeignContext { what }) }
    }

    /// What waits to be released.
    pub(crate) fn deferred(self) -> &'static Deferred {
        &self.state.deferred
    }

    /// What a module above this one keeps for each driver, made at the first call.
    #[inline]
    pub(crate) fn service<S: Service>(self) -> &'static S {
        let slots = &self.state.services;
        let slot =
            slots.get(S::SLOT).and_then(|slot| slot.get_or_init(|| Box::new(S::default())).downcast_ref());
        // Each has a slot of its own.
        slot.unwrap_or_else(|| Box::leak(Box::default()))
    }
}

/// Every driver that was initialised.
pub(crate) fn all() -> Vec<Driver> {
    lock(&DRIVERS).values().map(|state| Driver { state }).collect()
}

/// Locks a mutex, also after a panic elsewhere: what is behind each lock is right after every statement.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`]; none if somebody has it.
pub(crate) fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
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

impl_debug!(Driver, |it| version: it.version(), release_failures: it.release_failures());
