//! Free ranges on a line of addresses: first fit, and what was freed is kept back for a while.
//!
//! Keeping freed ranges back is what makes a stale address fail: it stays unknown instead of meaning a newer allocation.

use std::collections::{BTreeMap, VecDeque};

/// The free part of one line of addresses. Pure bookkeeping: nothing here touches memory.
#[derive(Debug)]
pub(crate) struct Ranges {
    /// Start to length; neighbours are merged.
    free: BTreeMap<u64, u64>,
    /// Freed ranges that are not given out yet, oldest first.
    quarantine: VecDeque<(u64, u64)>,
    quarantined: u64,
    taken: u64,
    /// How many bytes may wait in quarantine.
    keep: u64,
}

impl Ranges {
    /// A line of `len` free addresses from `start`, of which up to `keep` freed ones are kept back.
    pub(crate) fn new(start: u64, len: u64, keep: u64) -> Self {
        let free = if len == 0 { BTreeMap::new() } else { BTreeMap::from([(start, len)]) };
        Self { free, quarantine: VecDeque::new(), quarantined: 0, taken: 0, keep }
    }

    /// Takes the lowest range of `len` addresses (at least one) that starts at a multiple of `align`, a power of two.
    pub(crate) fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        if let Some(start) = self.first_fit(len, align) {
            self.remove(start, len);
            return Some(start);
        }
        // Better an address that was freed a moment ago than none.
        self.shrink_quarantine(0);
        let start = self.first_fit(len, align)?;
        self.remove(start, len);
        Some(start)
    }

    /// Takes exactly `start .. start + len` if all of it is free and out of quarantine.
    pub(crate) fn take_at(&mut self, start: u64, len: u64) -> bool {
        let fits = len > 0
            && start.checked_add(len).is_some_and(|end| {
                self.free.range(..=start).next_back().is_some_and(|(&at, &room)| at + room >= end)
            });
        if fits {
            self.remove(start, len);
        }
        fits
    }

    /// Gives a taken range back, into quarantine.
    pub(crate) fn give_back(&mut self, start: u64, len: u64) {
        self.quarantine.push_back((start, len));
        self.quarantined += len;
        self.taken -= len;
        self.shrink_quarantine(self.keep);
    }

    /// Whether nothing is taken.
    pub(crate) fn is_unused(&self) -> bool {
        self.taken == 0
    }

    fn first_fit(&self, len: u64, align: u64) -> Option<u64> {
        debug_assert!(len > 0 && align.is_power_of_two());
        self.free.iter().find_map(|(&at, &room)| {
            let start = at.checked_next_multiple_of(align)?;
            (start.checked_add(len)? <= at + room).then_some(start)
        })
    }

    /// Cuts a range out of the one free range that holds it.
    fn remove(&mut self, start: u64, len: u64) {
        let Some((&at, &room)) = self.free.range(..=start).next_back() else { return };
        self.taken += len;
        self.free.remove(&at);
        if at < start {
            self.free.insert(at, start - at);
        }
        let (end, rest) = (start + len, at + room);
        if end < rest {
            self.free.insert(end, rest - end);
        }
    }

    fn shrink_quarantine(&mut self, keep: u64) {
        while self.quarantined > keep {
            let Some((start, len)) = self.quarantine.pop_front() else { return };
            self.quarantined -= len;
            self.insert(start, len);
        }
    }

    fn insert(&mut self, mut start: u64, mut len: u64) {
        if let Some((&at, &room)) = self.free.range(..start).next_back()
            && at + room == start
        {
            self.free.remove(&at);
            start = at;
            len += room;
        }
        if let Some(room) = self.free.remove(&(start + len)) {
            len += room;
        }
        self.free.insert(start, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn freed_addresses_come_back_only_after_a_while() {
        let mut ranges = Ranges::new(0x1000, 0x4000, 0x2000);
        let first = ranges.take(0x1000, 0x1000).unwrap();
        ranges.give_back(first, 0x1000);
        assert_eq!(ranges.take(0x1000, 0x1000), Some(0x2000), "the freed range is kept back");
        assert_eq!(ranges.take(0x3000, 0x1000), None);
        assert_eq!(ranges.take(0x2000, 0x1000), Some(0x3000));
        assert_eq!(ranges.take(0x1000, 0x1000), Some(first), "but not when nothing else is left");
    }

    #[test]
    fn exact_places_are_taken_only_if_free() {
        let mut ranges = Ranges::new(0, 100, 0);
        assert!(ranges.take_at(40, 20));
        assert!(!ranges.take_at(59, 1) && !ranges.take_at(30, 11) && !ranges.take_at(90, 11));
        assert!(!ranges.take_at(u64::MAX, 2) && !ranges.take_at(0, 0));
        assert!(ranges.take_at(60, 40) && ranges.take_at(0, 40));
        assert_eq!(ranges.take(1, 1), None);
    }

    /// One step of a random history; indices are taken modulo what is live.
    #[derive(Debug, Clone)]
    enum Step {
        Take { len: u64, align: u32 },
        TakeAt { start: u64, len: u64 },
        GiveBack { index: usize },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (1..40u64, 0..4u32).prop_map(|(len, align)| Step::Take { len, align }),
            (0..260u64, 1..40u64).prop_map(|(start, len)| Step::TakeAt { start, len }),
            any::<usize>().prop_map(|index| Step::GiveBack { index }),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        /// Against a model that holds one flag an address.
        #[test]
        fn agrees_with_a_naive_model(steps in steps(), keep in 0..80u64) {
            const END: u64 = 256;
            let mut ranges = Ranges::new(0, END, keep);
            let mut used = [false; END as usize];
            let mut live: Vec<(u64, u64)> = Vec::new();
            for step in steps {
                let taken = match step {
                    Step::Take { len, align } => {
                        let align = 1 << align;
                        let taken = ranges.take(len, align);
                        let room = (0..END).step_by(align as usize).any(|start| {
                            start + len <= END && !used[start as usize..(start + len) as usize].contains(&true)
                        });
                        prop_assert_eq!(taken.is_some(), room, "taken exactly where the model has room");
                        prop_assert!(taken.is_none_or(|start| start % align == 0));
                        taken.map(|start| (start, len))
                    }
                    Step::TakeAt { start, len } => ranges.take_at(start, len).then_some((start, len)),
                    Step::GiveBack { index } => {
                        if !live.is_empty() {
                            let (start, len) = live.swap_remove(index % live.len());
                            used[start as usize..(start + len) as usize].fill(false);
                            ranges.give_back(start, len);
                        }
                        None
                    }
                };
                if let Some((start, len)) = taken {
                    prop_assert!(start + len <= END);
                    let cells = &mut used[start as usize..(start + len) as usize];
                    prop_assert!(!cells.contains(&true), "two ranges overlap");
                    cells.fill(true);
                    live.push((start, len));
                }
            }
        }
    }
}
