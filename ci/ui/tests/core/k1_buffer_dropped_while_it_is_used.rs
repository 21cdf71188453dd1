//! K1: a buffer is not freed while work with it is being enqueued, nor while a range of it is held.

use cuda_mem_core::{DeviceBuffer, Stream};

fn main() {}

fn dropped_in_use(buffer: DeviceBuffer<u8>, stream: &Stream) {
    let words = buffer.on(stream).unwrap();
    drop(buffer);
    println!("{}", words.address());
}

fn dropped_in_parts(buffer: DeviceBuffer<u8>, stream: &Stream) {
    let part = buffer.range(1..2).unwrap();
    drop(buffer);
    part.fill_bytes(stream, 1).unwrap();
}
