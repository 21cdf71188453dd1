//! Pieces of memory laid end to end, so that a batch is copied as if it were one slice.

use std::ops::Range;

use crate::buffer::DeviceBytes;
use crate::driver::Handle;

/// A stretch of memory that can be cut.
pub(super) trait Piece: Copy {
    fn len(&self) -> usize;

    /// A part of it, by bytes; what reaches beyond the end is cut off.
    fn part(&self, range: Range<usize>) -> Self;

    /// Both as one, if `next` begins where this one ends.
    fn joined(&self, next: &Self) -> Option<Self>;
}

/// Bytes of host memory, which are read or written by whoever answers for them.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostBytes {
    address: Handle<u8>,
    len: usize,
}

impl HostBytes {
    pub(super) fn new(address: *mut u8, len: usize) -> Self {
        Self { address: Handle::new(address), len }
    }

    pub(super) fn address(&self) -> *mut u8 {
        self.address.raw()
    }
}

impl Piece for HostBytes {
    fn len(&self) -> usize {
        self.len
    }

    fn part(&self, range: Range<usize>) -> Self {
        let end = range.end.min(self.len);
        let start = range.start.min(end);
        Self::new(self.address.raw().wrapping_add(start), end.saturating_sub(start))
    }

    /// Never: two allocations may lie side by side, and an address of one is none of the other.
    fn joined(&self, _next: &Self) -> Option<Self> {
        None
    }
}

impl Piece for DeviceBytes<'_> {
    fn len(&self) -> usize {
        self.len()
    }

    fn part(&self, range: Range<usize>) -> Self {
        self.part(range)
    }

    fn joined(&self, next: &Self) -> Option<Self> {
        self.joined(next)
    }
}

/// Pieces end to end. Empty ones are left out, and neighbours are one.
#[derive(Debug)]
pub(super) struct Line<P> {
    /// Each with the place of its first byte.
    pieces: Vec<(usize, P)>,
    len: usize,
}

impl<P: Piece> Line<P> {
    /// None if the pieces are longer than an address space.
    pub(super) fn new(pieces: impl IntoIterator<Item = P>) -> Option<Self> {
        let mut line = Self { pieces: Vec::new(), len: 0 };
        for piece in pieces.into_iter().filter(|piece| piece.len() > 0) {
            let end = line.len.checked_add(piece.len())?;
            match line.pieces.last_mut().and_then(|(_, last)| Some((last.joined(&piece)?, last))) {
                Some((both, last)) => *last = both,
                None => line.pieces.push((line.len, piece)),
            }
            line.len = end;
        }
        Some(line)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// What lies in `range`, in order: each piece, and how far into the range it begins.
    pub(super) fn over(&self, range: Range<usize>) -> impl Iterator<Item = (usize, P)> {
        let first =
            self.pieces.partition_point(|(start, piece)| start.saturating_add(piece.len()) <= range.start);
        let here = self.pieces.iter().skip(first).take_while({
            let end = range.end;
            move |(start, _)| *start < end
        });
        here.map(move |(start, piece)| {
            let part = range.start.saturating_sub(*start)..range.end.saturating_sub(*start);
            (start.saturating_sub(range.start), piece.part(part))
        })
        .filter(|(_, piece)| piece.len() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// A stretch of numbers.
    #[derive(Debug, Clone, Copy)]
    struct Numbers(usize, usize);

    impl Piece for Numbers {
        fn len(&self) -> usize {
            self.1
        }

        fn part(&self, range: Range<usize>) -> Self {
            let end = range.end.min(self.1);
            Self(self.0 + range.start.min(end), end.saturating_sub(range.start))
        }

        fn joined(&self, next: &Self) -> Option<Self> {
            (self.0 + self.1 == next.0).then_some(Self(self.0, self.1 + next.1))
        }
    }

    proptest! {
        #[test]
        fn a_range_has_the_bytes_that_lie_there(
            pieces in vec((0usize..40, 0usize..9), 0..12),
            cut in (0usize..120, 0usize..120),
        ) {
            let line = Line::new(pieces.iter().map(|&(start, len)| Numbers(start, len))).unwrap();
            let all = pieces.iter().flat_map(|&(start, len)| start..start + len).collect::<Vec<_>>();
            prop_assert_eq!(line.len(), all.len());
            let end = cut.1.min(all.len());
            let start = cut.0.min(end);
            let mut found = Vec::new();
            for (at, Numbers(first, len)) in line.over(start..end) {
                prop_assert_eq!(at, found.len());
                prop_assert!(len > 0);
                found.extend(first..first + len);
            }
            prop_assert_eq!(&found[..], &all[start..end]);
        }
    }

    #[test]
    fn neighbours_are_one_and_nothing_is_none() {
        let line = Line::new([Numbers(5, 3), Numbers(100, 0), Numbers(8, 2), Numbers(0, 1)]).unwrap();
        assert_eq!(line.pieces.len(), 2);
        assert_eq!(line.over(0..0).count(), 0);
        assert!(Line::new([Numbers(0, usize::MAX), Numbers(0, 1)]).is_none());
    }
}
