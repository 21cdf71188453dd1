//! K1: a buffer that was closed is gone.

use cuda_mem_core::{DeviceBuffer, Stream};

fn main() {}

fn used(buffer: DeviceBuffer<u8>, stream: &Stream) {
    buffer.close().unwrap();
    buffer.to_vec(stream).unwrap();
}
