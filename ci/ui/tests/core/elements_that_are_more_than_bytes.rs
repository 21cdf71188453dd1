//! Device memory holds what is nothing but bytes: every bit pattern is a value, and no address means anything there.

use cuda_mem_core::{DeviceBuffer, Stream};

fn main() {}

#[derive(Clone, Copy)]
struct Padded {
    _byte: u8,
    _word: u32,
}

fn invalid_values(stream: &Stream) {
    let _ = DeviceBuffer::from_slice(stream, &[true]);
    let _ = DeviceBuffer::from_slice(stream, &['a']);
}

fn references(stream: &Stream) {
    let _ = DeviceBuffer::from_slice(stream, &[&1u8]);
}

fn owners(stream: &Stream) {
    let _ = DeviceBuffer::from_slice(stream, &[vec![1u8]]);
}

fn padding(stream: &Stream) {
    let _ = DeviceBuffer::from_slice(stream, &[Padded { _byte: 1, _word: 2 }]);
}
