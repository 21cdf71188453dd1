//! T8: an allocator of pools that gives an address which is somebody else's. Who implements the trait has to promise that it does not.

use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Device, Stream};
use cuda_mem_torch::Result;
use cuda_mem_torch::symm::MempoolAllocator;

struct Lies(u64);

impl MempoolAllocator for Lies {
    fn alloc(&self, _: usize, _: Device, _: &Stream) -> Result<u64> {
        Ok(self.0)
    }

    unsafe fn free(&self, _: u64, _: usize, _: Device, _: &Stream) -> Result<()> {
        Ok(())
    }
}

fn main() {}
