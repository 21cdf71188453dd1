//! One driver call under way: what every function of `api` gets first.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use cuda_mem_sys::{CUcontext, CUdevice, CUresult, CUstream};

use crate::driver::Driver;
use crate::memory::Memory;
use crate::order::Clock;
use crate::runtime::context::Context;
use crate::runtime::op::{Op, Outcome};
use crate::runtime::stream::Stream;
use crate::site::Site;

/// A driver call under way.
///
/// Only the dispatcher makes one, for the duration of a call through an entry point whose caller promised that pointers
/// point where the driver's manual says. Functions that follow such pointers are methods here for that reason.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) driver: &'a Driver,
    /// The name of the function, without version.
    pub(crate) function: &'static str,
    /// Counts calls of this driver from 1.
    pub(crate) number: u64,
    /// Whether the null stream is the calling thread's.
    pub(crate) per_thread: bool,
    /// The calling thread's number.
    pub(crate) thread: u64,
    /// The id of the stream that the call went to, once that is known.
    stream: Cell<u64>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(
        driver: &'a Driver,
        function: &'static str,
        number: u64,
        per_thread: bool,
        thread: u64,
    ) -> Self {
        Self { driver, function, number, per_thread, thread, stream: Cell::new(0) }
    }

    pub(crate) fn memory(&self) -> &'a Memory {
        &self.driver.memory
    }

    /// The id of the stream that the call went to, 0 if none was resolved.
    pub(crate) fn stream_id(&self) -> u64 {
        self.stream.get()
    }

    /// How reports name this call.
    pub(crate) fn site(&self) -> Site {
        Site {
            function: self.function,
            number: self.number,
            stream: self.stream.get(),
            thread: self.thread,
            backtrace: self.driver.backtrace(),
        }
    }

    // Contexts and devices

    /// The context that is current to the calling thread: 201 if there is none, 709 if it was destroyed, its sticky error
    /// if it has one.
    pub(crate) fn current(&self) -> Outcome<Arc<Context>> {
        let context = self.driver.runtime.current(self.thread)?;
        context.check()?;
        Ok(context)
    }

    /// The context of a handle, current or not: 201 for an unknown one.
    pub(crate) fn context(&self, handle: CUcontext) -> Outcome<Arc<Context>> {
        self.driver.runtime.context(handle.addr())
    }

    /// The ordinal of a device: 101 if there is none such.
    pub(crate) fn device(&self, device: CUdevice) -> Outcome<usize> {
        let ordinal = usize::try_from(device).map_err(|_| CUresult::CUDA_ERROR_INVALID_DEVICE)?;
        if ordinal < self.driver.config.devices.len() {
            Ok(ordinal)
        } else {
            Err(CUresult::CUDA_ERROR_INVALID_DEVICE)
        }
    }

    // Streams and order

    /// The stream of a handle: 0, 1 and 2 are the current context's default streams; 400 for unknown handles; the sticky
    /// error of its context if that has one; 906, and the end of the captures in question, for a legacy stream beside the
    /// capture of a stream that it would wait for. A stream that captures itself is given like any other.
    pub(crate) fn stream(&self, handle: CUstream) -> Outcome<Arc<Stream>> {
        let stream = self.stream_to_ask(handle)?;
        self.driver.runtime.lock().refuse_implicit_use(&stream)?;
        Ok(stream)
    }

    /// As [`stream`](Self::stream), for calls that only ask about captures and so end none.
    pub(crate) fn stream_to_ask(&self, handle: CUstream) -> Outcome<Arc<Stream>> {
        let stream = self.driver.runtime.stream(self.thread, self.per_thread, handle)?;
        self.stream.set(stream.id);
        stream.context.check()?;
        Ok(stream)
    }

    /// The stream that calls without a stream argument go to: the null stream.
    pub(crate) fn default_stream(&self) -> Outcome<Arc<Stream>> {
        self.stream(std::ptr::null_mut())
    }

    /// Refuses, with error 900 and the invalidation of the captures in question, calls that are unsafe while a capture is
    /// under way that the calling thread's capture mode lets it disturb.
    pub(crate) fn not_capturing(&self) -> Outcome<()> {
        self.driver.runtime.forbid_unsafe_call(self.thread)
    }

    /// As [`not_capturing`](Self::not_capturing), for waits for a stream, which a capture of that stream refuses in any mode.
    pub(crate) fn not_capturing_or(&self, stream: &Stream) -> Outcome<()> {
        self.driver.runtime.lock().refuse_if_capturing(stream)?;
        self.not_capturing()
    }

    /// Whether a stream captures.
    pub(crate) fn is_capturing(&self, stream: &Stream) -> bool {
        self.driver.runtime.is_capturing(stream)
    }

    /// Appends an operation to a stream's queue, or to the graph that the stream captures into.
    pub(crate) fn enqueue(&self, stream: &Arc<Stream>, op: Op) -> Outcome<()> {
        self.driver.runtime.enqueue(self, stream, op)
    }

    /// Runs an operation in the order of the null stream and waits for it, as calls without a stream argument do.
    pub(crate) fn run_sync(&self, op: Op) -> Outcome<()> {
        let stream = self.default_stream()?;
        self.driver.runtime.enqueue_synchronous(self, &stream, op)?;
        self.wait(&stream)
    }

    /// Waits for all that the stream was given so far; the host then knows that it is complete.
    pub(crate) fn wait(&self, stream: &Arc<Stream>) -> Outcome<()> {
        self.driver.runtime.wait_for_stream(stream)?;
        self.memory().after_synchronisation();
        Ok(())
    }

    /// Waits for all work of a context.
    pub(crate) fn wait_for_context(&self, context: &Arc<Context>) -> Outcome<()> {
        self.driver.runtime.wait_for_context(context)?;
        self.memory().after_synchronisation();
        Ok(())
    }

    /// A new moment of the host's timeline, for what the host does itself: an allocation, a free, an unmapping.
    pub(crate) fn host_clock(&self) -> Clock {
        self.driver.runtime.host_clock()
    }

    /// The clock of an operation that were enqueued on `stream` now.
    pub(crate) fn stream_clock(&self, stream: &Stream) -> Clock {
        self.driver.runtime.stream_clock(stream)
    }

    // Memory of the caller

    /// Writes a result through the caller's pointer: error 1 if it is null.
    pub(crate) fn put<T>(&self, to: *mut T, value: T) -> Outcome<()> {
        if to.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, and the caller of the entry point promised room for a value there (see `Call`). It may lie in
        // a packed buffer, so nothing is assumed of its alignment.
        unsafe { to.write_unaligned(value) };
        Ok(())
    }

    /// As [`put`](Self::put), for results that the caller need not want.
    pub(crate) fn put_if_wanted<T>(&self, to: *mut T, value: T) {
        if !to.is_null() {
            // SAFETY: as in `put`.
            unsafe { to.write_unaligned(value) };
        }
    }

    /// Reads an argument through the caller's pointer: error 1 if it is null.
    pub(crate) fn get<T: Copy>(&self, from: *const T) -> Outcome<T> {
        if from.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, and the caller of the entry point promised a value there (see `Call`).
        Ok(unsafe { from.read_unaligned() })
    }

    /// Reads `len` arguments in a row: error 1 if the pointer is null and there is anything to read.
    pub(crate) fn get_all<T: Copy>(&self, from: *const T, len: usize) -> Outcome<Vec<T>> {
        (0..len).map(|index| self.get(from.wrapping_add(index))).collect()
    }

    /// Writes `values` in a row.
    pub(crate) fn put_all<T>(&self, to: *mut T, values: impl IntoIterator<Item = T>) -> Outcome<()> {
        values.into_iter().enumerate().try_for_each(|(index, value)| self.put(to.wrapping_add(index), value))
    }

    /// A descriptor that the caller names by its number, as a pointer, and closes when it likes: error 999 if it can be none.
    pub(crate) fn descriptor(&self, number: *mut c_void) -> Outcome<BorrowedFd<'a>> {
        let number = i32::try_from(number.addr()).ok().filter(|&number| number >= 0);
        let number = number.ok_or(CUresult::CUDA_ERROR_UNKNOWN)?;
        // SAFETY: not -1. The caller promised an open descriptor for the duration of the call (see `Call`); for any other
        // number system calls fail, and nothing here closes it.
        Ok(unsafe { BorrowedFd::borrow_raw(number) })
    }

    /// A C string of the caller.
    pub(crate) fn text(&self, from: *const c_char) -> Outcome<&'a CStr> {
        if from.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, and the caller of the entry point promised a terminated string there for the duration of the
        // call (see `Call`), which the result does not outlive: it borrows from nothing that outlives the call's `'a`.
        Ok(unsafe { CStr::from_ptr(from) })
    }
}
