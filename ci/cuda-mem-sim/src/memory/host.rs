//! Registered host memory: pages of the program that devices may reach.

use std::io;

use cuda_mem_sys::CUresult;

use super::blocks::{Block, Devices};
use super::misuse::Act;
use super::vmm::Location;
use super::{Memory, Outcome, State, maps, os};

/// Where the addresses end that a process can have.
pub(crate) const USER_ADDRESSES: u64 = 1 << 47;

impl Memory {
    /// Registers memory of the program, after making sure that every page of it is there and accessible.
    pub(crate) fn register(&self, block: Block) -> Outcome<()> {
        let Block { start, len, .. } = block;
        let end = start.checked_add(len).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if start == 0 || len == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if end > USER_ADDRESSES {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        self.lock().may_register(start, len)?;
        // Without the lock: bringing gigabytes in takes a while.
        let page = os::page_size() as u64;
        let (first, last) = (start / page * page, end.next_multiple_of(page));
        let write = block.access.write != Devices::NONE;
        os::populate(first as usize, (last - first) as usize, write).map_err(page_error)?;
        if write && maps::has_written_back_file(first, last) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        self.lock().add_registration(block)
    }
}

/// The driver's code for pages that cannot be had.
fn page_error(error: io::Error) -> CUresult {
    match error.raw_os_error() {
        // The system has no memory for a page that should exist. (ENOMEM means that nothing is mapped there.)
        Some(libc::EHWPOISON) => CUresult::CUDA_ERROR_OPERATING_SYSTEM,
        _ => CUresult::CUDA_ERROR_INVALID_VALUE,
    }
}

impl State {
    /// Refuses what is registered already, and what was never the program's own.
    fn may_register(&self, start: u64, len: u64) -> Outcome<()> {
        let touched = self.blocks.touching(start, len);
        let theirs = |&at: &u64| self.blocks.at(at).is_some_and(Block::is_programs);
        if self.space.owns(start) || !touched.iter().all(theirs) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if touched.is_empty() { Ok(()) } else { Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) }
    }

    fn add_registration(&mut self, block: Block) -> Outcome<()> {
        // Another thread may have registered the same memory meanwhile.
        self.may_register(block.start, block.len)?;
        self.charge(Location::Host, block.len)?;
        self.add_block(block);
        Ok(())
    }

    /// Ends the registration that starts at an address.
    pub(crate) fn unregister(&mut self, start: u64, by: &Act) -> Outcome<()> {
        let invalid = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        match self.blocks.at(start) {
            Some(block) if block.start == start && block.is_programs() => {}
            Some(_) => return invalid,
            None if start == 0 || self.space.owns(start) => return invalid,
            None => return Err(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
        }
        let Some(block) = self.blocks.remove(start) else { return invalid };
        self.refund(Location::Host, block.len);
        self.note_free(&block, by);
        Ok(())
    }
}
