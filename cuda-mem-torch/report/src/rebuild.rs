//! The past of a snapshot, from its end backwards: what is there at the end is certain, and each event says what was before.
//!
//! The recording is a ring: what happened before its first event is lost. Walked backwards, the blocks and segments that are
//! left over at its beginning are simply those that were there before.

use std::collections::HashMap;

use anyhow::Result;

use super::history::{Block, History, Moment, NEVER, OutOfMemory, Owner, Reserved};
use super::mapped::Mapped;
use super::snapshot::{Action, Event, Snapshot};

/// What PyTorch rounds sizes up to. Events tell what was asked for, and only blocks of the end what they take.
const GRAIN: u64 = 512;

/// Turns a snapshot into a history.
pub(super) fn history(snapshot: Snapshot) -> Result<History> {
    let events = Moment::try_from(snapshot.events.len())?;
    let mut past = Past { open: HashMap::new(), blocks: Vec::new(), mapped: Mapped::default(), strange: 0 };
    for segment in &snapshot.segments {
        past.mapped.map(NEVER, segment.address, segment.size, segment.owner)?;
    }
    for block in &snapshot.blocks {
        let block = Block {
            address: Some(block.address),
            size: block.size,
            requested: block.requested,
            stream: block.stream,
            allocated: 0,
            // A pending block was let go of at some time; if no event says when, it was before the recording.
            freed: if block.pending { 0 } else { NEVER },
            done: NEVER,
            stack: block.stack,
        };
        past.open.insert(block.address.unwrap_or_default(), block);
    }
    let mut out_of_memory = Vec::new();
    for (before, event) in (0..events).zip(&snapshot.events).rev() {
        let moment = before + 1;
        if event.action == Action::OutOfMemory {
            out_of_memory.push(OutOfMemory { moment, requested: event.size, free: Some(event.address) });
        }
        past.undo(moment, event)?;
    }
    out_of_memory.reverse();

    let mut notes = Vec::new();
    if !snapshot.others.is_empty() {
        notes.push(format!(
            "This page shows device {}; the snapshot also has devices {:?}: choose with --device.",
            snapshot.device, snapshot.others
        ));
    }
    if events == 0 {
        notes.push(
            "The snapshot has no history: the page shows the one moment at which it was taken.".to_owned(),
        );
    }
    if past.strange > 0 {
        notes.push(format!(
            "{} of {events} events do not fit the blocks and segments at the end; they are left out.",
            past.strange
        ));
    }
    // A recording may leave out when programs let go of blocks.
    let requests = snapshot.events.iter().any(|event| event.action == Action::FreeRequested);
    let blocks = past.blocks.into_iter().chain(past.open.into_values());
    let mut blocks = blocks.map(|block| settled(block, requests)).collect::<Vec<_>>();
    // In the order in which they came; of those from before, by address.
    blocks.sort_by_key(|block| (block.allocated, block.address));
    let segments = past.mapped.finish_backwards();
    // A history may leave mappings out.
    let is_mapped = blocks.is_empty() || !segments.is_empty();
    if !is_mapped {
        notes.push("Mappings were not recorded: what was reserved is not known.".to_owned());
    }
    Ok(History {
        what: "allocator events",
        events,
        times: times(&snapshot.events),
        blocks,
        segments,
        reserved: if is_mapped { Reserved::Segments } else { Reserved::Unknown },
        out_of_memory,
        references: Vec::new(),
        stacks: snapshot.stacks,
        notes,
    })
}

/// A block of which nothing more will be heard. Where no event says when the program let go of it, that was when it was done,
/// or, if it waits to this day, as early as can be.
fn settled(block: Block, requests: bool) -> Block {
    let freed = match block.done {
        NEVER => block.freed.max(block.allocated),
        // It was let go of before the recording.
        _ if block.freed == 0 && block.allocated == 0 && requests => 0,
        done if block.freed == 0 => done,
        _ => block.freed,
    };
    Block { freed, ..block }
}

/// Microseconds since the first event at each moment, where every event has its time.
fn times(events: &[Event]) -> Vec<u64> {
    let Some(all) = events.iter().map(|event| event.time).collect::<Option<Vec<_>>>() else {
        return Vec::new();
    };
    let Some(first) = all.first().copied() else { return Vec::new() };
    let mut last = 0;
    let since = all.into_iter().map(|time| {
        // Clocks are set; the order of events is not.
        last = time.saturating_sub(first).max(last);
        last
    });
    std::iter::once(0).chain(since).collect()
}

struct Past {
    /// Blocks whose allocation was not met yet, by address.
    open: HashMap<u64, Block>,
    blocks: Vec<Block>,
    mapped: Mapped,
    /// Events that contradict what comes after them.
    strange: usize,
}

impl Past {
    fn undo(&mut self, moment: Moment, event: &Event) -> Result<()> {
        match event.action {
            Action::Alloc => match self.open.remove(&event.address) {
                Some(block) => {
                    let stack = event.stack.or(block.stack);
                    self.blocks.push(Block { allocated: moment, requested: event.size, stack, ..block });
                }
                None => self.strange += 1,
            },
            Action::FreeCompleted => self.free(event, 0, moment),
            Action::FreeRequested => match self.open.get_mut(&event.address) {
                // It was completed later, or is pending to this day.
                Some(block) if block.freed == 0 => block.freed = moment,
                Some(_) => self.strange += 1,
                // Completions may be left out of a recording.
                None => self.free(event, moment, moment),
            },
            Action::Map => {
                let found = self.mapped.begin(moment, event.address, event.size)?;
                self.strange += usize::from(found != event.size);
            }
            Action::Unmap { grows } => {
                let owner = Owner { stream: event.stream, grows };
                self.mapped.map(moment, event.address, event.size, owner)?;
            }
            Action::OutOfMemory | Action::Other => {}
        }
        Ok(())
    }

    /// A block that is there before the event and not after it.
    fn free(&mut self, event: &Event, freed: Moment, done: Moment) {
        if self.open.contains_key(&event.address) {
            self.strange += 1;
            return;
        }
        let size = event.size.max(1).next_multiple_of(GRAIN);
        let block = Block {
            address: Some(event.address),
            size,
            requested: event.size,
            stream: event.stream,
            allocated: 0,
            freed,
            done,
            stack: None,
        };
        self.open.insert(event.address, block);
    }
}
