//! Which addresses have memory behind them, as ranges come and go and are cut into pieces.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use super::history::{LIMIT, Moment, Owner, Segment};

/// The ranges that are mapped now, and those that were. Time is walked in one direction, forwards or backwards.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// By address; they do not overlap.
    now: BTreeMap<u64, Piece>,
    past: Vec<Segment>,
    /// Pieces that came and went and for which there was no room.
    forgotten: usize,
}

/// Pieces that are remembered.
const MAX_PIECES: usize = 2_000_000;

#[derive(Debug, Clone, Copy)]
struct Piece {
    size: u64,
    owner: Owner,
    /// When it came, or, where time is walked backwards, when it will go.
    since: Moment,
}

impl Piece {
    /// A part of it that goes at another moment: of the two it came at the earlier one, whichever way time is walked.
    fn until(self, moment: Moment, address: u64, size: u64) -> Segment {
        let (from, to) = (self.since.min(moment), self.since.max(moment));
        Segment { address, size, owner: self.owner, from, to }
    }
}

impl Mapped {
    /// Adds a range; what lies there already stays and is not added twice. How many bytes were added.
    pub(super) fn map(&mut self, moment: Moment, address: u64, size: u64, owner: Owner) -> Result<u64> {
        let end = end_of(address, size)?;
        let (mut from, mut added) = (address, 0);
        let mut add = |now: &mut BTreeMap<u64, Piece>, from, to| {
            now.insert(from, Piece { size: to - from, owner, since: moment });
            added += to - from;
        };
        for (start, stop) in self.overlapping(address, end) {
            if from < start {
                add(&mut self.now, from, start);
            }
            from = from.max(stop);
        }
        if from < end {
            add(&mut self.now, from, end);
        }
        ensure!(self.now.len() < MAX_PIECES, "more than {MAX_PIECES} ranges are mapped at once");
        Ok(added)
    }

    /// All of them; those still there go at `moment`: [`NEVER`](super::history::NEVER), or 0 with time walked backwards.
    pub(super) fn finish(mut self, moment: Moment) -> Vec<Segment> {
        let rest = self.now.iter().map(|(address, piece)| piece.until(moment, *address, piece.size));
        self.past.extend(rest);
        self.past
    }

    /// Pieces that [`finish`](Self::finish) lacks.
    pub(super) fn forgotten(&self) -> usize {
        self.forgotten
    }

    /// Takes a range away; how many bytes of it were there.
    pub(super) fn unmap(&mut self, moment: Moment, address: u64, size: u64) -> Result<u64> {
        let end = end_of(address, size)?;
        let mut taken = 0;
        for (start, stop) in self.overlapping(address, end) {
            let Some(piece) = self.now.remove(&start) else { continue };
            let (low, high) = (start.max(address), stop.min(end));
            if start < low {
                self.now.insert(start, Piece { size: low - start, ..piece });
            }
            if high < stop {
                self.now.insert(high, Piece { size: stop - high, ..piece });
            }
            if self.past.len() < MAX_PIECES {
                self.past.push(piece.until(moment, low, high - low));
            } else {
                self.forgotten += 1;
            }
            taken += high - low;
        }
        Ok(taken)
    }

    /// Starts and ends of the pieces that have a byte between two addresses, in order.
    fn overlapping(&self, address: u64, end: u64) -> Vec<(u64, u64)> {
        let before = self.now.range(..address).next_back();
        let pieces = before.into_iter().chain(self.now.range(address..end));
        let pieces = pieces.map(|(start, piece)| (*start, start + piece.size));
        pieces.filter(|(_, stop)| *stop > address).collect()
    }
}

fn end_of(address: u64, size: u64) -> Result<u64> {
    ensure!(
        size < LIMIT && address < LIMIT - size,
        "the range {address:#x} of {size} bytes ends beyond 2^52"
    );
    Ok(address + size)
}

#[cfg(test)]
mod tests {
    use super::super::history::NEVER;
    use super::*;

    const OWNER: Owner = Owner { stream: 0, grows: true };

    fn segment(address: u64, size: u64, from: Moment, to: Moment) -> Segment {
        Segment { address, size, owner: OWNER, from, to }
    }

    fn sorted(mut segments: Vec<Segment>) -> Vec<Segment> {
        segments.sort_by_key(|segment| (segment.address, segment.from));
        segments
    }

    #[test]
    fn a_hole_in_the_middle_leaves_both_ends() {
        let mut mapped = Mapped::default();
        mapped.map(1, 100, 60, OWNER).unwrap();
        assert_eq!(mapped.unmap(2, 120, 20).unwrap(), 20);
        let expected = [segment(100, 20, 1, NEVER), segment(120, 20, 1, 2), segment(140, 20, 1, NEVER)];
        assert_eq!(sorted(mapped.finish(NEVER)), expected);
    }

    #[test]
    fn one_call_takes_several_pieces_and_only_what_is_there() {
        let mut mapped = Mapped::default();
        mapped.map(1, 0, 10, OWNER).unwrap();
        mapped.map(2, 20, 10, OWNER).unwrap();
        assert_eq!(mapped.unmap(3, 5, 20).unwrap(), 10);
        let expected =
            [segment(0, 5, 1, NEVER), segment(5, 5, 1, 3), segment(20, 5, 2, 3), segment(25, 5, 2, NEVER)];
        assert_eq!(sorted(mapped.finish(NEVER)), expected);
    }

    #[test]
    fn what_is_mapped_twice_counts_once() {
        let mut mapped = Mapped::default();
        mapped.map(1, 10, 10, OWNER).unwrap();
        mapped.map(2, 5, 20, OWNER).unwrap();
        let expected = [segment(5, 5, 2, NEVER), segment(10, 10, 1, NEVER), segment(20, 5, 2, NEVER)];
        assert_eq!(sorted(mapped.finish(NEVER)), expected);
    }

    #[test]
    fn ends_of_the_address_space_are_errors() {
        let mut mapped = Mapped::default();
        assert!(mapped.map(1, LIMIT - 1, 5, OWNER).is_err());
        assert!(mapped.unmap(1, 0, u64::MAX).is_err());
    }
}
