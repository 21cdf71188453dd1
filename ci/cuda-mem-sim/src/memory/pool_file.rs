//! Pools of one process in another.
//!
//! All memory of a pool that can be shared lies in one memory file, whose descriptor is what travels: whoever has it has
//! the memory, also when the process that made the pool is gone. A block travels as the file's number and its place there.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cuda_mem_sys::CUresult;

use super::blocks::{Block, Kind};
use super::misuse::Act;
use super::pool_state::first_access;
use super::pools::{Freed, Pool, PoolId};
use super::space::Space;
use super::vmm::Location;
use super::{State, os, wire};
use crate::runtime::op::Outcome;
use crate::site::Site;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const OUT_OF_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;

/// How long the file of a pool is: more than a pool takes in its life, for no part of the file is used twice.
const LEN: u64 = 1 << 56;

/// What the words of an exported block begin with: other bytes are none of ours.
const MAGIC: u64 = u64::from_le_bytes(*b"cudasimp");

/// The file behind a pool.
#[derive(Debug)]
pub(crate) struct PoolFile {
    file: OwnedFd,
    /// The file's own number: that of the pool, in every process.
    number: u64,
    len: u64,
    role: Role,
}

#[derive(Debug)]
enum Role {
    /// Segments are cut off it one behind the other. Those that the pool gives back become holes, so that what comes later
    /// does not show in blocks that others still have mapped.
    Exporter { taken: u64, offsets: BTreeMap<u64, u64>, exported: bool },
    /// Blocks are mapped here, by their place in the file. Freed ones stay mapped until the host synchronises.
    Importer { blocks: BTreeMap<u64, u64>, ended: Vec<(u64, Freed)> },
}

/// A block as it travels: eight words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parcel {
    /// The number of the pool's file.
    pool: u64,
    offset: u64,
    len: u64,
}

impl Parcel {
    pub(crate) fn to_words(self) -> [u64; 8] {
        let Self { pool, offset, len } = self;
        [MAGIC, pool, offset, len, 0, 0, 0, !MAGIC]
    }

    pub(crate) fn from_words(words: [u64; 8]) -> Option<Self> {
        let [magic, pool, offset, len, _, _, _, end] = words;
        (magic == MAGIC && end == !MAGIC && len > 0).then_some(Self { pool, offset, len })
    }
}

impl PoolFile {
    /// Whether it was imported from where another was.
    fn is_import_of(&self, other: &Self) -> bool {
        matches!(self.role, Role::Importer { .. }) && self.number == other.number
    }

    /// A file for the memory of a new pool.
    pub(crate) fn create(location: Location) -> io::Result<Self> {
        let file = wire::create_pool(location, LEN)?;
        let number = wire::number(file.as_fd())?;
        Ok(Self {
            file,
            number,
            len: LEN,
            role: Role::Exporter { taken: 0, offsets: BTreeMap::new(), exported: false },
        })
    }

    /// Another descriptor of the file, and where its pool lies; none if it is no pool's.
    fn open(file: BorrowedFd<'_>) -> Option<(Self, Location)> {
        let (location, len) = wire::recognise_pool(file)?;
        let number = wire::number(file).ok()?;
        let file = file.try_clone_to_owned().ok()?;
        Some((
            Self { file, number, len, role: Role::Importer { blocks: BTreeMap::new(), ended: Vec::new() } },
            location,
        ))
    }

    pub(crate) fn is_imported(&self) -> bool {
        matches!(self.role, Role::Importer { .. })
    }

    /// Puts the next part of the file behind the addresses of a new segment.
    pub(super) fn attach_segment(
        &mut self,
        space: &Space,
        start: u64,
        len: u64,
        on_host: bool,
    ) -> io::Result<()> {
        let Role::Exporter { taken, offsets, .. } = &mut self.role else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let offset = *taken;
        if len > self.len - offset {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        attach(space, self.file.as_fd(), start, len, offset, on_host)?;
        *taken += len;
        offsets.insert(start, offset);
        Ok(())
    }

    /// Ends the part of the file behind a segment that the pool gives back.
    pub(super) fn give_back_segment(&mut self, start: u64, len: u64) {
        if let Role::Exporter { offsets, .. } = &mut self.role
            && let Some(offset) = offsets.remove(&start)
        {
            os::punch(self.file.as_fd(), offset, len);
        }
    }
}

/// Puts a part of a file behind addresses that were taken, for the host too if it may look.
fn attach(
    space: &Space,
    file: BorrowedFd<'_>,
    start: u64,
    len: u64,
    offset: u64,
    on_host: bool,
) -> io::Result<()> {
    space.attach(start, len, file, offset)?;
    if on_host {
        space.show_file(start, len, true, file, offset).inspect_err(|_| space.detach(start, len))?;
    }
    Ok(())
}

impl Pool {
    /// Forgets an imported block that the program has freed. Its address ends once the stream has come to that.
    pub(super) fn give_back_imported(&mut self, start: u64, len: u64, freed: Freed) {
        self.used.current -= len;
        if let Some(PoolFile { role: Role::Importer { blocks, ended }, .. }) = &mut self.file {
            blocks.retain(|_, at| *at != start);
            ended.push((page_of(start), freed));
        }
    }

    /// The pages of freed blocks whose frees have been reached: start and length of each.
    fn ended_imports(&mut self) -> Vec<(u64, u64)> {
        let Some(PoolFile { role: Role::Importer { ended, .. }, .. }) = &mut self.file else {
            return Vec::new();
        };
        let reached: Vec<u64> =
            ended.extract_if(.., |(_, freed)| freed.is_reached()).map(|(at, _)| at).collect();
        reached.into_iter().filter_map(|at| Some((at, self.remove_imported(at)?))).collect()
    }
}

/// Where the page begins that an address lies in.
fn page_of(at: u64) -> u64 {
    at - at % os::page_size() as u64
}

impl State {
    /// A descriptor of a pool's memory, for another process.
    pub(crate) fn export_pool(&mut self, id: PoolId) -> Outcome<OwnedFd> {
        let pool = self.pool(id)?;
        if !pool.exportable {
            return Err(INVALID_VALUE);
        }
        // Without data there is nothing to send.
        let file = pool.file.as_mut().ok_or(CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
        if let Role::Exporter { exported, .. } = &mut file.role {
            *exported = true;
        }
        file.file.try_clone().map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)
    }

    /// A pool of another process, from its descriptor.
    pub(crate) fn import_pool(&mut self, file: BorrowedFd<'_>, made_by: Site) -> Outcome<PoolId> {
        let unknown = CUresult::CUDA_ERROR_UNKNOWN;
        let (file, location) = PoolFile::open(file).ok_or(unknown)?;
        let is_here = match location {
            Location::Device(device) => device < self.setup.devices.len(),
            Location::Node(node) => (0..self.setup.nodes).contains(&node),
            Location::Host => false,
        };
        if !is_here || !self.space.has_data() {
            return Err(unknown);
        }
        // A process has a pool of another one's once, however often it imports it.
        let same =
            |pool: &Pool| !pool.destroyed && pool.file.as_ref().is_some_and(|had| had.is_import_of(&file));
        if let Some((&id, _)) = self.pools.iter().find(|(_, pool)| same(pool)) {
            return Ok(id);
        }
        // What the exporter allowed other devices is not taken over.
        let mut pool = Pool::new(location, first_access(location, false));
        pool.file = Some(file);
        pool.made_by = Some(made_by);
        Ok(self.add_pool(pool))
    }

    /// What another process needs to find the block that starts at an address. Its pool was exported before.
    pub(crate) fn export_pool_block(&self, at: u64) -> Outcome<Parcel> {
        let block = self.blocks.starting_at(at).ok_or(INVALID_VALUE)?;
        let Kind::Pooled(id) = block.kind else { return Err(INVALID_VALUE) };
        let pool = self.pools.get(&id).filter(|pool| pool.exportable).ok_or(INVALID_VALUE)?;
        let file = pool.file.as_ref().ok_or(CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
        let Role::Exporter { offsets, exported: true, .. } = &file.role else { return Err(INVALID_VALUE) };
        let (segment, _) = pool.segment_around(block.start).ok_or(INVALID_VALUE)?;
        let offset = offsets.get(&segment).ok_or(INVALID_VALUE)?;
        Ok(Parcel { pool: file.number, offset: offset + (block.start - segment), len: block.len })
    }

    /// Maps a block of another process. On a device it has the same address each time, on the host it can be mapped once.
    pub(crate) fn import_pool_block(
        &mut self,
        id: PoolId,
        parcel: Parcel,
        device: usize,
        by: Act,
    ) -> Outcome<u64> {
        let Parcel { pool: number, offset, len } = parcel;
        let pool = self.pools.get(&id).filter(|pool| !pool.destroyed).ok_or(INVALID_VALUE)?;
        let (access, location) = (pool.access, pool.location);
        let file = pool.file.as_ref().filter(|file| file.number == number).ok_or(INVALID_VALUE)?;
        let Role::Importer { blocks, .. } = &file.role else { return Err(INVALID_VALUE) };
        if offset.checked_add(len).is_none_or(|end| end > file.len) {
            return Err(INVALID_VALUE);
        }
        if let Some(&start) = blocks.get(&offset) {
            let is_device = matches!(location, Location::Device(_));
            return if is_device { Ok(start) } else { Err(CUresult::CUDA_ERROR_ALREADY_MAPPED) };
        }
        let page = os::page_size() as u64;
        let before = offset % page;
        let room = (before + len).next_multiple_of(page);
        let base = self.space.take(room, page, None).map_err(|_| OUT_OF_MEMORY)?;
        if attach(&self.space, file.file.as_fd(), base, room, offset - before, access.host).is_err() {
            self.space.give_back(base, room);
            return Err(OUT_OF_MEMORY);
        }
        let start = base + before;
        if let Some(pool) = self.pools.get_mut(&id) {
            pool.add_imported(base, room, len);
            if let Some(PoolFile { role: Role::Importer { blocks, .. }, .. }) = &mut pool.file {
                blocks.insert(offset, start);
            }
        }
        let device = if let Location::Device(own) = location { own } else { device };
        let block = Block::new(Kind::Pooled(id), start, len, access, by);
        self.add_block(Block { room: room - before, device, ..block });
        Ok(start)
    }

    /// Whether an address lies in a block of another process's pool, freed or not.
    pub(super) fn is_imported(&self, at: u64) -> bool {
        self.pools.values().any(|pool| pool.is_imported() && pool.holds(at, 1))
    }

    /// Ends the addresses of imported blocks that were freed, and a destroyed pool with its last block.
    pub(super) fn end_imports(&mut self, id: PoolId) {
        let Some(pool) = self.pools.get_mut(&id) else { return };
        for (start, len) in pool.ended_imports() {
            self.space.hide(start, len);
            self.space.detach(start, len);
            self.space.give_back(start, len);
        }
        if pool.destroyed && pool.reserved.current == 0 {
            self.pools.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parcels_survive_the_journey_and_other_bytes_are_none() {
        let parcel = Parcel { pool: 7, offset: 512, len: 1024 };
        assert_eq!(Parcel::from_words(parcel.to_words()), Some(parcel));
        assert_eq!(Parcel::from_words([0; 8]), None);
    }

    #[test]
    fn a_file_is_the_same_pool_wherever_it_is_opened() {
        let made = PoolFile::create(Location::Node(1)).unwrap();
        let (opened, location) = PoolFile::open(made.file.as_fd()).unwrap();
        assert_eq!((opened.number, opened.len, location), (made.number, LEN, Location::Node(1)));
        assert!(opened.is_imported() && !made.is_imported());
        let other = PoolFile::create(Location::Node(1)).unwrap();
        assert_ne!(other.number, made.number);
    }
}
