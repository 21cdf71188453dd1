//! A driver that only keeps books, and complains about what a real one would not survive.

use std::collections::{BTreeMap, HashMap};

use crate::engine::paged::{Backend, BlockIndex, Heaps, StreamHeap, Tier};

/// Moves forward with every operation of the trace; the device is `lag` of them behind.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) now: u64,
    pub(super) lag: u64,
    pub(super) capacity: usize,
    pub(super) held: usize,
    pub(super) next_address: u64,
    next_memory: u64,
    memory: HashMap<u64, usize>,
    pub(super) mapped: BTreeMap<u64, (usize, u64)>,
    pub(super) creates: u64,
    pub(super) maps: u64,
    pub(super) unmaps: u64,
    /// Calls that let the device in, and calls that take memory away, each for one mapping or for several.
    accesses: u64,
    unmap_calls: u64,
    pub(super) marks: u64,
    pub(super) waits: u64,
}

impl Model {
    pub(super) fn new(lag: u64, capacity: usize) -> Self {
        Self {
            now: 0,
            lag,
            capacity,
            held: 0,
            next_address: 1 << 44,
            next_memory: 1,
            memory: HashMap::new(),
            mapped: BTreeMap::new(),
            creates: 0,
            maps: 0,
            unmaps: 0,
            accesses: 0,
            unmap_calls: 0,
            marks: 0,
            waits: 0,
        }
    }

    /// Microseconds that a driver would have taken.
    pub(super) fn microseconds(&self) -> u64 {
        self.creates * 7 + self.maps * 21 + self.unmaps * 13
    }

    /// The calls that a driver would have had.
    pub(super) fn calls(&self) -> u64 {
        self.creates + self.maps + self.accesses + self.unmap_calls
    }

    pub(super) fn map_one(&mut self, address: u64, bytes: usize, memory: u64) {
        assert_eq!(self.memory.get(&memory), Some(&bytes));
        assert!(address.is_multiple_of(2 << 20));
        let before = self.mapped.range(..address + bytes as u64).next_back();
        assert!(before.is_none_or(|(start, (bytes, _))| start + *bytes as u64 <= address), "mapped twice");
        self.maps += 1;
        self.mapped.insert(address, (bytes, memory));
    }

    /// Handle and offset behind an address.
    pub(super) fn translate(&self, address: u64) -> (u64, u64, u64) {
        let (start, (bytes, memory)) = self.mapped.range(..=address).next_back().expect("nothing is mapped");
        assert!(address < start + *bytes as u64, "{address:#x} is not mapped");
        (*memory, address - start, start + *bytes as u64)
    }
}

impl Backend for Model {
    type Error = &'static str;
    type Point = u64;

    fn reserve(&mut self, bytes: u64) -> Result<Option<u64>, &'static str> {
        let address = self.next_address;
        self.next_address += bytes + (1 << 30);
        Ok(Some(address))
    }

    fn create(&mut self, bytes: usize) -> Result<Option<u64>, &'static str> {
        assert!(bytes > 0 && bytes.is_multiple_of(2 << 20));
        if self.held + bytes > self.capacity {
            return Ok(None);
        }
        self.creates += 1;
        self.held += bytes;
        self.next_memory += 1;
        self.memory.insert(self.next_memory, bytes);
        Ok(Some(self.next_memory))
    }

    fn map(&mut self, address: u64, bytes: usize, row: &[u64]) -> (usize, Result<(), &'static str>) {
        self.accesses += 1;
        for (at, memory) in (address..).step_by(bytes).zip(row) {
            self.map_one(at, bytes, *memory);
        }
        (row.len(), Ok(()))
    }

    fn unmap(&mut self, address: u64, bytes: usize) -> Result<(), &'static str> {
        self.unmap_calls += 1;
        let end = address + bytes as u64;
        let mut next = address;
        while next < end {
            self.unmaps += 1;
            next += self.mapped.remove(&next).expect("a mapping").0 as u64;
        }
        assert_eq!(next, end, "half a mapping");
        Ok(())
    }

    fn release(&mut self, memory: u64, bytes: usize) -> Result<(), &'static str> {
        assert_eq!(self.memory.remove(&memory), Some(bytes));
        assert!(self.mapped.values().all(|(_, mapped)| *mapped != memory));
        self.held -= bytes;
        Ok(())
    }

    fn point(&mut self, _heap: u32) -> Result<Option<u64>, &'static str> {
        self.marks += 1;
        Ok(Some(self.now + self.lag))
    }

    fn is_done(&mut self, point: &u64) -> Result<bool, &'static str> {
        Ok(*point <= self.now)
    }

    fn wait(&mut self, _waiter: u32, _of: u32, _point: &u64) -> Result<bool, &'static str> {
        self.waits += 1;
        Ok(true)
    }
}

/// The heaps of all streams.
pub(super) struct AllHeaps<'h, I: BlockIndex>(pub(super) &'h mut BTreeMap<u32, StreamHeap>, pub(super) &'h I);

impl<'h, I: BlockIndex> Heaps for AllHeaps<'h, I> {
    type Index = &'h I;

    fn others(&self, but: u32) -> Vec<u32> {
        self.0.keys().copied().filter(|number| *number != but).collect()
    }

    fn with<R>(&mut self, heap: u32, body: impl FnOnce(&mut StreamHeap) -> R) -> Option<R> {
        self.0.get_mut(&heap).map(body)
    }

    fn index(&self, _heap: u32) -> &'h I {
        self.1
    }
}

impl<I: BlockIndex> BlockIndex for &I {
    fn set_large(&self, address: u64, number: u32) -> bool {
        (*self).set_large(address, number)
    }
    fn clear_large(&self, address: u64, number: u32) {
        (*self).clear_large(address, number);
    }
    fn add_slab(&self, address: u64, tier: Tier) -> bool {
        (*self).add_slab(address, tier)
    }
    fn remove_slab(&self, address: u64) {
        (*self).remove_slab(address);
    }
    fn set_in_slab(&self, address: u64, number: u32) -> bool {
        (*self).set_in_slab(address, number)
    }
    fn clear_in_slab(&self, address: u64) {
        (*self).clear_in_slab(address);
    }
}
