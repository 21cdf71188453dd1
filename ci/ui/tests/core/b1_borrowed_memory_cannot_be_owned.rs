//! B1: a registration that could be forgotten owns its memory; a borrowed slice is registered in a scope.

use cuda_mem_core::Context;
use cuda_mem_core::host::{RegisterFlags, Registered};

fn main() {}

fn borrows(context: &Context, memory: &'static mut [u8]) {
    let _ = Registered::new(context, memory, RegisterFlags::default());
}
