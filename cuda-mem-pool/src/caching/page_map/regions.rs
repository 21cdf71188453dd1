//! The slots of all addresses, in regions of 1 GiB that are made when something is first entered there, and stay.

use std::sync::{Arc, OnceLock};

use super::SLOT;
use super::slot::Slot;
use crate::primitive::{AtomicUsize, Mutex, Ordering, lock};

const REGION: u64 = if cfg!(all(loom, test)) { 2 * SLOT } else { 1 << 30 };
const SLOTS: usize = (REGION / SLOT) as usize;

/// A table's room, by its number: two bits more each time. All regions of 64-bit addresses fill half of the last.
const TABLES: usize = 15;
const FIRST_BITS: u32 = if cfg!(all(loom, test)) { 1 } else { 7 };

type Region = [Slot; SLOTS];

/// A hash table of regions by number. A full one is followed by a larger one with the same regions; readers that are still
/// at the old one miss the newest alone, of which they have not been told.
#[derive(Debug)]
pub(super) struct Regions {
    tables: [OnceLock<Table>; TABLES],
    /// The table to look at.
    current: AtomicUsize,
    /// How many regions there are.
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
        let regions = Self {
            tables: [const { OnceLock::new() }; TABLES],
            current: AtomicUsize::new(0),
            count: Mutex::new(0),
            bytes: AtomicUsize::new(0),
        };
        regions.add_table(0, &[]);
        regions
    }

    /// The slot of an address, if anything was ever entered near it.
    #[inline(always)]
    pub(super) fn slot(&self, address: u64) -> Option<&Slot> {
        let known = self.table()?.entry(address / REGION)?.get()?;
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

    #[inline]
    fn table(&self) -> Option<&Table> {
        self.tables.get(self.current.load(Ordering::Relaxed))?.get()
    }

    #[cold]
    fn add(&self, number: u64) -> Option<()> {
        let mut count = lock(&self.count);
        let table = self.table()?;
        if table.entry(number)?.get().is_some() {
            // Another thread was first.
            return Some(());
        }
        if (*count + 1) * 2 > table.entries.len() {
            let known: Vec<Known> = table.entries.iter().filter_map(|entry| entry.get().cloned()).collect();
            let next = self.current.load(Ordering::Relaxed) + 1;
            self.add_table(next, &known);
            self.current.store(next, Ordering::Relaxed);
        }
        let region = Arc::new(std::array::from_fn(|_| Slot::new()));
        self.table()?.entry(number)?.set(Known { number, region }).ok()?;
        *count += 1;
        self.bytes.fetch_add(size_of::<Region>(), Ordering::Relaxed);
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
    #[inline(always)]
    fn entry(&self, number: u64) -> Option<&OnceLock<Known>> {
        // Most of what there is lies in one range, whose regions do not meet here.
        let first = self.entries.get(number as usize & self.mask())?;
        if first.get().is_none_or(|known| known.number == number) {
            return Some(first);
        }
        self.entry_elsewhere(number)
    }

    #[inline(never)]
    fn entry_elsewhere(&self, number: u64) -> Option<&OnceLock<Known>> {
        // Multiplying by the golden ratio spreads those of ranges that met.
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

#[inline]
fn slot_in_region(address: u64) -> usize {
    (address % REGION / SLOT) as usize
}
