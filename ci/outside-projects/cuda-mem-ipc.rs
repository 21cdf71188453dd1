//! A program whose only dependency is cuda-mem-ipc: it links.

use cuda_mem_ipc as _;

fn main() {}
