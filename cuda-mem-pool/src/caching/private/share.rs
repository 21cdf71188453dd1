//! Blocks for other processes, and what only private pools give.

use std::os::fd::OwnedFd;

use cuda_mem_core::Stream;
use cuda_mem_core::sys::CUdeviceptr;

use crate::caching::shared::{Shared, refuse_forked};
use crate::caching::{CachingAllocator, Pin};
use crate::engine::paged::SLAB;
use crate::error::Result;
use crate::primitive::lock;
use crate::segments::BlockState;

/// The memory that a block lies in, for another process to map: its pieces one behind the other.
#[derive(Debug)]
#[non_exhaustive]
pub struct BlockExport {
    /// Where the first piece begins here.
    pub base: CUdeviceptr,
    /// A descriptor of each piece, with its bytes.
    pub pieces: Vec<(usize, OwnedFd)>,
}

impl CachingAllocator {
    /// Memory as of [`CachingAllocator::allocate_by_address`], if it goes to a private pool; none if it would go to the default
    /// one.
    ///
    /// # Capture
    ///
    /// As there.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn allocate_in_pool(&self, bytes: usize, stream: &Stream) -> Result<Option<CUdeviceptr>> {
        refuse_forked()?;
        let shared = self.shared();
        if shared.private.is_routed() { shared.allocate_routed(bytes, stream) } else { Ok(None) }
    }

    /// Descriptors of the memory that a block lies in. Whoever has them sees all of it, blocks beside this one too, and keeps
    /// the memory. It stays this block's for as long as the block is not freed.
    ///
    /// Wraps [`cuMemExportToShareableHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html).
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAddress`](crate::Error::UnknownAddress) if no block begins there; [`Error::Core`](crate::Error::Core): code 1 if memory of the device cannot be shared this
    /// way, `NotShareable` for a private pool's segment that another source gave; [`Error::InCallback`](crate::Error::InCallback).
    pub fn export_block(&self, address: CUdeviceptr) -> Result<BlockExport> {
        let shared = self.shared();
        let (base, bytes) = shared.base_allocation(address)?;
        if shared.map.find(address).is_none() {
            return shared.private.memory.export(base);
        }
        // Pages that a block is in stay where they are; the pin says so while the descriptors are made.
        let pinned = self.pin(base, bytes.next_multiple_of(SLAB), Pin::Exported)?;
        let pieces = pinned.export_posix_fds()?;
        let base = pieces.first().map_or(base, |(segment, _)| segment.address);
        Ok(BlockExport {
            base,
            pieces: pieces.into_iter().map(|(segment, fd)| (segment.bytes, fd)).collect(),
        })
    }
}

impl Shared {
    /// The largest block that is free in private pools.
    pub(in crate::caching) fn largest_free_private(&self) -> Result<usize> {
        refuse_forked()?;
        let state = lock(&self.private.state);
        let segments = state.pools.iter().flat_map(|(_, pool)| pool.heap().segments());
        let free = segments.flat_map(|segment| segment.blocks());
        let free = free.filter(|block| block.state == BlockState::Inactive);
        Ok(free.map(|block| block.size as usize).max().unwrap_or(0))
    }
}
