//! C6: a use ends in the thread that enqueued its work, because a stream's handle may mean another stream elsewhere.

use cuda_mem_core::{DeviceBuffer, Stream};

fn main() {}

fn sent(buffer: &'static DeviceBuffer<u8>, stream: &'static Stream) {
    let words = buffer.on(stream).unwrap();
    std::thread::spawn(move || println!("{}", words.address()));
}
