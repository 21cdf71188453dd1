//! Blocks whose users have dropped them.

use std::sync::Arc;

use super::body::FreeBlock;
use super::thread_cache::{self, Kept};

/// Takes back a block that no stream has used since it was handed out.
#[inline]
pub(super) fn unused(block: FreeBlock) {
    let arena = block.arena();
    arena.shared().counters().active.subtract(block.capacity);
    if !arena.is_home() {
        return past_cache(block);
    }
    match thread_cache::push(block) {
        Kept::Yes => {}
        Kept::No(block) => put(block),
        Kept::Spilled(blocks) => blocks.into_iter().for_each(put),
    }
}

/// Takes back a block that streams may still use, or a graph.
pub(super) fn used(mut block: FreeBlock) {
    let captured = std::mem::take(block.captured.get_mut());
    let arena = Arc::clone(block.arena());
    let shared = arena.shared();
    shared.counters().active.subtract(block.capacity);
    if arena.is_private() {
        arena.active().subtract(block.capacity);
    }
    if captured { arena.park(block) } else { shared.await_uses(block) }
}

fn past_cache(block: FreeBlock) {
    let arena = block.arena();
    if arena.is_private() {
        arena.active().subtract(block.capacity);
    }
    put(block);
}

fn put(block: FreeBlock) {
    let arena = Arc::clone(block.arena());
    arena.shared().put_all([block]);
}
