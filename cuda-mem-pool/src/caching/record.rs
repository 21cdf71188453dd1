//! Records events in the history, in their order.
//!
//! A tracker may allocate, and so may a stack provider: both run with no heap and no page source held. The thread that has a block
//! records its events, before or after it is in its heap. Mappings that come and go are noted under the page source, and recorded
//! before any later event.

use std::collections::{HashMap, VecDeque};

use super::callbacks::is_watching;
use crate::history::{Event, History, RecordContext};
use crate::mempool_id::MempoolId;
use crate::primitive::{Mutex, lock};
use crate::snapshot::{Action, Frames};

/// The history, events that were noted and not recorded yet, and the stacks of blocks in use.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) history: History,
    /// Moves, and events of watchers. A watcher's event has its own stack; a move has the stack of the call that records it.
    noted: Mutex<VecDeque<(Event, Option<Frames>)>>,
    /// Held by the thread that records what is noted.
    turn: Mutex<()>,
    /// Of blocks in use, by address: they stay when a recording ends, as long as the block does.
    pub(super) stacks: Mutex<HashMap<u64, Frames>>,
}

/// An event of the default pool.
pub(super) fn event(action: Action, stream: u64, address: u64, size: usize) -> Event {
    Event { action, address, size: size as u64, stream, pool: MempoolId::NONE }
}

impl Record {
    /// Records an event of a block of the caller. A free has the stack of the allocation where stacks of frees are not recorded.
    #[cold]
    pub(super) fn emit_block(&self, event: Event) {
        let history = &self.history;
        let is_alloc = event.action == Action::Alloc;
        let of_alloc = match event.action {
            Action::FreeRequested => lock(&self.stacks).get(&event.address).cloned(),
            Action::FreeCompleted => self.keep_stack(event.address, None),
            _ => None,
        };
        if !history.is_listening() {
            return;
        }
        let frames = history.frames(if is_alloc { RecordContext::State } else { RecordContext::All });
        if is_alloc {
            return self.emit_allocated(event, frames);
        }
        self.emit_noted(frames.as_ref());
        self.emit(event, frames.or(of_alloc));
    }

    /// Records the allocation of a block, with the stack of the request.
    pub(super) fn emit_allocated(&self, event: Event, frames: Option<Frames>) {
        self.keep_stack(event.address, frames.clone());
        self.emit(event, frames);
    }

    /// Records that a private pool's segment goes, with the stack of its request where stacks of frees are not recorded.
    pub(super) fn emit_segment_free(&self, event: Event, stack: Option<Frames>) {
        if self.history.is_listening() {
            self.emit(event, self.history.frames(RecordContext::All).or(stack));
        }
    }

    /// Notes an event, to be recorded before any later one. The caller may hold a lock; it has the event recorded once that is released.
    pub(super) fn note(&self, event: Event, frames: Option<Frames>) {
        if self.history.is_listening() {
            lock(&self.noted).push_back((event, frames));
        }
    }

    /// Records what is noted. The caller holds neither a heap nor the page source.
    pub(super) fn emit_moves(&self) {
        if self.history.is_listening() {
            let frames = self.history.frames(RecordContext::Alloc);
            self.emit_noted(frames.as_ref());
        }
    }

    /// Records an event behind what is noted. In a watcher it is noted too: who records may wait for the page source, which this thread has.
    pub(super) fn emit(&self, event: Event, frames: Option<Frames>) {
        if is_watching() {
            self.note(event, frames);
        } else {
            self.emit_noted(frames.as_ref());
            self.history.record(event, frames.as_ref());
        }
    }

    fn emit_noted(&self, frames: Option<&Frames>) {
        // A tracker is not called within a tracker; what is noted waits for a thread that is in none.
        if is_watching() || History::is_in_tracker() {
            return;
        }
        let _turn = lock(&self.turn);
        // Only those up to now: a tracker that allocates may have memory move each time, and this would not end.
        let noted = lock(&self.noted).len();
        for _ in 0..noted {
            let next = lock(&self.noted).pop_front();
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

    /// Keeps the stack that a block was allocated with, or forgets it; the one before.
    pub(super) fn keep_stack(&self, address: u64, frames: Option<Frames>) -> Option<Frames> {
        let mut stacks = lock(&self.stacks);
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
}
