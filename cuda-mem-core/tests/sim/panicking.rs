//! An owner whose drop panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_mem_core::host::HostMemory;

/// An owner of memory whose drop is counted, and panics.
#[derive(Debug)]
pub(crate) struct Panicking<M> {
    memory: M,
    dropped: Arc<AtomicUsize>,
}

impl<M> Panicking<M> {
    pub(crate) fn new(memory: M, dropped: &Arc<AtomicUsize>) -> Self {
        Self { memory, dropped: Arc::clone(dropped) }
    }
}

// SAFETY: the owned memory, which stays where it is until this is dropped.
unsafe impl<M: HostMemory> HostMemory for Panicking<M> {
    fn as_ptr(&self) -> *const u8 {
        self.memory.as_ptr()
    }

    fn byte_len(&self) -> usize {
        self.memory.byte_len()
    }

    fn is_writable(&self) -> bool {
        self.memory.is_writable()
    }

    fn is_shared(&self) -> bool {
        self.memory.is_shared()
    }
}

impl<M> Drop for Panicking<M> {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
        panic!("a drop that panics");
    }
}
