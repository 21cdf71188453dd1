//! A heap's part of a [`PeakCounter`](super::PeakCounter): its lock, and counters that only the lock's holder writes.
//!
//! Whether the shard is active is a bit in the lock's word. Taking an active shard is one compare-exchange, giving it back one store,
//! and counting in between plain loads and stores behind one comparison with limits.
//!
//! # Safety
//!
//! Relies on a [`Shard`] being a lock: between taking it and dropping its guard nobody else has it.

#![allow(unsafe_code, reason = "shares a value under the lock that counts")]

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
// The model checker sees no more of the figures than who touches them: else it would look at little else.
use std::sync::atomic::{AtomicBool, AtomicI64};

use cuda_mem_core::forked;

use super::figures::{AtomicFigures, Figures, Row, UNLIMITED};
use super::peak::Inner;
use super::stat::PoolSize;
use crate::primitive::{AtomicUsize, Exclusive, Ordering, UnsafeCell, wait_a_moment, wait_until};

/// Somebody has the shard.
const HELD: usize = 1;
/// Its holder may count.
const ACTIVE: usize = 2;

/// A lock, and what its holders count. What was counted stays when it is dropped.
#[derive(Debug)]
pub(crate) struct Shard(pub(super) Counting);

/// What the holder of a shard counts in. Nobody else has it.
#[derive(Debug)]
pub(crate) struct Counting {
    counter: Arc<Inner>,
    pub(super) cells: Arc<Cells>,
}

/// The calling thread has the shard. Until it is dropped the thread waits for nothing: no lock, no driver call, no program's code.
#[derive(Debug)]
pub(crate) struct ShardGuard<'s> {
    counting: &'s Counting,
    /// The lock is given back by the thread that has taken it.
    _here: PhantomData<*const ()>,
}

impl Shard {
    pub(super) fn new(counter: Arc<Inner>, cells: Arc<Cells>) -> Self {
        Self(Counting { counter, cells })
    }

    #[inline(always)]
    pub(crate) fn try_hold(&self) -> Option<ShardGuard<'_>> {
        let is_taken = self.0.cells.take_active() || self.0.cells.try_take();
        is_taken.then(|| ShardGuard { counting: &self.0, _here: PhantomData })
    }

    #[inline(always)]
    pub(crate) fn hold(&self) -> ShardGuard<'_> {
        if !self.0.cells.take_active() {
            self.0.cells.wait();
        }
        ShardGuard { counting: &self.0, _here: PhantomData }
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        // In a forked child all of it is the parent's, and whoever has the lock below may not run there.
        if !forked() {
            self.0.counter.give_back(&self.0.cells);
        }
    }
}

impl Deref for ShardGuard<'_> {
    type Target = Counting;

    #[inline(always)]
    fn deref(&self) -> &Counting {
        self.counting
    }
}

impl Drop for ShardGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let lock = &self.counting.cells.lock;
        // Nobody else changes the word of a shard that somebody has. Release: what the holder did is done for whoever has the shard, or its
        // activity, next.
        lock.store(lock.load(Ordering::Relaxed) & !HELD, Ordering::Release);
    }
}

impl Counting {
    /// Counts a block of `bytes`, of which `requested` were asked for.
    #[inline]
    pub(crate) fn allocate(&self, pool: PoolSize, bytes: usize, requested: usize) {
        let block = [1, bytes as i64, requested as i64];
        self.cells().allocate(&self.counter, pool, block, true);
    }

    /// As [`Counting::allocate`], unless a peak would rise; whether it is counted.
    #[inline(always)]
    pub(crate) fn allocate_below_peak(&self, pool: PoolSize, bytes: usize, requested: usize) -> bool {
        let block = [1, bytes as i64, requested as i64];
        self.cells().allocate(&self.counter, pool, block, false)
    }

    /// A block is given back that no stream uses. It may have been counted in another shard; so for the two below.
    #[inline(always)]
    pub(crate) fn free(&self, pool: PoolSize, bytes: usize, requested: usize) {
        self.cells().free(self, pool, [1, bytes as i64, requested as i64]);
    }

    /// Counts a block, in a counter of which every shard counts in this way alone: there is one pool, and no bytes are requested.
    #[inline]
    pub(crate) fn allocate_plain(&self, bytes: usize) {
        self.cells().allocate(&self.counter, PoolSize::Small, [1, bytes as i64], true);
    }

    /// As [`Counting::free`], of such a block.
    #[inline]
    pub(crate) fn free_plain(&self, bytes: usize) {
        self.cells().free(self, PoolSize::Small, [1, bytes as i64]);
    }

    /// A block is given back that a stream still uses: it stays active.
    pub(crate) fn request_free(&self, pool: PoolSize, bytes: usize) {
        let bytes = bytes as i64;
        self.cells().change(&self.counter, pool, [-1, bytes.wrapping_neg(), 0], [1, bytes]);
    }

    /// No stream uses such a block any more.
    pub(crate) fn complete_free(&self, pool: PoolSize, bytes: usize, requested: usize) {
        let pending = [-1, (bytes as i64).wrapping_neg()];
        self.cells().change(&self.counter, pool, [0, 0, (requested as i64).wrapping_neg()], pending);
    }

    /// The counters, once they may be written.
    #[inline(always)]
    fn cells(&self) -> &Cells {
        if self.cells.lock.load(Ordering::Relaxed) & ACTIVE == 0 {
            self.begin();
        }
        &self.cells
    }

    #[cold]
    #[inline(never)]
    fn begin(&self) {
        self.counter.activate(&self.cells);
        // Nobody else changes the word of a shard that somebody has.
        self.cells.lock.store(ACTIVE | HELD, Ordering::Relaxed);
    }
}

/// A value and its shard: taking the value costs one compare-exchange, which serves for counting too.
#[derive(Debug)]
pub(crate) struct CountedCell<T> {
    shard: Shard,
    value: UnsafeCell<T>,
}

impl<T> CountedCell<T> {
    pub(crate) fn new(shard: Shard, value: T) -> Self {
        Self { shard, value: UnsafeCell::new(value) }
    }

    #[inline]
    pub(crate) fn try_with<R>(&self, body: impl FnOnce(&mut T, &Counting) -> R) -> Option<R> {
        self.try_hold().map(|mut held| held.with(body))
    }

    #[inline]
    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut T, &Counting) -> R) -> R {
        self.hold().with(body)
    }

    #[inline(always)]
    pub(crate) fn try_hold(&self) -> Option<Held<'_, T>> {
        self.shard.try_hold().map(|guard| self.held(guard))
    }

    #[inline(always)]
    pub(crate) fn hold(&self) -> Held<'_, T> {
        self.held(self.shard.hold())
    }

    #[inline(always)]
    fn held<'c>(&'c self, guard: ShardGuard<'c>) -> Held<'c, T> {
        Held { value: self.value.with_mut(|value| value), guard }
    }
}

/// The calling thread has a value, and counts.
#[derive(Debug)]
pub(crate) struct Held<'c, T> {
    value: *mut T,
    guard: ShardGuard<'c>,
}

impl<'c, T> Held<'c, T> {
    /// The value, and the guard that counts. Without a closure: the compiler leaves the hot path in one piece.
    #[inline(always)]
    pub(crate) fn parts(&mut self) -> (&mut T, &Counting) {
        // SAFETY: the guard is of the value's shard and lives as long as this, and nothing puts another in its place: nobody else has the
        // value. Whoever has it from here has borrowed this.
        (unsafe { &mut *self.value }, &self.guard)
    }

    #[inline]
    fn with<R>(&mut self, body: impl FnOnce(&mut T, &Counting) -> R) -> R {
        let (value, guard) = self.parts();
        body(value, guard)
    }
}

// SAFETY: one thread at a time has the value, under the shard, and it moves between threads as a whole.
unsafe impl<T: Send> Sync for CountedCell<T> {}

/// A shard's counters. They have their cache lines to themselves.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Cells {
    lock: AtomicUsize,
    touched: Exclusive,
    /// It counts in the concurrent tier, or did so last.
    publishes: AtomicBool,
    /// Up to these numbers of blocks, bytes and requested bytes of both pools nothing has to be looked at.
    limits: [AtomicI64; 3],
    pools: [Pool; 2],
    /// Alone: the most of each figure that no peak is below, up to the last look.
    most: AtomicFigures,
    /// What the counter's sums have of this shard.
    pub(super) published: AtomicFigures,
    /// How many times it has published since another one did.
    pub(super) times: AtomicI64,
}

#[derive(Debug, Default)]
struct Pool {
    /// Blocks that somebody has, their bytes, and the requested bytes of all that are active.
    now: [AtomicI64; 3],
    limits: [AtomicI64; 3],
    /// Down to these numbers nothing has to be looked at.
    floors: [AtomicI64; 3],
    /// As `now`, but all that ever were.
    allocated: [AtomicI64; 3],
    /// Blocks that are active and nobody has, and their bytes.
    pending: [AtomicI64; 2],
}

impl Cells {
    /// Takes the lock as it is in the usual allocation and free: active, and nobody has it.
    #[inline(always)]
    fn take_active(&self) -> bool {
        // Acquire: what the last holder did is done.
        self.lock.compare_exchange(ACTIVE, ACTIVE | HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock whatever its word is, unless somebody has it.
    #[cold]
    #[inline(never)]
    fn try_take(&self) -> bool {
        let taken = |now| (now & HELD == 0).then_some(now | HELD);
        self.lock.fetch_update(Ordering::Acquire, Ordering::Relaxed, taken).is_ok()
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        wait_until(|| self.try_take());
    }

    /// Whether a block is counted, of so many bytes of which so many were asked for: unless a peak would rise that must not. Where no bytes
    /// are requested (`N` is 2) there is one pool.
    #[inline(always)]
    fn allocate<const N: usize>(
        &self,
        counter: &Inner,
        pool: PoolSize,
        block: [i64; N],
        may_rise: bool,
    ) -> bool {
        self.touched.touch();
        let (this, other) = self.pool_and_other(pool);
        let now = sum(&this.now, block);
        let is_beyond = match N {
            2 => any_negative(room(&self.limits, now)),
            _ => {
                any_negative(room(&this.limits, now)) | any_negative(room(&self.limits, sum(&other.now, now)))
            }
        };
        if is_beyond && !self.pass(counter, figures_of(pool, block), may_rise) {
            return false;
        }
        store(&this.now, now);
        store(&this.allocated, sum(&this.allocated, block));
        true
    }

    #[cold]
    #[inline(never)]
    fn pass(&self, counter: &Inner, block: Figures, may_rise: bool) -> bool {
        if !self.publishes() {
            if may_rise {
                // The most is looked at before something is taken away, once for all that was added in a row.
                self.pools.iter().for_each(|pool| store(&pool.floors, [UNLIMITED; 3]));
            }
            return may_rise;
        }
        let after = self.now().plus(block);
        let quantum = counter.quantum();
        let published = after.behind(quantum, self.published.load());
        let rises = || counter.others(self).plus(published).exceeds(counter.peaks.load());
        if !may_rise && rises() {
            return false;
        }
        counter.is_alone(self);
        self.publish_as(counter, after, published, quantum);
        true
    }

    #[inline(always)]
    fn free<const N: usize>(&self, counting: &Counting, pool: PoolSize, block: [i64; N]) {
        self.touched.touch();
        let this = self.pool_and_other(pool).0;
        let now = sum(&this.now, block.map(i64::wrapping_neg));
        if any_negative(room(&this.floors, now).map(i64::wrapping_neg)) {
            self.sink(counting, figures_of(pool, block));
        }
        store(&this.now, now);
    }

    #[cold]
    #[inline(never)]
    fn sink(&self, Counting { counter, cells }: &Counting, block: Figures) {
        if !self.publishes() {
            self.set_most(self.most());
        } else if !(counter.is_alone(self) && counter.try_alone(cells)) {
            self.publish(counter, self.now().minus(block));
        }
    }

    /// Changes figures of a pool by these, and what is pending.
    fn change(&self, counter: &Inner, pool: PoolSize, by: [i64; 3], pending: [i64; 2]) {
        self.touched.touch();
        let most = self.most();
        let this = self.pool_and_other(pool).0;
        store(&this.now, sum(&this.now, by));
        store(&this.pending, sum(&this.pending, pending));
        match self.publishes() {
            true => self.publish(counter, self.now()),
            false => self.set_most(most),
        }
    }

    /// Counts on in the concurrent tier. For whoever may write the cells; so for all below.
    pub(super) fn begin_publishing(&self, counter: &Inner) {
        self.publishes.store(true, Ordering::Relaxed);
        self.publish(counter, self.now());
    }

    /// Counts on alone: no peak rises up to `most`.
    pub(super) fn begin_alone(&self, most: Figures) {
        self.publishes.store(false, Ordering::Relaxed);
        self.set_most(most);
    }

    fn publish(&self, counter: &Inner, now: Figures) {
        let quantum = counter.quantum();
        self.publish_as(counter, now, now.behind(quantum, self.published.load()), quantum);
    }

    fn publish_as(&self, counter: &Inner, now: Figures, published: Figures, quantum: Figures) {
        counter.publish(self, published);
        self.set_limits(now, published.plus(quantum).minus(now), now.minus(published));
    }

    fn set_most(&self, most: Figures) {
        self.most.store(most);
        let now = self.now();
        self.set_limits(now, most.minus(now), Figures([[UNLIMITED; 5]; 3]));
    }

    /// Figures may rise by `up` and fall by `down`.
    fn set_limits(&self, now: Figures, up: Figures, down: Figures) {
        let [all, limits @ ..] = now.moved_by(up);
        let [_, floors @ ..] = now.moved_by(Figures::default().minus(down));
        store(&self.limits, all);
        for (pool, (limit, floor)) in self.pools.iter().zip(limits.into_iter().zip(floors)) {
            store(&pool.limits, limit);
            store(&pool.floors, floor);
        }
    }

    /// Takes the activity away once nobody counts; whether that had to be waited for.
    pub(super) fn deactivate(&self) -> bool {
        let mut tries = 0;
        while !self.try_deactivate() {
            wait_a_moment(&mut tries);
        }
        tries > 0
    }

    /// As [`Cells::deactivate`], unless somebody counts.
    pub(super) fn try_deactivate(&self) -> bool {
        let left = |now| (now & HELD == 0).then_some(now & !ACTIVE);
        // Acquire: what was counted is seen.
        self.lock.fetch_update(Ordering::Acquire, Ordering::Relaxed, left).is_ok()
    }

    fn publishes(&self) -> bool {
        self.publishes.load(Ordering::Relaxed)
    }

    pub(super) fn most(&self) -> Figures {
        self.most.load().max(self.now())
    }

    /// What there is. It may be negative: blocks may be given back in another shard.
    pub(super) fn now(&self) -> Figures {
        let [small, large] = self.pools.each_ref().map(|pool| {
            let ([blocks, bytes, requested], [pending, pending_bytes]) =
                (load(&pool.now), load(&pool.pending));
            [blocks, bytes, blocks.wrapping_add(pending), bytes.wrapping_add(pending_bytes), requested]
        });
        Figures::of(small, large)
    }

    /// All that was ever allocated. A block is active as soon as it is.
    pub(super) fn allocated(&self) -> Figures {
        let [small, large]: [Row; 2] = self.pools.each_ref().map(|pool| {
            let [blocks, bytes, requested] = load(&pool.allocated);
            [blocks, bytes, blocks, bytes, requested]
        });
        Figures::of(small, large)
    }

    #[inline]
    fn pool_and_other(&self, pool: PoolSize) -> (&Pool, &Pool) {
        let [small, large] = &self.pools;
        match pool {
            PoolSize::Small => (small, large),
            PoolSize::Large => (large, small),
        }
    }
}

fn figures_of<const N: usize>(pool: PoolSize, block: [i64; N]) -> Figures {
    Figures::of_block(pool, block[1], if N > 2 { block[2] } else { 0 })
}

#[inline]
fn load<const N: usize>(cells: &[AtomicI64; N]) -> [i64; N] {
    cells.each_ref().map(|cell| cell.load(Ordering::Relaxed))
}

#[inline]
fn store<const N: usize, const M: usize>(cells: &[AtomicI64; M], values: [i64; N]) {
    for (cell, value) in cells.iter().zip(values) {
        cell.store(value, Ordering::Relaxed);
    }
}

/// What the first cells have, and so much more.
#[inline]
fn sum<const N: usize, const M: usize>(cells: &[AtomicI64; M], values: [i64; N]) -> [i64; N] {
    std::array::from_fn(|at| values[at].wrapping_add(cells[at].load(Ordering::Relaxed)))
}

/// By how much values are below what the first cells have.
#[inline]
fn room<const N: usize>(limits: &[AtomicI64; 3], values: [i64; N]) -> [i64; N] {
    std::array::from_fn(|at| limits[at].load(Ordering::Relaxed).wrapping_sub(values[at]))
}

#[inline]
fn any_negative<const N: usize>(values: [i64; N]) -> bool {
    values.into_iter().fold(0, |all, value| all | value) < 0
}
