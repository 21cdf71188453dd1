//! What the driver knows of an address.
//!
//! # Safety
//!
//! Relies on `cuPointerGetAttributes` writing each attribute in the type that its documentation gives it.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::ffi::c_void;
use std::ptr;

use cuda_mem_sys::{CUcontext, CUdeviceptr, CUmemorytype, CUpointer_attribute};

use crate::driver::Context;
use crate::error::{Result, call};

/// Where memory lies. [`attributes`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// The driver does not know the address: ordinary host memory, or none at all.
    Unknown,
    /// Host memory, pinned or registered.
    Host,
    /// Device memory.
    Device,
    /// Another kind, by the driver's number.
    Other(u32),
}

/// What the driver knows of an address. [`attributes`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attributes {
    /// Where the memory lies.
    pub kind: MemoryKind,
    /// The number of the device that it lies on, or was allocated or registered for.
    pub device: i32,
    /// The address that devices use, 0 if they cannot.
    pub device_address: CUdeviceptr,
    /// The address that the host uses, null if it cannot.
    pub host_address: *mut c_void,
    /// Whether it is managed memory.
    pub managed: bool,
    /// Where the allocation starts that it lies in, 0 if none is known.
    pub range_start: CUdeviceptr,
    /// How many bytes that allocation has.
    pub range_size: usize,
    /// A number of the allocation that is never used again in the process.
    pub buffer_id: u64,
}

/// What the driver knows of `address`, which may be any number, as seen from a context.
///
/// Wraps [`cuPointerGetAttributes`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__UNIFIED.html). An address that
/// the driver does not know is no error: its kind is [`MemoryKind::Unknown`].
///
/// ```
/// use cuda_mem_core::pointer::{MemoryKind, attributes};
/// use cuda_mem_core::{DeviceBuffer, Driver, Stream};
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let buffer = DeviceBuffer::<u8>::uninit(&Stream::new(&context)?, 4096)?;
/// let known = attributes(&context, buffer.as_raw() + 100)?;
/// assert_eq!((known.kind, known.range_start, known.range_size), (MemoryKind::Device, buffer.as_raw(), 4096));
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
pub fn attributes(context: &Context, address: CUdeviceptr) -> Result<Attributes> {
    // Without a current context the driver gives no address for devices (seen on hardware).
    let _bound = context.bind()?;
    let mut owner: CUcontext = ptr::null_mut();
    let mut kind = 0u32;
    let mut device = 0i32;
    let mut device_address: CUdeviceptr = 0;
    let mut host_address: *mut c_void = ptr::null_mut();
    let mut managed = 0u32;
    let mut range_start: CUdeviceptr = 0;
    let mut range_size = 0usize;
    let mut buffer_id = 0u64;
    let mut names = [
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID,
    ];
    let mut values: [*mut c_void; 9] = [
        (&raw mut owner).cast(),
        (&raw mut kind).cast(),
        (&raw mut device).cast(),
        (&raw mut device_address).cast(),
        (&raw mut host_address).cast(),
        (&raw mut managed).cast(),
        (&raw mut range_start).cast(),
        (&raw mut range_size).cast(),
        (&raw mut buffer_id).cast(),
    ];
    // SAFETY: as many names as values, each value of the type that the driver writes for its name and alive until the call
    // returns; the address is only looked up.
    unsafe {
        call!(context.driver(), cuPointerGetAttributes(9, names.as_mut_ptr(), values.as_mut_ptr(), address))
    }?;
    // The driver calls unknown memory host memory, but knows no context and no buffer of it.
    let known = !owner.is_null() || buffer_id != 0 || range_size != 0;
    let kind = match CUmemorytype(kind) {
        _ if !known => MemoryKind::Unknown,
        CUmemorytype::CU_MEMORYTYPE_HOST => MemoryKind::Host,
        CUmemorytype::CU_MEMORYTYPE_DEVICE => MemoryKind::Device,
        CUmemorytype(other) => MemoryKind::Other(other),
    };
    let managed = managed != 0;
    Ok(Attributes { kind, device, device_address, host_address, managed, range_start, range_size, buffer_id })
}

/// The address by which the device of `context` reaches pinned or registered host memory; 0 for null.
///
/// Wraps [`cuMemHostGetDevicePointer`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
///
/// # Errors
///
/// [`Error::Driver`](crate::Error::Driver) if the memory is not pinned or the device cannot reach it.
pub fn device_address(context: &Context, host: *const u8) -> Result<CUdeviceptr> {
    if host.is_null() {
        return Ok(0);
    }
    let _bound = context.bind()?;
    let mut address = 0;
    // SAFETY: one address to write; the driver checks the host address; the context is current.
    unsafe { call!(context.driver(), cuMemHostGetDevicePointer(&mut address, host.cast_mut().cast(), 0)) }?;
    Ok(address)
}
