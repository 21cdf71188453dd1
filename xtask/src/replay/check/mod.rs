//! The checker of `--calls`: follows a log event by event and believes nothing.
//!
//! It is written from the log's definition alone and shares no code with allocators, the model or the replay. It keeps its own
//! books of physical memory and addresses, and translates every block into bytes of handles, because a handle may be mapped at
//! two addresses at once.

mod bill;
mod event;
mod order;
mod program;
mod space;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::BufRead;

use anyhow::{Context, Result, bail, ensure};
use cuda_mem_pool::trace::Trace;

use bill::Bill;
use event::Event;
use order::Order;
use program::Program;
use space::{Name, Piece, Space};

/// Live bytes are counted in such units.
const UNIT: u64 = 512;

/// What a log that was found right amounts to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sums {
    pub(crate) events: u64,
    pub(crate) allocations: u64,
    /// Allocations of the trace that the log lacks.
    pub(crate) oom: u64,
    pub(crate) peak_live: u64,
    /// With the blocks that another stream still used, which only the trace knows.
    pub(crate) peak_active: Option<u64>,
    pub(crate) peak_reserved: u64,
    pub(crate) peak_mappings: u64,
    pub(crate) waits: u64,
    /// Handles that were made. Those that the driver refused stand in no log.
    pub(crate) creates: u64,
    /// What the driver calls would have taken.
    pub(crate) driver_seconds: f64,
}

/// Checks a log, with a trace also that it is a replay of that, and with a lag that nothing is called done before its time.
pub(crate) fn check(log: impl BufRead, trace: Option<&Trace>, lag: Option<u64>) -> Result<Sums> {
    let mut checker = Checker { program: trace.map(|trace| Program::new(trace, lag)), ..Checker::default() };
    for (number, line) in log.lines().enumerate() {
        let line = line.context("cannot read the log")?;
        let followed = event::read(&line).and_then(|(sequence, event)| checker.follow(sequence, event));
        followed.with_context(|| format!("line {}: {line}", number + 1))?;
    }
    checker.finish()
}

/// A block that is live, or freed and not done.
#[derive(Debug)]
struct Block {
    stream: u64,
    bytes: u64,
    pieces: Vec<Piece>,
    /// The number of the event that freed it.
    freed: Option<u64>,
    /// The stream beside its own that used it then, as the log has it: the trace does not name it.
    side: Option<u64>,
}

#[derive(Debug, Default)]
struct Checker {
    space: Space,
    blocks: HashMap<u64, Block>,
    order: Order,
    bill: Bill,
    program: Option<Program>,
    /// The number that the next event must have at least.
    next: u64,
    events: u64,
    allocations: u64,
    waits: u64,
    creates: u64,
    live: u64,
    peak_live: u64,
    /// Freed blocks that another stream uses: bytes and the step until which.
    pending: Vec<(usize, u64)>,
    peak_active: u64,
}

impl Checker {
    fn follow(&mut self, sequence: u64, event: Event) -> Result<()> {
        ensure!(sequence >= self.next, "event {sequence} comes after event {}", self.next.saturating_sub(1));
        self.next = sequence.checked_add(1).context("the event's number is the last there is")?;
        self.events += 1;
        match event {
            Event::Create { handle, bytes } => {
                self.bill.create();
                self.creates += 1;
                self.space.create(Name::Handle(handle), bytes)
            }
            Event::Map { address, handle, bytes } => {
                self.bill.map();
                self.space.map(address, Name::Handle(handle), bytes, false)
            }
            Event::Access { address, bytes } => {
                self.bill.access(self.space.access(address, bytes)?);
                Ok(())
            }
            Event::Unmap { address, bytes } => {
                let is_live = |block: u64| self.blocks.get(&block).is_some_and(|block| block.freed.is_none());
                self.bill.unmap(self.space.unmap(address, bytes, is_live)?);
                Ok(())
            }
            Event::Release { handle } => {
                self.bill.release();
                self.space.release(Name::Handle(handle))
            }
            Event::Malloc { address, bytes } => {
                self.bill.malloc(bytes);
                self.space.create(Name::Malloc(address), bytes)?;
                self.space.map(address, Name::Malloc(address), bytes, true)
            }
            Event::MallocFree { address } => self.malloc_free(address),
            Event::Wait => {
                self.waits += 1;
                self.program.iter_mut().for_each(Program::wait);
                Ok(())
            }
            Event::Alloc { id, address, bytes, stream } => self.alloc(id, address, bytes, stream),
            Event::Free { id, side } => self.free(id, side, sequence),
            Event::Done { id } => self.done(id),
            Event::Order { to, from, before } => {
                self.order.wait(sequence, to, from, before);
                Ok(())
            }
        }
    }

    fn malloc_free(&mut self, address: u64) -> Result<()> {
        let bytes = self.space.bytes_of(Name::Malloc(address))?;
        let is_live = |block: u64| self.blocks.get(&block).is_some_and(|block| block.freed.is_none());
        self.space.unmap(address, bytes, is_live)?;
        self.space.release(Name::Malloc(address))?;
        self.bill.malloc_free(bytes);
        Ok(())
    }

    fn alloc(&mut self, id: u64, address: u64, bytes: u64, stream: u64) -> Result<()> {
        if let Some(program) = &mut self.program {
            program.alloc(id, bytes, stream)?;
        }
        let size = bytes.checked_next_multiple_of(UNIT).context("a block larger than 64 bits count")?;
        ensure!(size > 0, "block {id} has no bytes");
        let pieces = self.space.translate(address, size).with_context(|| format!("block {id}"))?;
        for user in self.space.users(&pieces) {
            let Some(other) = self.blocks.get(&user) else { continue };
            let Some(freed) = other.freed else { bail!("block {id} overlaps the live block {user}") };
            let is_after = other.side.is_some_and(|side| self.order.covers(stream, side, freed));
            if !is_after && self.program.as_ref().is_some_and(|program| program.is_pending(user)) {
                bail!("block {id} overlaps block {user}, which another stream still uses");
            }
            if !self.order.covers(stream, other.stream, freed) {
                bail!(
                    "block {id} of stream {stream} overlaps block {user}, which stream {} was given before, unordered",
                    other.stream
                );
            }
        }
        self.space.add_user(id, &pieces);
        let block = Block { stream, bytes: size, pieces, freed: None, side: None };
        ensure!(self.blocks.insert(id, block).is_none(), "block {id} is there already");
        self.allocations += 1;
        self.live += size;
        self.peak_live = self.peak_live.max(self.live);
        self.count_active();
        Ok(())
    }

    fn free(&mut self, id: u64, side: Option<u64>, sequence: u64) -> Result<()> {
        if let Some(program) = &mut self.program {
            program.free(id, side)?;
        }
        let block = self.blocks.get_mut(&id).with_context(|| format!("there is no block {id}"))?;
        ensure!(block.freed.is_none(), "block {id} is freed already");
        (block.freed, block.side) = (Some(sequence), side);
        self.live -= block.bytes;
        if let Some(until) = self.program.as_ref().and_then(|program| program.end(id)) {
            self.pending.push((until, block.bytes));
        }
        self.count_active();
        Ok(())
    }

    fn done(&mut self, id: u64) -> Result<()> {
        let block = self.blocks.get(&id).with_context(|| format!("there is no block {id}"))?;
        ensure!(block.freed.is_some(), "block {id} is done and was not freed");
        if let Some(program) = &mut self.program {
            program.done(id);
        }
        if let Some(block) = self.blocks.remove(&id) {
            self.space.remove_user(id, &block.pieces);
        }
        Ok(())
    }

    fn count_active(&mut self) {
        let now = self.program.as_ref().map_or(0, Program::position);
        // The step just made was made at the one before.
        self.pending.retain(|(until, _)| *until >= now);
        let pending = self.pending.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        self.peak_active = self.peak_active.max(self.live.saturating_add(pending));
    }

    fn finish(mut self) -> Result<Sums> {
        let (mut oom, mut peak_active) = (0, None);
        if let Some(program) = &mut self.program {
            program.finish().context("at the end of the log")?;
            oom = program.refused() as u64;
            peak_active = Some(self.peak_active);
        }
        Ok(Sums {
            events: self.events,
            allocations: self.allocations,
            oom,
            peak_live: self.peak_live,
            peak_active,
            peak_reserved: self.space.peak_reserved,
            peak_mappings: self.space.peak_mappings as u64,
            waits: self.waits,
            creates: self.creates,
            driver_seconds: self.bill.seconds(),
        })
    }
}
