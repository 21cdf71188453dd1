//! Requests that no thread cache could serve.

use std::sync::Arc;

use cuda_mem_core::Error;

use super::arena::Arena;
use super::body::FreeBlock;
use super::error::PinnedCacheError;
use super::grower;
use super::segment::Segment;
use crate::engine::{classes, growth};

/// A block of `size` bytes, which `requested` were rounded to.
pub(super) fn allocate(
    arena: &Arc<Arena>,
    size: usize,
    requested: usize,
) -> Result<FreeBlock, PinnedCacheError> {
    let shared = arena.shared();
    shared.poll();
    if shared.options().poll_interval.is_some() {
        shared.grower().start(shared);
    }
    if let Some(block) = arena.take(size) {
        want_more(arena, size);
        return Ok(block);
    }
    if size >= classes::LARGE {
        // Pinning as much costs more than taking it from the threads that keep it.
        shared.flush_caches();
        if let Some(block) = arena.take(size) {
            return Ok(block);
        }
    }
    let held = usize::try_from(shared.counters().held.current().bytes).unwrap_or(usize::MAX);
    let segment = match arena.pin(growth::segment_for(size, held)) {
        Ok(segment) => segment,
        Err(error) if is_shortage(&error) => {
            shared.trim_to(0);
            if let Some(block) = arena.take(size) {
                return Ok(block);
            }
            pin_least(arena, size, requested)?
        }
        Err(error) => return Err(error.into()),
    };
    let bytes = segment.bytes();
    let block = arena.add_and_take(segment, size);
    want_more(arena, size);
    block.ok_or(PinnedCacheError::TooLarge { requested, most: bytes })
}

/// The second and last try: no more than is needed, of a system that has just been given back all there was.
fn pin_least(arena: &Arc<Arena>, size: usize, requested: usize) -> Result<Segment, PinnedCacheError> {
    let segment = size.next_multiple_of(classes::PAGE);
    arena.pin(segment).map_err(|source| {
        if !is_shortage(&source) {
            return source.into();
        }
        let shared = arena.shared();
        let (held, in_use) = (shared.counters().held.current().bytes, shared.active().bytes);
        PinnedCacheError::OutOfHostMemory { requested, segment, held, in_use, source }
    })
}

/// Whether less memory in use could help. The driver has several codes for pages that it cannot pin.
fn is_shortage(error: &Error) -> bool {
    matches!(
        error,
        Error::Driver(_)
            | Error::Io { .. }
            | Error::NoPage { .. }
            | Error::LockLimit { .. }
            | Error::OutOfHostMemory { .. }
    )
}

/// Wakes the thread that works ahead, if there is something for it to do.
fn want_more(arena: &Arc<Arena>, size: usize) {
    let shared = arena.shared();
    let due = if size < classes::LARGE {
        grower::is_due(arena)
    } else {
        shared.options().grow_ahead && arena.has_surplus()
    };
    if due {
        shared.grower().want(shared);
    }
}
