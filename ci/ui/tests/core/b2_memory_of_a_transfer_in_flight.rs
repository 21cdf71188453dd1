//! B2, C3: the memory of a transfer is out of sight until it was waited for.

use cuda_mem_core::{DeviceBuffer, PinnedBuffer, Stream, Transfer};

fn main() {}

fn reads_too_early(stream: &Stream, device: &DeviceBuffer<u8>, target: PinnedBuffer<u8>) {
    let transfer = Transfer::download(stream, &device.whole(), target).unwrap();
    println!("{:?}", target.as_slice());
    transfer.wait().unwrap();
}
