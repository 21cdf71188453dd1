//! Layouts of pools, kept and brought back.

use super::State;
use super::allocate::{pool_of, sizes};
use crate::caching::shared::{Shared, refuse_forked};
use crate::error::Result;
use crate::history::RecordContext;
use crate::mempool_id::MempoolId;
use crate::primitive::Ordering;
use crate::segments::{Checkpoint, Restored};

impl Shared {
    pub(super) fn checkpoint_pool(&self, id: MempoolId) -> Result<Checkpoint> {
        self.end_uses(id)?;
        Ok(self.pools()?.pools.checkpoint(id)?)
    }

    pub(super) fn restore_pool(&self, id: MempoolId, checkpoint: &Checkpoint) -> Result<Restored> {
        self.end_uses(id)?;
        // What tells stacks may allocate: it is asked without the lock.
        let frames = self.history.frames(RecordContext::State);
        let mut state = self.pools()?;
        let block = |state: &State, block| state.pools.get(id).ok().and_then(|pool| pool.heap().get(block));
        let before: Vec<_> =
            state.blocks.of(id).iter().filter_map(|entry| block(&state, entry.block)).collect();
        let restored = state.pools.restore(id, checkpoint)?;
        let pending = state.notes.entry(id).or_default().pending.clone();
        for was in &before {
            state.blocks.take(was.address);
            let (size, requested) = sizes(was);
            self.private.shard.hold().free(pool_of(was.kind), size, requested);
            self.private.active.fetch_sub(size, Ordering::Relaxed);
        }
        let mut after = Vec::with_capacity(restored.allocated.len());
        for &allocated in &restored.allocated {
            let Some(now) = block(&state, allocated) else { continue };
            let Some(stream) = state.streams.get(&now.stream).cloned() else { continue };
            self.hand_out_private(&mut state, id, allocated, &stream);
            after.push(now);
        }
        // Under the lock, so that nobody is told of as having a block whose free comes later.
        self.note_restored(&state, id, &before, &after, frames.as_ref());
        drop(state);
        self.tell_moves();
        for was in &before {
            // What was recorded of blocks that are no more goes without the lock.
            drop(pending.take_uses(was.address));
        }
        Ok(restored)
    }

    /// Has freed blocks of a pool come back that other streams use, for layouts know of none.
    ///
    /// What a stream did in a capture that has ended orders nothing outside the graph, and PyTorch drops it. A use here does not say
    /// what of it was before the capture, so all is waited for, behind points that are recorded outside of it. Not while allocations
    /// go to the pool: a capture may be under way, in which no use is over.
    fn end_uses(&self, id: MempoolId) -> Result<()> {
        refuse_forked()?;
        // Points come first: they are what is waited for.
        self.poll_private();
        self.wait_for_pool(id, |state| state.pools.use_count(id) > 0 && !state.pools.routes().has(id));
        Ok(())
    }
}
