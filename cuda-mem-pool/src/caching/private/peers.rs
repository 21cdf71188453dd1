//! What peers reach, and what a block lies in.

use cuda_mem_core::Device;
use cuda_mem_core::sys::CUdeviceptr;

use crate::caching::index::number_of;
use crate::caching::page_map::Found;
use crate::caching::shared::{Shared, refuse_forked};
use crate::engine::paged::SLAB;
use crate::error::{Error, Result};
use crate::primitive::lock;

impl Shared {
    pub(super) fn enable_peer_access(&self, peer: Device) -> Result<()> {
        refuse_forked()?;
        let owner = self.context.device();
        if peer.driver() != owner.driver() {
            return Err(cuda_mem_core::Error::ForeignContext { what: "the peer device" }.into());
        }
        let mut source = self.source()?;
        if source.backend().reached_by().contains(&peer) {
            return Ok(());
        }
        if !peer.can_access_peer(owner)? {
            return Err(Error::NoPeerAccess { device: peer, owner });
        }
        for (address, bytes) in source.mapped() {
            source.backend_mut().set_access_of(peer, address, bytes)?;
        }
        // Before the default pool's are told, which is what says that all is done.
        self.private.memory.add_peer(peer)?;
        source.backend_mut().add_peer(peer);
        Ok(())
    }

    pub(super) fn base_allocation(&self, address: CUdeviceptr) -> Result<(CUdeviceptr, usize)> {
        refuse_forked()?;
        let unknown = || Error::UnknownAddress { address };
        let Some(found) = self.map.find(address) else {
            let state = lock(&self.private.state);
            let entry = state.blocks.get(address).ok_or_else(unknown)?;
            let heap = state.pools.get(entry.pool)?.heap();
            let segment = heap.segment_at(address).ok_or_else(unknown)?;
            return Ok((segment.address(), segment.bytes() as usize));
        };
        let size = self.default_bytes(address, found)?;
        let before = (address % SLAB as u64) as usize;
        Ok((address - before as u64, before.saturating_add(size).next_multiple_of(SLAB)))
    }

    pub(super) fn block_bytes(&self, address: CUdeviceptr) -> Result<usize> {
        refuse_forked()?;
        if let Some(found) = self.map.find(address) {
            return self.default_bytes(address, found);
        }
        let unknown = || Error::UnknownAddress { address };
        let state = lock(&self.private.state);
        let entry = state.blocks.get(address).ok_or_else(unknown)?;
        let block = state.pools.get(entry.pool)?.heap().get(entry.block).ok_or_else(unknown)?;
        Ok(block.size as usize)
    }

    /// Bytes of a block of the default pool.
    fn default_bytes(&self, address: CUdeviceptr, found: Found) -> Result<usize> {
        let unknown = || Error::UnknownAddress { address };
        let slot = self.slots.get(found.owner).ok_or_else(unknown)?;
        let block = self.look_at(slot, |heap| heap.block(number_of(found)));
        Ok(block.ok_or_else(unknown)?.size)
    }
}
