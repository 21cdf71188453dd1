//! A heap's part of a [`PeakCounter`](super::PeakCounter): its lock, and counters that only the lock's holder writes.
//!
//! Taking a shard is one compare-exchange, giving it back one store, and counting in between plain loads and stores behind one comparison
//! with limits.
//!
//! # Safety
//!
//! Relies on a [`Shard`] being a lock: between taking it and dropping its guard nobody else has it, or what is behind it. Whoever has the
//! right to stop shards takes their locks too, and gives back those alone that it took: which shards are at rest cannot change while it has
//! the right, and no shard is added ([`PeakCounter::shard`](super::PeakCounter::shard)). Of a shard at rest it changes the limits, nothing else.

#![allow(unsafe_code, reason = "shares a value under the lock that counts")]

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
// The model checker sees no more of the figures than who touches them: else it would look at little else.
use std::sync::atomic::{AtomicI64, AtomicU32};

use cuda_mem_core::forked;

use super::device::PoolSize;
use super::figures::{Figures, Room, Row, Table};
use super::peak::Inner;
use crate::primitive::{AtomicBool, Exclusive, Ordering, UnsafeCell, wait_a_moment, wait_until};

/// How long one who borrows waits for another shard: as long as an allocation takes.
const TRIES: u32 = if cfg!(all(loom, test)) { 1 } else { 16 };
/// How long one who wants to see what is in a shard waits for whoever has it.
const SOON: u32 = if cfg!(all(loom, test)) { 1 } else { 64 };

/// A lock, and what its holders count. What was counted stays when it is dropped.
#[derive(Debug)]
pub(crate) struct Shard(pub(super) Counting);

/// What the holder of a shard counts in. Nobody else has it.
#[derive(Debug)]
pub(crate) struct Counting {
    counter: Arc<Inner>,
    pub(super) cells: Arc<Cells>,
}

/// The calling thread has the shard. Until it is dropped the thread calls neither the driver nor the program's code, and waits for no other
/// shard and for no lock whose holder may wait for one; counting sees to that by itself.
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
        self.0.cells.lock.try_take().then(|| ShardGuard { counting: &self.0, _here: PhantomData })
    }

    #[inline(always)]
    pub(crate) fn hold(&self) -> ShardGuard<'_> {
        self.0.cells.lock.take();
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
        self.counting.cells.lock.give_back();
    }
}

impl Counting {
    /// Counts a block of `bytes`, of which `requested` were asked for.
    #[inline]
    pub(crate) fn allocate(&self, pool: PoolSize, bytes: usize, requested: usize) {
        if !self.allocate_below_peak(pool, bytes, requested) {
            self.allocate_at_peak(pool, bytes, requested);
        }
    }

    /// As [`Counting::allocate`], unless a peak may have to rise; whether it is counted.
    #[inline(always)]
    pub(crate) fn allocate_below_peak(&self, pool: PoolSize, bytes: usize, requested: usize) -> bool {
        self.cells.allocate(&self.counter, pool, [1, bytes as i64, requested as i64], false)
    }

    /// As [`Counting::allocate_below_peak`], where that has counted nothing: a peak may rise.
    pub(crate) fn allocate_at_peak(&self, pool: PoolSize, bytes: usize, requested: usize) {
        self.cells.allocate(&self.counter, pool, [1, bytes as i64, requested as i64], true);
    }

    /// A block is given back that no stream uses. It may have been counted in another shard; so for the two below.
    #[inline(always)]
    pub(crate) fn free(&self, pool: PoolSize, bytes: usize, requested: usize) {
        self.cells.free(pool, [1, bytes as i64, requested as i64]);
    }

    /// A block is given back that a stream still uses: it stays active.
    pub(crate) fn request_free(&self, pool: PoolSize, bytes: usize) {
        self.cells.request_free(pool, [1, bytes as i64]);
    }

    /// No stream uses such a block any more.
    pub(crate) fn complete_free(&self, pool: PoolSize, bytes: usize, requested: usize) {
        self.cells.complete_free(pool, [1, bytes as i64], requested as i64);
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

    /// As [`CountedCell::try_with`], but waits a moment: whoever has the shard may only lend, or add all shards up.
    pub(crate) fn with_soon<R>(&self, body: impl FnOnce(&mut T, &Counting) -> R) -> Option<R> {
        self.shard.0.cells.lock.take_unless(|tries| tries == SOON)?;
        let guard = ShardGuard { counting: &self.shard.0, _here: PhantomData };
        Some(self.held(guard).with(body))
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

/// A lock for those who do nothing long: an allocation, or a look at all shards.
#[derive(Debug, Default)]
pub(super) struct Spin(AtomicBool);

impl Spin {
    #[inline(always)]
    fn try_take(&self) -> bool {
        // Acquire: what the last holder did is done.
        self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline(always)]
    pub(super) fn take(&self) {
        if !self.try_take() {
            self.wait();
        }
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        // Read first: whoever has it writes there, and waits for nobody who only reads.
        wait_until(|| !self.is_held() && self.try_take());
    }

    /// Takes it, and says after how many tries; none if `is_over` ends the wait after so many.
    fn take_unless(&self, is_over: impl Fn(u32) -> bool) -> Option<u32> {
        let mut tries = 0;
        while !self.try_take() {
            if is_over(tries) {
                return None;
            }
            wait_a_moment(&mut tries);
        }
        Some(tries)
    }

    pub(super) fn is_held(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn give_back(&self) {
        // Release: what the holder did is done for the next one.
        self.0.store(false, Ordering::Release);
    }
}

/// A shard's counters. They have their cache lines to themselves.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Cells {
    lock: Spin,
    /// Its holder waits for the right to stop all shards.
    is_at_rest: AtomicBool,
    touched: Exclusive,
    /// Up to these numbers of blocks, bytes and requested bytes nothing has to be looked at.
    limits: [[AtomicI64; 3]; 3],
    pools: [Pool; 2],
    /// The number of the shard that lends first when limits are reached.
    pub(super) lender: AtomicU32,
}

/// Blocks, bytes and requested bytes. All of it only grows.
#[derive(Debug, Default)]
struct Pool {
    allocated: [AtomicI64; 3],
    /// Blocks that were given back, their bytes, and the requested bytes of all that are not active any more.
    freed: [AtomicI64; 3],
    /// Of these, blocks that a stream still used, and their bytes.
    deferred: [AtomicI64; 2],
    /// Of these, blocks that no stream uses any more.
    completed: [AtomicI64; 2],
}

impl Pool {
    #[inline(always)]
    fn now(&self) -> [i64; 3] {
        let now = |cells: &[AtomicI64; 3], figure: usize| cells[figure].load(Ordering::Relaxed);
        std::array::from_fn(|figure| now(&self.allocated, figure).wrapping_sub(now(&self.freed, figure)))
    }
}

impl Cells {
    /// Waits for the right to stop all shards, and lets whoever has that go on. For the shard's holder.
    pub(super) fn take_at_rest(&self, right: &Spin) {
        // Release: what its holder did is seen by whoever stops the shard.
        self.is_at_rest.store(true, Ordering::Release);
        right.take();
        self.is_at_rest.store(false, Ordering::Relaxed);
    }

    /// Has nobody change the shard until [`Cells::resume`]; whether somebody had it. For whoever has the right to.
    pub(super) fn stop(&self) -> bool {
        // At rest it stays so, for the right is not given back meanwhile.
        self.lock.take_unless(|_| self.is_at_rest.load(Ordering::Acquire)) != Some(0)
    }

    pub(super) fn resume(&self) {
        if !self.is_at_rest.load(Ordering::Relaxed) {
            self.lock.give_back();
        }
    }

    pub(super) fn limits(&self) -> Room {
        Table(self.limits.each_ref().map(load))
    }

    /// Figures may rise by `room` from `now`.
    pub(super) fn set_limits(&self, now: Figures, room: Room) {
        self.touched.touch();
        let limits = now.limited().plus(room);
        self.limits.iter().zip(limits.0).for_each(|(cells, limits)| store(cells, limits, Ordering::Relaxed));
    }

    pub(super) fn raise_limits(&self, by: Room) {
        self.touched.touch();
        self.limits.iter().zip(by.0).for_each(|(cells, by)| add(cells, by, Ordering::Relaxed));
    }

    /// Gives another shard of what is left below the limits: what that lacks, or so much that both have as much. For who may stop shards.
    pub(super) fn lend(&self, missing: Room) -> Room {
        self.stop();
        let lent = self.lower_limits(missing);
        self.resume();
        lent
    }

    /// As [`Cells::lend`], for anybody. Nothing if somebody has the shard for long: two may wait for each other here.
    pub(super) fn try_lend(&self, missing: Room) -> Room {
        // At rest its holder waits for the right to stop, for longer.
        let is_over = |tries| tries == TRIES || self.is_at_rest.load(Ordering::Relaxed);
        if self.lock.take_unless(is_over).is_none() {
            return Room::default();
        }
        let lent = self.lower_limits(missing);
        self.lock.give_back();
        lent
    }

    fn lower_limits(&self, missing: Room) -> Room {
        let left = self.limits().minus(self.now().limited());
        // What is not missing is negative: the other has it left.
        let lend = |missing: i64, left: i64| missing.max(left.wrapping_add(missing) / 2).min(left).max(0);
        let lent = missing.with(left, lend);
        self.raise_limits(lent.map(i64::wrapping_neg));
        lent
    }

    /// Whether a block is counted, of so many bytes of which so many were asked for: unless a peak may have to rise that must not.
    #[inline(always)]
    fn allocate(&self, counter: &Inner, pool: PoolSize, block: [i64; 3], may_rise: bool) -> bool {
        self.touched.touch();
        let [all, small, large] = &self.limits;
        let [small_pool, large_pool] = &self.pools;
        let (this, limits, other) = match pool {
            PoolSize::Small => (small_pool, small, large_pool),
            PoolSize::Large => (large_pool, large, small_pool),
        };
        let now = plus(this.now(), block);
        let is_beyond = any_negative(room(limits, now)) | any_negative(room(all, plus(other.now(), now)));
        if is_beyond && !counter.count_beyond(self, Figures::of_block(pool, block), may_rise) {
            return false;
        }
        // Release: whoever sees the block sees what was freed before it.
        add(&this.allocated, block, Ordering::Release);
        true
    }

    #[inline(always)]
    fn free(&self, pool: PoolSize, block: [i64; 3]) {
        self.touched.touch();
        add(&self.pool(pool).freed, block, Ordering::Relaxed);
    }

    fn request_free(&self, pool: PoolSize, block: [i64; 2]) {
        self.touched.touch();
        let [all, limits @ ..] = &self.limits;
        // The block stays active, and what is active may not rise for its being freed.
        let less = block.map(i64::wrapping_neg);
        add(all, less, Ordering::Relaxed);
        add(&limits[pool as usize], less, Ordering::Relaxed);
        add(&self.pool(pool).freed, block, Ordering::Relaxed);
        // Release: whoever sees that the block is still active sees that it was freed.
        add(&self.pool(pool).deferred, block, Ordering::Release);
    }

    fn complete_free(&self, pool: PoolSize, block: [i64; 2], requested: i64) {
        self.touched.touch();
        add(&self.pool(pool).freed, [0, 0, requested], Ordering::Relaxed);
        add(&self.pool(pool).completed, block, Ordering::Relaxed);
    }

    /// What there is. It may be negative: blocks may be given back in another shard.
    pub(super) fn now(&self) -> Figures {
        self.added().minus(self.taken())
    }

    /// All that was ever allocated. A block is active as soon as it is.
    pub(super) fn allocated(&self) -> Figures {
        self.figures(|pool| row(load(&pool.allocated), [0; 2]))
    }

    /// What was added to each figure. A block that is freed while a stream uses it becomes active once more: its free takes that away, too.
    pub(super) fn added(&self) -> Figures {
        self.figures(|pool| row(load(&pool.allocated), load(&pool.deferred)))
    }

    /// What was taken away from each figure.
    pub(super) fn taken(&self) -> Figures {
        self.figures(|pool| row(load(&pool.freed), load(&pool.completed)))
    }

    fn figures(&self, of: impl Fn(&Pool) -> Row) -> Figures {
        let [small, large] = self.pools.each_ref().map(of);
        Figures::of(small, large)
    }

    #[inline(always)]
    fn pool(&self, pool: PoolSize) -> &Pool {
        &self.pools[pool as usize]
    }
}

/// A row of blocks, bytes and requested bytes, of which so many more blocks and bytes are active.
fn row([blocks, bytes, requested]: [i64; 3], [more, more_bytes]: [i64; 2]) -> Row {
    [blocks, bytes, blocks.wrapping_add(more), bytes.wrapping_add(more_bytes), requested]
}

/// Acquire: see [`Cells::allocate`].
#[inline(always)]
fn load<const N: usize>(cells: &[AtomicI64; N]) -> [i64; N] {
    cells.each_ref().map(|cell| cell.load(Ordering::Acquire))
}

#[inline(always)]
fn store<const N: usize, const M: usize>(cells: &[AtomicI64; M], values: [i64; N], ordering: Ordering) {
    for (cell, value) in cells.iter().zip(values) {
        cell.store(value, ordering);
    }
}

/// Nobody else writes them.
#[inline(always)]
fn add<const N: usize, const M: usize>(cells: &[AtomicI64; M], values: [i64; N], ordering: Ordering) {
    for (cell, value) in cells.iter().zip(values) {
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(value), ordering);
    }
}

#[inline(always)]
fn plus(values: [i64; 3], more: [i64; 3]) -> [i64; 3] {
    std::array::from_fn(|at| values[at].wrapping_add(more[at]))
}

/// By how much values are below what the first cells have.
#[inline(always)]
fn room(limits: &[AtomicI64; 3], values: [i64; 3]) -> [i64; 3] {
    std::array::from_fn(|at| limits[at].load(Ordering::Relaxed).wrapping_sub(values[at]))
}

#[inline(always)]
fn any_negative(values: [i64; 3]) -> bool {
    values.into_iter().fold(0, |all, value| all | value) < 0
}
