//! What is tried when a private pool has no memory for a request, and how segments go back to where they came from.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use cuda_mem_core::{Event as Point, Stream, Uses, catch_panic};

use super::PrivatePools;
use super::blocks::{Found, Routed};
use crate::caching::callbacks::refuse_watchers;
use crate::caching::grow::unless_lost;
use crate::caching::owner::End;
use crate::caching::slot::StreamSlot;
use crate::engine::paged::{Climb, SLAB, climb};
use crate::engine::segments::{Segment, SegmentRequest, TakenSegment};
use crate::error::{Error, Result};
use crate::history::Event;
use crate::mempool_id::MempoolId;
use crate::primitive::{lock, wait_unless_awaited};
use crate::snapshot::Action;

impl PrivatePools<'_> {
    /// A block after everything that helps.
    #[cold]
    pub(super) fn reclaim_and_retry(self, routed: Routed<'_>, wanted: SegmentRequest) -> Result<Found> {
        refuse_watchers()?;
        self.shared.poll();
        self.shared.collect_garbage();
        // Freed meanwhile, left by a stream, or of a new segment.
        if let Some(found) = self.look_or_extend(routed)? {
            return Ok(found);
        }
        self.shared.figures.change(|counts| counts.num_alloc_retries += 1);
        if let Some(found) = climb(&mut Climber { pools: self, routed, wanted })? {
            return Ok(found);
        }
        if routed.pool == MempoolId::NONE
            && let Some(lent) = self.borrow_on_oom(routed.requested, routed.stream)?
        {
            return Ok(Found::Block(lent));
        }
        let slot = self.shared.streams.slot(routed.stream)?;
        let refused = match self.shared.request(routed.requested) {
            Some(request) => self.shared.give_up(slot, request, routed.pool),
            None => self.shared.refuse_too_large(slot, routed.requested, routed.pool),
        };
        refused.map(Found::Block)
    }

    /// Gives back what is free elsewhere, with a wait on the host for what may use it or without.
    fn make_room(self, pool: MempoolId, wanted: &SegmentRequest, waits: bool) -> Result<()> {
        // Segments that are too large to be cut for the request go, so that there is room for one that is not. Not those of graphs, which go
        // on using what was freed while they were captured.
        let mut state = lock(&self.private.state);
        let is_captured = state.is_captured(pool);
        let taken = if is_captured { Vec::new() } else { state.pools.take_available(pool, wanted) };
        drop(state);
        // What the driver refuses stays, and the request may do without.
        unless_lost(self.give_back(taken, waits, 0))?;
        // At first only what the request needs, and a little for the driver's own tables.
        let needed = if waits { usize::MAX } else { (wanted.bytes as usize).saturating_add(2 * SLAB) };
        let keep = self.shared.figures.reserved().saturating_sub(needed);
        unless_lost(self.shared.trim_to(keep))?;
        unless_lost(self.reclaim(MempoolId::NONE, waits, keep)).map(drop)
    }

    /// A free block, also of a stream that has ended, else one of a new segment. None if there is no memory for it.
    fn look_or_extend(self, routed: Routed<'_>) -> Result<Option<Found>> {
        let (wanted, source) = match self.look(routed)? {
            Found::Miss(wanted, source) => (wanted, source),
            found => return Ok(Some(found)),
        };
        if let Some(found) = self.look_at_left(routed)? {
            return Ok(Some(found));
        }
        match self.extend(routed, wanted, wanted.roomy, source.as_ref())? {
            None if wanted.bytes < wanted.roomy => self.extend(routed, wanted, wanted.bytes, source.as_ref()),
            found => Ok(found),
        }
    }

    /// Waits for all streams but those that capture, and for what others, which may have no memory, do with freed blocks.
    pub(in crate::caching) fn wait_for_streams(self) -> Result<()> {
        self.shared.figures.change(|counts| counts.num_sync_all_streams += 1);
        let of_slots = self.shared.slots.iter().map(|slot| slot.owner.wait());
        let of_blocks = self.shared.pending.points(|_| true).into_iter().map(|point| point.wait());
        for outcome in of_slots.chain(of_blocks) {
            // Whatever else it fails with, the events tell what is done.
            unless_lost(outcome.map_err(Error::Core))?;
        }
        self.wait_for_uses();
        self.shared.poll();
        Ok(())
    }

    /// Waits, half a second at most, for what other threads have in hand or have claimed; whether there was any.
    pub(in crate::caching) fn wait_for_others(self) -> bool {
        let (until, mut looks) = (Instant::now() + Duration::from_millis(500), 0);
        let are_segments_out = || lock(&self.private.state).pools.iter().any(|(_, pool)| pool.leaving > 0);
        let are_claims_out = || self.shared.source.lock_unchecked().claimed > 0;
        wait_unless_awaited(|| {
            looks += 1;
            let are_blocks_out = self.shared.pending.is_out() || self.private.pending.is_out();
            !(are_blocks_out || are_segments_out() || are_claims_out()) || Instant::now() >= until
        });
        looks > 1
    }

    /// What [`Climb::ask_others`] does for every request.
    pub(in crate::caching) fn ask_others(self, round: u32, requested: usize) -> usize {
        match round {
            1 | 2 if self.wait_for_others() => usize::MAX,
            // They may have been done right before this looked: the two rungs before the wait are climbed again.
            1 => 2,
            // It may have been others' of the device, which is asked anew what it has left.
            3 if self.shared.callbacks.reclaim(requested) => {
                let is_asked = self.shared.source.lock().map(|mut source| source.begin()).is_ok();
                if is_asked { usize::MAX } else { 0 }
            }
            _ => 0,
        }
    }

    /// Waits for the streams that still use freed blocks, but for pools that a graph may be captured from now.
    pub(super) fn wait_for_uses(self) {
        let capturing = self.capturing();
        // What cannot be waited for waits on.
        let _ = self.end_all(|block| !capturing.contains(&block.pool));
    }

    /// Gives back the free segments of one released pool, after a wait on the host for what may use them; how many bytes.
    pub(super) fn reclaim_pool(self, id: MempoolId) -> Result<usize> {
        if lock(&self.private.state).pools.get(id).is_ok_and(|pool| pool.is_freeable()) {
            self.shared.figures.change(|counts| counts.num_sync_all_streams += 1);
            // What cannot be waited for waits on.
            let _ = self.end_all(|block| block.pool == id);
        }
        self.reclaim(id, true, 0)
    }

    /// Gives back what released pools have and nothing uses, after a wait on the host for what may use it: whether any went.
    pub(in crate::caching) fn reclaim_waiting(self) -> bool {
        if lock(&self.private.state).segments().next().is_none() {
            return false;
        }
        self.wait_for_uses();
        !matches!(self.reclaim(MempoolId::NONE, true, 0), Ok(0))
    }

    /// Gives unused segments back, of one released pool or, for [`MempoolId::NONE`], of all, until so many bytes are held; how many went.
    pub(in crate::caching) fn reclaim(self, id: MempoolId, waits: bool, keep: usize) -> Result<usize> {
        // Also without memory: a pool that was released keeps its source until it is forgotten.
        let (taken, over) = lock(&self.private.state).pools.take_cached(id);
        let released = self.give_back(taken, waits, keep);
        // Without a lock: the last handle to an upstream runs the program's code.
        drop(over);
        released
    }

    /// Gives segments back, until so many bytes are held. A segment that is used yet, or is not taken, is put back.
    fn give_back(self, all: Vec<TakenSegment>, waits: bool, keep: usize) -> Result<usize> {
        if waits {
            self.shared.wait_for_lost_streams();
        }
        let (mut bytes, mut result, mut patience) = (0usize, Ok(()), REACHED);
        for taken in all {
            let is_over = self.shared.figures.reserved() > keep;
            let users = if is_over { self.users(&taken, waits) } else { None };
            let outcome = if users.as_ref().is_some_and(|users| are_quiet(users, waits, patience)) {
                self.release(&taken)
            } else {
                // One busy stream is looked at for long, not each of many.
                patience = if users.is_some() { Duration::ZERO } else { patience };
                lock(&self.private.state).pools.put_back(&taken).map(|()| 0).map_err(Error::from)
            };
            match outcome {
                Ok(released) => bytes = bytes.saturating_add(released),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result.map(|()| bytes)
    }

    /// Gives a segment back that nothing uses; how many bytes.
    fn release(self, taken: &TakenSegment) -> Result<usize> {
        let pool = taken.id;
        let Segment { address, bytes, kind, stream, .. } = taken.segment;
        let stream = self.shared.streams.handle_of(stream);
        let event = |action| Event { action, address, size: bytes, stream, pool };
        // Another segment may come to the address once this one has gone.
        let stack = lock(&self.private.state).segment_stacks.remove(&address);
        // Before the memory goes: trackers end what they registered of it.
        self.shared.record.emit_segment_free(event(Action::SegmentFree), stack.clone());
        if let Err(refusal) = self.private.memory.release(address) {
            let mut state = lock(&self.private.state);
            let kept = state.pools.put_back(taken);
            state.segment_stacks.extend(stack.clone().map(|stack| (address, stack)));
            // Under the lock, as it may go again.
            self.shared.record.note(event(Action::SegmentAlloc), stack);
            drop(state);
            self.shared.record.emit_moves();
            return kept.map_err(Error::from).and(Err(refusal));
        }
        self.shared.figures.remove_segment(pool, kind, bytes);
        self.shared.source.unclaim(bytes as usize);
        let over = lock(&self.private.state).pools.given_back(taken);
        // What it panics with must not keep the next segment from going back.
        let _ = catch_panic(|| drop(over));
        Ok(bytes as usize)
    }

    /// The streams that may use a segment, a graph's on any. None if one of them has ended and may run yet.
    fn users(self, taken: &TakenSegment, waits: bool) -> Option<Vec<Stream>> {
        let is_captured = lock(&self.private.state).is_captured(taken.id);
        let slots: Vec<&StreamSlot> = if is_captured {
            self.shared.slots.iter().collect()
        } else {
            self.shared.streams.slot_of(taken.segment.stream).into_iter().collect()
        };
        let mut users = Vec::new();
        for slot in slots {
            match slot.owner.place(waits) {
                Ok(stream) => users.push(stream),
                Err(End::Done) => {}
                Err(End::At(point)) if waits => point.synchronize().ok()?,
                Err(End::At(point)) if comes_soon(&point) => {}
                Err(End::At(_) | End::Lost(_)) => return None,
            }
        }
        Some(users)
    }

    /// Looks again with the pool's memory of each stream that has ended, until that will do: as with heaps it is as if that had been the
    /// request's stream all the time, also for allocated blocks. What a graph may use stays as it is. Waits for nothing.
    fn look_at_left(self, routed: Routed<'_>) -> Result<Option<Found>> {
        let own = routed.stream.id().as_raw();
        let others: BTreeSet<u64> = match lock(&self.private.state).pools.get(routed.pool) {
            Ok(pool) if !pool.is_captured => pool.heap.segments().map(|segment| segment.stream).collect(),
            _ => return Ok(None),
        };
        for from in others.into_iter().filter(|from| *from != own) {
            if self.adopt(routed.pool, from, own)
                && let found @ (Found::Block(_) | Found::Gone) = self.look(routed)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Gives a stream the memory that another has in a pool, if that has ended.
    fn adopt(self, id: MempoolId, from: u64, to: u64) -> bool {
        let streams = &self.shared.streams;
        if let Some(slot) = streams.slot_of(from) {
            drop(slot.owner.look_for_end());
        }
        // Under the lock: a thread at its end that has its stream come back has nothing of the pool before.
        let mut state = lock(&self.private.state);
        let Ok(pool) = state.pools.get_mut(id) else { return false };
        let has_ended = !pool.is_captured && streams.is_over(from);
        if has_ended {
            pool.heap.adopt(from, to);
        }
        has_ended
    }
}

/// A request that climbs the ladder. It has a rung less: memory that a stream is made to wait for is still in use, so it cannot go.
struct Climber<'s> {
    pools: PrivatePools<'s>,
    routed: Routed<'s>,
    wanted: SegmentRequest,
}

impl Climb for Climber<'_> {
    type Found = Found;
    type Error = Error;

    fn take_elsewhere(&mut self) -> Result<bool> {
        self.pools.make_room(self.routed.pool, &self.wanted, false).map(|()| true)
    }

    fn wait(&mut self) -> Result<bool> {
        self.pools.wait_for_streams()?;
        self.pools.make_room(self.routed.pool, &self.wanted, true).map(|()| true)
    }

    fn attempt(&mut self) -> Result<Option<Found>> {
        self.pools.look_or_extend(self.routed)
    }

    fn ask_others(&mut self, round: u32) -> usize {
        self.pools.ask_others(round, self.routed.requested)
    }
}

/// Within so long an idle stream comes to an event, which is what some streams have to be asked by.
const REACHED: Duration = Duration::from_micros(50);

/// Whether an event is reached within that time.
fn comes_soon(point: &Point) -> bool {
    let until = Instant::now() + REACHED;
    while matches!(point.is_complete(), Ok(false)) && Instant::now() < until {
        std::hint::spin_loop();
    }
    point.is_complete().unwrap_or(false)
}

/// Whether streams are known to have done all that they were given.
fn are_quiet(users: &[Stream], waits: bool, patience: Duration) -> bool {
    let uses = Uses::new();
    let is_known = users.iter().all(|user| uses.record_stream(user).is_ok());
    let wait = || if waits { uses.wait() } else { uses.wait_for(patience) };
    is_known && wait().is_ok()
}
