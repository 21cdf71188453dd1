//! Segments, and the blocks that are cut from them.

use std::sync::Arc;

use cuda_mem_pool::cuda_mem_core::{self as core, Context, Stream};

use super::{Cut, Freed, GRANULE, Pool, Slot, State, expect_bytes};
use crate::error::Result;
use crate::shared::books::Books;
use crate::shared::last::Last;
use crate::shared::segment::Segment;
use crate::shared::{lock, refuse_forked};

impl Pool {
    pub(in crate::shared) fn context(&self) -> &Context {
        &self.context
    }

    /// The bytes that a buffer takes.
    pub(super) fn room(&self, bytes: usize) -> Result<usize> {
        refuse_forked()?;
        expect_bytes("the size of a shared buffer", bytes)?;
        let whole = bytes.checked_next_multiple_of(GRANULE).filter(|&room| isize::try_from(room).is_ok());
        Ok(whole.ok_or(core::Error::TooLarge { count: bytes, size: 1 })?)
    }

    /// Free bytes for a stream: some that it need not wait for, if there are any.
    pub(super) fn cut(&self, room: usize, stream: &Stream) -> Option<Cut> {
        self.unpark();
        let mut state = lock(&self.state);
        for anything in [false, true] {
            for slot in state.slots.iter_mut().filter(|slot| !slot.is_isolated) {
                if let Some((offset, last)) =
                    slot.books.take(room, |last| anything || last.is_over_for(stream))
                {
                    return Some(Cut { segment: Arc::clone(&slot.segment), offset, room, last });
                }
            }
        }
        None
    }

    /// A new segment, and `room` bytes of it. No lock is held during the driver's calls.
    pub(super) fn grow(&self, room: usize, bytes: usize, is_isolated: bool) -> Result<Cut> {
        let too_large = core::Error::TooLarge { count: bytes, size: 1 };
        let bytes = bytes.max(room).checked_next_multiple_of(self.page).ok_or(too_large)?;
        let (kind, slabs) = (self.options.kind, self.slabs.as_ref());
        let segment = Segment::create(&self.context, kind, slabs, bytes, |face, means| {
            if !is_isolated {
                self.attached.tell(face, means);
            }
        })?;
        let segment = Arc::new(segment);
        let mut books = Books::new(segment.bytes(), Last::default());
        // The isolated one has all of it.
        let room = if is_isolated { segment.bytes() } else { room };
        let taken = books.take(room, |_| true);
        lock(&self.state).slots.push(Slot { segment: Arc::clone(&segment), books, is_isolated });
        let (offset, last) = taken.unwrap_or_default();
        Ok(Cut { segment, offset, room, last })
    }

    /// Takes a block back, whose next owner will wait for its last uses. A stream whose queue is full holds this up, and what is dropped
    /// may call the program: nobody else is to wait for either.
    pub(in crate::shared) fn free(&self, mut freed: Freed) {
        let Ok(points) = freed.uses.points() else {
            return lock(&self.state).parked.push(freed);
        };
        let Freed { segment, offset, room, uses, mut last } = freed;
        last.add_points(points);
        segment.absorb(uses);
        let gone = lock(&self.state).free(&segment, offset, room, last);
        drop(gone);
    }

    /// Tries once more to take back what could not be waited for.
    pub(super) fn unpark(&self) {
        let parked = std::mem::take(&mut lock(&self.state).parked);
        parked.into_iter().for_each(|freed| self.free(freed));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if core::forked() {
            return;
        }
        // Their captures cannot be waited for, but what the streams were given before can.
        for Freed { segment, uses, .. } in lock(&self.state).parked.drain(..) {
            segment.absorb(uses);
        }
    }
}

impl State {
    /// Returns a segment that is needed no more.
    fn free(&mut self, segment: &Arc<Segment>, offset: usize, room: usize, last: Last) -> Option<Slot> {
        let index = self.slots.iter().position(|slot| Arc::ptr_eq(&slot.segment, segment))?;
        let slot = self.slots.get_mut(index)?;
        slot.books.give(offset, room, last);
        if slot.is_isolated { Some(self.slots.swap_remove(index)) } else { None }
    }
}
