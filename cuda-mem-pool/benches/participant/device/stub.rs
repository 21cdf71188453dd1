//! Stands in for ours until `CachingAllocator` is there: lists of free blocks by size, behind one lock. Its figures mean
//! nothing.

use std::alloc::Layout;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cuda_mem_pool::cuda_mem_core::{Context, Stream};
use cuda_mem_pool::{DeviceMemoryResource, DeviceMemoryResourceOptions, Error, MemoryResource, RawResource};

use super::allocator::{Allocator, Told};

pub(crate) struct Caching {
    pool: Arc<dyn RawResource>,
    stream: Stream,
    blocks: Mutex<Blocks>,
}

#[derive(Default)]
struct Blocks {
    /// Sizes by address.
    all: HashMap<u64, usize>,
    free: HashMap<usize, Vec<u64>>,
}

impl Caching {
    pub(crate) fn new(context: &Context, _sharded: bool) -> Result<Self, Error> {
        let pool = DeviceMemoryResource::new(context, &DeviceMemoryResourceOptions::default())?.raw();
        Ok(Self { pool, stream: Stream::new(context)?, blocks: Mutex::default() })
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes.max(1).next_power_of_two(), 256).unwrap_or(Layout::new::<u8>())
    }
}

impl Allocator for Caching {
    fn allocate(&self, bytes: usize, _stream: &Stream) -> Result<u64, Error> {
        let layout = Self::layout(bytes);
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(address) = blocks.free.get_mut(&layout.size()).and_then(Vec::pop) {
            return Ok(address);
        }
        let address = self.pool.allocate(layout, &self.stream)?;
        blocks.all.insert(address, layout.size());
        Ok(address)
    }

    unsafe fn free(&self, address: u64) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = blocks.all.get(&address).copied().unwrap_or(0);
        blocks.free.entry(bytes).or_default().push(address);
    }

    fn told(&self) -> Told {
        let blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        Told {
            reserved: Some(blocks.all.values().map(|bytes| *bytes as u64).sum()),
            metadata: Some(blocks.all.len() as u64 * 32),
            driver_calls: Some(blocks.all.len() as u64),
        }
    }
}

impl Drop for Caching {
    fn drop(&mut self) {
        let blocks = self.blocks.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (address, bytes) in &blocks.all {
            // SAFETY: allocated above with this layout; nobody uses it any more.
            let _ = unsafe { self.pool.deallocate(*address, Self::layout(*bytes), &self.stream) };
        }
        let _ = self.stream.synchronize();
    }
}
