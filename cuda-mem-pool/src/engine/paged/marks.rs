//! Which of a stream's frees the device has come past.

use std::collections::{BTreeMap, VecDeque};

use super::backend::Backend;

/// The points that were made in one stream, oldest first, each behind the frees up to a count.
#[derive(Debug)]
pub(super) struct Marks<M> {
    made: VecDeque<(u64, M)>,
    /// The frees up to this count are done.
    done: u64,
    /// The round in which the first point was found not to be reached: within one nobody asks twice.
    asked: u64,
    /// Up to which count, which heap's stream was had wait, and in which round: what else it takes in that one needs no wait of its own.
    waited: (u64, u32, u64),
}

impl<M> Default for Marks<M> {
    fn default() -> Self {
        Self { made: VecDeque::new(), done: 0, asked: 0, waited: (0, 0, 0) }
    }
}

impl<M> Marks<M> {
    /// Makes a point behind the frees up to `now`, unless there is one or none can be made.
    pub(super) fn make<B: Backend<Mark = M>>(
        &mut self,
        heap: u32,
        now: u64,
        backend: &mut B,
    ) -> Result<(), B::Error> {
        if self.done < now && self.made.back().is_none_or(|(count, _)| *count < now) {
            self.made.extend(backend.mark(heap)?.map(|mark| (now, mark)));
        }
        Ok(())
    }

    /// Whether the device has come past the free of that count, as far as is known in this round: thousands of mappings may be
    /// looked at in one, and a question costs a driver call.
    pub(super) fn is_done<B: Backend<Mark = M>>(
        &mut self,
        freed_at: u64,
        round: u64,
        backend: &mut B,
    ) -> Result<bool, B::Error> {
        while self.done < freed_at
            && self.asked != round
            && let Some((count, mark)) = self.made.front()
        {
            let count = *count;
            match backend.is_done(mark) {
                Ok(true) => self.done = count,
                Ok(false) => {
                    self.asked = round;
                    break;
                }
                Err(error) => {
                    // It would say no more the next time: of a capture, say, that had it and ended before that was noticed.
                    self.made.pop_front();
                    return Err(error);
                }
            }
            self.made.pop_front();
        }
        Ok(self.done >= freed_at)
    }

    /// The first point behind the free of that count, and the count that it is behind.
    pub(super) fn behind(&self, freed_at: u64) -> Option<(u64, &M)> {
        self.made.iter().find(|(count, _)| *count >= freed_at).map(|(count, mark)| (*count, mark))
    }

    /// The stream of `heap` waits, in this round, for the frees up to `count`.
    pub(super) fn waited_for(&mut self, count: u64, heap: u32, round: u64) {
        self.waited = (count, heap, round);
    }

    /// Whether the stream of `heap` waits for the free of that count since earlier in this round.
    pub(super) fn is_waited_for(&self, freed_at: u64, heap: u32, round: u64) -> bool {
        let (count, waiter, at) = self.waited;
        (waiter, at) == (heap, round) && freed_at <= count
    }
}

/// Whether the device has come past a count of a heap.
pub(super) fn is_done<B: Backend>(
    marks: &mut BTreeMap<u32, Marks<B::Mark>>,
    heap: u32,
    count: u64,
    round: u64,
    backend: &mut B,
) -> Result<bool, B::Error> {
    match marks.get_mut(&heap) {
        Some(marks) => marks.is_done(count, round, backend),
        None => Ok(count == 0),
    }
}
