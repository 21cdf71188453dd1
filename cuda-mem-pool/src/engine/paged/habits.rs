//! Which heaps have windows of their own, and for what.

use std::collections::HashMap;

use super::backend::Backend;
use super::heap::StreamHeap;
use super::policy::FEW;
use super::source::PageSource;
use super::window::whole_pages;

/// How many sizes are remembered at most.
const SIZES: usize = 1 << 16;

/// With more mappings than so many for each handle, new sizes share the windows of as many pages.
const MAPPINGS: usize = 16;

/// The windows of all heaps.
#[derive(Debug, Default)]
pub(super) struct Windows {
    /// Where blocks lay, by heap and size, the latest first.
    pub(super) by_size: HashMap<(u32, usize), Vec<u64>>,
    /// Of each heap: up with each size that came before, down with each that did not. Whether it pays to know them.
    trust: HashMap<u32, Trust>,
    /// Addresses that no window has had.
    pub(super) next: u64,
    pub(super) end: u64,
}

/// How far sizes come again.
#[derive(Debug, Clone, Copy)]
struct Trust(u32);

impl Trust {
    /// So many sizes that never came before are enough to give up, from the middle.
    const MOST: u32 = 2048;
}

impl Default for Trust {
    fn default() -> Self {
        Self(Self::MOST / 2)
    }
}

impl Windows {
    /// Host memory that the books take.
    pub(super) fn metadata_bytes(&self) -> usize {
        let entry = size_of::<(u32, usize)>() + size_of::<Vec<u64>>();
        let windows: usize = self.by_size.values().map(Vec::capacity).sum();
        self.by_size.capacity().saturating_mul(entry).saturating_add(windows.saturating_mul(size_of::<u64>()))
    }
}

impl<B: Backend> PageSource<B> {
    /// Whether so little is held that blocks have windows of their own.
    pub(super) fn holds_little(&self, heap: u32, mine: &StreamHeap) -> bool {
        let trusted = self.windows.trust.get(&heap).is_none_or(|trust| trust.0 > 0);
        trusted && mine.now() >= self.policy.churn && self.policy.moves && self.ground.bytes() < self.little()
    }

    /// While less than this is held, it is little. Many heaps do not come to rest in windows of their own: they take from each other.
    pub(super) fn little(&self) -> usize {
        self.policy.little.saturating_mul(self.marks.len().clamp(1, FEW))
    }

    /// Learns whether sizes come again.
    pub(super) fn see(&mut self, heap: u32, size: usize) {
        let windows = &mut self.windows;
        let is_known = windows.by_size.contains_key(&(heap, size));
        let Trust(trust) = windows.trust.entry(heap).or_default();
        *trust = if is_known { (*trust + 1).min(Trust::MOST) } else { trust.saturating_sub(1) };
        if !is_known {
            if windows.by_size.len() >= SIZES {
                windows.by_size.clear();
            }
            windows.by_size.insert((heap, size), Vec::new());
        }
    }

    /// What the windows for a size are found by: the size itself, so that what comes again finds its own, while there are not too
    /// many.
    pub(super) fn key(&self, heap: u32, size: usize) -> (u32, usize) {
        let is_full = self.ground.mappings() > MAPPINGS * (self.ground.numbers() + 32);
        if is_full && self.windows.by_size.get(&(heap, size)).is_none_or(Vec::is_empty) {
            return (heap, whole_pages(size as u64) as usize);
        }
        (heap, size)
    }
}
