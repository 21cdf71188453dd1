//! The slow side of the ledger: which shards are active, and what each of them may have.

mod shares;

use std::sync::Arc;

use self::shares::Shares;
use super::cells::{ACTIVE, Cells, TOKEN};
use super::sums::{Flow, Made, Sums};
use super::{LiveStatistics, Peaks};
use crate::primitive::{Mutex, Ordering, lock_soon, thread_token, wait_a_moment};

#[derive(Debug)]
pub(super) struct Books {
    peaks: Peaks,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    shards: Vec<Arc<Cells>>,
    /// With [`Peaks::Exact`]: who may count.
    shares: Shares,
    /// With [`Peaks::Sharded`]: what there is in shards that are gone, and what their peaks were.
    gone: Sums,
    gone_peak: Sums,
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
        let mut state = lock_soon(&self.state);
        cells.move_to(state.shards.len());
        state.shards.push(Arc::clone(&cells));
        cells
    }

    /// The shard may count from now on, and has room for `more` if it is bound. Its holder is the calling thread, is armed, and
    /// the shard is not active.
    #[cold]
    pub(super) fn admit(&self, cells: &Arc<Cells>, more: Sums) {
        let mut state = lock_soon(&self.state);
        if self.peaks == Peaks::Exact {
            state.shares.admit(cells, more);
        }
        // Nobody else changes the word of a shard whose holder is armed. What was counted here last is seen: by the holder's
        // turn with the shard, or by the lock.
        cells.lock.fetch_or(ACTIVE, Ordering::Relaxed);
    }

    /// The shard is gone, and nobody has it.
    pub(super) fn remove(&self, cells: &Cells) {
        let mut state = lock_soon(&self.state);
        match self.peaks {
            Peaks::Exact => state.shares.rest(),
            Peaks::Sharded => {
                rest(cells);
                state.gone = state.gone.plus(cells.now());
                state.gone_peak = state.gone_peak.plus(cells.most());
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
        let mut state = lock_soon(&self.state);
        let (now, flow) = state.freeze(self.peaks);
        let peak = match self.peaks {
            Peaks::Exact => state.shares.peak(),
            Peaks::Sharded => state.sharded_peak(),
        };
        LiveStatistics::new(now, peak, flow.since(state.base))
    }

    /// What there is, and the most that there was, while others count.
    pub(super) fn glance(&self) -> (Sums, Sums) {
        let state = lock_soon(&self.state);
        match self.peaks {
            Peaks::Exact => state.shares.glance(),
            // Those that have risen have not all looked at it yet.
            Peaks::Sharded => {
                let most = |peak: Sums, shard: &Arc<Cells>| peak.plus(shard.most().max(shard.now()));
                (state.sharded_now(), state.shards.iter().fold(state.gone_peak, most))
            }
        }
    }

    pub(super) fn reset_peak(&self) {
        let mut state = lock_soon(&self.state);
        state.freeze(self.peaks);
        match self.peaks {
            Peaks::Exact => state.shares.reset_peak(),
            Peaks::Sharded => {
                state.gone_peak = state.gone;
                state.shards.iter().for_each(|shard| shard.begin());
            }
        }
    }

    pub(super) fn reset_accumulated(&self) {
        let mut state = lock_soon(&self.state);
        let (_, flow) = state.freeze(self.peaks);
        state.base = flow;
    }
}

impl State {
    /// Has all shards stop counting. What there is in all of them, and what came and went.
    fn freeze(&mut self, peaks: Peaks) -> (Sums, Flow) {
        let now = match peaks {
            Peaks::Exact => {
                self.shares.rest();
                self.shares.now()
            }
            Peaks::Sharded => {
                for shard in &self.shards {
                    rest(shard);
                }
                self.sharded_now()
            }
        };
        let made = self.shards.iter().fold(self.made, |made, shard| made.plus(shard.made()));
        (now, Flow::new(made, now))
    }

    fn sharded_now(&self) -> Sums {
        self.shards.iter().fold(self.gone, |now, shard| now.plus(shard.now()))
    }

    fn sharded_peak(&self) -> Sums {
        self.shards.iter().fold(self.gone_peak, |peak, shard| peak.plus(shard.most()))
    }
}

/// Has the shard count no more, and waits for its holder if that is armed. False if it did not count before: its holder, if it
/// has one, waits for the books.
fn rest(cells: &Cells) -> bool {
    let mut tries = 0;
    loop {
        match try_rest(cells) {
            Some(counted) => return counted,
            // Its holder counts, and waits for nobody until that is done.
            None => wait_a_moment(&mut tries),
        }
    }
}

/// As [`rest`], without waiting: None if its holder is armed.
fn try_rest(cells: &Cells) -> Option<bool> {
    let mine = thread_token();
    // Acquire, here and below: what its holders have counted is seen.
    let mut now = cells.lock.load(Ordering::Acquire);
    while now & ACTIVE != 0 {
        let armed = now & TOKEN;
        if armed != 0 && armed != mine {
            return None;
        }
        match cells.lock.compare_exchange(now, now & !ACTIVE, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => {
                cells.settle();
                return Some(true);
            }
            Err(other) => now = other,
        }
    }
    Some(false)
}
