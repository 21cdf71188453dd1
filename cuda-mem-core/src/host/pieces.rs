//! A range cut into pieces, for threads to take.

use std::ops::Range;

/// A range of whole pages in pieces, cut where addresses are multiples of the pieces' size.
#[derive(Debug, Clone)]
pub(super) struct Pieces {
    range: Range<usize>,
    size: usize,
}

impl Pieces {
    pub(super) fn new(range: Range<usize>, size: usize) -> Self {
        Self { range, size: size.max(1) }
    }

    pub(super) fn count(&self) -> usize {
        let Range { start, end } = self.range;
        if self.range.is_empty() {
            return 0;
        }
        end.div_ceil(self.size).saturating_sub(start.div_euclid(self.size))
    }

    pub(super) fn get(&self, index: usize) -> Option<Range<usize>> {
        let number = self.range.start.div_euclid(self.size).checked_add(index)?;
        let start = number.checked_mul(self.size)?;
        let piece = overlap(&(start..start.saturating_add(self.size)), &self.range);
        (!piece.is_empty()).then_some(piece)
    }
}

/// What two ranges have in common.
pub(super) fn overlap(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    one.start.max(other.start)..one.end.min(other.end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_are_the_range_cut_at_multiples(start in 0..100_000usize, len in 0..100_000usize, size in 1..5000usize) {
            let pieces = Pieces::new(start..start + len, size);
            let all: Vec<_> = (0..pieces.count()).map(|index| pieces.get(index).unwrap()).collect();
            prop_assert_eq!(pieces.get(pieces.count()), None);
            let mut at = start;
            for piece in &all {
                prop_assert_eq!(piece.start, at);
                prop_assert!(!piece.is_empty() && piece.len() <= size);
                prop_assert!(piece.end.is_multiple_of(size) || piece.end == start + len);
                at = piece.end;
            }
            prop_assert_eq!(at, start + len);
        }
    }

    #[test]
    fn pieces_at_the_end_of_the_address_space() {
        let last = usize::MAX - 4095..usize::MAX;
        let pieces = Pieces::new(last.clone(), 1 << 20);
        assert_eq!((pieces.count(), pieces.get(0), pieces.get(1)), (1, Some(last), None));
    }
}
