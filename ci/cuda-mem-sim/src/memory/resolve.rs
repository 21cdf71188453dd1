//! From an address and a length to the place of the bytes, for those who may reach them.

use cuda_mem_sys::CUresult;

use super::blocks::{Block, Devices};
use super::bytes::Place;
use super::{Outcome, State};

/// Who wants to reach memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// Code or engines of a device.
    Device(usize),
    /// The driver on behalf of the host.
    Host,
}

impl State {
    /// The block that an address lies in.
    pub(crate) fn known(&self, at: u64) -> Option<&Block> {
        self.blocks.at(at)
    }

    /// Whether the driver's copies may read or write `len` bytes at an address: somebody must be able to.
    pub(crate) fn copy_may_use(&self, at: u64, len: u64, write: bool) -> bool {
        let somebody = |block: &&Block| {
            let devices = if write { block.access.write } else { block.access.read };
            devices != Devices::NONE || (block.access.host && !block.is_programs())
        };
        self.blocks.covering(at, len).is_some_and(|blocks| blocks.iter().all(somebody))
    }

    /// The place of `len` bytes at an address that the driver knows; none if it does not know all of them.
    pub(crate) fn known_place(&self, at: u64, len: u64) -> Option<Place> {
        let blocks = self.blocks.covering(at, len)?;
        let first = blocks.first()?;
        if first.is_programs() {
            return Some(Place::Program(at as usize));
        }
        if !self.space.has_data() {
            return Some(Place::Nowhere);
        }
        self.space.shadow(at, len).map(Place::Own)
    }

    /// The place of bytes that `who` wants to read or write: error 700 where it may not, as for a kernel.
    pub(crate) fn place(&self, at: u64, len: u64, who: Who, write: bool) -> Outcome<Place> {
        let illegal = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
        let blocks = self.blocks.covering(at, len.max(1)).ok_or(illegal)?;
        if !blocks.iter().all(|block| may(block, who, write)) {
            return Err(illegal);
        }
        self.known_place(at, len.max(1)).ok_or(illegal)
    }
}

/// Whether somebody may read or write a block.
fn may(block: &Block, who: Who, write: bool) -> bool {
    match who {
        Who::Device(device) => {
            let devices = if write { block.access.write } else { block.access.read };
            devices.contains(device)
        }
        Who::Host => true,
    }
}
