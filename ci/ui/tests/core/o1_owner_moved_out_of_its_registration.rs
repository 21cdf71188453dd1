//! O1: nobody gets at the registered vector itself, which could then be reallocated.

use cuda_mem_core::host::Registered;

fn main() {}

fn grows(mut registered: Registered<Vec<u8>>) {
    let vector: &mut Vec<u8> = registered.memory().unwrap();
    vector.push(1);
}
