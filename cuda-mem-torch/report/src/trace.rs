//! A trace: what a program allocated and freed, with sizes and streams and no addresses.

use std::collections::HashMap;

use anyhow::{Context, Result};
use cuda_mem_pool::trace::{Action, Trace};

use super::history::{Block, History, LIMIT, Moment, NEVER, OutOfMemory, Reference, checked};

/// What PyTorch rounds sizes up to, and all that is compared with it.
const GRAIN: u64 = 512;

/// Reserved bytes that a header may state: its key, what the page says.
const REFERENCES: [(&str, &str, &str); 3] = [
    ("native_reserved_peak", "reference-native", "PyTorch, native"),
    ("expandable_reserved_peak", "reference-expandable", "PyTorch, expandable segments"),
    ("async_reserved_peak", "reference-async", "PyTorch, cudaMallocAsync"),
];

/// A trace as a history, and where each block stands in it.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) history: History,
    /// Places in `history.blocks`, by the ids of the trace. Blocks without bytes, and those that no device has memory for, have none.
    pub(super) by_id: HashMap<u64, usize>,
}

/// Reads a trace.
pub(super) fn read(text: &str) -> Result<Program> {
    let trace = Trace::read(text.as_bytes())?;
    let mut program = Program {
        history: History::empty("allocations and frees", Moment::try_from(trace.events.len())?),
        by_id: HashMap::new(),
    };
    for (key, id, name) in REFERENCES {
        if let Some(bytes) = trace.number(key)? {
            program.history.references.push(Reference {
                id,
                name: name.to_owned(),
                bytes: checked(bytes as u64, key)?,
            });
        }
    }
    for (before, event) in (0..).zip(&trace.events) {
        program.follow(before + 1, event.id, event.stream, event.action)?;
    }
    for block in &mut program.history.blocks {
        // Without an event of its own, a block is free to be used again as soon as the program lets go of it.
        if block.done == NEVER {
            block.done = block.freed;
        }
    }
    program.history.times = times(&trace).unwrap_or_default();
    Ok(program)
}

/// Microseconds since the first event at each moment, where every event has its time.
fn times(trace: &Trace) -> Option<Vec<u64>> {
    let first = trace.events.first()?.time_us?;
    let mut times = vec![0];
    let mut last = 0;
    for event in &trace.events {
        // Threads write their events in the order of a lock and not of the clock.
        last = event.time_us?.saturating_sub(first).max(last);
        times.push(last);
    }
    Some(times)
}

impl Program {
    fn follow(&mut self, moment: Moment, id: u64, stream: u64, action: Action) -> Result<()> {
        if let Action::Allocate { size: requested } = action {
            if requested == 0 {
                // It has no memory, and is in no replay.
                return Ok(());
            }
            if requested >= LIMIT {
                // No device has as much: a replay is refused it, too.
                self.history.out_of_memory.push(OutOfMemory {
                    moment,
                    requested,
                    free: None,
                    stack: None,
                    stream: None,
                });
                return Ok(());
            }
            self.by_id.insert(id, self.history.blocks.len());
            self.history.blocks.push(Block {
                address: None,
                size: requested.next_multiple_of(GRAIN),
                requested,
                stream: i64::try_from(stream)
                    .with_context(|| format!("stream {stream} is not below 2^63"))?,
                allocated: moment,
                freed: NEVER,
                done: NEVER,
                stack: None,
                tag: 0,
                note: 0,
            });
            return Ok(());
        }
        // The others are those that are not there.
        if let Some(block) = self.by_id.get(&id).and_then(|place| self.history.blocks.get_mut(*place)) {
            match action {
                Action::Free => block.freed = moment,
                _ => block.done = moment,
            }
        }
        Ok(())
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
    fn what_has_no_memory_is_no_block() {
        let text = format!("op,id,size,stream\na,0,0,0\na,1,{},0\na,2,1,0\nf,1,,0\nf,0,,0\n", 1u64 << 52);
        let history = read(&text).unwrap().history;
        assert_eq!(history.blocks.iter().map(|block| block.allocated).collect::<Vec<_>>(), [3]);
        assert_eq!(
            history.out_of_memory,
            [OutOfMemory { moment: 2, requested: 1 << 52, free: None, stack: None, stream: None }]
        );
        let series = history.series().unwrap();
        assert_eq!(series.live, [0, 0, 0, 512, 512, 512]);
    }

    #[test]
    fn time_counts_from_the_first_event_and_never_runs_back() {
        let trace =
            read("op,id,size,stream,time_us,thread\na,0,1,0,50,7\nf,0,,0,90,8\na,1,1,0,80,7\n").unwrap();
        assert_eq!(trace.history.times, [0, 0, 40, 40]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let error = read("op,id,size,stream\na,0,1,0\nf,7,,0\n").unwrap_err().to_string();
        assert_eq!(error, "line 3: the block 7 is freed and is not live");
        let error = read("op,id,size,stream\na,0,1,9223372036854775808\n").unwrap_err().to_string();
        assert_eq!(error, "stream 9223372036854775808 is not below 2^63");
    }
}
