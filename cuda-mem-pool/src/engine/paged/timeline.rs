//! Which of a stream's frees the device has come past.

use std::collections::VecDeque;

use super::backend::Backend;

/// The most points of a stream. They are asked only when some heap needs an answer, so there would be more and more without a bound.
const MOST: usize = 64;

/// The points that were made in one stream, oldest first, each behind the frees up to a count.
#[derive(Debug)]
pub(super) struct Timeline<B: Backend> {
    points: VecDeque<(u64, B::Point)>,
    /// The frees up to this count are done.
    done: u64,
    /// The round in which the first point was found not to be reached: within one round nobody asks twice.
    asked: u64,
}

impl<B: Backend> Default for Timeline<B> {
    fn default() -> Self {
        Self { points: VecDeque::new(), done: 0, asked: 0 }
    }
}

impl<B: Backend> Timeline<B> {
    /// Makes a point behind the frees up to `now`, unless there is one, or the backend cannot, which only costs memory.
    pub(super) fn make(&mut self, heap: u32, now: u64, backend: &mut B) {
        if self.done < now
            && self.points.back().is_none_or(|(count, _)| *count < now)
            && let Ok(Some(point)) = backend.point(heap)
        {
            // The newest goes: the one behind it says as much, later.
            self.points.truncate(MOST - 1);
            self.points.push_back((now, point));
        }
    }

    /// Whether the device is known to have come past the free of that count.
    ///
    /// A point that cannot be asked, as one that an unnoticed capture had, says nothing: it is dropped, and a later one says as much.
    pub(super) fn is_done(&mut self, freed_at: u64, round: u64, backend: &mut B) -> bool {
        while self.done < freed_at
            && self.asked != round
            && let Some((count, point)) = self.points.front()
        {
            match backend.is_done(point) {
                Ok(true) => self.done = *count,
                Ok(false) => {
                    self.asked = round;
                    break;
                }
                Err(_) => {}
            }
            self.points.pop_front();
        }
        self.done >= freed_at
    }

    /// The count of frees up to which there is a point, or which are done.
    pub(super) fn known(&self) -> u64 {
        self.points.back().map_or(self.done, |(count, _)| *count)
    }

    /// How far the device is known to have come, as a count of frees.
    pub(super) fn reached(&mut self, round: u64, backend: &mut B) -> u64 {
        self.is_done(u64::MAX, round, backend);
        self.done
    }

    /// Lets the stream of `waiter` wait for the frees of `heap`, whose timeline this is, up to a count, as far as there are points. The count
    /// up to which that stream may use what was free.
    pub(super) fn order(
        &mut self,
        heap: u32,
        freed_at: u64,
        waiter: u32,
        round: u64,
        backend: &mut B,
    ) -> u64 {
        if self.is_done(freed_at, round, backend) {
            return self.done;
        }
        // The first one behind that free holds the stream up for less than a later one.
        let behind = self.points.iter().find(|(count, _)| *count >= freed_at);
        let Some((count, point)) = behind.or(self.points.back()) else { return self.done };
        let waits = backend.wait(waiter, heap, point).unwrap_or(false);
        if waits { *count } else { self.done }
    }
}
