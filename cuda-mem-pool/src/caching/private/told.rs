//! What the history is told of private pools.

use cuda_mem_core::Stream;

use super::State;
use crate::caching::shared::Shared;
use crate::caching::slot::shown_handle;
use crate::history::{Event, RecordContext};
use crate::mempool_id::MempoolId;
use crate::segments::Block;
use crate::snapshot::{Action, Frames};

impl Shared {
    /// A block of a private pool comes or goes.
    pub(super) fn tell_private(
        &self,
        action: Action,
        pool: MempoolId,
        address: u64,
        size: usize,
        stream: Option<&Stream>,
    ) {
        if !self.history.awaits_frees() {
            return;
        }
        let allocated = match action {
            Action::FreeRequested => self.stack(address),
            Action::FreeCompleted => self.keep_stack(address, None),
            _ => None,
        };
        if !self.history.is_listening() {
            return;
        }
        let stream = stream.map_or(0, shown_handle);
        let is_alloc = action == Action::Alloc;
        let frames = self.history.frames(if is_alloc { RecordContext::State } else { RecordContext::All });
        if is_alloc {
            self.keep_stack(address, frames.clone());
        }
        self.tell_noted(frames.as_ref());
        self.tell(Event { action, address, size: size as u64, stream, pool }, frames.or(allocated));
    }

    /// A segment comes, or goes, which is told with the stack of the request that it was made for where stacks of frees are not
    /// recorded.
    pub(super) fn tell_segment(&self, event: Event, maker: Option<Frames>) {
        if !self.history.is_listening() {
            return;
        }
        let frames = match event.action {
            Action::SegmentFree => self.history.frames(RecordContext::All),
            _ => maker.clone(),
        };
        self.tell_noted(frames.as_ref());
        self.tell(event, frames.or(maker));
    }

    /// Notes that blocks are freed and others allocated, all at once, by whom `frames` tell of.
    pub(super) fn note_restored(
        &self,
        state: &State,
        pool: MempoolId,
        freed: &[Block],
        allocated: &[Block],
        frames: Option<&Frames>,
    ) {
        if !self.history.awaits_frees() {
            return;
        }
        let note = |action: Action, block: &Block, frames: Option<Frames>| {
            let stream = state.streams.get(block.stream).map_or(0, |stream| shown_handle(&stream));
            self.note(Event { action, address: block.address, size: block.requested, stream, pool }, frames);
        };
        let of_frees = frames.filter(|_| self.history.has_context(RecordContext::All));
        for block in freed {
            let before = self.keep_stack(block.address, None);
            for action in [Action::FreeRequested, Action::FreeCompleted] {
                note(action, block, of_frees.or(before.as_ref()).cloned());
            }
        }
        for block in allocated {
            self.keep_stack(block.address, frames.cloned());
            note(Action::Alloc, block, frames.cloned());
        }
    }
}
