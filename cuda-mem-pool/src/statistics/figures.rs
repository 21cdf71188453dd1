//! The figures of a [`PeakCounter`](super::PeakCounter): as plain numbers, as atomics, and under PyTorch's names.

use std::sync::atomic::{AtomicI64, Ordering};

use super::device::{PoolSize, PoolStat, Stat};

/// Blocks, their bytes, active blocks, their bytes, requested bytes.
pub(super) type Row = [i64; 5];

/// Numbers of all pools, of the small one and of the large one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Table<const N: usize>(pub(super) [[i64; N]; 3]);

/// A [`Row`] for each. A part of a sum may be negative; the sum is not.
pub(super) type Figures = Table<5>;

/// Blocks, bytes and requested bytes. An allocation adds to the active figures what it adds to these.
pub(super) type Room = Table<3>;

impl<const N: usize> Default for Table<N> {
    fn default() -> Self {
        Self([[0; N]; 3])
    }
}

impl<const N: usize> Table<N> {
    pub(super) fn plus(self, other: Self) -> Self {
        self.with(other, i64::wrapping_add)
    }

    pub(super) fn minus(self, other: Self) -> Self {
        self.with(other, i64::wrapping_sub)
    }

    pub(super) fn max(self, other: Self) -> Self {
        self.with(other, i64::max)
    }

    pub(super) fn with(self, other: Self, with: impl Fn(i64, i64) -> i64) -> Self {
        Self(std::array::from_fn(|side| {
            std::array::from_fn(|figure| with(self.0[side][figure], other.0[side][figure]))
        }))
    }

    pub(super) fn map(self, each: impl Fn(i64) -> i64) -> Self {
        Self(self.0.map(|row| row.map(&each)))
    }

    pub(super) fn exceeds(self, other: Self) -> bool {
        self.0.iter().flatten().zip(other.0.iter().flatten()).any(|(own, other)| own > other)
    }
}

impl Figures {
    pub(super) fn of(small: Row, large: Row) -> Self {
        Self([std::array::from_fn(|figure| small[figure].wrapping_add(large[figure])), small, large])
    }

    /// Of so many blocks, bytes and requested bytes.
    pub(super) fn of_block(pool: PoolSize, [blocks, bytes, requested]: [i64; 3]) -> Self {
        let block = [blocks, bytes, blocks, bytes, requested];
        match pool {
            PoolSize::Small => Self::of(block, Row::default()),
            PoolSize::Large => Self::of(Row::default(), block),
        }
    }

    pub(super) fn active_bytes(self) -> usize {
        let [[_, _, _, bytes, _], ..] = self.0;
        usize::try_from(bytes).unwrap_or(0)
    }

    /// By how much blocks, bytes and requested bytes may rise where no figure may rise by more than these.
    pub(super) fn room(self) -> Room {
        let room = |[blocks, bytes, active, active_bytes, requested]: Row| {
            [blocks.min(active), bytes.min(active_bytes), requested]
        };
        Table(self.0.map(room))
    }

    /// What limits are compared with.
    pub(super) fn limited(self) -> Room {
        Table(self.0.map(|[blocks, bytes, _, _, requested]| [blocks, bytes, requested]))
    }
}

/// [`Figures`] that threads share, on cache lines of their own: they are read often and seldom written.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct AtomicFigures([[AtomicI64; 5]; 3]);

impl AtomicFigures {
    pub(super) fn load(&self) -> Figures {
        Table(self.0.each_ref().map(|row| row.each_ref().map(|figure| figure.load(Ordering::Acquire))))
    }

    pub(super) fn store(&self, figures: Figures) {
        for (own, figure) in self.0.iter().flatten().zip(figures.0.iter().flatten()) {
            // Release: what a reset has put elsewhere is seen with it.
            own.store(*figure, Ordering::Release);
        }
    }
}

/// The figures of both pools and of each, in the order of a [`Row`].
pub(super) fn pool_stats(now: Figures, peak: Figures, allocated: Figures, freed: Figures) -> [PoolStat; 5] {
    std::array::from_fn(|figure| {
        let of = |figures: Figures, side: usize| u64::try_from(figures.0[side][figure]).unwrap_or(0);
        let [all, small_pool, large_pool] = std::array::from_fn(|side| Stat {
            current: of(now, side),
            peak: of(peak, side),
            allocated: of(allocated, side),
            freed: of(freed, side),
        });
        PoolStat { all, small_pool, large_pool }
    })
}
