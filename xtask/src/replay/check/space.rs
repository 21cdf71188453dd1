//! Which physical bytes lie at which addresses, and which blocks use them.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};

/// The physical memory behind a handle. What `malloc` gave is a handle too, mapped once.
#[derive(Debug)]
struct Handle {
    bytes: u64,
    mappings: u32,
    /// Blocks that are live or whose work is not done, by the bytes of the handle that they have.
    users: Vec<(u64, Range<u64>)>,
}

/// A handle at an address.
#[derive(Debug)]
struct Mapping {
    handle: Name,
    bytes: u64,
    is_accessible: bool,
    /// Blocks that were given this address and are live or not done.
    users: Vec<u64>,
}

/// Handles have numbers; memory without one goes by its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Name {
    Handle(u64),
    Malloc(u64),
}

/// A part of a block: bytes of a handle, through the mapping at an address.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    mapping: u64,
    handle: Name,
    bytes: Range<u64>,
}

/// All memory.
#[derive(Debug, Default)]
pub(super) struct Space {
    handles: HashMap<Name, Handle>,
    mappings: BTreeMap<u64, Mapping>,
    pub(super) reserved: u64,
    pub(super) peak_reserved: u64,
    pub(super) peak_mappings: usize,
    /// How many of the mappings are what `malloc` gave.
    mallocs: usize,
}

impl Space {
    pub(super) fn create(&mut self, name: Name, bytes: u64) -> Result<()> {
        ensure!(bytes > 0, "physical memory of no bytes");
        let handle = Handle { bytes, mappings: 0, users: Vec::new() };
        ensure!(self.handles.insert(name, handle).is_none(), "{name:?} is there already");
        self.reserved = self.reserved.checked_add(bytes).context("more bytes than 64 bits count")?;
        self.peak_reserved = self.peak_reserved.max(self.reserved);
        Ok(())
    }

    pub(super) fn map(&mut self, address: u64, name: Name, bytes: u64, is_accessible: bool) -> Result<()> {
        let end = address.checked_add(bytes).context("a mapping beyond the address space")?;
        let before = self.mappings.range(..end).next_back();
        if let Some((other, mapping)) = before
            && other + mapping.bytes > address
        {
            bail!("{address} is mapped already, by {:?} at {other}", mapping.handle);
        }
        let handle = self.handles.get_mut(&name).with_context(|| format!("there is no {name:?}"))?;
        ensure!(bytes > 0 && bytes <= handle.bytes, "{name:?} has {} bytes, not {bytes}", handle.bytes);
        handle.mappings += 1;
        self.mallocs += usize::from(matches!(name, Name::Malloc(_)));
        self.mappings.insert(address, Mapping { handle: name, bytes, is_accessible, users: Vec::new() });
        // What was allocated without a mapping of its own does not count as one.
        let mapped = self.mappings.len() - self.mallocs;
        self.peak_mappings = self.peak_mappings.max(mapped);
        Ok(())
    }

    /// The mappings that a range is made of, wholly.
    fn row(&self, address: u64, bytes: u64) -> Result<Vec<u64>> {
        let end = address.checked_add(bytes).context("a range beyond the address space")?;
        let (mut next, mut row) = (address, Vec::new());
        for (start, mapping) in self.mappings.range(address..end) {
            ensure!(*start == next, "{next} is not mapped");
            next = start + mapping.bytes;
            row.push(*start);
        }
        ensure!(next == end && bytes > 0, "the range from {address} to {end} is not whole mappings");
        Ok(row)
    }

    /// Returns how many mappings the range has.
    pub(super) fn access(&mut self, address: u64, bytes: u64) -> Result<u64> {
        let row = self.row(address, bytes)?;
        for start in &row {
            if let Some(mapping) = self.mappings.get_mut(start) {
                mapping.is_accessible = true;
            }
        }
        Ok(row.len() as u64)
    }

    /// Returns how many mappings the range had; `is_live` tells of a block what it is.
    pub(super) fn unmap(&mut self, address: u64, bytes: u64, is_live: impl Fn(u64) -> bool) -> Result<u64> {
        let row = self.row(address, bytes)?;
        for start in &row {
            let Some(mapping) = self.mappings.remove(start) else { continue };
            self.mallocs -= usize::from(matches!(mapping.handle, Name::Malloc(_)));
            if let Some(user) = mapping.users.iter().find(|user| is_live(**user)) {
                bail!("{start} is unmapped under the live block {user}");
            }
            if let Some(user) = mapping.users.first() {
                bail!("{start} is unmapped before the work of the freed block {user} is done");
            }
            if let Some(handle) = self.handles.get_mut(&mapping.handle) {
                handle.mappings -= 1;
            }
        }
        Ok(row.len() as u64)
    }

    pub(super) fn bytes_of(&self, name: Name) -> Result<u64> {
        Ok(self.handles.get(&name).with_context(|| format!("there is no {name:?}"))?.bytes)
    }

    pub(super) fn release(&mut self, name: Name) -> Result<()> {
        let handle = self.handles.get(&name).with_context(|| format!("there is no {name:?}"))?;
        ensure!(handle.mappings == 0, "{name:?} is released and still mapped {} times", handle.mappings);
        let bytes = handle.bytes;
        self.handles.remove(&name);
        self.reserved -= bytes;
        Ok(())
    }

    /// The physical bytes at a range of addresses.
    pub(super) fn translate(&self, address: u64, bytes: u64) -> Result<Vec<Piece>> {
        let end = address.checked_add(bytes).context("a block beyond the address space")?;
        let first = self.mappings.range(..=address).next_back().map_or(address, |(start, _)| *start);
        let (mut next, mut pieces) = (address, Vec::new());
        for (start, mapping) in self.mappings.range(first..end) {
            let stop = start + mapping.bytes;
            if stop <= next {
                continue;
            }
            ensure!(*start <= next, "{next} is not mapped");
            ensure!(mapping.is_accessible, "{start} is mapped, and the device was not let in");
            let part = next - start..end.min(stop) - start;
            next = start + part.end;
            pieces.push(Piece { mapping: *start, handle: mapping.handle, bytes: part });
        }
        ensure!(next == end, "{next} is not mapped");
        Ok(pieces)
    }

    /// Blocks that are live or not done and have some of these bytes.
    pub(super) fn users<'a>(&'a self, pieces: &'a [Piece]) -> impl Iterator<Item = u64> + 'a {
        pieces.iter().flat_map(|piece| {
            let users = self.handles.get(&piece.handle).map_or(&[][..], |handle| &handle.users);
            let meets = |bytes: &Range<u64>| bytes.start < piece.bytes.end && piece.bytes.start < bytes.end;
            users.iter().filter(move |(_, bytes)| meets(bytes)).map(|(user, _)| *user)
        })
    }

    pub(super) fn add_user(&mut self, block: u64, pieces: &[Piece]) {
        for piece in pieces {
            if let Some(handle) = self.handles.get_mut(&piece.handle) {
                handle.users.push((block, piece.bytes.clone()));
            }
            if let Some(mapping) = self.mappings.get_mut(&piece.mapping) {
                mapping.users.push(block);
            }
        }
    }

    pub(super) fn remove_user(&mut self, block: u64, pieces: &[Piece]) {
        for piece in pieces {
            if let Some(handle) = self.handles.get_mut(&piece.handle) {
                handle.users.retain(|(user, _)| *user != block);
            }
            if let Some(mapping) = self.mappings.get_mut(&piece.mapping) {
                mapping.users.retain(|user| *user != block);
            }
        }
    }
}
