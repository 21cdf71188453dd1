//! What a heap holds and hands out.

use std::ops::Add;

/// Counts and bytes of a heap, of one sort of its segments or of both. PyTorch's statistics are made of the same figures.
/// [`SegmentHeap`](super::SegmentHeap) has an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// How many segments there are.
    pub segments: u64,
    /// The bytes of all segments.
    pub reserved: u64,
    /// How many blocks are in somebody's hands.
    pub allocations: u64,
    /// Their bytes.
    pub allocated: u64,
    /// How many blocks are not free: those, and the ones that were freed and are still in use on other streams.
    pub active_blocks: u64,
    /// Their bytes.
    pub active: u64,
    /// The bytes that were asked for when they were allocated.
    pub requested: u64,
    /// How many free blocks share their segment with other blocks, so that they cannot be given back.
    pub inactive_splits: u64,
    /// Their bytes.
    pub inactive_split: u64,
}

impl Totals {
    /// The bytes that are free.
    #[must_use]
    pub fn cached(&self) -> u64 {
        self.reserved.saturating_sub(self.active)
    }

    pub(super) fn handed_out(&mut self, size: u64, requested: u64) {
        count(&mut self.allocations, &mut self.allocated, size);
        count(&mut self.active_blocks, &mut self.active, size);
        self.requested = self.requested.saturating_add(requested);
    }

    pub(super) fn freed(&mut self, size: u64) {
        discount(&mut self.allocations, &mut self.allocated, size);
    }

    pub(super) fn quiet(&mut self, size: u64, requested: u64) {
        discount(&mut self.active_blocks, &mut self.active, size);
        self.requested = self.requested.saturating_sub(requested);
    }

    pub(super) fn segment_came(&mut self, bytes: u64) {
        count(&mut self.segments, &mut self.reserved, bytes);
    }

    pub(super) fn segment_went(&mut self, bytes: u64) {
        discount(&mut self.segments, &mut self.reserved, bytes);
    }

    pub(super) fn split_came(&mut self, size: u64) {
        count(&mut self.inactive_splits, &mut self.inactive_split, size);
    }

    pub(super) fn split_went(&mut self, size: u64) {
        discount(&mut self.inactive_splits, &mut self.inactive_split, size);
    }
}

fn count(number: &mut u64, bytes: &mut u64, more: u64) {
    *number = number.saturating_add(1);
    *bytes = bytes.saturating_add(more);
}

fn discount(number: &mut u64, bytes: &mut u64, less: u64) {
    *number = number.saturating_sub(1);
    *bytes = bytes.saturating_sub(less);
}

impl Add for Totals {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            segments: self.segments.saturating_add(other.segments),
            reserved: self.reserved.saturating_add(other.reserved),
            allocations: self.allocations.saturating_add(other.allocations),
            allocated: self.allocated.saturating_add(other.allocated),
            active_blocks: self.active_blocks.saturating_add(other.active_blocks),
            active: self.active.saturating_add(other.active),
            requested: self.requested.saturating_add(other.requested),
            inactive_splits: self.inactive_splits.saturating_add(other.inactive_splits),
            inactive_split: self.inactive_split.saturating_add(other.inactive_split),
        }
    }
}
