//! What is tried when there is no memory, step by step.

use cuda_mem_core::{DriverError, Stream};

use super::allocate::{Request, grow_error};
use super::callbacks::refuse_watchers;
use super::pending::Waiting;
use super::shared::{Shared, refuse_forked};
use super::slot::StreamSlot;
use crate::engine::paged::{PAGE, Policy};
use crate::engine::segments::MOST;
use crate::error::{Error, Result};
use crate::mempool_id::MempoolId;
use crate::primitive::{Ordering, lock};

/// One step, for a request of a stream: whether it may have helped.
type Step = fn(&Shared, &StreamSlot, Request) -> Result<bool>;

/// The cheapest first. The host waits in the last one alone.
const STEPS: [Step; 5] =
    [Shared::take_back, Shared::reclaim_private, Shared::trim, Shared::hold_up, Shared::wait_for_pending];

impl Shared {
    /// A block after everything that helps. `held` is what was held when it was asked for.
    #[cold]
    pub(super) fn climb(&self, slot: &StreamSlot, request: Request, held: usize) -> Result<u64> {
        lock(&self.counts).num_alloc_retries += 1;
        if let Some(address) = self.try_steps(slot, request)? {
            return Ok(address);
        }
        // What the program freed may need each of the steps again.
        if self.callbacks.reclaim(request.requested)
            && let Some(address) = self.try_steps(slot, request)?
        {
            return Ok(address);
        }
        let borrowed = match slot.owner.stream() {
            Some(stream) => self.borrow_on_oom(request.requested, &stream)?,
            None => None,
        };
        match borrowed {
            Some(address) => Ok(address),
            None => {
                self.give_back_beyond(slot, held);
                self.give_up(slot, request, MempoolId::NONE)
            }
        }
    }

    /// What was got for a request that fails goes back, as far as it can: others on the device may need it. While there is hope it
    /// stays, because a later step may find a use for it.
    fn give_back_beyond(&self, slot: &StreamSlot, held: usize) {
        for is_waited_for in [false, true] {
            if is_waited_for {
                // Nobody has used it, but it may lie beside what the device has only just been given.
                let _ = slot.owner.wait();
            }
            // What the driver refuses stays.
            let _ = self.release_free(slot, held);
            if lock(&self.source).reserved() <= held {
                return;
            }
        }
    }

    /// A block that no heap can have: no step helps. Below what private pools refuse, too, it is a lack of memory like any other.
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

    /// The end: the error, of which observers are told. The request was one of a private pool, or of the default pool for
    /// [`MempoolId::NONE`].
    pub(super) fn give_up(&self, slot: &StreamSlot, request: Request, pool: MempoolId) -> Result<u64> {
        let report = self.report(slot, request, pool)?;
        lock(&self.counts).num_ooms += 1;
        self.tell_out_of_memory(slot, request);
        self.callbacks.observe(&report);
        Err(Error::DeviceOutOfMemory(Box::new(report)))
    }

    /// The pool is searched again after every step that may have helped. One that fails may have, too: what could not be given back
    /// stays, and the request may do without. Where the device is lost nothing helps, and that is what the program has to hear.
    fn try_steps(&self, slot: &StreamSlot, request: Request) -> Result<Option<u64>> {
        for step in STEPS {
            let may_have_helped = unless_lost(step(self, slot, request))?.unwrap_or(true);
            if may_have_helped && let Some(address) = self.try_grow(slot, request, None)? {
                return Ok(Some(address));
            }
        }
        Ok(None)
    }

    /// Blocks whose uses have ended, frees that other threads left, and pages of heaps that nothing is in.
    fn take_back(&self, _slot: &StreamSlot, _request: Request) -> Result<bool> {
        self.poll();
        self.settle();
        Ok(true)
    }

    /// Memory of released private pools that nothing is in and nothing uses.
    fn reclaim_private(&self, _slot: &StreamSlot, _request: Request) -> Result<bool> {
        Ok(self.reclaim_released()? > 0)
    }

    /// Gives free memory back to the driver, so that it can be got again in the sizes that are needed: what was free but too
    /// large to be moved to the gap at hand, or must not be moved. The own heap's goes first, and no more than is asked for.
    fn trim(&self, slot: &StreamSlot, request: Request) -> Result<bool> {
        // A small block needs a page wherever its addresses begin.
        let enough = request.size.saturating_add(2 * PAGE);
        let others = self.slots.iter().filter(|other| other.number != slot.number);
        let mut bytes = 0usize;
        for heap in [slot].into_iter().chain(others) {
            if bytes >= enough {
                break;
            }
            bytes = bytes.saturating_add(self.release_free(heap, 0)?);
        }
        Ok(bytes > 0)
    }

    /// Has the streams of blocks that wait for other streams wait instead, on the device.
    fn hold_up(&self, _slot: &StreamSlot, _request: Request) -> Result<bool> {
        Ok(self.hold_up_all(self.pending.take_marked()) > 0)
    }

    /// Takes blocks of a heap that needs memory back whose stream the device has not brought to their free yet; other streams still
    /// use them. Their own stream waits for that, on the device. Otherwise more would be held the farther the host is ahead.
    ///
    /// Other heaps' streams are left alone: they would wait for memory that they did not ask for, and a capture that another thread
    /// begins there meanwhile would be lost.
    ///
    /// Of the newest nothing is taken, up to [`Policy::WAITS_ON`] of what is active: a stream that waits for the last that another one was given
    /// does not work beside it any more.
    ///
    /// What is active afterwards, if that had to be looked at: it is a sum over all heaps, and whoever grows needs it next.
    pub(super) fn catch_up(&self, slot: &StreamSlot) -> Option<u64> {
        if self.pending.is_empty() {
            return None;
        }
        let now = self.counter.active_bytes();
        let room = usize::try_from(now).unwrap_or(usize::MAX) / Policy::WAITS_ON;
        let back = self.hold_up_all(self.pending.take_behind(slot.number, room, &self.observer));
        Some(now.saturating_sub(back as u64))
    }

    /// Has the streams of these blocks wait for what other streams do with them; how many bytes those had that could.
    fn hold_up_all(&self, blocks: Vec<Waiting>) -> usize {
        let mut back = 0usize;
        for waiting in blocks {
            let owner = || self.slots.get(waiting.block.heap).and_then(|slot| slot.owner.stream());
            // Made to wait, a stream that captures would lose its capture.
            let can_wait = |stream: &Stream| matches!(stream.is_capturing(), Ok(false));
            // Of one that was forgotten meanwhile the wait may be behind its end, and its heap another stream's.
            let is_held_up = owner().filter(can_wait).is_some_and(|stream| {
                waiting.hold_up(&stream, &self.observer) && owner().is_some_and(|now| now == stream)
            });
            if is_held_up {
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
    fn wait_for_pending(&self, slot: &StreamSlot, request: Request) -> Result<bool> {
        let mut waited = self.reclaim_waiting();
        for point in self.pending.points() {
            // Whatever a wait says, what has not ended is found out by the poll.
            waited |= point.wait().is_ok();
        }
        let busy: Vec<_> = {
            let source = self.source()?;
            let is_busy = |slot: &&StreamSlot| {
                slot.heap.with(|heap, guard| {
                    guard.disarm();
                    source.movable(slot.number, heap) > 0
                })
            };
            self.slots.iter().filter(is_busy).collect()
        };
        for slot in busy {
            waited |= slot.owner.wait().is_ok();
        }
        if waited {
            lock(&self.counts).num_sync_all_streams += 1;
            self.take_back(slot, request)?;
            self.trim(slot, request)?;
        }
        Ok(waited)
    }

    /// Takes in what other threads freed, and gives pages that nothing is in back to the ranges that they are of.
    fn settle(&self) {
        for slot in self.slots.iter() {
            slot.heap.with(|heap, guard| {
                self.drain(slot, heap, guard);
                guard.disarm();
                heap.release_spare_pages(&self.index(slot.number));
            });
        }
    }

    /// Gives the free memory of a heap that nothing uses back to the driver, until no more than `most` is held; how many bytes.
    fn release_free(&self, slot: &StreamSlot, most: usize) -> Result<usize> {
        let mut source = self.source()?;
        let released = slot.heap.with(|heap, guard| {
            guard.disarm();
            let released = source.release_free(slot.number, heap, most);
            self.held.store(source.reserved(), Ordering::Relaxed);
            self.note_moves(slot, heap);
            released
        });
        drop(source);
        self.tell_moves();
        released.map_err(grow_error)
    }

    /// Gives what nothing is in and nothing uses back to the driver; how many bytes.
    pub(super) fn empty_cache(&self) -> Result<usize> {
        refuse_forked()?;
        refuse_watchers()?;
        self.poll();
        self.settle();
        // Handles were mapped for other heaps before: each needs its point before any of them gives memory back.
        for slot in self.slots.iter() {
            let mut source = self.source()?;
            slot.heap
                .with(|heap, guard| {
                    guard.disarm();
                    source.mark_free(slot.number, heap)
                })
                .map_err(grow_error)?;
        }
        let mut released = self.slots.iter().map(|slot| self.release_free(slot, 0));
        let bytes: usize =
            released.try_fold(0, |sum: usize, bytes| Ok::<_, Error>(sum.saturating_add(bytes?)))?;
        Ok(bytes.saturating_add(self.reclaim_released()?))
    }
}

/// What an attempt gave that a request may do without; the error where the device is lost, since nothing helps there.
pub(super) fn unless_lost<T>(outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Err(error) if error.driver_error().is_some_and(DriverError::context_is_lost) => Err(error),
        outcome => Ok(outcome.ok()),
    }
}
