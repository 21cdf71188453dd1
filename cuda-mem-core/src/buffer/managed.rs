//! Managed memory: one address for host and devices, whose pages move to whoever touches them.
//!
//! # Safety
//!
//! Relies on `cuMemAllocManaged` giving memory that the host may read and write whenever no device uses it (which holds for
//! devices with concurrent managed access, and others are refused), and on every device use of a buffer being in its
//! [`Uses`](crate::Uses): work that is put into a stream without [`ManagedBuffer::on`] is its author's `unsafe` responsibility.

#![allow(unsafe_code, reason = "calls driver functions and hands out slices over managed memory")]

use std::marker::PhantomData;

use cuda_mem_sys::{CUdevice_attribute, CUdeviceptr, CUmemAttach_flags};

use crate::driver::deferred::{Owned, Release};
use crate::driver::{Context, refuse_forked};
use crate::element::{DeviceCopy, size_of_elements};
use crate::error::{Error, Refused, Result, WithBytes, call};
use crate::stream::Stream;
use crate::uses::{Access, Block, Free, StreamUse};

/// Elements in managed memory.
///
/// The host sees them through slices that are given out only after every recorded device use has ended.
///
/// ```
/// use cuda_mem_core::{Driver, ManagedBuffer};
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let mut buffer = ManagedBuffer::<u32>::zeroed(&context, 4)?;
/// buffer.as_mut_slice()?[2] = 7;
/// assert_eq!(buffer.as_slice()?, [0, 0, 7, 0]);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
pub struct ManagedBuffer<T: DeviceCopy> {
    /// Taken out when the buffer is dropped.
    block: Owned<Block>,
    len: usize,
    _elements: PhantomData<T>,
}

impl<T: DeviceCopy> ManagedBuffer<T> {
    /// Memory for `len` elements, all of whose bytes are zero, reachable from every stream (`CU_MEM_ATTACH_GLOBAL`).
    /// Nothing is allocated for zero bytes.
    ///
    /// Wraps [`cuMemAllocManaged`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html). The host zeroes the
    /// pages, and so has them first.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`], [`Error::TooLarge`].
    pub fn zeroed(context: &Context, len: usize) -> Result<Self> {
        refuse_forked()?;
        let bytes = size_of_elements::<T>(len)?;
        let device = context.device();
        // Without it the host may not touch any managed memory while any work runs on the device.
        if !device.supports(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)? {
            let what = "managed memory that host and device use at the same time";
            return Err(Error::Unsupported { device: device.name()?, what });
        }
        context.driver().reclaim();
        let mut address: CUdeviceptr = 0;
        if bytes > 0 {
            let (_relaxed, _bound) = context.bind_relaxed()?;
            let flags = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0;
            // SAFETY: one address to write; the context is current.
            unsafe { call!(context.driver(), cuMemAllocManaged(&mut address, bytes, flags)) }
                .with_bytes(bytes)?;
        }
        // SAFETY: memory that was just allocated, if any was.
        let block = unsafe { Block::new(address, context, Free::Device) };
        let buffer = Self { block, len, _elements: PhantomData };
        if bytes > 0 {
            // SAFETY: `bytes` writable bytes that nobody else knows of yet.
            unsafe { std::ptr::write_bytes(buffer.host_address().cast::<u8>(), 0, bytes) };
        }
        Ok(buffer)
    }

    /// The elements, once every device use has ended.
    pub fn as_slice(&self) -> Result<&[T]> {
        self.block.uses.wait()?;
        // SAFETY: `len` initialised elements (zeroed first, and any bytes are values), which no device uses any more and
        // no safe call can make one use: safe device operations on managed memory do not exist, `on` only gives an address.
        Ok(unsafe { std::slice::from_raw_parts(self.host_address(), self.len) })
    }

    /// The elements, to change, once every device use has ended.
    /// Errors: as [`ManagedBuffer::as_slice`].
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]> {
        self.block.uses.wait()?;
        // SAFETY: as in `as_slice`, and `&mut self` makes it the only reference.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.host_address(), self.len) })
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

    /// Its address, the same for host and devices; 0 if it has no bytes.
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.block.address
    }

    /// Says that work which reads or writes the memory is about to be put into `stream`, and gives the address for it. See
    /// [`DeviceBuffer::on`](super::DeviceBuffer::on). Work that runs while a slice is held is its author's responsibility.
    /// Errors: as there.
    pub fn on<'b>(&'b self, stream: &'b Stream) -> Result<StreamUse<'b>> {
        self.block.context.driver().expect_same(stream.driver(), "the stream")?;
        StreamUse::begin(self.block.address, &self.block.uses, stream, Access::Write)
    }

    /// Frees it now, and tells whether the driver took it. Waits for every device use, and the driver for all work of the
    /// context.
    ///
    /// Wraps [`cuMemFree`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    /// The buffer comes back with the error.
    pub fn close(mut self) -> Result<(), Refused<Self>> {
        self.block.release(true).map_err(|error| Refused::new(error, self))
    }

    fn host_address(&self) -> *mut T {
        if self.block.address == 0 {
            return std::ptr::NonNull::dangling().as_ptr();
        }
        // A managed address is a host address of this process.
        std::ptr::with_exposed_provenance_mut(self.block.address as usize)
    }
}

impl_debug!([T: DeviceCopy] ManagedBuffer<T>, |it| address: format_args!("{:#x}", it.as_raw()), len: it.len);
