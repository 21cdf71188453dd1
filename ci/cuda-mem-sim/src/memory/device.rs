//! Allocations and frees, with the accounting of what devices and host hold.
//!
//! # Safety
//!
//! Poison is written only to places in a shadow that were given for the whole length (see `space`).

use cuda_mem_sys::CUresult;

use super::blocks::{Block, Kind};
use super::bytes::{self, Place};
use super::misuse::Act;
use super::vmm::Location;
use super::{Outcome, State, os};

/// What device addresses are multiples of.
pub(crate) const DEVICE_ALIGN: u64 = 512;

/// What new memory holds: no value that a program could take for its own.
const POISON: u8 = 0xCB;

/// How much of a large block is poisoned at either end; writing all of it would make all of it real.
const POISONED_ENDS: u64 = 32 << 10;

impl State {
    /// Counts memory at a location, or says that there is not enough.
    pub(crate) fn charge(&self, location: Location, len: u64) -> Outcome<()> {
        self.account.charge(place(location), len, self.setup.room_at(location))
    }

    /// The reverse of [`charge`](Self::charge).
    pub(crate) fn refund(&self, location: Location, len: u64) {
        self.account.refund(place(location), len);
    }

    /// Gives a new block memory of its own, and says where.
    pub(crate) fn allocate(&mut self, block: Block) -> Outcome<u64> {
        let out_of_memory = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let on_host = block.access.host;
        let align = if on_host { os::page_size() as u64 } else { DEVICE_ALIGN };
        let room = block.len.checked_next_multiple_of(align).ok_or(out_of_memory)?;
        let location = home(&block);
        self.charge(location, room)?;
        let taken = self.space.take(room, align, None).and_then(|start| {
            if on_host {
                self.space.show(start, room, true).inspect_err(|_| self.space.give_back(start, room))?;
            }
            Ok(start)
        });
        let Ok(start) = taken else {
            self.refund(location, room);
            return Err(out_of_memory);
        };
        self.poison(start, room);
        self.add_block(Block { start, room, ..block });
        Ok(start)
    }

    /// Ends a block that [`allocate`](Self::allocate) made and `is_it` agrees to; `by` is where it is freed.
    pub(crate) fn free(&mut self, start: u64, by: &Act, is_it: impl Fn(&Kind) -> bool) -> Outcome<()> {
        if !self.blocks.starting_at(start).is_some_and(|block| is_it(&block.kind)) {
            self.note_unknown_free(start, by);
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let block = self.retire(start, by)?;
        self.give_back_unshared(&block);
        Ok(())
    }

    /// Ends what belongs to a context: allocations and registrations. Pools, handles and mappings belong to none.
    pub(crate) fn end_context(&mut self, context: usize) {
        let ends =
            |kind: Kind| matches!(kind, Kind::Device | Kind::Host(_) | Kind::Managed | Kind::Registered(_));
        let starts: Vec<u64> = self
            .blocks
            .iter()
            .filter(|block| block.context == context && ends(block.kind))
            .map(|block| block.start)
            .collect();
        for start in starts {
            let Some(block) = self.blocks.remove(start) else { continue };
            self.note_leak(&block);
            if block.is_programs() {
                self.refund(Location::Host, block.len);
            } else {
                self.give_back_unshared(&block);
            }
        }
    }

    /// Takes a block out of the table; its memory stays until
    /// [`give_back_unshared`](Self::give_back_unshared).
    pub(crate) fn retire(&mut self, start: u64, by: &Act) -> Outcome<Block> {
        let block = self.blocks.remove(start).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        self.note_free(&block, by);
        Ok(block)
    }

    /// Gives the memory of a block back that nobody knows any more, or leaves it to others who have it open until they do.
    pub(crate) fn give_back_unshared(&mut self, block: &Block) {
        if !self.leave_to_openers(block) {
            if block.access.host {
                self.space.hide(block.start, block.room);
            }
            if block.kind == Kind::Managed {
                self.advice.forget(block.start, block.len);
            }
            self.space.give_back(block.start, block.room);
            self.refund(home(block), block.room);
        }
        self.give_back_given_up();
    }

    /// Fills memory of the simulator's own that nobody has written yet: all of a small block, both ends of a large one.
    pub(crate) fn poison(&self, start: u64, len: u64) {
        let ends = if len <= 2 * POISONED_ENDS {
            [(start, len), (start, 0)]
        } else {
            [(start, POISONED_ENDS), (start + len - POISONED_ENDS, POISONED_ENDS)]
        };
        for (at, len) in ends {
            if let Some(shadow) = self.space.shadow(at, len) {
                // SAFETY: `shadow` gave the place of `len` bytes. Filling the simulator's own memory cannot fail.
                let _ = unsafe { bytes::fill(Place::Own(shadow), &[POISON], len as usize) };
            }
        }
    }
}

/// What a location is in the account.
pub(super) fn place(location: Location) -> u64 {
    match location {
        Location::Device(device) => device as u64,
        Location::Host | Location::Node(_) => u64::MAX,
    }
}

/// Where a block is counted.
pub(super) fn home(block: &Block) -> Location {
    match block.kind {
        Kind::Host(_) | Kind::Registered(_) | Kind::Managed => Location::Host,
        Kind::Device | Kind::Pooled(_) | Kind::Mapped(_) | Kind::Opened => Location::Device(block.device),
    }
}
