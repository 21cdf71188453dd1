//! Blocks whose users have dropped them.

use std::sync::Arc;

use super::arena::Arena;
use super::body::FreeBlock;
use super::thread_cache;

/// Takes back a block that no stream has used since it was handed out.
#[inline]
pub(super) fn unused(block: FreeBlock) {
    let refused = match block.kept_by {
        Some(allocator) => thread_cache::push(allocator, block),
        None => Some(block),
    };
    if let Some(block) = refused {
        past_cache(block);
    }
}

/// Takes back a block that streams may still use, or a graph.
pub(super) fn used(mut block: FreeBlock) {
    let captured = std::mem::take(block.captured.get_mut());
    let arena = Arc::clone(block.arena());
    let shared = arena.shared();
    shared.ledger().release(block.capacity);
    if arena.is_private() {
        arena.active().subtract(block.capacity);
    }
    if captured { arena.park(block) } else { shared.await_uses(block) }
}

#[cold]
fn past_cache(block: FreeBlock) {
    let arena = Arc::clone(block.arena());
    let shared = arena.shared();
    if let Some(allocator) = block.kept_by
        && let Some(spilled) = thread_cache::make_room(shared, block.capacity)
    {
        shared.put_all(spilled);
        if let Some(block) = thread_cache::push(allocator, block) {
            put(&arena, block);
        }
        return;
    }
    if arena.is_private() {
        arena.active().subtract(block.capacity);
    }
    put(&arena, block);
}

fn put(arena: &Arena, block: FreeBlock) {
    let shared = arena.shared();
    shared.ledger().release(block.capacity);
    shared.put_all([block]);
}
