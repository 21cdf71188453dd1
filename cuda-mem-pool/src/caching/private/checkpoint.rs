//! Layouts of pools, kept and brought back.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::State;
use super::allocate::{pool_of, sizes};
use crate::caching::callbacks::is_watching;
use crate::caching::pending::Pending;
use crate::caching::shared::{Shared, refuse_forked};
use crate::error::Result;
use crate::history::{History, RecordContext};
use crate::mempool_id::MempoolId;
use crate::primitive::{Ordering, lock};
use crate::segments::{BlockState, Checkpoint, Restored};

/// How long to wait before another look at what another thread does.
const SOON: Duration = Duration::from_micros(50);
/// And how long in all: it may have been called by what this one does.
const LONG: Duration = Duration::from_secs(1);

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
            let Some(stream) = state.streams.get(now.stream) else { continue };
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
        if let Some(pending) = self.pending_of(id, |state| state.is_at_rest(id)) {
            self.end_all(&pending)?;
        }
        // What another thread has taken out comes back soon, unless that thread waits too: for a stream, or for the tracker or watcher
        // that this one is in.
        let until = Instant::now() + LONG;
        let may_wait = !History::is_telling() && !is_watching();
        while may_wait && self.is_coming_back(id) && Instant::now() < until {
            thread::sleep(SOON);
        }
        Ok(())
    }

    /// Waits for the streams that still use freed blocks. What cannot be waited for waits on, and that is not an error unless the driver
    /// has one: it is known by its blocks.
    fn end_all(&self, pending: &Pending) -> Result<()> {
        let mut result = Ok(());
        for mut waiting in pending.take_all() {
            match waiting.end(&self.observer) {
                Ok(()) => self.complete_private(waiting.block.address),
                Err(error) => {
                    pending.put_back(waiting);
                    if error.driver_error().is_some() {
                        result = result.and(Err(error));
                    }
                }
            }
        }
        result
    }

    /// Whether another thread is about to give a freed block of a pool back, to which no allocations go.
    fn is_coming_back(&self, id: MempoolId) -> bool {
        let state = lock(&self.private.state);
        let pool = state.pools.get(id).ok().filter(|_| state.is_at_rest(id));
        let blocks = pool.into_iter().flat_map(|pool| pool.heap().segments()).flat_map(|one| one.blocks());
        let freed = blocks.filter(|block| block.state == BlockState::ActivePendingFree);
        let freed: Vec<u64> = freed.map(|block| block.address).collect();
        let pending = state.notes.get(&id).map(|notes| Arc::clone(&notes.pending));
        drop(state);
        let Some(pending) = pending.filter(|_| !freed.is_empty()) else { return false };
        let waiting = pending.freed();
        freed.iter().any(|address| !waiting.contains(address))
    }
}

impl State {
    /// Whether a pool is in use and no allocations go to it.
    fn is_at_rest(&self, id: MempoolId) -> bool {
        self.pools.use_count(id) > 0 && !self.pools.routes().has(id)
    }
}
