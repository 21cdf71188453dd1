//! Events: points in a stream's work that others can wait for.
//!
//! # Safety
//!
//! Relies on `cuEventDestroy` being safe while the event's work or waits on it are pending, as its documentation states:
//! the driver keeps what it needs.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use cuda_mem_sys::{CUevent, CUevent_flags, CUevent_st};

use crate::driver::{Context, Driver, Handle, Relaxed, fork, lock, refuse_forked};
use crate::error::{Error, Result, call, query};

/// A point in a stream's work.
///
/// A new event counts as complete until it is recorded ([`Stream::record`](crate::Stream::record)); recorded again, it
/// stands for the new point; waits that were made before still stand for the old one.
///
/// ```
/// use cuda_mem_core::{Driver, Event, Stream};
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let (first, second) = (Stream::new(&context)?, Stream::new(&context)?);
/// let event = Event::new(&context)?;
/// first.record(&event)?;
/// second.wait(&event)?; // the second stream's later work starts after the first one's earlier work
/// event.synchronize()?;
/// assert!(event.is_complete()?);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
pub struct Event {
    context: Context,
    raw: Handle<CUevent_st>,
    /// Whether it is from the context's pool, to which it returns.
    is_pooled: bool,
    /// Whether a capture may have it. Held while it is recorded, and while a stream is made to wait for it.
    is_captured: RwLock<bool>,
    /// Whether somebody else may record it.
    is_lent: AtomicBool,
}

impl Event {
    /// An event for ordering, without a time stamp.
    ///
    /// Wraps [`cuEventCreate`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html) with `CU_EVENT_DISABLE_TIMING`.
    pub fn new(context: &Context) -> Result<Self> {
        Self::create(context, CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// An event that keeps the time at which its point was reached.
    /// Errors: as [`Event::new`].
    pub fn with_timing(context: &Context) -> Result<Self> {
        Self::create(context, CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// An untimed event from the context's pool, for a use in here that records it before anything else.
    pub(crate) fn pooled(context: &Context) -> Result<Self> {
        let mut event = Self::of(context, context.events().take(context)?);
        event.is_pooled = true;
        Ok(event)
    }

    /// An event of another process, whose handle here is destroyed with the result.
    pub(crate) fn opened(context: &Context, raw: CUevent) -> Self {
        Self::of(context, Handle::new(raw))
    }

    fn of(context: &Context, raw: Handle<CUevent_st>) -> Self {
        let (is_captured, is_lent) = (RwLock::new(false), AtomicBool::new(false));
        Self { context: context.clone(), raw, is_pooled: false, is_captured, is_lent }
    }

    pub(crate) fn create(context: &Context, flags: CUevent_flags) -> Result<Self> {
        Ok(Self::of(context, create_raw(context, flags)?))
    }

    /// Whether all work before the point is done.
    ///
    /// Wraps [`cuEventQuery`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html).
    ///
    /// # Capture
    ///
    /// [`Error::Capturing`] for an event that was last recorded in a capture: it stands for no point in time.
    pub fn is_complete(&self) -> Result<bool> {
        let _relaxed = self.relaxed("Event::is_complete")?;
        // SAFETY: the event lives as long as `self`.
        unsafe { query!(self.context.driver(), cuEventQuery(self.raw.raw())) }
    }

    /// Waits until all work before the point is done. Blocks the calling thread.
    ///
    /// Wraps [`cuEventSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html).
    /// Errors: as [`Event::is_complete`].
    pub fn synchronize(&self) -> Result<()> {
        let _relaxed = self.relaxed("Event::synchronize")?;
        // SAFETY: the event lives as long as `self`.
        unsafe { call!(self.context.driver(), cuEventSynchronize(self.raw.raw())) }
    }

    /// For questions, which the driver forbids in every thread while any captures globally. One about an event of a capture ends that,
    /// whatever the mode (seen on hardware).
    fn relaxed(&self, call: &'static str) -> Result<Relaxed> {
        refuse_forked()?;
        let driver = self.context.driver();
        if *self.is_captured() { Err(Error::Capturing { call }) } else { Relaxed::enter(driver) }
    }

    /// The time from `earlier`'s point to this one's, on the device's clock, to half a microsecond. Zero if this one comes first.
    ///
    /// Wraps [`cuEventElapsedTime`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver): code 600 while either point is not reached, 400 if either event was never recorded or was made
    /// without timing. [`Error::Capturing`] as [`Event::is_complete`], for either.
    pub fn elapsed_since(&self, earlier: &Self) -> Result<Duration> {
        refuse_forked()?;
        self.context.expect_same(&earlier.context, "the earlier event")?;
        if [self, earlier].into_iter().any(|event| *event.is_captured()) {
            return Err(Error::Capturing { call: "Event::elapsed_since" });
        }
        let (driver, mut milliseconds) = (self.context.driver(), 0.0f32);
        // SAFETY: one float to write, two live events.
        unsafe { call!(driver, cuEventElapsedTime(&mut milliseconds, earlier.raw.raw(), self.raw.raw())) }?;
        Ok(Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).unwrap_or_default())
    }

    /// The context it belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The driver's handle, a `CUevent`. It is valid while the event lives.
    ///
    /// Code that records it into a capture through this handle answers for the streams that are made to wait for it.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.is_lent.store(true, Ordering::Release);
        self.raw.raw().cast::<c_void>()
    }

    /// Whether somebody else may record it.
    pub(crate) fn is_lent(&self) -> bool {
        self.is_lent.load(Ordering::Acquire)
    }

    /// Whether a capture may have it, for as long as nobody records it anew.
    pub(crate) fn is_captured(&self) -> RwLockReadGuard<'_, bool> {
        self.is_captured.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Event::is_captured`], for who records it.
    pub(crate) fn set_captured(&self) -> RwLockWriteGuard<'_, bool> {
        self.is_captured.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn handle(&self) -> CUevent {
        self.raw.raw()
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if fork::forked() {
            return;
        }
        if self.is_pooled {
            lock(&self.context.events().idle).push(self.raw);
        } else {
            destroy_raw(self.context.driver(), self.raw);
        }
    }
}

impl_debug!(Event, |it| raw: it.raw.raw(), is_pooled: it.is_pooled);

fn create_raw(context: &Context, flags: CUevent_flags) -> Result<Handle<CUevent_st>> {
    let _bound = context.bind()?;
    let mut raw: CUevent = ptr::null_mut();
    // SAFETY: one handle to write; the context is current.
    unsafe { call!(context.driver(), cuEventCreate(&mut raw, flags.0)) }?;
    Ok(Handle::new(raw))
}

fn destroy_raw(driver: Driver, raw: Handle<CUevent_st>) {
    // SAFETY: called once for an event that its owner created and gives up here.
    driver.release(|| unsafe { call!(driver, cuEventDestroy(raw.raw())) });
}

/// Events without timing that are between two uses. Most uses are short: record, have a stream wait, give back; the wait
/// keeps standing for the record it saw.
#[derive(Debug, Default)]
pub(crate) struct EventPool {
    idle: Mutex<Vec<Handle<CUevent_st>>>,
}

impl EventPool {
    fn take(&self, context: &Context) -> Result<Handle<CUevent_st>> {
        refuse_forked()?;
        let idle = lock(&self.idle).pop();
        match idle {
            Some(event) => Ok(event),
            None => create_raw(context, CUevent_flags::CU_EVENT_DISABLE_TIMING),
        }
    }

    pub(crate) fn destroy_all(&self, driver: Driver) {
        let idle = std::mem::take(&mut *lock(&self.idle));
        idle.into_iter().for_each(|event| destroy_raw(driver, event));
    }
}
