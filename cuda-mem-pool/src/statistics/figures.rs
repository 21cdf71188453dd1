//! The figures of a [`PeakCounter`](super::PeakCounter): as plain numbers, as atomics, and under PyTorch's names.

use std::sync::atomic::{AtomicI64, Ordering};

use super::stat::{PoolSize, PoolStat, Stat};

/// Blocks, their bytes, active blocks, their bytes, requested bytes.
pub(super) type Row = [i64; 5];

/// More than any figure, and little enough to be added to one.
pub(super) const UNLIMITED: i64 = i64::MAX / 4;

/// The figures of all pools, of the small one and of the large one. A part of a sum may be negative; the sum is not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Figures(pub(super) [Row; 3]);

impl Figures {
    pub(super) fn of(small: Row, large: Row) -> Self {
        Self([std::array::from_fn(|figure| small[figure].wrapping_add(large[figure])), small, large])
    }

    pub(super) fn of_block(pool: PoolSize, bytes: i64, requested: i64) -> Self {
        let block = [1, bytes, 1, bytes, requested];
        match pool {
            PoolSize::Small => Self::of(block, Row::default()),
            PoolSize::Large => Self::of(Row::default(), block),
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        self.with(other, i64::wrapping_add)
    }

    pub(super) fn minus(self, other: Self) -> Self {
        self.with(other, i64::wrapping_sub)
    }

    pub(super) fn max(self, other: Self) -> Self {
        self.with(other, i64::max)
    }

    /// The figures that a shard with these publishes next, after `before`.
    ///
    /// A figure stays as it was published while it is at most a quantum above that: the shared word is not written. Else the shard publishes
    /// half a quantum less than it has, and may rise and fall by as much before it publishes again. The figures of both pools are their sums.
    pub(super) fn behind(self, quantum: Self, before: Self) -> Self {
        let behind = |side: usize| {
            std::array::from_fn(|figure| {
                let of = |figures: Self| figures.0[side][figure];
                let (now, quantum, before) = (of(self), of(quantum), of(before));
                let less = now - quantum / 2;
                match (0..=quantum).contains(&(now - before)) {
                    true => before,
                    false if now < 0 => less,
                    false => less.max(0),
                }
            })
        };
        Self::of(behind(1), behind(2))
    }

    pub(super) fn exceeds(self, other: Self) -> bool {
        self.0.iter().flatten().zip(other.0.iter().flatten()).any(|(own, other)| own > other)
    }

    pub(super) fn active_bytes(self) -> usize {
        let [[_, _, _, bytes, _], ..] = self.0;
        usize::try_from(bytes).unwrap_or(0)
    }

    /// Where blocks, bytes and requested bytes of each side end up when they have moved by `room`: an allocation or a free
    /// moves the active figures alike.
    pub(super) fn moved_by(self, room: Self) -> [[i64; 3]; 3] {
        std::array::from_fn(|side| {
            let (now, room) = (self.0[side], room.0[side]);
            let moved = |now: i64, room: i64| now.wrapping_add(room);
            [moved(now[0], room[0].min(room[2])), moved(now[1], room[1].min(room[3])), moved(now[4], room[4])]
        })
    }

    fn with(self, other: Self, with: impl Fn(i64, i64) -> i64) -> Self {
        Self(std::array::from_fn(|side| {
            std::array::from_fn(|figure| with(self.0[side][figure], other.0[side][figure]))
        }))
    }
}

/// [`Figures`] that threads share, on cache lines of their own: some are written all the time, others only read.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct AtomicFigures([[AtomicI64; 5]; 3]);

impl AtomicFigures {
    pub(super) fn load(&self) -> Figures {
        Figures(self.0.each_ref().map(|row| row.each_ref().map(|figure| figure.load(Ordering::Relaxed))))
    }

    pub(super) fn store(&self, figures: Figures) {
        for (own, figure) in self.0.iter().flatten().zip(figures.0.iter().flatten()) {
            own.store(*figure, Ordering::Relaxed);
        }
    }

    pub(super) fn raise(&self, figures: Figures) {
        for (own, figure) in self.0.iter().flatten().zip(figures.0.iter().flatten()) {
            if *figure > own.load(Ordering::Relaxed) {
                own.fetch_max(*figure, Ordering::Relaxed);
            }
        }
    }

    /// Adds to each figure; the sums behind it.
    pub(super) fn add(&self, figures: Figures) -> Figures {
        let add = |own: &AtomicI64, figure: i64| match figure {
            0 => own.load(Ordering::Relaxed),
            _ => own.fetch_add(figure, Ordering::Relaxed).wrapping_add(figure),
        };
        Figures(std::array::from_fn(|side| {
            std::array::from_fn(|figure| add(&self.0[side][figure], figures.0[side][figure]))
        }))
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
