//! Device memory of one process in another: the legacy handles.
//!
//! A handle names the exporting process, the file behind its memory, and its account, in which the exporter has a row for the allocation
//! until it frees it. The importer opens both through `/proc` and adds a row of its own: memory that is freed meanwhile stays as it
//! is until the last importer has closed it or ended, and cannot be opened anew.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use cuda_mem_sys::CUresult;

use super::State;
use super::account::{Name, Share};
use super::blocks::{Access, Block, Kind};
use super::device::{home, place};
use super::misuse::Act;
use super::os;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// What handles begin with: other bytes are no handle of ours.
const MAGIC: u64 = u64::from_le_bytes(*b"cudamsim");

/// What a handle says, as it travels: eight words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    process: u64,
    /// Descriptors of the exporting process: the memory and the account.
    memory: u64,
    account: u64,
    /// The exporter's number in the account.
    owner: u64,
    block: u64,
    offset: u64,
    len: u64,
}

impl Ticket {
    pub(crate) fn to_words(self) -> [u64; 8] {
        let Self { process, memory, account, owner, block, offset, len } = self;
        [MAGIC, process, memory << 32 | account, owner, block, offset, len, !MAGIC]
    }

    pub(crate) fn from_words(words: [u64; 8]) -> Option<Self> {
        let [magic, process, files, owner, block, offset, len, end] = words;
        let (memory, account) = (files >> 32, files & 0xFFFF_FFFF);
        let ticket = Self { process, memory, account, owner, block, offset, len };
        (magic == MAGIC && end == !MAGIC).then_some(ticket)
    }

    /// Whether this process made it.
    pub(crate) fn is_own(self) -> bool {
        self.process == u64::from(std::process::id())
    }

    fn path(self, descriptor: u64) -> PathBuf {
        format!("/proc/{}/fd/{descriptor}", self.process).into()
    }

    /// The file that the memory lies in.
    fn open(self) -> Outcome<OwnedFd> {
        let file = File::options().read(true).write(true).open(self.path(self.memory)).map_err(|_| {
            // A process that has ended runs no program, waited for or not.
            if std::fs::read_link(format!("/proc/{}/exe", self.process)).is_ok() {
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
    /// Exported allocations by block number.
    exported: BTreeMap<u64, Share>,
    /// The addresses of freed allocations that others may still have open.
    awaited: Vec<(Name, u64, u64)>,
    opened: BTreeMap<Ticket, Opened>,
}

/// Memory of another process.
#[derive(Debug)]
struct Opened {
    start: u64,
    times: u64,
    /// Keeps it, in the exporter's account.
    _share: Share,
}

impl State {
    /// A ticket for the allocation that an address lies in, to be opened in another process.
    pub(crate) fn export_block(&mut self, at: u64) -> Outcome<Ticket> {
        let block = self.blocks.at(at).filter(|block| block.kind == Kind::Device).ok_or(INVALID_VALUE)?;
        let (id, start, len, room, home) = (block.id, block.start, block.len, block.room, home(block));
        let (file, offset) = self.space.source(start).ok_or(CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
        if !self.exchange.exported.contains_key(&id) {
            let share = self.account.share(Name::of(file, id)?, place(home), room)?;
            self.exchange.exported.insert(id, share);
        }
        let (process, memory) = (std::process::id().into(), file.as_raw_fd() as u64);
        let (account, owner) = (self.account.descriptor(), self.account.owner());
        Ok(Ticket { process, memory, account, owner, block: id, offset, len })
    }

    /// Ends the driver's part in a freed block that it has exported; false if it has not.
    pub(super) fn leave_to_openers(&mut self, block: &Block) -> bool {
        let share = self.exchange.exported.remove(&block.id);
        let awaited = share.map(|share| (share.name, block.start, block.room));
        self.exchange.awaited.extend(awaited);
        awaited.is_some()
    }

    /// Gives addresses of freed blocks back that others had open and have no more, for they closed them or ended.
    pub(super) fn give_back_given_up(&mut self) {
        for (_, start, room) in self.exchange.awaited.extract_if(.., |(name, ..)| !self.account.has(*name)) {
            self.space.give_back(start, room);
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
        let file = ticket.open()?;
        let account = self.account.or_open(&ticket.path(ticket.account));
        let share = account.join_owner(Name::of(file.as_fd(), ticket.block)?, ticket.owner);
        let share = share.map_err(|_| INVALID_VALUE)?;
        let start = self.map_ticket(ticket, &file, device, context, by)?;
        self.exchange.opened.insert(ticket, Opened { start, times: 1, _share: share });
        Ok(start)
    }

    fn map_ticket(
        &mut self,
        ticket: Ticket,
        file: &OwnedFd,
        device: usize,
        context: usize,
        by: Act,
    ) -> Outcome<u64> {
        let page = os::page_size() as u64;
        let before = ticket.offset % page;
        let room = before.checked_add(ticket.len).and_then(|room| room.checked_next_multiple_of(page));
        let room = room.filter(|_| ticket.len > 0).ok_or(INVALID_VALUE)?;
        let base = self.space.take(room, page, None).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        if self.space.attach(base, room, file.as_fd(), ticket.offset - before).is_err() {
            self.space.give_back(base, room);
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let start = base + before;
        let block = Block::new(Kind::Opened, start, ticket.len, Access::only(device), by);
        self.add_block(Block { room, device, context, ..block });
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
        if let Some(block) = self.blocks.remove(start) {
            self.note_free(&block, by);
            let base = start - start % os::page_size() as u64;
            self.space.detach(base, block.room);
            self.space.give_back(base, block.room);
        }
        self.exchange.opened.remove(&ticket);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_survive_the_journey_and_other_bytes_are_none() {
        let ticket =
            Ticket { process: 7, memory: 3, account: 4, owner: 1, block: 99, offset: 512, len: 1024 };
        assert_eq!(Ticket::from_words(ticket.to_words()), Some(ticket));
        assert_eq!(Ticket::from_words([0; 8]), None);
    }
}
