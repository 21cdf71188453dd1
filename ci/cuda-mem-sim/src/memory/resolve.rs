//! From an address and a length to the place of the bytes, for those who may reach them.

use cuda_mem_sys::CUresult;

use super::blocks::{Access, Block, Devices, Kind};
use super::bytes::Place;
use super::pools::Pool;
use super::vmm::Location;
use super::{Outcome, State};

/// Who wants to reach memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// Code or engines of a device.
    Device(usize),
}

impl State {
    /// The block that an address lies in.
    pub(crate) fn known(&self, at: u64) -> Option<&Block> {
        self.blocks.at(at)
    }

    /// Whether a block is managed memory, from a pool or on its own.
    pub(crate) fn is_managed(&self, block: &Block) -> bool {
        match block.kind {
            Kind::Managed => true,
            Kind::Pooled(id) => self.pools.get(&id).is_some_and(|pool| pool.managed),
            _ => false,
        }
    }

    /// Whether the driver's copies may read or write `len` bytes at an address: somebody must be able to, and where it is
    /// a device pool's memory, the device whose context is current. Copies that name a context of their own pass none.
    pub(crate) fn copy_may_use(&self, at: u64, len: u64, write: bool, current: Option<usize>) -> bool {
        let somebody = |block: &&Block| {
            let devices = if write { block.access.write } else { block.access.read };
            match current {
                Some(current) if self.is_in_device_pool(block) => devices.contains(current),
                _ => devices != Devices::NONE || (block.access.host && !block.is_programs()),
            }
        };
        self.blocks.covering(at, len).is_some_and(|blocks| blocks.iter().all(somebody))
    }

    fn is_in_device_pool(&self, block: &Block) -> bool {
        let Kind::Pooled(id) = block.kind else { return false };
        let pool = self.pools.get(&id);
        pool.is_some_and(|pool| matches!(pool.location, Location::Device(_)) && !pool.managed)
    }

    /// The place of `len` bytes at an address that the driver knows; none if it does not know all of them.
    ///
    /// Work in a stream still finds a block that was given back to its pool meanwhile, even one that the pool has cut up
    /// for others: the pool's memory stays mapped, as on real hardware.
    pub(crate) fn known_place(&self, at: u64, len: u64) -> Option<Place> {
        match self.blocks.covering(at, len) {
            Some(blocks) if blocks.iter().any(|block| block.is_programs()) => {
                return Some(Place::Program(at as usize));
            }
            Some(_) => {}
            None => {
                self.pool_around(at, len)?;
            }
        }
        if !self.space.has_data() {
            return Some(Place::Nowhere);
        }
        self.space.shadow(at, len).map(Place::Own)
    }

    /// The place of bytes that `who` wants to read or write: error 700 where it may not, as for a kernel.
    pub(crate) fn place(&self, at: u64, len: u64, who: Who, write: bool) -> Outcome<Place> {
        let illegal = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
        let len = len.max(1);
        let allowed = match self.blocks.covering(at, len) {
            Some(blocks) => {
                blocks.iter().all(|block| may(block.access, who, write) || self.is_peer(who, block))
            }
            None => self.pool_around(at, len).is_some_and(|pool| may(pool.access, who, write)),
        };
        if !allowed {
            return Err(illegal);
        }
        self.known_place(at, len).ok_or(illegal)
    }

    /// Whether a device was let at all memory that another one allocates.
    fn is_peer(&self, who: Who, block: &Block) -> bool {
        let Who::Device(device) = who;
        matches!(block.kind, Kind::Device | Kind::Opened) && self.peers.contains(&(device, block.device))
    }

    /// Lets the code of a device at the memory that `peer` allocates, or no longer.
    pub(crate) fn set_peer_access(&mut self, device: usize, peer: usize, on: bool) {
        if on {
            self.peers.insert((device, peer));
        } else {
            self.peers.remove(&(device, peer));
        }
    }

    /// The pool whose memory holds all of a range.
    fn pool_around(&self, at: u64, len: u64) -> Option<&Pool> {
        self.pools.values().find(|pool| pool.holds(at, len))
    }
}

/// Whether somebody may read or write memory with such access.
fn may(access: Access, who: Who, write: bool) -> bool {
    let Who::Device(device) = who;
    let devices = if write { access.write } else { access.read };
    devices.contains(device)
}
