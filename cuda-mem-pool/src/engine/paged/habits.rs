//! Which heaps have windows of their own.

use std::collections::{HashMap, HashSet};

use super::backend::Backend;
use super::heap::StreamHeap;
use super::policy::FEW;
use super::source::PageSource;

/// How many sizes are remembered at most.
const SIZES: usize = 1 << 16;

/// Whether heaps ask for the same sizes again.
#[derive(Debug, Default)]
pub(super) struct Habits {
    /// By heap.
    sizes: HashSet<(u32, usize)>,
    trust: HashMap<u32, Trust>,
}

/// Up with each size that came before, down with each that did not.
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

impl Habits {
    /// Host memory that the books take.
    pub(super) fn metadata_bytes(&self) -> usize {
        let sizes = self.sizes.capacity().saturating_mul(size_of::<(u32, usize)>() + 1);
        sizes.saturating_add(self.trust.capacity().saturating_mul(size_of::<(u32, Trust)>()))
    }
}

impl<B: Backend> PageSource<B> {
    /// Whether so little is held that blocks have windows of their own.
    pub(super) fn holds_little(&self, heap: u32, mine: &StreamHeap) -> bool {
        let trusted = self.habits.trust.get(&heap).is_none_or(|trust| trust.0 > 0);
        let is_little =
            self.ground.bytes() < self.little() && self.ground.mappings() <= self.policy.most_mappings;
        trusted && is_little && mine.now() >= self.policy.churn && self.policy.moves
    }

    /// While less than this is held, it is little. Until very many heaps have the windows that they need, each of them has the driver
    /// map thousands of leaves.
    pub(super) fn little(&self) -> usize {
        self.policy.little.saturating_mul(self.marks.len().clamp(1, FEW))
    }

    /// Learns whether sizes come again.
    pub(super) fn see(&mut self, heap: u32, size: usize) {
        let habits = &mut self.habits;
        if habits.sizes.len() >= SIZES {
            habits.sizes.clear();
        }
        let is_known = !habits.sizes.insert((heap, size));
        let Trust(trust) = habits.trust.entry(heap).or_default();
        *trust = if is_known { (*trust + 1).min(Trust::MOST) } else { trust.saturating_sub(1) };
    }
}
