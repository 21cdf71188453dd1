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
    /// Handles that are mapped nowhere, because a call failed: the next block that needs memory gets them.
    unmapped: Vec<u32>,
    bytes: usize,
    stale_mappings: usize,
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
    /// Up to the last one that ever had a handle.
    slots: Vec<Content>,
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
    pub(super) fn content(&self, address: u64) -> Content {
        let at = address.checked_sub(self.start).map(|offset| offset / self.unit as u64);
        at.and_then(|at| self.slots.get(usize::try_from(at).ok()?)).copied().unwrap_or(Content::Empty)
    }

    /// The first address of the slot that has this one.
    pub(super) const fn slot_of(&self, address: u64) -> u64 {
        address - (address - self.start) % self.unit as u64
    }

    /// Whether nothing was ever mapped from an address on.
    pub(super) const fn is_behind_all(&self, address: u64) -> bool {
        address >= self.start + self.slots.len() as u64 * self.unit as u64
    }

    /// The slots that have a mapping, with their first addresses.
    fn mapped(&self) -> impl Iterator<Item = (u64, Content)> {
        let slots = (self.start..).step_by(self.unit).zip(self.slots.iter().copied());
        slots.filter(|(_, content)| *content != Content::Empty)
    }
}

impl Memory {
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many mappings there are of handles where they are not active.
    pub(super) const fn stale_mappings(&self) -> usize {
        self.stale_mappings
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        let slots: usize =
            self.ranges.values().map(|range| range.slots.capacity() * size_of::<Content>()).sum();
        let stale = self.stale_mappings.saturating_mul(size_of::<u64>());
        self.handles.bytes().saturating_add(slots).saturating_add(stale)
    }

    pub(super) fn add_range(&mut self, heap: u32, start: u64, end: u64, unit: usize) {
        self.ranges.insert(start, Range { start, end, heap, unit, slots: Vec::new() });
    }

    /// The ranges of a heap, in the order of their addresses.
    pub(super) fn ranges_of(&self, heap: u32) -> impl Iterator<Item = &Range> {
        self.ranges.values().filter(move |range| range.heap == heap)
    }

    pub(super) fn range_at(&self, address: u64) -> Option<&Range> {
        let (_, range) = self.ranges.range(..=address).next_back()?;
        (address < range.end).then_some(range)
    }

    /// Sets the content of the slot at an address; what it was.
    fn replace(&mut self, address: u64, content: Content) -> Content {
        let Some((_, range)) = self.ranges.range_mut(..=address).next_back() else { return Content::Empty };
        let at = usize::try_from((address - range.start) / range.unit as u64).unwrap_or(usize::MAX);
        if address >= range.end {
            return Content::Empty;
        }
        if at >= range.slots.len() {
            range.slots.resize(at + 1, Content::Empty);
        }
        std::mem::replace(&mut range.slots[at], content)
    }

    /// The handle that is active at an address, with its number and its first address.
    pub(super) fn active_at(&self, address: u64) -> Option<(u64, u32, &Handle)> {
        let range = self.range_at(address)?;
        let Content::Active(number) = range.content(address) else { return None };
        Some((range.slot_of(address), number, self.handles.get(number)?))
    }

    pub(super) fn mapped(&self) -> Vec<(u64, usize)> {
        let ranges = self.ranges.values();
        ranges.flat_map(|range| range.mapped().map(|(address, _)| (address, range.unit))).collect()
    }

    /// The stale mappings: address, bytes, the heap that used them, and its count when they were left.
    pub(super) fn stale(&self) -> impl Iterator<Item = (u64, usize, u32, u64)> {
        self.ranges.values().flat_map(|range| {
            range.mapped().filter_map(|(address, content)| match content {
                Content::Stale { left_at, .. } => Some((address, range.unit, range.heap, left_at)),
                _ => None,
            })
        })
    }

    /// Enters a new handle. None if there are no more numbers.
    pub(super) fn add(&mut self, memory: u64, bytes: usize) -> Option<u32> {
        self.changes += 1;
        let (id, stale) = (self.changes, Vec::new());
        let handle = Handle { id, memory, bytes, active: None, stale, pins: 0, generation: 0 };
        let number = self.handles.insert(handle).ok()?;
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
        if let Some(at) = handle.stale.iter().position(|other| *other == address) {
            handle.stale.remove(at);
            self.stale_mappings -= 1;
        }
        self.replace(address, Content::Active(number));
    }

    /// Makes the mapping where a handle is active stale, which its heap has used up to a count.
    pub(super) fn leave(&mut self, number: u32, left_at: u64) {
        let Some(handle) = self.handles.get_mut(number) else { return };
        let Some(address) = handle.active.take() else { return };
        handle.stale.push(address);
        self.stale_mappings += 1;
        self.replace(address, Content::Stale { handle: number, left_at });
    }

    pub(super) fn unmap(&mut self, address: u64) {
        let (Content::Active(number) | Content::Stale { handle: number, .. }) =
            self.replace(address, Content::Empty)
        else {
            return;
        };
        let Some(handle) = self.handles.get_mut(number) else { return };
        if handle.active == Some(address) {
            handle.active = None;
        } else {
            handle.stale.retain(|other| *other != address);
            self.stale_mappings -= 1;
        }
    }

    /// Keeps a handle that is mapped nowhere for the next block.
    pub(super) fn keep_unmapped(&mut self, number: u32) {
        self.unmapped.push(number);
    }

    /// Takes a handle that is mapped nowhere: of `unit` bytes, or any.
    pub(super) fn take_unmapped(&mut self, unit: Option<usize>) -> Option<u32> {
        let fits = |number: &u32| unit.is_none_or(|unit| self.is_of(*number, unit));
        let at = self.unmapped.iter().rposition(fits)?;
        Some(self.unmapped.swap_remove(at))
    }

    /// How many handles of `unit` bytes are mapped nowhere.
    pub(super) fn unmapped(&self, unit: usize) -> usize {
        self.unmapped.iter().filter(|number| self.is_of(**number, unit)).count()
    }

    fn is_of(&self, number: u32, unit: usize) -> bool {
        self.handles.get(number).is_some_and(|handle| handle.bytes == unit)
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
