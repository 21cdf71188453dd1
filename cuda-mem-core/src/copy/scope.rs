//! Asynchronous copies of borrowed host memory, and its registration, inside a closure that always waits.
//!
//! # Safety
//!
//! The shape is that of `std::thread::scope`: what the scope borrows, it borrows for `'env`, which outlives the call, and the
//! call does not return, by value or by panic, before every copy was waited for and every registration undone. There is no guard that could be forgotten.

#![allow(unsafe_code, reason = "puts copies of borrowed memory into streams")]

use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

use crate::buffer::{DeviceRange, Enqueued};
use crate::driver::{Context, fork, lock};
use crate::element::DeviceCopy;
use crate::error::{Error, Result};
use crate::host::{HostMemory, RegisterFlags, Registration};
use crate::stream::{Marker, Stream};

/// Runs `body`, in which host memory can be borrowed for asynchronous copies and registered in place. Returns when all
/// copies are done and all registrations undone, also if `body` panics; then the panic goes on.
///
/// ```
/// use cuda_mem_core::{DeviceBuffer, Driver, Stream};
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let (one, two) = (Stream::new(&context)?, Stream::new(&context)?);
/// let source = vec![3u8; 1 << 20];
/// let mut target = vec![0u8; 1 << 20];
/// let device = DeviceBuffer::<u8>::uninit(&one, 1 << 20)?;
/// cuda_mem_core::scope(&context, |scope| {
///     scope.register(&source)?;
///     let target = scope.register_mut(&mut target)?;
///     scope.upload(&one, &source, &device.whole())?;
///     scope.download(&two, &device.whole(), target) // waits for the upload, on the device
/// })?;
/// assert_eq!(source, target);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
///
/// # Errors
///
/// What `body` returns, else the first failure among the waits ([`Error::Driver`], with the code of work that failed) and the
/// unregistrations. If the driver refuses for a minute to wait for a copy, the process is aborted with a message: the memory
/// goes back to its owner when this returns, and a device may use it still.
pub fn scope<'env, R>(
    context: &Context,
    body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R>,
) -> Result<R> {
    let scope =
        Scope { context: context.clone(), state: Mutex::default(), _scope: PhantomData, _env: PhantomData };
    let result = catch_unwind(AssertUnwindSafe(|| body(&scope)));
    let ended = scope.end();
    match result {
        Ok(result) => result.and_then(|value| ended.map(|()| value)),
        Err(panic) => resume_unwind(panic),
    }
}

/// What [`scope`] hands to its closure. [`scope`] has an example.
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    context: Context,
    state: Mutex<State>,
    /// Invariant, so that neither lifetime can be shortened.
    _scope: PhantomData<&'scope mut &'scope ()>,
    _env: PhantomData<&'env mut &'env ()>,
}

#[derive(Debug, Default)]
struct State {
    /// The point behind the last copy on each stream.
    copies: Vec<Arc<Marker>>,
    registrations: Vec<Registration>,
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Registers `memory` where it is, for copies to the device, until the scope ends.
    ///
    /// Wraps [`cuMemHostRegister`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html). The pages must be
    /// writable, as those of any vector are; those of a constant are not, which is an error.
    /// Errors: as [`Registered::new`](crate::host::Registered::new).
    pub fn register<T: DeviceCopy>(&'scope self, memory: &'env [T]) -> Result<()> {
        self.register_bytes(memory.as_ptr().cast::<u8>(), size_of_val(memory))
    }

    /// Registers `memory` where it is, for copies in both directions, until the scope ends, and gives it back.
    /// Errors: as [`Scope::register`].
    pub fn register_mut<T: DeviceCopy>(&'scope self, memory: &'env mut [T]) -> Result<&'env mut [T]> {
        self.register_bytes(memory.as_ptr().cast::<u8>(), size_of_val(memory))?;
        Ok(memory)
    }

    fn register_bytes(&self, start: *const u8, bytes: usize) -> Result<()> {
        let (context, flags) = (&self.context, RegisterFlags::default());
        // SAFETY: the memory is borrowed for 'env, which outlives the scope, and the scope's end unregisters it.
        let registration = unsafe { Registration::new(context, start, bytes, flags, |register| register()) }?;
        lock(&self.state).registrations.push(registration);
        Ok(())
    }

    /// Copies `source` to `target`. Ordered on `stream`; the host waits at the end of the scope.
    ///
    /// Wraps [`cuMemcpyAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`], those of [`DeviceBuffer::on`](crate::DeviceBuffer::on).
    pub fn upload<T: DeviceCopy>(
        &'scope self,
        stream: &Stream,
        source: &'env [T],
        target: &DeviceRange<'_, T>,
    ) -> Result<()> {
        self.copy(stream, "Scope::upload", || {
            // SAFETY: the source is borrowed for 'env; the scope waits for the copy before it ends.
            unsafe { target.upload(stream, source.as_ptr().cast::<u8>(), size_of_val(source)) }
        })
    }

    /// Copies `source` to `target`, whose bytes are there when the scope has ended. Ordered on `stream`.
    ///
    /// Wraps [`cuMemcpyAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    /// Errors: as [`Scope::upload`].
    pub fn download<T: DeviceCopy>(
        &'scope self,
        stream: &Stream,
        source: &DeviceRange<'_, T>,
        target: &'env mut [T],
    ) -> Result<()> {
        let (address, bytes) = (target.as_mut_ptr().cast::<u8>(), size_of_val(target));
        self.copy(stream, "Scope::download", || {
            // SAFETY: the target is borrowed mutably for 'env, by value: nobody sees it before the scope has ended, and the
            // scope waits for the copy before that.
            unsafe { source.download(stream, address, bytes) }
        })
    }

    /// Copies a range of bytes of any host memory, a registered file mapping for example, to `target`. Ordered on `stream`.
    ///
    /// # Errors
    ///
    /// As [`Scope::upload`], [`Error::OutOfRange`], and [`Error::Io`] if a file cannot be read: small pieces of a registered
    /// file mapping, and any of one that is not registered, are, and waited for.
    pub fn upload_bytes<M: HostMemory>(
        &'scope self,
        stream: &Stream,
        source: &'env M,
        range: Range<usize>,
        target: &DeviceRange<'_, u8>,
    ) -> Result<()> {
        let len = source.byte_len();
        if range.start > range.end || range.end > len {
            return Err(Error::OutOfRange { range, len });
        }
        source.order_behind_uses(stream)?;
        self.copy(stream, "Scope::upload_bytes", || {
            // SAFETY: the range lies in the memory, whose owner is borrowed for 'env; the scope waits for the copy before it
            // ends.
            unsafe { target.upload_from(stream, source, range.start, range.len()) }
        })
    }

    /// Enqueues a copy and puts the stream's point behind it.
    fn copy(&self, stream: &Stream, call: &'static str, enqueue: impl FnOnce() -> Enqueued) -> Result<()> {
        stream.refuse_capturing(call)?;
        let known = lock(&self.state).copies.iter().find(|known| known.stream().ends_with(stream)).cloned();
        // Without the lock: what the memory waits for besides is the program's to say, which may copy here. Of two threads that copy on one
        // stream each sets a point behind its own copy, and whichever point comes last is behind both.
        let marker = known.clone().map_or_else(|| Marker::new(stream).map(Arc::new), Ok)?;
        // Kept only behind a copy: until then its event, which others had before, may stand for whatever they recorded.
        enqueue().mark(&marker).or_abort(call)?;
        if known.is_none() {
            lock(&self.state).copies.push(marker);
        }
        Ok(())
    }

    /// Waits for all copies, then undoes all registrations.
    fn end(&self) -> Result<()> {
        if fork::forked() {
            return Err(Error::Forked);
        }
        let mut state = lock(&self.state);
        let State { copies, registrations } = &mut *state;
        let mut result = Ok(());
        for copy in copies.drain(..) {
            result = result.and(copy.wait().or_abort("scope"));
        }
        let driver = self.context.driver();
        for mut registration in registrations.drain(..) {
            let released = driver.attempt(|| registration.release());
            if let Err(error) = &released {
                // The memory goes back to its owner all the same.
                registration.abandon();
                driver.report_release_failure(error);
            }
            result = result.and(released);
        }
        result
    }
}
