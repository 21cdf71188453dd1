//! Events that other processes wait for.
//!
//! # Safety
//!
//! Relies on `cuIpcOpenEventHandle` giving a handle of this process, which is destroyed like any event's.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::ptr;

use cuda_mem_sys::{CUevent, CUevent_flags, CUipcEventHandle_v1};

use crate::driver::{Context, Event, opaque};
use crate::error::{Result, call};

opaque! {
    /// Names an event for other processes: 64 bytes that may travel over any channel. [`InterprocessEvent`] has an example.
    EventHandle
}

/// An event without a time that other processes can wait for, and record.
///
/// A process that waits sees the last record at the time of its call, of whichever process. If the process that recorded it is
/// killed before the work is done, the event is never reached, and a host that waits for it never returns (seen on hardware):
/// a [`FenceLine`](crate::FenceLine) of [`SharedWords`](super::SharedWords) can be completed from outside.
///
/// ```
/// use cuda_mem_core::{Driver, Stream, ipc::InterprocessEvent};
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let event = InterprocessEvent::new(&context)?;
/// Stream::new(&context)?.record(event.event())?;
/// // SAFETY: the event stays until the other process has dropped its own.
/// let bytes = *unsafe { event.handle() }?.as_bytes(); // to be sent; there: OpenedEvent::open(&context, &EventHandle::from_bytes(bytes))
/// # let _ = bytes;
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug)]
pub struct InterprocessEvent {
    event: Event,
}

/// An event of another process: it can be waited for and recorded, and not be exported once more. [`InterprocessEvent`] has an
/// example.
#[derive(Debug)]
pub struct OpenedEvent {
    event: Event,
}

impl InterprocessEvent {
    /// An event that can be exported.
    ///
    /// Wraps [`cuEventCreate`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html) with
    /// `CU_EVENT_INTERPROCESS` and `CU_EVENT_DISABLE_TIMING`.
    pub fn new(context: &Context) -> Result<Self> {
        let flags = CUevent_flags::CU_EVENT_INTERPROCESS | CUevent_flags::CU_EVENT_DISABLE_TIMING;
        Ok(Self { event: Event::create(context, flags)? })
    }

    /// The event, to be recorded ([`Stream::record`](crate::Stream::record)) and waited for.
    #[must_use]
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// What another process opens it by. It takes this process to be alive.
    ///
    /// Wraps [`cuIpcGetEventHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    ///
    /// # Safety
    ///
    /// No other process uses the event by the result when this value destroys it: that is undefined
    /// ([`cuIpcOpenEventHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html)).
    pub unsafe fn handle(&self) -> Result<EventHandle> {
        let context = self.event.context();
        let (_relaxed, _bound) = context.bind_relaxed()?;
        let mut handle = CUipcEventHandle_v1::default();
        // SAFETY: one handle to write; a live event; the context is current.
        unsafe { call!(context.driver(), cuIpcGetEventHandle(&mut handle, self.event.handle())) }?;
        Ok(EventHandle { bytes: handle.reserved.map(|byte| byte.to_ne_bytes()[0]) })
    }
}

impl OpenedEvent {
    /// Opens an event of another process. Opened twice, it has two handles here, each of which is destroyed once.
    ///
    /// Wraps [`cuIpcOpenEventHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver): code 201 for a handle of this process, 205 for bytes that are none.
    pub fn open(context: &Context, handle: &EventHandle) -> Result<Self> {
        let (_relaxed, _bound) = context.bind_relaxed()?;
        let reserved = handle.bytes.map(|byte| std::ffi::c_char::from_ne_bytes([byte]));
        let mut raw: CUevent = ptr::null_mut();
        let handle = CUipcEventHandle_v1 { reserved };
        // SAFETY: one handle to write; any bytes may be asked about; the context is current.
        unsafe { call!(context.driver(), cuIpcOpenEventHandle(&mut raw, handle)) }?;
        Ok(Self { event: Event::opened(context, raw) })
    }

    /// The event, to be waited for and recorded.
    #[must_use]
    pub fn event(&self) -> &Event {
        &self.event
    }
}
