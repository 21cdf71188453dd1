//! Memory of a resource, owned.
//!
//! # Safety
//!
//! Relies on [`HostDeviceAccessible`] being true of what the resource gives, and on every use of the memory being recorded in its
//! buffer or borrowing it mutably: work that is put into a stream without [`Allocation::on`] is its author's `unsafe` responsibility.

#![allow(unsafe_code, reason = "hands out slices over memory that the host reaches")]

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;

use cuda_mem_core::host::{HostElements, HostMemory};
use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{DeviceBuffer, DeviceCopy, DeviceRange, Refused, Stream, StreamUse};

use super::{DeviceAccessible, HostDeviceAccessible};

/// Memory that a [`MemoryResource`](super::MemoryResource) gave.
///
/// It remembers every stream that uses it. Dropped, it goes back to its resource behind all of them, and keeps the resource
/// alive until then. Memory that the host reaches is a source and a target of copies ([`HostElements`]) and is read as a slice; memory
/// of devices alone is a [`DeviceBuffer`].
///
/// ```
/// use cuda_mem_pool::cuda_mem_core::{DeviceBuffer, Driver, Stream, Transfer};
/// use cuda_mem_pool::{MemoryResource, PinnedMemoryResource};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let mut block = PinnedMemoryResource::new(&context, None)?.allocate(4, &stream)?;
/// block.as_mut_slice()?.copy_from_slice(&[1, 2, 3, 4]);
/// let device = DeviceBuffer::<u8>::uninit(&stream, 4)?;
/// let block = Transfer::upload(&stream, block, &device.whole())?.wait()?;
/// assert_eq!(device.to_vec(&stream)?, block.as_slice()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Allocation<A> {
    buffer: DeviceBuffer<u8>,
    _access: PhantomData<A>,
}

impl<A> Allocation<A> {
    pub(crate) fn new(buffer: DeviceBuffer<u8>) -> Self {
        Self { buffer, _access: PhantomData }
    }

    /// Its size in bytes: what was asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Its address; 0 if it has no bytes. Host and devices use the same.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.buffer.as_raw()
    }

    /// The stream that it was allocated on and goes back on.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        self.buffer.stream()
    }

    /// Says that work which reads or writes the memory is about to be put into `stream`, as [`DeviceBuffer::on`] does.
    pub fn on<'b>(&'b self, stream: &'b Stream) -> cuda_mem_core::Result<StreamUse<'b>> {
        self.buffer.on(stream)
    }

    /// The memory as a buffer of elements, as many as fit, which still goes back to its resource. Makes no driver call.
    ///
    /// # Errors
    ///
    /// The allocation comes back with the error if it is not aligned for the elements.
    pub fn into_buffer<T: DeviceCopy>(self) -> Result<DeviceBuffer<T>, Refused<Self>> {
        self.buffer
            .cast()
            .map_err(|refused| Refused { error: refused.error, owner: Self::new(refused.owner) })
    }

    /// The memory for operations of a device: fills, and copies from and to other device memory.
    #[must_use]
    pub fn as_device_range(&mut self) -> DeviceRange<'_, u8> {
        self.buffer.whole()
    }

    /// Gives it back now, in stream order behind everything that used it, and tells whether its resource took it.
    ///
    /// # Errors
    ///
    /// The allocation comes back with the error, such as [`cuda_mem_core::Error::Capturing`] if a stream that used it captures.
    pub fn close(self) -> Result<(), Refused<Self>> {
        self.buffer
            .close()
            .map_err(|refused| Refused { error: refused.error, owner: Self::new(refused.owner) })
    }
}

/// What a buffer does, to copy from and to it above all.
impl Deref for Allocation<DeviceAccessible> {
    type Target = DeviceBuffer<u8>;

    fn deref(&self) -> &DeviceBuffer<u8> {
        &self.buffer
    }
}

impl Allocation<HostDeviceAccessible> {
    /// The bytes, once every use that is known of has ended, its allocation among them. They are whatever is there until
    /// they are written. Blocks the calling thread until then: see [`DeviceBuffer::synchronize`].
    ///
    /// # Errors
    ///
    /// [`cuda_mem_core::Error::Capturing`] if a stream that used it captures; [`cuda_mem_core::Error::Driver`], also for
    /// device work that failed.
    pub fn as_slice(&self) -> cuda_mem_core::Result<&[u8]> {
        self.buffer.synchronize()?;
        // SAFETY: the memory lives as long as `self`, is initialised, the host reaches it, and no device writes it now; no safe
        // operation can make one start while this borrow lives: those that write take `&mut self`.
        Ok(unsafe { std::slice::from_raw_parts(self.host_address(), self.len()) })
    }

    /// The bytes, to change, once every use that is known of has ended.
    pub fn as_mut_slice(&mut self) -> cuda_mem_core::Result<&mut [u8]> {
        self.buffer.synchronize()?;
        // SAFETY: as in `as_slice`; `&mut self` makes it the only reference.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.host_address(), self.len()) })
    }

    fn host_address(&self) -> *mut u8 {
        match usize::try_from(self.address()) {
            Ok(address) if address != 0 => ptr::with_exposed_provenance_mut(address),
            _ => ptr::NonNull::dangling().as_ptr(),
        }
    }
}

// SAFETY: the memory stays where it is while the value exists. What a device writes into it goes through `&mut` of this
// value or is recorded in its buffer, which every way to the bytes waits for.
unsafe impl HostMemory for Allocation<HostDeviceAccessible> {
    fn as_ptr(&self) -> *const u8 {
        self.host_address()
    }

    fn byte_len(&self) -> usize {
        self.len()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn order_behind_uses(&self, stream: &Stream) -> cuda_mem_core::Result<()> {
        self.buffer.order_behind_uses(stream)
    }

    fn wait_for_uses(&self) -> cuda_mem_core::Result<()> {
        self.buffer.synchronize()
    }
}

// SAFETY: bytes that the allocation owns alone, initialised as `MemoryResource` has it.
unsafe impl HostElements for Allocation<HostDeviceAccessible> {
    type Element = u8;

    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.host_address()
    }
}

crate::impl_debug!([A] Allocation<A>, |it| address: format_args!("{:#x}", it.address()), len: it.len());
