//! Managed memory: one address for host and devices, whose pages move to whoever touches them.
//!
//! # Safety
//!
//! Relies on `cuMemAllocManaged` giving memory that the host may read and write whenever no device uses it (and, on devices
//! without concurrent managed access, whenever no work runs at all), and on every device use of a buffer being in its
//! [`Uses`]: work that is put into a stream without [`ManagedBuffer::on`] is its author's `unsafe` responsibility.

#![allow(unsafe_code, reason = "calls driver functions and hands out slices over managed memory")]

use std::fmt;
use std::marker::PhantomData;

use cuda_mem_sys::{CUdevice_attribute, CUdeviceptr, CUmemAttach_flags};

use super::StreamUse;
use crate::context::Context;
use crate::driver::refuse_forked;
use crate::element::{DeviceCopy, size_of_elements};
use crate::error::{Error, Refused, Result, WithBytes, call};
use crate::fork;
use crate::stream::Stream;
use crate::uses::{Access, Uses};

/// Elements in managed memory.
///
/// The host sees them through slices that are given out only after every recorded device use has ended.
///
/// ```
/// use cuda_mem_core::{Driver, ManagedBuffer};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let mut buffer = ManagedBuffer::<u32>::zeroed(&context, 4)?;
/// buffer.as_mut_slice()?[2] = 7;
/// assert_eq!(buffer.as_slice()?, [0, 0, 7, 0]);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
pub struct ManagedBuffer<T: DeviceCopy> {
    address: CUdeviceptr,
    len: usize,
    context: Context,
    /// Whether the host may touch the memory while devices run other work.
    concurrent: bool,
    uses: Uses,
    _elements: PhantomData<T>,
}

impl<T: DeviceCopy> ManagedBuffer<T> {
    /// Memory for `len` elements, all of whose bytes are zero, reachable from every stream (`CU_MEM_ATTACH_GLOBAL`).
    /// Nothing is allocated for zero bytes.
    ///
    /// Wraps [`cuMemAllocManaged`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html). The host zeroes the
    /// pages, and so has them first.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`], [`Error::TooLarge`], [`Error::Driver`], [`Error::Forked`].
    pub fn zeroed(context: &Context, len: usize) -> Result<Self> {
        refuse_forked()?;
        let bytes = size_of_elements::<T>(len)?;
        let device = context.device();
        if !device.supports(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)? {
            return Err(Error::Unsupported { device: device.name()?, what: "managed memory" });
        }
        let concurrent =
            device.supports(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)?;
        let mut address = 0;
        if bytes > 0 {
            let (_relaxed, _bound) = context.bind_relaxed()?;
            let flags = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0;
            // SAFETY: one address to write; the context is current.
            unsafe { call!(context.driver(), cuMemAllocManaged(&mut address, bytes, flags)) }
                .with_bytes(bytes)?;
        }
        let buffer = Self {
            address,
            len,
            context: context.clone(),
            concurrent,
            uses: Uses::default(),
            _elements: PhantomData,
        };
        if bytes > 0 {
            buffer.quiet()?;
            // SAFETY: `bytes` writable bytes that nobody else knows of yet.
            unsafe { std::ptr::write_bytes(buffer.host_address().cast::<u8>(), 0, bytes) };
        }
        Ok(buffer)
    }

    /// The elements, once every device use has ended.
    ///
    /// # Capture
    ///
    /// Fails if a stream that used it captures, and the capture with it.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], also for device work that failed; [`Error::Forked`].
    pub fn as_slice(&self) -> Result<&[T]> {
        self.quiet()?;
        // SAFETY: `len` initialised elements (zeroed first, and any bytes are values), which no device uses any more and
        // no safe call can make one use: safe device operations on managed memory do not exist, `on` only gives an address.
        Ok(unsafe { std::slice::from_raw_parts(self.host_address(), self.len) })
    }

    /// The elements, to change, once every device use has ended.
    ///
    /// # Capture
    ///
    /// As [`ManagedBuffer::as_slice`].
    ///
    /// # Errors
    ///
    /// As [`ManagedBuffer::as_slice`].
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]> {
        self.quiet()?;
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
        &self.context
    }

    /// Its address, the same for host and devices; 0 if it has no bytes.
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.address
    }

    /// Says that work which reads or writes the memory is about to be put into `stream`, and gives the address for it. See
    /// [`DeviceBuffer::on`](super::DeviceBuffer::on). Work that runs while a slice is held is its author's responsibility.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn on<'b>(&'b self, stream: &'b Stream) -> Result<StreamUse<'b>> {
        if stream.driver() != self.context.driver() {
            return Err(Error::ForeignContext { what: "the stream" });
        }
        self.uses.begin(stream, Access::Write)?;
        Ok(StreamUse::new(self.address, &self.uses, stream))
    }

    /// Frees it now, and tells whether the driver took it. Waits for every device use.
    ///
    /// # Errors
    ///
    /// The buffer comes back with the error.
    pub fn close(mut self) -> Result<(), Refused<Self>> {
        match self.free() {
            Ok(()) => {
                self.address = 0;
                Ok(())
            }
            Err(error) => Err(Refused::new(error, self)),
        }
    }

    fn free(&self) -> Result<()> {
        refuse_forked()?;
        if self.address == 0 {
            return Ok(());
        }
        if self.uses.any_capturing()? {
            return Err(Error::Capturing { call: "ManagedBuffer::close" });
        }
        self.uses.synchronize()?;
        let _relaxed = crate::capture::Relaxed::enter(self.context.driver())?;
        // SAFETY: memory that this value owns, freed once; no recorded use of it runs any more.
        unsafe { call!(self.context.driver(), cuMemFree(self.address)) }
    }

    /// Waits until the host may touch the memory.
    fn quiet(&self) -> Result<()> {
        refuse_forked()?;
        self.uses.synchronize()?;
        if self.concurrent || self.address == 0 { Ok(()) } else { self.context.synchronize() }
    }

    fn host_address(&self) -> *mut T {
        if self.address == 0 {
            return std::ptr::NonNull::dangling().as_ptr();
        }
        // A managed address is a host address of this process.
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }
}

impl<T: DeviceCopy> Drop for ManagedBuffer<T> {
    fn drop(&mut self) {
        if self.address != 0 && !fork::forked() {
            self.context.driver().release(|| self.free());
        }
    }
}

impl<T: DeviceCopy> fmt::Debug for ManagedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagedBuffer")
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
