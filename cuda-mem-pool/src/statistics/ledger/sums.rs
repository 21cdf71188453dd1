//! The ledger's figures as plain numbers.

use super::LiveStatistics;
use crate::statistics::{PoolSize, PoolStat, Stat};

/// Both kinds of pools together, and each.
pub(super) const SIDES: usize = 3;

/// Blocks that somebody has, their bytes, active blocks, their bytes, the bytes that were asked for.
pub(super) type Figures = [i64; 5];

/// The figures of all pools, of those of small blocks and of those of large ones. A part may be less than nothing, the whole
/// is not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sums([Figures; SIDES]);

/// How many blocks were handed out, their bytes, and the bytes that were asked for; small ones and large ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Made(pub(super) [[i64; 3]; 2]);

/// Everything that ever came and went.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flow {
    allocated: Sums,
    freed: Sums,
}

impl Sums {
    #[inline]
    pub(super) fn of(small: Figures, large: Figures) -> Self {
        Self([zip(small, large, i64::wrapping_add), small, large])
    }

    #[inline]
    pub(super) fn all(self) -> impl Iterator<Item = i64> {
        self.0.into_iter().flatten()
    }

    #[inline]
    pub(super) fn plus(self, other: Self) -> Self {
        self.with(other, i64::wrapping_add)
    }

    pub(super) fn less(self, other: Self) -> Self {
        self.with(other, i64::wrapping_sub)
    }

    /// What blocks, bytes and requested bytes of all pools, of small blocks and of large ones may rise to before one of the figures is
    /// above `most`, which none is now. What is pending stays.
    pub(super) fn limits(self, most: Self) -> [[i64; 3]; SIDES] {
        let mut limits = [[0; 3]; SIDES];
        for ((limits, now), room) in limits.iter_mut().zip(self.0).zip(most.less(self).0) {
            let [blocks, bytes, active, active_bytes, requested] = room;
            *limits = [
                now[0].wrapping_add(blocks.min(active)),
                now[1].wrapping_add(bytes.min(active_bytes)),
                now[4].wrapping_add(requested),
            ];
        }
        limits
    }

    /// The figures of one block that somebody has.
    pub(super) fn of_block(pool: PoolSize, bytes: i64, requested: i64) -> Self {
        let block = [1, bytes, 1, bytes, requested];
        match pool {
            PoolSize::Small => Self::of(block, Figures::default()),
            PoolSize::Large => Self::of(Figures::default(), block),
        }
    }

    /// The active bytes of all pools; nothing where they are less.
    pub(super) fn active_bytes(self) -> u64 {
        let [[_, _, _, bytes, _], ..] = self.0;
        u64::try_from(bytes).unwrap_or(0)
    }

    /// Whether no figure is above that of the other.
    pub(super) fn fits(self, other: Self) -> bool {
        other.less(self).all().all(|room| room >= 0)
    }

    /// Each figure, or nothing where it is less.
    pub(super) fn or_nothing(self) -> Self {
        self.max(Self::default())
    }

    /// One of so many parts of each figure.
    pub(super) fn part(self, parts: usize) -> Self {
        let parts = parts.max(1) as i64;
        self.with(self, |figure, _| figure / parts)
    }

    /// Each figure where that of the other is more than nothing.
    pub(super) fn where_any(self, other: Self) -> Self {
        self.with(other, |figure, other| if other > 0 { figure } else { 0 })
    }

    /// Of each figure the larger.
    pub(super) fn max(self, other: Self) -> Self {
        self.with(other, i64::max)
    }

    /// Of each figure the smaller.
    pub(super) fn min(self, other: Self) -> Self {
        self.with(other, i64::min)
    }

    #[inline]
    fn with(self, other: Self, with: impl Fn(i64, i64) -> i64 + Copy) -> Self {
        let [all, small, large] = self.0;
        let [other_all, other_small, other_large] = other.0;
        Self([zip(all, other_all, with), zip(small, other_small, with), zip(large, other_large, with)])
    }
}

impl From<[Figures; SIDES]> for Sums {
    fn from(figures: [Figures; SIDES]) -> Self {
        Self(figures)
    }
}

impl Made {
    pub(super) fn plus(self, other: Self) -> Self {
        let ([small, large], [other_small, other_large]) = (self.0, other.0);
        Self([zip(small, other_small, i64::wrapping_add), zip(large, other_large, i64::wrapping_add)])
    }

    /// A block is active as soon as it is handed out.
    fn sums(self) -> Sums {
        let [small, large] =
            self.0.map(|[blocks, bytes, requested]| [blocks, bytes, blocks, bytes, requested]);
        Sums::of(small, large)
    }
}

impl Flow {
    pub(super) fn new(made: Made, now: Sums) -> Self {
        let allocated = made.sums();
        Self { allocated, freed: allocated.less(now) }
    }

    pub(super) fn since(self, before: Self) -> Self {
        Self { allocated: self.allocated.less(before.allocated), freed: self.freed.less(before.freed) }
    }
}

impl LiveStatistics {
    pub(super) fn new(now: Sums, peak: Sums, flow: Flow) -> Self {
        let figure = |figure: usize| {
            let stat = |side: usize| {
                let of = |sums: &Sums| {
                    let value = sums.0.get(side).and_then(|figures| figures.get(figure)).copied();
                    u64::try_from(value.unwrap_or(0)).unwrap_or(0)
                };
                Stat {
                    current: of(&now),
                    peak: of(&peak),
                    allocated: of(&flow.allocated),
                    freed: of(&flow.freed),
                }
            };
            PoolStat { all: stat(0), small_pool: stat(1), large_pool: stat(2) }
        };
        Self {
            allocation: figure(0),
            allocated_bytes: figure(1),
            active: figure(2),
            active_bytes: figure(3),
            requested_bytes: figure(4),
        }
    }
}

#[inline]
fn zip<const N: usize>(mut left: [i64; N], right: [i64; N], with: impl Fn(i64, i64) -> i64) -> [i64; N] {
    for (left, right) in left.iter_mut().zip(right) {
        *left = with(*left, right);
    }
    left
}
