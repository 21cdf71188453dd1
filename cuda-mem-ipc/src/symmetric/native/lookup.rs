//! What the other ranks have of an allocation.

use std::cell::OnceCell;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::allocation::{Allocation, Remote, place};
use super::announced::{Announced, MAX_NUMBER};
use super::directory::{Entry, Found, KEPT};
use super::group::Inner;
use super::queue::Queue;
use super::state::SLICE;
use super::words;
use crate::primitive::lock;
use crate::symmetric::{Error, Result};

/// How long a rank that is about to allocate is waited for awake.
const AWAKE: Duration = Duration::from_micros(100);

/// When it is too late, counted from the first that was not there.
pub(super) struct Patience {
    timeout: Duration,
    began: OnceCell<Instant>,
}

impl Patience {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, began: OnceCell::new() }
    }

    /// Between two looks.
    pub(super) fn pause(&self) {
        let waited = self.waited();
        if waited < AWAKE {
            std::thread::yield_now();
        } else {
            // So that it is not noticed much later than it comes.
            std::thread::sleep((waited / 8).min(SLICE));
        }
    }

    fn waited(&self) -> Duration {
        self.began.get_or_init(Instant::now).elapsed()
    }
}

impl Inner {
    /// The same allocation on every rank, all of which must have made it.
    pub(super) fn look(&self, allocation: &Allocation) -> Result<Vec<Option<Remote>>> {
        let patience = Patience::new(self.options.timeout);
        let mut remotes = vec![None; self.state.ranks()];
        for (rank, peer) in self.state.others() {
            let entry = self.entry(rank, allocation, &patience)?;
            let Some(mapped) = self.mapped.get(rank) else { continue };
            let (segments, pieces) = ((&mapped.segments, &peer.segments), (&mapped.pieces, &peer.pieces));
            let segment = self.mapped(rank, entry.segment, segments, "announce a segment", &patience)?;
            let invalid = |(what, value, most)| Error::Invalid { rank, what, value, most };
            let (offset, pad) = place(&entry, &segment).map_err(invalid)?;
            let (number, index) = words::of_place(entry.words);
            let piece = self.mapped(rank, number, pieces, "announce words for signals", &patience)?;
            let most = (piece.room as u64).saturating_sub(1);
            let words = usize::try_from(index).ok().filter(|words| *words < piece.room);
            let words = words.ok_or_else(|| invalid(("the place of an allocation's words", index, most)))?;
            remotes[rank] = Some(Remote { segment, offset, pad, piece, words });
        }
        Ok(remotes)
    }

    /// What a rank says of an allocation, compared with this one's.
    fn entry(&self, rank: usize, allocation: &Allocation, patience: &Patience) -> Result<Entry> {
        let (directory, sequence) = (&self.state.directory, allocation.sequence);
        let ours = allocation.size as u64;
        loop {
            // Before the entry: a rank that has left has said all that it had to say.
            let has_left = directory.has_left(rank);
            match directory.entry(rank, sequence)? {
                Found::There(theirs) if theirs.sequence != sequence => {
                    let what = "the number of an allocation";
                    return Err(Error::Invalid { rank, what, value: theirs.sequence, most: sequence });
                }
                Found::There(theirs) if theirs.size != ours => {
                    let theirs = theirs.size;
                    return Err(Error::OrderDiffers { rank, sequence, ours, theirs });
                }
                Found::There(theirs) => return Ok(theirs),
                Found::Overtaken => return Err(Error::Overtaken { rank, sequence, kept: KEPT }),
                Found::NotYet if has_left => return Err(Error::Left { rank }),
                Found::NotYet => self.wait_for(rank, "allocate", patience)?,
            }
            patience.pause();
        }
    }

    /// Something of a rank by its number, mapped now if it was not yet.
    fn mapped<T: Announced>(
        &self,
        rank: usize,
        number: u64,
        (mapped, announced): (&Mutex<Vec<Arc<T>>>, &Queue<T::Announcement>),
        call: &'static str,
        patience: &Patience,
    ) -> Result<Arc<T>> {
        let index = usize::try_from(number).ok().filter(|_| number < MAX_NUMBER);
        let invalid = Error::Invalid { rank, what: T::NUMBER, value: number, most: MAX_NUMBER };
        let index = index.ok_or(invalid)?;
        let mut mapped = lock(mapped);
        loop {
            if let Some(found) = mapped.get(index) {
                return Ok(Arc::clone(found));
            }
            match announced.next() {
                Some(announced) => self.map_next(rank, &mut mapped, announced)?,
                None => self.wait_for(rank, call, patience)?,
            }
        }
    }

    /// Whether waiting for a rank makes sense.
    pub(super) fn wait_for(&self, rank: usize, what: &'static str, patience: &Patience) -> Result<()> {
        self.state.check()?;
        if patience.waited() > patience.timeout {
            return Err(Error::Missing { ranks: vec![rank], what, waited: self.options.timeout });
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "../../../tests/players/ranks.rs"]
mod hostile;
