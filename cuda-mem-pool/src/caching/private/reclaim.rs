//! What is tried when a private pool has no memory for a request, and how segments go back to where they came from.

use std::hint;
use std::time::{Duration, Instant};

use cuda_mem_core::{Stream, Uses, catch_panic};

use super::blocks::{Found, Routed};
use super::{PoolState, PrivatePools};
use crate::caching::callbacks::refuse_watchers;
use crate::caching::grow::unless_lost;
use crate::caching::owner::{End, wait_for};
use crate::caching::slot::shown_handle;
use crate::engine::paged::{Climb, climb};
use crate::engine::segments::{Segment, TakenSegment};
use crate::error::{Error, Result};
use crate::history::Event;
use crate::mempool_id::MempoolId;
use crate::primitive::lock;
use crate::snapshot::{Action, Frames};

/// A segment that was taken out of its pool, which is not forgotten while it is out, and the streams neither.
#[derive(Debug)]
struct Leaving {
    taken: TakenSegment,
    is_captured: bool,
    owner: Option<Stream>,
    stack: Option<Frames>,
}

impl PrivatePools<'_> {
    /// A block after everything that helps.
    #[cold]
    pub(super) fn reclaim_and_retry(self, routed: Routed<'_>) -> Result<Found> {
        refuse_watchers()?;
        self.shared.poll();
        self.shared.collect_garbage();
        // Freed meanwhile, abandoned by a stream, or of a new segment.
        if let Some(found) = self.look_or_extend(routed)? {
            return Ok(found);
        }
        self.shared.figures.change(|counts| counts.num_alloc_retries += 1);
        if let Some(found) = climb(&mut Climber { pools: self, routed, found: None })? {
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

    /// Gives back what is free elsewhere, with a wait on the host for what may use it or without. A block that came meanwhile.
    fn make_room(self, routed: Routed<'_>, waits: bool) -> Result<Option<Found>> {
        let wanted = match self.look(routed)? {
            Found::Miss(wanted, _) => wanted,
            found => return Ok(Some(found)),
        };
        // Segments that are too large to be cut for the request go, so that there is room for one that is not. Not those of graphs, which go
        // on using what was freed while they were captured.
        let mut state = lock(&self.private.state);
        let is_captured = state.is_captured(routed.pool);
        let taken = if is_captured { Vec::new() } else { state.pools.take_available(routed.pool, &wanted) };
        let leaving = self.leaving(&mut state, taken);
        drop(state);
        self.give_back(leaving, waits)?;
        // What the driver refuses stays, and the request may do without.
        unless_lost(self.shared.trim_to(0))?;
        unless_lost(self.reclaim(MempoolId::NONE, waits))?;
        Ok(None)
    }

    /// A free block, also of a stream that nobody has any more, else one of a new segment. None if there is no memory for it.
    fn look_or_extend(self, routed: Routed<'_>) -> Result<Option<Found>> {
        let (wanted, source) = match self.look(routed)? {
            Found::Miss(wanted, source) => (wanted, source),
            found => return Ok(Some(found)),
        };
        if let Some(found) = self.look_at_abandoned(routed)? {
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
        let of_pools = self.private.streams.all().into_iter().map(|stream| wait_for(&stream));
        let of_blocks = self.shared.pending.points().into_iter().map(|point| point.wait());
        for outcome in of_slots.chain(of_pools).chain(of_blocks) {
            // Whatever else it fails with, the events tell what is done.
            unless_lost(outcome.map_err(Error::Core))?;
        }
        self.wait_for_uses();
        self.shared.poll();
        Ok(())
    }

    /// Waits for the streams that still use freed blocks, but for pools that a graph may be captured from now.
    fn wait_for_uses(self) {
        // What cannot be waited for waits on.
        self.uncaptured().iter().for_each(|deferred| _ = self.end_all(deferred));
    }

    /// Gives back the free segments of one released pool, after a wait on the host for what may use them; how many bytes.
    pub(super) fn reclaim_pool(self, id: MempoolId) -> Result<usize> {
        let pending = {
            let state = lock(&self.private.state);
            state.pools.get(id).ok().filter(|pool| pool.is_freeable()).map(|pool| pool.notes.clone())
        };
        if let Some(pending) = pending {
            self.shared.figures.change(|counts| counts.num_sync_all_streams += 1);
            // What cannot be waited for waits on.
            let _ = self.end_all(&pending);
        }
        self.reclaim(id, true)
    }

    /// Gives back what released pools have and nothing uses, after a wait on the host for what may use it: whether any went.
    pub(in crate::caching) fn reclaim_waiting(self) -> bool {
        if self.shared.source.segments() == 0 {
            return false;
        }
        self.wait_for_uses();
        self.reclaim(MempoolId::NONE, true).is_ok_and(|bytes| bytes > 0)
    }

    /// Gives unused segments back, of one released pool or, for [`MempoolId::NONE`], of all; how many bytes.
    pub(in crate::caching) fn reclaim(self, id: MempoolId, waits: bool) -> Result<usize> {
        // Also without memory: a pool that was released keeps its source until it is forgotten.
        let mut state = lock(&self.private.state);
        let (taken, over) = state.pools.take_cached(id);
        let leaving = self.leaving(&mut state, taken);
        drop(state);
        let released = self.give_back(leaving, waits);
        // The last handle to an upstream is somebody else's code.
        drop(over);
        released
    }

    /// What is needed to give segments back. Under the lock under which they were taken: their stream may be forgotten later.
    fn leaving(self, state: &mut PoolState, taken: Vec<TakenSegment>) -> Vec<Leaving> {
        let leaving = taken.into_iter().map(|taken| Leaving {
            is_captured: state.is_captured(taken.id),
            owner: self.private.streams.get(taken.segment.stream),
            stack: state.segment_stacks.remove(&taken.segment.address),
            taken,
        });
        leaving.collect()
    }

    /// Gives segments back. A segment that is used yet, or is not taken, is put back.
    fn give_back(self, leaving: Vec<Leaving>, waits: bool) -> Result<usize> {
        if waits {
            self.shared.wait_for_lost_streams();
        }
        if leaving.is_empty() {
            self.forget_streams_without_pools();
            return Ok(0);
        }
        let until = Instant::now() + REACHED;
        let (mut bytes, mut result) = (0usize, Ok(()));
        for leaving in leaving {
            let users = self.users(&leaving, waits);
            // Of another thread's default stream nothing can be asked.
            let asked: Vec<&Stream> =
                users.iter().filter(|user| !self.private.streams.has_ended(user)).collect();
            let outcome = if !users.is_empty() && are_quiet(&asked, waits, until) {
                self.release(leaving)
            } else {
                self.put_back(leaving).map(|()| 0)
            };
            match outcome {
                Ok(released) => bytes = bytes.saturating_add(released),
                Err(error) => result = result.and(Err(error)),
            }
        }
        self.forget_streams_without_pools();
        if bytes > 0 {
            self.forget_without_memory(&self.abandoned_streams());
        }
        result.map(|()| bytes)
    }

    /// Gives a segment back that nothing uses; how many bytes.
    fn release(self, leaving: Leaving) -> Result<usize> {
        let Segment { address, bytes, kind, .. } = leaving.taken.segment;
        let (pool, stream) = (leaving.taken.id, leaving.owner.as_ref().map_or(0, shown_handle));
        let event = |action| Event { action, address, size: bytes, stream, pool };
        // Before the memory is somebody else's: trackers end what they registered of it.
        self.shared.record.tell_segment(event(Action::SegmentFree), leaving.stack.clone());
        if let Err(refusal) = self.private.memory.release(address) {
            let stack = leaving.stack.clone();
            let kept = self.put_back(leaving);
            self.shared.record.tell_segment(event(Action::SegmentAlloc), stack);
            return kept.and(Err(refusal));
        }
        self.shared.source.unclaim(bytes as usize);
        self.shared.figures.remove_segment(pool, kind, bytes);
        let over = lock(&self.private.state).pools.given_back(&leaving.taken);
        // What it panics with must not keep the next segment from going back.
        let _ = catch_panic(|| drop(over));
        Ok(bytes as usize)
    }

    fn put_back(self, leaving: Leaving) -> Result<()> {
        let Leaving { taken, stack, .. } = leaving;
        let mut state = lock(&self.private.state);
        state.pools.put_back(&taken)?;
        if let Some(stack) = stack {
            state.segment_stacks.insert(taken.segment.address, stack);
        }
        Ok(())
    }

    /// Forgets the streams when there are no pools: until then graphs of them may run on any.
    fn forget_streams_without_pools(self) {
        let state = lock(&self.private.state);
        let none = state.pools.iter().next().is_none();
        let gone = self.private.streams.take(|_| none);
        drop(state);
        drop(gone);
    }

    /// The streams that may use a segment, a graph's on any. None if one of them has ended and may run yet.
    fn users(self, leaving: &Leaving, waits: bool) -> Vec<Stream> {
        let mut users: Vec<Stream> = leaving.owner.iter().cloned().collect();
        if !leaving.is_captured {
            return users;
        }
        users.extend(self.private.streams.all());
        for slot in self.shared.slots.iter() {
            let is_done = match slot.owner.served() {
                Ok(stream) => {
                    users.push(stream);
                    true
                }
                Err(End::Done) => true,
                Err(End::At(point)) if waits => point.synchronize().is_ok(),
                Err(End::At(point)) => point.is_complete().unwrap_or(false),
                Err(End::Lost) => false,
            };
            if !is_done {
                return Vec::new();
            }
        }
        users
    }
}

/// A request that climbs the ladder: released pools give theirs back with what is free elsewhere, and what a stream is made to wait for
/// is still in use, so that it cannot go.
struct Climber<'s> {
    pools: PrivatePools<'s>,
    routed: Routed<'s>,
    found: Option<Found>,
}

impl Climb for Climber<'_> {
    type Found = Found;
    type Error = Error;

    fn take_elsewhere(&mut self) -> Result<bool> {
        self.found = self.pools.make_room(self.routed, false)?;
        Ok(true)
    }

    fn wait(&mut self) -> Result<bool> {
        self.pools.wait_for_streams()?;
        self.found = self.pools.make_room(self.routed, true)?;
        Ok(true)
    }

    fn attempt(&mut self) -> Result<Option<Found>> {
        match self.found.take() {
            None => self.pools.look_or_extend(self.routed),
            found => Ok(found),
        }
    }

    fn ask_program(&mut self) -> bool {
        self.pools.shared.callbacks.reclaim(self.routed.requested)
    }
}

/// Within so long an idle stream comes to an event, which is what some streams have to be asked by.
const REACHED: Duration = Duration::from_micros(50);

/// Whether streams are known to have done all that they were given, by events: a question to the stream ends a capture.
fn are_quiet(users: &[&Stream], waits: bool, until: Instant) -> bool {
    let mut uses = Uses::new();
    if users.iter().any(|user| uses.record_stream(user).is_err()) {
        return false;
    }
    if waits {
        return uses.wait().is_ok();
    }
    loop {
        match uses.are_over() {
            Ok(false) if Instant::now() < until => hint::spin_loop(),
            answer => return answer.unwrap_or(false),
        }
    }
}
