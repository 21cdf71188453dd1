//! A trace made ready: operations in order, and what is known of each block beforehand.

use std::collections::HashMap;

use anyhow::{Context, Result};
use cuda_mem_pool::trace::{Action, Trace};

/// The granularity that live bytes are counted in.
const ROUNDING: u64 = 512;

/// Bytes as they are counted: rounded up to 512.
pub(crate) fn rounded(bytes: u64) -> u64 {
    bytes.div_ceil(ROUNDING) * ROUNDING
}

/// A trace to replay.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The file's name without its endings.
    pub(crate) name: String,
    /// What the program does, in its order. An operation's place here is the time of replays that have no clock.
    pub(crate) operations: Vec<Operation>,
    /// The blocks, in the order of their allocation.
    pub(crate) blocks: Vec<Block>,
    /// The most bytes that were live at once, each block rounded up to 512.
    pub(crate) peak_live: u64,
    /// As [`Plan::peak_live`], with the blocks that were freed while another stream still used them.
    pub(crate) peak_active: u64,
    /// The seconds that the run took, if the trace tells.
    pub(crate) wall: Option<f64>,
}

/// One step of the program; the number is the block's place in [`Plan::blocks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Allocate(usize),
    Free(usize),
}

/// What the trace tells of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) id: u64,
    pub(crate) size: u64,
    pub(crate) stream: u64,
    /// The use by another stream, where there was one.
    pub(crate) side: Option<Side>,
}

/// A use by a stream that the trace does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Side {
    /// A number for it, which no stream of the trace has. Its uses end in the order in which the blocks are freed.
    pub(crate) stream: u64,
    /// The operation before which it ended.
    pub(crate) until: u64,
}

impl Plan {
    /// Reads the operations out of a trace. Allocations of no bytes are left out: they have no memory.
    pub(crate) fn new(name: &str, trace: &Trace) -> Result<Self> {
        let mut plan = Self {
            name: name.to_owned(),
            operations: Vec::new(),
            blocks: Vec::new(),
            peak_live: 0,
            peak_active: 0,
            wall: trace.number("wall_s")?.filter(|wall| *wall > 0.0),
        };
        let mut places = HashMap::new();
        let mut ends = Vec::new();
        for event in &trace.events {
            if let Action::Allocate { size: size @ 1.. } = event.action {
                places.insert(event.id, plan.blocks.len());
                plan.operations.push(Operation::Allocate(plan.blocks.len()));
                plan.blocks.push(Block { id: event.id, size, stream: event.stream, side: None });
            } else if let Some(place) = places.get(&event.id) {
                match event.action {
                    Action::Complete => ends.push((*place, plan.operations.len() as u64)),
                    _ => plan.operations.push(Operation::Free(*place)),
                }
            }
        }
        plan.add_sides(&ends);
        (plan.peak_live, plan.peak_active) = plan.peaks(|_| true)?;
        Ok(plan)
    }

    /// Gives each use by another stream a stream on which uses end in the order of their frees, as they do on any stream.
    fn add_sides(&mut self, ends: &[(usize, u64)]) {
        let ends = ends.iter().copied().collect::<HashMap<_, _>>();
        let mut next =
            self.blocks.iter().map(|block| block.stream).max().map_or(0, |most| most.wrapping_add(1));
        let taken = |blocks: &[Block], number: u64| blocks.iter().any(|block| block.stream == number);
        // Of each side stream: its number and when its last use ends.
        let mut sides: Vec<(u64, u64)> = Vec::new();
        let freed = self.operations.iter().filter_map(|operation| match operation {
            Operation::Free(place) => Some(*place),
            Operation::Allocate(_) => None,
        });
        for place in freed {
            let Some(until) = ends.get(&place).copied() else { continue };
            let fitting = sides.iter_mut().filter(|(_, last)| *last <= until).max_by_key(|(_, last)| *last);
            let stream = match fitting {
                Some((stream, last)) => {
                    *last = until;
                    *stream
                }
                None => {
                    while taken(&self.blocks, next) {
                        next = next.wrapping_add(1);
                    }
                    sides.push((next, until));
                    next = next.wrapping_add(1);
                    next.wrapping_sub(1)
                }
            };
            if let Some(block) = self.blocks.get_mut(place) {
                block.side = Some(Side { stream, until });
            }
        }
    }

    /// The most bytes that are live at once, of the blocks at these places, and the most with those that were freed while another stream
    /// still used them.
    pub(crate) fn peaks(&self, counts: impl Fn(usize) -> bool) -> Result<(u64, u64)> {
        self.count_bytes(counts).context("the sizes of its live blocks do not fit 64 bits")
    }

    fn count_bytes(&self, counts: impl Fn(usize) -> bool) -> Option<(u64, u64)> {
        let mut ends = (0..)
            .zip(&self.blocks)
            .filter(|(place, _)| counts(*place))
            .filter_map(|(_, block)| Some((block.side?.until, rounded(block.size))))
            .collect::<Vec<_>>();
        ends.sort_unstable();
        let mut ends = ends.into_iter().peekable();
        let (mut live, mut pending) = (0u64, 0u64);
        let (mut peak_live, mut peak_active) = (0, 0);
        for (now, operation) in self.operations.iter().enumerate() {
            while let Some((_, size)) = ends.next_if(|(until, _)| *until <= now as u64) {
                pending = pending.checked_sub(size)?;
            }
            match operation {
                Operation::Allocate(place) if counts(*place) => {
                    live = live.checked_add(rounded(self.blocks.get(*place)?.size))?
                }
                Operation::Free(place) if counts(*place) => {
                    let block = self.blocks.get(*place)?;
                    live = live.checked_sub(rounded(block.size))?;
                    pending = pending.checked_add(block.side.map_or(0, |_| rounded(block.size)))?;
                }
                Operation::Allocate(_) | Operation::Free(_) => {}
            }
            peak_live = peak_live.max(live);
            peak_active = peak_active.max(live.checked_add(pending)?);
        }
        Some((peak_live, peak_active))
    }

    /// The numbers of all streams, those of uses beside the trace's own too.
    pub(crate) fn streams(&self) -> Vec<u64> {
        let of_block = |block: &Block| [Some(block.stream), block.side.map(|side| side.stream)];
        let mut streams = self.blocks.iter().flat_map(of_block).flatten().collect::<Vec<_>>();
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// The seconds of one operation, on average; 0 where the trace does not tell how long it took.
    #[expect(clippy::cast_precision_loss, reason = "fewer operations than a float counts exactly")]
    pub(crate) fn seconds_per_operation(&self) -> f64 {
        self.wall.unwrap_or(0.0) / self.operations.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Plan {
        let trace = Trace::read(format!("op,id,size,stream\n{text}").as_bytes()).unwrap();
        Plan::new("t", &trace).unwrap()
    }

    #[test]
    fn live_and_active_are_counted_in_units_of_512() {
        let plan = plan("a,0,1,0\na,1,513,0\nf,1,,0\na,2,1024,0\nf,0,,0\nc,1,,0\n");
        // 1 is pending while 2 is allocated.
        assert_eq!(plan.peaks(|_| true).unwrap(), (512 + 1024, 512 + 1024 + 1024));
        assert_eq!(plan.peak_live, 512 + 1024);
        // Had 1 been refused, there would be 0 and 2.
        assert_eq!(plan.peaks(|place| place != 1).unwrap(), (512 + 1024, 512 + 1024));
        assert_eq!(plan.operations.len(), 5);
        assert_eq!(plan.blocks[1].side, Some(Side { stream: 1, until: 5 }));
        assert_eq!(plan.blocks[0].side, None);
    }

    #[test]
    fn blocks_without_bytes_are_left_out() {
        let plan = plan("a,0,0,0\na,1,1,0\nf,0,,0\n");
        assert_eq!((plan.operations.len(), plan.blocks.len()), (1, 1));
    }

    #[test]
    fn uses_on_one_side_stream_end_in_order() {
        let plan = plan("a,0,1,0\na,1,1,0\na,2,1,0\nf,0,,0\nf,1,,0\nc,1,,0\nf,2,,0\nc,0,,0\nc,2,,0\n");
        let sides = plan.blocks.iter().map(|block| block.side.unwrap().stream).collect::<Vec<_>>();
        // 1 ended before 0, which was freed first: not on one stream. 2 ended after both.
        assert_eq!(sides, [1, 2, 1]);
        assert_eq!(plan.streams(), [0, 1, 2]);
    }

    #[test]
    fn side_streams_take_no_number_of_the_trace() {
        let last = u64::MAX;
        let plan = plan(&format!("a,0,1,{last}\na,1,1,0\nf,0,,{last}\nc,0,,{last}\n"));
        assert_eq!(plan.blocks[0].side.unwrap().stream, 1);
    }
}
