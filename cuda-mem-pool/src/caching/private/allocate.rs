//! How a block of a private pool is handed out.

use std::sync::Arc;

use cuda_mem_core::{Error as CoreError, Stream};

use super::State;
use super::handed_out::Entry;
use crate::caching::shared::Shared;
use crate::caching::slot::shown_handle;
use crate::engine::paged::SLAB;
use crate::error::{Error, Result};
use crate::history::{Event, RecordContext};
use crate::mempool_id::MempoolId;
use crate::primitive::{Ordering, lock};
use crate::resource::RawResource;
use crate::segments::{Allocation, Block, BlockId, SegmentError, SegmentKind, SegmentRequest};
use crate::snapshot::Action;
use crate::statistics::PoolSize;

/// A request that goes to a private pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Routed<'s> {
    pub(super) pool: MempoolId,
    pub(super) stream: &'s Stream,
    pub(super) requested: usize,
}

/// What a look into a pool gave.
#[derive(Debug)]
pub(super) enum Found {
    Block(u64),
    /// Nothing that is free fits. The segment that is needed, and where it comes from.
    Miss(SegmentRequest, Option<Arc<dyn RawResource>>),
    /// The pool was released meanwhile.
    Gone,
}

/// Which of the statistics' pools a segment and its blocks count in.
pub(super) fn pool_of(kind: SegmentKind) -> PoolSize {
    match kind {
        SegmentKind::Small => PoolSize::Small,
        SegmentKind::Large => PoolSize::Large,
    }
}

impl Shared {
    /// A block of the private pool that the allocation goes to, if it goes to one.
    #[cold]
    pub(in crate::caching) fn allocate_routed(
        &self,
        requested: usize,
        stream: &Stream,
    ) -> Result<Option<u64>> {
        while let Some(pool) = self.private.route(stream.id().as_raw()) {
            if stream.context() != &self.context {
                return Err(CoreError::ForeignContext { what: "the stream" }.into());
            }
            self.private.note_capture(pool, stream)?;
            self.reuse_captured(pool, stream);
            let routed = Routed { pool, stream, requested };
            let block = match self.look(routed)? {
                Found::Miss(..) => self.climb_private(routed)?,
                found => found,
            };
            if let Found::Block(address) = block {
                return Ok(Some(address));
            }
            // The pool was released while it was asked, and its route ended before: others are asked.
        }
        Ok(None)
    }

    /// Looks for a block in the pool as it is.
    pub(super) fn look(&self, routed: Routed<'_>) -> Result<Found> {
        let Routed { pool: id, stream, requested } = routed;
        let mut state = lock(&self.private.state);
        let Some(pool) = state.pools.get_mut(id).ok().filter(|pool| !pool.is_freeable()) else {
            return Ok(Found::Gone);
        };
        let found = pool.heap_mut().allocate(stream.id().as_raw(), requested as u64);
        match found.map_err(|error| refused(error, requested))? {
            Allocation::Miss(wanted) => Ok(Found::Miss(wanted, pool.source().cloned())),
            Allocation::Hit(block) => {
                let address = self.hand_out_private(&mut state, id, block, stream);
                drop(state);
                self.tell_private(Action::Alloc, id, address, requested, Some(stream));
                Ok(Found::Block(address))
            }
        }
    }

    /// Gives the pool a new segment, and a block of it out. None if there is no memory for it.
    pub(super) fn extend(
        &self,
        routed: Routed<'_>,
        wanted: SegmentRequest,
        source: Option<&Arc<dyn RawResource>>,
    ) -> Result<Option<Found>> {
        let Routed { pool: id, stream, requested } = routed;
        // What is not used of a page is held all the same.
        let wanted = if source.is_some() { wanted } else { wanted.in_pieces_of(SLAB as u64) };
        let bytes = usize::try_from(wanted.bytes()).map_err(|_| Error::TooLarge { bytes: requested })?;
        let Some(claim) = self.claim(bytes)? else { return Ok(None) };
        let Some((address, claim)) = self.private.memory.acquire(bytes, source, claim)? else {
            return Ok(None);
        };
        if self.map.find(address).is_some() {
            // The address is a block's of this allocator, and stands for that block.
            self.private.memory.release_claimed(address, claim)?;
            return Err(Error::OwnSource { id });
        }
        let maker = self.history.frames(RecordContext::State);
        let mut state = lock(&self.private.state);
        let in_use = state.pools.get_mut(id).ok().filter(|pool| !pool.is_freeable());
        let added = in_use.map(|pool| pool.heap_mut().add_segment(&wanted, address));
        let block = match added {
            Some(Ok(block)) => block,
            refusal => {
                drop(state);
                self.private.memory.release_claimed(address, claim)?;
                return match refusal {
                    Some(Err(error)) => Err(refused(error, requested)),
                    _ => Ok(Some(Found::Gone)),
                };
            }
        };
        let address = self.hand_out_private(&mut state, id, block, stream);
        let kind = state.pools.get(id).ok().and_then(|pool| pool.heap().get(block)).map(|block| block.kind);
        if let Some(maker) = maker.clone() {
            state.makers.insert(address, maker);
        }
        drop(state);
        claim.keep();
        self.count_segment(kind.unwrap_or(SegmentKind::Large), bytes as u64, true);
        let (action, size, on) = (Action::SegmentAlloc, bytes as u64, shown_handle(stream));
        self.tell_segment(Event { action, address, size, stream: on, pool: id }, maker);
        self.tell_private(Action::Alloc, id, address, requested, Some(stream));
        Ok(Some(Found::Block(address)))
    }

    /// Enters and counts a block that is handed out.
    pub(super) fn hand_out_private(
        &self,
        state: &mut State,
        pool: MempoolId,
        block: BlockId,
        stream: &Stream,
    ) -> u64 {
        let key = stream.id().as_raw();
        state.streams.add(stream);
        state.blocks.add(Entry { pool, block, stream: key });
        if let Some(block) = state.pools.get(pool).ok().and_then(|pool| pool.heap().get(block)) {
            self.count_allocated(&block);
        }
        block.address()
    }

    pub(super) fn count_allocated(&self, block: &Block) {
        let (size, requested) = sizes(block);
        self.count_in(&self.private.shard, pool_of(block.kind), size, requested);
        self.private.active.fetch_add(size, Ordering::Relaxed);
    }
}

impl super::Private {
    /// Notes whether graphs may use what the pool hands out from now on.
    fn note_capture(&self, id: MempoolId, stream: &Stream) -> Result<()> {
        let known = lock(&self.state).is_captured(id);
        if !known
            && stream.is_capturing()?
            && let Ok(pool) = lock(&self.state).pools.get_mut(id)
        {
            pool.note_capture();
        }
        Ok(())
    }
}

/// A block's bytes, and those that were asked for. Blocks are of this machine's memory, so they fit.
pub(super) fn sizes(block: &Block) -> (usize, usize) {
    (block.size as usize, block.requested as usize)
}

/// What a pool's books refused, for who asked for memory.
pub(super) fn refused(error: SegmentError, requested: usize) -> Error {
    match error {
        SegmentError::TooLarge { .. } => Error::TooLarge { bytes: requested },
        SegmentError::Full => Error::TooManyBlocks,
        error => Error::Pool(error.into()),
    }
}
