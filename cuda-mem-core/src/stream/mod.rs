//! Streams: queues of work that runs in order. What comes before what, and who waits for it, is in `stream/order.rs`.
//!
//! # Safety
//!
//! Relies on `cuStreamDestroy` leaving pending work to finish, as its documentation states, and on the contract of
//! [`Stream::borrow_raw`] for streams of others: they are named while a call of [`Stream::disown`] waits for that, and not
//! afterwards. A [guest](Stream::guest) is named by a thread that visits it, whose caller keeps it meanwhile. Drivers from CUDA 13.0 take a created stream's handle whatever context is
//! current, also none (seen on hardware); for older ones and for the two default streams the context is made current. It
//! always is for calls that take addresses: with another device's context current the driver does not know a pool's memory
//! (seen on hardware).

#![allow(unsafe_code, reason = "calls driver functions")]

mod capture;
pub(crate) mod idle;
mod known;
mod lent;
mod order;
mod quiet;
pub mod stream_mem;

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cuda_mem_sys::{
    CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUresult, CUstream, CUstream_flags, CUstream_st,
    CUstreamCaptureStatus, LibraryId,
};

use crate::driver::{
    Bound, Context, Driver, Event, Handle, LateReports, destroy_stream, fork, refuse_forked,
};
use crate::error::{Error, Result, call};

pub use capture::{CaptureId, CapturePast, CapturePoint};
use idle::WhenIdle;
use lent::{Named, Naming};
pub(crate) use quiet::{Mark, Marker, Quiet, poll, until_quiet};

/// The first driver on which stream calls were seen to need no current context.
const NEEDS_NO_CURRENT_CONTEXT: i32 = 13000;

/// The owner of a stream that was not made here. [`Stream::borrowed`] has an example.
///
/// # Safety
///
/// [`as_raw`](Self::as_raw) is a stream of the context, as [`Stream::borrow_raw`] takes it, and stays valid while the owner is borrowed.
pub unsafe trait ForeignStream {
    /// The context that the stream belongs to.
    fn context(&self) -> &Context;

    /// The stream, a `CUstream`.
    fn as_raw(&self) -> *mut c_void;
}

/// A stream. Clones are handles to the same one; whatever still has work in it keeps it alive.
///
/// The last handle destroys it
/// ([`cuStreamDestroy`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html)), which waits for nothing, and its work is
/// still done. But if 56 streams of the process were destroyed while they had work to do and have not ended, the driver waits until one
/// has, and other threads' calls that give devices work wait with it (seen with driver 580). Who drops many busy streams keeps their handles until they are
/// [idle](Stream::is_idle).
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let stream = Stream::new(&context)?;
/// stream.synchronize()?;
/// assert!(stream.is_idle()?);
/// assert_ne!(Stream::new(&context)?.id(), stream.id());
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Stream {
    inner: Arc<Inner>,
}

/// What names a stream for the life of the process. Handles are used again after a stream is destroyed; these are not.
/// [`Stream`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId {
    raw: u64,
    /// Each driver counts for itself.
    library: LibraryId,
}

impl StreamId {
    /// The number that `cuStreamGetId` gives. Streams of other drivers have the same ones.
    #[inline]
    #[must_use]
    pub fn as_raw(self) -> u64 {
        self.raw
    }

    /// Whether the driver does not have it: the [guest](Stream::guest) captured when it came.
    #[must_use]
    pub fn is_of_a_capture(self) -> bool {
        self.raw >= OF_A_CAPTURE
    }

    /// Calls `body`, in which this thread may name the [guest](Stream::guest) of this name. Of other streams it means nothing.
    ///
    /// # Safety
    ///
    /// The stream's owner keeps it until this returns.
    #[inline]
    pub unsafe fn visit<R>(self, body: impl FnOnce() -> R) -> R {
        lent::visiting(self, body)
    }
}

/// Identities of guests that captured when they came. The driver's are smaller numbers.
static NAMES_OF_CAPTURES: AtomicU64 = AtomicU64::new(OF_A_CAPTURE);
const OF_A_CAPTURE: u64 = 1 << 63;

struct Inner {
    context: Context,
    raw: Handle<CUstream_st>,
    id: StreamId,
    kind: Kind,
    /// Whether somebody else may have it capture.
    is_lent: AtomicBool,
    /// Who names it, if it is somebody else's.
    naming: Naming,
    /// Once it was disowned, a point behind all that it was given, if one could be recorded.
    last: OnceLock<Option<Arc<Mark>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Created here, destroyed here.
    Owned,
    /// Somebody else's.
    Borrowed,
    /// Somebody else's, which may be gone whenever nobody visits it.
    Guest,
    /// The context's legacy default stream.
    Legacy,
    /// The default stream of one thread.
    PerThread(Thread),
}

/// A thread, by a number that is never used again. Unlike the standard library's it can be asked for while the thread ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Thread(u64);

thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    /// Gone once the thread's destructors run, when the driver may have left it: its default stream is another one then.
    static ALIVE: Vec<()> = const { Vec::new() };
}

impl Thread {
    fn current() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        if NUMBER.get() == 0 {
            NUMBER.set(LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1));
        }
        Self(NUMBER.get())
    }
}

impl Stream {
    /// A stream that neither waits for the legacy default stream nor holds it up (`CU_STREAM_NON_BLOCKING`).
    ///
    /// Wraps [`cuStreamCreateWithPriority`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html).
    pub fn new(context: &Context) -> Result<Self> {
        Self::with_priority(context, 0)
    }

    /// As [`Stream::new`], with a priority: lower numbers come first, 0 is the default, and the driver clamps to the range
    /// that the device has.
    pub fn with_priority(context: &Context, priority: i32) -> Result<Self> {
        let _bound = context.bind()?;
        let driver = context.driver();
        let mut raw: CUstream = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
        // SAFETY: one handle to write; the context is current.
        unsafe { call!(driver, cuStreamCreateWithPriority(&mut raw, flags, priority)) }?;
        match identify(driver, raw, "Stream::new") {
            Ok(id) => Ok(Self::wrap(context, raw, id, Kind::Owned)),
            Err(error) => {
                destroy_stream(driver, raw);
                Err(error)
            }
        }
    }

    /// The context's legacy default stream: it waits for all blocking streams of the context, and they for it.
    ///
    /// # Capture
    ///
    /// [`Error::Capturing`] while a blocking stream of the context captures: the driver would fail that capture at the
    /// first mention of the legacy stream.
    pub fn legacy(context: &Context) -> Result<Self> {
        let _bound = context.bind()?;
        let id = identify(context.driver(), CU_STREAM_LEGACY, "Stream::legacy")?;
        Ok(Self::wrap(context, CU_STREAM_LEGACY, id, Kind::Legacy))
    }

    /// The calling thread's default stream.
    ///
    /// Its handle means another stream in another thread. The value may move there, where calls on it are
    /// [`Error::WrongThread`]; what was done on it here stays ordered.
    ///
    /// # Capture
    ///
    /// [`Error::Capturing`] while it captures.
    pub fn per_thread(context: &Context) -> Result<Self> {
        let _bound = context.bind()?;
        let id = identify(context.driver(), CU_STREAM_PER_THREAD, "Stream::per_thread")?;
        // Behind a call: destructors run from the last to the first, and so before the driver's.
        let _ = ALIVE.try_with(|_| ());
        Ok(Self::wrap(context, CU_STREAM_PER_THREAD, id, Kind::PerThread(Thread::current())))
    }

    /// A stream that another library (PyTorch, cudarc, …) owns and keeps alive.
    ///
    /// Takes an untyped pointer, so that any binding's `CUstream` can be passed. The handles 0, 1 and 2 name default
    /// streams and are recognised. 0 is the legacy one, as in every [`Table`](crate::sys::Table): code that was compiled for
    /// per-thread default streams means [`Stream::per_thread`] by it.
    ///
    /// # Safety
    ///
    /// `raw` must be a stream of `context`, and stay valid for as long as the result, its clones and whatever was used on
    /// them exist; memory that was dropped during a capture exists until [`Driver::reclaim`] has returned 0. Any thread may ask
    /// the driver about it at any time until then, or until [`Stream::disown`] has returned for each value that this function
    /// gave for it. No capture of it begins or ends while another thread is in a call here that gives it work.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the driver does not know the handle; [`Error::Capturing`] while the stream captures.
    pub unsafe fn borrow_raw(context: &Context, raw: *mut c_void) -> Result<Self> {
        let raw = raw.cast::<CUstream_st>();
        if raw.is_null() || raw == CU_STREAM_LEGACY {
            return Self::legacy(context);
        }
        if raw == CU_STREAM_PER_THREAD {
            return Self::per_thread(context);
        }
        let _bound = context.bind()?;
        let id = identify(context.driver(), raw, "Stream::borrow_raw")?;
        Ok(Self::wrap(context, raw, id, Kind::Borrowed))
    }

    /// A stream that another library may destroy at any time without notice, except during a call that it passes the stream to. Calls
    /// on it are [`Error::Disowned`] unless their thread [visits](StreamId::visit) it. Memory that was used on it is waited for with all work of the context
    /// ([`Context::point`]).
    ///
    /// ```
    /// use cuda_mem_core::{Driver, Error, Stream, Uses};
    ///
    /// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
    /// let theirs = Stream::new(&context)?;
    /// // SAFETY: a stream of the context, which is here until the end of the block.
    /// let guest = unsafe { Stream::guest(&context, theirs.as_raw()) }?;
    /// let mut uses = Uses::new();
    /// // SAFETY: as above.
    /// unsafe { guest.id().visit(|| uses.record_stream(&guest)) }?;
    /// drop(theirs);
    /// assert!(matches!(guest.is_idle(), Err(Error::Disowned)));
    /// uses.wait()?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// One that captures cannot be asked for its identity, and has one of its own here: later it is another stream.
    ///
    /// Errors: those of the driver. A default stream is never destroyed, and comes as itself.
    ///
    /// # Safety
    ///
    /// `raw` is a stream of `context` during the call.
    pub unsafe fn guest(context: &Context, raw: *mut c_void) -> Result<Self> {
        if raw.addr() <= CU_STREAM_PER_THREAD.addr() {
            // SAFETY: a default stream.
            return unsafe { Self::borrow_raw(context, raw) };
        }
        let _bound = context.bind()?;
        let raw = raw.cast::<CUstream_st>();
        match identify(context.driver(), raw, "Stream::guest") {
            Err(Error::Capturing { .. }) => {
                let driver = context.driver();
                let name = NAMES_OF_CAPTURES.fetch_add(1, Ordering::Relaxed);
                let id = StreamId { raw: name, library: driver.table().library() };
                let guest = Self::wrap(context, raw, id, Kind::Guest);
                driver.service::<WhenIdle>().streams.note_guest(&guest.inner, true);
                Ok(guest)
            }
            id => Ok(Self::wrap(context, raw, id?, Kind::Guest)),
        }
    }

    /// Whether it is a [guest](Stream::guest): another library's, which may be destroyed whenever no thread [visits](StreamId::visit) it.
    #[inline]
    #[must_use]
    pub fn is_guest(&self) -> bool {
        self.inner.kind == Kind::Guest
    }

    /// Calls `body` with a stream of another library. When that returns or panics the stream is [disowned](Self::disown): handles that `body`
    /// keeps cannot use it any more, and its owner may destroy it.
    ///
    /// ```
    /// use std::ffi::c_void;
    ///
    /// use cuda_mem_core::{Context, DeviceBuffer, Driver, Error, ForeignStream, Stream};
    ///
    /// /// The stream of another binding, which keeps it for as long as this lives.
    /// struct Theirs(Stream);
    ///
    /// // SAFETY: the handle is a stream of the context, and lives as long as this.
    /// unsafe impl ForeignStream for Theirs {
    ///     fn context(&self) -> &Context {
    ///         self.0.context()
    ///     }
    ///
    ///     fn as_raw(&self) -> *mut c_void {
    ///         self.0.as_raw()
    ///     }
    /// }
    ///
    /// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
    /// let theirs = Theirs(Stream::new(&context)?);
    /// let sums = Stream::borrowed(&theirs, |stream| DeviceBuffer::from_slice(stream, &[1, 2, 3])?.to_vec(stream))??;
    /// assert_eq!(sums, [1, 2, 3]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// Errors: those of [`Stream::borrow_raw`].
    pub fn borrowed<R>(owner: &impl ForeignStream, body: impl FnOnce(&Self) -> R) -> Result<R> {
        struct Ends(Stream);
        impl Drop for Ends {
            fn drop(&mut self) {
                self.0.disown();
            }
        }
        // SAFETY: the trait's contract, while the owner is borrowed here; behind that the value is disowned.
        let stream = Ends(unsafe { Self::borrow_raw(owner.context(), owner.as_raw()) }?);
        Ok(body(&stream.0))
    }

    fn wrap(context: &Context, raw: CUstream, id: StreamId, kind: Kind) -> Self {
        let is_lent = AtomicBool::new(kind != Kind::Owned);
        let (raw, naming) = (Handle::new(raw), Naming::default());
        let context = context.clone();
        let inner = Arc::new(Inner { context, raw, id, kind, is_lent, naming, last: OnceLock::new() });
        inner.context.driver().service::<WhenIdle>().streams.enter(&inner);
        Self { inner }
    }

    /// The context it belongs to.
    #[inline]
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Its name, never used again by another stream.
    #[inline]
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.inner.id
    }

    /// The driver's handle, a `CUstream`. It is valid while this stream or a clone of it lives; that of a per-thread default
    /// stream only in its thread.
    ///
    /// Code that captures the stream into a graph through this handle answers for what the graph uses. Calls here that
    /// would put memory into a graph are [`Error::Capturing`] meanwhile, and invalidate a capture that began while they ran. No capture
    /// may begin and end while another thread is in such a call.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.lend();
        self.inner.raw.raw().cast::<c_void>()
    }

    /// Whether the stream was made here and at most so many handles to it exist: if the caller has them all, no other code gives it work, and
    /// it is destroyed once they are dropped. What others gave it before is in its queue.
    ///
    /// ```
    /// use cuda_mem_core::{Driver, Stream};
    ///
    /// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
    /// let context = driver.device(0)?.primary_context()?;
    /// let stream = Stream::new(&context)?;
    /// let mine = [stream.clone(), stream.clone()];
    /// assert!(!mine[0].is_left_to(2));
    /// drop(stream);
    /// assert!(mine[0].is_left_to(2));
    /// # Ok::<(), cuda_mem_core::Error>(())
    /// ```
    #[must_use]
    pub fn is_left_to(&self, handles: usize) -> bool {
        let is_left = self.inner.kind == Kind::Owned && Arc::strong_count(&self.inner) <= handles;
        // What was done with handles that are gone comes before what is done after this.
        std::sync::atomic::fence(Ordering::Acquire);
        is_left
    }

    /// Says that the owner of a borrowed stream is about to destroy it though this value stays. Calls on it are
    /// [`Error::Disowned`] from now on, and those that other threads are in are waited for, also for work of the stream if they wait for that.
    /// Once more is nothing.
    ///
    /// It is said of this value and its clones, not of another [`Stream::borrow_raw`] of the same handle. A value that is dropped
    /// before need not be told: as long as it is there, the stream is among those that are asked whether they are busy.
    ///
    /// Memory that was used on it is freed behind an event ([`cuEventRecord`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html)),
    /// for which the host waits if the memory was allocated on it. If there is none, because the stream captures or the driver refuses, memory
    /// stays that none was recorded for before.
    pub fn disown(&self) {
        if self.inner.kind == Kind::Borrowed && !fork::forked() {
            let _reports = LateReports::new();
            self.driver().service::<WhenIdle>().streams.leave(&self.inner);
            // Also whoever says it a second time returns when nobody names it any more.
            self.inner.last.get_or_init(|| {
                self.inner.naming.end();
                Mark::of(|| self.last_point()).ok().map(Arc::new)
            });
        }
    }

    /// An event behind all that it was given, when nobody else names it any more, in its owner's call.
    fn last_point(&self) -> Result<Event> {
        let _bound = self.inner.context.bind()?;
        let (driver, raw) = (self.driver(), self.inner.raw.raw());
        let capturing = || match is_capturing(driver, raw) {
            Ok(true) => Err(Error::Capturing { call: "Stream::disown" }),
            answer => answer.map(drop),
        };
        capturing()?;
        let event = Event::pooled(self.context())?;
        // SAFETY: a live event, and a stream of its context that its owner destroys after this.
        unsafe { call!(driver, cuEventRecord(event.handle(), raw)) }?;
        // A capture that began meanwhile would have it.
        capturing()?;
        Ok(event)
    }

    /// Of a stream that was disowned, the point behind all that it was given, if there is one.
    pub(crate) fn last(&self) -> Option<&Arc<Mark>> {
        self.inner.last.get()?.as_ref()
    }

    /// Ready for calls in the calling thread that take streams and events only.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Entered<'_>> {
        self.refuse_other_threads()?;
        let by_handle = matches!(self.inner.kind, Kind::Owned | Kind::Borrowed | Kind::Guest);
        if by_handle && self.driver().version() >= NEEDS_NO_CURRENT_CONTEXT {
            return Ok(Entered { raw: self.inner.raw.raw(), _bound: None, _named: self.named()? });
        }
        self.enter_context()
    }

    /// Ready for calls in the calling thread that take addresses as well.
    #[inline]
    pub(crate) fn enter_context(&self) -> Result<Entered<'_>> {
        self.refuse_other_threads()?;
        let bound = Some(self.inner.context.bind()?);
        Ok(Entered { raw: self.inner.raw.raw(), _bound: bound, _named: self.named()? })
    }

    /// Whether what is known of one when it ends holds for the other too: they are one value, or values of one stream that
    /// nobody can disown.
    #[inline]
    pub(crate) fn ends_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
            || (!self.is_borrowed() && !other.is_borrowed() && self == other)
    }

    #[inline]
    pub(crate) fn is_borrowed(&self) -> bool {
        self.inner.kind == Kind::Borrowed
    }

    /// Whether it comes behind what `earlier` was given without a call, being the same stream. [`Error::Disowned`] if nobody can
    /// name it any more: it ended before what another value of the stream may have been given since.
    pub(crate) fn follows(&self, earlier: &Self) -> Result<bool> {
        if self != earlier {
            return Ok(false);
        }
        if !self.ends_with(earlier) {
            self.named()?;
        }
        Ok(true)
    }

    /// Keeps the owner of a borrowed stream from destroying it. Streams of this crate's own are kept by their value.
    #[inline]
    pub(crate) fn named(&self) -> Result<Option<Named<'_>>> {
        match self.inner.kind {
            Kind::Borrowed => self.inner.naming.begin().map(Some).ok_or(Error::Disowned),
            Kind::Guest if !lent::is_visited(self.inner.id) => Err(Error::Disowned),
            Kind::Guest | Kind::Owned | Kind::Legacy | Kind::PerThread(_) => Ok(None),
        }
    }

    /// Refuses what cannot be asked of it here: anything in a forked child, and of a thread's default stream in any other thread.
    /// No driver call, but while a thread ends.
    #[inline]
    pub fn refuse_other_threads(&self) -> Result<()> {
        refuse_forked()?;
        let is_ending = || ALIVE.try_with(|_| ()).is_err();
        let is_another = || is_ending() && !Self::per_thread(self.context()).is_ok_and(|now| now == *self);
        match self.inner.kind {
            Kind::PerThread(owner) if owner != Thread::current() || is_another() => Err(Error::WrongThread),
            _ => Ok(()),
        }
    }

    /// Whether it is a thread's default stream: its handle means another one in each thread.
    #[inline]
    #[must_use]
    pub fn is_per_thread(&self) -> bool {
        matches!(self.inner.kind, Kind::PerThread(_))
    }

    /// Whether it is its context's legacy default stream.
    #[inline]
    pub(crate) fn is_legacy(&self) -> bool {
        self.inner.kind == Kind::Legacy
    }

    #[inline]
    pub(crate) fn driver(&self) -> Driver {
        self.inner.context.driver()
    }
}

/// A stream whose handle may be passed to the driver now.
#[derive(Debug)]
pub(crate) struct Entered<'s> {
    raw: CUstream,
    _bound: Option<Bound<'s>>,
    _named: Option<Named<'s>>,
}

impl Entered<'_> {
    #[inline]
    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }
}

/// The stream's identity, unless it captures: asked for it then, the driver fails the capture (seen on hardware).
fn identify(driver: Driver, raw: CUstream, call: &'static str) -> Result<StreamId> {
    if is_capturing(driver, raw)? {
        return Err(Error::Capturing { call });
    }
    let mut id = 0;
    // SAFETY: one number to write; callers pass a live stream of the current context.
    unsafe { call!(driver, cuStreamGetId(raw, &mut id)) }?;
    Ok(StreamId { raw: id, library: driver.table().library() })
}

fn is_capturing(driver: Driver, raw: CUstream) -> Result<bool> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: one status to write; callers pass a live stream of the current context.
    match unsafe { call!(driver, cuStreamIsCapturing(raw, &mut status)) } {
        Ok(()) => Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE),
        // The legacy stream, while a blocking stream captures.
        Err(Error::Driver(error)) if error.code() == CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => Ok(true),
        Err(error) => Err(error),
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if fork::forked() {
            return;
        }
        self.context.driver().service::<WhenIdle>().streams.leave(self);
        if self.kind == Kind::Owned {
            destroy_stream(self.context.driver(), self.raw.raw());
        }
    }
}

impl PartialEq for Stream {
    /// Whether both are handles to the same stream.
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Stream {}

impl_debug!(Stream, |it| id: it.inner.id.raw, kind: it.inner.kind);
