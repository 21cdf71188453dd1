//! The memory of pools that nobody uses any more.

use super::private_pool::PrivatePool;
use super::private_pools::PrivatePools;
use crate::engine::segments::{FreeSegment, SegmentError};
use crate::mempool_id::MempoolId;

/// A segment of a private pool, to be given back to where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "the memory is to be given back"]
pub struct TakenSegment<S> {
    /// The pool that it was in.
    pub id: MempoolId,
    /// Where it came from, if not from where the owner's own segments do.
    pub source: Option<S>,
    /// Its place.
    pub segment: FreeSegment,
}

impl<S: Clone> PrivatePools<S> {
    /// Takes the wholly free segments out of a pool whose last use has ended, or of all such pools for
    /// [`MempoolId::NONE`]; a pool that has no segments left is forgotten. None of a pool that is in use, or is not there.
    ///
    /// Complete first what other streams are done with: what is pending stays.
    #[must_use = "the memory is to be given back"]
    pub fn take_cached(&mut self, id: MempoolId) -> Vec<TakenSegment<S>> {
        let mut taken = Vec::new();
        self.pools.retain(|&of, pool| {
            if !pool.is_freeable() || (id != MempoolId::NONE && id != of) {
                return true;
            }
            let source = &pool.source;
            let segments = pool.heap.release_cached().into_iter();
            taken.extend(segments.map(|segment| TakenSegment { id: of, source: source.clone(), segment }));
            pool.heap.totals().segments > 0
        });
        taken
    }

    /// Puts a segment back that its source did not take. It can be taken again.
    ///
    /// # Errors
    ///
    /// [`SegmentError::Overlap`] if its addresses have become another segment's, [`SegmentError::Full`].
    pub fn put_back(&mut self, taken: TakenSegment<S>) -> Result<(), SegmentError> {
        let TakenSegment { id, source, segment } = taken;
        let options = self.options;
        let pool = self.pools.entry(id).or_insert_with(|| PrivatePool::new(options, source));
        pool.heap.put_back(&segment)
    }
}
