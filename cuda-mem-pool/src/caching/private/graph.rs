//! What graphs need of their pools: blocks that serve the capture again in which streams used them, and checkpoints.
//!
//! # Safety
//!
//! Relies on the promise of whoever called `set_graph_capture_record_stream_reuse`: nobody else works at a capture while the
//! allocator looks at it.

#![allow(unsafe_code, reason = "looks at the graphs of captures")]

use std::collections::HashMap;
use std::iter;

use cuda_mem_core::{CaptureId, CapturePast, Stream};

use super::PrivatePools;
use super::blocks::sizes;
use crate::caching::pending::{Captured, Freed, Used};
use crate::engine::segments::Block;
use crate::error::{Result, refuse_forked};
use crate::history::{Event, RecordContext};
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
    pub(super) pasts: Mutex<HashMap<u64, CapturePast>>,
}

impl Captures {
    pub(super) fn are_reused(&self) -> bool {
        self.reused.load(Ordering::Relaxed)
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
            // SAFETY: the promise of the caller of `set_graph_capture_record_stream_reuse`.
            let point = unsafe { stream.capture_point() }.ok().flatten();
            point.filter(|point| point.capture() == capture)
        });
        Some(Captured { owner, points: points.collect::<Option<_>>()? })
    }

    /// Completes the frees of a stream's blocks whose uses come before where it stands now in its capture.
    pub(super) fn reuse_captured(self, stream: &Stream) {
        let (private, owner) = (self.private, stream.id().as_raw());
        // Before the graph is looked at, of which each node is asked about.
        if !private.captures.are_reused() || !private.pending.has_captured(owner) {
            return;
        }
        // SAFETY: the promise of the caller of `set_graph_capture_record_stream_reuse`.
        let Ok(Some(place)) = (unsafe { stream.capture_point() }) else { return };
        let mut pasts = lock_over_calls(&private.captures.pasts);
        let past = pasts.entry(owner).or_default();
        // SAFETY: as above; the place was taken just now. What cannot be told waits.
        let known = unsafe { past.advance(&place) };
        let passed = if known.is_ok() { private.pending.take_passed(owner, past) } else { Vec::new() };
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
        for was in &freed {
            let (size, requested) = sizes(was);
            self.private.shard.hold().free(was.kind, size, requested);
        }
        allocated.iter().for_each(|block| self.count_live(block));
        // Under the lock, so that the history has nobody's block before its free.
        self.note_restored(id, &freed, &allocated, frames.as_ref());
        // And so that what goes was recorded of blocks that are no more; it is dropped without the lock.
        let gone: Vec<_> =
            freed.iter().filter_map(|was| self.private.pending.take_uses(was.address)).collect();
        drop(state);
        drop(gone);
        self.shared.record.emit_moves();
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
        let mut state = lock(&self.private.state);
        let has_pending = state.pools.in_use(id).is_ok_and(|pool| pool.heap.expect_no_pending().is_err());
        let waits = has_pending && !state.pools.routes().has(id);
        drop(state);
        // What cannot be waited for stays. Again, for what another thread had taken out.
        if waits && self.end_all(|block| block.pool == id)? && self.wait_for_others() {
            self.end_all(|block| block.pool == id)?;
        }
        Ok(())
    }

    /// Waits for the streams that still use freed blocks; whether it could wait for all. An error of the driver's is one here.
    pub(super) fn end_all(self, is_wanted: impl Fn(&Freed) -> bool) -> Result<bool> {
        let (pending, mut result) = (&self.private.pending, Ok(true));
        // While the host waits others may have what is done.
        for point in pending.points(&is_wanted) {
            // Whatever a wait says, what has not ended is found out below.
            let _ = point.wait();
        }
        for mut waiting in pending.take(|waiting| is_wanted(&waiting.block)) {
            match waiting.end(&self.shared.observer) {
                Ok(()) => self.complete(waiting.block.address),
                Err(error) => {
                    pending.put_back(waiting);
                    let refused = if error.driver_error().is_some() { Err(error) } else { Ok(false) };
                    result = result.and(refused);
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
