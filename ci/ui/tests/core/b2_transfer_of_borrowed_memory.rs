//! B2: a copy that goes on after its call owns its memory.

use cuda_mem_core::{DeviceBuffer, Stream, Transfer};

fn main() {}

fn borrows(stream: &Stream, device: &DeviceBuffer<u8>, source: &[u8]) {
    let _ = Transfer::upload(stream, source, &device.whole());
}
