//! The slow path of an allocation: more memory, and what is tried when there is none. And that of a free: blocks that other streams use.

use cuda_mem_core::{DriverError, Stream, Uses};

use super::callbacks::refuse_watchers;
use super::hot::{Request, pool_of};
use super::owner::End;
use super::pending::{Freed, Waiting};
use super::record::event;
use super::shared::{AllHeaps, DeviceCache};
use super::slot::StreamSlot;
use crate::engine::paged::{BlockNumber, Climb, GrowError, SLAB, Wanted, climb};
use crate::engine::segments::MOST;
use crate::error::{Error, Result};
use crate::history::{Event, RecordContext};
use crate::mempool_id::MempoolId;
use crate::snapshot::Action;

/// The caller's error for one of the page source. `OutOfMemory` of a request does not come here: it goes up the ladder.
fn grow_error(error: GrowError<cuda_mem_core::Error>) -> Error {
    match error {
        GrowError::Backend(error) => error.into(),
        GrowError::OutOfMemory | GrowError::NoNumbers => Error::TooManyBlocks,
        GrowError::InUse { address } => Error::InUse { address },
    }
}

impl DeviceCache {
    /// A block for which the heap has nothing free.
    #[cold]
    pub(super) fn grow(&self, slot: &StreamSlot, request: Request) -> Result<u64> {
        if let Some(address) = request.at {
            return Err(Error::UnknownAddress { address });
        }
        refuse_watchers()?;
        if request.size > self.total {
            return self.give_up(slot, request, MempoolId::NONE);
        }
        self.context.driver().reclaim();
        self.poll();
        self.collect_garbage();
        self.source.lock()?.begin();
        let held = self.figures.reserved();
        let found = self.look_for(slot, request);
        if let Ok(Some(address)) = found {
            return Ok(address);
        }
        self.give_back_beyond(slot, held);
        found.and_then(|_none| self.give_up(slot, request, MempoolId::NONE))
    }

    /// More memory, the ladder, and what a private pool may lend; None if all that does not help.
    fn look_for(&self, slot: &StreamSlot, request: Request) -> Result<Option<u64>> {
        if let Some(address) = self.try_grow(slot, request)? {
            return Ok(Some(address));
        }
        self.figures.change(|counts| counts.num_alloc_retries += 1);
        if let Some(address) = climb(&mut Climber { shared: self, slot, request })? {
            return Ok(Some(address));
        }
        let lent = |stream| self.pools().borrow_on_oom(request.requested, &stream);
        slot.owner.stream().map_or(Ok(None), lent)
    }

    /// One attempt: None if there is no memory for it.
    fn try_grow(&self, slot: &StreamSlot, request: Request) -> Result<Option<u64>> {
        // Blocks that other threads left in rings are not active any more.
        self.count_all_frees(None);
        // The page source knows nothing of private blocks.
        let (others, of_sources) = self.private.active();
        let active = self.figures.counter.active_bytes().saturating_sub(others);
        let peak = self.figures.counter.peak_active_bytes().saturating_sub(others);
        let peak = peak.max(active.saturating_add(request.size));
        let mut source = self.source.lock()?;
        // For more than is not in use now no handles are made: they could not suffice, and others on the device would miss them.
        let elsewhere = source.elsewhere.saturating_sub(of_sources);
        let room = self.total.saturating_sub(elsewhere).min(source.limit());
        if request.size > room.max(source.reserved()).saturating_sub(active) {
            return Ok(None);
        }
        let wanted = Wanted { size: request.size, unused: request.unused(), peak };
        let grown = source.grow(slot.number, &mut AllHeaps(self), wanted);
        drop(source);
        match grown {
            Ok(block) => {
                slot.heap.with(|heap, guard| self.count(slot, heap, guard, request));
                Ok(Some(block.address))
            }
            Err(GrowError::OutOfMemory) => Ok(None),
            Err(error) => Err(grow_error(error)),
        }
    }

    /// Gives back what was made for a request that has failed, as far as the driver lets it: others on the device may need it. Until all steps
    /// have failed it stays, because a later step may use it.
    fn give_back_beyond(&self, slot: &StreamSlot, held: usize) {
        for _ in 0..2 {
            // What the driver refuses stays.
            let _ = self.trim_to(held);
            if self.figures.reserved() <= held {
                return;
            }
            // No work uses it, but a handle may also have a block that was freed a moment ago.
            let _ = slot.owner.wait();
        }
    }

    /// Refuses a block that no heap can have: no step helps. Below what private pools refuse, too, it is a lack of memory like any other.
    #[cold]
    pub(super) fn refuse_too_large(
        &self,
        slot: &StreamSlot,
        requested: usize,
        pool: MempoolId,
    ) -> Result<u64> {
        if requested as u64 >= MOST {
            return Err(Error::TooLarge { bytes: requested });
        }
        self.give_up(slot, Request { requested, size: requested, at: None }, pool)
    }

    /// The end: the error, which observers see first. `pool` is the request's: [`MempoolId::NONE`] for the default pool.
    pub(super) fn give_up(&self, slot: &StreamSlot, request: Request, pool: MempoolId) -> Result<u64> {
        let report = self.report(slot, request, pool)?;
        self.figures.change(|counts| counts.num_ooms += 1);
        let record = &self.record;
        if record.history.is_listening() {
            let frames = record.history.frames(RecordContext::Alloc);
            let free = report.free.unwrap_or(0) as u64;
            record.emit(Event { pool, ..event(Action::Oom, slot.handle(), free, request.size) }, frames);
        }
        self.callbacks.observe(&report);
        Err(Error::DeviceOutOfMemory(Box::new(report)))
    }

    /// Waits on the host for blocks whose own stream could not be made to wait, and for free memory that the device still uses,
    /// which can be given back only then. Streams that capture are not waited for.
    fn wait_for_pending(&self) -> Result<bool> {
        let mut waited = self.pools().reclaim_waiting();
        for point in self.pending.points(|_| true) {
            // Whatever a wait returns, the poll finds out which uses have ended.
            waited |= point.wait().is_ok();
        }
        let busy: Vec<_> = {
            let source = self.source.lock()?;
            let is_busy = |slot: &&StreamSlot| {
                slot.heap.with(|heap, _| {
                    heap.coalesce(&self.index(slot.number));
                    source.movable(slot.number, heap, false) > 0
                })
            };
            self.slots.iter().filter(is_busy).collect()
        };
        let waits: Vec<_> = busy.into_iter().map(|slot| slot.owner.wait()).collect();
        waited |= waits.iter().any(Result::is_ok);
        waited |= waits.iter().any(Result::is_err) && self.wait_for_lost_streams();
        if waited {
            self.figures.change(|counts| counts.num_sync_all_streams += 1);
        }
        Ok(waited)
    }

    /// Waits for the default streams of threads that ended while those were busy. No thread can name them, so it waits for all work of the
    /// context; not beside a capture, which that would end. Returns whether they are done.
    pub(super) fn wait_for_lost_streams(&self) -> bool {
        let slots = self.slots.iter();
        let lost = slots.filter_map(|slot| match slot.owner.served() {
            Err(End::Lost(id)) => Some((&slot.owner, id)),
            _ => None,
        });
        let lost: Vec<_> = lost.collect();
        let wait = || self.context.point().and_then(|point| point.synchronize());
        let is_done = !lost.is_empty()
            && self.streams.refuse_captures("a wait for streams of ended threads").is_ok()
            // Once more, because the driver reports older errors of others in any call.
            && wait().or_else(|_| wait()).is_ok();
        if is_done {
            // Another one may have taken its place meanwhile, and be lost too.
            lost.iter().for_each(|(owner, id)| owner.settle(|end| matches!(end, End::Lost(of) if of == id)));
        }
        is_done
    }

    /// Gives free memory back when more is held than the threshold of garbage collection allows.
    pub(super) fn collect_garbage(&self) {
        let threshold = self.private.options().garbage_collection_threshold;
        let most = threshold.map(|threshold| (threshold * self.limit() as f64) as usize);
        if most.is_some_and(|most| self.figures.reserved() > most) {
            // What the driver refuses to free stays; the request goes on without it.
            let _ = self.trim_to(0);
        }
    }

    /// Gives free memory that no stream uses back to the driver, until no more than so many bytes are held; returns the bytes that went. A
    /// refusal keeps no other stream's and no pool's memory.
    pub(super) fn trim_to(&self, bytes: usize) -> Result<usize> {
        refuse_watchers()?;
        // What was put off, blocks whose uses have ended, frees that other threads left, and empty slabs are free first.
        self.context.driver().reclaim();
        self.poll();
        for slot in self.slots.iter() {
            self.with_drained(slot, |heap, _| heap.coalesce(&self.index(slot.number)));
        }
        // Handles were mapped for other heaps before: each needs its point before any of them gives memory back.
        let mut source = self.source.lock()?;
        source.backend.unmap_shut();
        self.slots.iter().for_each(|slot| source.mark_free(slot.number, &mut AllHeaps(self)));
        drop(source);
        let (mut released, mut refused) = (0usize, None);
        let mut count = |went: Result<usize>| match went {
            Ok(bytes) => released = released.saturating_add(bytes),
            Err(error) => _ = refused.get_or_insert(error),
        };
        for slot in self.slots.iter() {
            let excess = if bytes == 0 { usize::MAX } else { self.figures.reserved().saturating_sub(bytes) };
            if excess > 0 {
                let went = self.source.lock()?.release_free(slot.number, &mut AllHeaps(self), excess);
                self.record.emit_moves();
                count(went.map_err(grow_error));
            }
        }
        if bytes == 0 || self.figures.reserved() > bytes {
            count(self.pools().reclaim(MempoolId::NONE, false, bytes));
        }
        refused.map_or(Ok(released), Err)
    }
}

/// Blocks that are freed while other streams use them: how they wait, and come back.
impl DeviceCache {
    /// Frees a block once the streams that used it have come past this point.
    #[cold]
    pub(super) fn free_behind(
        &self,
        slot: &StreamSlot,
        address: u64,
        number: BlockNumber,
        uses: Uses,
    ) -> Result<()> {
        let found = self.with_drained(slot, |heap, guard| {
            let (size, requested) = heap.sizes(number)?;
            guard.request_free(pool_of(size), size);
            Some((size, requested))
        });
        let (size, requested) = found.ok_or(Error::UnknownAddress { address })?;
        if self.record.history.awaits_frees() {
            self.record.emit_block(event(Action::FreeRequested, slot.handle(), address, requested));
        }
        let block = Freed { address, heap: slot.number, number, size, pool: MempoolId::NONE };
        self.pending.push(block, uses, None, &self.observer);
        slot.waiting.add(size);
        Ok(())
    }

    /// Allocates a block and records it in the history.
    #[cold]
    pub(super) fn allocate_recorded(&self, slot: &StreamSlot, request: Request) -> Result<u64> {
        // The stack first: the program's code that takes it may end the thread, and the block would leak.
        let frames = self.record.history.frames(RecordContext::State);
        let address = self.obtain(slot, request);
        match address {
            Ok(address) if self.map.find(address).is_some() => {
                let event = event(Action::Alloc, slot.handle(), address, request.requested);
                self.record.emit_allocated(event, frames);
            }
            // A block that a private pool lends was recorded there.
            _ => self.record.emit_moves(),
        }
        address
    }

    /// Records the free of a block that no other stream uses.
    #[cold]
    pub(super) fn emit_freed(&self, slot: &StreamSlot, address: u64, number: BlockNumber) {
        match self.with_drained(slot, |heap, _| heap.sizes(number)) {
            Some((_, requested)) => [Action::FreeRequested, Action::FreeCompleted]
                .into_iter()
                .for_each(|action| self.record.emit_block(event(action, slot.handle(), address, requested))),
            None => drop(self.record.keep_stack(address, None)),
        }
    }

    /// Gives the blocks back whose uses are over.
    pub(super) fn poll(&self) {
        self.pending.poll(&self.observer, |_| true).iter().for_each(|waiting| self.complete(waiting));
        self.pools().poll();
    }

    /// Gives the blocks of a heap back that have this size and whose uses are over.
    #[cold]
    pub(super) fn poll_for(&self, slot: &StreamSlot, size: usize) {
        for waiting in self.pending.poll_for(slot, size, &self.observer) {
            self.complete(&waiting);
        }
    }

    /// Frees a pending block whose uses are over.
    pub(super) fn complete(&self, waiting: &Waiting) {
        let Freed { address, heap, number, .. } = waiting.block;
        let Some(slot) = self.slots.get(heap) else { return };
        if self.record.history.awaits_frees()
            && let Some((_, requested)) = self.with_drained(slot, |heap, _| heap.sizes(number))
        {
            self.record.emit_block(event(Action::FreeCompleted, slot.handle(), address, requested));
        }
        slot.heap.with(|heap, guard| {
            let Some(freed) = heap.free(number, &self.index(slot.number)) else { return };
            guard.complete_free(pool_of(freed.size), freed.size, freed.size - freed.unused);
        });
    }
}

/// A request of a stream that climbs the ladder.
struct Climber<'s> {
    shared: &'s DeviceCache,
    slot: &'s StreamSlot,
    request: Request,
}

impl Climb for Climber<'_> {
    type Found = u64;
    type Error = Error;

    // A step that fails may have helped, too: what could not be given back stays, and the request may do without. Where the device is lost
    // nothing helps, and that is what the program has to hear.
    fn take_elsewhere(&mut self) -> Result<bool> {
        // A small block needs a slab wherever its addresses begin.
        let enough = self.request.size.saturating_add(2 * SLAB);
        unless_lost(self.shared.trim_to(self.shared.figures.reserved().saturating_sub(enough)))?;
        Ok(true)
    }

    fn take_pending(&mut self) -> Result<bool> {
        let (shared, mut has_any) = (self.shared, false);
        for waiting in shared.pending.take(|waiting| waiting.points.is_some()) {
            let (slot, size) = (shared.slots.get(waiting.block.heap), waiting.block.size);
            let own = || slot.and_then(|slot| slot.owner.stream());
            // Made to wait, a stream that captures would lose its capture.
            let can_wait = |stream: &Stream| matches!(stream.is_capturing(), Ok(false));
            // Of one that was forgotten meanwhile the wait may be behind its end, and its heap another stream's.
            let waits = own().filter(can_wait).is_some_and(|stream| {
                waiting.make_wait(&stream, &shared.observer) && own().is_some_and(|now| now == stream)
            });
            if waits {
                shared.complete(&waiting);
                has_any = true;
            } else {
                // A stream that captures cannot; the host may.
                shared.pending.put_back(waiting);
                slot.into_iter().for_each(|slot| slot.waiting.add(size));
            }
        }
        Ok(has_any)
    }

    fn wait(&mut self) -> Result<bool> {
        Ok(unless_lost(self.shared.wait_for_pending())?.unwrap_or(true) && self.take_elsewhere()?)
    }

    fn attempt(&mut self) -> Result<Option<u64>> {
        self.shared.try_grow(self.slot, self.request)
    }

    fn ask_others(&mut self, round: u32) -> usize {
        self.shared.pools().ask_others(round, self.request.requested)
    }
}

/// What an attempt gave that a request may do without; the error where the device is lost, since nothing helps there.
pub(super) fn unless_lost<T>(outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Err(error) if error.driver_error().is_some_and(DriverError::context_is_lost) => Err(error),
        outcome => Ok(outcome.ok()),
    }
}
