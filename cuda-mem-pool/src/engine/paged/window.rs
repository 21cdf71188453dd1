//! Where a block could lie if handles were mapped there.
//!
//! The addresses of a heap are a line of *slots*: mappings, some wholly free, some with a free beginning or end, some of no use,
//! and gaps without one. A *window* is a piece of that line long enough for the block, and what it lacks is the handles for its
//! gaps. The cheapest one is taken: handles that are mapped there already cost nothing, but what is left over of one that was
//! wholly free cannot be moved any more, and that has its price too.

use std::cell::Cell;

use super::policy::{Waste, cost};
use super::reach::Reach;
use super::sizes::PAGE;
use crate::engine::slab::NONE;

/// A piece of the line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A mapping of this handle.
    Mapped {
        chunk: u32,
        /// How many of its first and of its last bytes are free; all of them if nothing of it is in use.
        head: u64,
        tail: u64,
        /// The slot before this one with another mapping of the handle.
        twin: u32,
    },
    /// Addresses for handles from elsewhere, and how many stale mappings have to go first.
    Gap { stale: u32 },
}

impl Slot {
    fn is_full(&self) -> bool {
        matches!(self.kind, Kind::Mapped { head, .. } if head == self.bytes)
    }

    /// What it gives to a window that enters at its first byte.
    fn head(&self) -> u64 {
        match self.kind {
            Kind::Mapped { head, .. } => head,
            Kind::Gap { .. } => self.bytes,
        }
    }

    pub(super) fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }
}

/// Where the block would lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    /// The first and the last slot.
    pub(super) first: usize,
    pub(super) last: usize,
    /// If the first slot is a gap: how many of its last bytes belong to the window; none for a window in a gap alone, which
    /// begins with it.
    pub(super) lead: u64,
}

/// How many free handles there are of each size, the largest first.
pub(super) type Supply = Vec<(usize, u32)>;

/// Room that a window in a gap leaves behind it, so that it can grow where it is.
pub(super) const ROOM: u64 = 256 << 20;

/// A window, and what decides between two: its price in microseconds, then the free bytes that it leaves at its end.
type Priced = ((i64, u64), Window);

/// What is looked for.
pub(super) struct Search<'s> {
    pub(super) slots: &'s [Slot],
    pub(super) size: u64,
    pub(super) supply: &'s Supply,
    pub(super) waste: Waste,
    /// The largest handle that would be made.
    pub(super) largest: u64,
    /// So many bytes may be made before more is held than should be, and what others count for, as a multiple of waste.
    pub(super) spare: u64,
    pub(super) price_of_more: u64,
    pub(super) fillings: Fillings,
}

/// What it takes to fill gaps of so many pages, each once it is known: gaps are many, and their lengths few.
pub(super) struct Fillings(Box<[Cell<Option<Filling>>]>);

impl Fillings {
    /// For gaps of a block of `size` bytes.
    pub(super) fn of(size: u64) -> Self {
        Self(vec![Cell::new(None); size.div_ceil(PAGE as u64) as usize + 1].into_boxed_slice())
    }
}

/// A gap that is filled, the largest handles first.
#[derive(Clone, Copy)]
struct Filling {
    /// Its price, but for stale mappings that have to go first.
    price: i64,
    /// The bytes that free handles leave open.
    left: u64,
}

impl Search<'_> {
    /// The cheapest window for less than `limit` microseconds.
    pub(super) fn cheapest(&self, limit: i64) -> Option<Window> {
        let mut best = None;
        let mut bound = (limit, 0);
        let mut consider = |found: Option<Priced>| {
            let Some((mut key, window)) = found.filter(|(key, _)| *key < bound) else { return };
            key.0 += self.waste.of(self.made_for(&window).saturating_mul(self.price_of_more));
            if key < bound {
                (best, bound) = (Some(window), key);
            }
        };
        let mut reach = Reach::along(self.slots.len());
        for (first, slot) in self.slots.iter().enumerate() {
            match slot.kind {
                Kind::Gap { stale } => {
                    consider(self.before_run(first, stale));
                    consider(self.inside(first, stale));
                }
                Kind::Mapped { tail: 0, .. } => {}
                Kind::Mapped { tail, .. } => consider(self.onwards(first, tail, &mut reach)),
            }
        }
        best
    }

    /// A window in a gap alone.
    fn inside(&self, gap: usize, stale: u32) -> Option<Priced> {
        let need = whole_pages(self.size);
        let fits = self.slots[gap].bytes >= need.saturating_add(ROOM);
        fits.then(|| ((self.filling(need, stale), 0), Window { first: gap, last: gap, lead: 0 }))
    }

    /// A window that ends with the free run behind a gap, and begins in the gap.
    fn before_run(&self, gap: usize, stale: u32) -> Option<Priced> {
        let (mut run, mut last, mut price) = (0, gap, 0);
        while run < self.size {
            let next = self.slots.get(last + 1)?;
            let ends = matches!(next.kind, Kind::Gap { .. }) || next.address != self.slots[last].end();
            if ends || next.head() == 0 || self.repeats(gap + 1, last + 1) {
                break;
            }
            last += 1;
            run += next.head();
            if !next.is_full() {
                price -= self.waste.of(next.head());
                break;
            }
        }
        if last == gap || run >= self.size {
            return None;
        }
        let lead = whole_pages(self.size - run);
        let fits = self.slots[gap].bytes >= lead && self.left_of(lead) == 0;
        fits.then(|| ((price + self.filling(lead, stale), 0), Window { first: gap, last, lead }))
    }

    /// The window from a slot's free end on. `reach` is how far the one from the slot before came: this one ends no earlier.
    fn onwards(&self, first: usize, tail: u64, reach: &mut Reach) -> Option<Priced> {
        let begin = &self.slots[first];
        // The end of a handle that is in use otherwise is the better for being used.
        let spared = if begin.is_full() { 0 } else { self.waste.of(tail.min(self.size)) };
        let to = (begin.end() - tail).saturating_add(self.size);
        reach.extend(self, to);
        let last = reach.last();
        let end = self.slots.get(last)?;
        if !reach.is_reached_from(first) {
            return None;
        }
        let price = reach.inner_price(first) - spared;
        let window = Window { first, last, lead: 0 };
        let rest = end.end() - to;
        match end.kind {
            Kind::Mapped { .. } if end.is_full() || first == last => {
                let broken = if end.is_full() { rest } else { 0 };
                Some(((price + self.waste.of(broken), rest), window))
            }
            Kind::Mapped { head, .. } => {
                let used = to - end.address;
                (head >= used).then(|| ((price - self.waste.of(used), head - used), window))
            }
            Kind::Gap { stale } => {
                let need = whole_pages(to - end.address);
                let is_filled = end.bytes >= need.saturating_add(ROOM) || self.left_of(need) == 0;
                is_filled.then(|| ((price + self.filling(need, stale), 0), window))
            }
        }
    }

    /// The bytes that would be made for a window beyond what should be held: what is free and mapped in it already fills none of its
    /// gaps, and another gap has what one was filled with.
    fn made_for(&self, window: &Window) -> u64 {
        let slots = &self.slots[window.first..=window.last];
        if slots.iter().all(|slot| matches!(slot.kind, Kind::Mapped { .. })) {
            return 0;
        }
        let mut supply = self.supply.clone();
        for slot in slots.iter().filter(|slot| matches!(slot.kind, Kind::Mapped { .. }) && slot.is_full()) {
            if let Some((_, there)) = supply.iter_mut().find(|(bytes, _)| *bytes as u64 == slot.bytes) {
                *there = there.saturating_sub(1);
            }
        }
        let (mut got, mut spare, mut made) = (0, self.spare, 0);
        for (at, slot) in slots.iter().enumerate() {
            match slot.kind {
                Kind::Mapped { tail, .. } if at == 0 => got += tail,
                Kind::Mapped { head, .. } => got += head,
                Kind::Gap { .. } => {
                    let (bytes, room) = self.gap(slot, (at == 0).then_some(window.lead), got);
                    got += bytes;
                    let left = left_of(&mut supply, bytes, room, spare);
                    made += left.saturating_sub(spare);
                    spare = spare.saturating_sub(left);
                }
            }
        }
        made
    }

    /// How many bytes of a gap a window needs that has got so many, and how many there is room for.
    fn gap(&self, gap: &Slot, lead: Option<u64>, got: u64) -> (u64, u64) {
        if let Some(lead) = lead.filter(|lead| *lead > 0) {
            return (lead, lead);
        }
        let need = whole_pages(self.size.saturating_sub(got));
        let bytes = need.min(gap.bytes);
        (bytes, if gap.bytes < need + ROOM { bytes } else { gap.bytes })
    }

    /// What it costs that all of a slot is inside a window, with something before and behind it; none if it cannot be.
    pub(super) fn inner_price(&self, slot: &Slot) -> Option<i64> {
        match slot.kind {
            Kind::Mapped { .. } => slot.is_full().then_some(0),
            Kind::Gap { stale } => {
                let filled = (slot.bytes < self.size).then(|| self.filled(slot.bytes))?;
                (filled.left == 0).then(|| filled.price + i64::from(stale) * cost::UNMAP)
            }
        }
    }

    /// Whether the handle at `last` is in the window from `first` already.
    fn repeats(&self, first: usize, last: usize) -> bool {
        let Kind::Mapped { twin, .. } = self.slots[last].kind else { return false };
        twin != NONE && twin as usize >= first
    }

    /// What it costs to fill so many bytes.
    fn filling(&self, bytes: u64, stale: u32) -> i64 {
        self.filled(bytes).price + i64::from(stale) * cost::UNMAP
    }

    /// What free handles leave open of so many bytes.
    fn left_of(&self, bytes: u64) -> u64 {
        self.filled(bytes).left
    }

    fn filled(&self, bytes: u64) -> Filling {
        let pages = bytes / PAGE as u64;
        let Some(known) = self.fillings.0.get(pages as usize).filter(|_| bytes == pages * PAGE as u64) else {
            return self.fill(bytes);
        };
        known.get().unwrap_or_else(|| {
            let filling = self.fill(bytes);
            known.set(Some(filling));
            filling
        })
    }

    /// So many bytes, filled with what there is; the rest would be made.
    fn fill(&self, bytes: u64) -> Filling {
        let mut left = bytes;
        let mut count = 0;
        let mut broken = 0;
        for (size, there) in self.supply {
            let size = *size as u64;
            let taken = (left / size).min(u64::from(*there));
            left -= taken * size;
            count += taken;
            if taken < u64::from(*there) {
                broken = size;
            }
        }
        let broken = if left == 0 { 0 } else { broken.saturating_sub(left) };
        count += left.div_ceil(self.largest);
        Filling { price: count as i64 * cost::MAP + self.waste.of(broken), left }
    }
}

/// What handles that there are leave open of so many bytes, until so many are left as may be made: the largest that fit, otherwise
/// the smallest that there is room for.
fn left_of(supply: &mut Supply, mut bytes: u64, mut room: u64, spare: u64) -> u64 {
    while bytes > spare {
        let fits = |most: u64| move |(size, there): &(usize, u32)| *size as u64 <= most && *there > 0;
        let at = supply.iter().position(fits(bytes)).or_else(|| supply.iter().rposition(fits(room)));
        let Some((size, there)) = at.and_then(|at| supply.get_mut(at)) else { break };
        *there -= 1;
        bytes = bytes.saturating_sub(*size as u64);
        room = room.saturating_sub(*size as u64);
    }
    bytes
}

pub(super) const fn whole_pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::policy::Policy;
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A line that begins at 1 GiB, of handles that nothing is in, one that is full, or gaps of so many MiB.
    fn line(slots: &[(u64, &str)]) -> Vec<Slot> {
        let mut address = 1 << 30;
        let slot = |(number, (bytes, kind)): (usize, &(u64, &str))| {
            let bytes = bytes * MIB;
            let free = if *kind == "free" { bytes } else { 0 };
            let mapped = Kind::Mapped { chunk: number as u32, head: free, tail: free, twin: NONE };
            let kind = if *kind == "gap" { Kind::Gap { stale: 0 } } else { mapped };
            let slot = Slot { address, bytes, kind };
            address += bytes;
            slot
        };
        slots.iter().enumerate().map(slot).collect()
    }

    fn cheapest(slots: &[Slot], supply: &[(u64, u32)], size: u64, spare: u64) -> Option<Window> {
        let supply = &supply.iter().map(|(mib, there)| ((mib * MIB) as usize, *there)).collect();
        let waste = Policy::DEFAULT.waste(1 << 30);
        let price_of_more = Policy::DEFAULT.price_of_more;
        let search = Search {
            slots,
            size: size * MIB,
            supply,
            waste,
            largest: 32 * MIB,
            spare: spare * MIB,
            price_of_more,
            fillings: Fillings::of(size * MIB),
        };
        search.cheapest(i64::MAX)
    }

    #[test]
    fn no_gap_is_filled_with_what_is_in_the_window() {
        // The first window would have the one handle of 2 MiB in it and in its gap; the second has four elsewhere for its gaps.
        let slots = line(&[
            (2, "free"),
            (2, "gap"),
            (9, "full"),
            (4, "free"),
            (4, "gap"),
            (9, "full"),
            (4, "free"),
            (9, "full"),
        ]);
        let supply = [(4, 2), (2, 1)];
        let window = |first, last| Some(Window { first, last, lead: 0 });
        assert_eq!(cheapest(&slots, &supply, 8, 0), window(3, 4));
        assert_eq!(cheapest(&slots, &supply, 4, 0), window(3, 3));
        assert_eq!(cheapest(&slots[..3], &supply, 4, 0), window(0, 1), "there is no other");
        // As long as memory may be made the shortest gap is the cheapest.
        assert_eq!(cheapest(&slots[..5], &[(2, 1)], 4, 2), window(3, 3));
        assert_eq!(cheapest(&slots[..3], &[(2, 1)], 4, 2), window(0, 1));
    }

    /// What [`Search::onwards`] says, slot by slot.
    fn walked(search: &Search<'_>, first: usize, tail: u64) -> Option<Priced> {
        let (slots, size) = (search.slots, search.size);
        let begin = &slots[first];
        let (mut got, mut last) = (tail, first);
        let mut price = if begin.is_full() { 0 } else { -search.waste.of(tail.min(size)) };
        while got < size {
            let next = slots.get(last + 1)?;
            if next.address != slots[last].end() {
                return None;
            }
            last += 1;
            match next.kind {
                Kind::Mapped { .. } if search.repeats(first, last) => return None,
                Kind::Mapped { head, .. } if !next.is_full() => {
                    let used = head.min(size - got);
                    let key = (price - search.waste.of(used), (got + head).saturating_sub(size));
                    return (got + head >= size).then_some((key, Window { first, last, lead: 0 }));
                }
                Kind::Mapped { head, .. } => got += head,
                Kind::Gap { stale } => {
                    let need = whole_pages(size - got).min(next.bytes);
                    if next.bytes < whole_pages(size - got) + ROOM && search.left_of(need) > 0 {
                        return None;
                    }
                    price += search.filling(need, stale);
                    if need < next.bytes || got + need >= size {
                        return Some(((price, 0), Window { first, last, lead: 0 }));
                    }
                    got += need;
                }
            }
        }
        let rest = got - size;
        let broken = if slots[last].is_full() { rest } else { 0 };
        Some(((price + search.waste.of(broken), rest), Window { first, last, lead: 0 }))
    }

    /// Slots of a line: kind, pages, how many of them are free, and whether there are addresses of no use before it.
    fn random_line() -> impl Strategy<Value = Vec<Slot>> {
        let slot = (0u8..6, 1u64..9, 0u64..9, 0u32..6, proptest::bool::weighted(0.05));
        proptest::collection::vec(slot, 1..40).prop_map(|slots| {
            let (mut address, mut twins) = (1 << 30, [NONE; 6]);
            let slot = |(at, (kind, pages, free, chunk, is_cut)): (usize, (u8, u64, u64, u32, bool))| {
                let bytes = if kind == 5 { pages * 40 } else { pages } * PAGE as u64;
                let free = (free * PAGE as u64 + 512).min(bytes);
                let mapped = |head, tail, twins: &mut [u32; 6]| {
                    let twin = std::mem::replace(&mut twins[chunk as usize], at as u32);
                    Kind::Mapped { chunk, head, tail, twin }
                };
                let kind = match kind {
                    0 | 1 => mapped(bytes, bytes, &mut twins),
                    2 => mapped(free.min(bytes - 512), 0, &mut twins),
                    3 => mapped(0, free.min(bytes - 512), &mut twins),
                    _ => Kind::Gap { stale: chunk % 3 },
                };
                address += if is_cut { PAGE as u64 } else { 0 };
                let slot = Slot { address, bytes, kind };
                address += bytes;
                slot
            };
            slots.into_iter().enumerate().map(slot).collect()
        })
    }

    proptest! {
        #[test]
        fn one_way_along_the_line_finds_what_many_find(
            slots in random_line(),
            supply in (0u32..4, 0u32..4, 0u32..4),
            size in 1u64..40 * PAGE as u64 / 512,
        ) {
            let supply = &vec![(8 * PAGE, supply.0), (2 * PAGE, supply.1), (PAGE, supply.2)];
            let size = size * 512;
            let policy = Policy::DEFAULT;
            let search = Search {
                slots: &slots,
                size,
                supply,
                waste: policy.waste(1 << 30),
                largest: 32 * MIB,
                spare: 0,
                price_of_more: policy.price_of_more,
                fillings: Fillings::of(size),
            };
            let mut reach = Reach::along(slots.len());
            for (first, slot) in slots.iter().enumerate() {
                if let Kind::Mapped { tail, .. } = slot.kind && tail > 0 {
                    prop_assert_eq!(search.onwards(first, tail, &mut reach), walked(&search, first, tail), "from {}", first);
                }
            }
        }
    }

    #[test]
    fn what_would_be_made_is_what_neither_the_supply_nor_the_spare_has() {
        let slots = line(&[(4, "free"), (4, "gap"), (2, "free"), (600, "gap")]);
        let supply = vec![((4 * MIB) as usize, 2), ((2 * MIB) as usize, 1)];
        let made = |last, size, spare| {
            let waste = Policy::DEFAULT.waste(1 << 30);
            let search = Search {
                slots: &slots,
                size: size * MIB,
                supply: &supply,
                waste,
                largest: 32 * MIB,
                spare: spare * MIB,
                price_of_more: 1,
                fillings: Fillings::of(size * MIB),
            };
            search.made_for(&Window { first: 0, last, lead: 0 }) / MIB
        };
        // One of two is in the window, the other fills the first gap; then there is none for the second.
        assert_eq!([made(0, 4, 0), made(1, 8, 0), made(3, 12, 0), made(3, 30, 0)], [0, 0, 2, 20]);
        assert_eq!([made(3, 12, 2), made(3, 30, 5), made(3, 30, 24)], [0, 15, 0]);
    }
}
