//! K3: there is no Rust reference to device memory, nor to managed memory without a wait.

use cuda_mem_core::{DeviceBuffer, DeviceRange, ManagedBuffer, PinnedBuffer};

fn main() {}

fn buffer(buffer: &DeviceBuffer<u8>) -> &[u8] {
    buffer
}

fn range<'b>(range: &'b DeviceRange<'b, u8>) -> &'b [u8] {
    range
}

fn managed(buffer: &ManagedBuffer<u8>) -> &[u8] {
    buffer
}

fn pinned(buffer: &PinnedBuffer<u8>) -> u8 {
    buffer[0]
}
