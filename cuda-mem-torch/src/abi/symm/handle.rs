//! What a rank has after the rendezvous.
//!
//! # Safety
//!
//! Declares functions for C, whose callers answer for the pointers, addresses and streams that they pass.

#![allow(unsafe_code, reason = "takes pointers of C")]

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::DeviceBuffer;
use cuda_mem_ipc::symmetric::{NativeBackend, SymmetricBackend, SymmetricMemory};

use crate::abi::devices::{self, Device};
use crate::abi::error::{Failure, entry};
use crate::abi::leaving;
use crate::abi::pointers::{expect, optional, pointer, read, text, write};
use crate::abi::streams::with;

/// An allocation on every rank of a group.
#[derive(Debug)]
pub struct cuda_mem_torch_symm_handle {
    /// Of each rank the buffer, then of each the pad. Kernels may read it as long as they use the memory.
    table: OnceLock<DeviceBuffer<u64>>,
    memory: Arc<dyn SymmetricMemory>,
    device: &'static Device,
}

/// What there is to know of one.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct cuda_mem_torch_symm_info {
    /// This process's rank.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// Bytes of the allocation, from its beginning.
    pub buffer_size: usize,
    /// Bytes of a signal pad: `uint32_t` slots for kernels, in PyTorch's layout.
    pub signal_pad_size: usize,
    /// How far behind the allocation's beginning the address of the rendezvous was.
    pub offset: usize,
}

/// Brings the ranks together over an allocation, by any address in it. Every rank calls it. The caller has the result until it gives it
/// to [`cuda_mem_torch_symm_close`].
///
/// # Safety
///
/// `name` is null, for whichever group it is of, or text; `handle` is a place for its address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_symm_rendezvous(
    device: c_int,
    address: *mut c_void,
    name: *const c_char,
    handle: *mut *mut cuda_mem_torch_symm_handle,
) -> c_int {
    entry(|| {
        expect(handle, "handle")?;
        // SAFETY: the caller's promise.
        let name = optional(name, || unsafe { text(name, "name") })?;
        let device = devices::device(device)?;
        let memory = NativeBackend::global().rendezvous(address.addr() as u64, name)?;
        // Work of another device would not be waited for when the handle is closed.
        let accepted = memory.device().as_raw();
        if device.ordinal != accepted {
            return Err(Failure::argument(format!(
                "the memory at {address:p} is on device {accepted}, and not on device {}",
                device.ordinal
            )));
        }
        let made =
            Box::into_raw(Box::new(cuda_mem_torch_symm_handle { table: OnceLock::new(), memory, device }));
        // SAFETY: the caller's promise.
        unsafe { write(handle, made, "handle") }
    })
}

/// What there is to know of it; and each rank's buffer and signal pad, where this process has them.
///
/// # Safety
///
/// The handle is one of [`cuda_mem_torch_symm_rendezvous`]; `info` is a place for it; `buffers` and `pads` are null or have room for an
/// address of each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_symm_describe(
    handle: *const cuda_mem_torch_symm_handle,
    info: *mut cuda_mem_torch_symm_info,
    buffers: *mut *mut c_void,
    pads: *mut *mut c_void,
) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let memory = &unsafe { read(handle, "handle") }?.memory;
        let told = cuda_mem_torch_symm_info {
            rank: memory.rank(),
            world_size: memory.world_size(),
            buffer_size: memory.buffer_size(),
            signal_pad_size: memory.signal_pad_size(),
            offset: memory.offset(),
        };
        // SAFETY: the caller's promise.
        unsafe { write(info, told, "info") }?;
        for (to, from) in [(buffers, memory.buffer_ptrs()), (pads, memory.signal_pad_ptrs())] {
            if to.is_null() {
                continue;
            }
            for (rank, address) in from.iter().enumerate() {
                // SAFETY: the caller's promise: there is room for each rank's.
                let place = unsafe { to.add(rank) };
                // SAFETY: as above.
                unsafe { place.write(pointer(*address)) };
            }
        }
        Ok(())
    })
}

/// The same addresses as arrays on the device, for kernels: each rank's buffer, and each one's signal pad. They are the handle's,
/// and end with it.
///
/// # Safety
///
/// The handle is one of [`cuda_mem_torch_symm_rendezvous`]; `buffers` and `pads` are places for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_symm_device_addresses(
    handle: *const cuda_mem_torch_symm_handle,
    buffers: *mut *mut c_void,
    pads: *mut *mut c_void,
) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { read(handle, "handle") }?;
        let table = match handle.table.get() {
            Some(table) => table,
            None => {
                let memory = &handle.memory;
                let addresses = [memory.buffer_ptrs(), memory.signal_pad_ptrs()].concat();
                // The program's own streams may be capturing.
                let made = DeviceBuffer::from_slice(&handle.device.own_stream()?, &addresses)?;
                // Another thread's is the same.
                handle.table.get_or_init(|| made)
            }
        };
        let pads_of = table.as_raw() + (table.size_bytes() / 2) as u64;
        // SAFETY: the caller's promise.
        unsafe { write(buffers, pointer(table.as_raw()), "buffers") }?;
        // SAFETY: the caller's promise.
        unsafe { write(pads, pointer(pads_of), "pads") }
    })
}

fn timeout(milliseconds: u64) -> Option<Duration> {
    (milliseconds != 0).then(|| Duration::from_millis(milliseconds))
}

/// Has later work of a stream wait for the earlier work of all ranks that call it on the same channel; `timeout_ms` of 0 is for ever.
///
/// # Safety
///
/// The handle is one of [`cuda_mem_torch_symm_rendezvous`], the stream one of its device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_symm_barrier(
    handle: *const cuda_mem_torch_symm_handle,
    stream: *mut c_void,
    channel: usize,
    timeout_ms: u64,
) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { read(handle, "handle") }?;
        with(handle.device, stream, |stream| {
            Ok(handle.memory.barrier(stream, channel, timeout(timeout_ms))?)
        })
    })
}

/// Signals rank `to` when everything is done that the stream was given so far.
///
/// # Safety
///
/// As [`cuda_mem_torch_symm_barrier`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_symm_put_signal(
    handle: *const cuda_mem_torch_symm_handle,
    stream: *mut c_void,
    to: usize,
    channel: usize,
) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { read(handle, "handle") }?;
        with(handle.device, stream, |stream| Ok(handle.memory.put_signal(stream, to, channel)?))
    })
}

/// Has later work of the stream wait for the next signal of rank `from`.
///
/// # Safety
///
/// As [`cuda_mem_torch_symm_barrier`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_symm_wait_signal(
    handle: *const cuda_mem_torch_symm_handle,
    stream: *mut c_void,
    from: usize,
    channel: usize,
    timeout_ms: u64,
) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { read(handle, "handle") }?;
        with(handle.device, stream, |stream| {
            Ok(handle.memory.wait_signal(stream, from, channel, timeout(timeout_ms))?)
        })
    })
}

/// Ends the use of a handle, after a wait for its device. While a stream of the device captures, that is left to a later call. Null
/// is nothing.
///
/// # Safety
///
/// It is one of [`cuda_mem_torch_symm_rendezvous`], closed once; what uses the memory was given to the device before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_symm_close(handle: *mut cuda_mem_torch_symm_handle) -> c_int {
    entry(|| {
        if handle.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise: made by `Box::into_raw`, and nobody else's from here on.
        let handle = unsafe { Box::from_raw(handle) };
        leaving::push(vec![handle.device], move || drop(handle));
        leaving::settle();
        Ok(())
    })
}
