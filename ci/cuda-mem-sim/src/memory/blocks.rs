//! What the driver knows about addresses: one table of blocks that never overlap.
//!
//! A block is anything a pointer can point into: an allocation, a block of a pool, a mapping, a range of registered host
//! memory. Host and device addresses never collide, so one table serves both.

use std::collections::BTreeMap;
use std::ops::Range;

use super::misuse::{Act, History};
use super::pools::PoolId;
use super::vmm::HandleId;

/// A set of devices by ordinal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Devices(u64);

impl Devices {
    pub(crate) const ALL: Self = Self(u64::MAX);
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn one(device: usize) -> Self {
        Self(1 << (device % 64))
    }

    pub(crate) fn contains(self, device: usize) -> bool {
        self.0 & Self::one(device).0 != 0
    }

    pub(crate) fn set(&mut self, device: usize, member: bool) {
        if member { self.0 |= Self::one(device).0 } else { self.0 &= !Self::one(device).0 }
    }
}

/// Who may reach a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) read: Devices,
    pub(crate) write: Devices,
    /// Whether the host can follow a pointer into it.
    pub(crate) host: bool,
}

impl Access {
    /// The host and every device, as host memory has it.
    pub(crate) const EVERYBODY: Self = Self { read: Devices::ALL, write: Devices::ALL, host: true };

    /// One device and nobody else.
    pub(crate) fn only(device: usize) -> Self {
        Self { read: Devices::one(device), write: Devices::one(device), host: false }
    }
}

/// What kind of memory a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc` and its kin.
    Device,
    /// `cuMemAllocAsync`: a block of a pool.
    Pooled(PoolId),
    /// `cuMemHostAlloc`, with its flags.
    Host(u32),
    /// `cuMemHostRegister`, with its flags: memory of the program.
    Registered(u32),
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuMemMap`: memory of a handle at an address the program reserved.
    Mapped(HandleId),
    /// `cuIpcOpenMemHandle`: memory of another process.
    Opened,
}

/// One block.
#[derive(Debug)]
pub(crate) struct Block {
    /// Never used twice.
    pub(crate) id: u64,
    pub(crate) start: u64,
    /// As long as was asked for.
    pub(crate) len: u64,
    /// The addresses it holds in the space of device addresses; 0 for memory of the program.
    pub(crate) room: u64,
    pub(crate) kind: Kind,
    /// The device it lies on, or the current one when it was made.
    pub(crate) device: usize,
    /// The context it was made in, 0 for none.
    pub(crate) context: usize,
    pub(crate) access: Access,
    pub(crate) sync_memops: bool,
    pub(crate) history: History,
}

impl Block {
    /// A block of no device, context or addresses of its own, and without a number until it is [added](super::State::add_block).
    pub(crate) fn new(kind: Kind, start: u64, len: u64, access: Access, born: Act) -> Self {
        let history = History::born(born);
        Self { id: 0, start, len, room: 0, kind, device: 0, context: 0, access, sync_memops: false, history }
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.start + self.len
    }

    /// Whether the memory is the program's, so that it can vanish without the driver being told.
    pub(crate) fn is_programs(&self) -> bool {
        matches!(self.kind, Kind::Registered(_))
    }

    /// Whether the memory is host memory: not on a device, whoever can reach it.
    pub(crate) fn is_host(&self) -> bool {
        matches!(self.kind, Kind::Host(_) | Kind::Registered(_))
    }
}

/// The table of blocks by start address.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    map: BTreeMap<u64, Block>,
    last_id: u64,
}

impl Blocks {
    /// A number that no block has had.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Adds a block that overlaps no other.
    pub(crate) fn insert(&mut self, block: Block) {
        debug_assert!(!self.overlaps(block.start, block.len));
        self.map.insert(block.start, block);
    }

    /// The block that an address lies in.
    pub(crate) fn at(&self, address: u64) -> Option<&Block> {
        let (_, block) = self.map.range(..=address).next_back()?;
        block.range().contains(&address).then_some(block)
    }

    pub(crate) fn at_mut(&mut self, address: u64) -> Option<&mut Block> {
        let (_, block) = self.map.range_mut(..=address).next_back()?;
        block.range().contains(&address).then_some(block)
    }

    /// The block that starts at an address.
    pub(crate) fn starting_at(&self, address: u64) -> Option<&Block> {
        self.map.get(&address)
    }

    pub(crate) fn remove(&mut self, start: u64) -> Option<Block> {
        self.map.remove(&start)
    }

    /// Whether any block has a byte in `start .. start + len`.
    pub(crate) fn overlaps(&self, start: u64, len: u64) -> bool {
        let end = start.saturating_add(len);
        self.map.range(..end).next_back().is_some_and(|(_, block)| block.start + block.len > start)
    }

    /// The blocks that together hold every byte of `start .. start + len`, in order; none if a byte is in no block.
    ///
    /// Only mappings may continue each other: an allocation ends where it ends, whatever lies behind it.
    pub(crate) fn covering(&self, start: u64, len: u64) -> Option<Vec<&Block>> {
        let end = start.checked_add(len)?;
        let first = self.at(start)?;
        if first.start + first.len >= end {
            return Some(vec![first]);
        }
        let mut found = Vec::new();
        let mut reached = first.start;
        for (&start, block) in self.map.range(first.start..end) {
            if start != reached || !matches!(block.kind, Kind::Mapped(_)) {
                return None;
            }
            reached += block.len;
            found.push(block);
        }
        (reached >= end).then_some(found)
    }

    /// The starts of the blocks that have a byte in `start .. start + len`.
    pub(crate) fn touching(&self, start: u64, len: u64) -> Vec<u64> {
        let first = self.at(start).map_or(start, |block| block.start);
        self.map.range(first..start.saturating_add(len)).map(|(&start, _)| start).collect()
    }

    pub(crate) fn for_each(&mut self, change: impl FnMut(&mut Block)) {
        self.map.values_mut().for_each(change);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Block> {
        self.map.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Clock;
    use crate::site::Site;
    use proptest::prelude::*;

    fn block(id: u64, start: u64, len: u64) -> Block {
        let born = Act { clock: Clock::default(), site: Site::for_test(1) };
        Block { id, ..Block::new(Kind::Registered(0), start, len, Access::EVERYBODY, born) }
    }

    #[test]
    fn allocations_do_not_continue_each_other_but_mappings_do() {
        let mut blocks = Blocks::default();
        blocks.insert(block(1, 0, 10));
        blocks.insert(block(2, 10, 10));
        assert!(blocks.covering(5, 10).is_none());
        for start in [20, 30] {
            blocks.insert(Block { kind: Kind::Mapped(HandleId(1)), ..block(start, start, 10) });
        }
        assert_eq!(blocks.covering(25, 10).map(|found| found.len()), Some(2));
        assert!(blocks.covering(35, 6).is_none() && blocks.covering(15, 10).is_none());
    }

    proptest! {
        /// Registrations against a model that holds one owner a byte.
        #[test]
        fn agrees_with_a_naive_model(steps in prop::collection::vec((any::<bool>(), 0..100u64, 1..20u64), 1..100)) {
            let mut blocks = Blocks::default();
            let mut owner = [0_u64; 128];
            for (add, start, len) in steps {
                let bytes = start as usize..(start + len) as usize;
                let taken = owner[bytes.clone()].iter().any(|&owner| owner != 0);
                prop_assert_eq!(blocks.overlaps(start, len), taken);
                if add && !taken {
                    let id = blocks.next_id();
                    blocks.insert(block(id, start, len));
                    owner[bytes].fill(id);
                } else if !add && let Some(found) = blocks.at(start).map(|block| (block.start, block.id)) {
                    prop_assert!(blocks.remove(found.0).is_some());
                    owner.iter_mut().filter(|owner| **owner == found.1).for_each(|owner| *owner = 0);
                }
                for address in 0..128_u64 {
                    prop_assert_eq!(blocks.at(address).map_or(0, |block| block.id), owner[address as usize]);
                }
                let covered = blocks.covering(start, len).is_some();
                let one = owner[start as usize];
                prop_assert_eq!(covered, one != 0 && owner[start as usize..(start + len) as usize].iter().all(|&id| id == one));
            }
        }
    }
}
