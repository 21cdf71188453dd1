//! How far windows reach.

use super::window::{Kind, Search};
use crate::engine::slab::NONE;

/// Where windows end that begin at one slot after the other. Each ends no earlier than the one before it, so all of them together
/// go along the line once.
pub(super) struct Reach {
    /// The first slot from which a window may come to the last one: in between is nothing that no window goes through, and no handle twice.
    from: usize,
    /// What the slots before each one cost inside a window, up to the last slot of the window.
    before: Vec<i64>,
}

impl Reach {
    /// At the beginning of a line of so many slots.
    pub(super) fn along(slots: usize) -> Self {
        let mut before = Vec::with_capacity(slots + 1);
        before.push(0);
        Self { from: 0, before }
    }

    /// The last slot of the window.
    pub(super) const fn last(&self) -> usize {
        self.before.len() - 1
    }

    /// Goes on to the slot that has the byte before this address.
    pub(super) fn extend(&mut self, search: &Search<'_>, to: u64) {
        while let Some(slot) = search.slots.get(self.last()).filter(|slot| slot.end() < to) {
            let price = search.inner_price(slot);
            if price.is_none() {
                self.from = self.from.max(self.last());
            }
            self.before.push(self.before[self.last()] + price.unwrap_or(0));
            let Some(next) = search.slots.get(self.last()) else { break };
            if next.address != slot.end() {
                self.from = self.last();
            }
            if let Kind::Mapped { twin, .. } = next.kind
                && twin != NONE
            {
                self.from = self.from.max(twin as usize + 1);
            }
        }
    }

    /// Whether a window may begin at this slot.
    pub(super) const fn is_reached_from(&self, first: usize) -> bool {
        first >= self.from
    }

    /// What it costs that all is inside that lies between the slot where the window begins and the last one.
    pub(super) fn inner_price(&self, first: usize) -> i64 {
        let last = self.last();
        if first < last { self.before[last] - self.before[first + 1] } else { 0 }
    }
}
