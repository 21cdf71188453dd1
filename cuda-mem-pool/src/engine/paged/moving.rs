//! Moves free memory to where it is needed, when there is no headroom for more of it.
//!
//! A free handle is mapped a second time in the slot that needs it. On its own stream nothing waits: all work that used it comes before all
//! work that will. Another stream waits on the device for the stream that used it last. The old mapping is stale from then on. It is unmapped
//! when its slot is needed and the work of its heap is done.

use super::backend::{Backend, Change};
use super::growth::{GrowError, Headroom, Heaps, PageSource, Wanted};
use super::heap::StreamHeap;
use super::memory::Content;
use super::window::Window;

/// Beyond this many mappings stale ones are taken away. The driver's own limit is 524,072.
const MOST_MAPPINGS: usize = 100_000;

/// So much more than its share may be held before idle streams leave memory to others.
const IDLE_BYTES: usize = 32 << 20;

/// A handle that is wholly free.
#[derive(Debug, Clone, Copy)]
pub(super) struct Free {
    pub(super) handle: u32,
    pub(super) heap: u32,
    /// Where it is active.
    pub(super) address: u64,
    pub(super) bytes: usize,
    /// The free span that it is in, as long as nothing before it in the span is taken.
    pub(super) span: u32,
    /// The latest free in that span, on the heap's count.
    pub(super) freed_at: u64,
}

/// Where a handle for a slot is from.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// Made new, or mapped nowhere.
    New(u32),
    Moved(Free),
}

/// A window that is being filled. Its free bytes and the free handles that it takes are nobody else's meanwhile.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) heap: u32,
    pub(super) window: Window,
    /// How many handles are to be made new at first.
    new: usize,
    /// Free handles of the same heap and of others, with those that return to their slots last.
    moved: Vec<Free>,
    returns: Vec<Free>,
    made: Vec<u32>,
    /// The slots that have their handle by now.
    filled: Vec<u64>,
    /// The latest free of the window's own bytes, and whether other memory came to it.
    freed_at: u64,
    pub(super) came: bool,
}

impl Plan {
    /// Offers the window's memory to its heap. The number of the free span that has it.
    pub(super) fn offer(&self, mine: &mut StreamHeap) -> Option<u32> {
        let freed_at = if self.came { mine.tick() } else { self.freed_at };
        let unit = self.window.unit as u64;
        let parts = self.window.parts.iter().map(|part| (part.address, part.address + part.bytes as u64));
        let slots = self.filled.iter().map(|slot| (*slot, slot + unit));
        let mut pieces: Vec<(u64, u64)> = parts.chain(slots).collect();
        pieces.sort_unstable();
        let mut span = None;
        for (from, to) in pieces {
            span = mine.offer(from, (to - from) as usize, freed_at);
        }
        span
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
        let lacks = window.lacks();
        let new = if self.policy.moves { lacks.min(headroom.first / window.unit) } else { lacks };
        let returns: Vec<u32> = window.fills.iter().filter_map(|fill| fill.returns).collect();
        let is_return = |free: &Free| returns.contains(&free.handle);
        let returns: Vec<Free> = free.iter().copied().filter(is_return).collect();
        free.retain(|free| free.bytes == window.unit && !window.has(free.address) && !is_return(free));
        // Those that were freed first are wanted again last, as far as anybody can tell.
        free.sort_unstable_by_key(|free| (free.freed_at, free.address));
        free.truncate(lacks - new);
        let freed_at = window.parts.iter().map(|part| part.freed_at).max().unwrap_or(0);
        let mut taken: Vec<(u32, u64, usize)> =
            window.parts.iter().map(|part| (part.span, part.address, part.bytes)).collect();
        taken.extend(free.iter().chain(&returns).map(|free| (free.span, free.address, free.bytes)));
        // From the end of each span on: what is left before keeps its number.
        taken.sort_unstable_by_key(|(_, address, _)| std::cmp::Reverse(*address));
        for (span, address, bytes) in taken {
            mine.large.withdraw(span, address, bytes);
        }
        Plan {
            heap,
            window,
            new,
            moved: free,
            returns,
            made: Vec::new(),
            filled: Vec::new(),
            freed_at,
            came: false,
        }
    }

    /// Gets the handles that a window lacks and maps them. False if there are not enough.
    pub(super) fn fill(
        &mut self,
        plan: &mut Plan,
        heaps: &mut impl Heaps,
        wanted: Wanted,
        headroom: Headroom,
    ) -> Result<bool, GrowError<B::Error>> {
        let (lacks, unit) = (plan.window.lacks(), plan.window.unit);
        if !self.policy.moves {
            return self.make_all(plan, lacks, headroom);
        }
        // Idle streams that hold much more than anybody ever had in use leave it to others.
        let held = self.memory.bytes().saturating_add(plan.new * unit);
        let peak = wanted.load.peak.max(wanted.load.active.saturating_add(wanted.size));
        let is_too_much =
            held > (peak / 1000).saturating_mul(self.policy.idle_permille).saturating_add(IDLE_BYTES);
        if plan.new > 0 && is_too_much {
            self.take_from_others(plan, heaps, lacks, true);
        }
        let new = plan.new.min(lacks.saturating_sub(plan.moved.len()));
        self.take_from_others(plan, heaps, lacks - new, false);
        self.make_all(plan, lacks, headroom)
    }

    /// Makes the handles that a window still lacks, if there can be as many, and maps all.
    fn make_all(
        &mut self,
        plan: &mut Plan,
        lacks: usize,
        headroom: Headroom,
    ) -> Result<bool, GrowError<B::Error>> {
        let missing = lacks.saturating_sub(plan.moved.len());
        if missing > headroom.last / plan.window.unit + self.memory.unmapped(plan.window.unit) {
            return Ok(false);
        }
        while plan.made.len() < missing {
            if !self.make(plan)? {
                return Ok(false);
            }
        }
        self.map(plan).map(|()| true)
    }

    /// Makes a handle, or takes one that is mapped nowhere. False if there is no memory for it.
    fn make(&mut self, plan: &mut Plan) -> Result<bool, GrowError<B::Error>> {
        let unit = plan.window.unit;
        if let Some(handle) = self.memory.take_unmapped(unit) {
            plan.made.push(handle);
            return Ok(true);
        }
        if self.memory.bytes().saturating_add(unit) > self.limit {
            return Ok(false);
        }
        let Some(memory) = self.backend.create(unit)? else { return Ok(false) };
        let Some(handle) = self.memory.add(memory, unit, plan.heap) else {
            self.backend.release(memory, unit)?;
            return Err(GrowError::NoNumbers);
        };
        plan.made.push(handle);
        Ok(true)
    }

    /// Takes wholly free handles of other heaps until there are `lacks` that move, those of the heap that asked for nothing for longest first.
    /// Only handles whose work is done if `quiet`; else the stream waits on the device for the work with the others.
    fn take_from_others(&mut self, plan: &mut Plan, heaps: &mut impl Heaps, lacks: usize, quiet: bool) {
        let mut others = heaps.others(plan.heap);
        others.sort_by_key(|other| self.asked.get(other).copied().unwrap_or(0));
        for other in others {
            let missing = lacks.saturating_sub(plan.moved.len());
            if missing == 0 {
                return;
            }
            let (unit, round) = (plan.window.unit, self.round);
            let found = heaps.with_coalesced(other, |theirs| {
                let mut free = self.wholly_free(other, theirs);
                free.retain(|free| free.bytes == unit);
                free.sort_unstable_by_key(|free| (free.freed_at, free.address));
                free.truncate(missing);
                free.sort_unstable_by_key(|free| std::cmp::Reverse(free.address));
                free.retain(|free| theirs.large.withdraw(free.span, free.address, free.bytes));
                (free, theirs.now())
            });
            let Some((mut free, now)) = found else { continue };
            if free.is_empty() {
                continue;
            }
            let timeline = self.timelines.entry(other).or_default();
            // A point for the next time, if nothing is known yet.
            timeline.make(other, now, &mut self.backend);
            free.sort_unstable_by_key(|free| free.freed_at);
            let mut refused = Vec::new();
            for free in free {
                let timeline = self.timelines.entry(other).or_default();
                let may = if quiet {
                    timeline.is_done(free.freed_at, round, &mut self.backend)
                } else {
                    timeline.order((other, free.freed_at, now), plan.heap, round, &mut self.backend)
                };
                if may { plan.moved.push(free) } else { refused.push(free) }
            }
            heaps.with(other, |theirs| {
                for free in refused {
                    theirs.offer(free.address, free.bytes, free.freed_at);
                }
            });
        }
    }

    /// Maps what was got at the slots of the window.
    fn map(&mut self, plan: &mut Plan) -> Result<(), GrowError<B::Error>> {
        let mut sources: Vec<Source> = plan.moved.drain(..).map(Source::Moved).collect();
        sources.extend(plan.made.drain(..).map(Source::New));
        sources.reverse();
        let fills = plan.window.fills.clone();
        let (unit, heap) = (plan.window.unit, plan.heap);
        for fill in &fills {
            if let Some(returned) = fill.returns {
                let Some(at) = plan.returns.iter().position(|free| free.handle == returned) else { continue };
                let free = plan.returns.swap_remove(at);
                self.announce(free);
                self.leave(free);
                self.memory.activate(free.handle, heap, fill.address);
                self.note(heap, fill.address, unit, true);
                plan.filled.push(fill.address);
                plan.came = true;
            }
        }
        let empty: Vec<u64> =
            fills.iter().filter(|fill| fill.returns.is_none()).map(|fill| fill.address).collect();
        let mut outcome = Ok(());
        for row in empty.chunk_by(|one, next| one + unit as u64 == *next) {
            let Some(first) = row.first().copied() else { continue };
            let row_sources: Vec<Source> = sources.split_off(sources.len().saturating_sub(row.len()));
            let mapped = match &outcome {
                Ok(()) => {
                    let (mapped, result) = self.map_row(first, unit, &row_sources);
                    outcome = result;
                    mapped
                }
                Err(_) => 0,
            };
            for (at, source) in row_sources.into_iter().enumerate() {
                let address = first + (at * unit) as u64;
                if at < mapped {
                    let handle = self.settle(source);
                    self.memory.activate(handle, heap, address);
                    self.note(heap, address, unit, true);
                    plan.filled.push(address);
                    plan.came |= matches!(source, Source::Moved(_));
                } else {
                    match source {
                        Source::New(handle) => plan.made.push(handle),
                        Source::Moved(free) => plan.moved.push(free),
                    }
                }
            }
        }
        outcome
    }

    /// Clears slots in a row and maps handles there, with one call that lets the device in. How many, and why not all.
    fn map_row(
        &mut self,
        first: u64,
        unit: usize,
        row: &[Source],
    ) -> (usize, Result<(), GrowError<B::Error>>) {
        if let Err(error) = self.clear(first, unit, row.len()) {
            return (0, Err(error));
        }
        let mut memory = Vec::with_capacity(row.len());
        for source in row {
            let number = match source {
                Source::New(handle) => *handle,
                Source::Moved(free) => {
                    self.announce(*free);
                    free.handle
                }
            };
            let Some(handle) = self.memory.handle(number) else { return (0, Err(GrowError::NoNumbers)) };
            memory.push(handle.memory);
        }
        let moved = row.iter().filter(|source| matches!(source, Source::Moved(_))).count();
        self.budget.spend(moved);
        let (mapped, result) = self.backend.map(first, unit, &memory);
        let result = result.map_err(|error| {
            // More mappings than the driver has room for are a lack of memory too.
            if B::is_out_of_memory(&error) { GrowError::OutOfMemory } else { GrowError::Backend(error) }
        });
        (mapped, result)
    }

    /// A handle has a new mapping: the old one is stale.
    fn settle(&mut self, source: Source) -> u32 {
        match source {
            Source::New(handle) => {
                self.memory.renew(handle);
                handle
            }
            Source::Moved(free) => {
                self.leave(free);
                free.handle
            }
        }
    }

    fn leave(&mut self, free: Free) {
        self.memory.leave(free.handle, free.freed_at);
        self.note(free.heap, free.address, free.bytes, false);
    }

    /// Unmaps stale mappings in slots that are needed, whose work is done.
    fn clear(&mut self, first: u64, unit: usize, slots: usize) -> Result<(), GrowError<B::Error>> {
        let mut stale = Vec::new();
        for address in (first..).step_by(unit).take(slots) {
            match self.memory.range_at(address).map(|range| range.content(address)) {
                Some(Content::Stale { .. }) => stale.push(address),
                Some(Content::Empty) => {}
                // Somebody may use it: never unmapped, whatever the records say elsewhere.
                _ => return Err(GrowError::InUse { address }),
            }
        }
        for row in stale.chunk_by(|one, next| one + unit as u64 == *next) {
            let Some(first) = row.first().copied() else { continue };
            self.backend.unmap(first, row.len() * unit)?;
            row.iter().for_each(|address| self.memory.unmap(*address));
        }
        Ok(())
    }

    /// Gives back what a plan took that comes to nothing.
    pub(super) fn give_up(&mut self, mut plan: Plan, heaps: &mut impl Heaps) {
        let made = std::mem::take(&mut plan.made);
        made.into_iter().for_each(|handle| self.memory.keep_unmapped(handle));
        let moved: Vec<Free> = plan.moved.drain(..).chain(plan.returns.drain(..)).collect();
        for free in moved {
            heaps.with(free.heap, |theirs| theirs.offer(free.address, free.bytes, free.freed_at));
        }
        heaps.with(plan.heap, |mine| plan.offer(mine));
    }

    /// Tells that a free handle is about to leave the addresses where it is active.
    pub(super) fn announce(&mut self, free: Free) {
        let Some(handle) = self.memory.handle(free.handle) else { return };
        let change = Change { id: handle.id, address: free.address, bytes: free.bytes };
        self.memory.renew(free.handle);
        self.backend.before(change);
    }

    /// Takes stale mappings away whose work is done, when there are very many.
    pub(super) fn sweep(&mut self) {
        if self.memory.mappings() <= MOST_MAPPINGS {
            return;
        }
        let too_many = self.memory.mappings() - MOST_MAPPINGS / 2;
        let stale: Vec<_> = self.memory.stale().take(too_many).collect();
        for (address, bytes, heap, left_at) in stale {
            let timeline = self.timelines.entry(heap).or_default();
            if timeline.is_done(left_at, self.round, &mut self.backend)
                && self.backend.unmap(address, bytes).is_ok()
            {
                self.memory.unmap(address);
            }
        }
    }
}
