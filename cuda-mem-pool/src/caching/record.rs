//! What the history is told, and when.
//!
//! A tracker may allocate, and so may what tells a stack of calls: both run with no heap and no page source held. A block is
//! told of by who has it, before or after it is in its heap; what became of addresses is noted under the heap, and told before
//! anything that comes later is.

use std::collections::{HashMap, VecDeque};

use super::allocate::Request;
use super::callbacks::is_watching;
use super::shared::Shared;
use super::slot::StreamSlot;
use super::vmm::Vmm;
use crate::engine::paged::{BlockNumber, PageSource, StreamHeap};
use crate::error::{Error, Result};
use crate::history::{Event, History, RecordContext};
use crate::mempool_id::MempoolId;
use crate::primitive::{AtomicUsize, Mutex, Ordering, lock};
use crate::snapshot::{Action, Frames};

/// What was noted and is not told yet, and the stacks of blocks in use.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Moves, and what watchers did. The stack of a watcher's event is its own; a move has that of whoever tells of it.
    noted: Mutex<VecDeque<(Event, Option<Frames>)>>,
    /// Whoever has it tells of what is noted.
    turn: Mutex<()>,
    /// Blocks that watchers freed while their heaps were locked, by heap and number, with their addresses.
    left: Mutex<HashMap<(u32, u32), u64>>,
    /// How many those are, so that the usual drain costs one load.
    left_count: AtomicUsize,
    /// Of blocks in use, by address: they stay when a recording ends, as long as the block does.
    stacks: Mutex<HashMap<u64, Frames>>,
}

/// What becomes of a block that is freed while somebody listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goes {
    /// It was told of, and is to be put back.
    Told,
    /// Whoever takes the heap next tells of it and puts it back.
    Left,
}

impl Shared {
    /// A block for a program that is listened to.
    #[cold]
    pub(super) fn allocate_and_tell(&self, slot: &StreamSlot, request: Request) -> Result<u64> {
        let frames = self.history.frames(RecordContext::State);
        let address = self.obtain(slot, request);
        if let Ok(address) = address {
            self.keep_stack(address, frames.clone());
            self.tell(self.event(Action::Alloc, slot, address, request.requested), frames);
        } else {
            self.tell_moves();
        }
        address
    }

    /// A block goes back that nobody uses. In a watcher whose thread may have the heap it is left to whoever takes that next, who tells of it.
    #[cold]
    pub(super) fn tell_freed(&self, slot: &StreamSlot, address: u64, number: BlockNumber) -> Result<Goes> {
        if !self.history.is_listening() {
            self.keep_stack(address, None);
            return Ok(Goes::Told);
        }
        let Ok(requested) = self.requested(slot, number) else {
            self.leave_untold(slot, address, number)?;
            return Ok(Goes::Left);
        };
        if let Some(requested) = requested {
            let stack = self.keep_stack(address, None);
            self.tell_free(Action::FreeRequested, slot, address, requested, stack.clone());
            self.tell_free(Action::FreeCompleted, slot, address, requested, stack);
        }
        Ok(Goes::Told)
    }

    fn leave_untold(&self, slot: &StreamSlot, address: u64, number: BlockNumber) -> Result<()> {
        let key = (slot.number, number.0);
        // Before anybody can find the block among those that were left.
        if lock(&self.record.left).insert(key, address).is_none() {
            self.record.left_count.fetch_add(1, Ordering::Relaxed);
        }
        slot.remote.push(number.0).map_err(|_full| {
            self.take_left(key);
            Error::InCallback
        })
    }

    fn take_left(&self, key: (u32, u32)) -> Option<u64> {
        let address = lock(&self.record.left).remove(&key)?;
        self.record.left_count.fetch_sub(1, Ordering::Relaxed);
        Some(address)
    }

    /// Notes that a block goes back now, if a watcher left it untold. Whoever calls has the heap.
    pub(super) fn note_left(&self, slot: &StreamSlot, heap: &StreamHeap, number: BlockNumber) {
        // Who left the block counted it before, so that whoever finds the block finds the count.
        if self.record.left_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let Some(address) = self.take_left((slot.number, number.0)) else { return };
        let Some(requested) = heap.requested(number) else { return };
        let stack = self.keep_stack(address, None);
        if !self.history.is_listening() {
            return;
        }
        let freed = [Action::FreeRequested, Action::FreeCompleted];
        let events = freed.map(|action| (self.event(action, slot, address, requested), stack.clone()));
        lock(&self.record.noted).extend(events);
    }

    /// Nobody uses a block any more that went back.
    #[cold]
    pub(super) fn tell_completed(&self, slot: &StreamSlot, address: u64, number: BlockNumber) {
        // Watchers complete no blocks.
        if let Ok(Some(requested)) = self.requested(slot, number) {
            let stack = self.keep_stack(address, None);
            self.tell_free(Action::FreeCompleted, slot, address, requested, stack);
        }
    }

    /// One of the two steps in which a block goes back. Where stacks of frees are not recorded, that of its allocation says which it was.
    pub(super) fn tell_free(
        &self,
        action: Action,
        slot: &StreamSlot,
        address: u64,
        requested: usize,
        allocated: Option<Frames>,
    ) {
        if self.history.is_listening() {
            let frames = self.history.frames(RecordContext::All);
            self.tell_noted(frames.as_ref());
            self.tell(self.event(action, slot, address, requested), frames.or(allocated));
        }
    }

    /// A request fails.
    #[cold]
    pub(super) fn tell_out_of_memory(&self, slot: &StreamSlot, request: Request) {
        if self.history.is_listening() {
            let frames = self.history.frames(RecordContext::Alloc);
            // A driver that does not even tell that has none.
            let free = self.context.memory_info().map_or(0, |memory| memory.free as u64);
            self.tell(self.event(Action::Oom, slot, free, request.size), frames);
        }
    }

    /// Somebody looks at all there is.
    pub(super) fn tell_snapshot(&self, active: u64) {
        if self.history.is_listening() {
            self.tell(
                Event {
                    action: Action::Snapshot,
                    address: 0,
                    size: active,
                    stream: 0,
                    pool: MempoolId::NONE,
                },
                None,
            );
        }
    }

    /// Notes what memory heaps got and lost. The caller still has the page source.
    pub(super) fn note_moves(&self, source: &mut PageSource<Vmm>) {
        let moved = source.take_moved();
        if self.history.is_listening() {
            let events = moved.into_iter().filter_map(|moved| {
                let action = if moved.came { Action::SegmentMap } else { Action::SegmentUnmap };
                let slot = self.slots.get(moved.heap)?;
                Some((self.event(action, slot, moved.address, moved.size), None))
            });
            lock(&self.record.noted).extend(events);
        }
    }

    /// Notes something that is told before anything later is. Whoever calls may have a lock, and tells of it once that is gone.
    pub(super) fn note(&self, event: Event, frames: Option<Frames>) {
        if self.history.is_listening() {
            lock(&self.record.noted).push_back((event, frames));
        }
    }

    /// Tells of what is noted. Whoever calls has neither a heap nor the page source.
    pub(super) fn tell_moves(&self) {
        if self.history.is_listening() {
            let frames = self.history.frames(RecordContext::Alloc);
            self.tell_noted(frames.as_ref());
        }
    }

    /// Tells of something, behind what is noted. In a watcher it is noted too: whoever has a turn to tell may wait for the heap that this
    /// thread has.
    pub(super) fn tell(&self, event: Event, frames: Option<Frames>) {
        if is_watching() {
            lock(&self.record.noted).push_back((event, frames));
        } else {
            self.tell_noted(frames.as_ref());
            self.history.record(event, frames.as_ref());
        }
    }

    pub(super) fn tell_noted(&self, frames: Option<&Frames>) {
        if is_watching() {
            return;
        }
        let _turn = if History::is_telling() {
            // The one who has the turn may be this thread, or wait for the tracker that this thread is in.
            let Ok(turn) = self.record.turn.try_lock() else { return };
            turn
        } else {
            lock(&self.record.turn)
        };
        // Those up to now: a tracker that allocates may have memory move each time, and would be told of it without end.
        let noted = lock(&self.record.noted).len();
        for _ in 0..noted {
            let next = lock(&self.record.noted).pop_front();
            let Some((event, own)) = next else { return };
            let frames = match event.action {
                Action::SegmentMap => frames,
                // What goes back is recorded as frees are.
                Action::SegmentUnmap => frames.filter(|_| self.history.has_context(RecordContext::All)),
                _ => own.as_ref(),
            };
            self.history.record(event, frames);
        }
    }

    fn event(&self, action: Action, slot: &StreamSlot, address: u64, size: usize) -> Event {
        let stream = slot.handle();
        Event { action, address, size: size as u64, stream, pool: MempoolId::NONE }
    }

    /// The bytes that were asked for, of a block in use.
    fn requested(&self, slot: &StreamSlot, number: BlockNumber) -> Result<Option<usize>> {
        self.look_at(slot, |heap| heap.requested(number))
    }

    /// The stack that a block was allocated with, or none any more; what there was.
    pub(super) fn keep_stack(&self, address: u64, frames: Option<Frames>) -> Option<Frames> {
        let mut stacks = lock(&self.record.stacks);
        let had_any = !stacks.is_empty();
        let before = match frames {
            Some(frames) => stacks.insert(address, frames),
            None => stacks.remove(&address),
        };
        if stacks.is_empty() == had_any {
            self.history.set_has_stacks(!had_any);
        }
        before
    }

    /// The stack that a block in use was allocated with.
    pub(super) fn stack(&self, address: u64) -> Option<Frames> {
        lock(&self.record.stacks).get(&address).cloned()
    }

    /// The stacks of blocks in use.
    pub(super) fn stacks(&self) -> HashMap<u64, Frames> {
        lock(&self.record.stacks).clone()
    }
}
