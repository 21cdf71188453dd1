//! Which blocks of a long recording are listed one by one, and what is summed up of the others.

use std::collections::HashMap;

use super::history::{Block, Moment, NEVER};
use super::pickle::Fast;

/// Events of a recording whose blocks are all listed.
pub(super) const WHOLE: Moment = 1_000_000;

/// Events around a peak, and around a failed allocation, whose blocks are all listed, on each side.
const AROUND_PEAK: Moment = 20_000;
const AROUND_FAILURE: Moment = 2_000;

/// Failed allocations that have their surroundings listed.
const MAX_FAILURES: usize = 25;

/// Large blocks that are listed wherever they are.
const MAX_LARGE: usize = 50_000;

/// Moments at which the sum of the rest is known.
const COLUMNS: u64 = 1000;

/// Sums that are kept; beyond, stacks are not told apart.
const MAX_SUMS: usize = 1_500_000;

/// Blocks that are not listed: bytes and blocks by stack, at every `step`-th moment.
#[derive(Debug, Default)]
pub(super) struct Rest {
    pub(super) step: Moment,
    /// By stack and column, what is more than in the column before: bytes and blocks.
    pub(super) changes: HashMap<(Option<u32>, u32), (i64, i64), Fast>,
    pub(super) blocks: u64,
}

impl Rest {
    /// Names stacks anew.
    pub(super) fn stacks(&mut self, mut stack: impl FnMut(Option<u32>) -> Option<u32>) {
        let mut changes: HashMap<_, (i64, i64), Fast> = HashMap::default();
        for ((list, column), (bytes, blocks)) in self.changes.drain() {
            let sum = changes.entry((stack(list), column)).or_default();
            sum.0 += bytes;
            sum.1 += blocks;
        }
        self.changes = changes;
    }

    fn add(&mut self, block: &Block) {
        self.blocks += 1;
        let column = |moment: Moment| moment.div_ceil(self.step);
        let (from, to) =
            (column(block.allocated), if block.done == NEVER { NEVER } else { column(block.done) });
        if from == to {
            return;
        }
        let size = i64::try_from(block.size).unwrap_or(i64::MAX);
        let known = self.changes.len() < MAX_SUMS;
        let stack = block.stack.filter(|_| known);
        let mut change = |column, sign: i64| {
            let sum = self.changes.entry((stack, column)).or_default();
            sum.0 += sign * size;
            sum.1 += sign;
        };
        change(from, 1);
        if to != NEVER {
            change(to, -1);
        }
    }
}

/// Sorts blocks, in any order, into those that are listed and the rest.
#[derive(Debug)]
pub(super) struct Keeper {
    windows: Vec<(Moment, Moment)>,
    listed: Vec<Block>,
    large: Vec<Block>,
    /// What is large.
    least: u64,
    rest: Rest,
}

impl Keeper {
    /// `share` are the events whose blocks may all be listed, `peak` the most bytes there were.
    pub(super) fn new(
        events: Moment,
        share: Moment,
        peaks: &[Moment],
        failures: &[Moment],
        peak: u64,
    ) -> Self {
        let mut windows = vec![(events.saturating_sub(share), events)];
        let around = |moment: Moment, by| (moment.saturating_sub(by), moment.saturating_add(by).min(events));
        windows.extend(peaks.iter().map(|moment| around(*moment, AROUND_PEAK)));
        // The first and the last.
        let latest = failures.iter().rev().take(MAX_FAILURES - 1);
        let failures = failures.iter().take(1).chain(latest);
        windows.extend(failures.map(|moment| around(*moment, AROUND_FAILURE)));
        windows.sort_unstable();
        let mut merged: Vec<(Moment, Moment)> = Vec::new();
        for (from, to) in windows {
            match merged.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        let step = Moment::try_from(u64::from(events).div_ceil(COLUMNS).max(1)).unwrap_or(Moment::MAX);
        Self {
            windows: merged,
            listed: Vec::new(),
            large: Vec::new(),
            least: (peak / 1000).max(1),
            rest: Rest { step, ..Rest::default() },
        }
    }

    pub(super) fn keep(&mut self, block: Block) {
        // A block is there from the moment it is allocated until the one before it is done.
        let there = |(from, to): &(Moment, Moment)| block.allocated <= *to && *from < block.done;
        if self.windows.iter().any(there) {
            self.listed.push(block);
        } else if block.size >= self.least {
            self.large.push(block);
            if self.large.len() >= 2 * MAX_LARGE {
                self.shrink();
            }
        } else {
            self.rest.add(&block);
        }
    }

    /// Leaves the largest.
    fn shrink(&mut self) {
        if self.large.len() <= MAX_LARGE {
            return;
        }
        self.large.select_nth_unstable_by_key(MAX_LARGE, |block| std::cmp::Reverse(block.size));
        for block in self.large.drain(MAX_LARGE..) {
            self.least = self.least.max(block.size + 1);
            self.rest.add(&block);
        }
    }

    /// Where all are listed, those that are, in the order in which they came, and the rest.
    pub(super) fn finish(mut self) -> (Vec<(Moment, Moment)>, Vec<Block>, Rest) {
        self.shrink();
        let mut blocks = self.listed;
        blocks.append(&mut self.large);
        blocks.sort_unstable_by_key(|block| (block.allocated, block.address));
        (self.windows, blocks, self.rest)
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::tests::block;
    use super::*;

    #[test]
    fn what_is_listed_and_the_rest_add_up_at_every_column() {
        let events = 100_000;
        let blocks = (0..events / 2).map(|n| {
            let size = u64::from(n * 7919 % 1000 + 1) * 512;
            block(size, n * 2, NEVER, if n % 3 == 0 { NEVER } else { n * 2 + n % 4097 + 1 })
        });
        let blocks: Vec<_> = blocks.collect();
        let mut keeper = Keeper::new(events, 1000, &[50_000], &[], 512_000_000);
        blocks.iter().for_each(|block| keeper.keep(block.clone()));
        let (windows, listed, rest) = keeper.finish();
        assert_eq!(windows, [(30_000, 70_000), (99_000, 100_000)]);
        assert!(listed.len() < blocks.len() && rest.blocks as usize + listed.len() == blocks.len());
        let at = |blocks: &[Block], moment| -> (i64, i64) {
            let there = blocks.iter().filter(|block| block.allocated <= moment && moment < block.done);
            there.fold((0, 0), |sum, block| (sum.0 + block.size as i64, sum.1 + 1))
        };
        for column in (0..=1000).step_by(50) {
            let moment = column * rest.step;
            let mut sum = at(&listed, moment);
            for ((_, _), (bytes, count)) in rest.changes.iter().filter(|((_, at), _)| *at <= column) {
                sum = (sum.0 + bytes, sum.1 + count);
            }
            assert_eq!(sum, at(&blocks, moment), "column {column}");
        }
        // Within a window all are listed.
        assert_eq!(at(&listed, 45_678), at(&blocks, 45_678));
    }
}
