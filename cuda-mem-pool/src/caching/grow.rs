//! The slow path of an allocation: more memory, and what is tried when there is none.

use cuda_mem_core::{DriverError, Stream};

use super::callbacks::refuse_watchers;
use super::hot::Request;
use super::pending::Waiting;
use super::private::collect_garbage;
use super::shared::{AllHeaps, Shared, refuse_forked};
use super::slot::StreamSlot;
use crate::engine::paged::{Climb, GrowError, Load, SLAB, Wanted, climb};
use crate::engine::segments::MOST;
use crate::error::{Error, Result};
use crate::mempool_id::MempoolId;
use crate::primitive::lock;

/// What the page source's error is for the caller; out of memory has a ladder of its own before it is one.
fn grow_error(error: GrowError<cuda_mem_core::Error>) -> Error {
    match error {
        GrowError::Backend(error) => error.into(),
        GrowError::OutOfMemory | GrowError::NoNumbers => Error::TooManyBlocks,
        GrowError::InUse { address } => Error::InUse { address },
    }
}

impl Shared {
    /// A block for which the heap has nothing free.
    #[cold]
    pub(super) fn grow(&self, slot: &StreamSlot, request: Request) -> Result<u64> {
        refuse_watchers()?;
        if request.size > self.total {
            return self.give_up(slot, request, MempoolId::NONE);
        }
        self.context.driver().reclaim();
        self.poll();
        collect_garbage(self);
        let held = self.source.held();
        match self.look_for(slot, request) {
            Ok(Some(address)) => Ok(address),
            Ok(None) => {
                self.give_back_beyond(slot, held);
                self.give_up(slot, request, MempoolId::NONE)
            }
            Err(error) => {
                self.give_back_beyond(slot, held);
                Err(error)
            }
        }
    }

    /// More memory, the ladder, and what a private pool may lend; None if all that does not help.
    fn look_for(&self, slot: &StreamSlot, request: Request) -> Result<Option<u64>> {
        if let Some(address) = self.try_grow(slot, request)? {
            return Ok(Some(address));
        }
        lock(&self.counts).num_alloc_retries += 1;
        if let Some(address) = climb(&mut Climber { shared: self, slot, request })? {
            return Ok(Some(address));
        }
        match slot.owner.stream() {
            Some(stream) => self.pools().borrow_on_oom(request.requested, &stream),
            None => Ok(None),
        }
    }

    /// One attempt: None if there is no memory for it.
    fn try_grow(&self, slot: &StreamSlot, request: Request) -> Result<Option<u64>> {
        let bytes = |count: u64| usize::try_from(count).unwrap_or(0);
        // The page source knows nothing of private blocks.
        let others = self.private.active();
        let load = Load {
            active: bytes(self.counter.active_bytes()).saturating_sub(others),
            peak: bytes(self.counter.peak_active_bytes()).saturating_sub(others),
        };
        let mut source = self.source()?;
        // However what is not in use lies: others on the device would miss what is made for it meanwhile.
        let room = self.total.saturating_sub(self.private.reserved()).min(source.limit());
        if request.size > room.max(source.reserved()).saturating_sub(load.active) {
            return Ok(None);
        }
        let wanted = Wanted { size: request.size, unused: request.unused(), load };
        let grown = source.grow(slot.number, &mut AllHeaps(self), wanted, &self.index(slot.number));
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

    /// Gives back what was got for a request that fails, as far as it can: others on the device may need it. While there is hope it stays,
    /// because a later step may find a use for it.
    fn give_back_beyond(&self, slot: &StreamSlot, held: usize) {
        for is_waited_for in [false, true] {
            if is_waited_for {
                // Nobody has used it, but it may lie beside what the device has only just been given.
                let _ = slot.owner.wait();
            }
            let excess = self.source.held().saturating_sub(held);
            if excess == 0 {
                return;
            }
            // What the driver refuses stays.
            let _ = self.release_free(slot, excess);
        }
    }

    /// Refuses a block that no heap can have: no step helps. Below what private pools refuse, too, it is a lack of memory like any other.
    #[cold]
    pub(super) fn refuse_too_large<'a>(
        &self,
        slot: impl FnOnce() -> Result<&'a StreamSlot>,
        requested: usize,
        pool: MempoolId,
    ) -> Result<u64> {
        if requested as u64 >= MOST {
            return Err(Error::TooLarge { bytes: requested });
        }
        self.give_up(slot()?, Request { requested, size: requested }, pool)
    }

    /// The end: the error, which observers see first. The request was one of a private pool, or of the default pool for
    /// [`MempoolId::NONE`].
    pub(super) fn give_up(&self, slot: &StreamSlot, request: Request, pool: MempoolId) -> Result<u64> {
        let report = self.report(slot, request, pool)?;
        lock(&self.counts).num_ooms += 1;
        self.tell_out_of_memory(slot, request);
        self.callbacks.observe(&report);
        Err(Error::DeviceOutOfMemory(Box::new(report)))
    }

    /// Takes in what other threads freed, blocks whose uses have ended and what was put off, and gives empty slabs back to the ranges.
    fn take_back(&self) {
        self.context.driver().reclaim();
        self.poll();
        for slot in self.slots.iter() {
            slot.heap.with(|heap, guard| {
                self.drain(slot, heap, guard);
                heap.coalesce(&self.index(slot.number));
            });
        }
    }

    /// Gives free handles back that are of another size than those that are made now, or that must go to others: the own heap's first, and no
    /// more than is asked for.
    fn trim(&self, slot: &StreamSlot, request: Request) -> Result<usize> {
        // A small block needs a slab wherever its addresses begin.
        let enough = request.size.saturating_add(2 * SLAB);
        let others = self.slots.iter().filter(|other| other.number != slot.number);
        let mut bytes = 0usize;
        for heap in [slot].into_iter().chain(others) {
            if bytes >= enough {
                break;
            }
            bytes = bytes.saturating_add(self.release_free(heap, enough - bytes)?);
        }
        Ok(bytes)
    }

    /// Has the streams of these blocks wait for what other streams do with them; how many bytes those had that could.
    fn order_all(&self, blocks: Vec<Waiting>) -> usize {
        let mut back = 0usize;
        for waiting in blocks {
            let owner = || self.slots.get(waiting.block.heap).and_then(|slot| slot.owner.stream());
            // Made to wait, a stream that captures would lose its capture.
            let can_wait = |stream: &Stream| matches!(stream.is_capturing(), Ok(false));
            // Of one that was forgotten meanwhile the wait may be behind its end, and its heap another stream's.
            let waits = owner().filter(can_wait).is_some_and(|stream| {
                waiting.hold_up(&stream, &self.observer) && owner().is_some_and(|now| now == stream)
            });
            if waits {
                self.complete(&waiting);
                back = back.saturating_add(waiting.block.size);
            } else {
                // A stream that captures cannot; the host may.
                self.put_back_waiting(waiting);
            }
        }
        back
    }

    /// Waits on the host for blocks that nobody could be made to wait for, and for free memory that the device still uses, which
    /// only then can be given back. Streams that capture are not waited for.
    fn wait_for_pending(&self) -> Result<bool> {
        let mut waited = self.pools().reclaim_waiting();
        for point in self.pending.points() {
            // Whatever a wait says, what has not ended is found out by the poll.
            waited |= point.wait().is_ok();
        }
        let busy: Vec<_> = {
            let source = self.source()?;
            let is_busy =
                |slot: &&StreamSlot| slot.heap.with(|heap, _| source.movable(slot.number, heap) > 0);
            self.slots.iter().filter(is_busy).collect()
        };
        for slot in busy {
            waited |= slot.owner.wait().is_ok();
        }
        if waited {
            lock(&self.counts).num_sync_all_streams += 1;
        }
        Ok(waited)
    }

    /// Gives free memory of a heap that nothing uses back to the driver, `most` bytes of it; how many bytes.
    fn release_free(&self, slot: &StreamSlot, most: usize) -> Result<usize> {
        let mut source = self.source()?;
        let released = source.release_free(slot.number, &mut AllHeaps(self), most);
        drop(source);
        self.tell_moves();
        released.map_err(grow_error)
    }

    /// Gives everything back to the driver that nothing is in and nothing uses; how many bytes.
    pub(super) fn empty_cache(&self) -> Result<usize> {
        refuse_forked()?;
        refuse_watchers()?;
        self.take_back();
        // Handles were mapped for other heaps before: each needs its point before any of them gives memory back.
        let mut source = self.source()?;
        self.slots.iter().for_each(|slot| source.mark_free(slot.number, &mut AllHeaps(self)));
        drop(source);
        let mut released = self.slots.iter().map(|slot| self.release_free(slot, usize::MAX));
        let bytes = released.try_fold(0, |sum: usize, bytes| Ok::<_, Error>(sum.saturating_add(bytes?)))?;
        Ok(bytes.saturating_add(self.pools().reclaim_released()?))
    }
}

/// A request of a stream that climbs the ladder.
struct Climber<'s> {
    shared: &'s Shared,
    slot: &'s StreamSlot,
    request: Request,
}

impl Climb for Climber<'_> {
    type Found = u64;
    type Error = Error;

    // A step that fails may have helped, too: what could not be given back stays, and the request may do without. Where the device is lost
    // nothing helps, and that is what the program has to hear.
    fn take_elsewhere(&mut self) -> Result<bool> {
        self.shared.take_back();
        unless_lost(self.shared.trim(self.slot, self.request))?;
        Ok(true)
    }

    fn take_released_pools(&mut self) -> Result<bool> {
        Ok(unless_lost(self.shared.pools().reclaim_released())?.is_none_or(|bytes| bytes > 0))
    }

    fn take_pending(&mut self) -> Result<bool> {
        Ok(self.shared.order_all(self.shared.pending.take_marked()) > 0)
    }

    fn wait(&mut self) -> Result<bool> {
        Ok(unless_lost(self.shared.wait_for_pending())?.unwrap_or(true) && self.take_elsewhere()?)
    }

    fn attempt(&mut self) -> Result<Option<u64>> {
        self.shared.try_grow(self.slot, self.request)
    }

    fn ask_program(&mut self) -> bool {
        self.shared.callbacks.reclaim(self.request.requested)
    }
}

/// What an attempt gave that a request may do without; the error where the device is lost, since nothing helps there.
pub(super) fn unless_lost<T>(outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Err(error) if error.driver_error().is_some_and(DriverError::context_is_lost) => Err(error),
        outcome => Ok(outcome.ok()),
    }
}
