//! Stream memory operations: a stream writes a word, or waits for one.
//!
//! # Safety
//!
//! The functions are `unsafe`: they take addresses.

#![allow(unsafe_code, reason = "calls driver functions")]

use bitflags::bitflags;
use cuda_mem_sys::{CUdevice_attribute, CUdeviceptr, CUstreamWaitValue_flags};

use super::{Stream, idle};
use crate::driver::Device;
use crate::error::{Error, Result, call};

bitflags! {
    /// When a wait for a word ends.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct WaitFlags: u32 {
        /// When the word is equal to the value.
        const EQUAL = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ.0;
        /// When the word has a bit in common with the value.
        const AND = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_AND.0;
    }
}

/// Has `stream` write `value` to the word at `address` once all its earlier work is done and visible.
///
/// Wraps [`cuStreamWriteValue64`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEMOP.html). Ordered on `stream`.
///
/// # Capture
///
/// Becomes part of the graph if the stream captures.
///
/// # Safety
///
/// `address` must be that of 8 aligned bytes that the device can write (device memory, or pinned or registered host memory),
/// until the stream has passed this point; whoever else reads them does so atomically.
pub unsafe fn write_value64(stream: &Stream, address: CUdeviceptr, value: u64) -> Result<()> {
    let entered = stream.enter_context()?;
    // SAFETY: the caller's promise for the address; a live stream.
    unsafe { call!(stream.driver(), cuStreamWriteValue64(entered.raw(), address, value, 0)) }
}

/// Has `stream`'s later work wait until the word at `address` compares with `value` as `flags` say; without flags, until
/// `word - value`, as a signed number, is not negative.
///
/// Wraps [`cuStreamWaitValue64`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEMOP.html). Ordered on `stream`. A
/// word that is never written holds the stream up for ever.
/// Errors: as [`write_value64`].
///
/// # Safety
///
/// As [`write_value64`], but for reading.
pub unsafe fn wait_value64(
    stream: &Stream,
    address: CUdeviceptr,
    value: u64,
    flags: WaitFlags,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { wait_value64_and(stream, address, value, flags, || ()) }
}

/// As [`wait_value64`]; `given` is called once the stream has the wait, before anybody asks whether a word is awaited.
///
/// # Safety
///
/// As for [`wait_value64`].
pub(crate) unsafe fn wait_value64_and(
    stream: &Stream,
    address: CUdeviceptr,
    value: u64,
    flags: WaitFlags,
    given: impl FnOnce(),
) -> Result<()> {
    let entered = stream.enter_context()?;
    let _giving = idle::giving_a_wait(stream.driver());
    // SAFETY: the caller's promise for the address; a live stream.
    unsafe { call!(stream.driver(), cuStreamWaitValue64(entered.raw(), address, value, flags.bits())) }?;
    given();
    Ok(())
}

/// [`Error::Unsupported`] if the device's streams cannot wait for 64-bit words.
pub fn expect_supported(device: Device) -> Result<()> {
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
    if device.supports(attribute)? {
        return Ok(());
    }
    Err(Error::Unsupported { device: device.name()?, what: "stream memory operations on 64-bit words" })
}
