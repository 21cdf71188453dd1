//! Memory and order between processes, on any driver: the same tests run on the simulator and on a GPU.
//!
//! Each test starts its own program again, as the other processes: `common/pair.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../common/mod.rs"]
mod common;

mod chain;
mod death;
mod events;
mod host;
mod legacy;
mod pools;
mod vmm;
mod words;

use cuda_mem_core::{DeviceBuffer, Stream, copy};

/// Writes to an address and waits.
fn upload(stream: &Stream, address: u64, bytes: &[u8]) {
    let source = DeviceBuffer::from_slice(stream, bytes).unwrap();
    let from = source.on_read(stream).unwrap();
    // SAFETY: addresses of memory that the test keeps until the wait below.
    unsafe { copy::memcpy_async(stream, address, from.address(), bytes.len()) }.unwrap();
    stream.synchronize().unwrap();
}

/// What is at an address once the stream has come to it.
fn download(stream: &Stream, address: u64, len: usize) -> Vec<u8> {
    let target = DeviceBuffer::<u8>::zeroed(stream, len).unwrap();
    {
        let to = target.on(stream).unwrap();
        // SAFETY: as in `upload`.
        unsafe { copy::memcpy_async(stream, to.address(), address, len) }.unwrap();
    }
    target.to_vec(stream).unwrap()
}
