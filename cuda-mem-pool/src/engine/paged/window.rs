//! Where a block could lie if handles were mapped there.
//!
//! The addresses of a heap are a line of *slots*: mappings, some wholly free, some with a free beginning or end, some of no use,
//! and gaps without one. A *window* is a piece of that line long enough for the block, and what it lacks is the handles for its
//! gaps. The cheapest one is taken: handles that are mapped there already cost nothing.

use super::policy::{Policy, cost};
use super::sizes::PAGE;

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
        /// Whether it is mapped nowhere else.
        alone: bool,
    },
    /// Addresses for handles from elsewhere, and how many stale mappings have to go first.
    Gap { stale: u32 },
}

impl Slot {
    fn is_full(&self) -> bool {
        matches!(self.kind, Kind::Mapped { head, .. } if head == self.bytes)
    }

    fn is_gap(&self) -> bool {
        matches!(self.kind, Kind::Gap { .. })
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

/// The cheapest window for `size` bytes.
pub(super) fn cheapest(slots: &[Slot], size: usize, supply: &Supply, policy: &Policy) -> Option<Window> {
    let size = size as u64;
    let mut best = None;
    for first in 0..slots.len() {
        let slot = &slots[first];
        match slot.kind {
            Kind::Gap { stale } => {
                if let Some((price, window)) = before_run(slots, first, size, supply, policy) {
                    best = cheaper(best, (price, 0), window);
                }
                let need = whole_pages(size);
                if slot.bytes >= need.saturating_add(ROOM) {
                    let price = handles(need, supply, policy) * cost::MAP + stale * cost::UNMAP;
                    best = cheaper(best, (price, 0), Window { first, last: first, lead: 0 });
                }
            }
            Kind::Mapped { tail, .. } if tail > 0 => {
                let limit = best.map_or(u32::MAX, |((price, _), _)| price);
                if let Some((price, waste, last)) = onwards(slots, first, size, supply, limit, policy) {
                    best = cheaper(best, (price, waste), Window { first, last, lead: 0 });
                }
            }
            Kind::Mapped { .. } => {}
        }
    }
    best.map(|(_, window): Priced| window)
}

/// A window, and what decides between two: its price, then the free bytes that it leaves at its end.
type Priced = ((u32, u64), Window);

fn cheaper(best: Option<Priced>, key: (u32, u64), window: Window) -> Option<Priced> {
    match best {
        Some((known, _)) if known <= key => best,
        _ => Some((key, window)),
    }
}

/// A window that ends with the free run behind a gap, and begins in the gap.
fn before_run(
    slots: &[Slot],
    gap: usize,
    size: u64,
    supply: &Supply,
    policy: &Policy,
) -> Option<(u32, Window)> {
    let mut run = 0;
    let mut last = gap;
    while run < size {
        let next = slots.get(last + 1)?;
        if next.is_gap() || next.address != slots[last].end() {
            break;
        }
        if next.head() == 0 || repeats(slots, gap + 1, last + 1) {
            break;
        }
        last += 1;
        run += next.head();
        if !next.is_full() {
            break;
        }
    }
    if last == gap || run >= size {
        return None;
    }
    let lead = whole_pages(size - run);
    let slot = &slots[gap];
    let Kind::Gap { stale } = slot.kind else { return None };
    (slot.bytes >= lead && fits_exactly(lead, supply)).then(|| {
        let price = handles(lead, supply, policy) * cost::MAP + stale * cost::UNMAP;
        (price, Window { first: gap, last, lead })
    })
}

/// The window from a slot's free end on: its price, the free bytes that it leaves at its end, and its last slot.
fn onwards(
    slots: &[Slot],
    first: usize,
    size: u64,
    supply: &Supply,
    limit: u32,
    policy: &Policy,
) -> Option<(u32, u64, usize)> {
    let Kind::Mapped { tail, .. } = slots[first].kind else { return None };
    let (mut bytes, mut price, mut last) = (tail, 0u32, first);
    while bytes < size {
        let next = slots.get(last + 1)?;
        if next.address != slots[last].end() || price > limit {
            return None;
        }
        last += 1;
        match next.kind {
            Kind::Mapped { head, .. } => {
                if repeats(slots, first, last) {
                    return None;
                }
                bytes += head;
                if bytes < size && !next.is_full() {
                    return None;
                }
            }
            Kind::Gap { stale } => {
                let need = whole_pages(size - bytes);
                price = price.saturating_add(stale * cost::UNMAP);
                if next.bytes >= need {
                    if next.bytes < need + ROOM && !fits_exactly(need, supply) {
                        return None;
                    }
                    return Some((price + handles(need, supply, policy) * cost::MAP, 0, last));
                }
                if !fits_exactly(next.bytes, supply) {
                    return None;
                }
                price = price.saturating_add(handles(next.bytes, supply, policy) * cost::MAP);
                bytes += next.bytes;
            }
        }
    }
    Some((price, bytes - size, last))
}

/// Whether the handle at `last` is in the window from `first` already.
fn repeats(slots: &[Slot], first: usize, last: usize) -> bool {
    let Kind::Mapped { chunk, alone: false, .. } = slots[last].kind else { return false };
    slots[first..last]
        .iter()
        .any(|slot| matches!(slot.kind, Kind::Mapped { chunk: other, .. } if other == chunk))
}

/// How many handles it takes to fill so many bytes, the largest first; what is not there would be made.
fn handles(bytes: u64, supply: &Supply, policy: &Policy) -> u32 {
    let mut left = bytes;
    let mut count = 0u32;
    for (size, there) in supply {
        let taken = (left / *size as u64).min(u64::from(*there));
        left -= taken * *size as u64;
        count = count.saturating_add(taken as u32);
    }
    count.saturating_add(left.div_ceil(policy.largest_handle as u64) as u32)
}

/// Whether free handles fill so many bytes without a rest.
fn fits_exactly(bytes: u64, supply: &Supply) -> bool {
    let mut left = bytes;
    for (size, there) in supply {
        left -= (left / *size as u64).min(u64::from(*there)) * *size as u64;
    }
    left == 0
}

pub(super) const fn whole_pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE as u64)
}
