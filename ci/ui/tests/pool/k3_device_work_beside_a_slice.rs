//! K3: while a slice of an allocation is borrowed, no safe call has a device write it, moves it, or gives it back.

use cuda_mem_core::Stream;
use cuda_mem_pool::{Allocation, HostDeviceAccessible};

fn main() {}

fn filled(block: &mut Allocation<HostDeviceAccessible>, stream: &Stream) {
    let slice = block.as_slice().unwrap();
    block.as_device_range().fill_bytes(stream, 1).unwrap();
    println!("{}", slice[0]);
}

fn written_twice(block: &mut Allocation<HostDeviceAccessible>) {
    let one = block.as_mut_slice().unwrap();
    let two = block.as_mut_slice().unwrap();
    one[0] = two[0];
}

fn range_kept(block: &mut Allocation<HostDeviceAccessible>, stream: &Stream) {
    let range = block.as_device_range();
    let slice = block.as_slice().unwrap();
    range.fill_bytes(stream, 1).unwrap();
    println!("{}", slice[0]);
}

fn given_back(block: Allocation<HostDeviceAccessible>) {
    let slice = block.as_slice().unwrap();
    drop(block);
    println!("{}", slice[0]);
}

fn as_a_buffer(block: Allocation<HostDeviceAccessible>) {
    let slice = block.as_slice().unwrap();
    let _buffer = block.into_buffer::<u8>();
    println!("{}", slice[0]);
}
