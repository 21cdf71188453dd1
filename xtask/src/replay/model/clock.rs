//! Time without a clock: the host stands at an operation, the device some operations behind it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// A point of a stream's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fence {
    pub(crate) stream: u64,
    /// When the device reaches the point.
    pub(crate) due: Due,
    /// The number of the log's next event when it was recorded.
    pub(crate) at: u64,
}

/// When work is done: once the host has come to an operation. Or earlier, if it waits for the device, which it can only do for
/// work that was given before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Due {
    pub(crate) operation: u64,
    /// How often the host had waited when the work was given.
    waits: usize,
}

/// Where host and device are.
#[derive(Debug)]
pub(crate) struct Clock {
    /// How many operations the device is behind.
    lag: u64,
    /// The operation that the host is at.
    now: u64,
    /// Each wait of the host: what was given before and is due by then is done.
    waits: Vec<u64>,
    /// How many of those there were when the host came to its operation. The program gives the device work between operations,
    /// so all there is was given before later waits.
    before: usize,
    /// What a stream's later work waits for.
    floors: HashMap<u64, u64>,
    /// Freed blocks, by when the work with them is done.
    freed: BinaryHeap<Reverse<(Due, u64)>>,
}

impl Clock {
    pub(crate) fn new(lag: u64) -> Self {
        Self { lag, now: 0, waits: Vec::new(), before: 0, floors: HashMap::new(), freed: BinaryHeap::new() }
    }

    /// The host comes to an operation.
    pub(crate) fn begin(&mut self, operation: u64) {
        self.now = self.now.max(operation);
        self.before = self.waits.len();
    }

    /// The operation that the host is at.
    pub(crate) const fn now(&self) -> u64 {
        self.now
    }

    /// When work that a stream is given now will be done.
    pub(crate) fn due(&self, stream: u64) -> Due {
        let floor = self.floors.get(&stream).copied().unwrap_or(0);
        Due { operation: self.now.saturating_add(self.lag).max(floor), waits: self.before }
    }

    /// A stream's later work waits until an operation.
    pub(crate) fn make_wait(&mut self, stream: u64, until: u64) {
        let floor = self.floors.entry(stream).or_default();
        *floor = until.max(*floor);
    }

    /// As far as the device is with work that was given then.
    fn reached(&self, waits: usize) -> u64 {
        let since = self.waits.get(waits..).unwrap_or_default();
        since.iter().copied().max().unwrap_or(0).max(self.now)
    }

    pub(crate) fn is_past(&self, due: Due) -> bool {
        due.operation <= self.now || due.operation <= self.reached(due.waits)
    }

    /// The host waits; returns for how many operations.
    pub(crate) fn wait(&mut self, due: Due) -> u64 {
        let waited = due.operation.saturating_sub(self.reached(due.waits));
        if waited > 0 {
            self.waits.push(due.operation);
        }
        waited
    }

    /// A block is freed whose work is done then.
    pub(crate) fn free(&mut self, id: u64, due: Due) {
        self.freed.push(Reverse((due, id)));
    }

    /// The next freed block whose work is done, once each.
    pub(crate) fn next_done(&mut self) -> Option<u64> {
        // Whatever was given before a wait and is due by then comes first: it is due before what was given later.
        let Reverse((due, _)) = self.freed.peek()?;
        if !self.is_past(*due) {
            return None;
        }
        self.freed.pop().map(|Reverse((_, id))| id)
    }

    /// When everything that was given to the device is done, side uses too.
    pub(crate) fn all_due(&self) -> Due {
        let latest = self.freed.iter().map(|Reverse((due, _))| due.operation).max().unwrap_or(0);
        let floor = self.floors.values().copied().max().unwrap_or(0);
        let operation = latest.max(floor).max(self.now.saturating_add(self.lag));
        Due { operation, waits: self.before }
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
        let first = clock.due(0);
        clock.make_wait(7, 40);
        let side = clock.due(7);
        assert_eq!(clock.wait(first), 10);
        assert!(clock.is_past(first));
        assert_eq!(clock.wait(first), 0);
        clock.begin(8);
        assert_eq!(clock.wait(side), 27, "the device is at 13");
    }

    #[test]
    fn a_wait_is_for_work_that_was_given_before() {
        let mut clock = Clock::new(10);
        clock.make_wait(7, 40);
        clock.free(1, clock.due(0));
        clock.wait(clock.due(7));
        assert_eq!(clock.next_done(), Some(1));
        clock.begin(5);
        let later = clock.due(0);
        clock.free(2, later);
        assert!(!clock.is_past(later));
        assert_eq!(clock.next_done(), None);
        clock.begin(15);
        assert_eq!(clock.next_done(), Some(2));
    }

    #[test]
    fn a_stream_that_waits_is_done_no_earlier_than_what_it_waits_for() {
        let mut clock = Clock::new(1);
        clock.make_wait(4, 50);
        let operations = |clock: &Clock| [4, 5].map(|stream| clock.due(stream).operation);
        assert_eq!(operations(&clock), [50, 1]);
        assert_eq!(clock.all_due().operation, 50);
        clock.begin(60);
        assert_eq!(operations(&clock), [61, 61]);
    }
}
