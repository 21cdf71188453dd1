//! Which heaps have windows of their own.
//!
//! A window pays when its size comes back after its leaves have served others: it is found as it was, without a call. So what its leaves
//! cost the driver is counted against frees; and a heap gets none while the sizes that it asks for are those that it asked for just
//! before. That is how programs work that do the same for layer after layer: their blocks are alike and there at once, each needs a window
//! of its own, and with the next step or batch all sizes are new.

use std::collections::HashMap;

use super::backend::Backend;
use super::heap::StreamHeap;
use super::policy::{FEW, Policy};
use super::source::PageSource;

/// How many sizes are remembered at most. Only those of the last few frees matter.
const SIZES: usize = 1 << 12;

/// A size that comes again soon counts as much as so many others.
const SOON: u32 = 2;

/// What sizes count for at most: after so many others a heap may have windows again.
const MOST: u32 = 256;

/// What heaps ask for, and what their windows have cost.
#[derive(Debug, Default)]
pub(super) struct Habits {
    /// By heap and size: how many blocks the heap had freed when it asked last.
    asked: HashMap<(u32, usize), u64>,
    of: HashMap<u32, Habit>,
    /// How many large blocks were asked for and got, and their bytes.
    blocks: usize,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Habit {
    /// Up with each size that comes again soon, down with each other one.
    alike: u32,
    /// From [`Policy::alike`] on until it is 0 again.
    is_alike: bool,
    /// The frees that leaves are yet to be paid with.
    owed: u64,
    /// From too many on until nothing is owed.
    is_overdrawn: bool,
}

impl Habits {
    /// Host memory that the books take.
    pub(super) fn metadata_bytes(&self) -> usize {
        let asked = self.asked.capacity().saturating_mul(size_of::<((u32, usize), u64)>() + 1);
        asked.saturating_add(self.of.capacity().saturating_mul(size_of::<(u32, Habit)>()))
    }

    /// Learns whether sizes come again soon: a heap that has freed so many blocks asks for one of this size.
    pub(super) fn see(&mut self, heap: u32, size: usize, frees: u64, policy: &Policy) {
        if let (Some(blocks), Some(bytes)) = (self.blocks.checked_add(1), self.bytes.checked_add(size)) {
            (self.blocks, self.bytes) = (blocks, bytes);
        }
        if self.asked.len() >= SIZES {
            self.asked.clear();
        }
        let before = self.asked.insert((heap, size), frees);
        let is_soon = before.is_some_and(|before| frees.saturating_sub(before) < policy.soon);
        let habit = self.of.entry(heap).or_default();
        habit.alike = if is_soon { (habit.alike + SOON).min(MOST) } else { habit.alike.saturating_sub(1) };
        habit.is_alike = habit.alike >= if habit.is_alike { 1 } else { policy.alike };
    }

    /// There was no such block: it is no measure of those that there are.
    pub(super) fn forget(&mut self, size: usize) {
        (self.blocks, self.bytes) = (self.blocks.saturating_sub(1), self.bytes.saturating_sub(size));
    }

    /// The bytes that a large block has in the mean, of all that were asked for and got.
    pub(super) fn mean(&self) -> usize {
        self.bytes.checked_div(self.blocks).unwrap_or(0)
    }

    /// The driver has mapped a leaf for a heap.
    pub(super) fn charge(&mut self, heap: u32, policy: &Policy) {
        let habit = self.of.entry(heap).or_default();
        habit.owed = habit.owed.saturating_add(policy.frees_a_leaf);
        habit.is_overdrawn |= habit.owed > policy.leaves.saturating_mul(policy.frees_a_leaf);
    }

    /// A heap has freed so many blocks more.
    pub(super) fn pay(&mut self, heap: u32, frees: u64) {
        let habit = self.of.entry(heap).or_default();
        habit.owed = habit.owed.saturating_sub(frees);
        habit.is_overdrawn &= habit.owed > 0;
    }

    /// Whether windows pay for a heap, as far as is known.
    fn are_for_windows(&self, heap: u32) -> bool {
        self.of.get(&heap).is_none_or(|habit| !habit.is_alike && !habit.is_overdrawn)
    }
}

impl<B: Backend> PageSource<B> {
    /// Whether so little is held that blocks have windows of their own.
    pub(super) fn holds_little(&self, heap: u32, mine: &StreamHeap) -> bool {
        let is_little =
            self.ground.bytes() < self.little() && self.ground.mappings() <= self.policy.most_mappings;
        let has_begun = mine.now() >= self.policy.churn;
        is_little && has_begun && self.policy.moves && self.habits.are_for_windows(heap)
    }

    /// While less than this is held, it is little. Until very many heaps have the windows that they need, each of them has the driver
    /// map thousands of leaves.
    pub(super) fn little(&self) -> usize {
        self.policy.little.saturating_mul(self.marks.len().clamp(1, FEW))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy::DEFAULT;

    /// Asks for a size after each free.
    fn see_all(habits: &mut Habits, first: u64, sizes: impl Iterator<Item = usize>) {
        for (frees, size) in (first..).zip(sizes) {
            habits.see(0, size, frees, &POLICY);
        }
    }

    #[test]
    fn a_heap_that_asks_for_the_same_again_soon_has_no_windows_until_it_asks_for_others() {
        let mut habits = Habits::default();
        let others = 1000..1000 + MOST as usize;
        see_all(&mut habits, 0, others.clone());
        assert!(habits.are_for_windows(0));
        // New sizes, each twice.
        see_all(&mut habits, 5000, (0..64).map(|at| at / 2));
        assert!(!habits.are_for_windows(0));
        assert!(habits.are_for_windows(1), "each heap by itself");
        see_all(&mut habits, 10_000, (0..4000).map(|at| at / 2));
        see_all(&mut habits, 20_000, others.clone().skip(1));
        assert!(!habits.are_for_windows(0), "after fewer than {MOST} others");
        see_all(&mut habits, 30_000, others.take(1));
        assert!(habits.are_for_windows(0));
    }

    #[test]
    fn sizes_that_come_again_after_a_while_are_no_reason() {
        let mut habits = Habits::default();
        see_all(&mut habits, 0, (0..10_000).map(|at| at % POLICY.soon as usize));
        assert!(habits.are_for_windows(0));
    }

    #[test]
    fn a_heap_whose_leaves_cost_too_much_has_no_windows_until_all_are_paid_for() {
        let mut habits = Habits::default();
        let charge = |habits: &mut Habits, leaves| (0..leaves).for_each(|_| habits.charge(0, &POLICY));
        charge(&mut habits, POLICY.leaves);
        assert!(habits.are_for_windows(0));
        habits.pay(0, POLICY.frees_a_leaf * 10);
        charge(&mut habits, 10);
        assert!(habits.are_for_windows(0));
        charge(&mut habits, 1);
        assert!(!habits.are_for_windows(0));
        assert!(habits.are_for_windows(1), "each heap by itself");
        habits.pay(0, POLICY.frees_a_leaf * (POLICY.leaves + 1) - 1);
        assert!(!habits.are_for_windows(0));
        habits.pay(0, 1);
        assert!(habits.are_for_windows(0));
    }
}
