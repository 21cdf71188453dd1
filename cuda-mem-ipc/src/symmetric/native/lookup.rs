//! What the other ranks have of an allocation.

use std::cell::OnceCell;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::allocation::{Allocation, Remote, place};
use super::directory::{Entry, Found, KEPT};
use super::group::Inner;
use super::queue::Queue;
use super::segment::Segment;
use super::state::{AnnouncedPiece, AnnouncedSegment, SLICE, lock};
use super::words::{self, Piece};
use crate::symmetric::{Error, Result, Why};

/// The most segments of a rank that are believed in, and the most pieces of words.
const MAX_NUMBER: u64 = 1 << 16;

/// How long a rank that is about to allocate is waited for awake.
const AWAKE: Duration = Duration::from_micros(100);

/// When it is too late, counted from the first that was not there.
struct Patience {
    timeout: Duration,
    began: OnceCell<Instant>,
}

impl Patience {
    fn waited(&self) -> Duration {
        self.began.get_or_init(Instant::now).elapsed()
    }
}

impl Inner {
    /// The same allocation on every rank, all of which must have made it.
    pub(super) fn look(&self, allocation: &Allocation) -> Result<Vec<Option<Remote>>> {
        let patience = Patience { timeout: self.options.timeout, began: OnceCell::new() };
        let mut remotes = vec![None; self.state.ranks()];
        for (rank, peer) in self.state.others() {
            let entry = self.entry(rank, allocation, &patience)?;
            let Some(mapped) = self.mapped.get(rank) else { continue };
            let (context, ranks) = (&self.context, self.state.ranks());
            let open = |announced: AnnouncedSegment| {
                (announced.info.number, move || Segment::import(context, announced, rank))
            };
            let what = ["announce a segment", "the number of a segment"];
            let segment =
                self.mapped(rank, entry.segment, (&mapped.segments, &peer.segments), open, what, &patience)?;
            let invalid = |(what, value, most)| Error::Invalid { rank, what, value, most };
            let (offset, pad) = place(&entry, &segment).map_err(invalid)?;
            let open = |announced: AnnouncedPiece| {
                (announced.info.number, move || Piece::open(context, announced, rank, ranks))
            };
            let what = ["announce words for signals", "the number of words for signals"];
            let (number, index) = words::of_place(entry.words);
            let piece = self.mapped(rank, number, (&mapped.pieces, &peer.pieces), open, what, &patience)?;
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
            let waited = patience.waited();
            if waited < AWAKE {
                std::thread::yield_now();
            } else {
                // So that it is not noticed much later than it comes.
                std::thread::sleep((waited / 8).min(SLICE));
            }
        }
    }

    /// Something of a rank by its number, mapped now if it was not yet.
    fn mapped<A, T, O: FnOnce() -> Result<T>>(
        &self,
        rank: usize,
        number: u64,
        (mapped, announced): (&Mutex<Vec<Arc<T>>>, &Queue<A>),
        open: impl Fn(A) -> (u64, O),
        [call, what]: [&'static str; 2],
        patience: &Patience,
    ) -> Result<Arc<T>> {
        let invalid = |value| Error::Invalid { rank, what, value, most: MAX_NUMBER };
        let index = usize::try_from(number).ok().filter(|_| number < MAX_NUMBER);
        let index = index.ok_or_else(|| invalid(number))?;
        let mut mapped = lock(mapped);
        loop {
            if let Some(found) = mapped.get(index) {
                return Ok(Arc::clone(found));
            }
            let Some(announced) = announced.next() else {
                self.wait_for(rank, call, patience)?;
                continue;
            };
            let (number, open) = open(announced);
            if number != mapped.len() as u64 {
                self.state.break_by(rank, Why::Unreachable);
                return Err(invalid(number));
            }
            // It cannot be asked for once more, and those behind it are of no use without it.
            mapped.push(Arc::new(open().inspect_err(|error| {
                match error {
                    Error::Invalid { .. } => self.state.break_by(rank, Why::Unreachable),
                    _ => self.state.break_by(self.state.rank, Why::Failed),
                };
            })?));
        }
    }

    /// Whether waiting for a rank makes sense.
    fn wait_for(&self, rank: usize, what: &'static str, patience: &Patience) -> Result<()> {
        self.state.check()?;
        if patience.waited() > patience.timeout {
            return Err(Error::Missing { ranks: vec![rank], what, waited: self.options.timeout });
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "hostile.rs"]
mod hostile;
