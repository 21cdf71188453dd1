//! Uses of memory that real hardware would let pass today and punish tomorrow.
//!
//! Every block remembers who made it and the latest uses of it, as points in the order of all streams. A free that does
//! not come after all of those, or a use that does not come after the allocation and before the free, is reported with
//! both places, whatever the bytes happened to be this time.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::State;
use super::blocks::{Block, Kind};
pub use super::report::{Leak, Misuse, MisuseKind};
use crate::call::Call;
use crate::order::Clock;
use crate::runtime::stream::Stream;
use crate::site::Site;

/// Something done to memory: by which call, and where in the order of all streams.
#[derive(Debug, Clone)]
pub(crate) struct Act {
    pub(crate) clock: Clock,
    pub(crate) site: Site,
}

impl Act {
    /// Something that the host does itself in a call.
    pub(crate) fn by_host(call: &Call<'_>) -> Self {
        Self { clock: call.host_clock(), site: call.site() }
    }

    /// Something that a call puts into a stream's order next.
    pub(crate) fn by_stream(call: &Call<'_>, stream: &Stream) -> Self {
        Self { clock: call.stream_clock(stream), site: call.site() }
    }
}

/// What was done to a block.
#[derive(Debug)]
pub(crate) struct History {
    born: Act,
    /// Those uses that no later use comes after.
    uses: Vec<Act>,
}

impl History {
    pub(crate) fn born(by: Act) -> Self {
        Self { born: by, uses: Vec::new() }
    }

    fn record(&mut self, by: &Act) {
        self.uses.retain(|earlier| !earlier.clock.happens_before(&by.clock));
        self.uses.push(by.clone());
    }

    fn first_not_before(&self, by: &Act) -> Option<&Act> {
        self.uses.iter().find(|earlier| !earlier.clock.happens_before(&by.clock))
    }
}

/// How many freed blocks are remembered, so that a late use of them can be told with both places.
const REMEMBERED: usize = 4096;

/// How many reports are kept; a program that does one thing wrong a million times learns enough from the first ones.
const KEPT: usize = 1000;

/// What was found so far.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    found: Vec<Misuse>,
    leaked: Vec<Leak>,
    /// Freed blocks by start. They never overlap: addresses that mean something new are taken out.
    freed: BTreeMap<u64, FreedBlock>,
    /// The starts of freed blocks with their numbers, oldest first; some are gone already.
    ages: VecDeque<(u64, u64)>,
}

/// A freed block.
#[derive(Debug)]
struct FreedBlock {
    block: u64,
    end: u64,
    by: Act,
}

impl Reports {
    fn add(&mut self, kind: MisuseKind, range: &Range<u64>, earlier: &Site, later: &Site) {
        if self.found.len() < KEPT {
            let (range, earlier, later) = (range.clone(), earlier.clone(), later.clone());
            self.found.push(Misuse { kind, range, earlier, later });
        }
    }

    fn remember_freed(&mut self, block: &Block, by: Act) {
        self.freed.insert(block.start, FreedBlock { block: block.id, end: block.range().end, by });
        self.ages.push_back((block.start, block.id));
        if self.ages.len() > REMEMBERED
            && let Some((start, id)) = self.ages.pop_front()
            && self.freed.get(&start).is_some_and(|freed| freed.block == id)
        {
            self.freed.remove(&start);
        }
    }

    /// The last freed block that shares a byte with a range, and its free.
    fn free_of(&self, range: &Range<u64>) -> Option<(Range<u64>, Act)> {
        let (&start, freed) = self.freed.range(..range.end).next_back()?;
        (range.start < freed.end).then(|| (start..freed.end, freed.by.clone()))
    }

    /// The addresses mean something else from now on.
    pub(crate) fn reused(&mut self, range: &Range<u64>) {
        while let Some((freed, _)) = self.free_of(range) {
            self.freed.remove(&freed.start);
        }
    }
}

impl State {
    /// What was misused so far.
    pub(crate) fn misuse(&self) -> Vec<Misuse> {
        self.reports.found.clone()
    }

    /// Remembers a use of `range` by work that was just put in order, and reports it if it is not in order.
    pub(crate) fn note_use(&mut self, range: &Range<u64>, writes: bool, by: &Act) {
        if range.is_empty() {
            return;
        }
        let starts = self.blocks.touching(range.start, range.end - range.start);
        for &start in &starts {
            let Some(block) = self.blocks.at_mut(start) else { continue };
            if !block.history.born.clock.happens_before(&by.clock) {
                let born = &block.history.born.site;
                self.reports.add(MisuseKind::UseBeforeAllocation, &block.range(), born, &by.site);
            }
            block.history.record(by);
            if let Kind::Mapped(id) = block.kind
                && let Some(physical) = self.handles.get_mut(&id)
            {
                let (mapping, from) = (block.range(), range.start.max(block.start));
                let bytes = from - block.start..range.end.min(mapping.end) - block.start;
                if let Some(earlier) = physical.races.enter(bytes, writes, by) {
                    self.reports.add(MisuseKind::Race, &mapping, &earlier.site, &by.site);
                }
            }
        }
        // Beside what is there as well: work may reach from one mapping into where the next one was.
        if let Some((freed, act)) = self.reports.free_of(range) {
            self.reports.add(MisuseKind::UseAfterFree, &freed, &act.site, &by.site);
        }
    }

    /// Reports a use that the driver refused, if some of the memory was freed before.
    pub(crate) fn note_refused(&mut self, range: &Range<u64>, by: &Act) {
        if let Some((freed, act)) = self.reports.free_of(range) {
            self.reports.add(MisuseKind::UseAfterFree, &freed, &act.site, &by.site);
        }
    }

    /// Reports a free that does not come after all uses, and remembers it.
    pub(super) fn note_free(&mut self, block: &Block, by: &Act) {
        let kind = match block.kind {
            Kind::Registered(_) => MisuseKind::UnregisteredInUse,
            Kind::Mapped(_) => MisuseKind::UnmappedInUse,
            _ => MisuseKind::UseUnorderedWithFree,
        };
        let born = &block.history.born;
        let made_later = || (!born.clock.happens_before(&by.clock)).then_some(born);
        let earlier = block.history.first_not_before(by).or_else(made_later);
        if let Some(earlier) = earlier.filter(|_| self.setup.finds_misuse) {
            self.reports.add(kind, &block.range(), &earlier.site, &by.site);
        }
        // Pages that were registered are ordinary memory again, which anybody may use.
        if !block.is_programs() {
            self.reports.remember_freed(block, by.clone());
        }
    }

    /// Reports the free of memory that had been freed already.
    pub(super) fn note_unknown_free(&mut self, start: u64, by: &Act) {
        if self.blocks.at(start).is_none()
            && let Some((freed, act)) = self.reports.free_of(&(start..start.saturating_add(1)))
            && freed.start == start
        {
            self.reports.add(MisuseKind::DoubleFree, &freed, &act.site, &by.site);
        }
    }

    /// Counts a block as leaked that ended without being freed: with its context.
    pub(super) fn note_leak(&mut self, block: &Block) {
        self.reports.leaked.push(leaked_block(block));
    }

    /// What is still there, and what went only with its context.
    pub(crate) fn leaks(&self) -> Vec<Leak> {
        let blocks = self.blocks.iter().map(leaked_block);
        let reservations = self.reservations.iter().map(|(start, reservation)| {
            leak("address reservation", start, reservation.len, &reservation.made_by)
        });
        let handles = self
            .handles
            .iter()
            .filter(|(_, physical)| physical.handles > 0)
            .map(|(id, physical)| leak("memory handle", id.0, physical.size, &physical.made_by));
        let pools = self.pools.iter().filter(|(_, pool)| !pool.destroyed).filter_map(|(id, pool)| {
            Some(leak("memory pool", id.0, pool.reserved.current, pool.made_by.as_ref()?))
        });
        let leaked = self.reports.leaked.iter().cloned();
        leaked.chain(blocks).chain(reservations).chain(handles).chain(pools).collect()
    }
}

fn leaked_block(block: &Block) -> Leak {
    let what = match block.kind {
        Kind::Device => "device memory",
        Kind::Pooled(_) => "pool memory",
        Kind::Host(_) => "host memory",
        Kind::Registered(_) => "registration",
        Kind::Managed => "managed memory",
        Kind::Mapped(_) => "mapping",
        Kind::Opened => "opened memory of another process",
    };
    leak(what, block.start, block.len, &block.history.born.site)
}

fn leak(what: &'static str, start: u64, len: u64, made: &Site) -> Leak {
    Leak { what, range: start..start + len, made: Some(made.clone()) }
}
