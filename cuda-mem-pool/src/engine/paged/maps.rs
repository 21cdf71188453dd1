//! What is mapped, by address.
//!
//! It is asked for all the time what lies at some address, and what comes next. A tree walks down several nodes for that, each of them
//! lines of the cache away. Here each page of addresses names its mapping, in leaves of a gigabyte of addresses: mappings begin and end
//! with pages.

use crate::engine::slab::{NONE, Slab};

use super::sizes::PAGE;

/// The pages of a leaf.
const PAGES: usize = 512;

/// The addresses of a leaf.
const LEAF: u64 = (PAGES * PAGE) as u64;

/// Values with ranges of addresses, none of which overlap.
#[derive(Debug)]
pub(super) struct Maps<T> {
    entries: Slab<Entry<T>>,
    count: usize,
    /// In the order of their addresses.
    leaves: Vec<Leaf>,
}

#[derive(Debug)]
struct Entry<T> {
    from: u64,
    to: u64,
    value: T,
}

#[derive(Debug)]
struct Leaf {
    from: u64,
    /// How many of its pages have an entry.
    used: usize,
    /// The number of each page's entry, or [`NONE`].
    pages: Box<[u32; PAGES]>,
}

impl<T> Maps<T> {
    pub(super) const fn new() -> Self {
        Self { entries: Slab::new(), count: 0, leaves: Vec::new() }
    }

    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// Enters a value for `bytes` from `address` on, whole pages that no other has; false if there are no more numbers.
    pub(super) fn insert(&mut self, address: u64, bytes: usize, value: T) -> bool {
        let (from, to) = (address, address + bytes as u64);
        let Ok(number) = self.entries.insert(Entry { from, to, value }) else { return false };
        self.count += 1;
        self.name(from, to, number);
        true
    }

    pub(super) fn remove(&mut self, address: u64) -> Option<T> {
        let number = self.beginning(address)?;
        let Entry { from, to, value } = self.entries.remove(number)?;
        self.count -= 1;
        self.name(from, to, NONE);
        Some(value)
    }

    /// The value whose range begins here.
    pub(super) fn get(&self, address: u64) -> Option<&T> {
        self.entries.get(self.beginning(address)?).map(|entry| &entry.value)
    }

    pub(super) fn get_mut(&mut self, address: u64) -> Option<&mut T> {
        let number = self.beginning(address)?;
        self.entries.get_mut(number).map(|entry| &mut entry.value)
    }

    /// The value whose range has this address, and where it begins.
    pub(super) fn covering(&self, address: u64) -> Option<(u64, &T)> {
        let entry = self.entries.get(self.number(address)?)?;
        Some((entry.from, &entry.value))
    }

    /// The values from the one that covers `from` up to the last that begins before `to`, in order.
    pub(super) fn touching(&self, from: u64, to: u64) -> Touching<'_, T> {
        let at = self.covering(from).map_or(from, |(start, _)| start);
        let leaf = self.leaves.partition_point(|leaf| leaf.from + LEAF <= at);
        Touching { maps: self, leaf, at, to }
    }

    /// Host memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        let pages = self.leaves.len() * PAGES * size_of::<u32>();
        self.entries.bytes() + self.leaves.capacity() * size_of::<Leaf>() + pages
    }

    fn beginning(&self, address: u64) -> Option<u32> {
        self.number(address)
            .filter(|number| self.entries.get(*number).is_some_and(|entry| entry.from == address))
    }

    fn number(&self, address: u64) -> Option<u32> {
        // Leaves that lie one behind the other are found at once.
        let first = self.leaves.first()?.from;
        let guess = usize::try_from(address.checked_sub(first)? / LEAF).ok()?;
        let leaf = self.leaves.get(guess).filter(|leaf| leaf.from <= address && address - leaf.from < LEAF);
        let leaf = leaf.or_else(|| {
            let behind = self.leaves.partition_point(|leaf| leaf.from <= address);
            self.leaves.get(behind.checked_sub(1)?)
        })?;
        let page = usize::try_from((address - leaf.from) / PAGE as u64).ok()?;
        leaf.pages.get(page).copied().filter(|number| *number != NONE)
    }

    /// Has the pages of a range name an entry, or none any more.
    fn name(&mut self, from: u64, to: u64, number: u32) {
        let mut at = from;
        while at < to {
            let start = at - at % LEAF;
            let end = to.min(start + LEAF);
            let found = self.leaves.binary_search_by_key(&start, |leaf| leaf.from);
            let index = found.unwrap_or_else(|index| {
                self.leaves.insert(index, Leaf { from: start, used: 0, pages: Box::new([NONE; PAGES]) });
                index
            });
            if let Some(leaf) = self.leaves.get_mut(index) {
                let [first, last] = [at, end].map(|at| ((at - start) / PAGE as u64) as usize);
                if let Some(pages) = leaf.pages.get_mut(first..last) {
                    pages.fill(number);
                }
                leaf.used =
                    if number == NONE { leaf.used - (last - first) } else { leaf.used + (last - first) };
                if leaf.used == 0 {
                    self.leaves.remove(index);
                }
            }
            at = end;
        }
    }
}

/// See [`Maps::touching`].
pub(super) struct Touching<'m, T> {
    maps: &'m Maps<T>,
    /// The leaf of `at`, or one before it.
    leaf: usize,
    at: u64,
    to: u64,
}

impl<'m, T> Iterator for Touching<'m, T> {
    type Item = (u64, &'m T);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        while self.at < self.to {
            let leaf = self.maps.leaves.get(self.leaf)?;
            self.at = self.at.max(leaf.from);
            let page = ((self.at - leaf.from) / PAGE as u64) as usize;
            let Some(number) = leaf.pages.get(page).filter(|number| **number != NONE) else {
                self.pass_gap(leaf, page);
                continue;
            };
            let entry = self.maps.entries.get(*number)?;
            self.at = entry.to;
            return (entry.from < self.to).then_some((entry.from, &entry.value));
        }
        None
    }
}

impl<T> Touching<'_, T> {
    /// Goes on where the next entry of the leaf begins, or behind the leaf.
    #[cold]
    fn pass_gap(&mut self, leaf: &Leaf, page: usize) {
        let rest = leaf.pages.get(page..).unwrap_or_default();
        match rest.iter().position(|number| *number != NONE) {
            Some(gap) => self.at = leaf.from + ((page + gap) * PAGE) as u64,
            None => {
                self.at = self.at.max(leaf.from + LEAF);
                self.leaf += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Insert { page: u64, pages: u64 },
        Remove { nth: usize },
        Look { page: u64, pages: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        // Around the edges of leaves, which are 512 pages, with gaps of several.
        let page = prop_oneof![0u64..40, 480u64..560, 1000u64..1100, 4090u64..4100];
        prop_oneof![
            (page.clone(), 1u64..700).prop_map(|(page, pages)| Step::Insert { page, pages }),
            (page.clone(), 1u64..4).prop_map(|(page, pages)| Step::Insert { page, pages }),
            any::<usize>().prop_map(|nth| Step::Remove { nth }),
            (page, 0u64..2000).prop_map(|(page, pages)| Step::Look { page, pages }),
        ]
    }

    /// Where page 0 is: not where a leaf begins.
    const BASE: u64 = 3 * LEAF - 17 * PAGE as u64;

    fn address(page: u64) -> u64 {
        BASE + page * PAGE as u64
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_is_a_tree_of_ranges(steps in prop::collection::vec(step(), 1..120)) {
            let (mut maps, mut model) = (Maps::new(), BTreeMap::<u64, (u64, usize)>::new());
            for (value, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert { page, pages } => {
                        let (from, to) = (address(page), address(page + pages));
                        let before = model.range(..to).next_back().map_or(0, |(at, (pages, _))| at + pages * PAGE as u64);
                        if before <= from {
                            prop_assert!(maps.insert(from, pages as usize * PAGE, value));
                            model.insert(from, (pages, value));
                        }
                    }
                    Step::Remove { nth } => {
                        let at = model.keys().nth(nth % model.len().max(1)).copied();
                        let at = at.unwrap_or(BASE);
                        prop_assert_eq!(maps.remove(at), model.remove(&at).map(|(_, value)| value));
                    }
                    Step::Look { page, pages } => {
                        // Also beside the edges of pages.
                        for (from, to) in [(address(page), address(page + pages)), (address(page) + 512, address(page + pages) + 1)] {
                            let covering = model.range(..=from).next_back().filter(|(at, (pages, _))| from - **at < pages * PAGE as u64);
                            prop_assert_eq!(maps.covering(from), covering.map(|(at, (_, value))| (*at, value)));
                            prop_assert_eq!(maps.get(from).copied(), model.get(&from).map(|(_, value)| *value));
                            let first = covering.map_or(from, |(at, _)| *at);
                            let touching = model.range(first..to.max(first)).map(|(at, (_, value))| (*at, value));
                            prop_assert_eq!(maps.touching(from, to).collect::<Vec<_>>(), touching.collect::<Vec<_>>());
                        }
                    }
                }
                let all = model.iter().map(|(at, (_, value))| (*at, value)).collect::<Vec<_>>();
                prop_assert_eq!(maps.touching(0, u64::MAX).collect::<Vec<_>>(), all);
                prop_assert_eq!(maps.len(), model.len());
                prop_assert!(maps.leaves.iter().all(|leaf| leaf.used > 0));
            }
        }
    }

    #[test]
    fn a_value_is_changed_where_it_begins() {
        let mut maps = Maps::new();
        assert!(maps.insert(BASE, 3 * PAGE, 1));
        assert!(maps.get_mut(BASE + PAGE as u64).is_none());
        *maps.get_mut(BASE).unwrap() = 2;
        assert_eq!(maps.covering(BASE + 3 * PAGE as u64 - 1), Some((BASE, &2)));
        assert_eq!(maps.covering(BASE + 3 * PAGE as u64), None);
        assert_eq!(maps.remove(BASE + PAGE as u64), None);
        assert_eq!(maps.remove(BASE), Some(2));
        assert_eq!((maps.len(), maps.leaves.len()), (0, 0));
    }
}
