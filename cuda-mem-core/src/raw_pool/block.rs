//! Blocks of this process's pools, with what frees them.
//!
//! # Safety
//!
//! Relies on every use of a block being in its [`Uses`]: work that is put into a stream without [`PoolBlock::on`] is its author's
//! `unsafe` responsibility.

#![allow(unsafe_code, reason = "exports the address of a block")]

use std::sync::Arc;

use super::imported::Block;
use super::{MemoryPool, PointerExport};
use crate::buffer::used_memory;
use crate::driver::deferred::Owned;
use crate::error::Result;
use crate::stream::Stream;
use crate::uses::Uses;

/// A block of a [`MemoryPool`], freed once, behind all uses that it knows of and without the host waiting. It keeps the pool. (Only
/// the free of a block whose stream was disowned, or is another thread's default stream, waits there: the stream has no name.)
///
/// ```
/// use std::sync::Arc;
///
/// use cuda_mem_core::raw_pool::{AllocationType, MemoryLocation, MemoryPool, PoolBlock, PoolProperties};
/// use cuda_mem_core::{Driver, Stream};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let stream = Stream::new(&driver.device(0)?.primary_context()?)?;
/// let properties = PoolProperties {
///     allocation_type: AllocationType::Pinned,
///     location: MemoryLocation::Device(0),
///     shareable: false,
///     max_size: 0,
/// };
/// let pool = Arc::new(MemoryPool::create(driver, &properties)?);
/// let block = PoolBlock::allocate(&pool, 4096, &stream)?;
/// assert_eq!(block.on(&stream)?.address(), block.as_raw());
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug)]
pub struct PoolBlock {
    /// Taken out when the block is dropped.
    block: Owned<Block>,
    bytes: usize,
}

impl PoolBlock {
    /// Memory of the pool, allocated and to be freed on `stream`: [`MemoryPool::allocate`].
    /// Errors: as there.
    pub fn allocate(pool: &Arc<MemoryPool>, bytes: usize, stream: &Stream) -> Result<Self> {
        let address = pool.allocate(bytes, stream)?;
        let block = Owned::new(Block::new(address, stream, pool));
        let allocated = Self { block, bytes };
        // Others wait for the allocation.
        allocated.block.uses.record_stream(stream)?;
        Ok(allocated)
    }

    /// The stream that it was allocated on and is freed on.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.block.home
    }

    /// What another process needs to find it: [`MemoryPool::export_pointer`].
    /// Errors: as there.
    ///
    /// # Safety
    ///
    /// This value outlives what the other process has imported, up to its free.
    pub unsafe fn export(&self) -> Result<PointerExport> {
        // SAFETY: no slice of it exists; the caller's promise.
        unsafe { MemoryPool::export_pointer(self.block.home.driver(), self.block.address) }
    }

    /// Takes over the uses of a part of the memory, whose own owner is gone: the free comes after them too.
    pub fn absorb_uses(&self, uses: Uses) {
        self.block.uses.absorb(uses);
    }

    /// Whether no use of the memory runs any more that it knows of, so that its free is reached at once: [`Uses::have_passed`].
    /// Errors: as there.
    pub fn have_uses_passed(&mut self) -> Result<bool> {
        self.block.uses.have_passed()
    }
}

used_memory!(PoolBlock, |this| this.block.address, this.bytes, this.block.borrowed());
