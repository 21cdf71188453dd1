//! Host memory that the driver allocates pinned.
//!
//! # Safety
//!
//! Relies on `cuMemHostAlloc` giving memory that belongs to its receiver until `cuMemFreeHost`, and on every device use of a buffer being in its
//! [`Uses`] or borrowing the buffer: work that is put into a stream without [`PinnedBuffer::on`] is its author's `unsafe` responsibility.

#![allow(unsafe_code, reason = "calls driver functions and hands out slices over pinned memory")]

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use bitflags::bitflags;
use cuda_mem_sys::{CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_WRITECOMBINED};

use super::memory::{HostElements, HostMemory};
use crate::driver::deferred::{Owned, Release};
use crate::driver::{Context, Handle};
use crate::element::{DeviceCopy, size_of_elements};
use crate::error::{Refused, Result, WithBytes, call};
use crate::pointer::device_address;
use crate::stream::Stream;
use crate::uses::{Access, Block, Free, OpenUse, StreamUse, Uses};

bitflags! {
    /// How pinned memory is allocated. [`PinnedBuffer`] has an example.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct PinnedFlags: u32 {
        /// Pinned for all contexts (`CU_MEMHOSTALLOC_PORTABLE`).
        const PORTABLE = CU_MEMHOSTALLOC_PORTABLE;
        /// Mapped into the device's address space (`CU_MEMHOSTALLOC_DEVICEMAP`).
        const MAPPED = CU_MEMHOSTALLOC_DEVICEMAP;
        /// Not cached by the host: faster for devices to read on some systems, very slow for the host to read (`CU_MEMHOSTALLOC_WRITECOMBINED`).
        const WRITE_COMBINED = CU_MEMHOSTALLOC_WRITECOMBINED;
    }
}

impl Default for PinnedFlags {
    /// [`PinnedFlags::PORTABLE`].
    fn default() -> Self {
        Self::PORTABLE
    }
}

/// Elements in pinned host memory, which devices copy from and to at the speed of the link.
///
/// ```
/// use cuda_mem_core::{DeviceBuffer, Driver, PinnedBuffer, Stream, host::PinnedFlags};
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let stream = Stream::new(&context)?;
/// let mut pinned = PinnedBuffer::<f32>::zeroed(&context, 1024, PinnedFlags::default())?;
/// pinned.as_mut_slice()?.fill(1.5);
/// let device = DeviceBuffer::from_slice(&stream, pinned.as_slice()?)?;
/// assert_eq!(device.to_vec(&stream)?[1023], 1.5);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
pub struct PinnedBuffer<T: DeviceCopy> {
    elements: Handle<T>,
    len: usize,
    /// Taken out when the buffer is dropped.
    block: Owned<Block>,
}

impl<T: DeviceCopy> PinnedBuffer<T> {
    /// Memory for `len` elements, all of whose bytes are zero. Nothing is allocated for zero bytes.
    ///
    /// Wraps [`cuMemHostAlloc`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html), which pins 2 to 3 GB a second.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`](crate::Error::TooLarge).
    pub fn zeroed(context: &Context, len: usize, flags: PinnedFlags) -> Result<Self> {
        let bytes = size_of_elements::<T>(len)?;
        context.driver().reclaim();
        let (_relaxed, _bound) = context.bind_relaxed()?;
        let mut address: *mut c_void = ptr::null_mut();
        if bytes > 0 {
            // SAFETY: one address to write; the context is current.
            unsafe { call!(context.driver(), cuMemHostAlloc(&mut address, bytes, flags.bits())) }
                .with_bytes(bytes)?;
            // SAFETY: `bytes` writable bytes that nobody else knows of.
            unsafe { ptr::write_bytes(address.cast::<u8>(), 0, bytes) };
        }
        let elements = if bytes > 0 { address.cast::<T>() } else { NonNull::dangling().as_ptr() };
        // SAFETY: memory that was just allocated, if any was.
        let block = unsafe { Block::new(address.expose_provenance() as u64, context, Free::Host) };
        Ok(Self { elements: Handle::new(elements), len, block })
    }

    /// The elements, once every device use that is known of has ended. Blocks the calling thread until then. Without recorded
    /// uses that takes no driver call.
    ///
    /// Wraps [`cuStreamSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html), or
    /// `cuEventSynchronize` where an event stands for a stream ([`Uses::wait`](crate::Uses::wait)).
    pub fn as_slice(&self) -> Result<&[T]> {
        self.block.uses.wait()?;
        // SAFETY: `len` initialised elements (zeroed first, and any bytes are values), which no device writes now; safe
        // device operations that write them take `&mut` of the buffer or of this slice.
        Ok(unsafe { std::slice::from_raw_parts(self.elements.raw(), self.len) })
    }

    /// The elements, to change, once every device use that is known of has ended. Errors: as [`PinnedBuffer::as_slice`].
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]> {
        self.block.uses.wait()?;
        // SAFETY: as in `as_slice`, and `&mut self` makes it the only reference.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.elements.raw(), self.len) })
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The context it was allocated in.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.block.context
    }

    /// Says that work which reads or writes the memory is about to be put into `stream`, and gives the device's address of it. See
    /// [`DeviceBuffer::on`](crate::DeviceBuffer::on). Work that writes while a slice is held is its author's responsibility.
    ///
    /// Wraps [`cuMemHostGetDevicePointer`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    ///
    /// # Errors
    ///
    /// As there, and [`Error::Driver`](crate::Error::Driver) if the device cannot reach the memory.
    pub fn on<'b>(&'b self, stream: &'b Stream) -> Result<StreamUse<'b>> {
        self.block.context.driver().expect_same(stream.driver(), "the stream")?;
        let memory = ptr::with_exposed_provenance(self.block.address as usize);
        let address = device_address(stream.context(), memory)?;
        StreamUse::begin(address, &self.block.uses, stream, Access::Write)
    }

    /// Enters `stream` as a user of words that every party accesses atomically, and which therefore needs no order.
    pub(crate) fn note<'b>(&'b self, stream: &'b Stream) -> Result<OpenUse<'b>> {
        self.block.uses.note(stream)
    }

    pub(crate) fn uses_mut(&mut self) -> &mut Uses {
        &mut self.block.uses
    }

    /// Takes over the uses of a part of the memory, whose own owner is gone: the release waits for them too.
    pub fn absorb_uses(&self, uses: Uses) {
        self.block.uses.absorb(uses);
    }

    /// Frees it now, and tells whether the driver took it. Waits for the device uses that it knows of, and the driver for all
    /// work of the context.
    ///
    /// Wraps [`cuMemFreeHost`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html). The buffer comes back with the error.
    pub fn close(mut self) -> Result<(), Refused<Self>> {
        self.block.release(true).map_err(|error| Refused::new(error, self))
    }
}

// SAFETY: memory that stays in place until the buffer is dropped. A device writes it only through `&mut` of the buffer or
// through its use set, which every way to the bytes waits for.
unsafe impl<T: DeviceCopy> HostMemory for PinnedBuffer<T> {
    fn as_ptr(&self) -> *const u8 {
        self.elements.raw().cast::<u8>()
    }

    fn byte_len(&self) -> usize {
        // Checked when the buffer was made.
        self.len.wrapping_mul(size_of::<T>())
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn order_behind_uses(&self, stream: &Stream) -> Result<()> {
        self.block.uses.order(stream)
    }

    fn wait_for_uses(&self) -> Result<()> {
        self.block.uses.wait()
    }
}

// SAFETY: `len` initialised elements that the buffer owns alone.
unsafe impl<T: DeviceCopy> HostElements for PinnedBuffer<T> {
    type Element = T;

    fn as_mut_ptr(&mut self) -> *mut T {
        self.elements.raw()
    }
}

impl Context {
    /// Waits until the context has done all that it was given, on whichever stream. Unlike [`Context::synchronize`] it ends no capture.
    ///
    /// Behind [`Context::wait_for_streams`], which has an example and the errors, a byte of pinned memory is freed by
    /// [`cuMemFreeHost`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html): the driver first waits for all work of the context
    /// (seen on hardware), and others' launches wait with it.
    pub fn wait_beside_captures(&self) -> Result<()> {
        self.wait_for_streams()?;
        let byte = PinnedBuffer::<u8>::zeroed(self, 1, PinnedFlags::empty())?;
        Ok(byte.close()?)
    }
}

impl_debug!([T: DeviceCopy] PinnedBuffer<T>, |it| address: it.elements.raw(), len: it.len);
