//! Time without a clock: the host stands at an operation, the device some operations behind it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// A point of a stream's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fence {
    pub(crate) stream: u64,
    /// The operation that the host has come to when the device reaches the point.
    pub(crate) due: u64,
    /// The number of the log's next event when it was recorded.
    pub(crate) at: u64,
}

/// Where host and device are.
#[derive(Debug)]
pub(crate) struct Clock {
    /// How many operations the device is behind.
    lag: u64,
    /// The operation that the host is at.
    now: u64,
    /// As far as the host has waited for the device: what is due by then is done.
    reached: u64,
    /// What a stream's later work waits for.
    floors: HashMap<u64, u64>,
    /// Freed blocks, by when the work with them is done.
    freed: BinaryHeap<Reverse<(u64, u64)>>,
}

impl Clock {
    pub(crate) fn new(lag: u64) -> Self {
        Self { lag, now: 0, reached: 0, floors: HashMap::new(), freed: BinaryHeap::new() }
    }

    /// The host comes to an operation.
    pub(crate) fn begin(&mut self, operation: u64) {
        self.now = self.now.max(operation);
    }

    /// When work that a stream is given now will be done.
    pub(crate) fn due(&self, stream: u64) -> u64 {
        let floor = self.floors.get(&stream).copied().unwrap_or(0);
        self.now.saturating_add(self.lag).max(floor)
    }

    /// A stream's later work waits until then.
    pub(crate) fn hold_up(&mut self, stream: u64, until: u64) {
        let floor = self.floors.entry(stream).or_default();
        *floor = until.max(*floor);
    }

    pub(crate) fn is_past(&self, due: u64) -> bool {
        due <= self.now.max(self.reached)
    }

    /// The host waits; returns for how many operations.
    pub(crate) fn wait(&mut self, due: u64) -> u64 {
        let waited = due.saturating_sub(self.now.max(self.reached));
        self.reached = self.reached.max(due);
        waited
    }

    /// A block is freed whose work is done then.
    pub(crate) fn free(&mut self, id: u64, due: u64) {
        self.freed.push(Reverse((due, id)));
    }

    /// The next freed block whose work is done, once each.
    pub(crate) fn next_done(&mut self) -> Option<u64> {
        let Reverse((due, _)) = self.freed.peek()?;
        if !self.is_past(*due) {
            return None;
        }
        self.freed.pop().map(|Reverse((_, id))| id)
    }

    /// When everything that was given to the device is done, side uses too.
    pub(crate) fn all_due(&self) -> u64 {
        let latest = self.freed.iter().map(|Reverse((due, _))| *due).max().unwrap_or(0);
        let floor = self.floors.values().copied().max().unwrap_or(0);
        latest.max(floor).max(self.now.saturating_add(self.lag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_lag_operations_later() {
        let mut clock = Clock::new(2);
        clock.begin(5);
        let due = clock.due(0);
        clock.free(9, due);
        for (now, done) in [(5, None), (6, None), (7, Some(9)), (8, None)] {
            clock.begin(now);
            assert_eq!(clock.next_done(), done, "at {now}");
        }
    }

    #[test]
    fn without_lag_work_is_done_at_once() {
        let mut clock = Clock::new(0);
        clock.begin(5);
        assert!(clock.is_past(clock.due(0)));
    }

    #[test]
    fn a_wait_counts_the_operations_that_are_left_and_no_more() {
        let mut clock = Clock::new(10);
        clock.begin(3);
        let (first, side) = (clock.due(0), 40);
        assert_eq!(clock.wait(first), 10);
        assert!(clock.is_past(first));
        assert_eq!(clock.wait(first), 0);
        clock.begin(8);
        assert_eq!(clock.wait(side), 27, "the device is at 13");
    }

    #[test]
    fn a_stream_that_waits_is_done_no_earlier_than_what_it_waits_for() {
        let mut clock = Clock::new(1);
        clock.hold_up(4, 50);
        assert_eq!(clock.due(4), 50);
        assert_eq!(clock.due(5), 1);
        assert_eq!(clock.all_due(), 50);
        clock.begin(60);
        assert_eq!(clock.due(4), 61);
    }
}
