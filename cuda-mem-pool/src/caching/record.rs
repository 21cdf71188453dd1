//! What the history is told, and when.
//!
//! A tracker may allocate, and so may what tells a stack of calls: both run with no heap and no page source held. A block is
//! told of by who has it, before or after it is in its heap; what became of addresses is noted under the heap, and told before
//! anything that comes later is.

use std::collections::{HashMap, VecDeque};

use super::allocate::Request;
use super::shared::Shared;
use super::slot::StreamSlot;
use crate::engine::paged::{BlockNumber, StreamHeap};
use crate::error::Result;
use crate::history::{Event, History, RecordContext};
use crate::mempool_id::MempoolId;
use crate::primitive::{Mutex, lock};
use crate::snapshot::{Action, Frames};

/// What was noted and is not told yet, and the stacks of blocks in use.
#[derive(Debug, Default)]
pub(super) struct Record {
    moves: Mutex<VecDeque<Event>>,
    /// Whoever has it tells of moves.
    turn: Mutex<()>,
    stacks: Mutex<Stacks>,
}

/// By address. Blocks may go unseen between two recordings, so those of earlier ones are forgotten.
#[derive(Debug, Default)]
struct Stacks {
    recording: u64,
    by_address: HashMap<u64, Frames>,
}

impl Shared {
    /// A block for a program that is listened to.
    #[cold]
    pub(super) fn allocate_and_tell(&self, slot: &StreamSlot, request: Request) -> Result<u64> {
        let frames = self.history.frames(RecordContext::State);
        let address = self.obtain(slot, request);
        if let Ok(address) = address {
            // Memory may have come to it from elsewhere in the heap. If somebody has that now, it is told of next time.
            slot.heap.try_with(|heap, guard| {
                guard.disarm();
                self.note_moves(slot, heap);
            });
            self.keep_stack(address, frames.clone());
            self.tell(self.event(Action::Alloc, slot, address, request.requested), frames.as_ref());
        } else {
            self.tell_moves();
        }
        address
    }

    /// A block goes back that nobody uses.
    #[cold]
    pub(super) fn tell_freed(&self, slot: &StreamSlot, address: u64, number: BlockNumber) {
        if let Some(requested) = self.requested(slot, number) {
            self.keep_stack(address, None);
            self.tell_free(Action::FreeRequested, slot, address, requested);
            self.tell_free(Action::FreeCompleted, slot, address, requested);
        }
    }

    /// Nobody uses a block any more that went back.
    #[cold]
    pub(super) fn tell_completed(&self, slot: &StreamSlot, address: u64, number: BlockNumber) {
        if let Some(requested) = self.requested(slot, number) {
            self.keep_stack(address, None);
            self.tell_free(Action::FreeCompleted, slot, address, requested);
        }
    }

    /// One of the two steps in which a block goes back.
    pub(super) fn tell_free(&self, action: Action, slot: &StreamSlot, address: u64, requested: usize) {
        if self.history.is_listening() {
            let frames = self.history.frames(RecordContext::All);
            self.tell(self.event(action, slot, address, requested), frames.as_ref());
        }
    }

    /// A request fails.
    #[cold]
    pub(super) fn tell_out_of_memory(&self, slot: &StreamSlot, request: Request) {
        if self.history.is_listening() {
            let frames = self.history.frames(RecordContext::Alloc);
            // A driver that does not even tell that has none.
            let free = self.context.memory_info().map_or(0, |memory| memory.free as u64);
            self.tell(self.event(Action::Oom, slot, free, request.size), frames.as_ref());
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

    /// Notes what memory a heap got and lost. Whoever changed that still has the heap and the page source.
    pub(super) fn note_moves(&self, slot: &StreamSlot, heap: &mut StreamHeap) {
        let moved = heap.take_moved();
        if self.history.is_listening() {
            let events = moved.into_iter().map(|moved| {
                let action = if moved.here { Action::SegmentMap } else { Action::SegmentUnmap };
                self.event(action, slot, moved.address, moved.size)
            });
            lock(&self.record.moves).extend(events);
        }
    }

    /// Tells of the moves that are noted. Whoever calls has neither a heap nor the page source.
    pub(super) fn tell_moves(&self) {
        if self.history.is_listening() {
            let frames = self.history.frames(RecordContext::Alloc);
            self.tell_noted(frames.as_ref());
        }
    }

    fn tell(&self, event: Event, frames: Option<&Frames>) {
        self.tell_noted(frames);
        self.history.record(event, frames);
    }

    fn tell_noted(&self, frames: Option<&Frames>) {
        let _turn = if History::is_telling() {
            // The one who has the turn may be this thread, or wait for the tracker that this thread is in.
            let Ok(turn) = self.record.turn.try_lock() else { return };
            turn
        } else {
            lock(&self.record.turn)
        };
        // Those up to now: a tracker that allocates may have memory move each time, and would be told of it without end.
        let noted = lock(&self.record.moves).len();
        for _ in 0..noted {
            let next = lock(&self.record.moves).pop_front();
            let Some(event) = next else { return };
            // What goes back is recorded as frees are.
            let told = event.action != Action::SegmentUnmap || self.history.has_context(RecordContext::All);
            self.history.record(event, frames.filter(|_| told));
        }
    }

    fn event(&self, action: Action, slot: &StreamSlot, address: u64, size: usize) -> Event {
        let stream = slot.stream.as_raw() as usize as u64;
        Event { action, address, size: size as u64, stream, pool: MempoolId::NONE }
    }

    fn requested(&self, slot: &StreamSlot, number: BlockNumber) -> Option<usize> {
        slot.heap.with(|heap, guard| {
            guard.disarm();
            heap.requested(number)
        })
    }

    /// The stack that a block was allocated with, or none any more.
    pub(super) fn keep_stack(&self, address: u64, frames: Option<Frames>) {
        let recording = self.history.recordings();
        let mut stacks = lock(&self.record.stacks);
        if stacks.recording != recording {
            *stacks = Stacks { recording, by_address: HashMap::new() };
        }
        match frames {
            Some(frames) => stacks.by_address.insert(address, frames),
            None => stacks.by_address.remove(&address),
        };
    }

    /// The stacks of blocks in use.
    pub(super) fn stacks(&self) -> HashMap<u64, Frames> {
        let stacks = lock(&self.record.stacks);
        let is_now = self.history.is_recording() && stacks.recording == self.history.recordings();
        if is_now { stacks.by_address.clone() } else { HashMap::new() }
    }
}
