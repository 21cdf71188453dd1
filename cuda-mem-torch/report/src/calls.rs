//! The call log of a replay: where an allocator put the blocks of a trace, and what it asked of the driver.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};

use super::history::{Block, History, LIMIT, Moment, NEVER, OutOfMemory, Owner, checked};
use super::input::Fields;
use super::mapped::Mapped;
use super::trace::Program;

/// Pages serve every stream, and neighbours are one segment. What `cuMemAlloc` gives stands alone.
const PAGES: Owner = Owner { stream: 0, grows: true };
const ALONE: Owner = Owner { stream: 0, grows: false };

/// Events of one log.
const MAX_EVENTS: Moment = 100_000_000;

/// Reads the log of a replay of `program`.
pub(super) fn read(text: &str, program: Program) -> Result<History> {
    let mut log = Log {
        program,
        moment: 0,
        blocks: Vec::new(),
        live: HashMap::new(),
        handles: HashMap::new(),
        mallocs: HashMap::new(),
        mapped: Mapped::default(),
        reserved: Vec::new(),
        times: vec![0],
        met: Vec::new(),
    };
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        log.event(line).with_context(|| format!("line {} of the call log: {line:?}", number + 1))?;
    }
    Ok(log.finish())
}

struct Log {
    program: Program,
    moment: Moment,
    /// Blocks, and where the trace has them.
    blocks: Vec<(Block, usize)>,
    /// Places in `blocks` of those that are not done, by id.
    live: HashMap<u64, usize>,
    /// Bytes by handle, and by address.
    handles: HashMap<u64, u64>,
    mallocs: HashMap<u64, u64>,
    mapped: Mapped,
    reserved: Vec<(Moment, i128)>,
    times: Vec<u64>,
    /// Moments of the trace, and the moments of the log that they became.
    met: Vec<(Moment, Moment)>,
}

impl Log {
    fn event(&mut self, line: &str) -> Result<()> {
        ensure!(self.moment < MAX_EVENTS, "there are more than {MAX_EVENTS} events");
        self.moment += 1;
        let mut fields = Fields::of(line);
        fields.number("seq")?;
        match fields.text("op")? {
            "create" => {
                let (handle, bytes) = (fields.number("handle")?, fields.number("bytes")?);
                let before = self.handles.insert(handle, checked(bytes, "bytes")?);
                ensure!(before.is_none(), "handle {handle} is created a second time");
                self.reserved.push((self.moment, i128::from(bytes)));
            }
            "release" => {
                let handle = fields.number("handle")?;
                let bytes = self.handles.remove(&handle);
                let bytes = bytes.with_context(|| format!("handle {handle} was not created"))?;
                self.reserved.push((self.moment, -i128::from(bytes)));
            }
            "map" => {
                let address = fields.number("addr")?;
                fields.number("handle")?;
                self.mapped.map(self.moment, address, fields.number("bytes")?, PAGES)?;
            }
            "unmap" => {
                let address = fields.number("addr")?;
                self.mapped.unmap(self.moment, address, fields.number("bytes")?)?;
            }
            "malloc" => {
                let (address, bytes) = (fields.number("addr")?, fields.number("bytes")?);
                self.mapped.map(self.moment, address, bytes, ALONE)?;
                ensure!(
                    self.mallocs.insert(address, bytes).is_none(),
                    "{address:#x} is allocated a second time"
                );
                self.reserved.push((self.moment, i128::from(bytes)));
            }
            "mfree" => {
                let address = fields.number("addr")?;
                let bytes = self.mallocs.remove(&address);
                let bytes = bytes.with_context(|| format!("{address:#x} was not allocated"))?;
                self.mapped.unmap(self.moment, address, bytes)?;
                self.reserved.push((self.moment, -i128::from(bytes)));
            }
            "alloc" => self.alloc(&mut fields)?,
            "free" => self.free(fields.number("id")?)?,
            "done" => {
                let id = fields.number("id")?;
                let place = self.live.remove(&id).with_context(|| format!("block {id} was not allocated"))?;
                let freed = self.blocks.get(place).is_some_and(|(block, _)| block.freed != NEVER);
                ensure!(freed, "block {id} is done before it is freed");
            }
            // They say when memory may be used; the page shows what it is used for.
            "access" | "wait" | "order" => {}
            other => bail!("unknown op {other:?}"),
        }
        // What the allocator does takes its time from the program's events around it.
        let trace = &self.program.history.times;
        let met = self.met.last().filter(|(_, moment)| *moment == self.moment);
        let time = met.and_then(|(moment, _)| trace.get(*moment as usize)).copied().unwrap_or(0);
        self.times.push(time.max(self.times.last().copied().unwrap_or(0)));
        Ok(())
    }

    fn alloc(&mut self, fields: &mut Fields<'_>) -> Result<()> {
        let (id, address) = (fields.number("id")?, fields.number("addr")?);
        fields.number("bytes")?;
        let stream = fields.signed("stream")?;
        let place = self.program.by_id.get(&id).copied();
        let place =
            place.with_context(|| format!("the trace has no block {id}: is it the log of another?"))?;
        let known = self.program.history.blocks.get(place).context("a block is lost")?;
        ensure!(address < LIMIT - known.size, "the block ends beyond 2^52");
        ensure!(self.live.insert(id, self.blocks.len()).is_none(), "block {id} is allocated a second time");
        self.met.push((known.allocated, self.moment));
        let block = Block {
            address: Some(address),
            stream,
            allocated: self.moment,
            freed: NEVER,
            done: NEVER,
            ..known.clone()
        };
        self.blocks.push((block, place));
        Ok(())
    }

    fn free(&mut self, id: u64) -> Result<()> {
        let place = *self.live.get(&id).with_context(|| format!("block {id} was not allocated"))?;
        let (block, place) = self.blocks.get_mut(place).context("a block is lost")?;
        ensure!(block.freed == NEVER, "block {id} is freed a second time");
        block.freed = self.moment;
        let known = self.program.history.blocks.get(*place).context("a block is lost")?;
        self.met.push((known.freed, self.moment));
        Ok(())
    }

    fn finish(mut self) -> History {
        self.met.sort_unstable();
        // The moment of the log at which the replay had come as far as a moment of the trace.
        let met = |moment: Moment| {
            let after = self.met.partition_point(|(before, _)| *before <= moment);
            after.checked_sub(1).and_then(|place| self.met.get(place)).map_or(0, |(_, moment)| *moment)
        };
        let mut history = self.program.history;
        let mut missing = vec![true; history.blocks.len()];
        let mut blocks = Vec::new();
        for (mut block, place) in self.blocks {
            if let (Some(known), Some(missing)) = (history.blocks.get(place), missing.get_mut(place)) {
                *missing = false;
                // How long other streams used a block, the trace knows; how soon the replay noticed is another matter.
                block.done = if known.done == NEVER { NEVER } else { met(known.done).max(block.freed) };
            }
            blocks.push(block);
        }
        // What the log lacks could not be allocated, beside what the trace knows of already.
        let failed = history.blocks.iter().zip(missing).filter(|(_, missing)| *missing);
        let failed = failed.map(|(block, _)| (block.allocated, block.requested));
        let refused = history.out_of_memory.iter().map(|event| (event.moment, event.requested));
        let mut failed: Vec<_> = failed.chain(refused).collect();
        failed.sort_unstable();
        let failed = failed.into_iter().map(|(moment, requested)| OutOfMemory {
            moment: met(moment).max(1).min(self.moment),
            requested,
            free: None,
            stack: None,
            stream: None,
        });
        history.out_of_memory = failed.collect();
        history.what = "events of the replay";
        history.events = self.moment;
        history.times = if history.times.is_empty() { Vec::new() } else { self.times };
        history.blocks = blocks;
        history.segments = self.mapped.finish(NEVER);
        history.reserved = Some(self.reserved);
        history
    }
}
