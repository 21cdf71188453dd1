//! A program whose only dependency is cuda-mem-pool: it links.

use cuda_mem_pool as _;

fn main() {}
