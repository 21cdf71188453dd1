//! Where a block could lie if handles were mapped there.
//!
//! The addresses of a heap are a line of *slots*: mappings, some wholly free, some with a free beginning or end, some of no use,
//! and gaps without one. A *window* is a piece of that line long enough for the block, and what it lacks is the handles for its
//! gaps. The cheapest one is taken: handles that are mapped there already cost nothing, but what is left over of one that was
//! wholly free cannot be moved any more, and that has its price too.

use super::policy::{Waste, cost};
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
}

impl Search<'_> {
    /// The cheapest window for less than `limit` microseconds.
    pub(super) fn cheapest(&self, limit: i64) -> Option<Window> {
        let mut best: Option<Priced> = None;
        let mut consider = |found: Option<Priced>| {
            let Some((key, window)) = found else { return best.map_or(limit, |((price, _), _)| price) };
            if key.0 < limit && best.is_none_or(|(known, _)| key < known) {
                best = Some((key, window));
            }
            best.map_or(limit, |((price, _), _)| price)
        };
        let mut limit = limit;
        for (first, slot) in self.slots.iter().enumerate() {
            limit = match slot.kind {
                Kind::Gap { stale } => {
                    consider(self.before_run(first, stale));
                    consider(self.inside(first, stale))
                }
                Kind::Mapped { tail: 0, .. } => limit,
                Kind::Mapped { tail, .. } => consider(self.onwards(first, tail, limit)),
            };
        }
        best.map(|(_, window)| window)
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

    /// The window from a slot's free end on.
    fn onwards(&self, first: usize, tail: u64, limit: i64) -> Option<Priced> {
        let begin = &self.slots[first];
        let (mut bytes, mut last) = (tail, first);
        // The end of a handle that is in use otherwise is the better for being used.
        let mut price = if begin.is_full() { 0 } else { -self.waste.of(tail.min(self.size)) };
        let window = |last| Window { first, last, lead: 0 };
        while bytes < self.size {
            let next = self.slots.get(last + 1)?;
            if next.address != self.slots[last].end() || price - self.waste.of(self.largest) > limit {
                return None;
            }
            last += 1;
            match next.kind {
                Kind::Mapped { head, .. } => {
                    if self.repeats(first, last) {
                        return None;
                    }
                    if !next.is_full() {
                        let used = head.min(self.size - bytes);
                        return (bytes + head >= self.size).then(|| {
                            ((price - self.waste.of(used), bytes + head - self.size), window(last))
                        });
                    }
                    bytes += head;
                }
                Kind::Gap { stale } => {
                    let need = whole_pages(self.size - bytes);
                    if next.bytes < need + ROOM && self.left_of(need.min(next.bytes)) > 0 {
                        return None;
                    }
                    price += self.filling(need.min(next.bytes), stale);
                    if next.bytes >= need {
                        return Some(((price, 0), window(last)));
                    }
                    bytes += next.bytes;
                }
            }
        }
        let rest = bytes - self.size;
        let broken = if self.slots[last].is_full() { rest } else { 0 };
        Some(((price + self.waste.of(broken), rest), window(last)))
    }

    /// Whether the handle at `last` is in the window from `first` already.
    fn repeats(&self, first: usize, last: usize) -> bool {
        let Kind::Mapped { twin, .. } = self.slots[last].kind else { return false };
        twin != NONE && twin as usize >= first
    }

    /// What it costs to fill so many bytes, the largest handles first; what is not there would be made.
    fn filling(&self, bytes: u64, stale: u32) -> i64 {
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
        count as i64 * cost::MAP + i64::from(stale) * cost::UNMAP + self.waste.of(broken)
    }

    /// What free handles leave open of so many bytes.
    fn left_of(&self, bytes: u64) -> u64 {
        let take = |left: u64, (size, there): &(usize, u32)| {
            left - (left / *size as u64).min(u64::from(*there)) * *size as u64
        };
        self.supply.iter().fold(bytes, take)
    }
}

pub(super) const fn whole_pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE as u64)
}
