//! Who has memory of a device, and what became of a copy of it.
//!
//! # Safety
//!
//! Relies on [`DeviceRange`] for the bounds of what is copied.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::fmt;

use cuda_mem_sys::{CUdeviceptr, CUresult};

use super::DeviceRange;
use crate::driver::{Context, Driver};
use crate::element::DeviceCopy;
use crate::error::{Error, Result, call};
use crate::pointer::{self, Attributes, MemoryKind};
use crate::stream::{Marker, Quiet, Stream};
use crate::uses::{Access, OpenUse, StreamUse, Uses};

/// What a stream that captures refuses.
const COPYING: &str = "a copy of memory that no graph keeps";

/// Who has memory of a device, for as long as it is borrowed: whoever frees it orders that behind the uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Borrowed<'m> {
    pub(crate) uses: &'m Uses,
    pub(crate) driver: Driver,
    /// The one that the memory was allocated in; none for memory that is mapped, which belongs to a device.
    pub(crate) context: Option<&'m Context>,
    /// Has streams wait for more than the uses.
    pub(crate) behind: Option<&'m dyn UsedElsewhere>,
}

impl<'m> Borrowed<'m> {
    pub(crate) fn of(uses: &'m Uses, context: &'m Context) -> Self {
        Self { uses, driver: context.driver(), context: Some(context), behind: None }
    }

    /// `bytes` bytes from an address on as elements, as many as fit. The caller has checked that the bytes are the memory's.
    pub(crate) fn range<T: DeviceCopy>(
        self,
        address: CUdeviceptr,
        bytes: usize,
    ) -> Result<DeviceRange<'m, T>> {
        let align = align_of::<T>();
        if !usize::try_from(address).is_ok_and(|address| address.is_multiple_of(align)) {
            return Err(Error::Misaligned { address, align });
        }
        Ok(DeviceRange::new(self, address, bytes.checked_div(size_of::<T>()).unwrap_or(0)))
    }

    /// Enters `stream` as a user that may write, until the result is dropped.
    pub(crate) fn on(self, address: CUdeviceptr, stream: &'m Stream) -> Result<StreamUse<'m>> {
        self.driver.expect_same(stream.driver(), "the stream")?;
        StreamUse::begin(address, self.uses, stream, Access::Write)
    }

    /// Orders `stream` behind the uses that `access` has to wait for, and enters it as a user until the result is ended.
    pub(super) fn begin(&self, stream: &'m Stream, access: Access) -> Result<OpenUse<'m>> {
        self.driver.expect_same(stream.driver(), "the stream")?;
        if let Some(elsewhere) = self.behind {
            elsewhere.order(stream)?;
        }
        self.uses.begin(stream, access)
    }

    /// Puts a copy into the stream, as unsafe as [`memcpy_async`](crate::copy::memcpy_async): by the call that finds out what lies at an
    /// address. Memory of a pool may be the host's, of which those know nothing that are told that it is a device's.
    pub(super) unsafe fn enqueue(
        &self,
        stream: &Stream,
        access: Access,
        (to, from, bytes): (CUdeviceptr, CUdeviceptr, usize),
    ) -> Enqueued {
        if bytes == 0 {
            return Enqueued::Copy;
        }
        let (open, entered) =
            match self.begin(stream, access).and_then(|open| Ok((open, stream.enter_context()?))) {
                Ok(begun) => begun,
                Err(error) => return Enqueued::Nothing(error),
            };
        if let Err(error) = stream.refuse_capturing(COPYING) {
            return Enqueued::Nothing(error);
        }
        // SAFETY: the caller's promise.
        let copied = unsafe { call!(stream.driver(), cuMemcpyAsync(to, from, bytes, entered.raw())) };
        let copied = copied.map_err(|error| explain(error, bytes, stream, &[to, from]));
        match copied.and_then(|()| open.end()).and_then(|()| stream.spoil_capture(COPYING)) {
            Ok(()) => Enqueued::Copy,
            Err(error) => Enqueued::Perhaps(error),
        }
    }
}

/// Memory that is used where [`Uses`] do not know of it, as by another process.
/// [`DeviceRange::behind`] takes it.
pub trait UsedElsewhere: fmt::Debug + Sync {
    /// Has `stream` wait for that. Every copy asks for it before it is put into its stream.
    ///
    /// # Errors
    ///
    /// Those of the owner, such as [`Error::Owner`]: nothing was copied then.
    fn order(&self, stream: &Stream) -> Result<()>;
}

/// The refusal of a copy, with its size, and with the devices if one of the addresses lies on another one than the stream's. Whether a stream
/// reaches another device's memory is the driver's to know, which is asked where memory lies only once it has refused.
#[cold]
pub(super) fn explain(error: Error, bytes: usize, stream: &Stream, addresses: &[CUdeviceptr]) -> Error {
    let Error::Driver(refusal) = error else { return error };
    let (refusal, context) = (refusal.with_bytes(bytes), stream.context());
    if refusal.code() != CUresult::CUDA_ERROR_INVALID_VALUE {
        return refusal.into();
    }
    let device = context.device().as_raw();
    // Every device reaches managed memory.
    let is_on_another =
        |known: &Attributes| known.kind == MemoryKind::Device && !known.managed && known.device != device;
    let mut known = addresses.iter().filter_map(|address| pointer::attributes(context, *address).ok());
    match known.find(is_on_another) {
        Some(known) => {
            Error::OtherDevice { memory: known.device, stream: device, refusal: Box::new(refusal.into()) }
        }
        None => refusal.into(),
    }
}

/// What became of a copy that was to be put into a stream.
#[derive(Debug)]
pub(crate) enum Enqueued {
    /// It is in the stream.
    Copy,
    /// It never got there.
    Nothing(Error),
    /// The failure is no proof that it is not in the stream.
    Perhaps(Error),
}

impl Enqueued {
    /// Waits until the copy does not run any more, for callers in the relaxed capture mode.
    pub(crate) fn wait(self, stream: &Stream) -> Quiet {
        match self {
            Self::Copy => stream.drain_relaxed(),
            Self::Nothing(error) => Quiet::Yes(Err(error)),
            Self::Perhaps(error) => stream.drain_relaxed().behind(error),
        }
    }

    /// Puts `marker` behind the copy. After an error nothing of the copy runs any more.
    pub(crate) fn mark(self, marker: &Marker) -> Quiet {
        match self {
            Self::Copy => marker.set(),
            Self::Nothing(error) => Quiet::Yes(Err(error)),
            Self::Perhaps(error) => marker.stream().drain().behind(error),
        }
    }
}

/// What all owners of memory have that is used on streams: where it is, copies, and uses. `$bytes`, `$address` and `$borrowed` are asked of the
/// owner.
macro_rules! used_memory {
    ($owner:ident, |$this:ident| $address:expr, $bytes:expr, $borrowed:expr) => {
        impl $owner {
            /// Where it begins here. It is valid while this value lives.
            #[must_use]
            pub fn as_raw(&self) -> cuda_mem_sys::CUdeviceptr {
                let $this = self;
                $address
            }

            /// How many bytes there are.
            #[must_use]
            pub fn bytes(&self) -> usize {
                let $this = self;
                $bytes
            }

            /// The memory as elements, to be copied on any stream, as many as fit. Makes no driver call.
            ///
            /// # Errors
            ///
            /// [`Error::Misaligned`](crate::Error::Misaligned) if it does not begin where an element may.
            pub fn as_range<T: crate::DeviceCopy>(&self) -> crate::Result<crate::DeviceRange<'_, T>> {
                let $this = self;
                $borrowed.range($address, $bytes)
            }

            /// Says that work which reads or writes the memory is about to be put into `stream`, and gives its address. See
            /// [`DeviceBuffer::on`](crate::DeviceBuffer::on), whose errors it has. It is not ordered behind work of another process: that
            /// takes a fence.
            pub fn on<'m>(&'m self, stream: &'m crate::Stream) -> crate::Result<crate::StreamUse<'m>> {
                let $this = self;
                $borrowed.on($address, stream)
            }
        }
    };
}
pub(crate) use used_memory;
