//! What the program said about pages of managed memory.

use std::collections::{BTreeMap, BTreeSet};

use super::os;

/// A kind of location and its number, as the driver's interface writes them.
pub(crate) type Spot = (u32, i32);

/// What was said about one page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Advice {
    pub(crate) read_mostly: bool,
    pub(crate) preferred: Option<Spot>,
    pub(crate) accessed_by: BTreeSet<i32>,
    pub(crate) prefetched: Option<Spot>,
}

/// One thing to say.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wish {
    ReadMostly(bool),
    Preferred(Option<Spot>),
    AccessedBy(i32, bool),
    Prefetched(Spot),
}

/// What was said about pages, by page number.
#[derive(Debug, Default)]
pub(crate) struct Advices(BTreeMap<u64, Advice>);

impl Advices {
    fn pages(at: u64, len: u64) -> std::ops::Range<u64> {
        let page = os::page_size() as u64;
        at / page..(at + len).div_ceil(page)
    }

    /// Applies a wish to every page with a byte in `at .. at + len`.
    pub(crate) fn set(&mut self, at: u64, len: u64, wish: Wish) {
        for page in Self::pages(at, len) {
            let advice = self.0.entry(page).or_default();
            match wish {
                Wish::ReadMostly(set) => advice.read_mostly = set,
                Wish::Preferred(spot) => advice.preferred = spot,
                Wish::Prefetched(spot) => advice.prefetched = Some(spot),
                Wish::AccessedBy(device, true) => {
                    advice.accessed_by.insert(device);
                }
                Wish::AccessedBy(device, false) => {
                    advice.accessed_by.remove(&device);
                }
            }
        }
    }

    /// What was said about each page with a byte in `at .. at + len`.
    pub(crate) fn of(&self, at: u64, len: u64) -> Vec<Advice> {
        Self::pages(at, len).map(|page| self.0.get(&page).cloned().unwrap_or_default()).collect()
    }

    /// Forgets pages whose memory was freed.
    pub(crate) fn forget(&mut self, at: u64, len: u64) {
        let pages = Self::pages(at, len);
        self.0.retain(|page, _| !pages.contains(page));
    }
}
