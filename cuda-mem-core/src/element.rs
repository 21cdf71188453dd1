//! What buffers may hold.
//!
//! # Safety
//!
//! Each implementation below is for a type without padding, pointers, drop glue or invalid bit patterns.

#![allow(unsafe_code, reason = "implements an unsafe trait for plain types")]

use crate::error::{Error, Result};

/// A type whose values are plain bytes, so that copies between host and device, in either direction, make valid values.
///
/// ```
/// use cuda_mem_core::{DeviceBuffer, DeviceCopy, Driver, Stream};
///
/// #[derive(Debug, Clone, Copy, PartialEq)]
/// #[repr(C)]
/// struct Point {
///     x: f32,
///     y: f32,
/// }
///
/// // SAFETY: two numbers of one size: no padding, and every bit pattern is a value.
/// unsafe impl DeviceCopy for Point {}
///
/// let stream = Stream::new(&Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?)?; // in a program: Driver::system()?
/// let points = [Point { x: 1.0, y: 2.0 }];
/// assert_eq!(DeviceBuffer::from_slice(&stream, &points)?.to_vec(&stream)?, points);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
///
/// # Safety
///
/// The type has no padding bytes (reading all its bytes is defined), every bit pattern is a valid value of it, and it has
/// no interior mutability.
#[diagnostic::on_unimplemented(note = "`DeviceCopy` says what types of your own may have it")]
pub unsafe trait DeviceCopy: Copy + Send + Sync + 'static {}

macro_rules! plain {
    ($($type:ty)*) => {$(
        // SAFETY: a primitive number: no padding, and every bit pattern is a value.
        unsafe impl DeviceCopy for $type {}
    )*};
}

plain!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);

// SAFETY: an array has no bytes besides its elements'.
unsafe impl<T: DeviceCopy, const N: usize> DeviceCopy for [T; N] {}

/// The bytes of `count` elements.
pub(crate) fn size_of_elements<T>(count: usize) -> Result<usize> {
    const {
        // What every allocation of the driver is aligned to, at the least.
        assert!(align_of::<T>() <= 256, "the driver aligns to 256 bytes");
    }
    let size = size_of::<T>();
    // The limit of what Rust calls one allocation, which slices over the memory rely on.
    let bytes = count.checked_mul(size).filter(|bytes| isize::try_from(*bytes).is_ok());
    bytes.ok_or(Error::TooLarge { count, size })
}
