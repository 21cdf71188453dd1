//! Who may count with exact peaks, and how much.
//!
//! While one shard is active it may have what it likes: all others stand still, so the sum was highest when its own part was.
//! While several are, each is *bound*: it has a share of the peak that is never less than what it has, and all shares and what
//! the resting shards have are never more than the peak together. So the sum stays below the peak whatever each of them does
//! with its share, and nobody has to know of the others. Two may share what they have anew (`others.rs`), which leaves the sum of
//! the shares as it is. One that does not get enough that way gets it here: of what nobody has, then of what any of the others
//! has and does not use. Where that is too little, the sum may be about to rise above the peak: then all others rest, and
//! the one goes on alone. So a peak is only ever raised by a shard that is active alone, to what the sum then is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::cells::{ACTIVE, Cells, TOKEN};
use super::super::sums::Sums;
use super::rest;
use crate::primitive::Ordering;

#[derive(Debug, Default)]
pub(super) struct Shares {
    /// Those that may count.
    active: Vec<Arc<Cells>>,
    /// What there is in shards that rest and in those that are gone.
    resting: Sums,
    /// All shares together, of those that are bound.
    shared: Sums,
    /// The peaks, but for what one that is active alone has seen since it is.
    peak: Sums,
    /// Who was last asked for what it does not use.
    asked: usize,
}

impl Shares {
    /// Lets a shard count, one of so many, and have `more` than it has. Its holder is the calling thread, is armed, and the
    /// shard's word says that it is not active.
    pub(super) fn admit(&mut self, cells: &Arc<Cells>, more: Sums, shards: usize) {
        let is_new = !self.active.iter().any(|active| Arc::ptr_eq(active, cells));
        if is_new {
            self.join(cells);
        }
        if self.is_alone() {
            return;
        }
        // And some for the next time: half of what is left, or as much as for each of those that may come yet.
        let parts = if is_new { 1 + shards.saturating_sub(self.active.len()) } else { 2 };
        if !self.grant(cells, more, parts) {
            self.rest();
            self.join(cells);
        }
    }

    /// Has nobody count. What one that was alone has seen goes into the peak.
    pub(super) fn rest(&mut self) {
        let alone = self.is_alone();
        for cells in std::mem::take(&mut self.active) {
            rest(&cells);
            if alone {
                self.note_peak(&cells);
            }
            self.resting = self.resting.plus(cells.now());
        }
        self.shared = Sums::default();
    }

    /// What there is, while nobody counts.
    pub(super) fn now(&self) -> Sums {
        self.resting
    }

    /// The most that there was, while nobody counts.
    pub(super) fn peak(&self) -> Sums {
        self.peak
    }

    pub(super) fn reset_peak(&mut self) {
        self.peak = self.resting;
    }

    /// What there is, and the most that there was, while others count.
    pub(super) fn glance(&self) -> (Sums, Sums) {
        let now = self.active.iter().fold(self.resting, |now, cells| now.plus(cells.now()));
        let Some(one) = self.active.first().filter(|_| self.is_alone()) else {
            return (now.min(self.peak), self.peak);
        };
        // It may have risen and not looked at it yet.
        (now, self.peak.max(now).max(self.resting.plus(one.most())))
    }

    fn is_alone(&self) -> bool {
        self.active.len() == 1
    }

    /// What nobody has of the peak.
    fn room(&self) -> Sums {
        self.peak.less(self.resting).less(self.shared)
    }

    /// What one that was alone has seen, and has stopped.
    fn note_peak(&mut self, cells: &Cells) {
        self.peak = self.peak.max(self.resting.plus(cells.most()));
    }

    /// Makes a resting shard an active one.
    fn join(&mut self, cells: &Arc<Cells>) {
        if let [alone] = &*self.active {
            // It is not any more.
            let alone = Arc::clone(alone);
            let_rise(&alone);
            let counted = rest(&alone);
            self.note_peak(&alone);
            self.bind(&alone);
            go_on(&alone, counted);
        }
        self.resting = self.resting.less(cells.now());
        if self.active.is_empty() {
            cells.begin();
        } else {
            self.bind(cells);
        }
        self.active.push(Arc::clone(cells));
    }

    /// Has one that stands still have no more than it has.
    fn bind(&mut self, cells: &Cells) {
        let now = cells.now();
        self.shared = self.shared.plus(now);
        cells.bind(now);
    }

    /// Grants one room for `more` than it has, and a part of what is then left. False if there may be too little.
    fn grant(&mut self, cells: &Arc<Cells>, more: Sums, parts: usize) -> bool {
        let share = cells.most();
        let lacks = cells.now().plus(more).less(share).or_nothing();
        for all in [false, true] {
            self.collect(cells, lacks, all);
        }
        let left = self.room().less(lacks);
        if !Sums::default().fits(left) {
            return false;
        }
        let more = lacks.plus(left.part(parts));
        self.shared = self.shared.plus(more);
        cells.bind(share.plus(more));
        true
    }

    /// Takes of the others what they do not use, or half of it, until nobody has as much as one lacks. Waits for those that count.
    fn collect(&mut self, but: &Arc<Cells>, lacks: Sums, all: bool) {
        for _ in 0..self.active.len() {
            let still = lacks.less(self.room()).or_nothing();
            if still == Sums::default() {
                return;
            }
            self.asked = (self.asked + 1) % self.active.len();
            let Some(cells) = self.active.get(self.asked) else { return };
            if Arc::ptr_eq(cells, but) {
                continue;
            }
            let counted = rest(cells);
            let share = cells.most();
            let unused = share.less(cells.now());
            let taken = unused.part(if all { 1 } else { 2 }).where_any(still);
            self.shared = self.shared.less(taken);
            cells.bind(share.less(taken));
            go_on(cells, counted);
        }
    }
}

/// Waits a moment for one that is alone while it rises, as at the begin of a thread: else all would stop for every few blocks that
/// it adds to the peak.
fn let_rise(cells: &Cells) {
    // A few blocks take as long. It is seldom looked at, because that holds it up.
    const LOOK: Duration = Duration::from_nanos(400);
    const LOOKS: u32 = if cfg!(all(loom, test)) { 0 } else { 32 };
    let begin = Instant::now();
    let mut most = cells.now();
    for look in 1..=LOOKS {
        while begin.elapsed() < LOOK * look {
            std::hint::spin_loop();
        }
        let now = cells.now();
        if now.fits(most) {
            return;
        }
        most = most.max(now);
    }
}

/// Lets a shard go on that was made to rest, if it counted before.
fn go_on(cells: &Cells, counted: bool) {
    let mut now = cells.lock.load(Ordering::Relaxed);
    // One that was armed meanwhile may wait for the books, and would be waited for: it is let go on when it has them.
    while counted && now & TOKEN == 0 {
        // Release: whoever takes the shard sees what it may have.
        match cells.lock.compare_exchange(now, now | ACTIVE, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => now = other,
        }
    }
}
