//! Handles, reservations and mappings within the driver's memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use cuda_mem_sys::CUresult;

use super::State;
use super::account::Name;
use super::blocks::{Access, Block, Devices, Kind};
use super::device::place;
use super::misuse::Act;
use super::os;
use super::space::LARGE_PAGE;
use super::vmm::{HandleId, Location, Physical, Reservation};
use super::wire::{self, Label};
use crate::runtime::op::Outcome;
use crate::site::Site;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const UNKNOWN: CUresult = CUresult::CUDA_ERROR_UNKNOWN;
const OUT_OF_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;

/// How many mappings there may be at a time, as measured on an H200 with CUDA 13.0.
const MAPPINGS: usize = 524_072;

/// How many there may be here. With data each may cost two of the mappings that the system lets this process have, which
/// must not run out: the program's own allocations need some as well.
pub(super) fn most_mappings(has_data: bool) -> usize {
    if has_data { MAPPINGS.min(os::most_mappings() / 8 * 3) } else { MAPPINGS }
}

/// Somebody who is to be let at a mapping, or kept from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guest {
    Device(usize),
    Host,
}

impl State {
    /// Reserves addresses, at `hint` if that is possible.
    pub(crate) fn reserve(&mut self, len: u64, align: u64, hint: u64, made_by: Site) -> Outcome<u64> {
        let hint = (hint != 0).then_some(hint);
        let start = self.space.take(len, align.max(LARGE_PAGE), hint).map_err(|_| OUT_OF_MEMORY)?;
        self.reservations.insert(start, Reservation { len, made_by });
        Ok(start)
    }

    /// Gives exactly one reservation back in which nothing is mapped.
    pub(crate) fn unreserve(&mut self, start: u64, len: u64) -> Outcome<()> {
        if self.blocks.overlaps(start, len) || !self.reservations.remove(start, len) {
            return Err(INVALID_VALUE);
        }
        self.space.give_back(start, len);
        Ok(())
    }

    /// Makes physical memory.
    pub(crate) fn create(
        &mut self,
        size: u64,
        location: Location,
        exportable: bool,
        rdma: bool,
        made_by: Site,
    ) -> Outcome<HandleId> {
        self.charge(location, size)?;
        let made = if exportable && self.space.has_data() {
            wire::create(Label { location, rdma }, size)
                .map(|file| Physical::file(file, size, location, made_by))
        } else {
            let at = self.space.take(size, LARGE_PAGE, None);
            at.map(|at| Physical::hidden(at, size, location, made_by))
        };
        let Ok(mut physical) = made else {
            self.refund(location, size);
            return Err(OUT_OF_MEMORY);
        };
        physical.rdma = rdma;
        physical.exportable = exportable;
        let id = HandleId(self.next_number());
        self.handles.insert(id, physical);
        Ok(id)
    }

    /// The memory of a handle that the program holds.
    pub(crate) fn handle(&mut self, id: HandleId) -> Outcome<&mut Physical> {
        self.handles.get_mut(&id).filter(|physical| physical.handles > 0).ok_or(INVALID_VALUE)
    }

    /// Lets one handle go.
    pub(crate) fn release(&mut self, id: HandleId) -> Outcome<()> {
        self.handle(id)?.handles -= 1;
        self.drop_if_unused(id);
        Ok(())
    }

    fn drop_if_unused(&mut self, id: HandleId) {
        if !self.handles.get(&id).is_some_and(Physical::is_unused) {
            return;
        }
        if let Some(physical) = self.handles.remove(&id) {
            if physical.share.is_none() {
                self.refund(physical.location, physical.size);
            }
            physical.release(&mut self.space);
        }
    }

    /// Maps all of a handle's memory at reserved addresses. Nobody may use it there yet.
    pub(crate) fn map(&mut self, start: u64, len: u64, id: HandleId, by: Act) -> Outcome<()> {
        // A handle that was released stays good for as long as its memory is mapped somewhere.
        let physical = self.handles.get(&id).ok_or(INVALID_VALUE)?;
        if physical.size != len {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        if !self.reservations.hold(start, len) || self.blocks.overlaps(start, len) {
            return Err(INVALID_VALUE);
        }
        if self.mappings >= self.most_mappings {
            return Err(OUT_OF_MEMORY);
        }
        if let Some((file, offset)) = physical.source(&self.space) {
            self.space.attach(start, len, file, offset).map_err(|_| OUT_OF_MEMORY)?;
        }
        let device = if let Location::Device(device) = physical.location { device } else { 0 };
        // Mappings belong to no context.
        let access = Access { read: Devices::NONE, write: Devices::NONE, host: false };
        self.add_block(Block { device, ..Block::new(Kind::Mapped(id), start, len, access, by) });
        self.mappings += 1;
        if let Some(physical) = self.handles.get_mut(&id) {
            physical.mappings += 1;
        }
        Ok(())
    }

    /// The mappings that `start .. start + len` consists of: whole ones, without a gap.
    fn whole_mappings(&self, start: u64, len: u64) -> Outcome<Vec<(u64, u64, HandleId)>> {
        let blocks = self.blocks.covering(start, len).ok_or(INVALID_VALUE)?;
        let first = blocks.first().map(|block| block.start);
        let last = blocks.last().map(|block| block.start + block.len);
        if len == 0 || first != Some(start) || last != start.checked_add(len) {
            return Err(INVALID_VALUE);
        }
        let mapping = |block: &&Block| match block.kind {
            Kind::Mapped(id) => Ok((block.start, block.len, id)),
            _ => Err(INVALID_VALUE),
        };
        blocks.iter().map(mapping).collect()
    }

    /// Removes the mappings in a range, of which none may reach beyond it; there may be holes. The driver waits for nobody
    /// here.
    pub(crate) fn unmap(&mut self, start: u64, len: u64, by: &Act) -> Outcome<()> {
        let end = start.checked_add(len).ok_or(INVALID_VALUE)?;
        let starts = self.blocks.touching(start, len);
        if len == 0 || !self.reservations.touch(start, len) {
            return Err(INVALID_VALUE);
        }
        let mut mappings = Vec::new();
        for at in starts {
            match self.blocks.at(at) {
                Some(&Block { start: at, len, kind: Kind::Mapped(id), .. })
                    if at >= start && at + len <= end =>
                {
                    mappings.push((at, len, id));
                }
                _ => return Err(INVALID_VALUE),
            }
        }
        for (start, len, id) in mappings {
            let Some(block) = self.blocks.remove(start) else { continue };
            self.mappings -= 1;
            self.note_free(&block, by);
            if block.access.host {
                self.space.hide(start, len);
            }
            self.space.detach(start, len);
            if let Some(physical) = self.handles.get_mut(&id) {
                physical.mappings -= 1;
            }
            self.drop_if_unused(id);
        }
        Ok(())
    }

    /// Lets somebody read or write mapped memory, or neither.
    pub(crate) fn set_access(
        &mut self,
        start: u64,
        len: u64,
        guest: Guest,
        read: bool,
        write: bool,
    ) -> Outcome<()> {
        let mappings = self.whole_mappings(start, len)?;
        for &(_, _, id) in &mappings {
            let on_device =
                self.handles.get(&id).is_some_and(|it| matches!(it.location, Location::Device(_)));
            if guest == Guest::Host && on_device {
                return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
            }
        }
        for (start, len, id) in mappings {
            if guest == Guest::Host {
                self.let_host_see(start, len, id, read, write)?;
            }
            let Some(block) = self.blocks.at_mut(start) else { continue };
            match guest {
                Guest::Host => block.access.host = read,
                Guest::Device(device) => {
                    block.access.read.set(device, read);
                    block.access.write.set(device, write);
                }
            }
        }
        Ok(())
    }

    fn let_host_see(&self, start: u64, len: u64, id: HandleId, read: bool, write: bool) -> Outcome<()> {
        if !read {
            self.space.hide(start, len);
            return Ok(());
        }
        let source = self.handles.get(&id).and_then(|physical| physical.source(&self.space));
        let Some((file, offset)) = source else { return Ok(()) };
        self.space.show_file(start, len, write, file, offset).map_err(|_| OUT_OF_MEMORY)
    }

    /// Who may reach the mapping at an address.
    pub(crate) fn mapping_access(&self, at: u64) -> Outcome<Access> {
        let block = self.blocks.at(at).filter(|block| matches!(block.kind, Kind::Mapped(_)));
        block.map(|block| block.access).ok_or(INVALID_VALUE)
    }

    /// The device that the memory mapped at an address lies on.
    pub(crate) fn mapping_device(&self, at: u64) -> Option<usize> {
        let &Block { kind: Kind::Mapped(id), .. } = self.blocks.at(at)? else { return None };
        match self.handles.get(&id)?.location {
            Location::Device(device) => Some(device),
            Location::Host | Location::Node(_) => None,
        }
    }

    /// Another handle to the memory that is mapped at an address.
    pub(crate) fn retain_handle(&mut self, at: u64) -> Outcome<HandleId> {
        let Some(&Block { kind: Kind::Mapped(id), .. }) = self.blocks.at(at) else {
            return Err(INVALID_VALUE);
        };
        self.handles.get_mut(&id).ok_or(INVALID_VALUE)?.handles += 1;
        Ok(id)
    }

    /// A descriptor of a handle's memory, for another process.
    pub(crate) fn export(&mut self, id: HandleId) -> Outcome<OwnedFd> {
        let account = Arc::clone(&self.account);
        let physical = self.handle(id)?;
        if !physical.exportable {
            return Err(INVALID_VALUE);
        }
        // Without data there is nothing to send.
        let file = physical.descriptor().ok_or(CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
        let copy = file.try_clone_to_owned().map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
        if physical.share.is_none() {
            let name = Name::of(copy.as_fd(), 0)?;
            physical.share = Some(account.share(name, place(physical.location), physical.size)?);
        }
        Ok(copy)
    }

    /// A handle to the memory behind a descriptor, if it is one that a simulator exported.
    pub(crate) fn import(&mut self, file: BorrowedFd<'_>, made_by: Site) -> Outcome<HandleId> {
        let (Label { location, rdma }, size) = wire::recognise(file).ok_or(UNKNOWN)?;
        if let Location::Device(device) = location
            && device >= self.setup.devices.len()
        {
            return Err(UNKNOWN);
        }
        let share = self.account.join(Name::of(file, 0)?, place(location), size)?;
        let file = file.try_clone_to_owned().map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
        let mut physical = Physical::file(file, size, location, made_by);
        physical.rdma = rdma;
        (physical.imported, physical.share) = (true, Some(share));
        let id = HandleId(self.next_number());
        self.handles.insert(id, physical);
        Ok(id)
    }
}
