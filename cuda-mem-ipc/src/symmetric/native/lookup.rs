//! What the other ranks have of an allocation.

use std::sync::Arc;
use std::time::Duration;

use super::allocation::{Allocation, Remote, place};
use super::directory::{Entry, Found, KEPT};
use super::group::Inner;
use super::segment::Segment;
use super::state::{SLICE, lock};
use crate::symmetric::{Error, Result, Why};
use crate::transport::Deadline;

/// The most segments of a rank that are believed in.
const MAX_SEGMENTS: u64 = 1 << 16;

impl Inner {
    /// The same allocation on every rank, all of which must have made it.
    pub(super) fn look(&self, allocation: &Allocation) -> Result<Vec<Option<Remote>>> {
        let deadline = Deadline::after(self.options.timeout);
        let mut remotes = vec![None; self.state.ranks()];
        for (rank, _) in self.state.others() {
            let entry = self.entry(rank, allocation, deadline)?;
            let segment = self.segment(rank, entry.segment, deadline)?;
            let invalid = |(what, value, most)| Error::Invalid { rank, what, value, most };
            let (offset, pad) = place(&entry, &segment).map_err(invalid)?;
            remotes[rank] = Some(Remote { segment, offset, pad });
        }
        Ok(remotes)
    }

    /// What a rank says of an allocation, compared with this one's.
    fn entry(&self, rank: usize, allocation: &Allocation, deadline: Deadline) -> Result<Entry> {
        let (directory, sequence) = (&self.state.directory, allocation.sequence);
        let ours = allocation.entry();
        let mut pause = Duration::from_micros(5);
        loop {
            // Before the entry: a rank that has left has said all that it had to say.
            let has_left = directory.has_left(rank);
            match directory.entry(rank, sequence)? {
                Found::There(theirs) if theirs.sequence != sequence => {
                    let what = "the number of an allocation";
                    return Err(Error::Invalid { rank, what, value: theirs.sequence, most: sequence });
                }
                Found::There(theirs) if theirs.size != ours.size => {
                    let (ours, theirs) = (ours.size, theirs.size);
                    return Err(Error::OrderDiffers { rank, sequence, ours, theirs });
                }
                Found::There(theirs) => return Ok(theirs),
                Found::Overtaken => return Err(Error::Overtaken { rank, sequence, kept: KEPT }),
                Found::NotYet if has_left => return Err(Error::Left { rank }),
                Found::NotYet => self.wait_for(rank, "allocate", deadline)?,
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(SLICE);
        }
    }

    /// A rank's segment, mapped now if it was not yet.
    fn segment(&self, rank: usize, number: u64, deadline: Deadline) -> Result<Arc<Segment>> {
        let invalid = |what, value| Error::Invalid { rank, what, value, most: MAX_SEGMENTS };
        let index = usize::try_from(number).ok().filter(|_| number < MAX_SEGMENTS);
        let index = index.ok_or_else(|| invalid("the number of a segment", number))?;
        let Some((mapped, Some(peer))) =
            self.mapped.get(rank).zip(self.state.peers.get(rank).map(Option::as_ref))
        else {
            return Err(invalid("the number of a segment", number));
        };
        let mut mapped = lock(mapped);
        loop {
            if let Some(segment) = mapped.get(index) {
                return Ok(Arc::clone(segment));
            }
            let Some(announced) = peer.next() else {
                self.wait_for(rank, "announce a segment", deadline)?;
                continue;
            };
            if announced.info.number != mapped.len() as u64 {
                self.state.break_by(rank, Why::Unreachable);
                return Err(invalid("the number of a segment", announced.info.number));
            }
            let segment = Segment::import(&self.context, announced, rank, self.state.ranks());
            // It cannot be asked for once more, and those behind it are of no use without it.
            mapped.push(Arc::new(segment.inspect_err(|error| {
                match error {
                    Error::Invalid { .. } => self.state.break_by(rank, Why::Unreachable),
                    _ => self.state.break_by(self.state.rank, Why::Failed),
                };
            })?));
        }
    }

    /// Whether waiting for a rank makes sense.
    fn wait_for(&self, rank: usize, what: &'static str, deadline: Deadline) -> Result<()> {
        self.state.check()?;
        if deadline.has_passed() {
            return Err(Error::Missing { ranks: vec![rank], what, waited: self.options.timeout });
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "hostile.rs"]
mod hostile;
