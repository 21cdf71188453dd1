//! One private pool.

use crate::engine::segments::{Options, SegmentHeap};

/// Memory that serves nobody else. `S` is what stands for another source of segments than the owner's own.
/// [`PrivatePools`](super::PrivatePools) has an example.
#[derive(Debug)]
pub struct PrivatePool<S> {
    pub(super) uses: u64,
    pub(super) heap: SegmentHeap,
    pub(super) source: Option<S>,
    pub(super) use_on_oom: bool,
    pub(super) captured: bool,
    /// How many segments were taken out and neither went nor came back yet.
    pub(super) leaving: usize,
}

impl<S> PrivatePool<S> {
    pub(super) fn new(options: Options, source: Option<S>) -> Self {
        Self {
            uses: 0,
            heap: SegmentHeap::new(options),
            source,
            use_on_oom: false,
            captured: false,
            leaving: 0,
        }
    }

    /// How often it is in use.
    #[must_use]
    pub fn use_count(&self) -> u64 {
        self.uses
    }

    /// Its segments and blocks.
    #[must_use]
    pub fn heap(&self) -> &SegmentHeap {
        &self.heap
    }

    /// Its segments and blocks, to allocate from and to free to.
    pub fn heap_mut(&mut self) -> &mut SegmentHeap {
        &mut self.heap
    }

    /// Where its segments come from, if not from where the owner's own do.
    #[must_use]
    pub fn source(&self) -> Option<&S> {
        self.source.as_ref()
    }

    /// Whether its free memory may serve others before they run out of memory.
    #[must_use]
    pub fn use_on_oom(&self) -> bool {
        self.use_on_oom
    }

    /// Whether a graph may use its memory, what is free too: a stream captured when it was asked for a block.
    #[must_use]
    pub fn is_captured(&self) -> bool {
        self.captured
    }

    /// Notes that graphs may use its memory from now on.
    pub fn note_capture(&mut self) {
        self.captured = true;
    }

    /// Whether its last use has ended, so that its memory can be given back.
    #[must_use]
    pub fn is_freeable(&self) -> bool {
        self.uses == 0
    }

    /// Whether its free memory serves others in need.
    pub(super) fn lends(&self) -> bool {
        self.use_on_oom && !self.captured && !self.is_freeable()
    }

    /// Whether nobody uses it and it has no memory, not even on its way out.
    pub(super) fn is_over(&self) -> bool {
        self.is_freeable() && self.leaving == 0 && self.heap.totals().segments == 0
    }
}
