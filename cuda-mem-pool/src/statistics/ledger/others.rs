//! How a shard that has no room left gets some of others without the books: no lock and no word that all threads write.
//!
//! A shard that is bound has a share of the peak. Whoever moves a part of one share to another changes nothing for all others,
//! for the sum of the shares stays what it is: it is enough to have these two. The thread that asks has its own, armed, and
//! takes the other one for that moment, as a holder does, if nobody has it. While it has both, and both may count, neither is
//! made to rest, nor goes on alone; so both are bound, and what it reads of them stands still.

use std::sync::Arc;

use super::cells::{ACTIVE, Cells, DRAINED, HELD, LENT, QUIET};
use super::sums::Sums;
use crate::primitive::{Mutex, Ordering, lock, thread_token};

/// The shards that one can ask. Only its holder does, so nobody waits for the lock.
#[derive(Debug, Default)]
pub(super) struct Others(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// All shards, as the books had them when this one was last let count: there may be more since, and one that is gone has
    /// all others ask to be let count again.
    shards: Arc<[Arc<Cells>]>,
    /// Who was asked last.
    asked: usize,
}

impl Others {
    pub(super) fn learn(&self, shards: Arc<[Arc<Cells>]>) {
        lock(&self.0).shards = shards;
    }

    /// Shares what others do not use until `cells` has room for `more`; whether it has. Its holder is the calling thread, is
    /// armed, and may count in it; it is bound.
    pub(super) fn share(&self, cells: &Arc<Cells>, more: Sums) -> bool {
        let Known { shards, asked } = &mut *lock(&self.0);
        for _ in 0..shards.len() {
            *asked = (*asked + 1) % shards.len();
            let Some(other) = shards.get(*asked) else { return false };
            if !Arc::ptr_eq(other, cells) && share_with(cells, other, more) {
                return true;
            }
        }
        false
    }
}

/// Shares with one other, unless somebody has that, or it rests, or has nothing left.
///
/// Of one that nobody has had since it was last asked all is taken: a program has many streams, most of them idle, and if each of
/// them had as much as those at work, those would come to the end of theirs all the time.
fn share_with(cells: &Cells, other: &Cells, more: Sums) -> bool {
    let found = other.lock.load(Ordering::Relaxed);
    let quiet = found & QUIET;
    if found != ACTIVE | quiet {
        return false;
    }
    let taken = ACTIVE | HELD | LENT | thread_token();
    // Acquire: what its last holder has counted is seen.
    if other.lock.compare_exchange(found, taken, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return false;
    }
    let is_quiet = quiet != 0;
    let enough = cells.share_with(other, more, is_quiet);
    let left = ACTIVE | QUIET | if is_quiet { DRAINED } else { 0 };
    // Nobody else changes the word of a shard whose holder is armed. Release: its next holder sees what it may have.
    other.lock.store(left, Ordering::Release);
    enough
}
