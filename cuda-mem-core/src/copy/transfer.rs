//! Copies that own the host memory until they are done.
//!
//! # Safety
//!
//! Relies on [`HostMemory`] for where the bytes are. The memory stays in the [`Transfer`] until its stream has passed the
//! copy; forgotten, a transfer leaks the memory and never frees it.

#![allow(unsafe_code, reason = "puts copies of owned memory into streams")]

use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{self, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::buffer::{DeviceRange, Enqueued};
use crate::driver::deferred::catch_panic;
use crate::driver::{fork, lock};
use crate::element::DeviceCopy;
use crate::error::{Error, Refused, Result};
use crate::host::{HostElements, HostMemory};
use crate::stream::{Marker, Quiet, Stream};

/// A copy under way between host memory that it owns and device memory.
///
/// The host does not wait until [`Transfer::wait`]. From pinned or registered memory the copy runs beside everything else;
/// from pageable memory the driver stages it first.
///
/// It is a future, too, which resolves to what [`Transfer::wait`] returns: while it is pending, a thread wakes its task every 100 µs.
///
/// Dropped early, it waits. If the driver refuses to, for a minute, or at once in a host function, the memory is leaked and counted
/// ([`Driver::release_failures`](crate::Driver::release_failures)). The device side is free to be used on any stream: later uses are ordered behind the copy.
///
/// ```
/// use cuda_mem_core::{DeviceBuffer, Driver, PinnedBuffer, Stream, Transfer, host::PinnedFlags};
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let stream = Stream::new(&context)?;
/// let pinned = PinnedBuffer::<u32>::zeroed(&context, 1024, PinnedFlags::default())?;
/// let device = DeviceBuffer::<u32>::uninit(&stream, 1024)?;
/// let upload = Transfer::upload(&stream, pinned, &device.whole())?;
/// let pinned = upload.wait()?;
/// assert_eq!(pinned.len(), 1024);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[must_use = "dropped, it waits for the copy"]
pub struct Transfer<M: HostMemory> {
    /// Not a plain `M`: moving a box would say that nobody else, such as a device, has its address. None once it was given back.
    memory: Option<MaybeUninit<M>>,
    /// The point behind the copy. Taken with the memory.
    copied: Option<Marker>,
}

// The memory is moved out as bytes, whatever it is.
impl<M: HostMemory> Unpin for Transfer<M> {}

impl<M: HostMemory> Transfer<M> {
    /// Copies all bytes of `source` to `target`, which must have as many.
    ///
    /// Wraps [`cuMemcpyAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html). Ordered on `stream`. A
    /// file mapping that is not registered, or a piece of a registered one below 64 KiB, is read from the file, and the call
    /// waits for the stream.
    ///
    /// # Errors
    ///
    /// The memory comes back with the error, but for [`Error::StillInUse`]: [`Error::LengthMismatch`], those of
    /// [`DeviceBuffer::on`](crate::DeviceBuffer::on), [`Error::Io`] if a file cannot be read.
    pub fn upload<T: DeviceCopy>(
        stream: &Stream,
        source: M,
        target: &DeviceRange<'_, T>,
    ) -> Result<Self, Refused<Option<M>>> {
        Self::start(stream, source, "Transfer::upload", |source| {
            if let Err(error) = source.order_behind_uses(stream) {
                return Enqueued::Nothing(error);
            }
            let bytes = source.byte_len();
            // SAFETY: the source stays in the transfer until the stream has passed the copy.
            unsafe { target.upload_from(stream, source, 0, bytes) }
        })
    }

    /// Whether the copy is done.
    ///
    /// Wraps [`cuEventQuery`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html).
    pub fn is_done(&self) -> Result<bool> {
        self.copied.as_ref().map_or(Ok(true), Marker::is_reached)
    }

    /// Waits until the copy is done, and gives the memory back. Blocks the calling thread.
    ///
    /// Wraps [`cuEventSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html).
    ///
    /// # Errors
    ///
    /// The memory comes back with the error, for no copy runs any more: [`Error::Driver`], also for work of the stream that
    /// failed before. With [`Error::StillInUse`] it does not: the device may use it still, and it is leaked. [`Error::GivenBack`] if it was
    /// polled to its end before, also where it is polled once more.
    pub fn wait(mut self) -> Result<M, Refused<Option<M>>> {
        self.finish()
    }

    fn finish(&mut self) -> Result<M, Refused<Option<M>>> {
        let memory = self.memory.take().ok_or_else(|| Refused::new(Error::GivenBack, None))?;
        let waited = self.copied.take().map_or(Quiet::Yes(Ok(())), |copied| copied.wait());
        let waited = match waited {
            Quiet::Yes(waited) => waited,
            // Leaked: the device may use it still.
            Quiet::Unknown(error) => return Err(Refused::new(error, None)),
        };
        // SAFETY: initialised in `start`, and taken out once. No copy uses it any more.
        let memory = unsafe { memory.assume_init() };
        match waited {
            Ok(()) => Ok(memory),
            Err(error) => Err(Refused::new(error, Some(memory))),
        }
    }

    fn start(
        stream: &Stream,
        memory: M,
        call: &'static str,
        enqueue: impl FnOnce(&mut M) -> Enqueued,
    ) -> Result<Self, Refused<Option<M>>> {
        let copied = match stream.refuse_capturing(call).and_then(|()| Marker::new(stream)) {
            Ok(copied) => copied,
            Err(error) => return Err(Refused::new(error, Some(memory))),
        };
        // Dropped, without a wait, if the program's code panics that is asked before the copy.
        let mut transfer = Self { memory: None, copied: None };
        // Wrapped before its address is taken: from here on it moves as bytes.
        let memory = transfer.memory.insert(MaybeUninit::new(memory));
        // SAFETY: initialised in the line above.
        let enqueued = enqueue(unsafe { memory.assume_init_mut() });
        let error = match enqueued.mark(&copied) {
            Quiet::Yes(Ok(())) => {
                transfer.copied = Some(copied);
                return Ok(transfer);
            }
            Quiet::Yes(Err(error)) => error,
            Quiet::Unknown(error) => {
                // Leaked: the device may use it still.
                transfer.memory = None;
                error
            }
        };
        Err(Refused::new(error, transfer.finish().ok()))
    }
}

impl<M: HostElements> Transfer<M> {
    /// Copies all of `source` to `target`, which must have as many bytes.
    ///
    /// Wraps [`cuMemcpyAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html). Ordered on `stream`.
    ///
    /// # Errors
    ///
    /// As [`Transfer::upload`]; and [`Error::ReadOnly`] if the target may not be written.
    pub fn download<T: DeviceCopy>(
        stream: &Stream,
        source: &DeviceRange<'_, T>,
        target: M,
    ) -> Result<Self, Refused<Option<M>>> {
        if !target.is_writable() {
            return Err(Refused::new(Error::ReadOnly, Some(target)));
        }
        Self::start(stream, target, "Transfer::download", |target| {
            if let Err(error) = target.order_behind_uses(stream) {
                return Enqueued::Nothing(error);
            }
            let (address, bytes) = (target.as_mut_ptr().cast::<u8>(), target.byte_len());
            // SAFETY: the target stays in the transfer, out of everybody's sight, until the stream has passed the copy; its
            // elements take any bytes.
            unsafe { source.download(stream, address, bytes) }
        })
    }
}

impl<M: HostMemory> Future for Transfer<M> {
    type Output = Result<M, Refused<Option<M>>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Self::Output> {
        let is_running = matches!(self.is_done(), Ok(false));
        if is_running && wake_soon(context.waker()) { Poll::Pending } else { Poll::Ready(self.finish()) }
    }
}

/// Has a task poll again after a while. False if there is no thread to do so: the caller waits by itself.
fn wake_soon(waker: &Waker) -> bool {
    const PAUSE: Duration = Duration::from_micros(100);
    static TASKS: Mutex<Option<Vec<Waker>>> = Mutex::new(None);
    // Before the lock: it is the program's code.
    let (waker, lock) = (waker.clone(), || lock(&TASKS));
    let mut tasks = lock();
    if tasks.is_none() {
        let wake = move || {
            loop {
                thread::sleep(PAUSE);
                let mut tasks = lock();
                let Some(woken) = tasks.take().filter(|woken| !woken.is_empty()) else { return };
                *tasks = Some(Vec::new());
                drop(tasks);
                // One that panics must not end the thread, which all tasks wait for.
                for task in woken {
                    catch_panic(|| task.wake());
                }
            }
        };
        if thread::Builder::new().name("cuda-mem-wake".into()).spawn(wake).is_err() {
            return false;
        }
    }
    tasks.get_or_insert_default().push(waker);
    true
}

impl<M: HostMemory> Drop for Transfer<M> {
    fn drop(&mut self) {
        let Some(mut memory) = self.memory.take() else { return };
        if let Some(copied) = self.copied.take()
            && !fork::forked()
        {
            let driver = copied.stream().driver();
            match copied.wait() {
                Quiet::Yes(Ok(())) => {}
                Quiet::Yes(Err(error)) => driver.report_release_failure(&error),
                // Leaked: the device may use it still.
                Quiet::Unknown(error) => return driver.report_release_failure(&error),
            }
        }
        // SAFETY: initialised in `start`, and dropped once: it was taken. No copy uses it any more; in a forked child none ever did.
        unsafe { memory.assume_init_drop() };
    }
}

impl_debug!([M: HostMemory] Transfer<M>, |it| copied: it.copied);
