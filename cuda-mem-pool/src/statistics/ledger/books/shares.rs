//! Who may count with exact peaks, and how much.
//!
//! While one shard is active it may have what it likes: all others stand still, so the sum was highest when its own part was.
//! While several are, each is *bound*: it has a share of the peak that is never less than what it has, and all shares and what
//! the resting shards have are never more than the peak together. So the sum stays below the peak whatever each of them does
//! with its share, and nobody has to know of the others. One that needs more gets it of what nobody has, then of what the
//! others have and do not use. Where that is too little, the sum may be about to rise above the peak: then all others rest, and
//! the one goes on alone. So a peak is only ever raised by a shard that is active alone, to what the sum then is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::cells::{ACTIVE, Cells, TOKEN};
use super::super::sums::Sums;
use super::{rest, try_rest};
use crate::primitive::Ordering;

#[derive(Debug, Default)]
pub(super) struct Shares {
    active: Vec<Active>,
    /// What there is in shards that rest and in those that are gone, and the shares of those that are bound.
    given: Sums,
    /// The peaks, but for what one that is active alone has seen since it is.
    peak: Sums,
    /// Who was last asked for what it does not use.
    asked: usize,
}

/// A shard that may count.
#[derive(Debug)]
struct Active {
    cells: Arc<Cells>,
    /// What it may have; of no meaning in one that is active alone.
    share: Sums,
}

impl Shares {
    /// Lets a shard count, and have `more` than it has. Its holder is the calling thread, is armed, and the shard's word says that
    /// it is not active.
    pub(super) fn admit(&mut self, cells: &Arc<Cells>, more: Sums) {
        let known = self.active.iter().position(|active| Arc::ptr_eq(&active.cells, cells));
        let place = known.unwrap_or_else(|| self.join(cells));
        if self.is_alone() {
            return;
        }
        match self.share_of(place, cells.now().plus(more)) {
            Some(share) => cells.bind(share),
            None => {
                self.rest();
                self.join(cells);
            }
        }
    }

    /// Has nobody count. What one that was alone has seen goes into the peak.
    pub(super) fn rest(&mut self) {
        let alone = self.is_alone();
        for Active { cells, share } in std::mem::take(&mut self.active) {
            rest(&cells);
            if alone {
                self.peak = self.peak.max(self.given.plus(cells.most()));
                self.given = self.given.plus(cells.now());
            } else {
                self.given = self.given.less(share).plus(cells.now());
            }
        }
    }

    /// What there is, while nobody counts.
    pub(super) fn now(&self) -> Sums {
        self.given
    }

    /// The most that there was, while nobody counts.
    pub(super) fn peak(&self) -> Sums {
        self.peak
    }

    pub(super) fn reset_peak(&mut self) {
        self.peak = self.given;
    }

    /// What there is, and the most that there was, while others count.
    pub(super) fn glance(&self) -> (Sums, Sums) {
        let alone = self.is_alone();
        let add = |now: Sums, active: &Active| {
            let now = now.plus(active.cells.now());
            if alone { now } else { now.less(active.share) }
        };
        let now = self.active.iter().fold(self.given, add);
        let Some(one) = self.active.first().filter(|_| alone) else {
            return (now.min(self.peak), self.peak);
        };
        // It may have risen and not looked at it yet.
        (now, self.peak.max(now).max(self.given.plus(one.cells.most())))
    }

    fn is_alone(&self) -> bool {
        self.active.len() == 1
    }

    /// What nobody has of the peak.
    fn room(&self) -> Sums {
        self.peak.less(self.given)
    }

    /// Makes a resting shard an active one; its place among them.
    fn join(&mut self, cells: &Arc<Cells>) -> usize {
        let now = cells.now();
        if self.active.is_empty() {
            self.given = self.given.less(now);
            cells.begin();
        } else if self.is_alone() {
            // It is not any more.
            if let Some(alone) = self.active.first() {
                let_rise(&alone.cells);
            }
            let alone: Vec<_> = self.active.drain(..).collect();
            for Active { cells, .. } in alone {
                let counted = rest(&cells);
                let now = cells.now();
                self.peak = self.peak.max(self.given.plus(cells.most()));
                self.given = self.given.plus(now);
                cells.bind(now);
                go_on(&cells, counted);
                self.active.push(Active { cells, share: now });
            }
        }
        // What it has is given already.
        self.active.push(Active { cells: Arc::clone(cells), share: now });
        self.active.len() - 1
    }

    /// A share for one that will have `wanted`; None if there may be too little.
    fn share_of(&mut self, place: usize, wanted: Sums) -> Option<Sums> {
        let lacks = wanted.less(self.active.get(place)?.share).or_nothing();
        for effort in [Effort::Half, Effort::All, Effort::Wait] {
            self.collect(place, lacks, effort);
        }
        let left = self.room().less(lacks);
        if !Sums::default().fits(left) {
            return None;
        }
        // And some for the next time.
        let more = lacks.plus(left.halved().where_any(lacks));
        self.given = self.given.plus(more);
        let active = self.active.get_mut(place)?;
        active.share = active.share.plus(more);
        Some(active.share)
    }

    /// Takes of the others what they do not use until nobody has as much as one lacks.
    fn collect(&mut self, but: usize, lacks: Sums, effort: Effort) {
        for _ in 0..self.active.len() {
            let still = lacks.less(self.room()).or_nothing();
            if still == Sums::default() {
                return;
            }
            self.asked = (self.asked + 1) % self.active.len();
            if self.asked == but {
                continue;
            }
            let Some(Active { cells, share }) = self.active.get_mut(self.asked) else { return };
            let counted = if effort == Effort::Wait { Some(rest(cells)) } else { try_rest(cells) };
            let Some(counted) = counted else { continue };
            let unused = share.less(cells.now());
            let left = if effort == Effort::Half { unused.halved() } else { Sums::default() };
            let taken = unused.less(left).where_any(still);
            *share = share.less(taken);
            self.given = self.given.less(taken);
            cells.bind(*share);
            go_on(cells, counted);
        }
    }
}

/// How much is done for what one lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// Half of what others do not use is taken, of those that do not count right now.
    Half,
    /// All of it.
    All,
    /// And of those that do, when they are done.
    Wait,
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
