//! Device memory of one process in another: the legacy handles.
//!
//! A handle names the exporting process, the file behind its memory, and a slot in a second file, the *register*, that
//! both processes map. The importer opens both through `/proc`. A slot says whether the memory is still allocated and who
//! has it open elsewhere: memory that is freed meanwhile stays as it is until the last importer has closed it or ended, and
//! cannot be opened anew.
//!
//! # Safety
//!
//! A register is a mapped file of sealed size and holds nothing but atomic words, so whatever another process writes
//! there, or wherever it dies, every access is valid and every value is only a number.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_mem_sys::CUresult;

use super::State;
use super::blocks::{Access, Block, Kind};
use super::device::Retired;
use super::misuse::{Act, History};
use super::os::{self, Protection};
use super::process;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// How many allocations of a driver may be exported at a time.
const SLOTS: usize = 4096;

const REGISTER_BYTES: usize = SLOTS * size_of::<Slot>();

/// How many drivers may have one of them open at a time.
const OPENERS: usize = 15;

/// What handles begin with: other bytes are no handle of ours.
const MAGIC: u64 = u64::from_le_bytes(*b"cudamsim");

/// What two processes know of one exported allocation.
#[derive(Debug, Default)]
#[repr(C)]
struct Slot {
    /// The block's number while it is allocated, 0 after.
    block: AtomicU64,
    /// The processes that have it open, an entry a driver; 0 for none.
    openers: [AtomicU64; OPENERS],
}

impl Slot {
    /// Enters this process; none if there is no room.
    fn enter(&self) -> Option<usize> {
        self.openers.iter().position(|opener| {
            let found = opener.load(Ordering::SeqCst);
            // One that was killed has left its entry.
            let free = found == 0 || !process::lives(found);
            let own = process::own_identity();
            free && opener.compare_exchange(found, own, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        })
    }

    fn leave(&self, entry: usize) {
        if let Some(opener) = self.openers.get(entry) {
            opener.store(0, Ordering::SeqCst);
        }
    }

    /// Whether a process that lives has it open.
    fn is_open(&self) -> bool {
        self.openers.iter().any(|opener| {
            let found = opener.load(Ordering::SeqCst);
            found != 0 && process::lives(found)
        })
    }
}

/// A mapped register.
#[derive(Debug)]
struct Register {
    at: usize,
    file: OwnedFd,
}

impl Register {
    fn create() -> io::Result<Self> {
        let file = os::memory_file(c"cuda-mem-sim:register", REGISTER_BYTES as u64)?;
        Self::map(file)
    }

    fn map(file: OwnedFd) -> io::Result<Self> {
        if os::len(file.as_fd())? != REGISTER_BYTES as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let register = Self { at: os::reserve(REGISTER_BYTES)?, file };
        // SAFETY: the reservation made one line above.
        unsafe {
            os::map_over(register.at, REGISTER_BYTES, register.file.as_fd(), 0, Protection::ReadWrite)
        }?;
        Ok(register)
    }

    fn slot(&self, index: usize) -> Option<&Slot> {
        let index = Some(index).filter(|&index| index < SLOTS)?;
        let at = std::ptr::with_exposed_provenance::<Slot>(self.at + index * size_of::<Slot>());
        // SAFETY: within the mapping, which is as long as the file, aligned to a page, and unmapped only with `self`; its
        // bytes are only ever used as these atomic words, by every process that has them.
        Some(unsafe { &*at })
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`; references to its slots borrow from `self`.
        unsafe { os::unreserve(self.at, REGISTER_BYTES) };
    }
}

/// What a handle says, as it travels: eight words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    process: u64,
    /// Descriptors of the exporting process: the memory and the register.
    memory: u64,
    register: u64,
    slot: u64,
    block: u64,
    offset: u64,
    len: u64,
}

impl Ticket {
    pub(crate) fn to_words(self) -> [u64; 8] {
        let Self { process, memory, register, slot, block, offset, len } = self;
        [MAGIC, process, memory << 32 | register, slot, block, offset, len, !MAGIC]
    }

    pub(crate) fn from_words(words: [u64; 8]) -> Option<Self> {
        let [magic, process, files, slot, block, offset, len, end] = words;
        let ticket =
            Self { process, memory: files >> 32, register: files & 0xFFFF_FFFF, slot, block, offset, len };
        (magic == MAGIC && end == !MAGIC).then_some(ticket)
    }

    /// Whether this process made it.
    pub(crate) fn is_own(self) -> bool {
        self.process == u64::from(std::process::id())
    }

    fn open(self, descriptor: u64) -> Outcome<OwnedFd> {
        let path = format!("/proc/{}/fd/{descriptor}", self.process);
        let file = File::options().read(true).write(true).open(path).map_err(|_| {
            if process::identity(self.process).is_some() {
                INVALID_VALUE
            } else {
                CUresult::CUDA_ERROR_INVALID_HANDLE
            }
        })?;
        if os::is_sealed(file.as_fd()) { Ok(file.into()) } else { Err(INVALID_VALUE) }
    }
}

/// What a driver shares with other processes, and what others share with it.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    register: Option<Register>,
    /// Slots of exported allocations by block number.
    exported: BTreeMap<u64, usize>,
    /// Freed allocations that others still have open.
    awaited: Vec<(usize, Retired)>,
    opened: BTreeMap<Ticket, Opened>,
}

/// Memory of another process.
#[derive(Debug)]
struct Opened {
    start: u64,
    times: u64,
    register: Register,
    /// This driver's entry in the slot.
    entry: usize,
}

impl Exchange {
    /// The slot of an exported block; a new one if it has none yet.
    fn slot_for(&mut self, block: u64) -> Option<usize> {
        if let Some(&slot) = self.exported.get(&block) {
            return Some(slot);
        }
        if self.register.is_none() {
            self.register = Register::create().ok();
        }
        let register = self.register.as_ref()?;
        let awaited = |index: usize| self.awaited.iter().any(|(slot, _)| *slot == index);
        let index = (0..SLOTS).find(|&index| {
            let free = register.slot(index).is_some_and(|slot| slot.block.load(Ordering::SeqCst) == 0);
            free && !awaited(index)
        })?;
        let slot = register.slot(index)?;
        slot.openers.iter().for_each(|opener| opener.store(0, Ordering::SeqCst));
        slot.block.store(block, Ordering::SeqCst);
        self.exported.insert(block, index);
        Some(index)
    }

    /// Marks a block as freed; whether its memory has to stay because others have it open.
    fn end(&mut self, block: u64) -> Option<usize> {
        let index = self.exported.remove(&block)?;
        let slot = self.register.as_ref()?.slot(index)?;
        // An importer first enters itself and then looks whether the block is there, so one of the two is seen.
        slot.block.store(0, Ordering::SeqCst);
        slot.is_open().then_some(index)
    }

    /// The freed allocations that nobody has open any more.
    fn given_up(&mut self) -> Vec<Retired> {
        let Some(register) = &self.register else { return Vec::new() };
        let is_open = |index| register.slot(index).is_some_and(Slot::is_open);
        let (keep, done) = self.awaited.drain(..).partition(|&(index, _)| is_open(index));
        self.awaited = keep;
        let done: Vec<(usize, Retired)> = done;
        done.into_iter().map(|(_, retired)| retired).collect()
    }
}

impl State {
    /// A ticket for the allocation that an address lies in, to be opened in another process.
    pub(crate) fn export_block(&mut self, at: u64) -> Outcome<Ticket> {
        let block = self.blocks.at(at).filter(|block| block.kind == Kind::Device).ok_or(INVALID_VALUE)?;
        let (id, start, len) = (block.id, block.start, block.len);
        let (file, offset) = self.space.source(start).ok_or(CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
        let memory = file.as_raw_fd() as u64;
        let slot = self.exchange.slot_for(id).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)? as u64;
        let register = self.exchange.register.as_ref().map_or(0, |register| register.file.as_raw_fd() as u64);
        Ok(Ticket { process: std::process::id().into(), memory, register, slot, block: id, offset, len })
    }

    /// Gives the memory of a freed block back, once nobody else has it open.
    pub(crate) fn give_back_unshared(&mut self, block: u64, retired: Retired) {
        match self.exchange.end(block) {
            Some(slot) => self.exchange.awaited.push((slot, retired)),
            None => self.give_back_retired(retired),
        }
        self.give_back_given_up();
    }

    /// Gives the memory of freed blocks back that others had open and have no more, for they closed it or ended.
    pub(crate) fn give_back_given_up(&mut self) {
        for retired in self.exchange.given_up() {
            self.give_back_retired(retired);
        }
    }

    /// Opens memory of another process; opened again, it has the same address.
    pub(crate) fn open_ticket(
        &mut self,
        ticket: Ticket,
        device: usize,
        context: usize,
        by: Act,
    ) -> Outcome<u64> {
        if let Some(opened) = self.exchange.opened.get_mut(&ticket) {
            opened.times += 1;
            return Ok(opened.start);
        }
        if !self.space.has_data() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let register = Register::map(ticket.open(ticket.register)?).map_err(|_| INVALID_VALUE)?;
        let slot = register.slot(ticket.slot as usize).ok_or(INVALID_VALUE)?;
        let entry = slot.enter().ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let start = if slot.block.load(Ordering::SeqCst) == ticket.block {
            self.map_ticket(ticket, device, context, by)
        } else {
            Err(INVALID_VALUE)
        };
        match start {
            Ok(start) => {
                self.exchange.opened.insert(ticket, Opened { start, times: 1, register, entry });
                Ok(start)
            }
            Err(error) => {
                slot.leave(entry);
                Err(error)
            }
        }
    }

    fn map_ticket(&mut self, ticket: Ticket, device: usize, context: usize, by: Act) -> Outcome<u64> {
        let file = ticket.open(ticket.memory)?;
        let page = os::page_size() as u64;
        let before = ticket.offset % page;
        let room = before.checked_add(ticket.len).and_then(|room| room.checked_next_multiple_of(page));
        let room = room.filter(|_| ticket.len > 0).ok_or(INVALID_VALUE)?;
        let base = self.space.take(room, page, None).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        if self.space.attach(base, room, file.as_fd(), ticket.offset - before).is_err() {
            self.space.give_back(base, room);
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let (id, start) = (self.blocks.next_id(), base + before);
        self.add_block(Block {
            id,
            start,
            len: ticket.len,
            room,
            kind: Kind::Opened,
            device,
            context,
            access: Access::only(device),
            sync_memops: false,
            history: History::born(by),
        });
        Ok(start)
    }

    /// Closes memory of another process once; the last time, its address is nobody's.
    pub(crate) fn close_opened(&mut self, start: u64, by: &Act) -> Outcome<()> {
        let found = self.exchange.opened.iter_mut().find(|(_, opened)| opened.start == start);
        let (&ticket, opened) = found.ok_or(INVALID_VALUE)?;
        opened.times -= 1;
        if opened.times > 0 {
            return Ok(());
        }
        let opened = self.exchange.opened.remove(&ticket);
        if let Some(block) = self.blocks.remove(start) {
            self.note_free(&block, by);
            let base = start - start % os::page_size() as u64;
            self.space.detach(base, block.room);
            self.space.give_back(base, block.room);
        }
        if let Some(opened) = opened
            && let Some(slot) = opened.register.slot(ticket.slot as usize)
        {
            slot.leave(opened.entry);
        }
        Ok(())
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        for (ticket, opened) in &self.opened {
            if let Some(slot) = opened.register.slot(ticket.slot as usize) {
                slot.leave(opened.entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_survive_the_journey_and_other_bytes_are_none() {
        let ticket =
            Ticket { process: 7, memory: 3, register: 4, slot: 1, block: 99, offset: 512, len: 1024 };
        assert_eq!(Ticket::from_words(ticket.to_words()), Some(ticket));
        assert_eq!(Ticket::from_words([0; 8]), None);
    }

    #[test]
    fn a_freed_block_stays_while_it_is_open_elsewhere() {
        let mut exchange = Exchange::default();
        let slot = exchange.slot_for(5).unwrap();
        assert_eq!(exchange.slot_for(5), Some(slot));
        assert_ne!(exchange.slot_for(6), Some(slot));
        let importer = exchange.register.as_ref().unwrap().file.try_clone().unwrap();
        let importer = Register::map(importer).unwrap();
        let entry = importer.slot(slot).unwrap().enter().unwrap();
        assert_eq!(exchange.end(5), Some(slot));
        assert!(importer.slot(slot).unwrap().is_open());
        importer.slot(slot).unwrap().leave(entry);
        assert!(!importer.slot(slot).unwrap().is_open());
        assert_eq!(importer.slot(slot).unwrap().block.load(Ordering::SeqCst), 0);
        assert_eq!(exchange.end(6), None);
    }

    #[test]
    fn a_process_that_was_killed_has_nothing_open() {
        let mut exchange = Exchange::default();
        let slot = exchange.slot_for(5).unwrap();
        let slot = exchange.register.as_ref().unwrap().slot(slot).unwrap();
        let mut other =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let identity = process::identity(other.id().into()).unwrap();
        slot.openers.iter().for_each(|opener| opener.store(identity, Ordering::SeqCst));
        assert!(slot.is_open());
        assert_eq!(slot.enter(), None, "there is no room");
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(!slot.is_open());
        assert_eq!(slot.enter(), Some(0));
        assert!(slot.is_open());
    }

    #[test]
    fn tickets_that_lie_are_refused() {
        let register = Register::create().unwrap();
        assert!(register.slot(SLOTS).is_none() && register.slot(usize::MAX).is_none());
        let short = os::memory_file(c"short", 4096).unwrap();
        assert!(Register::map(short).is_err());
    }
}
