//! Moves free memory to where it is needed, when there is no headroom for more of it.
//!
//! A free handle is mapped a second time in the slot that needs it. On its own stream nothing waits: all work that used it comes before all
//! work that will. Another stream waits on the device for the stream that used it last. The old mapping is stale from then on. It is unmapped
//! when its slot is needed and the work of its heap is done.

use super::backend::Backend;
use super::growth::{GrowError, Headroom, Heaps, MoveBudget, PageSource, Wanted};
use super::heap::StreamHeap;
use super::memory::Content;
use super::window::Window;
use crate::engine::slab::NONE;

/// The most stale mappings of a handle. The driver has room for 524,072 mappings of a process, and the largest devices have 7,000 handles.
const MOST_STALE: usize = 32;

/// So much more than its share may be held before idle streams leave memory to others.
const IDLE_BYTES: usize = 32 << 20;

/// A stream that came back so often for what it had left to others takes turns with them: it keeps what it has.
const TURNS: u32 = 3;

/// A handle that is wholly free, or mapped nowhere.
#[derive(Debug, Clone, Copy)]
pub(super) struct Free {
    pub(super) handle: u32,
    pub(super) heap: u32,
    pub(super) address: u64,
    pub(super) bytes: usize,
    /// The free span that it is in, as long as nothing before it in the span is taken.
    pub(super) span: u32,
    /// The latest free in that span, on the heap's count.
    pub(super) freed_at: u64,
}

/// A window that is being filled. No other request has its free bytes and the free handles that it takes meanwhile.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) heap: u32,
    pub(super) window: Window,
    /// The handles for its slots: free ones of the same heap and of others, then new ones.
    handles: Vec<Free>,
    filled: Vec<u64>,
    /// Whether memory came to it from elsewhere.
    pub(super) came: bool,
}

impl Plan {
    /// Offers the window's memory to its heap. The number of the free span that has it.
    pub(super) fn offer(&self, mine: &mut StreamHeap) -> Option<u32> {
        let latest = || self.window.parts.iter().map(|part| part.freed_at).max().unwrap_or(0);
        let freed_at = if self.came { mine.tick() } else { latest() };
        let parts = self.window.parts.iter().map(|part| (part.address, part.size));
        let mut pieces: Vec<(u64, usize)> =
            parts.chain(self.filled.iter().map(|slot| (*slot, self.window.unit))).collect();
        pieces.sort_unstable();
        let mut joined = None;
        for (address, bytes) in pieces {
            joined = mine.large.offer(address, bytes, freed_at);
        }
        joined
    }
}

impl<B: Backend> PageSource<B> {
    /// Takes the free bytes of a window out of its heap, and the heap's free handles that it needs beside what may be made new.
    pub(super) fn claim(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        window: Window,
        mut free: Vec<Free>,
        headroom: Headroom,
    ) -> Plan {
        let lacks = window.lacks.len();
        let new = lacks.min(headroom.first / window.unit);
        let is_return = |free: &Free| window.returns.iter().any(|(other, _)| other.handle == free.handle);
        free.retain(|free| free.bytes == window.unit && !window.has(free.address) && !is_return(free));
        // Those that were freed first are wanted again last, as far as anybody can tell.
        free.sort_unstable_by_key(|free| (free.freed_at, free.address));
        free.truncate(lacks - new);
        let parts = window.parts.iter().map(|part| (part.number, part.address, part.size));
        let handles = free.iter().chain(window.returns.iter().map(|(free, _)| free));
        let handles = handles.map(|free| (free.span, free.address, free.bytes));
        let mut taken: Vec<(u32, u64, usize)> = parts.chain(handles).collect();
        // From the end of each span on: what is left before keeps its number.
        taken.sort_unstable_by_key(|(_, address, _)| std::cmp::Reverse(*address));
        for (span, address, bytes) in taken {
            mine.large.withdraw(span, address, bytes);
        }
        Plan { heap, window, handles: free, filled: Vec::new(), came: false }
    }

    /// Gets the handles that a window lacks and maps them. False if the driver makes fewer than there is headroom for.
    pub(super) fn fill(
        &mut self,
        plan: &mut Plan,
        heaps: &mut impl Heaps,
        wanted: Wanted,
        headroom: Headroom,
    ) -> Result<bool, GrowError<B::Error>> {
        let (lacks, unit) = (plan.window.lacks.len(), plan.window.unit);
        if self.policy.moves {
            // Idle streams that hold much more than anybody ever had in use leave it to others.
            let new = lacks.min(headroom.first / unit);
            let held = self.reserved().saturating_add(new * unit);
            let share = (wanted.peak / 1000).saturating_mul(self.policy.idle_permille);
            if new > 0 && held > share.saturating_add(IDLE_BYTES) {
                self.take_from_others(plan, heaps, lacks, true);
            }
            let new = new.min(lacks.saturating_sub(plan.handles.len()));
            self.take_from_others(plan, heaps, lacks - new, false);
        }
        let heap = plan.heap;
        let new = |handle| Free { handle, heap, address: 0, bytes: unit, span: NONE, freed_at: 0 };
        let unmapped = self.memory.unmapped().filter(|(_, bytes)| *bytes == unit);
        let missing = lacks.saturating_sub(plan.handles.len());
        plan.handles.extend(unmapped.take(missing).map(|(handle, _)| new(handle)));
        if lacks.saturating_sub(plan.handles.len()) > headroom.last / unit {
            return Err(GrowError::OutOfMemory);
        }
        while plan.handles.len() < lacks {
            let Some(handle) = self.make(unit)? else { return Ok(false) };
            plan.handles.push(new(handle));
        }
        self.map(plan).map(|()| true)
    }

    /// Makes a handle. None if there is no memory for it.
    fn make(&mut self, unit: usize) -> Result<Option<u32>, GrowError<B::Error>> {
        if self.reserved().saturating_add(unit) > self.limit() {
            return Ok(None);
        }
        let Some(memory) = self.backend.create(unit)? else { return Ok(None) };
        let Some(handle) = self.memory.add(memory, unit) else {
            self.backend.release(memory, unit)?;
            return Err(GrowError::NoNumbers);
        };
        Ok(Some(handle))
    }

    /// Takes wholly free handles of other heaps until a plan has `enough`, those of the heap that asked for nothing for longest first.
    /// Only handles whose work is done if `quiet`; else the stream waits on the device for the work with the others.
    fn take_from_others(&mut self, plan: &mut Plan, heaps: &mut impl Heaps, enough: usize, quiet: bool) {
        let (unit, round) = (plan.window.unit, self.round);
        let mut others = heaps.others(plan.heap);
        others.retain(|other| !quiet || self.asked.get(other).is_none_or(|asked| asked.returns < TURNS));
        others.sort_by_key(|other| self.asked.get(other).map_or(0, |asked| asked.round));
        for other in others {
            let missing = enough.saturating_sub(plan.handles.len());
            if missing == 0 {
                return;
            }
            let index = heaps.index(other);
            let found = heaps.with(other, |theirs| {
                theirs.coalesce(&index);
                let mut free = self.wholly_free(other, theirs);
                free.retain(|free| free.bytes == unit);
                free.sort_unstable_by_key(|free| (free.freed_at, free.address));
                free.truncate(missing);
                free.sort_unstable_by_key(|free| std::cmp::Reverse(free.address));
                free.retain(|free| theirs.large.withdraw(free.span, free.address, free.bytes));
                (free, theirs.now())
            });
            let Some((mut free, now)) = found.filter(|(free, _)| !free.is_empty()) else { continue };
            free.sort_unstable_by_key(|free| free.freed_at);
            let (timeline, backend) = (self.timelines.entry(other).or_default(), &mut self.backend);
            // A point for the next time, if nothing is known yet.
            timeline.make(other, now, backend);
            let last = free.last().map_or(0, |free| free.freed_at);
            let ordered = if quiet { 0 } else { timeline.order(other, last, plan.heap, round, backend) };
            let (taken, refused): (Vec<Free>, Vec<Free>) = free.into_iter().partition(|free| {
                free.freed_at <= ordered || timeline.is_done(free.freed_at, round, backend)
            });
            if quiet && !taken.is_empty() {
                self.asked.entry(other).or_default().has_lent = true;
            }
            plan.handles.extend(taken);
            self.give_back(refused, heaps);
        }
    }

    /// Maps the handles of a plan in its slots, with one call for those of a row that lets the device in. Others stay the plan's.
    fn map(&mut self, plan: &mut Plan) -> Result<(), GrowError<B::Error>> {
        let unit = plan.window.unit;
        for (free, slot) in std::mem::take(&mut plan.window.returns) {
            self.announce(free.handle, free.address);
            self.settle(plan, free, slot);
        }
        let slots = std::mem::take(&mut plan.window.lacks);
        for row in slots.chunk_by(|one, next| one + unit as u64 == *next) {
            self.clear(row, unit)?;
            let handles = &mut plan.handles[..row.len()];
            handles.reverse();
            let mut memory = Vec::with_capacity(handles.len());
            for free in handles {
                if !self.is_unmapped(*free) {
                    self.announce(free.handle, free.address);
                    self.budget.spent_us = self.budget.spent_us.saturating_add(MoveBudget::MOVE_US);
                }
                memory.push(self.memory.handle(free.handle).ok_or(GrowError::NoNumbers)?.memory);
            }
            let (mapped, outcome) = self.backend.map(row[0], unit, &memory);
            let mapped: Vec<Free> = plan.handles.drain(..mapped).collect();
            mapped.into_iter().zip(row).for_each(|(free, slot)| self.settle(plan, free, *slot));
            outcome?;
        }
        Ok(())
    }

    /// Makes a handle, which is mapped in a slot of a plan, active there. Where it was before it is stale.
    fn settle(&mut self, plan: &mut Plan, free: Free, slot: u64) {
        if self.is_unmapped(free) {
            self.memory.renew(free.handle);
        } else {
            self.memory.leave(free.handle, free.freed_at);
            self.backend.moved(free.heap, free.address, free.bytes, false);
            plan.came = true;
        }
        self.memory.activate(free.handle, slot);
        self.backend.moved(plan.heap, slot, free.bytes, true);
        plan.filled.push(slot);
        // The oldest stale mapping goes, if there are very many and the work there is done.
        let handle = self.memory.handle(free.handle).filter(|handle| handle.stale.len() > MOST_STALE);
        let Some((address, bytes)) = handle.map(|handle| (handle.stale[0], handle.bytes)) else { return };
        if self.is_passed(address) && self.backend.unmap(address, bytes).is_ok() {
            self.memory.unmap(address);
        }
    }

    pub(super) fn is_unmapped(&self, free: Free) -> bool {
        self.memory.handle(free.handle).is_none_or(|handle| handle.active.is_none())
    }

    /// Unmaps stale mappings in slots that are needed, whose work is done.
    fn clear(&mut self, slots: &[u64], unit: usize) -> Result<(), GrowError<B::Error>> {
        let mut stale = Vec::new();
        for address in slots.iter().copied() {
            match self.memory.range_at(address).map(|range| range.content(address)) {
                Some(Content::Stale { .. }) => stale.push(address),
                Some(Content::Empty) => {}
                // Somebody may use it: never unmapped, whatever the records say elsewhere.
                _ => return Err(GrowError::InUse { address }),
            }
        }
        for row in stale.chunk_by(|one, next| one + unit as u64 == *next) {
            self.backend.unmap(row[0], row.len() * unit)?;
            row.iter().for_each(|address| self.memory.unmap(*address));
        }
        Ok(())
    }

    /// Gives back what a plan took that comes to nothing.
    pub(super) fn give_up(&mut self, mut plan: Plan, heaps: &mut impl Heaps) {
        let taken =
            plan.handles.drain(..).chain(plan.window.returns.drain(..).map(|(free, _)| free)).collect();
        self.give_back(taken, heaps);
        heaps.with(plan.heap, |mine| plan.offer(mine));
    }

    /// Gives handles back to their heaps, where they are active. Those that are mapped nowhere are there for who needs memory next.
    pub(super) fn give_back(&mut self, handles: Vec<Free>, heaps: &mut impl Heaps) {
        for free in handles.into_iter().filter(|free| !self.is_unmapped(*free)) {
            heaps.with(free.heap, |theirs| theirs.large.offer(free.address, free.bytes, free.freed_at));
        }
    }

    /// Tells that a free handle is about to leave the addresses where it is active.
    pub(super) fn announce(&mut self, handle: u32, address: u64) {
        self.memory.renew(handle);
        if let Some(segment) = self.segment(address) {
            self.backend.before_leaving(&segment);
        }
    }
}
