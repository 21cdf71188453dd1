//! K3: a slice of managed memory does not outlive the memory, nor is it held while somebody may change it.

use cuda_mem_core::ManagedBuffer;

fn main() {}

fn kept(managed: ManagedBuffer<u8>) {
    let slice = managed.as_slice().unwrap();
    drop(managed);
    println!("{}", slice[0]);
}

fn changed(managed: &mut ManagedBuffer<u8>) {
    let slice = managed.as_slice().unwrap();
    managed.as_mut_slice().unwrap()[0] = 1;
    println!("{}", slice[0]);
}
