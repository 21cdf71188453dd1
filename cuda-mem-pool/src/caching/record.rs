//! What the history is told, and when.
//!
//! A tracker may allocate, and so may what tells a stack of calls: both run with no heap and no page source held. A block is
//! told of by who has it, before or after it is in its heap; what became of addresses is noted under the heap, and told before
//! anything that comes later is.

use std::collections::{HashMap, VecDeque};

use super::callbacks::is_watching;
use super::hot::Request;
use super::shared::Shared;
use super::slot::StreamSlot;
use super::vmm::Vmm;
use crate::engine::paged::{BlockNumber, PageSource};
use crate::error::Result;
use crate::history::{Event, History, RecordContext};
use crate::mempool_id::MempoolId;
use crate::primitive::{Mutex, lock};
use crate::snapshot::{Action, Frames};

/// What was noted and is not told yet, and the stacks of blocks in use.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Moves, and what watchers did. The stack of a watcher's event is its own; a move has that of whoever tells of it.
    noted: Mutex<VecDeque<(Event, Option<Frames>)>>,
    /// Whoever has it tells of what is noted.
    turn: Mutex<()>,
    /// Of blocks in use, by address: they stay when a recording ends, as long as the block does.
    stacks: Mutex<HashMap<u64, Frames>>,
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

    /// A block goes back that nobody uses.
    #[cold]
    pub(super) fn tell_freed(&self, slot: &StreamSlot, address: u64, number: BlockNumber) {
        let stack = self.keep_stack(address, None);
        if self.history.is_listening()
            && let Some(requested) = self.look_at(slot, |heap| heap.requested(number))
        {
            self.tell_free(Action::FreeRequested, slot, address, requested, stack.clone());
            self.tell_free(Action::FreeCompleted, slot, address, requested, stack);
        }
    }

    /// Nobody uses a block any more that went back.
    #[cold]
    pub(super) fn tell_completed(&self, slot: &StreamSlot, address: u64, number: BlockNumber) {
        if let Some(requested) = self.look_at(slot, |heap| heap.requested(number)) {
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
        // What a tracker does it is not told of; what others did waits for somebody who is in none.
        if is_watching() || History::is_telling() {
            return;
        }
        let _turn = lock(&self.record.turn);
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
