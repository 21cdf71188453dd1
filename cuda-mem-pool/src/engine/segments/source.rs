//! Where segments come from, and the order in which room is made for one.

use super::block::BlockId;
use super::heap::SegmentHeap;
use super::segment::{Allocation, FreeSegment, SegmentRequest};
use crate::error::SegmentError;

/// Memory for segments: the driver's, a pool's, or of whatever allocator is behind a private pool.
/// [`SegmentHeap::allocate_from`](super::SegmentHeap::allocate_from) has an example.
pub trait SegmentSource {
    /// Why it failed, other than that there is no memory left.
    type Error;

    /// Memory of `bytes` bytes, a multiple of 512: its address, which is one too. None if there is not as much.
    ///
    /// # Errors
    ///
    /// The source's own. Nothing else is tried then.
    fn acquire(&mut self, bytes: u64) -> Result<Option<u64>, Self::Error>;

    /// Gives memory back that [`SegmentSource::acquire`] gave.
    ///
    /// # Errors
    ///
    /// The source's own. The memory is not given back then.
    fn release(&mut self, address: u64, bytes: u64) -> Result<(), Self::Error>;
}

/// Why [`SegmentHeap::allocate_from`] has no block.
/// [`SegmentHeap::allocate_from`](super::SegmentHeap::allocate_from) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocateError<E> {
    /// The heap refused.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// Nothing that is left is large enough, and all that is free was given back.
    #[error(
        "out of memory: {requested} bytes need a segment of {segment} bytes, {reserved} bytes are reserved and {active} of them in use{}",
        limit.map_or(String::new(), |limit| format!(", and the limit is {limit}"))
    )]
    OutOfMemory {
        /// The bytes that were asked for.
        requested: u64,
        /// The bytes of the segment that they need.
        segment: u64,
        /// The bytes of all segments.
        reserved: u64,
        /// The bytes of those that are in blocks, freed ones that other streams still use among them.
        active: u64,
        /// What [`SegmentHeap::set_limit`] allows.
        limit: Option<u64>,
    },
    /// The source failed.
    #[error("the source of segments failed: {0}")]
    Source(E),
}

impl SegmentHeap {
    /// [`SegmentHeap::allocate`], else from a new segment, for which room is made as PyTorch makes it, until the source has
    /// one: garbage is collected, segments that are too large to be split are given back, then all that are wholly free.
    ///
    /// Blocks that other streams still use are not waited for. Whoever can wait completes them and asks again.
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use cuda_mem_pool::segments::{Options, SegmentHeap, SegmentSource};
    ///
    /// struct Ascending(u64);
    ///
    /// impl SegmentSource for Ascending {
    ///     type Error = Infallible;
    ///     fn acquire(&mut self, bytes: u64) -> Result<Option<u64>, Infallible> {
    ///         let address = self.0;
    ///         self.0 += bytes;
    ///         Ok(Some(address))
    ///     }
    ///     fn release(&mut self, _: u64, _: u64) -> Result<(), Infallible> {
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let mut heap = SegmentHeap::new(Options::default());
    /// let block = heap.allocate_from(0, 30 << 20, &mut Ascending(1 << 40))?;
    /// assert_eq!((block.address(), heap.totals().reserved), (1 << 40, 30 << 20));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AllocateError`]. What was free may have been given back.
    pub fn allocate_from<S: SegmentSource>(
        &mut self,
        stream: u64,
        bytes: u64,
        source: &mut S,
    ) -> Result<BlockId, AllocateError<S::Error>> {
        let wanted = match self.allocate(stream, bytes)? {
            Allocation::Hit(block) => return Ok(block),
            Allocation::Miss(wanted) => wanted,
        };
        if let Some(limit) = self.limit {
            let garbage = self.collect_garbage(self.excess(self.totals().reserved, limit));
            self.give_back(garbage, source)?;
        }
        if let Some(block) = self.grow(&wanted, source)? {
            return Ok(block);
        }
        let available = self.release_available(&wanted);
        self.give_back(available.segments, source)?;
        if available.enough
            && let Some(block) = self.grow(&wanted, source)?
        {
            return Ok(block);
        }
        let cached = self.release_cached();
        self.give_back(cached, source)?;
        if let Some(block) = self.grow(&wanted, source)? {
            return Ok(block);
        }
        let totals = self.totals();
        Err(AllocateError::OutOfMemory {
            requested: bytes,
            segment: wanted.bytes,
            reserved: totals.reserved,
            active: totals.active,
            limit: self.limit,
        })
    }

    /// [`SegmentHeap::release_cached`] into the source: how many bytes went.
    ///
    /// # Errors
    ///
    /// The source's. What it did not take stays in the heap.
    pub fn empty_cache<S: SegmentSource>(&mut self, source: &mut S) -> Result<u64, AllocateError<S::Error>> {
        let before = self.totals().reserved;
        let cached = self.release_cached();
        self.give_back(cached, source)?;
        Ok(before.saturating_sub(self.totals().reserved))
    }

    fn grow<S: SegmentSource>(
        &mut self,
        wanted: &SegmentRequest,
        source: &mut S,
    ) -> Result<Option<BlockId>, AllocateError<S::Error>> {
        let reserved = self.totals().reserved.saturating_add(wanted.bytes);
        if self.limit.is_some_and(|limit| reserved > limit) {
            return Ok(None);
        }
        let Some(address) = source.acquire(wanted.bytes).map_err(AllocateError::Source)? else {
            return Ok(None);
        };
        self.add_segment(wanted, address).map(Some).map_err(|error| {
            match source.release(address, wanted.bytes) {
                Ok(()) => AllocateError::Segment(error),
                Err(error) => AllocateError::Source(error),
            }
        })
    }

    /// What the source does not take is the heap's again.
    fn give_back<S: SegmentSource>(
        &mut self,
        segments: Vec<FreeSegment>,
        source: &mut S,
    ) -> Result<(), AllocateError<S::Error>> {
        let mut result = Ok(());
        for segment in segments {
            if let Err(error) = source.release(segment.address, segment.bytes) {
                let kept = self.put_back(&segment).map_err(AllocateError::Segment);
                result = result.and(kept).and(Err(AllocateError::Source(error)));
            }
        }
        result
    }
}
