//! The slow side of the ledger: which shard is active, and what is known of the others.

use std::sync::Arc;

use super::cells::{ACTIVE, Cells, TOKEN};
use super::sums::{Flow, Made, Sums};
use super::{LiveStatistics, Peaks};
use crate::primitive::{Mutex, Ordering, lock, thread_token, yield_now};

#[derive(Debug)]
pub(super) struct Books {
    peaks: Peaks,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    shards: Vec<Arc<Cells>>,
    /// The only shard that may count, with [`Peaks::Exact`], by its place among them.
    active: Option<usize>,
    /// What there is in all shards that are not active, and in those that are gone.
    resting: Sums,
    /// With [`Peaks::Exact`] the peaks up to when the active shard became so; else what the peaks of shards that are gone were.
    peak: Sums,
    /// What shards that are gone have made.
    made: Made,
    /// What had come and gone at the last reset.
    base: Flow,
}

impl Books {
    pub(super) fn new(peaks: Peaks) -> Self {
        Self { peaks, state: Mutex::new(State::default()) }
    }

    pub(super) fn add(&self) -> Arc<Cells> {
        let cells = Arc::<Cells>::default();
        let mut state = lock(&self.state);
        cells.move_to(state.shards.len());
        state.shards.push(Arc::clone(&cells));
        cells
    }

    /// The shard counts from now on. Its holder is the calling thread, and is armed.
    #[cold]
    pub(super) fn activate(&self, cells: &Cells) {
        let mut state = lock(&self.state);
        if self.peaks == Peaks::Exact {
            state.rest_active();
            state.resting = state.resting.less(cells.now());
            cells.begin();
            state.active = Some(cells.place());
        }
        // Nobody else changes the word of a shard whose holder is armed. What was counted here last is seen: by the holder's
        // turn with the shard, or by the lock.
        cells.lock.fetch_or(ACTIVE, Ordering::Relaxed);
    }

    /// The shard is gone, and nobody has it.
    pub(super) fn remove(&self, cells: &Cells) {
        let mut state = lock(&self.state);
        match self.peaks {
            Peaks::Exact => state.rest_active(),
            Peaks::Sharded => {
                rest(cells);
                state.resting = state.resting.plus(cells.now());
                state.peak = state.peak.plus(cells.most());
            }
        }
        state.made = state.made.plus(cells.made());
        let place = cells.place();
        if place < state.shards.len() {
            state.shards.swap_remove(place);
        }
        if let Some(moved) = state.shards.get(place) {
            moved.move_to(place);
        }
    }

    pub(super) fn read(&self) -> LiveStatistics {
        let mut state = lock(&self.state);
        let (now, flow) = state.freeze(self.peaks);
        let peak = match self.peaks {
            Peaks::Exact => state.peak,
            Peaks::Sharded => state.shards.iter().fold(state.peak, |peak, shard| peak.plus(shard.most())),
        };
        LiveStatistics::new(now, peak, flow.since(state.base))
    }

    pub(super) fn reset_peak(&self) {
        let mut state = lock(&self.state);
        state.freeze(self.peaks);
        state.peak = state.resting;
        if self.peaks == Peaks::Sharded {
            state.shards.iter().for_each(|shard| shard.begin());
        }
    }

    pub(super) fn reset_accumulated(&self) {
        let mut state = lock(&self.state);
        let (_, flow) = state.freeze(self.peaks);
        state.base = flow;
    }
}

impl State {
    /// Has all shards stop counting. What there is in all of them, and what came and went.
    fn freeze(&mut self, peaks: Peaks) -> (Sums, Flow) {
        let now = match peaks {
            Peaks::Exact => {
                self.rest_active();
                self.resting
            }
            Peaks::Sharded => {
                self.shards.iter().for_each(|shard| rest(shard));
                self.shards.iter().fold(self.resting, |now, shard| now.plus(shard.now()))
            }
        };
        let made = self.shards.iter().fold(self.made, |made, shard| made.plus(shard.made()));
        (now, Flow::new(made, now))
    }

    /// The active shard is not any more. All others stood still while it was, so the sum of all was highest when it was.
    fn rest_active(&mut self) {
        if let Some(active) = self.active.take().and_then(|place| self.shards.get(place)) {
            rest(active);
            self.peak = self.peak.max(self.resting.plus(active.most()));
            self.resting = self.resting.plus(active.now());
        }
    }
}

/// The shard counts no more until it is activated.
fn rest(cells: &Cells) {
    let mine = thread_token();
    let mut now = cells.lock.load(Ordering::Relaxed);
    // One that is not active was settled when it stopped; its holder may be armed and wait for the lock that the caller has.
    while now & ACTIVE != 0 {
        let armed = now & TOKEN;
        if armed != 0 && armed != mine {
            // Its holder counts, and waits for nobody until that is done.
            yield_now();
            now = cells.lock.load(Ordering::Relaxed);
            continue;
        }
        // Acquire: what its holders have counted is seen.
        match cells.lock.compare_exchange(now, now & !ACTIVE, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return cells.settle(),
            Err(other) => now = other,
        }
    }
}
