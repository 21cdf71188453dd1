//! Gets a device's memory in pages, and moves free pages to where they are needed.

use std::collections::BTreeMap;

use super::backend::Backend;
use super::ground::Ground;
use super::habits::Habits;
use super::haste::Haste;
use super::heap::{Block, StreamHeap};
use super::homing::Away;
use super::index::BlockIndex;
use super::marks::{Marks, is_done};
use super::pages::ROOMY;
use super::policy::{Holding, Policy, cost};
use super::sizes::{GRANULE, MEDIUM, PAGE};

/// The page source of a device.
///
/// Heaps come to it when nothing free fits. It makes handles of physical memory, maps them, and maps free ones elsewhere
/// rather than make more: a second mapping needs no wait on the stream whose memory it is, another stream waits for it, and the
/// old one goes when all that used it is done. The [module](super) has an example.
#[derive(Debug)]
pub struct PageSource<B: Backend> {
    pub(super) backend: B,
    pub(super) ground: Ground,
    pub(super) policy: Policy,
    pub(super) marks: BTreeMap<u32, Marks<B::Mark>>,
    /// Counts what is asked of the source: in one round no point is asked for twice.
    pub(super) round: u64,
    /// How many addresses are reserved at once.
    pub(super) range: u64,
    most_bytes: usize,
    pub(super) limit: usize,
    /// Handles that are nowhere mapped, because the driver refused to take them back.
    pub(super) homeless: Vec<u32>,
    pub(super) habits: Habits,
    /// Addresses that no window of a nest has had.
    pub(super) windows: (u64, u64),
    /// Addresses behind those of memory that was given.
    pub(super) presents: (u64, u64),
    pub(super) haste: Haste,
    /// Handles that were moved from their place, and may be back.
    pub(super) away: Vec<Away>,
}

/// The other heaps of the device, each of which can be had for a moment. The [module](super) has an example.
pub trait Heaps {
    /// The numbers of all but the one that grows.
    fn others(&self) -> Vec<u32>;

    /// Runs `body` on one of them; None if there is no such heap.
    fn with<R>(&mut self, heap: u32, body: impl FnOnce(&mut StreamHeap) -> R) -> Option<R>;

    /// As [`Heaps::with`]; None, too, if somebody has it right now: for what another heap would do for as well.
    fn try_with<R>(&mut self, heap: u32, body: impl FnOnce(&mut StreamHeap) -> R) -> Option<R> {
        self.with(heap, body)
    }
}

/// What is in use. The [module](super) has an example.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// The bytes in blocks, without the one that is asked for.
    pub active: usize,
    /// The most that they ever were.
    pub peak: usize,
}

/// What a heap asks for. The [module](super) has an example.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The bytes of the block, a multiple of the granule.
    pub size: usize,
    /// How many of them were not asked for.
    pub unused: usize,
    /// What is in use without it.
    pub load: Load,
}

/// Why there is no block. The [module](super) has an example.
#[derive(Debug, PartialEq, Eq)]
pub enum GrowError<E> {
    /// Neither is there more memory nor can any that is free be had for it.
    OutOfMemory,
    /// The backend's.
    Backend(E),
    /// The books are full.
    NoNumbers,
    /// Memory was to be mapped where there is some that may be in use: a fault of the books.
    InUse {
        /// Where that begins.
        address: u64,
    },
}

impl<E> From<E> for GrowError<E> {
    fn from(error: E) -> Self {
        Self::Backend(error)
    }
}

impl<B: Backend> PageSource<B> {
    /// A source that reserves addresses `range` bytes at a time, a multiple of the page.
    #[must_use]
    pub fn new(backend: B, policy: Policy, range: u64) -> Self {
        Self {
            backend,
            ground: Ground::new(),
            policy,
            marks: BTreeMap::new(),
            round: 0,
            range,
            most_bytes: 0,
            limit: usize::MAX,
            homeless: Vec::new(),
            habits: Habits::default(),
            windows: (0, 0),
            presents: (0, 0),
            haste: Haste::default(),
            away: Vec::new(),
        }
    }

    /// The physical memory that is held, in bytes.
    #[must_use]
    pub fn reserved(&self) -> usize {
        self.ground.bytes()
    }

    /// The most that ever was held, in bytes.
    #[must_use]
    pub fn most_reserved(&self) -> usize {
        self.most_bytes
    }

    /// The most mappings that there were at once.
    #[must_use]
    pub fn most_mappings(&self) -> usize {
        self.ground.most_mappings()
    }

    /// The address and the bytes of each mapping.
    pub(crate) fn mapped(&self) -> Vec<(u64, usize)> {
        self.ground.maps().map(|(address, map)| (address, map.bytes())).collect()
    }

    /// The backend.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The backend.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// The most that it may hold, in bytes.
    #[must_use]
    pub(crate) const fn limit(&self) -> usize {
        self.limit
    }

    /// Sets the most that may be held, in bytes; what is held already stays. Half of what a limit leaves that is close to what is
    /// in use, or three quarters, is used before pages are moved.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Host memory that the books take, in bytes.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        let books = self.ground.metadata_bytes().saturating_add(self.habits.metadata_bytes());
        let books = books.saturating_add(self.haste.metadata_bytes());
        let books = books.saturating_add(self.away.capacity().saturating_mul(size_of::<Away>()));
        size_of::<Self>().saturating_add(books)
    }

    /// A block of `size` bytes, a multiple of the granule, for a heap in which [`StreamHeap::allocate`] found none.
    ///
    /// What was made and mapped before an error stays in the heap, free.
    ///
    /// # Errors
    ///
    /// [`GrowError`].
    pub fn grow(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        others: &mut impl Heaps,
        wanted: Wanted,
        index: &impl BlockIndex,
    ) -> Result<Block, GrowError<B::Error>> {
        let Wanted { size, unused, load } = wanted;
        self.marks.entry(heap).or_default();
        // Nothing is got while what is here would do. From then on the heap sees to that by itself, as far as it goes: of many heaps each
        // would come here for it all the time.
        let is_full = self.ground.bytes() >= self.policy.room_of_all(self.marks.len());
        mine.room = if is_full { mine.held_bytes().min(ROOMY) } else { ROOMY };
        if is_full && let Some(block) = mine.allocate_of_kept(size, unused, index) {
            return Ok(block);
        }
        self.round += 1;
        self.pay(heap, mine);
        let block = self.get(heap, mine, others, Wanted { size, unused, load }, index);
        if size > MEDIUM && block.is_err() {
            self.habits.forget(size);
        }
        block
    }

    /// As [`PageSource::grow`], where nothing that the heap keeps will do.
    fn get(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        others: &mut impl Heaps,
        Wanted { size, unused, load }: Wanted,
        index: &impl BlockIndex,
    ) -> Result<Block, GrowError<B::Error>> {
        let small = size <= MEDIUM;
        // A small block lies in a page, which begins at a multiple of its size: that fits into these bytes wherever they begin.
        let wanted = if small { 2 * PAGE - GRANULE } else { size };
        self.set_care(heap, mine, wanted, load);
        if !small {
            self.habits.see(heap, size, mine.frees(), &self.policy);
        }
        // One that is not little itself would take thousands of leaves.
        if size <= self.little()
            && self.holds_little(heap, mine)
            && let Some(block) = self.grow_nest(heap, mine, others, Wanted { size, unused, load }, index)?
        {
            return Ok(block);
        }
        self.dissolve(heap, mine);
        if self.go_home(heap, mine)?
            && let Some(block) = mine.allocate(size, unused, index)
        {
            return Ok(block);
        }
        self.set_care(heap, mine, wanted, load);
        let place = if small { None } else { self.place(mine, size) };
        if let Some(place) = place.filter(|place| place.price <= cost::MAP) {
            let block = mine.allocate_at(place.number, place.address, size, unused, index);
            return block.ok_or(GrowError::NoNumbers);
        }
        let limit = place.map_or(i64::MAX, |place| place.price);
        let assembled = match self.assemble(heap, mine, others, wanted, load, limit) {
            Ok(Some(address)) => Some(address),
            Ok(None) => place.map(|place| place.address),
            // A place that breaks up a handle is better than none; what there is may have moved.
            Err(GrowError::OutOfMemory) if !small => self.place(mine, size).map(|place| place.address),
            Err(error) => return Err(error),
        };
        let address = assembled.ok_or(GrowError::OutOfMemory)?;
        self.set_care(heap, mine, wanted, load);
        self.sweep()?;
        let block =
            if small { mine.allocate(size, unused, index) } else { mine.take(address, size, unused, index) };
        block.ok_or(GrowError::NoNumbers)
    }

    /// Whether large blocks of the heap are placed by [`PageSource::place`] from now on: while more is held than should be, and nobody else
    /// waits to come here meanwhile.
    fn set_care(&self, heap: u32, mine: &mut StreamHeap, size: usize, load: Load) {
        let most = load.peak.max(load.active.saturating_add(size));
        let beyond =
            thousandths(self.share_of_left(most), self.policy.tight.saturating_sub(self.policy.slack));
        let tight = !self.haste.keeps_waiting()
            && self.ground.bytes() > thousandths(most, self.policy.tight).max(self.haste.given()).max(beyond);
        mine.placed = if self.holds_little(heap, mine) {
            MEDIUM + 1
        } else if tight {
            self.policy.placed
        } else {
            usize::MAX
        };
    }

    /// What may be held for the most that will have been in use.
    pub(super) fn allowed(&self, size: usize, load: Load) -> usize {
        let left = self.share_of_left(load.peak.max(load.active.saturating_add(size)));
        self.slack(size, load).max(self.given(size, load)).max(left).min(self.limit)
    }

    /// Three quarters of the way from the most that was in use to a limit that is close to it, half of it if that leaves little:
    /// nobody else has a use for that, and the rest is for what cannot be moved. 0 if no limit is close.
    fn share_of_left(&self, most: usize) -> usize {
        let left = self.limit.saturating_sub(most);
        if self.limit > most.saturating_add(most / 1000 * self.policy.near) {
            0
        } else if left >= most / 1000 * self.policy.ample {
            most.saturating_add(left / 4 * 3)
        } else {
            most.saturating_add(left / 2)
        }
    }

    /// As [`PageSource::allowed`], without a limit and for a program that has time.
    pub(super) fn slack(&self, size: usize, load: Load) -> usize {
        let most = load.peak.max(load.active.saturating_add(size));
        let slack = self.policy.slack_bytes(most, self.marks.len().max(1));
        most.saturating_add(slack).max(self.room_of_heaps())
    }

    /// What the heaps need to themselves: they take from each other all the time otherwise.
    pub(super) fn room_of_heaps(&self) -> usize {
        self.policy.room_of_heap.saturating_mul(self.marks.len())
    }

    /// What handles are made by.
    pub(super) fn holding(&self) -> Holding {
        Holding { bytes: self.ground.bytes(), mean: self.habits.mean(), heaps: self.marks.len() }
    }

    /// A new handle, if memory and the limit allow it.
    pub(super) fn create(&mut self, heap: u32, bytes: usize) -> Result<Option<u32>, GrowError<B::Error>> {
        let same = |chunk: &u32| self.ground.chunk(*chunk).is_some_and(|chunk| chunk.bytes == bytes);
        if let Some(at) = self.homeless.iter().position(same) {
            let chunk = self.homeless.swap_remove(at);
            if let Some(chunk) = self.ground.chunk_mut(chunk) {
                chunk.heap = heap;
            }
            return Ok(Some(chunk));
        }
        if self.ground.bytes().saturating_add(bytes) > self.limit {
            return Ok(None);
        }
        let Some(memory) = self.backend.create(bytes)? else { return Ok(None) };
        self.most_bytes = self.most_bytes.max(self.ground.bytes().saturating_add(bytes));
        match self.ground.add(memory, bytes, heap) {
            Some(chunk) => Ok(Some(chunk)),
            None => {
                self.backend.release(memory, bytes)?;
                Err(GrowError::NoNumbers)
            }
        }
    }

    /// Addresses that nothing else has, from the first to behind the last: as many as are reserved at once, or if there are not so
    /// many in a row, no more than are needed. None if there are not even these.
    pub(super) fn reserve(&mut self, needed: u64) -> Result<Option<(u64, u64)>, B::Error> {
        let fewer = (needed < self.range).then_some(needed);
        for bytes in [self.range.max(needed)].into_iter().chain(fewer) {
            if let Some(address) = self.backend.reserve(bytes)? {
                return Ok(Some((address, address + bytes)));
            }
        }
        Ok(None)
    }

    /// Reserves more addresses, enough for a window of `size` bytes.
    pub(super) fn add_range(&mut self, size: usize) -> Result<(), GrowError<B::Error>> {
        let needed = (size as u64).saturating_mul(2).next_multiple_of(1 << 30);
        let (address, end) = self.reserve(needed)?.ok_or(GrowError::OutOfMemory)?;
        // Its last page stays empty: a row of handles never goes on in the next range, which may lie right behind this one. One call
        // takes one range.
        self.ground.add_range(address, (end - address).saturating_sub(PAGE as u64));
        Ok(())
    }

    pub(super) fn marks_of(&mut self, heap: u32) -> &mut Marks<B::Mark> {
        self.marks.entry(heap).or_default()
    }

    /// Whether the device has come past a count of a heap.
    pub(super) fn is_done(&mut self, heap: u32, count: u64) -> Result<bool, B::Error> {
        is_done(&mut self.marks, heap, count, self.round, &mut self.backend)
    }

    /// Takes stale mappings away whose work is done, when there are very many.
    pub(super) fn sweep(&mut self) -> Result<(), GrowError<B::Error>> {
        if self.ground.mappings() <= self.policy.most_mappings {
            return Ok(());
        }
        let stale: Vec<(u64, usize, u32, u64)> = self
            .ground
            .maps()
            .filter(|(_, map)| map.is_stale() && !map.is_place())
            .map(|(address, map)| (address, map.bytes(), map.heap, map.left_at))
            .collect();
        let too_many = self.ground.mappings() - self.policy.most_mappings / 2;
        for (address, bytes, heap, left_at) in stale.into_iter().take(too_many) {
            if self.is_done(heap, left_at)? {
                self.backend.unmap(address, bytes)?;
                self.ground.unmap(address);
            }
        }
        Ok(())
    }
}

fn thousandths(bytes: usize, more: u32) -> usize {
    bytes.saturating_add(bytes / 1000 * more as usize)
}
