//! What graphs need of their pools: blocks that serve the capture again in which streams used them, and checkpoints.
//!
//! # Safety
//!
//! Relies on the promise of whoever called `set_graph_capture_record_stream_reuse`: nobody else works at a capture while the
//! allocator looks at it.

#![allow(unsafe_code, reason = "looks at the graphs of captures")]

use std::collections::HashMap;
use std::iter;
// Not the model checker's: no model has them.
use std::sync::{Condvar, Mutex as PlainMutex, PoisonError};
use std::time::Duration;

use cuda_mem_core::{CaptureId, CapturePast, Stream};

use super::PrivatePools;
use super::blocks::sizes;
use crate::caching::callbacks::is_watching;
use crate::caching::pending::{Captured, Pending, Used};
use crate::engine::segments::Block;
use crate::error::{Result, refuse_forked};
use crate::history::{Event, History, RecordContext};
use crate::mempool_id::MempoolId;
use crate::primitive::{AtomicBool, Mutex, Ordering, lock, lock_over_calls};
use crate::segments::Checkpoint;
use crate::snapshot::{Action, Frames};

/// What bringing a checkpoint back did.
/// [`CachingAllocator::checkpoint_pool`](crate::caching::CachingAllocator::checkpoint_pool) has an example.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restored {
    /// Where the blocks begin that were allocated before. None of these may be freed any more.
    pub freed: Vec<u64>,
    /// Where the blocks begin that were allocated at the checkpoint, and are again. Some are where freed ones were.
    pub allocated: Vec<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Captures {
    /// Whether blocks may serve the capture again.
    pub(super) reused: AtomicBool,
    /// What comes before where streams stand, by their ids.
    pasts: Mutex<HashMap<u64, CapturePast>>,
}

impl Captures {
    pub(super) fn are_reused(&self) -> bool {
        self.reused.load(Ordering::Relaxed)
    }

    pub(super) fn forget(&self) {
        lock(&self.pasts).clear();
    }
}

/// The freed blocks of a pool that streams still use, and how many threads are about to take them in or out.
#[derive(Debug, Default)]
pub(super) struct PoolPending {
    pub(super) pending: Pending,
    moving: PlainMutex<usize>,
    settled: Condvar,
}

/// A thread that has freed blocks of a pool in its hands. Ends with it.
#[derive(Debug)]
pub(super) struct Moving<'p>(&'p PoolPending);

/// How long a checkpoint waits for other threads: one of them may wait for what this thread does.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

impl PoolPending {
    /// Says that this thread takes freed blocks in or out until the result is dropped.
    pub(super) fn moving(&self) -> Moving<'_> {
        *self.moving.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Moving(self)
    }

    fn settle(&self) {
        let moving = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        // What else it says is found out by the blocks.
        let _ = self.settled.wait_timeout_while(moving, LONGEST_WAIT, |moving| *moving > 0);
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        let mut moving = self.0.moving.lock().unwrap_or_else(PoisonError::into_inner);
        *moving -= 1;
        if *moving == 0 {
            self.0.settled.notify_all();
        }
    }
}

impl PrivatePools<'_> {
    /// The capture that a use of a block is part of, if blocks may serve captures again.
    pub(super) fn capture_of(self, stream: &Stream) -> Option<CaptureId> {
        if !self.private.captures.are_reused() {
            return None;
        }
        // Where it cannot be told, the block waits.
        stream.capture_id().ok().flatten()
    }

    /// Where the streams of a block stand that is freed now, if all its uses are part of the capture that its own stream is.
    pub(super) fn captured(self, owner: u64, used: &mut Used) -> Option<Captured> {
        let capture = used.capture.filter(|_| self.private.captures.are_reused())?;
        let own = self.shared.streams.slot_of(owner)?.owner.stream()?;
        let streams = used.uses.streams();
        let points = iter::once(&own).chain(&streams).map(|stream| {
            // SAFETY: the promise of who switched this on.
            let point = unsafe { stream.capture_point() }.ok().flatten();
            point.filter(|point| point.capture() == capture)
        });
        Some(Captured { owner, points: points.collect::<Option<_>>()? })
    }

    /// Completes the frees of a stream's blocks whose uses come before where it stands now in its capture.
    pub(super) fn reuse_captured(self, id: MempoolId, stream: &Stream) {
        let (private, owner) = (self.private, stream.id().as_raw());
        if !private.captures.are_reused() {
            return;
        }
        let Some(deferred) = lock(&private.state).pending(id) else { return };
        if !deferred.pending.has_captured(owner) {
            return;
        }
        // SAFETY: the promise of who switched this on.
        let Ok(Some(place)) = (unsafe { stream.capture_point() }) else { return };
        let mut pasts = lock_over_calls(&private.captures.pasts);
        let past = pasts.entry(owner).or_default();
        // SAFETY: as above; the place was taken just now. What cannot be told waits.
        let known = unsafe { past.advance(&place) };
        let _moving = deferred.moving();
        let passed = if known.is_ok() { deferred.pending.take_passed(owner, past) } else { Vec::new() };
        drop(pasts);
        passed.iter().for_each(|waiting| self.complete(waiting.block.address));
    }

    pub(super) fn checkpoint(self, id: MempoolId) -> Result<Checkpoint> {
        self.end_uses(id)?;
        Ok(lock(&self.private.state).pools.in_use(id)?.heap.checkpoint()?)
    }

    pub(super) fn restore(self, id: MempoolId, checkpoint: &Checkpoint) -> Result<Restored> {
        self.end_uses(id)?;
        // What tells stacks may allocate: it is asked without the lock.
        let frames = self.shared.record.history.frames(RecordContext::State);
        let mut state = lock(&self.private.state);
        let pool = state.pools.get(id)?;
        if pool.is_asleep {
            // What it allocated again was not saved.
            let source = pool.source.clone();
            drop(state);
            return Err(self.shared.tags.asleep(source));
        }
        let [freed, allocated] = state.pools.in_use(id)?.heap.restore(checkpoint)?;
        let deferred = state.pending(id);
        for was in &freed {
            state.owners.remove(&was.address);
            let (size, requested) = sizes(was);
            self.private.shard.hold().free(was.kind, size, requested);
            self.private.active.fetch_sub(size, Ordering::Relaxed);
        }
        for block in &allocated {
            self.add_live(&mut state, id, block);
        }
        // Under the lock, so that the history has nobody's block before its free.
        self.note_restored(id, &freed, &allocated, frames.as_ref());
        drop(state);
        self.shared.record.tell_moves();
        for was in &freed {
            // What was recorded of blocks that are no more goes without the lock.
            drop(deferred.as_ref().and_then(|deferred| deferred.pending.take_uses(was.address)));
        }
        let addresses = |blocks: Vec<Block>| blocks.iter().map(|block| block.address).collect();
        Ok(Restored { freed: addresses(freed), allocated: addresses(allocated) })
    }

    /// Completes the frees of a pool's blocks that other streams use, for layouts know of none.
    ///
    /// What a stream did in a capture that has ended orders nothing outside the graph, and PyTorch drops it. A use here does not say
    /// what of it was before the capture, so all is waited for, behind points that are recorded outside of it. Not while allocations
    /// go to the pool: a capture may be under way, in which no use is over.
    fn end_uses(self, id: MempoolId) -> Result<()> {
        refuse_forked()?;
        // Points come first: they are what is waited for.
        self.poll();
        let state = lock(&self.private.state);
        let is_at_rest = state.pools.get(id).is_ok_and(|pool| pool.uses > 0) && !state.pools.routes().has(id);
        let deferred = state.pending(id).filter(|_| is_at_rest);
        drop(state);
        let Some(deferred) = deferred else { return Ok(()) };
        self.end_all(&deferred)?;
        // What another thread has taken out comes back soon, unless that thread waits too: for a stream, or for the tracker or watcher
        // that this one is in.
        if !History::is_telling() && !is_watching() {
            deferred.settle();
        }
        Ok(())
    }

    /// Waits for the streams that still use freed blocks. What cannot be waited for stays pending, which is no error but the driver's.
    pub(super) fn end_all(self, deferred: &PoolPending) -> Result<()> {
        let _moving = deferred.moving();
        let mut result = Ok(());
        for mut waiting in deferred.pending.take(|_| true) {
            match waiting.end(&self.shared.observer) {
                Ok(()) => self.complete(waiting.block.address),
                Err(error) => {
                    deferred.pending.put_back(waiting);
                    if error.driver_error().is_some() {
                        result = result.and(Err(error));
                    }
                }
            }
        }
        result
    }

    /// Notes for the history that blocks are freed and others allocated, all at once.
    fn note_restored(self, pool: MempoolId, freed: &[Block], allocated: &[Block], frames: Option<&Frames>) {
        let record = &self.shared.record;
        if !record.history.awaits_frees() {
            return;
        }
        let note = |action: Action, block: &Block, frames: Option<Frames>| {
            let stream = self.shared.streams.handle_of(block.stream);
            let event = Event { action, address: block.address, size: block.requested, stream, pool };
            record.note(event, frames);
        };
        let of_frees = frames.filter(|_| record.history.has_context(RecordContext::All));
        for block in freed {
            let before = record.keep_stack(block.address, None);
            for action in [Action::FreeRequested, Action::FreeCompleted] {
                note(action, block, of_frees.or(before.as_ref()).cloned());
            }
        }
        for block in allocated {
            record.keep_stack(block.address, frames.cloned());
            note(Action::Alloc, block, frames.cloned());
        }
    }
}
