//! A trace: what a program allocated and freed, with sizes and streams and no addresses.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};

use super::history::{Block, History, Moment, NEVER, Reference, Reserved, checked};
use super::input::Fields;

/// What PyTorch rounds sizes up to, and all that is compared with it.
const GRAIN: u64 = 512;

/// Events of one recording.
const MAX_EVENTS: usize = 20_000_000;

/// Reserved bytes that a header may state: its key, what the page says.
const REFERENCES: [(&str, &str, &str); 3] = [
    ("native_reserved_peak", "reference-native", "PyTorch, native"),
    ("expandable_reserved_peak", "reference-expandable", "PyTorch, expandable segments"),
    ("async_reserved_peak", "reference-async", "PyTorch, cudaMallocAsync"),
];

/// The columns that every trace has, in this order.
const COLUMNS: &str = "op,id,size,stream";

/// A trace, and where each block stands in it.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) history: History,
    /// Places in `history.blocks`, by the ids of the trace.
    pub(super) by_id: HashMap<u64, usize>,
}

/// Reads a trace.
pub(super) fn read(text: &str) -> Result<Trace> {
    let mut trace = Trace { history: empty(), by_id: HashMap::new() };
    let mut lines = text.lines().enumerate();
    let timed = loop {
        let (number, line) = lines.next().context("the trace has no line with the names of its columns")?;
        match line.strip_prefix('#') {
            Some(header) => trace.header(header)?,
            None => break columns(line).with_context(|| format!("line {}", number + 1))?,
        }
    };
    let mut last = 0;
    let mut first = None;
    for (number, line) in lines.filter(|(_, line)| !line.is_empty()) {
        let mut time = 0;
        trace
            .event(line, timed.then_some(&mut time))
            .with_context(|| format!("line {}: {line:?}", number + 1))?;
        if timed {
            // Threads write their events in the order of the lock and not of the clock.
            let start = *first.get_or_insert(time);
            last = time.saturating_sub(start).max(last);
            trace.history.times.push(last);
        }
    }
    if timed {
        trace.history.times.insert(0, 0);
    }
    for block in &mut trace.history.blocks {
        // Without an event of its own, a block is free to be used again as soon as the program lets go of it.
        if block.freed != NEVER && block.done == NEVER {
            block.done = block.freed;
        }
    }
    Ok(trace)
}

fn empty() -> History {
    History {
        what: "allocations and frees",
        events: 0,
        times: Vec::new(),
        blocks: Vec::new(),
        segments: Vec::new(),
        reserved: Reserved::Unknown,
        out_of_memory: Vec::new(),
        references: Vec::new(),
        stacks: Vec::new(),
        notes: Vec::new(),
    }
}

/// Checks the names of columns; whether the first further one is the time.
fn columns(line: &str) -> Result<bool> {
    let more = line
        .strip_prefix(COLUMNS)
        .with_context(|| format!("expected the columns {COLUMNS}, found {line:?}"))?;
    match more.split(',').nth(1) {
        None => Ok(false),
        Some("time_us") => Ok(true),
        Some(other) => bail!("after {COLUMNS} comes time_us, not {other:?}"),
    }
}

impl Trace {
    fn header(&mut self, header: &str) -> Result<()> {
        for (key, value) in header.split_whitespace().filter_map(|pair| pair.split_once('=')) {
            if let Some((_, id, name)) = REFERENCES.iter().find(|(known, _, _)| *known == key) {
                let bytes = value.parse().with_context(|| format!("{key} is no number: {value:?}"))?;
                self.history.references.push(Reference { id, name, bytes: checked(bytes, key)? });
            }
        }
        Ok(())
    }

    fn event(&mut self, line: &str, time: Option<&mut u64>) -> Result<()> {
        let mut fields = Fields::of(line);
        let op = fields.text("op")?;
        let id = fields.number("id")?;
        let moment = self.next_moment()?;
        match op {
            "a" => {
                let requested = checked(fields.number("size")?, "size")?;
                let stream = fields.signed("stream")?;
                ensure!(!self.by_id.contains_key(&id), "block {id} is allocated a second time");
                self.by_id.insert(id, self.history.blocks.len());
                let size = requested.max(1).next_multiple_of(GRAIN);
                let block = Block {
                    address: None,
                    size,
                    requested,
                    stream,
                    allocated: moment,
                    freed: NEVER,
                    done: NEVER,
                    stack: None,
                };
                self.history.blocks.push(block);
            }
            "f" | "c" => {
                fields.text("size")?;
                fields.text("stream")?;
                let place = self.by_id.get(&id).and_then(|place| self.history.blocks.get_mut(*place));
                let block = place.with_context(|| format!("block {id} was never allocated"))?;
                if op == "f" {
                    ensure!(block.freed == NEVER, "block {id} is freed a second time");
                    block.freed = moment;
                } else {
                    ensure!(
                        block.freed != NEVER && block.done == NEVER,
                        "block {id} is not waiting for a stream"
                    );
                    block.done = moment;
                }
            }
            other => bail!("op is a, f or c, not {other:?}"),
        }
        if let Some(time) = time {
            *time = checked(fields.number("time_us")?, "time_us")?;
        }
        Ok(())
    }

    fn next_moment(&mut self) -> Result<Moment> {
        ensure!((self.history.events as usize) < MAX_EVENTS, "there are more than {MAX_EVENTS} events");
        self.history.events += 1;
        Ok(self.history.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "# torch=2.11.0 native_reserved_peak=4096 wall_s=1.5\nop,id,size,stream\na,0,100,0\na,1,513,1\n\
                         f,1,,1\nf,0,,0\nc,1,,1\n";

    #[test]
    fn blocks_wait_for_streams_only_where_the_trace_says_so() {
        let history = read(TRACE).unwrap().history;
        let [one, two] = &history.blocks[..] else { panic!("{history:?}") };
        assert_eq!((one.size, one.requested, one.allocated, one.freed, one.done), (512, 100, 1, 4, 4));
        assert_eq!((two.size, two.requested, two.allocated, two.freed, two.done), (1024, 513, 2, 3, 5));
        assert_eq!(history.references[0].bytes, 4096);
        let series = history.series().unwrap();
        assert_eq!(series.live, [0, 512, 1536, 512, 0, 0]);
        assert_eq!(series.pending, [0, 0, 0, 1024, 1024, 0]);
        assert_eq!(series.reserved, None);
    }

    #[test]
    fn time_counts_from_the_first_event_and_never_runs_back() {
        let trace =
            read("op,id,size,stream,time_us,thread\na,0,1,0,50,7\nf,0,,0,90,8\na,1,1,0,80,7\n").unwrap();
        assert_eq!(trace.history.times, [0, 0, 40, 40]);
    }

    #[test]
    fn bad_lines_are_named() {
        let error = |text: &str| format!("{:#}", read(text).unwrap_err());
        let with = |line: &str| error(&format!("op,id,size,stream\na,0,1,0\n{line}\n"));
        assert!(with("x,1,1,0").contains("line 3: \"x,1,1,0\": op is a, f or c, not \"x\""));
        assert!(with("a,1,-5,0").contains("size is no number: \"-5\""));
        assert!(with("a,1").contains("the field size is missing"));
        assert!(with("a,0,1,0").contains("block 0 is allocated a second time"));
        assert!(with("f,7,,0").contains("block 7 was never allocated"));
        assert!(with("c,0,,0").contains("block 0 is not waiting for a stream"));
        assert!(with("a,1,18446744073709551615,0").contains("not below 2^52"));
        assert!(error("id,op\n").contains("expected the columns op,id,size,stream"));
        assert!(error("# a=b\n").contains("no line with the names of its columns"));
    }
}
