//! What is ordered before what: vector clocks.
//!
//! The order of work is known when it is enqueued, whenever it runs: a stream keeps its own order, an event hands the
//! order of one stream to another, a successful wait hands it to the host, and whatever the host enqueues later comes
//! after all that the host has seen. Within a graph it is that of its edges. Two pieces of work whose clocks do not compare are not ordered, even if a run
//! happened to execute one long before the other. That is what lets misuse be found on the first run.

/// One moment of one timeline: a stream's, or the host's.
pub(crate) type Timeline = u64;

/// The timeline that all threads of the host share. Streams count from 1.
pub(crate) const HOST: Timeline = 0;

/// From here on the branches of graphs count.
pub(crate) const GRAPHS: Timeline = 1 << 63;

/// How far each timeline had come, as far as somebody knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    /// By timeline, ascending; a timeline that is not here has not begun.
    moments: Vec<(Timeline, u64)>,
}

impl Clock {
    /// How far `timeline` had come.
    pub(crate) fn get(&self, timeline: Timeline) -> u64 {
        let found = self.moments.binary_search_by_key(&timeline, |moment| moment.0);
        found.ok().and_then(|index| self.moments.get(index)).map_or(0, |moment| moment.1)
    }

    /// Moves `timeline` on to `moment`; a clock never goes back.
    pub(crate) fn advance(&mut self, timeline: Timeline, moment: u64) {
        match self.moments.binary_search_by_key(&timeline, |moment| moment.0) {
            Ok(index) => {
                if let Some(known) = self.moments.get_mut(index) {
                    known.1 = known.1.max(moment);
                }
            }
            Err(index) => self.moments.insert(index, (timeline, moment)),
        }
    }

    /// Knows from now on what `other` knows, too.
    pub(crate) fn join(&mut self, other: &Self) {
        if self.moments.len() == other.moments.len()
            && self.moments.iter().zip(&other.moments).all(|(mine, theirs)| mine.0 == theirs.0)
        {
            for (mine, theirs) in self.moments.iter_mut().zip(&other.moments) {
                mine.1 = mine.1.max(theirs.1);
            }
            return;
        }
        for &(timeline, moment) in &other.moments {
            self.advance(timeline, moment);
        }
    }

    /// Whether all that this clock knows is known to `later`, so that work with this clock comes before work with that one.
    ///
    /// Equal clocks count as ordered: they belong to one moment of one timeline.
    pub(crate) fn happens_before(&self, later: &Self) -> bool {
        self.moments.iter().all(|&(timeline, moment)| moment <= later.get(timeline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(moments: &[(Timeline, u64)]) -> Clock {
        let mut clock = Clock::default();
        for &(timeline, moment) in moments {
            clock.advance(timeline, moment);
        }
        clock
    }

    #[test]
    fn work_of_unrelated_streams_is_not_ordered() {
        let one = clock(&[(HOST, 3), (1, 1)]);
        let two = clock(&[(HOST, 3), (2, 1)]);
        assert!(!one.happens_before(&two) && !two.happens_before(&one));
    }

    #[test]
    fn a_join_orders() {
        let recorded = clock(&[(1, 5)]);
        let mut waiting = clock(&[(2, 7)]);
        waiting.join(&recorded);
        waiting.advance(2, 8);
        assert!(recorded.happens_before(&waiting));
        assert!(!clock(&[(1, 6)]).happens_before(&waiting));
    }

    #[test]
    fn clocks_never_go_back() {
        let mut one = clock(&[(1, 5)]);
        one.advance(1, 3);
        one.join(&clock(&[(1, 4)]));
        assert_eq!(one.get(1), 5);
    }
}
