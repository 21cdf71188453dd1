//! The slots of all addresses, in regions of 512 MiB that are made when something is first entered there, and stay.

use std::sync::{Arc, OnceLock};

use super::SLOT;
use super::slot::Slot;
use crate::primitive::{AtomicUsize, Mutex, Ordering, lock};

const REGION: u64 = if cfg!(all(loom, test)) { 2 * SLOT } else { 512 << 20 };
const SLOTS: usize = (REGION / SLOT) as usize;

/// A table's room, by its number: two bits more each time. All regions of 64-bit addresses fill half of the last.
const TABLES: usize = 15;
const FIRST_BITS: u32 = if cfg!(all(loom, test)) { 1 } else { 7 };

/// A power of two.
const NEAR: usize = if cfg!(all(loom, test)) { 2 } else { 256 };

type Region = [Slot; SLOTS];

/// Regions by number: each in the place that its number names, if it was the first there, and else in a hash table. A full table is
/// followed by a larger one with the same regions; readers that are still at the old one miss the newest alone, of which they have
/// not been told.
#[derive(Debug)]
pub(super) struct Regions {
    /// Most of what there is lies in few ranges, whose regions do not meet here.
    near: [OnceLock<Known>; NEAR],
    tables: [OnceLock<Table>; TABLES],
    /// The table to look at.
    current: AtomicUsize,
    /// How many regions are in tables.
    count: Mutex<usize>,
    bytes: AtomicUsize,
}

#[derive(Debug)]
struct Table {
    /// Open addressing; at most half is taken.
    entries: Box<[OnceLock<Known>]>,
    shift: u32,
}

#[derive(Clone, Debug)]
struct Known {
    number: u64,
    region: Arc<Region>,
}

impl Regions {
    pub(super) fn new() -> Self {
        Self {
            near: [const { OnceLock::new() }; NEAR],
            tables: [const { OnceLock::new() }; TABLES],
            current: AtomicUsize::new(0),
            count: Mutex::new(0),
            bytes: AtomicUsize::new(0),
        }
    }

    /// The slot of an address, if anything was ever entered near it.
    #[inline(always)]
    pub(super) fn slot(&self, address: u64) -> Option<&Slot> {
        let number = address / REGION;
        let known = match self.near[near(number)].get() {
            Some(known) if known.number == number => known,
            _ => self.elsewhere(number)?,
        };
        known.region.get(slot_in_region(address))
    }

    /// The slot of an address. None only beyond all numbers.
    pub(super) fn slot_or_new(&self, address: u64) -> Option<&Slot> {
        match self.slot(address) {
            Some(slot) => Some(slot),
            None => {
                self.add(address / REGION)?;
                self.slot(address)
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn table(&self) -> Option<&Table> {
        // What is said to be current is there.
        self.tables.get(self.current.load(Ordering::Acquire))?.get()
    }

    #[inline(never)]
    fn elsewhere(&self, number: u64) -> Option<&Known> {
        self.table()?.entry(number)?.get()
    }

    #[cold]
    fn add(&self, number: u64) -> Option<()> {
        let mut count = lock(&self.count);
        let near = self.near.get(near(number))?;
        if near.get().is_some_and(|known| known.number == number) || self.elsewhere(number).is_some() {
            // Another thread was first.
            return Some(());
        }
        let region = Arc::new(std::array::from_fn(|_| Slot::new()));
        self.bytes.fetch_add(size_of::<Region>(), Ordering::Relaxed);
        let known = Known { number, region };
        let Err(known) = near.set(known) else { return Some(()) };
        match self.table() {
            None => self.add_table(0, &[]),
            Some(table) if (*count + 1) * 2 > table.entries.len() => {
                let all: Vec<Known> = table.entries.iter().filter_map(|entry| entry.get().cloned()).collect();
                let next = self.current.load(Ordering::Relaxed) + 1;
                self.add_table(next, &all);
                self.current.store(next, Ordering::Release);
            }
            Some(_) => {}
        }
        self.table()?.entry(number)?.set(known).ok()?;
        *count += 1;
        Some(())
    }

    fn add_table(&self, number: usize, known: &[Known]) {
        let bits = FIRST_BITS + 2 * number as u32;
        let entries: Box<[OnceLock<Known>]> = (0..1usize << bits).map(|_| OnceLock::new()).collect();
        self.bytes.fetch_add(size_of_val(&*entries), Ordering::Relaxed);
        let table = Table { entries, shift: u64::BITS - bits };
        for known in known {
            let _ = table.entry(known.number).map(|entry| entry.set(known.clone()));
        }
        let _ = self.tables.get(number).map(|place| place.set(table));
    }
}

impl Table {
    /// The entry of a region, or the vacant one where it would be.
    fn entry(&self, number: u64) -> Option<&OnceLock<Known>> {
        // Multiplying by the golden ratio spreads neighbours.
        let mut at = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize;
        loop {
            let entry = self.entries.get(at & self.mask())?;
            if entry.get().is_none_or(|known| known.number == number) {
                return Some(entry);
            }
            at += 1;
        }
    }

    #[inline]
    fn mask(&self) -> usize {
        self.entries.len() - 1
    }
}

/// Neighbours have places of their own, and so have the beginnings of ranges that lie a power of two apart.
#[inline]
const fn near(number: u64) -> usize {
    const APART: usize = 77;
    let (place, lap) = (number as usize % NEAR, number as usize / NEAR);
    place.wrapping_add(lap.wrapping_mul(APART)) % NEAR
}

#[inline]
fn slot_in_region(address: u64) -> usize {
    (address % REGION / SLOT) as usize
}
