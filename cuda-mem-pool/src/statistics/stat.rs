//! Counts a figure that goes up and down: now, at most, and in all.

use std::fmt;

/// A figure that goes up and down.
///
/// ```
/// use cuda_mem_pool::statistics::Stat;
///
/// let mut segments = Stat::default();
/// segments.increase(3);
/// segments.decrease(2);
/// assert_eq!(segments, Stat { current: 1, peak: 3, allocated: 3, freed: 2 });
/// assert_eq!(segments.to_string(), "1 now, 3 at most, 3 allocated, 2 freed");
/// segments.reset_peak();
/// segments.reset_accumulated();
/// assert_eq!(segments, Stat { current: 1, peak: 1, allocated: 0, freed: 0 });
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Stat {
    /// Now.
    pub current: u64,
    /// The most at any moment since the peaks were last reset.
    pub peak: u64,
    /// The sum of what was added since the accumulated figures were last reset.
    pub allocated: u64,
    /// The sum of what was taken away since then.
    pub freed: u64,
}

impl Stat {
    /// There is so much more.
    pub fn increase(&mut self, amount: u64) {
        self.current = self.current.saturating_add(amount);
        self.allocated = self.allocated.saturating_add(amount);
        self.peak = self.peak.max(self.current);
    }

    /// There is so much less.
    pub fn decrease(&mut self, amount: u64) {
        self.current = self.current.saturating_sub(amount);
        self.freed = self.freed.saturating_add(amount);
    }

    pub(crate) fn set(&mut self, now: u64) {
        self.decrease(self.current.saturating_sub(now));
        self.increase(now.saturating_sub(self.current));
    }

    /// Has the peak start anew from what there is now.
    pub fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    /// Has the sums start anew from nothing.
    pub fn reset_accumulated(&mut self) {
        (self.allocated, self.freed) = (0, 0);
    }
}

impl fmt::Display for Stat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { current, peak, allocated, freed } = self;
        write!(f, "{current} now, {peak} at most, {allocated} allocated, {freed} freed")
    }
}

/// Which of the two kinds of pools a block or segment belongs to, as PyTorch has them. [`DeviceStatistics`](super::DeviceStatistics) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolSize {
    /// Blocks of up to 1 MiB, and the segments that they are cut from.
    Small,
    /// All others.
    Large,
}

/// A figure of both kinds of pools together, and of each, whose peaks may have been at different moments.
/// [`DeviceStatistics`](super::DeviceStatistics) has an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PoolStat {
    /// Both together.
    pub all: Stat,
    /// Those of small blocks.
    pub small_pool: Stat,
    /// Those of large blocks.
    pub large_pool: Stat,
}

impl PoolStat {
    /// There is so much more in pools of this kind.
    pub fn increase(&mut self, pool: PoolSize, amount: u64) {
        self.all.increase(amount);
        self.of(pool).increase(amount);
    }

    /// There is so much less in pools of this kind.
    pub fn decrease(&mut self, pool: PoolSize, amount: u64) {
        self.all.decrease(amount);
        self.of(pool).decrease(amount);
    }

    /// There is so much now in pools of small blocks and in those of large ones.
    pub(crate) fn set(&mut self, small: u64, large: u64) {
        let kinds = [(PoolSize::Small, small), (PoolSize::Large, large)];
        let kinds = kinds.map(|(pool, now)| (pool, self.of(pool).current, now));
        // First what is gone: both together never were what one had before and the other has now.
        kinds.iter().for_each(|&(pool, before, now)| self.decrease(pool, before.saturating_sub(now)));
        kinds.iter().for_each(|&(pool, before, now)| self.increase(pool, now.saturating_sub(before)));
    }

    /// Has the peaks start anew from what there is now.
    pub fn reset_peak(&mut self) {
        self.each(Stat::reset_peak);
    }

    /// Has the sums start anew from nothing.
    pub fn reset_accumulated(&mut self) {
        self.each(Stat::reset_accumulated);
    }

    fn of(&mut self, pool: PoolSize) -> &mut Stat {
        match pool {
            PoolSize::Small => &mut self.small_pool,
            PoolSize::Large => &mut self.large_pool,
        }
    }

    fn each(&mut self, change: fn(&mut Stat)) {
        [&mut self.all, &mut self.small_pool, &mut self.large_pool].into_iter().for_each(change);
    }
}
