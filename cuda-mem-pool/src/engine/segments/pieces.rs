//! How free blocks come from others and become one again.

use super::block::{Block, BlockState, Record};
use super::heap::SegmentHeap;

impl SegmentHeap {
    /// Enters a free block where best fit finds it.
    pub(super) fn enter_pool(&mut self, number: u32) {
        let Some(record) = self.blocks.get(number) else { return };
        let (block, is_split) = (record.block, record.is_split());
        self.pool(block.kind).insert(block.stream, block.size, block.address, number);
        let searches = self.pool(block.kind).searches();
        if is_split {
            self.totals_mut(block.kind).split_came(block.size);
        }
        if let Some(record) = self.blocks.get_mut(number) {
            record.free_since = searches;
        }
    }

    /// Takes a free block out of there.
    pub(super) fn leave_pool(&mut self, number: u32) {
        let Some(record) = self.blocks.get(number) else { return };
        let (block, is_split) = (record.block, record.is_split());
        self.pool(block.kind).remove(block.stream, block.size, block.address);
        if is_split {
            self.totals_mut(block.kind).split_went(block.size);
        }
    }

    /// Frees an active block, with its free neighbours as one.
    pub(super) fn make_inactive(&mut self, number: u32) {
        let Some(record) = self.blocks.get_mut(number) else { return };
        let (was, before, after) = (record.block, record.before, record.after);
        record.block.state = BlockState::Inactive;
        record.block.requested = 0;
        self.totals_mut(was.kind).quiet(was.size, was.requested);
        let mut joined = number;
        // Both leave the pool before anything changes: what they count as depends on their neighbours.
        let (join_before, join_after) = (self.is_inactive(before), self.is_inactive(after));
        if join_after {
            self.leave_pool(after);
        }
        if join_before {
            self.leave_pool(before);
        }
        if join_after {
            self.join(number, after);
        }
        if join_before {
            self.join(before, number);
            joined = before;
        }
        self.enter_pool(joined);
    }

    /// Cuts a block, which is in no pool, to `size` bytes at its start; the rest, if there is one, becomes a free block. Without a number for
    /// the rest the block stays as it is.
    pub(super) fn split(&mut self, number: u32, size: u64) {
        let Some(record) = self.blocks.get(number) else { return };
        let (whole, segment, after) = (record.block, record.segment, record.after);
        if whole.size <= size {
            return;
        }
        let block = Block {
            address: whole.address.saturating_add(size),
            size: whole.size.saturating_sub(size),
            ..whole
        };
        let Ok(rest) = self.blocks.insert(Record::free(segment, block, number, after)) else { return };
        if let Some(record) = self.blocks.get_mut(number) {
            (record.block.size, record.after) = (size, rest);
        }
        if let Some(after) = self.blocks.get_mut(after) {
            after.before = rest;
        }
        self.enter_pool(rest);
    }

    /// Gives everything of one stream to another: segments and blocks, free or not. It is for a stream that is destroyed, and
    /// sound once all work of `from` has completed, or `to` has been made to wait for it.
    pub fn adopt(&mut self, from: u64, to: u64) {
        let mut next = Vec::new();
        for segment in self.segments.values_mut().filter(|segment| segment.stream == from) {
            segment.stream = to;
            next.push(segment.first);
        }
        for first in next {
            let mut number = first;
            while let Some(record) = self.blocks.get(number) {
                let (after, free) = (record.after, record.block.state == BlockState::Inactive);
                if free {
                    self.leave_pool(number);
                }
                if let Some(record) = self.blocks.get_mut(number) {
                    record.block.stream = to;
                }
                if free {
                    self.enter_pool(number);
                }
                number = after;
            }
        }
    }

    /// Makes one block of two neighbours that are in no pool.
    fn join(&mut self, number: u32, after: u32) {
        let Some(gone) = self.blocks.remove(after) else { return };
        if let Some(record) = self.blocks.get_mut(number) {
            record.block.size = record.block.size.saturating_add(gone.block.size);
            record.after = gone.after;
        }
        if let Some(next) = self.blocks.get_mut(gone.after) {
            next.before = number;
        }
    }

    fn is_inactive(&self, number: u32) -> bool {
        self.blocks.get(number).is_some_and(|record| record.block.state == BlockState::Inactive)
    }
}
