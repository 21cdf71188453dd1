//! Of which sizes something may be there.

use crate::primitive::{AtomicU64, Ordering};

/// A bit for each size, which some share: it may say yes for no reason, and never says no for none.
#[derive(Debug, Default)]
pub(super) struct SizeSet(AtomicU64);

impl SizeSet {
    #[inline]
    pub(super) fn may_have(&self, size: usize) -> bool {
        let bits = self.0.load(Ordering::Relaxed);
        bits != 0 && bits & bit(size) != 0
    }

    pub(super) fn add(&self, size: usize) {
        self.0.fetch_or(bit(size), Ordering::Relaxed);
    }

    /// Makes it the same as another, which is read under a lock. Whoever adds a size has entered it under the same lock before.
    pub(super) fn set(&self, other: &Self) {
        self.0.store(other.0.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Sizes are multiples of 512, and often powers of two: the highest bits of a product tell those apart.
#[inline]
const fn bit(size: usize) -> u64 {
    1 << ((size as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58)
}

#[cfg(all(not(loom), test))]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_there_until_the_sizes_are_set() {
        let set = SizeSet::default();
        assert!((0..1000).all(|step| !set.may_have(step * 512)));
        set.add(1 << 20);
        assert!(set.may_have(1 << 20) && !set.may_have(2 << 20));
        let other = SizeSet::default();
        [512, 2 << 20].into_iter().for_each(|size| other.add(size));
        set.set(&other);
        assert!(set.may_have(512) && set.may_have(2 << 20) && !set.may_have(1 << 20));
        let powers = (9..40).map(|power| bit(1 << power)).collect::<std::collections::HashSet<_>>();
        assert!(powers.len() > 20, "sizes that programs have are told apart: {}", powers.len());
    }
}
