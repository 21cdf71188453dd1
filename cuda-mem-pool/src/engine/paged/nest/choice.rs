//! Which leaves and windows the page source takes.

use super::{Leaf, Nest, PAGE, Span, WHOLE};

/// A window that was never used again is wanted later than all that were.
const LATER: u64 = 1 << 40;

/// Idle windows of one size that are looked at.
const MOST: usize = 64;

impl Nest {
    /// Idle windows of a size, the latest first.
    pub(in crate::engine::paged) fn idle_of(&self, size: usize) -> Vec<u32> {
        self.by_size.get(&size).map(|list| self.idle(*list).take(MOST).collect()).unwrap_or_default()
    }

    /// The places of a window whose leaves cannot be used.
    pub(in crate::engine::paged) fn lacks(&self, window: u32) -> Vec<usize> {
        let Some(window) = self.windows.get(window as usize) else { return Vec::new() };
        let parts = window.leaves.iter().zip(window.parts()).enumerate();
        let lacks = |leaf: u32, (from, to)| {
            !self.spans.get(leaf as usize).is_some_and(|span| span.has_free(from, to))
        };
        parts.filter(|(_, (leaf, part))| lacks(**leaf, *part)).map(|(place, _)| place).collect()
    }

    /// Leaves that nothing is in and their handles, those that are wanted again last first: what a program does again and again
    /// then finds its windows as they were.
    pub(in crate::engine::paged) fn free_leaves(&self, now: u64) -> Vec<(u32, u32)> {
        let free = self.leaves_and_spans().filter(|(_, span, _)| span.is_free());
        let mut free: Vec<(bool, u64, usize, u32, u32)> = free
            .map(|(leaf, _, number)| {
                (leaf.page > 0, u64::MAX - self.wanted_at(leaf, now), leaf.windows.len(), number, leaf.chunk)
            })
            .collect();
        free.sort_unstable();
        free.into_iter().map(|(.., number, chunk)| (number, chunk)).collect()
    }

    /// When one of a leaf's windows will be taken again, if it is taken as often as before.
    fn wanted_at(&self, leaf: &Leaf, now: u64) -> u64 {
        let windows = leaf.windows.iter().filter_map(|window| self.windows.get(*window as usize));
        let next = windows.filter(|window| !window.is_used).filter_map(|window| match window.interval {
            0 => Some(window.taken_at + LATER),
            interval => {
                let next = window.taken_at + interval;
                (next + interval >= now).then_some(next.max(now))
            }
        });
        next.min().unwrap_or(u64::MAX)
    }

    /// The leaf with a block at its beginning alone, behind which the least is left that this fits in, and its handle, among those
    /// that `may` be.
    pub(in crate::engine::paged) fn tail_for(
        &self,
        bytes: usize,
        may: impl Fn(u32) -> bool,
    ) -> Option<(u32, u32)> {
        let fits = |span: Span| span.head > 0 && span.tail == WHOLE && PAGE - span.head as usize >= bytes;
        let leaves = self.leaves_and_spans().filter(|(leaf, span, _)| fits(*span) && may(leaf.chunk));
        leaves.max_by_key(|(_, span, _)| span.head).map(|(leaf, _, number)| (number, leaf.chunk))
    }

    /// The idle window of so many pages that was taken last: those that were not are wanted again sooner.
    pub(in crate::engine::paged) fn spare_window(&self, pages: usize) -> Option<u32> {
        let windows = self.windows.iter().zip(0u32..);
        let idle =
            windows.filter(|(window, _)| !window.is_used && window.skip == 0 && window.leaves.len() == pages);
        idle.max_by_key(|(window, _)| window.taken_at).map(|(_, number)| number)
    }
}
