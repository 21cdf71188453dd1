//! How much there is, and how large a piece.

use std::collections::BTreeMap;

use cuda_mem_core::StreamId;

use super::allocator::CachingAllocator;
use super::shared::Shared;
use super::slot::StreamSlot;
use crate::engine::paged::Piece;
use crate::error::Result;
use crate::statistics::PoolSize;

/// What a stream has of the default pool for blocks of one size class.
/// [`CachingAllocator::stream_segment_sizes`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamSegmentSize {
    /// Whose it is; or was, if that has ended.
    pub stream: StreamId,
    /// Its handle, as it is or was; the default streams of all threads have the same.
    pub handle: u64,
    /// Which blocks are cut from it: pages that are cut up, and all others.
    pub pool: PoolSize,
    /// The bytes that are mapped, in use or free.
    pub mapped: u64,
}

impl CachingAllocator {
    /// The largest free block of all pools and streams, in bytes: what some request would get without the driver.
    ///
    /// # Capture
    ///
    /// May be called while streams capture: it is no driver call.
    ///
    /// # Errors
    ///
    /// [`Error::InCallback`](crate::Error::InCallback); `Forked` in [`Error::Core`](crate::Error::Core).
    pub fn largest_free_block(&self) -> Result<usize> {
        let shared = self.shared();
        drop(shared.source()?);
        let private = shared.private.largest_free();
        let of_heaps = shared.slots.iter().map(|slot| largest_free(&shared.pieces(slot)));
        Ok(of_heaps.fold(private, usize::max))
    }

    /// The mapped bytes of the default pool, by stream and size class; PyTorch's expandable segments. Streams without memory are
    /// left out.
    ///
    /// ```
    /// use cuda_mem_core::{Driver, Stream};
    /// use cuda_mem_pool::MemoryResource;
    /// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
    /// use cuda_mem_pool::statistics::PoolSize;
    ///
    /// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
    /// let context = driver.device(0)?.primary_context()?;
    /// let stream = Stream::new(&context)?;
    /// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
    /// let block = allocator.allocate(10 << 20, &stream)?;
    /// let sizes = allocator.stream_segment_sizes()?;
    /// assert_eq!((sizes[0].stream, sizes[0].pool), (stream.id(), PoolSize::Large));
    /// assert!(sizes[0].mapped >= 10 << 20);
    /// # drop(block);
    /// # Ok::<(), cuda_mem_pool::Error>(())
    /// ```
    ///
    /// # Capture
    ///
    /// As [`CachingAllocator::largest_free_block`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn stream_segment_sizes(&self) -> Result<Vec<StreamSegmentSize>> {
        let shared = self.shared();
        // While it is held no memory comes, goes or moves.
        let _source = shared.source()?;
        Ok(shared.slots.iter().flat_map(|slot| shared.sizes_of(slot)).collect())
    }
}

impl Shared {
    /// All that a stream has, when all frees are taken in.
    fn pieces(&self, slot: &StreamSlot) -> Vec<Piece> {
        slot.heap.with(|heap, guard| {
            self.drain(slot, heap, guard);
            heap.pieces()
        })
    }

    fn sizes_of(&self, slot: &StreamSlot) -> Vec<StreamSegmentSize> {
        let mut mapped = BTreeMap::new();
        for piece in self.pieces(slot) {
            *mapped.entry(!piece.in_slab).or_insert(0u64) += piece.size as u64;
        }
        let (Some(stream), handle) = (slot.stream_id(), slot.handle()) else { return Vec::new() };
        let size = |(is_large, mapped)| StreamSegmentSize {
            stream,
            handle,
            pool: if is_large { PoolSize::Large } else { PoolSize::Small },
            mapped,
        };
        mapped.into_iter().map(size).collect()
    }
}

/// The longest piece without a gap that is free.
fn largest_free(pieces: &[Piece]) -> usize {
    let joins = |one: &Piece, next: &Piece| {
        let free = one.requested.is_none() && next.requested.is_none();
        free && one.in_slab == next.in_slab && one.address + one.size as u64 == next.address
    };
    let runs = pieces.chunk_by(joins).filter(|run| run.iter().all(|piece| piece.requested.is_none()));
    runs.map(|run| run.iter().map(|piece| piece.size).sum()).max().unwrap_or(0)
}
