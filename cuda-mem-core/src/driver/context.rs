//! Contexts: what a process has on a device.
//!
//! # Safety
//!
//! Relies on a retained primary context staying valid until it is released, and on the contract of
//! [`Context::borrow_raw`] for contexts of others; on `cuStreamDestroy` leaving pending work to finish, as its documentation states; and on
//! the capture mode being a property of the calling thread, whose guard cannot leave it.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, Mutex};

use cuda_mem_sys::{
    CUcontext, CUctx_st, CUresult, CUstream, CUstream_flags, CUstream_st, CUstreamCaptureMode,
};

use super::event::{Event, EventPool};
use crate::driver::{Device, Driver, Handle, fork, lock, refuse_forked};
use crate::error::{Error, Result, call};

/// A context, normally a device's primary one. Clones are handles to the same one; whatever is made in it keeps it alive.
///
/// Nothing here depends on which context is current: each call that needs one makes its own current for the time it takes
/// and then restores what was there.
///
/// ```
/// use cuda_mem_core::Driver;
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let memory = context.memory_info()?;
/// assert!(memory.free <= memory.total);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    raw: Handle<CUctx_st>,
    /// Whether it was retained here and is to be released.
    retained: bool,
    /// Events for ordering one stream after another, which every such step borrows for a moment.
    events: EventPool,
    /// For points behind the legacy stream.
    beside_legacy: BesideLegacy,
}

/// The memory of a device, in bytes. [`Context`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// What is free, of all processes.
    pub free: usize,
    /// All there is.
    pub total: usize,
}

impl Context {
    pub(crate) fn retain_primary(device: Device) -> Result<Self> {
        refuse_forked()?;
        let mut raw: CUcontext = ptr::null_mut();
        // SAFETY: one handle to write, a valid device.
        unsafe { call!(device.driver(), cuDevicePrimaryCtxRetain(&mut raw, device.as_raw())) }?;
        Ok(Self::new(device, raw, true))
    }

    /// A context that other code owns and keeps alive.
    ///
    /// Takes an untyped pointer, so that any binding's `CUcontext` can be passed.
    ///
    /// # Safety
    ///
    /// `raw` must be a context of `device`, and stay valid for as long as the result, its clones and whatever is made in
    /// them exist. What was dropped at a moment when it could not be released exists until [`Driver::reclaim`] has returned 0, and
    /// memory that other processes have too until [`Driver::registrations_left`] has: other threads may name the context until then.
    #[must_use]
    pub unsafe fn borrow_raw(device: Device, raw: *mut c_void) -> Self {
        Self::new(device, raw.cast::<CUctx_st>(), false)
    }

    fn new(device: Device, raw: CUcontext, retained: bool) -> Self {
        let (events, beside_legacy) = (EventPool::default(), BesideLegacy::default());
        let inner = Inner { device, raw: Handle::new(raw), retained, events, beside_legacy };
        Self { inner: Arc::new(inner) }
    }

    /// The device it is on.
    #[must_use]
    pub fn device(&self) -> Device {
        self.inner.device
    }

    /// The driver it belongs to.
    #[inline]
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.inner.device.driver()
    }

    /// The driver's handle, a `CUcontext`. It is valid while this context or a clone of it lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.inner.raw.raw().cast::<c_void>()
    }

    /// Runs `body` with this context current in the calling thread, for code that relies on the current context. What was
    /// current before is so again afterwards, also after a panic.
    ///
    /// Wraps [`cuCtxPushCurrent` and `cuCtxPopCurrent`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CTX.html).
    ///
    /// After an error `body` was not called.
    pub fn with_current<R>(&self, body: impl FnOnce() -> R) -> Result<R> {
        refuse_forked()?;
        // Pushed even if it is current already: whatever `body` makes current instead goes with it.
        let _bound = self.inner.push()?;
        Ok(body())
    }

    /// Waits until all work in the context is done.
    ///
    /// Wraps [`cuCtxSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CTX.html). Blocks the calling thread.
    ///
    /// # Capture
    ///
    /// Fails while any stream of the context captures, and the capture with it, whatever its mode and whichever thread's.
    pub fn synchronize(&self) -> Result<()> {
        let _bound = self.bind()?;
        // SAFETY: the context is current.
        unsafe { call!(self.driver(), cuCtxSynchronize()) }
    }

    /// How much memory the device has and how much of it is free.
    ///
    /// Wraps [`cuMemGetInfo`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        let _bound = self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current; two sizes to write.
        unsafe { call!(self.driver(), cuMemGetInfo(&mut free, &mut total)) }?;
        Ok(MemoryInfo { free, total })
    }

    /// Lets this context's device reach what `peer` has of `cuMemAlloc` and its kin, now and later. Nothing if it does already.
    /// Memory that is mapped, and that of pools, is shared piece by piece instead.
    ///
    /// Wraps [`cuCtxEnablePeerAccess`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__PEER__ACCESS.html).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]: code 217 if the device cannot, 101 for a context of the same device.
    pub fn enable_peer_access(&self, peer: &Self) -> Result<()> {
        self.driver().expect_same(peer.driver(), "the peer context")?;
        let (_relaxed, _bound) = self.bind_relaxed()?;
        // SAFETY: two live contexts, one of them current; no flags exist.
        match unsafe { call!(self.driver(), cuCtxEnablePeerAccess(peer.inner.raw.raw(), 0)) } {
            Err(Error::Driver(error)) if error.code() == CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {
                Ok(())
            }
            enabled => enabled,
        }
    }

    /// Makes the context current until the guard is dropped. One driver call if it is already.
    pub(crate) fn bind(&self) -> Result<Bound<'_>> {
        refuse_forked()?;
        self.inner.bind()
    }

    /// As [`Context::bind`], and harmless to captures of other threads as well.
    pub(crate) fn bind_relaxed(&self) -> Result<(Relaxed, Bound<'_>)> {
        refuse_forked()?;
        let relaxed = Relaxed::enter(self.driver())?;
        Ok((relaxed, self.inner.bind()?))
    }

    pub(crate) fn events(&self) -> &EventPool {
        &self.inner.events
    }

    /// Records an event that no capture has behind all work of its legacy stream.
    pub(crate) fn record_beside_legacy(&self, event: &Event) -> Result<()> {
        let _bound = self.bind()?;
        let blocking = self.inner.beside_legacy.stream(self.driver())?;
        // SAFETY: a live event and a live stream of the same context.
        unsafe { call!(self.driver(), cuEventRecord(event.handle(), blocking)) }
    }

    /// Refuses what belongs to another context.
    #[inline]
    pub(crate) fn expect_same(&self, other: &Self, what: &'static str) -> Result<()> {
        if self == other { Ok(()) } else { Err(Error::ForeignContext { what }) }
    }
}

/// The calling thread's context; null if it has none.
fn current_context(driver: Driver) -> Result<CUcontext> {
    let mut current = ptr::null_mut();
    // SAFETY: one handle to write.
    unsafe { call!(driver, cuCtxGetCurrent(&mut current)) }?;
    Ok(current)
}

/// In a host function: the error with which the driver refuses this call there, as most others (seen on hardware).
pub(crate) fn refusal_in_host_function(driver: Driver) -> Option<Error> {
    let asked = refuse_forked().and_then(|()| current_context(driver));
    asked.err().filter(|error| error.code() == Some(CUresult::CUDA_ERROR_NOT_PERMITTED))
}

impl Inner {
    fn bind(&self) -> Result<Bound<'_>> {
        let driver = self.device.driver();
        if current_context(driver)? == self.raw.raw() {
            return Ok(Bound { driver, pushed: false, _context: PhantomData, _not_send: PhantomData });
        }
        self.push()
    }

    fn push(&self) -> Result<Bound<'_>> {
        let driver = self.device.driver();
        // SAFETY: a context that lives as long as `self`.
        unsafe { call!(driver, cuCtxPushCurrent(self.raw.raw())) }?;
        Ok(Bound { driver, pushed: true, _context: PhantomData, _not_send: PhantomData })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if fork::forked() {
            return;
        }
        self.events.destroy_all(self.device.driver());
        self.beside_legacy.destroy(self.device.driver());
        if self.retained {
            let (driver, device) = (self.device.driver(), self.device.as_raw());
            driver.release(|| {
                // SAFETY: this value retained the primary context once and releases it once; whatever was made in it
                // held a clone of its owner, so none of it exists any more.
                unsafe { call!(driver, cuDevicePrimaryCtxRelease(device)) }
            });
        }
    }
}

/// A context is current in this thread while this lives.
#[derive(Debug)]
pub(crate) struct Bound<'c> {
    driver: Driver,
    pushed: bool,
    _context: PhantomData<&'c Context>,
    /// What is current is a property of the thread.
    _not_send: PhantomData<*mut ()>,
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        if self.pushed && !fork::forked() {
            self.driver.release(|| {
                let mut popped: CUcontext = ptr::null_mut();
                // SAFETY: one handle to write; this thread pushed a context when the guard was made.
                unsafe { call!(self.driver, cuCtxPopCurrent(&mut popped)) }
            });
        }
    }
}

impl PartialEq for Context {
    /// Whether both are handles to the same context.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
            || (self.inner.raw == other.inner.raw && self.driver() == other.driver())
    }
}

impl Eq for Context {}

impl_debug!(Context, |it| device: it.inner.device, raw: it.inner.raw.raw());

/// A blocking stream of a context's own, which waits for the context's legacy stream as all of them do, once it was needed. It has no work
/// but these points.
#[derive(Debug, Default)]
struct BesideLegacy {
    blocking: Mutex<Option<Handle<CUstream_st>>>,
}

impl BesideLegacy {
    /// The stream, which is made at the first call, in the current context.
    fn stream(&self, driver: Driver) -> Result<CUstream> {
        let mut blocking = lock(&self.blocking);
        if let Some(blocking) = &*blocking {
            return Ok(blocking.raw());
        }
        let mut raw: CUstream = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_DEFAULT.0;
        // SAFETY: one handle to write; the context is current.
        unsafe { call!(driver, cuStreamCreateWithPriority(&mut raw, flags, 0)) }?;
        Ok(blocking.insert(Handle::new(raw)).raw())
    }

    /// The context is about to go.
    pub(crate) fn destroy(&self, driver: Driver) {
        let blocking = lock(&self.blocking).take();
        if let Some(blocking) = blocking {
            destroy_stream(driver, blocking.raw());
        }
    }
}

/// Destroys a stream of the current context, or of a driver that needs none.
pub(crate) fn destroy_stream(driver: Driver, raw: CUstream) {
    driver.release(|| {
        // SAFETY: called once, for a stream that its only owner created and gives up here; pending work finishes.
        unsafe { call!(driver, cuStreamDestroy(raw)) }
    });
}

/// The calling thread is in the relaxed capture mode while this lives. While any thread captures in the global mode, calls that the driver
/// counts as unsafe for captures fail in every thread, and the capture with them; a thread in this mode may make them.
#[derive(Debug)]
pub(crate) struct Relaxed {
    driver: Driver,
    previous: CUstreamCaptureMode,
    /// The mode belongs to this thread.
    _not_send: PhantomData<*mut ()>,
}

impl Relaxed {
    pub(crate) fn enter(driver: Driver) -> Result<Self> {
        refuse_forked()?;
        let previous = exchange(driver, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        Ok(Self { driver, previous, _not_send: PhantomData })
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if !fork::forked() {
            self.driver.release(|| exchange(self.driver, self.previous).map(drop));
        }
    }
}

fn exchange(driver: Driver, mode: CUstreamCaptureMode) -> Result<CUstreamCaptureMode> {
    let mut mode = mode;
    // SAFETY: one mode, read and written.
    unsafe { call!(driver, cuThreadExchangeStreamCaptureMode(&mut mode)) }?;
    Ok(mode)
}
