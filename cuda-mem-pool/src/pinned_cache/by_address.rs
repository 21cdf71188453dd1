//! Blocks whose users know their addresses alone.

use std::collections::HashMap;
use std::mem::ManuallyDrop;

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{Error, Result};

use super::block::PinnedBlock;
use crate::primitive::{Mutex, lock};

const SHARDS: usize = 16;

/// The blocks that are out, by address. Each lock is held for one look into one table.
///
/// Dropped, it leaks what is in it: somebody may have the address yet.
#[derive(Default)]
pub(super) struct ByAddress {
    shards: [Shard; SHARDS],
}

/// Apart from its neighbours, so that threads which are at others do not wait for its cache line.
#[derive(Default)]
#[repr(align(128))]
struct Shard(Mutex<HashMap<CUdeviceptr, ManuallyDrop<PinnedBlock>>>);

impl ByAddress {
    /// Keeps a block until it is taken out.
    pub(super) fn enter(&self, address: CUdeviceptr, block: PinnedBlock) {
        lock(&self.shard(address).0).insert(address, ManuallyDrop::new(block));
    }

    /// Takes a block out that is said to have so many bytes.
    pub(super) fn take_out(&self, address: CUdeviceptr, bytes: usize) -> Result<PinnedBlock> {
        let mut blocks = lock(&self.shard(address).0);
        let allocated = blocks.get(&address).ok_or(Error::NotAllocated { address })?.len();
        if allocated != bytes {
            return Err(Error::WrongSize { address, given: bytes, allocated });
        }
        blocks.remove(&address).map(ManuallyDrop::into_inner).ok_or(Error::NotAllocated { address })
    }

    fn shard(&self, address: CUdeviceptr) -> &Shard {
        // Blocks lie at all kinds of distances: the product's upper bits depend on every bit of the address.
        let mixed = address.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60;
        &self.shards[mixed as usize % SHARDS]
    }
}
