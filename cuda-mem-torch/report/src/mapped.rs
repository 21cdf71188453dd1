//! Which addresses have memory behind them, as ranges come and go and are cut into pieces.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use super::history::{LIMIT, Moment, NEVER, Owner, Segment};

/// The ranges that are mapped now, and those that were.
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

impl Mapped {
    /// Adds a range; what lies there already stays and is not added twice. How many bytes were added.
    pub(super) fn map(&mut self, moment: Moment, address: u64, size: u64, owner: Owner) -> Result<u64> {
        ensure!(
            size < LIMIT && address < LIMIT - size,
            "the range {address:#x} of {size} bytes ends beyond 2^52"
        );
        let end = address + size;
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

    /// Takes a range away; how many bytes of it were there.
    pub(super) fn unmap(&mut self, moment: Moment, address: u64, size: u64) -> Result<u64> {
        self.take(address, size, |piece, address, size| Segment {
            address,
            size,
            owner: piece.owner,
            from: piece.since,
            to: moment,
        })
    }

    /// The same with time walked backwards: the range begins at `moment`.
    pub(super) fn begin(&mut self, moment: Moment, address: u64, size: u64) -> Result<u64> {
        self.take(address, size, |piece, address, size| Segment {
            address,
            size,
            owner: piece.owner,
            from: moment,
            to: piece.since,
        })
    }

    /// All of them; those still there never went.
    pub(super) fn finish(mut self) -> Vec<Segment> {
        let rest = self.now.iter().map(|(address, piece)| Segment {
            address: *address,
            size: piece.size,
            owner: piece.owner,
            from: piece.since,
            to: NEVER,
        });
        self.past.extend(rest);
        self.past
    }

    /// The same with time walked backwards: those still there were there before.
    pub(super) fn finish_backwards(mut self) -> Vec<Segment> {
        let rest = self.now.iter().map(|(address, piece)| Segment {
            address: *address,
            size: piece.size,
            owner: piece.owner,
            from: 0,
            to: piece.since,
        });
        self.past.extend(rest);
        self.past
    }

    /// Pieces that [`finish`](Self::finish) lacks.
    pub(super) fn forgotten(&self) -> usize {
        self.forgotten
    }

    fn take(&mut self, address: u64, size: u64, closed: impl Fn(Piece, u64, u64) -> Segment) -> Result<u64> {
        ensure!(
            size < LIMIT && address < LIMIT - size,
            "the range {address:#x} of {size} bytes ends beyond 2^52"
        );
        let end = address + size;
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
                self.past.push(closed(piece, low, high - low));
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

#[cfg(test)]
mod tests {
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
        assert_eq!(sorted(mapped.finish()), expected);
    }

    #[test]
    fn one_call_takes_several_pieces_and_only_what_is_there() {
        let mut mapped = Mapped::default();
        mapped.map(1, 0, 10, OWNER).unwrap();
        mapped.map(2, 20, 10, OWNER).unwrap();
        assert_eq!(mapped.unmap(3, 5, 20).unwrap(), 10);
        let expected =
            [segment(0, 5, 1, NEVER), segment(5, 5, 1, 3), segment(20, 5, 2, 3), segment(25, 5, 2, NEVER)];
        assert_eq!(sorted(mapped.finish()), expected);
    }

    #[test]
    fn what_is_mapped_twice_counts_once() {
        let mut mapped = Mapped::default();
        mapped.map(1, 10, 10, OWNER).unwrap();
        mapped.map(2, 5, 20, OWNER).unwrap();
        let expected = [segment(5, 5, 2, NEVER), segment(10, 10, 1, NEVER), segment(20, 5, 2, NEVER)];
        assert_eq!(sorted(mapped.finish()), expected);
    }

    #[test]
    fn ends_of_the_address_space_are_errors() {
        let mut mapped = Mapped::default();
        assert!(mapped.map(1, LIMIT - 1, 5, OWNER).is_err());
        assert!(mapped.unmap(1, 0, u64::MAX).is_err());
    }
}
