//! Allocations and frees, with the accounting of what devices and host hold.
//!
//! # Safety
//!
//! Poison is written only to places in a shadow that were given for the whole length (see `space`).

use cuda_mem_sys::CUresult;

use super::blocks::{Access, Block, Kind};
use super::bytes::{self, Place};
use super::misuse::{Act, History};
use super::vmm::Location;
use super::{Outcome, State, os};

/// What device addresses are multiples of.
pub(crate) const DEVICE_ALIGN: u64 = 512;

/// What new memory holds: no value that a program could take for its own.
const POISON: u8 = 0xCB;

/// How much of a large block is poisoned at either end; writing all of it would make all of it real.
const POISONED_ENDS: u64 = 32 << 10;

/// An allocation that somebody asks for.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) len: u64,
    pub(crate) kind: Kind,
    pub(crate) device: usize,
    pub(crate) context: usize,
    pub(crate) access: Access,
    pub(crate) born: Act,
}

/// The memory of a block that the program has freed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retired {
    start: u64,
    len: u64,
    room: u64,
    kind: Kind,
    device: usize,
    on_host: bool,
}

impl From<&Block> for Retired {
    fn from(block: &Block) -> Self {
        let &Block { start, len, room, kind, device, access, .. } = block;
        Self { start, len, room, kind, device, on_host: access.host }
    }
}

impl State {
    /// Counts memory at a location, or says that there is not enough.
    pub(crate) fn charge(&mut self, location: Location, len: u64) -> Outcome<()> {
        self.count(location, len).or_else(|_| {
            self.collect();
            self.count(location, len)
        })
    }

    /// Gives back what other processes had open or imported of memory that is gone here, and have no more.
    pub(crate) fn collect(&mut self) {
        self.give_back_given_up();
        self.give_back_lent();
    }

    fn count(&mut self, location: Location, len: u64) -> Outcome<()> {
        let (used, limit) = match location {
            Location::Device(device) => {
                let limit = self.setup.devices.get(device).copied().unwrap_or(0);
                let used = self.used.get_mut(device).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
                (used, limit)
            }
            Location::Host | Location::Node(_) => (&mut self.locked, self.setup.lock_limit),
        };
        let sum = used.checked_add(len).filter(|&sum| sum <= limit);
        *used = sum.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(())
    }

    /// The reverse of [`charge`](Self::charge).
    pub(crate) fn refund(&mut self, location: Location, len: u64) {
        let used = match location {
            Location::Device(device) => self.used.get_mut(device),
            Location::Host | Location::Node(_) => Some(&mut self.locked),
        };
        if let Some(used) = used {
            *used = used.saturating_sub(len);
        }
    }

    /// Makes a new block with memory of its own.
    pub(crate) fn allocate(&mut self, request: Request) -> Outcome<u64> {
        let out_of_memory = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let align = if request.access.host { os::page_size() as u64 } else { DEVICE_ALIGN };
        let room = request.len.checked_next_multiple_of(align).ok_or(out_of_memory)?;
        let location = home(request.kind, request.device);
        self.charge(location, room)?;
        let taken = self.space.take(room, align, None).and_then(|start| {
            if request.access.host {
                self.space.show(start, room, true).inspect_err(|_| self.space.give_back(start, room))?;
            }
            Ok(start)
        });
        let Ok(start) = taken else {
            self.refund(location, room);
            return Err(out_of_memory);
        };
        self.poison(start, room);
        let id = self.blocks.next_id();
        let Request { len, kind, device, context, access, born } = request;
        let history = History::born(born);
        let sync_memops = false;
        self.add_block(Block { id, start, len, room, kind, device, context, access, sync_memops, history });
        Ok(start)
    }

    /// Ends a block that [`allocate`](Self::allocate) made and `is_it` agrees to; `by` is where it is freed.
    pub(crate) fn free(&mut self, start: u64, by: &Act, is_it: impl Fn(&Kind) -> bool) -> Outcome<()> {
        if !self.blocks.starting_at(start).is_some_and(|block| is_it(&block.kind)) {
            self.note_unknown_free(start, by);
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let (id, block) = self.retire(start, by)?;
        self.give_back_unshared(id, block);
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
                self.give_back_unshared(block.id, Retired::from(&block));
            }
        }
    }

    /// Takes a block out of the table; its memory stays until
    /// [`give_back_unshared`](Self::give_back_unshared) with its number.
    pub(crate) fn retire(&mut self, start: u64, by: &Act) -> Outcome<(u64, Retired)> {
        let block = self.blocks.remove(start).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        self.note_free(&block, by);
        Ok((block.id, Retired::from(&block)))
    }

    /// Gives the memory of a block back that nobody knows any more.
    pub(super) fn give_back_retired(&mut self, retired: Retired) {
        let Retired { start, len, room, kind, device, on_host } = retired;
        if on_host {
            self.space.hide(start, room);
        }
        if kind == Kind::Managed {
            self.advice.forget(start, len);
        }
        self.space.give_back(start, room);
        self.refund(home(kind, device), room);
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

/// Where a kind of memory is counted.
fn home(kind: Kind, device: usize) -> Location {
    match kind {
        Kind::Host(_) | Kind::Registered(_) | Kind::Managed => Location::Host,
        Kind::Device | Kind::Pooled(_) | Kind::Mapped(_) | Kind::Opened => Location::Device(device),
    }
}
