//! The physical and the mapped memory of the model.

use std::collections::{BTreeMap, HashMap};

use super::Refusal;

/// Where the first address range lies.
const FIRST_ADDRESS: u64 = 1 << 40;
/// Between two ranges, so that neither runs into the other unseen.
const GAP: u64 = 1 << 30;

/// What is created, mapped and allocated.
#[derive(Debug)]
pub(super) struct Memory {
    next_address: u64,
    next_handle: u64,
    /// Bytes by handle, with the number of its mappings.
    handles: HashMap<u64, (u64, u64)>,
    /// Bytes and handle by address.
    mappings: BTreeMap<u64, (u64, u64)>,
    /// Bytes of what `cuMemAlloc` gave, by address.
    blocks: HashMap<u64, u64>,
    /// The most bytes there may be.
    capacity: u64,
    reserved: u64,
    pub(super) peak_reserved: u64,
    pub(super) peak_mappings: u64,
}

impl Memory {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            next_address: FIRST_ADDRESS,
            next_handle: 0,
            handles: HashMap::new(),
            mappings: BTreeMap::new(),
            blocks: HashMap::new(),
            capacity,
            reserved: 0,
            peak_reserved: 0,
            peak_mappings: 0,
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn reserve(&mut self, bytes: u64) -> Result<u64, Refusal> {
        let address = self.next_address;
        let end = address.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(GAP));
        let next = end.and_then(|end| end.checked_add(GAP));
        self.next_address = next.ok_or(Refusal::Invalid("the address space is full"))?;
        Ok(address)
    }

    fn take(&mut self, bytes: u64) -> Result<(), Refusal> {
        let after = self.reserved.checked_add(bytes).filter(|after| *after <= self.capacity);
        self.reserved = after.ok_or(Refusal::OutOfMemory)?;
        self.peak_reserved = self.peak_reserved.max(self.reserved);
        Ok(())
    }

    pub(super) fn create(&mut self, bytes: u64) -> Result<u64, Refusal> {
        self.take(bytes)?;
        let handle = self.next_handle;
        self.next_handle += 1;
        self.handles.insert(handle, (bytes, 0));
        Ok(handle)
    }

    /// Returns the bytes that were mapped: all of the handle.
    pub(super) fn map(&mut self, address: u64, handle: u64) -> Result<u64, Refusal> {
        let known = self.handles.get_mut(&handle);
        let (bytes, count) = known.ok_or(Refusal::Invalid("a handle is mapped that is not there"))?;
        let end =
            address.checked_add(*bytes).ok_or(Refusal::Invalid("a mapping leaves the address space"))?;
        let before = self.mappings.range(..end).next_back();
        if before.is_some_and(|(other, (length, _))| other + length > address) {
            return Err(Refusal::Invalid("an address is mapped twice"));
        }
        *count += 1;
        self.mappings.insert(address, (*bytes, handle));
        self.peak_mappings = self.peak_mappings.max(self.mappings.len() as u64);
        Ok(*bytes)
    }

    /// How many handles a range is made of, whole ones.
    pub(super) fn handles_in(&self, address: u64, bytes: u64) -> Result<u64, Refusal> {
        let end = address.checked_add(bytes).ok_or(Refusal::Invalid("a range leaves the address space"))?;
        let (mut next, mut count) = (address, 0);
        for (start, (length, _)) in self.mappings.range(address..end) {
            if *start != next {
                break;
            }
            next = start + length;
            count += 1;
        }
        if next == end { Ok(count) } else { Err(Refusal::Invalid("a range is no row of mappings")) }
    }

    /// Returns how many handles were unmapped.
    pub(super) fn unmap(&mut self, address: u64, bytes: u64) -> Result<u64, Refusal> {
        let count = self.handles_in(address, bytes)?;
        let starts =
            self.mappings.range(address..address + bytes).map(|(start, _)| *start).collect::<Vec<_>>();
        for start in starts {
            if let Some((_, handle)) = self.mappings.remove(&start)
                && let Some((_, mappings)) = self.handles.get_mut(&handle)
            {
                *mappings -= 1;
            }
        }
        Ok(count)
    }

    pub(super) fn release(&mut self, handle: u64) -> Result<(), Refusal> {
        match self.handles.get(&handle) {
            None => Err(Refusal::Invalid("a handle is released that is not there")),
            Some((_, 1..)) => Err(Refusal::Invalid("a handle is released that is still mapped")),
            Some((bytes, 0)) => {
                self.reserved -= bytes;
                self.handles.remove(&handle);
                Ok(())
            }
        }
    }

    pub(super) fn malloc(&mut self, bytes: u64) -> Result<u64, Refusal> {
        self.take(bytes)?;
        let address = self.reserve(bytes)?;
        self.blocks.insert(address, bytes);
        Ok(address)
    }

    /// Returns the bytes that were freed.
    pub(super) fn malloc_free(&mut self, address: u64) -> Result<u64, Refusal> {
        let bytes =
            self.blocks.remove(&address).ok_or(Refusal::Invalid("an address is freed that is not there"))?;
        self.reserved -= bytes;
        Ok(bytes)
    }
}
