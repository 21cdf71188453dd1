//! Which slot a stream has, as the calling thread remembers it, and what goes with the thread.

use std::cell::{Cell, RefCell};

use cuda_mem_core::{StreamId, forked};

use super::owner::Owner;
use crate::primitive::Arc;

/// How many streams a thread remembers. Programs use a few at a time.
const REMEMBERED: usize = 8;

#[derive(Debug, Clone, Copy)]
struct Known {
    allocator: u64,
    stream: u64,
    slot: u32,
}

thread_local! {
    static KNOWN: [Cell<Known>; REMEMBERED] =
        const { [const { Cell::new(Known { allocator: 0, stream: 0, slot: 0 }) }; REMEMBERED] };
    static OWN: RefCell<Own> = const { RefCell::new(Own(Vec::new())) };
}

/// The slots of the thread's default streams, of each context and in each allocator.
#[derive(Debug)]
struct Own(Vec<(Arc<Owner>, StreamId)>);

impl Drop for Own {
    /// The thread ends. Destructors of other thread-locals may run yet, and use these streams: for those they are new then.
    fn drop(&mut self) {
        if forked() {
            // Somebody of the parent may have had a lock.
            return;
        }
        for (owner, stream) in &self.0 {
            owner.end_with_thread(stream.as_raw());
        }
    }
}

#[inline]
fn place(allocator: u64, stream: u64) -> usize {
    (allocator.wrapping_add(stream) as usize) % REMEMBERED
}

/// Names the calling thread among those that run, with the address of something of its own.
#[inline]
pub(super) fn token() -> usize {
    // A thread at its end has none of its own: nobody has that name.
    KNOWN.try_with(|known| known.as_ptr().addr()).unwrap_or(usize::MAX)
}

/// The slot that a stream had in an allocator, whose numbers begin at 1, if this thread remembers it.
#[inline]
pub(super) fn recall(allocator: u64, stream: StreamId) -> Option<u32> {
    let stream = stream.as_raw();
    let known = KNOWN.try_with(|known| known[place(allocator, stream)].get()).ok()?;
    (known.allocator == allocator && known.stream == stream).then_some(known.slot)
}

/// Remembers the slot of a stream.
pub(super) fn remember(allocator: u64, stream: StreamId, slot: u32) {
    let stream = stream.as_raw();
    // A thread at its end remembers nothing.
    let _ = KNOWN.try_with(|known| known[place(allocator, stream)].set(Known { allocator, stream, slot }));
}

/// Has the slot of this thread's default stream given back when the thread ends. One that is made while it ends stays.
pub(super) fn end_with_thread(owner: &Arc<Owner>, stream: StreamId) {
    let _ = OWN.try_with(|own| {
        if let Ok(mut own) = own.try_borrow_mut() {
            // Those of allocators that are no more, and those that were given back before.
            own.0.retain(|(owner, stream)| owner.is(stream.as_raw()));
            own.0.push((Arc::clone(owner), stream));
        }
    });
}
