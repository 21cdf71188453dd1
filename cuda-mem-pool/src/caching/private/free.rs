//! How a block of a private pool comes back.

use std::sync::Arc;

use cuda_mem_core::Stream;

use super::allocate::{pool_of, sizes};
use super::handed_out::Entry;
use crate::caching::pending::{Freed, Pending};
use crate::caching::shared::Shared;
use crate::engine::paged::{BlockNumber, Tier};
use crate::error::{Error, Result};
use crate::primitive::{Ordering, lock};
use crate::segments::{Block, PoolError};
use crate::snapshot::Action;

/// What stands for a heap and a number where blocks wait that are found by their addresses.
const NO_HEAP: u32 = u32::MAX;

impl Shared {
    /// Takes a block of a private pool back, ordered on its own stream, or behind another that used it last.
    #[cold]
    pub(in crate::caching) fn free_private(&self, address: u64, stream: Option<&Stream>) -> Result<()> {
        let mut state = lock(&self.private.state);
        let entry = state.blocks.take(address).ok_or(Error::UnknownAddress { address })?;
        let pending = state.notes.entry(entry.pool).or_default().pending.clone();
        let block = state.pools.get(entry.pool).ok().and_then(|pool| pool.heap().get(entry.block));
        let owner = state.streams.get(entry.stream);
        drop(state);
        let Some(block) = block else { return Err(Error::UnknownAddress { address }) };
        if let Some(other) = stream.filter(|stream| stream.id().as_raw() != entry.stream)
            && let Err(error) = pending.record_stream(address, other, self.capture_of(other))
        {
            lock(&self.private.state).blocks.add(entry);
            return Err(error);
        }
        let used = if pending.is_empty() { None } else { pending.take_uses(address) };
        let (size, requested) = sizes(&block);
        self.tell_private(Action::FreeRequested, entry.pool, address, requested, owner.as_ref());
        let Some(mut used) = used else {
            self.tell_private(Action::FreeCompleted, entry.pool, address, requested, owner.as_ref());
            return self.put_back_private(entry, &block);
        };
        let captured = owner.and_then(|owner| self.captured(&owner, &mut used));
        let mut state = lock(&self.private.state);
        state.pools.get_mut(entry.pool)?.heap_mut().free_pending(entry.block).map_err(PoolError::from)?;
        state.blocks.wait(entry);
        self.private.waiting.store(state.blocks.waiting(), Ordering::Relaxed);
        self.private.shard.hold().request_free(pool_of(block.kind), size);
        drop(state);
        let block = Freed { address, heap: NO_HEAP, number: BlockNumber::new(Tier::Large, 0), size };
        pending.push(block, used.uses, captured, &self.observer);
        Ok(())
    }

    fn put_back_private(&self, entry: Entry, block: &Block) -> Result<()> {
        let (size, requested) = sizes(block);
        let mut state = lock(&self.private.state);
        state.pools.get_mut(entry.pool)?.heap_mut().free(entry.block).map_err(PoolError::from)?;
        self.private.shard.hold().free(pool_of(block.kind), size, requested);
        self.private.active.fetch_sub(size, Ordering::Relaxed);
        Ok(())
    }

    /// Gives the freed blocks back whose uses are over, but for pools that a graph may be captured from now.
    pub(in crate::caching) fn poll_private(&self) {
        for pending in self.quiet_pools() {
            for waiting in pending.poll(&self.observer) {
                self.complete_private(waiting.block.address);
            }
        }
    }

    /// What waits in the pools that no graph is captured from: those that were never captured from, or that no allocations go
    /// to.
    pub(super) fn quiet_pools(&self) -> Vec<Arc<Pending>> {
        if self.private.waiting.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let state = lock(&self.private.state);
        let capturing = |id| state.is_captured(id) && state.pools.routes().has(id);
        let quiet = state.notes.iter().filter(|&(&id, _)| !capturing(id));
        quiet.map(|(_, notes)| Arc::clone(&notes.pending)).collect()
    }

    /// A freed block is free now.
    pub(super) fn complete_private(&self, address: u64) {
        let mut state = lock(&self.private.state);
        let Some(entry) = state.blocks.done(address) else { return };
        self.private.waiting.store(state.blocks.waiting(), Ordering::Relaxed);
        let block = state.pools.get(entry.pool).ok().and_then(|pool| pool.heap().get(entry.block));
        let Some(block) = block else { return };
        let (size, requested) = sizes(&block);
        if self.history.awaits_frees() {
            let owner = state.streams.get(entry.stream);
            drop(state);
            // Before anybody else may have it.
            self.tell_private(Action::FreeCompleted, entry.pool, address, requested, owner.as_ref());
            state = lock(&self.private.state);
        }
        if let Ok(pool) = state.pools.get_mut(entry.pool)
            && pool.heap_mut().complete(entry.block).is_ok()
        {
            self.private.shard.hold().complete_free(pool_of(block.kind), size, requested);
            self.private.active.fetch_sub(size, Ordering::Relaxed);
        }
    }

    /// Enters a stream as a user of a block of a private pool.
    pub(in crate::caching) fn record_private(&self, address: u64, stream: &Stream) -> Result<()> {
        let mut state = lock(&self.private.state);
        let entry = state.blocks.get(address).ok_or(Error::UnknownAddress { address })?;
        let pending = state.notes.entry(entry.pool).or_default().pending.clone();
        drop(state);
        if entry.stream == stream.id().as_raw() {
            return Ok(());
        }
        pending.record_stream(address, stream, self.capture_of(stream))
    }
}
