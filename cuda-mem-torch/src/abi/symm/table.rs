//! The addresses of all ranks on the device.

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::DeviceBuffer;
use cuda_mem_ipc::symmetric::SymmetricMemory;

use crate::abi::devices::Device;
use crate::abi::error::Failure;

/// Of each rank the buffer, then of each the pad.
#[derive(Debug)]
pub(super) struct Table(DeviceBuffer<u64>);

impl Table {
    /// Returns when they are there.
    pub(super) fn new(device: &'static Device, memory: &dyn SymmetricMemory) -> Result<Self, Failure> {
        let addresses = [memory.buffer_ptrs(), memory.signal_pad_ptrs()].concat();
        // The program's own streams may be capturing.
        Ok(Self(DeviceBuffer::from_slice(&device.own_stream()?, &addresses)?))
    }

    pub(super) fn buffers(&self) -> u64 {
        self.0.as_raw()
    }

    pub(super) fn pads(&self) -> u64 {
        self.0.as_raw() + (self.0.size_bytes() / 2) as u64
    }
}
