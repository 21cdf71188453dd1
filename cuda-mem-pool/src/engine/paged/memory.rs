//! The physical memory that there is, and where it is mapped.
//!
//! Each heap has ranges of addresses, cut into *slots* of the size of a handle. A handle is *active* in one slot: its bytes are in blocks
//! there, or free. It may be mapped in others too, where it was active before: such a mapping is *stale*. It serves nobody and stays until
//! its slot is needed, or until the handle is active there again.

use std::collections::BTreeMap;

use super::backend::Backend;
use super::growth::PageSource;
use crate::engine::slab::Slab;

#[derive(Debug, Default)]
pub(super) struct Memory {
    handles: Slab<Handle>,
    ranges: BTreeMap<u64, Range>,
    bytes: usize,
    /// How many handles there ever were, and how often anything behind an address has changed, together.
    changes: u64,
}

#[derive(Debug)]
pub(super) struct Handle {
    /// No other handle ever has it.
    pub(super) id: u64,
    pub(super) memory: u64,
    pub(super) bytes: usize,
    pub(super) active: Option<u64>,
    /// Where else it is mapped.
    pub(super) stale: Vec<u64>,
    /// While there are any it stays where it is.
    pub(super) pins: u32,
    /// The number of the last change behind its addresses, of all that were ever made.
    pub(super) generation: u64,
}

#[derive(Debug)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) heap: u32,
    /// The bytes of each slot, and of the handles in them.
    pub(super) unit: usize,
    /// Those that have a mapping, by their first addresses.
    slots: BTreeMap<u64, Content>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Empty,
    Active(u32),
    /// A handle that was active here, and the count of the range's heap at which it was left.
    Stale {
        handle: u32,
        left_at: u64,
    },
}

impl Range {
    /// What the slot has that begins at an address.
    pub(super) fn content(&self, slot: u64) -> Content {
        self.slots.get(&slot).copied().unwrap_or(Content::Empty)
    }

    /// The first address of the slot that has this one.
    pub(super) const fn slot_of(&self, address: u64) -> u64 {
        address - (address - self.start) % self.unit as u64
    }

    /// The slots from an address on and before another that have a mapping, by their first addresses.
    pub(super) fn mapped(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, Content)> {
        // The last run may reach into a range that lies behind this one.
        self.slots.range(from..to.max(from)).map(|(slot, content)| (*slot, *content))
    }
}

impl Memory {
    pub(super) fn add_range(&mut self, heap: u32, start: u64, end: u64, unit: usize) {
        self.ranges.insert(start, Range { start, end, heap, unit, slots: BTreeMap::new() });
    }

    /// The ranges of a heap, in the order of their addresses.
    pub(super) fn ranges_of(&self, heap: u32) -> impl Iterator<Item = &Range> {
        self.ranges.values().filter(move |range| range.heap == heap)
    }

    pub(super) fn range_at(&self, address: u64) -> Option<&Range> {
        let (_, range) = self.ranges.range(..=address).next_back()?;
        (address < range.end).then_some(range)
    }

    /// Sets the content of the slot that begins at an address; what it was.
    fn replace(&mut self, slot: u64, content: Content) -> Option<Content> {
        let (_, Range { slots, .. }) = self.ranges.range_mut(..=slot).next_back()?;
        if content == Content::Empty { slots.remove(&slot) } else { slots.insert(slot, content) }
    }

    /// The handle that is active at an address, with its number and its first address.
    pub(super) fn active_at(&self, address: u64) -> Option<(u64, u32, &Handle)> {
        let range = self.range_at(address)?;
        let slot = range.slot_of(address);
        let Content::Active(number) = range.content(slot) else { return None };
        Some((slot, number, self.handles.get(number)?))
    }

    /// Enters a new handle. None if there are no more numbers.
    pub(super) fn add(&mut self, memory: u64, bytes: usize) -> Option<u32> {
        self.changes += 1;
        let (id, stale) = (self.changes, Vec::new());
        let handle = Handle { id, memory, bytes, active: None, stale, pins: 0, generation: 0 };
        let number = self.handles.insert(handle)?;
        self.bytes = self.bytes.saturating_add(bytes);
        Some(number)
    }

    /// Takes a handle out that is nowhere mapped.
    pub(super) fn remove(&mut self, number: u32) {
        if let Some(handle) = self.handles.remove(number) {
            self.bytes = self.bytes.saturating_sub(handle.bytes);
        }
    }

    pub(super) fn handle(&self, number: u32) -> Option<&Handle> {
        self.handles.get(number)
    }

    pub(super) fn handle_mut(&mut self, number: u32) -> Option<&mut Handle> {
        self.handles.get_mut(number)
    }

    pub(super) fn handles(&self) -> impl Iterator<Item = (u32, &Handle)> {
        self.handles.iter()
    }

    /// Gives a handle the number of a change that is newer than all others.
    pub(super) fn renew(&mut self, number: u32) {
        self.changes += 1;
        if let Some(handle) = self.handles.get_mut(number) {
            handle.generation = self.changes;
        }
    }

    /// Makes a handle, which was just mapped at an address or is stale there, active there. It is active nowhere else.
    pub(super) fn activate(&mut self, number: u32, address: u64) {
        let Some(handle) = self.handles.get_mut(number) else { return };
        handle.active = Some(address);
        handle.stale.retain(|other| *other != address);
        self.replace(address, Content::Active(number));
    }

    /// Makes the mapping where a handle is active stale, which its heap has used up to a count.
    pub(super) fn leave(&mut self, number: u32, left_at: u64) {
        let Some(handle) = self.handles.get_mut(number) else { return };
        let Some(address) = handle.active.take() else { return };
        handle.stale.push(address);
        self.replace(address, Content::Stale { handle: number, left_at });
    }

    pub(super) fn unmap(&mut self, address: u64) {
        let was = self.replace(address, Content::Empty);
        let Some(Content::Active(number) | Content::Stale { handle: number, .. }) = was else { return };
        let Some(handle) = self.handles.get_mut(number) else { return };
        if handle.active == Some(address) {
            handle.active = None;
        } else {
            handle.stale.retain(|other| *other != address);
        }
    }

    /// The handles that are mapped nowhere, because a call failed: the next block that needs memory gets them.
    pub(super) fn unmapped(&self) -> impl Iterator<Item = (u32, usize)> {
        let unmapped = self.handles.iter().filter(|(_, handle)| handle.active.is_none());
        unmapped.map(|(number, handle)| (number, handle.bytes))
    }
}

/// One handle of physical memory, where it is mapped. Blocks lie in segments without regard to their ends: a block may have
/// parts of several, and a segment parts of several blocks. [`Pinned`](crate::caching::Pinned) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Segment {
    /// Its name in its allocator, which no other segment ever has.
    pub id: u64,
    /// The number of the last change behind its addresses, higher than those of all changes before, whichever segment they were of; see
    /// [`CachingAllocator::generation`](crate::caching::CachingAllocator::generation).
    pub generation: u64,
    /// Its first address.
    pub address: u64,
    /// Its size.
    pub bytes: usize,
    /// How often it is pinned.
    pub pins: u32,
    pub(crate) memory: u64,
}

/// What is behind addresses, and what has to stay there.
impl<B: Backend> PageSource<B> {
    pub(crate) fn reserved(&self) -> usize {
        self.memory.bytes
    }

    /// All mappings, by their addresses, with their bytes.
    pub(crate) fn mapped(&self) -> Vec<(u64, usize)> {
        let ranges = self.memory.ranges.values();
        ranges.flat_map(|range| range.slots.keys().map(|slot| (*slot, range.unit))).collect()
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        let Memory { handles, ranges, .. } = &self.memory;
        let slots: usize = ranges.values().map(|range| range.slots.len() * size_of::<(u64, Content)>()).sum();
        let stale: usize = handles.iter().map(|(_, handle)| size_of_val(&*handle.stale)).sum();
        size_of::<Self>().saturating_add(handles.bytes()).saturating_add(slots).saturating_add(stale)
    }

    /// The handle that blocks at this address are in. None if there is no memory, or memory that has left.
    pub(crate) fn segment(&self, address: u64) -> Option<Segment> {
        let (address, _, handle) = self.memory.active_at(address)?;
        let &Handle { id, memory, bytes, generation, pins, .. } = handle;
        Some(Segment { id, generation, address, bytes, pins, memory })
    }

    /// Has the handles behind a range stay where they are, until they are unpinned as often. None, and none is pinned, if some
    /// of the range has no memory. Their numbers, which stay theirs meanwhile.
    pub(crate) fn pin(&mut self, from: u64, to: u64) -> Option<Vec<u32>> {
        let mut handles = Vec::new();
        let mut at = from;
        while at < to {
            let (start, number, handle) = self.memory.active_at(at)?;
            handles.push(number);
            at = start + handle.bytes as u64;
        }
        self.change_pins(&handles, |pins| pins.saturating_add(1));
        Some(handles)
    }

    pub(crate) fn unpin(&mut self, handles: &[u32]) {
        self.change_pins(handles, |pins| pins.saturating_sub(1));
    }

    fn change_pins(&mut self, handles: &[u32], change: impl Fn(u32) -> u32) {
        for number in handles {
            if let Some(handle) = self.memory.handle_mut(*number) {
                handle.pins = change(handle.pins);
            }
        }
    }

    pub(crate) fn pinned(&self) -> usize {
        self.memory.handles().filter(|(_, handle)| handle.pins > 0).map(|(_, handle)| handle.bytes).sum()
    }
}
