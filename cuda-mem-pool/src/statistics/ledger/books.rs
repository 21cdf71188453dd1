//! The slow side of the ledger: which shards are active, and what each of them may have.

mod shares;

use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::AtomicUsize;

use self::shares::Shares;
use super::cells::{ACTIVE, Cells, TOKEN};
use super::sums::{Flow, Made, Sums};
use super::{LiveStatistics, Peaks};
use crate::primitive::{Mutex, Ordering, lock_soon, thread_token, wait_a_moment};

#[derive(Debug)]
pub(super) struct Books {
    peaks: Peaks,
    state: Mutex<State>,
    /// How often a shard was let count.
    #[cfg(test)]
    pub(super) asked: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    /// All that are not gone. A new list is made for each change: shards know the one that they saw.
    shards: Arc<[Arc<Cells>]>,
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
        Self {
            peaks,
            state: Mutex::new(State::default()),
            #[cfg(test)]
            asked: AtomicUsize::new(0),
        }
    }

    pub(super) fn add(&self) -> Arc<Cells> {
        let cells = Arc::<Cells>::default();
        let mut state = lock_soon(&self.state);
        state.shards = state.shards.iter().chain([&cells]).cloned().collect();
        cells
    }

    /// The shard may count from now on, and has room for `more` if it is bound. Its holder is the calling thread, is armed, and
    /// the shard is not active. Gives all shards.
    #[cold]
    pub(super) fn admit(&self, cells: &Arc<Cells>, more: Sums) -> Arc<[Arc<Cells>]> {
        #[cfg(test)]
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut state = lock_soon(&self.state);
        let State { shards, shares, .. } = &mut *state;
        if self.peaks == Peaks::Exact {
            shares.admit(cells, more, shards.len());
        }
        // Nobody else changes the word of a shard whose holder is armed. What was counted here last is seen: by the holder's
        // turn with the shard, or by the lock.
        cells.lock.fetch_or(ACTIVE, Ordering::Relaxed);
        Arc::clone(shards)
    }

    /// The shard is gone, and nobody has it.
    pub(super) fn remove(&self, cells: &Arc<Cells>) {
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
        state.shards = state.shards.iter().filter(|shard| !Arc::ptr_eq(shard, cells)).cloned().collect();
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
                for shard in &*self.shards {
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
    let mine = thread_token();
    let mut tries = 0;
    // Acquire, here and below: what its holders have counted is seen.
    let mut now = cells.lock.load(Ordering::Acquire);
    while now & ACTIVE != 0 {
        let armed = now & TOKEN;
        if armed != 0 && armed != mine {
            // Its holder counts, and waits for nobody until that is done.
            wait_a_moment(&mut tries);
            now = cells.lock.load(Ordering::Acquire);
            continue;
        }
        match cells.lock.compare_exchange(now, now & !ACTIVE, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => {
                cells.settle();
                return true;
            }
            Err(other) => now = other,
        }
    }
    false
}
