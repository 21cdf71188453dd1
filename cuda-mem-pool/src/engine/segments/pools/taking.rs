//! The memory of pools that nobody uses any more.

use super::private_pools::PrivatePools;
use crate::engine::segments::{FreeSegment, PoolError, SegmentRequest};
use crate::mempool_id::MempoolId;

/// A segment of a private pool, to be given back to where it came from. The pool is there until it is told what became of it, with
/// [`PrivatePools::given_back`] or [`PrivatePools::put_back`].
/// [`PrivatePools`](super::PrivatePools) has an example of a pool.
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
    /// [`MempoolId::NONE`]; a pool that had no segments is forgotten. None of a pool that is in use, or is not there.
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
            let before = taken.len();
            taken.extend(segments.map(|segment| TakenSegment { id: of, source: source.clone(), segment }));
            pool.leaving = pool.leaving.saturating_add(taken.len() - before);
            !pool.is_over()
        });
        taken
    }

    /// Takes segments out of a pool, in use or not, that are too large to be cut for a request:
    /// [`SegmentHeap::release_available`](super::super::SegmentHeap::release_available). None of one that is not there.
    #[must_use = "the memory is to be given back"]
    pub fn take_available(&mut self, id: MempoolId, wanted: &SegmentRequest) -> Vec<TakenSegment<S>> {
        let Ok(pool) = self.get_mut(id) else { return Vec::new() };
        let segments = pool.heap.release_available(wanted).segments;
        pool.leaving = pool.leaving.saturating_add(segments.len());
        let source = &pool.source;
        segments.into_iter().map(|segment| TakenSegment { id, source: source.clone(), segment }).collect()
    }

    /// The source took a segment. A released pool is forgotten with its last one.
    pub fn given_back(&mut self, taken: &TakenSegment<S>) {
        let Ok(pool) = self.get_mut(taken.id) else { return };
        pool.leaving = pool.leaving.saturating_sub(1);
        if pool.is_over() {
            self.pools.remove(&taken.id);
        }
    }

    /// Puts a segment back that its source did not take. It can be taken again.
    ///
    /// # Errors
    ///
    /// [`PoolError::Unknown`] if the pool was told already that all its segments went; in [`PoolError::Segment`] that its addresses
    /// have become another segment's, or that there are too many blocks.
    pub fn put_back(&mut self, taken: &TakenSegment<S>) -> Result<(), PoolError> {
        let pool = self.get_mut(taken.id)?;
        pool.leaving = pool.leaving.saturating_sub(1);
        Ok(pool.heap.put_back(&taken.segment)?)
    }
}
