//! Gets a device's memory for heaps in which nothing free fits.

use std::collections::{BTreeMap, BTreeSet};

use super::backend::Backend;
use super::heap::{Block, StreamHeap};
use super::memory::Memory;
use super::moving::{Free, Plan};
use super::sizes::{BlockIndex, GRANULE, Hold, MEDIUM, Policy, SLAB};
use super::timeline::Timeline;
use super::window::Search;

/// From so many bytes held in all a heap joins its quick lists before it asks for more. Below, speed is worth more than the memory.
const JOINS_FROM_BYTES: usize = 64 << 20;

/// A heap's range is this many times as long as what the device has: windows leave room behind them, and stale mappings stay.
const RANGE_FACTOR: u64 = 2;

/// The page source of a device.
#[derive(Debug)]
pub(crate) struct PageSource<B: Backend> {
    pub(crate) backend: B,
    pub(super) memory: Memory,
    pub(super) policy: Policy,
    /// The most bytes that may be held, here and elsewhere.
    limit: usize,
    /// The bytes that private pools hold of the limit. Handles shrink only where half their size suits what is left: no size serves another's gaps.
    pub(crate) elsewhere: usize,
    /// The bytes of the limit set aside for their next segments, which may not exist yet.
    pub(crate) claimed: usize,
    total: u64,
    pub(super) timelines: BTreeMap<u32, Timeline<B>>,
    /// Counts what is asked of the source: in one round no point is asked twice.
    pub(super) round: u64,
    /// By heap.
    pub(super) asked: BTreeMap<u32, Asked>,
    pub(super) budget: MoveBudget,
    /// What there can be: what was held here and elsewhere, and what the device had left, when it was asked. Once for one allocation.
    room: Option<usize>,
}

/// When a heap asked for memory last, how often it did after idle handles had gone from it to others, and whether some have gone since.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) round: u64,
    pub(super) returns: u32,
    pub(super) has_lent: bool,
}

/// The heaps of the device. Each call has a heap for a moment; no call of the backend is made meanwhile.
pub(crate) trait Heaps {
    type Index: BlockIndex;

    /// The numbers of all heaps but one.
    fn others(&self, but: u32) -> Vec<u32>;

    /// Runs `body` on a heap; None if there is no such heap.
    fn with<R>(&mut self, heap: u32, body: impl FnOnce(&mut StreamHeap) -> R) -> Option<R>;

    /// Where a heap enters its blocks.
    fn index(&self, heap: u32) -> Self::Index;
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// The bytes of the block, a multiple of 512.
    pub(crate) size: usize,
    /// How many of them were not asked for.
    pub(crate) unused: usize,
    /// The most bytes that there ever were in blocks, with this one: no statistic that a user may reset.
    pub(crate) peak: usize,
}

/// Why there is no block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum GrowError<E> {
    /// Neither is there more memory nor can any that is free be had for it.
    OutOfMemory,
    Backend(E),
    /// There are no more numbers for blocks.
    NoNumbers,
    /// Memory was to be unmapped at an address where a block may be: a fault of the records.
    InUse {
        address: u64,
    },
}

impl<E> From<E> for GrowError<E> {
    fn from(error: E) -> Self {
        Self::Backend(error)
    }
}

/// What the driver's calls for moving pages may take.
#[derive(Debug, Default)]
pub(super) struct MoveBudget {
    /// When the current second began, and what was spent in it, in microseconds.
    since_us: u64,
    pub(super) spent_us: u64,
}

impl MoveBudget {
    /// What a call that maps a handle a second time takes, with the one that takes the old mapping away, in microseconds.
    pub(super) const MOVE_US: u64 = 34;

    fn is_spent(&mut self, now_us: u64, us_per_s: u64) -> bool {
        if now_us.saturating_sub(self.since_us) >= 1_000_000 {
            (self.since_us, self.spent_us) = (now_us, 0);
        }
        self.spent_us >= us_per_s
    }
}

/// The bytes that may be made new.
#[derive(Debug, Clone, Copy)]
pub(super) struct Headroom {
    /// Before anything moves.
    pub(super) first: usize,
    /// When nothing that moves helps: the reserve too.
    pub(super) last: usize,
    /// The bytes that there can be in all: what is held, and what the device has left.
    room: usize,
}

impl<B: Backend> PageSource<B> {
    pub(crate) fn new(backend: B, policy: Policy, total: u64) -> Self {
        Self {
            backend,
            memory: Memory::default(),
            policy,
            limit: usize::MAX,
            elsewhere: 0,
            claimed: 0,
            total,
            timelines: BTreeMap::new(),
            round: 0,
            asked: BTreeMap::new(),
            budget: MoveBudget::default(),
            room: None,
        }
    }

    /// The most bytes that may be held here.
    pub(crate) const fn limit(&self) -> usize {
        self.limit.saturating_sub(self.elsewhere.saturating_add(self.claimed))
    }

    /// Sets the most that may be held, in bytes, here and elsewhere; what is held already stays. New handles suit the limit.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        let total = usize::try_from(self.total).unwrap_or(usize::MAX);
        self.policy.handle_bytes = Policy::for_memory(limit.min(total)).handle_bytes;
    }

    /// Another allocation comes for memory: the device is asked anew what it has left.
    pub(crate) fn begin(&mut self) {
        self.room = None;
    }

    /// What the device has left. An allocation that climbs the ladder comes here several times: the device is asked the first time, and what
    /// was made and released since then, here and elsewhere, is counted.
    fn left(&mut self) -> usize {
        let (held, backend) = (self.reserved().saturating_add(self.elsewhere), &mut self.backend);
        let room = self.room.get_or_insert_with(|| held.saturating_add(backend.left().unwrap_or(usize::MAX)));
        room.saturating_sub(held)
    }

    /// Gets a block for a heap in which [`StreamHeap::allocate`] found none.
    ///
    /// No heap is held while the backend is called. What was made and mapped before an error stays, free.
    pub(crate) fn grow(
        &mut self,
        heap: u32,
        heaps: &mut impl Heaps,
        wanted: Wanted,
    ) -> Result<Block, GrowError<B::Error>> {
        self.round += 1;
        let asked = self.asked.entry(heap).or_default();
        asked.round = self.round;
        asked.returns += u32::from(std::mem::take(&mut asked.has_lent));
        let headroom = self.headroom(wanted);
        // Handles have one size, unless there was more memory, or less, when others were made.
        let unit = self.handle_bytes(headroom.room);
        let others: BTreeSet<usize> =
            self.memory.ranges_of(heap).map(|range| range.unit).filter(|other| *other != unit).collect();
        // What is free moves before the reserve is used, of whichever size it is.
        let skips = usize::from(others.is_empty() || headroom.first == headroom.last);
        for headroom in [Headroom { last: headroom.first, ..headroom }, headroom].into_iter().skip(skips) {
            for unit in [unit].into_iter().chain(others.iter().rev().copied()) {
                match self.grow_by(unit, heap, heaps, (wanted, headroom)) {
                    Err(GrowError::OutOfMemory) => {}
                    // More mappings than the driver has room for are a lack of memory too.
                    Err(GrowError::Backend(error)) if B::is_out_of_memory(&error) => {}
                    grown => return grown,
                }
            }
        }
        Err(GrowError::OutOfMemory)
    }

    /// As [`PageSource::grow`], with handles of one size.
    fn grow_by(
        &mut self,
        unit: usize,
        heap: u32,
        heaps: &mut impl Heaps,
        (wanted, mut headroom): (Wanted, Headroom),
    ) -> Result<Block, GrowError<B::Error>> {
        let (mut has_new_range, index) = (false, heaps.index(heap));
        loop {
            let done = self.timelines.entry(heap).or_default().reached(self.round, &mut self.backend);
            let planned =
                heaps.with(heap, |mine| self.plan(unit, heap, mine, (wanted, headroom, done), &index));
            match planned.ok_or(GrowError::NoNumbers)? {
                Planned::Block(block) => return Ok(block),
                Planned::NoRange if has_new_range => return Err(GrowError::OutOfMemory),
                Planned::NoRange => {
                    self.add_range(heap, wanted.size, unit)?;
                    has_new_range = true;
                }
                Planned::Fill(mut plan) => {
                    let filled = self.fill(&mut plan, heaps, wanted, headroom);
                    if matches!(filled, Ok(true)) {
                        return self.commit(&plan, heaps, wanted, &index);
                    }
                    self.give_up(plan, heaps);
                    filled?;
                    // The driver refuses: what there is has to do.
                    headroom = Headroom { first: 0, last: 0, ..headroom };
                }
            }
        }
    }

    /// A block that fits by now, or the window that lacks the fewest handles, with what is free in it and what it takes from the same heap.
    fn plan(
        &mut self,
        unit: usize,
        heap: u32,
        mine: &mut StreamHeap,
        (wanted, headroom, done): (Wanted, Headroom, u64),
        index: &impl BlockIndex,
    ) -> Planned {
        let Wanted { size, unused, .. } = wanted;
        // Another thread may have freed or grown meanwhile.
        if let Some(block) = mine.allocate(size, unused, index) {
            return Planned::Block(block);
        }
        if self.reserved() >= JOINS_FROM_BYTES {
            mine.coalesce(index);
            if let Some(block) = mine.allocate(size, unused, index) {
                return Planned::Block(block);
            }
        }
        let (size, alignment) = if size <= MEDIUM { (SLAB, SLAB) } else { (size, GRANULE) };
        let free = if self.policy.moves { self.wholly_free(heap, mine) } else { Vec::new() };
        let search = Search {
            memory: &self.memory,
            spans: &mine.large,
            size: size as u64,
            alignment: alignment as u64,
            done,
            free: free.iter().map(|free| (free.handle, *free)).collect(),
        };
        match search.find(heap, unit) {
            Some(window) => Planned::Fill(self.claim(heap, mine, window, free, headroom)),
            None => Planned::NoRange,
        }
    }

    /// The bytes that may be made new for a block: what the limit, the policy and the device leave.
    fn headroom(&mut self, wanted: Wanted) -> Headroom {
        let held = self.reserved();
        let of_limit = self.limit().saturating_sub(held);
        let of_policy = match self.policy.hold {
            Hold::Ample => usize::MAX,
            Hold::Tight { over_peak } => ((wanted.peak as f64 * over_peak) as usize).saturating_sub(held),
        };
        let left = if of_limit == 0 { 0 } else { self.left() };
        let last = of_limit.min(left);
        // Beyond a share of the time for moving pages the reserve is used first.
        let now = u64::try_from(self.backend.now().as_micros()).unwrap_or(u64::MAX);
        let is_spent = self.budget.is_spent(now, self.policy.moves_us_per_s);
        let reserve = if is_spent { 0 } else { self.policy.reserve_bytes };
        let first = last.min(of_policy).min(left.saturating_sub(reserve));
        Headroom { first, last, room: held.saturating_add(left) }
    }

    /// The bytes of new handles where there is room for so much: fewer than the policy says where neighbours leave so little that large ones
    /// would strand a part of it.
    pub(crate) fn handle_bytes(&self, room: usize) -> usize {
        let fit = Policy::for_memory(room.min(self.limit())).handle_bytes;
        if fit.saturating_mul(2) <= self.policy.handle_bytes { fit } else { self.policy.handle_bytes }
    }

    /// Reserves a range of addresses for a heap, long enough for a block.
    fn add_range(&mut self, heap: u32, size: usize, unit: usize) -> Result<(), GrowError<B::Error>> {
        let needed =
            (size as u64).saturating_mul(2).next_multiple_of(unit as u64).saturating_add(unit as u64);
        let wanted = self.total.saturating_mul(RANGE_FACTOR).next_multiple_of(unit as u64).max(needed);
        // Where there are not as many addresses in a row, those that are needed do.
        for bytes in [wanted, needed] {
            if let Some(start) = self.backend.reserve(bytes)? {
                self.memory.add_range(heap, start, start + bytes, unit);
                return Ok(());
            }
        }
        Err(GrowError::OutOfMemory)
    }

    /// The window's memory is there: hands its block out.
    fn commit(
        &mut self,
        plan: &Plan,
        heaps: &mut impl Heaps,
        wanted: Wanted,
        index: &impl BlockIndex,
    ) -> Result<Block, GrowError<B::Error>> {
        let Wanted { size, unused, .. } = wanted;
        let start = plan.window.start;
        let got = heaps.with(plan.heap, |mine| {
            let span = plan.offer(mine)?;
            let block = if size <= MEDIUM {
                mine.allocate(size, unused, index)
            } else {
                mine.cut_at((span, start), size, unused, index)
            };
            Some((block?, mine.now()))
        });
        let (block, now) = got.flatten().ok_or(GrowError::NoNumbers)?;
        if plan.came {
            // Behind what became stale, so that it is known when it may go.
            self.timelines.entry(plan.heap).or_default().make(plan.heap, now, &mut self.backend);
        }
        Ok(block)
    }

    /// The handles of a heap that are wholly free and may be moved. A free span may reach into the next range, with handles of another size.
    pub(super) fn wholly_free(&self, heap: u32, mine: &StreamHeap) -> Vec<Free> {
        let mut found = Vec::new();
        for span in mine.large.free_from(SLAB) {
            let (mut next, end) = (span.address, span.end());
            while let Some((address, handle, record)) = self.memory.active_at(next).filter(|_| next < end) {
                next = address + record.bytes as u64;
                if address >= span.address && next <= end && record.pins == 0 {
                    let (bytes, span, freed_at) = (record.bytes, span.number, span.freed_at);
                    found.push(Free { handle, heap, address, bytes, span, freed_at });
                }
            }
        }
        found
    }
}

/// What [`PageSource::plan`] found.
enum Planned {
    Block(Block),
    Fill(Plan),
    /// No range of the heap has a window.
    NoRange,
}
