//! A program whose only dependency is cuda-mem-torch: it links.

use cuda_mem_torch as _;

fn main() {}
