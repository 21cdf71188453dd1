//! Device memory that could not be freed when its owner was dropped.
//!
//! A stream that captures a graph can neither free memory nor be waited for. What was used on it waits here; each later
//! allocation in the context tries again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::buffer::Block;

/// The waiting blocks of a context.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// How many wait, so that the usual case costs one load.
    count: AtomicUsize,
    blocks: Mutex<Vec<Block>>,
}

impl Deferred {
    pub(crate) fn push(&self, block: Block) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.push(block);
        self.count.store(blocks.len(), Ordering::Relaxed);
    }

    /// Tries to free what waits; returns how many blocks still do.
    pub(crate) fn reclaim(&self) -> usize {
        if self.count.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let waiting = std::mem::take(&mut *self.blocks.lock().unwrap_or_else(PoisonError::into_inner));
        // Freed without the lock: a release that fails runs the program's hook, which may drop buffers of its own.
        let waiting = waiting.into_iter().filter_map(|block| block.free().err()).map(|(_, block)| block);
        let waiting = waiting.collect::<Vec<_>>();
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.extend(waiting);
        self.count.store(blocks.len(), Ordering::Relaxed);
        blocks.len()
    }
}
