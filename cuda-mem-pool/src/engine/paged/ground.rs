//! The physical memory that there is, and where it is mapped.

use std::collections::BTreeMap;

use crate::engine::slab::{NONE, Slab};

use super::maps::Maps;
use super::sizes::GRANULE;

/// Handles of physical memory and their mappings.
///
/// A handle may be mapped at several addresses. Each of its bytes is offered to the heap at one of them, or in use at one; a
/// mapping that offers nothing is *stale*: it stays until its addresses are needed, or comes to use again when the handle is
/// wanted there.
#[derive(Debug)]
pub(super) struct Ground {
    chunks: Slab<Chunk>,
    maps: Maps<Map>,
    /// Ranges of addresses that were reserved, by their beginning.
    ranges: BTreeMap<u64, u64>,
    /// Those for handles that are given, which no window is looked for in.
    given: Vec<(u64, u64)>,
    bytes: usize,
    most_maps: usize,
    /// How many handles there ever were, and how often anything behind an address has changed.
    made: u64,
    changes: u64,
}

/// One handle of physical memory.
#[derive(Debug)]
pub(super) struct Chunk {
    /// No other handle ever has it.
    pub(super) id: u64,
    pub(super) memory: u64,
    pub(super) bytes: usize,
    /// Whose blocks it has.
    pub(super) heap: u32,
    /// Where it is mapped.
    pub(super) maps: Vec<u64>,
    /// Where it was mapped, or brought to use again, last.
    pub(super) home: u64,
    /// Where it belongs, and is again once nothing is in it: its first place in the line or among what was given, where its neighbours are
    /// as they were ([`Ground::is_row`]). 0 if it has none.
    pub(super) place: u64,
    /// Its number as a leaf of its heap's nest, or [`NONE`]. A leaf is in use, or free, at all of its mappings that are not stale.
    pub(super) leaf: u32,
    /// While there are any it stays where it is.
    pub(super) pins: u32,
    /// The number of the last change behind its addresses, of all that were ever made.
    pub(super) generation: u64,
}

/// A handle at an address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Map {
    pub(super) chunk: u32,
    /// In granules, since there are many of these: of the handle, and the first and the end of what is offered, or in use, here.
    granules: u32,
    from: u32,
    to: u32,
    /// The heap that used it here last, and its count when it did.
    pub(super) heap: u32,
    /// Whether the handle belongs here: told here too, since its own record is far away.
    is_place: bool,
    pub(super) left_at: u64,
}

/// No handle has as many as that: [`Policy::largest`](super::policy::Policy::largest).
fn granules(bytes: usize) -> u32 {
    u32::try_from(bytes / GRANULE).unwrap_or(u32::MAX)
}

impl Map {
    /// The bytes of the handle.
    pub(super) const fn bytes(&self) -> usize {
        self.granules as usize * GRANULE
    }

    /// The first byte that is offered, or in use, here.
    pub(super) const fn from(&self) -> usize {
        self.from as usize * GRANULE
    }

    /// The end of those bytes.
    pub(super) const fn to(&self) -> usize {
        self.to as usize * GRANULE
    }

    pub(super) const fn is_whole(&self) -> bool {
        self.to - self.from == self.granules
    }

    pub(super) const fn is_place(&self) -> bool {
        self.is_place
    }

    pub(super) const fn is_stale(&self) -> bool {
        self.from == self.to
    }

    /// Offers all of the handle.
    pub(super) const fn settle(&mut self, heap: u32) {
        (self.from, self.to, self.heap) = (0, self.granules, heap);
    }

    /// Offers nothing from this byte on, which a heap has left at this count.
    pub(super) fn leave_from(&mut self, byte: usize, heap: u32, left_at: u64) {
        (self.to, self.heap, self.left_at) = (granules(byte), heap, left_at);
    }

    /// Offers nothing any more.
    pub(super) const fn leave(&mut self, heap: u32, left_at: u64) {
        (self.from, self.to, self.heap, self.left_at) = (0, 0, heap, left_at);
    }
}

impl Ground {
    pub(super) const fn new() -> Self {
        Self {
            chunks: Slab::new(),
            maps: Maps::new(),
            ranges: BTreeMap::new(),
            given: Vec::new(),
            bytes: 0,
            most_maps: 0,
            made: 0,
            changes: 0,
        }
    }

    /// The physical memory in all handles.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// One more than the highest number that a handle has.
    pub(super) fn numbers(&self) -> usize {
        self.chunks.numbers()
    }

    pub(super) fn mappings(&self) -> usize {
        self.maps.len()
    }

    pub(super) const fn most_mappings(&self) -> usize {
        self.most_maps
    }

    pub(super) fn add_range(&mut self, address: u64, bytes: u64) {
        self.ranges.insert(address, address.saturating_add(bytes));
    }

    /// Beginning and end of the reserved ranges, in order.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ranges.iter().map(|(from, to)| (*from, *to))
    }

    /// Adds addresses beside the line, for handles that are given one behind the other.
    pub(super) fn add_given(&mut self, from: u64, to: u64) {
        self.given.push((from, to));
    }

    /// Addresses of so many bytes that were added so and at which nothing is mapped any more.
    pub(super) fn empty_given(&self, bytes: u64) -> Option<(u64, u64)> {
        let is_empty = |&(from, to): &(u64, u64)| self.touching(from, to).next().is_none();
        self.given.iter().copied().filter(|(from, to)| to - from >= bytes).find(is_empty)
    }

    /// Whether handles lie one behind the other around an address: in the line, or where they were given.
    pub(super) fn is_row(&self, address: u64) -> bool {
        let in_line = self.ranges.range(..=address).next_back().is_some_and(|(_, end)| address < *end);
        in_line || self.given.iter().any(|(from, to)| (*from..*to).contains(&address))
    }

    /// Enters a new handle; None if there are no more numbers.
    pub(super) fn add(&mut self, memory: u64, bytes: usize, heap: u32) -> Option<u32> {
        self.made += 1;
        let id = self.made;
        let chunk = Chunk {
            id,
            memory,
            bytes,
            heap,
            maps: Vec::new(),
            home: 0,
            place: 0,
            leaf: NONE,
            pins: 0,
            generation: 0,
        };
        let number = self.chunks.insert(chunk).ok()?;
        self.bytes = self.bytes.saturating_add(bytes);
        Some(number)
    }

    /// Gives a handle the number of a change that is newer than all others.
    pub(super) fn renew(&mut self, number: u32) {
        self.changes += 1;
        if let Some(chunk) = self.chunks.get_mut(number) {
            chunk.generation = self.changes;
        }
    }

    /// Takes a handle out that is nowhere mapped.
    pub(super) fn remove(&mut self, number: u32) -> Option<Chunk> {
        let chunk = self.chunks.remove(number)?;
        self.bytes = self.bytes.saturating_sub(chunk.bytes);
        Some(chunk)
    }

    pub(super) fn chunk(&self, number: u32) -> Option<&Chunk> {
        self.chunks.get(number)
    }

    pub(super) fn chunk_mut(&mut self, number: u32) -> Option<&mut Chunk> {
        self.chunks.get_mut(number)
    }

    pub(super) fn chunks(&self) -> impl Iterator<Item = (u32, &Chunk)> {
        self.chunks.iter()
    }

    /// Enters a mapping of a handle that offers its bytes `from..to`.
    pub(super) fn map(&mut self, address: u64, chunk: u32, from: usize, to: usize) {
        let Some(record) = self.chunks.get_mut(chunk) else { return };
        let (granules, from, to) = (granules(record.bytes), granules(from), granules(to));
        let map = Map { chunk, granules, from, to, heap: record.heap, is_place: false, left_at: 0 };
        if self.maps.insert(address, record.bytes, map) {
            record.maps.push(address);
            record.home = address;
        }
        self.most_maps = self.most_maps.max(self.maps.len());
    }

    pub(super) fn unmap(&mut self, address: u64) {
        let Some(map) = self.maps.remove(address) else { return };
        if let Some(chunk) = self.chunks.get_mut(map.chunk) {
            chunk.maps.retain(|other| *other != address);
            if chunk.place == address {
                chunk.place = 0;
            }
        }
    }

    pub(super) fn at(&self, address: u64) -> Option<&Map> {
        self.maps.get(address)
    }

    pub(super) fn at_mut(&mut self, address: u64) -> Option<&mut Map> {
        self.maps.get_mut(address)
    }

    /// The mappings at which a handle, or a part of it, is offered or in use.
    pub(super) fn offered(&self, chunk: u32) -> impl Iterator<Item = (u64, Map)> {
        let record = self.chunks.get(chunk);
        let home = record.and_then(|chunk| Some((chunk.home, *self.maps.get(chunk.home)?)));
        // If it is so as a whole at one, it is at no other, but for leaves.
        let is_leaf = record.is_some_and(|chunk| chunk.leaf != NONE);
        let home = home.filter(|(_, map)| !is_leaf && map.chunk == chunk && map.is_whole());
        let others = record.filter(|_| home.is_none()).map(|chunk| chunk.maps.as_slice()).unwrap_or_default();
        let others = others.iter().filter_map(|at| Some((*at, *self.maps.get(*at)?)));
        home.into_iter().chain(others.filter(|(_, map)| !map.is_stale()))
    }

    /// Offers all of a handle at a mapping of it.
    pub(super) fn settle(&mut self, address: u64, heap: u32) {
        let Some(map) = self.maps.get_mut(address) else { return };
        map.settle(heap);
        if let Some(chunk) = self.chunks.get_mut(map.chunk) {
            chunk.home = address;
        }
    }

    /// Has a handle belong at an address at which it is mapped, or nowhere.
    pub(super) fn set_place(&mut self, chunk: u32, address: Option<u64>) {
        let Some(record) = self.chunks.get_mut(chunk) else { return };
        let known = std::mem::replace(&mut record.place, address.unwrap_or(0));
        if let Some(map) = self.maps.get_mut(known) {
            map.is_place = false;
        }
        if let Some(map) = address.and_then(|address| self.maps.get_mut(address)) {
            map.is_place = true;
        }
    }

    /// The mappings in the order of their addresses.
    pub(super) fn maps(&self) -> impl Iterator<Item = (u64, &Map)> {
        self.maps.touching(0, u64::MAX)
    }

    /// The mapping that has this address, and where it begins.
    pub(super) fn covering(&self, address: u64) -> Option<(u64, &Map)> {
        self.maps.covering(address)
    }

    /// The mappings that touch a range, in order.
    pub(super) fn touching(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, &Map)> {
        self.maps.touching(from, to)
    }

    /// Host memory that the books take.
    pub(super) fn metadata_bytes(&self) -> usize {
        // Handles name their mappings.
        let named = self.maps.len().saturating_mul(size_of::<u64>());
        self.chunks.bytes().saturating_add(self.maps.bytes()).saturating_add(named)
    }
}
