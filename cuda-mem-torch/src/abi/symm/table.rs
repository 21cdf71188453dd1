//! The addresses of all ranks on the device.

use std::ffi::c_int;
use std::sync::Mutex;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{DeviceBuffer, Stream};
use cuda_mem_ipc::symmetric::SymmetricMemory;

use crate::abi::devices::Device;
use crate::abi::error::Failure;
use crate::lock::lock;

/// Of each rank the buffer, then of each the pad.
#[derive(Debug)]
pub(super) struct Table(DeviceBuffer<u64>);

/// What they are copied on, one for each device. The program's own streams may be capturing.
static STREAMS: Mutex<Vec<(c_int, Stream)>> = Mutex::new(Vec::new());

impl Table {
    /// Returns when they are there.
    pub(super) fn new(device: &'static Device, memory: &dyn SymmetricMemory) -> Result<Self, Failure> {
        let addresses = [memory.buffer_ptrs(), memory.signal_pad_ptrs()].concat();
        Ok(Self(DeviceBuffer::from_slice(&stream_of(device)?, &addresses)?))
    }

    pub(super) fn buffers(&self) -> u64 {
        self.0.as_raw()
    }

    pub(super) fn pads(&self) -> u64 {
        self.0.as_raw() + (self.0.size_bytes() / 2) as u64
    }
}

fn stream_of(device: &'static Device) -> Result<Stream, Failure> {
    let mut streams = lock(&STREAMS);
    if let Some((_, stream)) = streams.iter().find(|(ordinal, _)| *ordinal == device.ordinal) {
        return Ok(stream.clone());
    }
    let made = Stream::new(&device.context)?;
    streams.push((device.ordinal, made.clone()));
    Ok(made)
}
