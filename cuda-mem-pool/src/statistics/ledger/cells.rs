//! What one shard has counted. Only one thread at a time writes it, so nothing here is a read-modify-write.

// Of the figures the model checker sees no more than who touches them: they would be most of what it looks at.
use std::sync::atomic::{AtomicBool, AtomicI64};

use super::sums::{Figures, Made, SIDES, Sums};
use crate::primitive::{AtomicUsize, Exclusive, Ordering};
use crate::statistics::PoolSize;

/// Somebody has the shard.
pub(super) const HELD: usize = 1;
/// Whoever has the shard may count without asking anybody, as far as the limits go if it is bound.
pub(super) const ACTIVE: usize = 2;
/// Not its holder has it, but a thread that shares with it what both may have, and waits for nobody.
pub(super) const LENT: usize = 4;
/// Nobody has had the shard since somebody shared with it.
pub(super) const QUIET: usize = 8;
/// And all that it does not use was taken then.
pub(super) const DRAINED: usize = 16;
/// The rest is the token of whoever has the shard and may count right now: nobody else may take `ACTIVE` away. 0: nobody.
pub(super) const TOKEN: usize = !31;

/// A shard's figures. They have their cache lines to themselves.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Cells {
    pub(super) lock: AtomicUsize,
    /// The figures.
    figures: Exclusive,
    /// A limit was passed: the peaks are to be looked at before anything is taken away.
    risen: AtomicBool,
    /// No figure may rise above `most`.
    bound: AtomicBool,
    /// Up to these numbers of blocks, bytes and requested bytes in both kinds of pools together no peak moves.
    limits: [AtomicI64; 3],
    pools: [PoolCells; 2],
    /// The most of each figure since the last `begin`, in the order of [`Sums`]; in a shard that is bound its share, which is
    /// what each may be.
    most: [[AtomicI64; 5]; SIDES],
}

/// The figures of one kind of pool. What is pending counts as active, but nobody has it.
#[derive(Debug, Default)]
struct PoolCells {
    blocks: AtomicI64,
    bytes: AtomicI64,
    requested: AtomicI64,
    made: AtomicI64,
    made_bytes: AtomicI64,
    made_requested: AtomicI64,
    /// As those of all pools.
    limits: [AtomicI64; 3],
    pending: AtomicI64,
    pending_bytes: AtomicI64,
}

impl Cells {
    /// Whether it may be counted; it is then.
    #[inline]
    #[must_use]
    pub(super) fn allocate(&self, pool: PoolSize, bytes: i64, requested: i64) -> bool {
        self.allocate_if(pool, bytes, requested, || self.rise(pool, bytes, requested))
    }

    /// As [`Cells::allocate`], unless a peak might rise.
    #[inline]
    #[must_use]
    pub(super) fn allocate_below_peak(&self, pool: PoolSize, bytes: i64, requested: i64) -> bool {
        self.allocate_if(pool, bytes, requested, || self.is_bound() && self.rise(pool, bytes, requested))
    }

    /// As [`Cells::allocate`], where it passes a limit if `may_pass` says so.
    #[inline(always)]
    fn allocate_if(
        &self,
        pool: PoolSize,
        bytes: i64,
        requested: i64,
        may_pass: impl FnOnce() -> bool,
    ) -> bool {
        self.figures.touch();
        let (cells, other) = self.pool_and_other(pool);
        let sum = |cell: &AtomicI64, amount: i64| read(cell).wrapping_add(amount);
        let now = [sum(&cells.blocks, 1), sum(&cells.bytes, bytes), sum(&cells.requested, requested)];
        let all = [sum(&other.blocks, now[0]), sum(&other.bytes, now[1]), sum(&other.requested, now[2])];
        // One test of six signs.
        if (least_room(&cells.limits, now) | least_room(&self.limits, all)) < 0 && !may_pass() {
            return false;
        }
        let [blocks, all_bytes, all_requested] = now;
        cells.blocks.store(blocks, Ordering::Relaxed);
        cells.bytes.store(all_bytes, Ordering::Relaxed);
        cells.requested.store(all_requested, Ordering::Relaxed);
        add(&cells.made, 1);
        add(&cells.made_bytes, bytes);
        add(&cells.made_requested, requested);
        true
    }

    /// A limit would be passed: whether it may be.
    #[cold]
    fn rise(&self, pool: PoolSize, bytes: i64, requested: i64) -> bool {
        if !self.is_bound() {
            self.risen.store(true, Ordering::Relaxed);
            return true;
        }
        // Blocks that were pending may have been over since.
        let block = Sums::of_block(pool, bytes, requested);
        let (after, most) = (self.now().plus(block), self.most());
        let fits = after.fits(most);
        if fits {
            self.limit(after, most);
        }
        fits
    }

    #[inline]
    pub(super) fn free(&self, pool: PoolSize, bytes: i64, requested: i64) {
        self.figures.touch();
        self.settle();
        let pool = self.pool(pool);
        add(&pool.blocks, -1);
        add(&pool.bytes, bytes.wrapping_neg());
        add(&pool.requested, requested.wrapping_neg());
    }

    pub(super) fn request_free(&self, pool: PoolSize, bytes: i64) {
        self.figures.touch();
        self.settle();
        let pool = self.pool(pool);
        add(&pool.blocks, -1);
        add(&pool.bytes, bytes.wrapping_neg());
        add(&pool.pending, 1);
        add(&pool.pending_bytes, bytes);
        // It is still active: so much fewer others may be.
        for [blocks_limit, bytes_limit, _] in [&pool.limits, &self.limits] {
            add(blocks_limit, -1);
            add(bytes_limit, bytes.wrapping_neg());
        }
    }

    pub(super) fn complete_free(&self, pool: PoolSize, bytes: i64, requested: i64) {
        self.figures.touch();
        self.settle();
        let pool = self.pool(pool);
        add(&pool.pending, -1);
        add(&pool.pending_bytes, bytes.wrapping_neg());
        add(&pool.requested, requested.wrapping_neg());
    }

    /// Figures are highest before something is taken away: so that is when the peaks are looked at, once for all that was
    /// added in a row.
    #[inline]
    pub(super) fn settle(&self) {
        self.figures.touch();
        if self.risen.load(Ordering::Relaxed) {
            self.raise();
        }
    }

    #[cold]
    fn raise(&self) {
        let now = self.now();
        for (most, now) in self.most.iter().flatten().zip(now.all()) {
            most.store(read(most).max(now), Ordering::Relaxed);
        }
        self.limit(now, self.most());
    }

    /// Has the peaks start anew from what there is.
    pub(super) fn begin(&self) {
        self.bound.store(false, Ordering::Relaxed);
        self.start_from(self.now());
    }

    /// Whether no figure may rise above its most: it asks before.
    pub(super) fn is_bound(&self) -> bool {
        self.bound.load(Ordering::Relaxed)
    }

    /// Binds the figures, which are not above `most`.
    pub(super) fn bind(&self, most: Sums) {
        self.bound.store(true, Ordering::Relaxed);
        self.start_from(most);
    }

    /// Shares with another shard what neither uses: each figure evenly, once this one has `more`, or as far as there is any; with `all`
    /// it takes what the other one does not use. Whether there is enough. Both are bound, and stay within what they may have together.
    pub(super) fn share_with(&self, other: &Self, more: Sums, all: bool) -> bool {
        other.figures.touch();
        let wanted = self.now().plus(more);
        let (mine, others) = (self.most(), other.most());
        let unused = others.less(other.now());
        // Less than nothing where the other one has less left.
        let evenly = unused.less(mine.less(wanted)).part(2).min(unused);
        let moved = if all { unused } else { evenly };
        other.bind(others.less(moved));
        let mine = mine.plus(moved);
        self.bind(mine);
        wanted.fits(mine)
    }

    fn start_from(&self, start: Sums) {
        self.figures.touch();
        for (most, start) in self.most.iter().flatten().zip(start.all()) {
            most.store(start, Ordering::Relaxed);
        }
        self.limit(self.now(), start);
    }

    /// Each kind of pool may rise to its own peak, and both together to theirs.
    fn limit(&self, now: Sums, most: Sums) {
        self.risen.store(false, Ordering::Relaxed);
        let [small, large] = &self.pools;
        for (cells, limits) in [&self.limits, &small.limits, &large.limits].into_iter().zip(now.limits(most))
        {
            for (cell, limit) in cells.iter().zip(limits) {
                cell.store(limit, Ordering::Relaxed);
            }
        }
    }

    /// What there is. It may be less than nothing: blocks may be given back in another shard than they came from.
    #[inline]
    pub(super) fn now(&self) -> Sums {
        let [small, large] = self.pools.each_ref().map(PoolCells::now);
        Sums::of(small, large)
    }

    pub(super) fn most(&self) -> Sums {
        Sums::from(self.most.each_ref().map(|most| most.each_ref().map(read)))
    }

    pub(super) fn made(&self) -> Made {
        Made(self.pools.each_ref().map(|pool| [&pool.made, &pool.made_bytes, &pool.made_requested].map(read)))
    }

    #[inline]
    fn pool(&self, pool: PoolSize) -> &PoolCells {
        self.pool_and_other(pool).0
    }

    #[inline]
    fn pool_and_other(&self, pool: PoolSize) -> (&PoolCells, &PoolCells) {
        let [small, large] = &self.pools;
        match pool {
            PoolSize::Small => (small, large),
            PoolSize::Large => (large, small),
        }
    }
}

impl PoolCells {
    #[inline]
    fn now(&self) -> Figures {
        let (blocks, bytes) = (read(&self.blocks), read(&self.bytes));
        [
            blocks,
            bytes,
            blocks.wrapping_add(read(&self.pending)),
            bytes.wrapping_add(read(&self.pending_bytes)),
            read(&self.requested),
        ]
    }
}

/// Less than nothing if one of the figures is above its limit.
#[inline]
fn least_room(limits: &[AtomicI64; 3], now: [i64; 3]) -> i64 {
    let [blocks, bytes, requested] = limits.each_ref().map(read);
    blocks.wrapping_sub(now[0]) | bytes.wrapping_sub(now[1]) | requested.wrapping_sub(now[2])
}

#[inline]
fn read(cell: &AtomicI64) -> i64 {
    cell.load(Ordering::Relaxed)
}

#[inline]
fn add(cell: &AtomicI64, amount: i64) -> i64 {
    let sum = read(cell).wrapping_add(amount);
    cell.store(sum, Ordering::Relaxed);
    sum
}
