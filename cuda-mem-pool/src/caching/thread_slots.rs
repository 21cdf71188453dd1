//! Which slot a stream has, as the calling thread remembers it.

use std::cell::Cell;

use cuda_mem_core::StreamId;

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

/// The slot of a stream in an allocator, whose numbers begin at 1, if this thread remembers it.
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
