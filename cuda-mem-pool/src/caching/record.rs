//! What the history is told, and when.
//!
//! A tracker may allocate, and so may what tells a stack of calls: both run with no heap and no page source held. A block is
//! told of by who has it, before or after it is in its heap; what became of addresses is noted under the page source, and told before
//! anything that comes later is.

use std::collections::{HashMap, VecDeque};

use super::callbacks::is_watching;
use crate::history::{Event, History, RecordContext};
use crate::mempool_id::MempoolId;
use crate::primitive::{Mutex, lock};
use crate::snapshot::{Action, Frames};

/// The history, what was noted for it and is not told yet, and the stacks of blocks in use.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) history: History,
    /// Moves, and what watchers did. The stack of a watcher's event is its own; a move has that of whoever tells of it.
    noted: Mutex<VecDeque<(Event, Option<Frames>)>>,
    /// Whoever has it tells of what is noted.
    turn: Mutex<()>,
    /// Of blocks in use, by address: they stay when a recording ends, as long as the block does.
    pub(super) stacks: Mutex<HashMap<u64, Frames>>,
}

/// An event of the default pool.
pub(super) fn event(action: Action, stream: u64, address: u64, size: usize) -> Event {
    Event { action, address, size: size as u64, stream, pool: MempoolId::NONE }
}

impl Record {
    /// Tells of a block of the caller. A free has the stack of the allocation where stacks of frees are not recorded.
    #[cold]
    pub(super) fn tell_block(&self, event: Event) {
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
            return self.tell_allocated(event, frames);
        }
        self.tell_noted(frames.as_ref());
        self.tell(event, frames.or(of_alloc));
    }

    /// Tells of a block that is allocated, with the stack of the request.
    pub(super) fn tell_allocated(&self, event: Event, frames: Option<Frames>) {
        self.keep_stack(event.address, frames.clone());
        self.tell(event, frames);
    }

    /// Tells of a private pool's segment, with the stack of its request where stacks of frees are not recorded.
    pub(super) fn tell_segment(&self, event: Event, stack: Option<Frames>) {
        if self.history.is_listening() {
            let is_free = event.action == Action::SegmentFree;
            let frames = if is_free { self.history.frames(RecordContext::All) } else { None };
            self.tell(event, frames.or(stack));
        }
    }

    /// Notes something that is told before anything later is. Whoever calls may have a lock, and tells of it once that is gone.
    pub(super) fn note(&self, event: Event, frames: Option<Frames>) {
        if self.history.is_listening() {
            lock(&self.noted).push_back((event, frames));
        }
    }

    /// Tells of what is noted. Whoever calls has neither a heap nor the page source.
    pub(super) fn tell_moves(&self) {
        if self.history.is_listening() {
            let frames = self.history.frames(RecordContext::Alloc);
            self.tell_noted(frames.as_ref());
        }
    }

    /// Tells of something, behind what is noted. In a watcher it is noted too: whoever has a turn to tell may wait for the page source, which
    /// this thread has.
    pub(super) fn tell(&self, event: Event, frames: Option<Frames>) {
        if is_watching() {
            self.note(event, frames);
        } else {
            self.tell_noted(frames.as_ref());
            self.history.record(event, frames.as_ref());
        }
    }

    fn tell_noted(&self, frames: Option<&Frames>) {
        // What a tracker does it is not told of; what others did waits for somebody who is in none.
        if is_watching() || History::is_telling() {
            return;
        }
        let _turn = lock(&self.turn);
        // Those up to now: a tracker that allocates may have memory move each time, and would be told of it without end.
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
