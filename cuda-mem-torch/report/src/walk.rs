//! The past of a snapshot, from its end backwards: what is there at the end is certain, and each event says what was before.
//!
//! The recording is a ring: what happened before its first event is lost. Walked backwards, the blocks and segments that are
//! left over at its beginning are simply those that were there before. Nothing is kept but what is there at one moment, so a
//! recording of any length is walked in little memory, as often as needed.

use std::collections::HashMap;

use anyhow::{Result, ensure};

use super::history::{Block, LIMIT, Moment, NEVER, OutOfMemory, Owner, Segment};
use super::mapped::Mapped;
use super::pickle::Fast;
use super::records::{Action, Event, State, Taken};
use super::snapshot::Part;

/// What PyTorch rounds sizes up to. Events tell what was asked for, and only blocks of the end what they take.
const GRAIN: u64 = 512;

/// Blocks that are there at once.
const MAX_OPEN: usize = 4_000_000;

/// Bytes at a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) live: u64,
    pub(super) pending: u64,
    pub(super) reserved: u64,
}

/// Who hears of the past, the latest first, as far as it wants to.
pub(super) trait Visit {
    /// What there was behind the event of a moment, and when that was; at last, before the first event.
    fn moment(&mut self, _moment: Moment, _totals: Totals, _time: Option<u64>) {}
    /// A block of which nothing more will be heard. Its `stack` is a list of frames, `tag` and `note` are those of the records.
    fn block(&mut self, _block: Block) {}
    fn failed(&mut self, _event: OutOfMemory) {}
}

/// What is left when all is walked.
#[derive(Debug)]
pub(super) struct Walked {
    pub(super) segments: Vec<Segment>,
    /// Segments that came and went and are not among these.
    pub(super) forgotten: usize,
    /// Events that contradict what comes after them.
    pub(super) strange: u64,
    pub(super) allocations: u64,
}

/// Walks through one part of a snapshot. `progress` hears how many of its events are done.
pub(super) fn walk(
    taken: &Taken,
    part: &Part,
    visit: &mut impl Visit,
    progress: &mut dyn FnMut(u64),
) -> Result<Walked> {
    let events: u64 = part.events.iter().map(|(_, count)| count).sum();
    let mut past = Past {
        streams: &taken.streams,
        grain: if part.device.is_some() { GRAIN } else { 1 },
        open: HashMap::default(),
        mapped: Mapped::default(),
        totals: Totals::default(),
        requests: requests(taken, part)?,
        strange: 0,
        allocations: 0,
    };
    for segment in &part.segments {
        past.totals.reserved += past.mapped.map(NEVER, segment.address, segment.size, segment.owner)?;
    }
    for held in &part.blocks {
        let pending = held.block.state == State::Pending;
        let block = Block {
            address: Some(held.address),
            size: held.block.size,
            requested: held.block.requested,
            stream: held.stream,
            allocated: 0,
            // A pending block was let go of at some time; if no event says when, it was before the recording.
            freed: if pending { 0 } else { NEVER },
            done: NEVER,
            stack: held.block.stack.checked_sub(1),
            tag: held.block.tag,
            note: 0,
        };
        *past.bytes(pending) += block.size;
        past.open.insert(held.address, block);
    }
    let mut moment = Moment::try_from(events)?;
    for (start, count) in part.events.iter().rev() {
        taken.events.backwards(*start, *count, |_, record| {
            let event = Event::of(record);
            let time = Some(event.time).filter(|time| *time != super::records::NO_TIME);
            visit.moment(moment, past.checked()?, time);
            past.undo(moment, &event, visit)?;
            moment -= 1;
            if moment.is_multiple_of(1 << 20) {
                progress(events - u64::from(moment));
            }
            Ok(())
        })?;
    }
    visit.moment(0, past.checked()?, None);
    for (_, block) in past.open {
        visit.block(block);
    }
    let forgotten = past.mapped.forgotten();
    Ok(Walked {
        segments: past.mapped.finish(0),
        forgotten,
        strange: past.strange,
        allocations: past.allocations,
    })
}

/// Whether it was recorded when programs let go of blocks: a recording may leave that out.
fn requests(taken: &Taken, part: &Part) -> Result<bool> {
    let (mut requests, mut looked) = (false, 0);
    for (start, count) in &part.events {
        // Requests are a third of all events, or none.
        let some = (*count).min(1 << 20);
        taken.events.backwards(*start + count - some, some, |_, record| {
            requests |= Event::of(record).action == Action::FreeRequested;
            looked += 1;
            Ok(())
        })?;
        if requests {
            break;
        }
    }
    Ok(requests)
}

struct Past<'t> {
    streams: &'t [i64],
    grain: u64,
    /// Blocks whose allocation was not met yet, by address.
    open: HashMap<u64, Block, Fast>,
    mapped: Mapped,
    totals: Totals,
    requests: bool,
    strange: u64,
    allocations: u64,
}

impl Past<'_> {
    fn bytes(&mut self, pending: bool) -> &mut u64 {
        if pending { &mut self.totals.pending } else { &mut self.totals.live }
    }

    fn checked(&self) -> Result<Totals> {
        let Totals { live, pending, reserved } = self.totals;
        let most = live.max(pending).max(reserved);
        ensure!(most < LIMIT, "the recording adds up to {most} bytes, which no device has");
        Ok(self.totals)
    }

    fn undo(&mut self, moment: Moment, event: &Event, visit: &mut impl Visit) -> Result<()> {
        match event.action {
            Action::Alloc => match self.open.remove(&event.address) {
                Some(block) => {
                    let pending = block.freed == 0;
                    let bytes = self.bytes(pending);
                    *bytes = bytes.saturating_sub(block.size);
                    self.allocations += 1;
                    visit.block(Block {
                        allocated: moment,
                        // If no event says when the program let go of it, that was as early as can be.
                        freed: if pending { moment } else { block.freed },
                        requested: event.size,
                        stack: event.stack.checked_sub(1).or(block.stack),
                        tag: if event.tag == 0 { block.tag } else { event.tag },
                        ..block
                    });
                }
                None => self.strange += 1,
            },
            Action::FreeCompleted if self.requests => self.free(event, 0, moment)?,
            Action::FreeCompleted => self.free(event, moment, moment)?,
            Action::FreeRequested => match self.open.get_mut(&event.address) {
                // It was completed later, or is pending to this day.
                Some(block) if block.freed == 0 => {
                    block.freed = moment;
                    let size = block.size;
                    self.totals.pending = self.totals.pending.saturating_sub(size);
                    self.totals.live += size;
                }
                Some(_) => self.strange += 1,
                // Completions may be left out of a recording.
                None => self.free(event, moment, moment)?,
            },
            Action::Map => {
                // Before that it is not there.
                let found = self.mapped.unmap(moment, event.address, event.size)?;
                self.totals.reserved = self.totals.reserved.saturating_sub(found);
                self.strange += u64::from(found != event.size);
            }
            Action::Free | Action::Unmap => {
                let owner = Owner { stream: self.stream(event), grows: event.action == Action::Unmap };
                self.totals.reserved += self.mapped.map(moment, event.address, event.size, owner)?;
            }
            Action::OutOfMemory => visit.failed(OutOfMemory {
                moment,
                requested: event.size,
                free: Some(event.address),
                stack: event.stack.checked_sub(1),
                stream: Some(self.stream(event)),
            }),
            Action::Annotate => {
                if let Some(block) = self.open.get_mut(&event.address).filter(|block| block.note == 0) {
                    block.note = event.tag;
                }
            }
            Action::Other => {}
        }
        Ok(())
    }

    /// A block that is there before the event and not after it.
    fn free(&mut self, event: &Event, freed: Moment, done: Moment) -> Result<()> {
        if self.open.contains_key(&event.address) {
            self.strange += 1;
            return Ok(());
        }
        ensure!(self.open.len() < MAX_OPEN, "more than {MAX_OPEN} blocks are there at once");
        let block = Block {
            address: Some(event.address),
            size: event.size.max(1).next_multiple_of(self.grain),
            requested: event.size,
            stream: self.stream(event),
            allocated: 0,
            freed,
            done,
            stack: None,
            // What is said with a free is not said of the allocation.
            tag: 0,
            note: 0,
        };
        *self.bytes(freed == 0) += block.size;
        self.open.insert(event.address, block);
        Ok(())
    }

    fn stream(&self, event: &Event) -> i64 {
        self.streams.get(event.stream as usize).copied().unwrap_or(0)
    }
}
