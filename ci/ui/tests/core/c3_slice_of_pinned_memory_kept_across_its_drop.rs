//! C3: a slice of pinned memory does not outlive the memory.

use cuda_mem_core::PinnedBuffer;

fn main() {}

fn kept(pinned: PinnedBuffer<u8>) {
    let slice = pinned.as_slice().unwrap();
    drop(pinned);
    println!("{}", slice[0]);
}
