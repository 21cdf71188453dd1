//! The call log of a replay: where an allocator put the blocks of a trace, and what it asked of the driver.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};

use super::history::{Block, History, LIMIT, Moment, NEVER, Owner, Reserved, checked};
use super::input::Fields;
use super::mapped::Mapped;
use super::trace::Trace;

/// Whose pages they are: every stream's.
const PAGES: Owner = Owner { stream: 0, grows: true };

/// Events of one log.
const MAX_EVENTS: Moment = 100_000_000;

/// Reads the log of a replay of `trace`.
pub(super) fn read(text: &str, trace: Trace) -> Result<History> {
    let mut log = Log {
        trace,
        moment: 0,
        blocks: Vec::new(),
        live: HashMap::new(),
        handles: HashMap::new(),
        mapped: Mapped::default(),
        reserved: Vec::new(),
        times: vec![0],
    };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    for (number, line) in lines.filter(|(_, line)| !line.starts_with("seq,")) {
        log.event(line).with_context(|| format!("line {} of the call log: {line:?}", number + 1))?;
    }
    Ok(log.finish())
}

struct Log {
    trace: Trace,
    moment: Moment,
    blocks: Vec<Block>,
    /// Places in `blocks` of those that are not done, by id.
    live: HashMap<u64, usize>,
    /// Bytes by handle.
    handles: HashMap<u64, u64>,
    mapped: Mapped,
    reserved: Vec<(Moment, i128)>,
    times: Vec<u64>,
}

impl Log {
    fn event(&mut self, line: &str) -> Result<()> {
        ensure!(self.moment < MAX_EVENTS, "there are more than {MAX_EVENTS} events");
        self.moment += 1;
        let mut fields = Fields::of(line);
        fields.number("seq")?;
        let mut time = self.times.last().copied().unwrap_or(0);
        match fields.text("op")? {
            "create" => {
                let handle = fields.number("handle")?;
                let bytes = checked(fields.number("bytes")?, "bytes")?;
                ensure!(
                    self.handles.insert(handle, bytes).is_none(),
                    "handle {handle} is created a second time"
                );
                self.reserved.push((self.moment, i128::from(bytes)));
            }
            "release" => {
                let handle = fields.number("handle")?;
                let bytes = self
                    .handles
                    .remove(&handle)
                    .with_context(|| format!("handle {handle} was not created"))?;
                self.reserved.push((self.moment, -i128::from(bytes)));
            }
            "map" => {
                let address = checked(fields.number("addr")?, "addr")?;
                fields.number("handle")?;
                self.mapped.map(self.moment, address, fields.number("bytes")?, PAGES)?;
            }
            "unmap" => {
                let address = checked(fields.number("addr")?, "addr")?;
                self.mapped.unmap(self.moment, address, fields.number("bytes")?)?;
            }
            "alloc" => time = self.alloc(&mut fields)?.unwrap_or(time),
            "free" => time = self.free(fields.number("id")?)?.unwrap_or(time),
            "done" => {
                let id = fields.number("id")?;
                let place = self.live.remove(&id).with_context(|| format!("block {id} was not allocated"))?;
                let block = self.blocks.get_mut(place).context("a block is lost")?;
                ensure!(block.freed != NEVER, "block {id} is done before it is freed");
                if block.done == NEVER {
                    block.done = self.moment;
                }
            }
            // They say when memory may be used; the page shows what it is used for.
            "access" | "wait" | "order" => {}
            other => bail!("unknown op {other:?}"),
        }
        self.times.push(time);
        Ok(())
    }

    /// A block, and when the trace allocated it.
    fn alloc(&mut self, fields: &mut Fields<'_>) -> Result<Option<u64>> {
        let id = fields.number("id")?;
        let address = checked(fields.number("addr")?, "addr")?;
        let bytes = checked(fields.number("bytes")?, "bytes")?;
        let stream = fields.signed("stream")?;
        ensure!(address + bytes < LIMIT, "the block ends beyond 2^52");
        let history = &self.trace.history;
        let known = self.trace.by_id.get(&id).and_then(|place| history.blocks.get(*place));
        let known =
            known.with_context(|| format!("the trace has no block {id}: is it the log of another?"))?;
        ensure!(!self.live.contains_key(&id), "block {id} is allocated a second time");
        self.live.insert(id, self.blocks.len());
        self.blocks.push(Block {
            address: Some(address),
            size: known.size,
            requested: known.requested,
            stream,
            allocated: self.moment,
            freed: NEVER,
            done: NEVER,
            stack: None,
        });
        Ok(history.times.get(known.allocated as usize).copied())
    }

    fn free(&mut self, id: u64) -> Result<Option<u64>> {
        let place = *self.live.get(&id).with_context(|| format!("block {id} was not allocated"))?;
        let history = &self.trace.history;
        let known = self.trace.by_id.get(&id).and_then(|place| history.blocks.get(*place));
        let known = known.with_context(|| format!("the trace has no block {id}"))?;
        let block = self.blocks.get_mut(place).context("a block is lost")?;
        ensure!(block.freed == NEVER, "block {id} is freed a second time");
        block.freed = self.moment;
        // As in the trace: a block that no other stream used is free at once, whenever its own stream gets that far.
        if known.done == known.freed {
            block.done = self.moment;
        }
        Ok(history.times.get(known.freed as usize).copied())
    }

    fn finish(self) -> History {
        let mut history = self.trace.history;
        let timed = !history.times.is_empty();
        history.what = "events of the replay";
        history.events = self.moment;
        history.times = if timed { self.times } else { Vec::new() };
        history.blocks = self.blocks;
        history.segments = self.mapped.finish();
        history.reserved = Reserved::Changes(self.reserved);
        history
    }
}
