//! [`PeakLedger`]: exact peaks of a sum that many heaps have a part in, without a word that all of them write.
//!
//! Each heap has a shard with counters of its own, which one thread at a time writes. A shard that is *active* may change. While
//! one alone is, the sum over all shards is the others' sum, which stands still, and its own; so the sum was highest when its own
//! part was, and the shard has to keep no more than its own maximum. While several are, each has a share of the peak beyond which
//! it asks: all shares together are no more than the peak, so the sum is not either, whatever any of them does. Who asks takes
//! another shard for a moment, if nobody has it, and has what both do not use divided anew between the two (`others.rs`), which
//! leaves the sum of the shares as it is; so that needs neither a lock nor a word that all threads write. Only one that does not
//! get enough from any of them asks under the ledger's lock. One for which there is not enough anywhere is made the only active one, and
//! raises the peak.
//! So threads that come and go below the peak count by themselves, and wait for each other only where a new peak is in sight.
//!
//! Whether a shard is active is a bit in the word that is its lock. Whoever takes the lock learns it with the same atomic
//! exchange, and has then *armed* the shard: nobody takes the bit away before the holder is done. So counting is plain loads
//! and stores behind one test, and costs no atomic exchange if the shard's lock is also the heap's.
//!
//! What exact means: an operation counts at one moment between its begin and its end, so there is an order of all operations
//! of all threads in which each counts by itself, and which agrees with what any clock would say. At each moment of it the sum is
//! at most the peak, and at one moment it was the peak: no peak is below what was counted at any moment, none above, each figure
//! for itself. When nobody counts, what there is is what a recount finds.
//!
//! Whoever takes the activity away waits for the holder of the shard while that is armed, and has the ledger's lock meanwhile. A
//! holder that is armed must therefore wait for nobody: before it does, it calls [`ShardGuard::disarm`]. What waits in here
//! waits for nobody who waits: one that asks for a share has first made its own shard inactive, and shards that the same thread
//! has armed are not waited for.
//!
//! With [`Peaks::Sharded`] all shards stay active, nobody asks, and the peak is the sum of the shards' own.

mod books;
mod cells;
mod others;
mod sums;

use std::marker::PhantomData;
use std::sync::Arc;

use cuda_mem_core::forked;

use self::books::Books;
use self::cells::{ACTIVE, Cells, HELD, LENT, TOKEN};
use self::others::Others;
use self::sums::Sums;
use super::stat::{PoolSize, PoolStat};
use crate::primitive::{Ordering, thread_token, wait_a_moment};

/// How peaks over several shards are kept. [`PeakLedger`] has an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Peaks {
    /// Exact: the most that there was at any moment. Threads that count in different shards take room below the peak from each
    /// other, two at a time and without a lock, now and then; at a new peak one waits for those who count.
    #[default]
    Exact,
    /// The sum of what the shards had at most: never too low, and too high by what moved from one shard to another, or was at
    /// its most in each at different moments. Nobody waits. All other figures are exact.
    Sharded,
}

/// What a [`PeakLedger`] counts, under PyTorch's names. [`PeakLedger`] has an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LiveStatistics {
    /// Blocks that somebody has.
    pub allocation: PoolStat,
    /// Their bytes.
    pub allocated_bytes: PoolStat,
    /// Blocks that somebody has or that a stream still uses.
    pub active: PoolStat,
    /// Their bytes.
    pub active_bytes: PoolStat,
    /// Their bytes, as they were asked for.
    pub requested_bytes: PoolStat,
}

/// What [`PeakLedger::glance_at_active_bytes`] saw.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ActiveBytes {
    pub(crate) now: u64,
    pub(crate) peak: u64,
}

/// Counts blocks in shards, one for each heap, and keeps the peaks of their sum.
///
/// ```
/// use cuda_mem_pool::statistics::{PeakLedger, Peaks, PoolSize};
///
/// let ledger = PeakLedger::new(Peaks::Exact);
/// let (one, other) = (ledger.shard(), ledger.shard());
/// one.hold().allocate(PoolSize::Small, 512, 500);
/// other.hold().allocate(PoolSize::Small, 1024, 1000);
/// one.hold().free(PoolSize::Small, 512, 500);
///
/// let live = ledger.read();
/// assert_eq!(live.allocated_bytes.all.current, 1024);
/// assert_eq!(live.allocated_bytes.all.peak, 1536);
/// assert_eq!(live.requested_bytes.small_pool.freed, 500);
/// ```
#[derive(Debug, Clone)]
pub struct PeakLedger {
    books: Arc<Books>,
}

/// One heap's part of a [`PeakLedger`], and a lock: best the heap's own. What it counted stays counted when it is dropped.
/// [`PeakLedger`] has an example.
#[derive(Debug)]
pub struct Shard {
    books: Arc<Books>,
    cells: Arc<Cells>,
    others: Others,
}

/// The calling thread has the shard, and is armed: others who want to count wait until it is dropped or disarmed. So before
/// its holder waits for anybody, for another lock, the driver or somebody's callback, it calls [`ShardGuard::disarm`].
///
/// ```
/// use cuda_mem_pool::statistics::{PeakLedger, Peaks, PoolSize};
///
/// let ledger = PeakLedger::new(Peaks::Exact);
/// let shard = ledger.shard();
/// let mut guard = shard.hold();
/// guard.allocate(PoolSize::Large, 2 << 20, 2_000_000);
/// guard.disarm();
/// // Still nobody else has the shard, and others may count in theirs.
/// assert!(shard.try_hold().is_none());
/// guard.free(PoolSize::Large, 2 << 20, 2_000_000);
/// ```
#[derive(Debug)]
pub struct ShardGuard<'s> {
    shard: &'s Shard,
    /// The shard's word while it is armed and active.
    counting: usize,
    /// The token is that of one thread.
    _here: PhantomData<*const ()>,
}

impl PeakLedger {
    /// A ledger without shards.
    #[must_use]
    pub fn new(peaks: Peaks) -> Self {
        Self { books: Arc::new(Books::new(peaks)) }
    }

    /// A new shard, which has counted nothing.
    #[must_use]
    pub fn shard(&self) -> Shard {
        Shard { books: Arc::clone(&self.books), cells: self.books.add(), others: Others::default() }
    }

    /// All figures of one moment. Waits for the ledger's lock and for holders that are armed in other threads.
    #[must_use]
    pub fn read(&self) -> LiveStatistics {
        self.books.read()
    }

    /// Active bytes, and the most that there were, while other threads count: what they count meanwhile is in each of the two or
    /// not. Waits for the ledger's lock alone, whose holder may wait for those who count.
    pub(crate) fn glance_at_active_bytes(&self) -> ActiveBytes {
        let (now, most) = self.books.glance();
        ActiveBytes { now: now.active_bytes(), peak: most.active_bytes() }
    }

    /// Has the peaks start anew from what there is now. Waits as [`PeakLedger::read`].
    pub fn reset_peak(&self) {
        self.books.reset_peak();
    }

    /// Has the sums of what came and went start anew from nothing. Waits as [`PeakLedger::read`].
    pub fn reset_accumulated(&self) {
        self.books.reset_accumulated();
    }
}

impl Shard {
    /// Takes the shard, unless somebody has it.
    #[inline]
    pub fn try_hold(&self) -> Option<ShardGuard<'_>> {
        let counting = ACTIVE | HELD | thread_token();
        // As it is left, if nobody asks for the peaks. Acquire: what the last holder did is done.
        match self.cells.lock.compare_exchange(ACTIVE, counting, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Some(ShardGuard { shard: self, counting, _here: PhantomData }),
            Err(now) => self.try_hold_at(now),
        }
    }

    #[inline(never)]
    fn try_hold_at(&self, mut now: usize) -> Option<ShardGuard<'_>> {
        let counting = ACTIVE | HELD | thread_token();
        let mut tries = 0;
        loop {
            if now & LENT != 0 {
                // Nobody has it who uses it, and that is over at once.
                wait_a_moment(&mut tries);
                now = self.cells.lock.load(Ordering::Relaxed);
                continue;
            }
            if now & HELD != 0 {
                return None;
            }
            // Whether it may count is as it was; it is not quiet any more.
            let taken = now & ACTIVE | counting & !ACTIVE;
            match self.cells.lock.compare_exchange(now, taken, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(ShardGuard { shard: self, counting, _here: PhantomData }),
                Err(other) => now = other,
            }
        }
    }

    /// Takes the shard, unless somebody has it who may wait for others: see [`ShardGuard::disarm`].
    pub(crate) fn hold_unless_disarmed(&self) -> Option<ShardGuard<'_>> {
        let mut tries = 0;
        loop {
            let taken = self.try_hold();
            if taken.is_some() || self.cells.lock.load(Ordering::Relaxed) & (HELD | TOKEN) == HELD {
                return taken;
            }
            wait_a_moment(&mut tries);
        }
    }

    /// Takes the shard when nobody has it.
    #[inline]
    pub fn hold(&self) -> ShardGuard<'_> {
        let mut tries = 0;
        loop {
            match self.try_hold() {
                Some(guard) => return guard,
                None => wait_a_moment(&mut tries),
            }
        }
    }
}

impl Shard {
    /// May count from now on, and has room for `more`. Its holder is the calling thread, is armed, and may not count in it.
    fn be_admitted(&self, more: Sums) {
        self.others.learn(self.books.admit(&self.cells, more));
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        if forked() {
            // All of it is the parent's, and whoever is waited for below may be no thread of this process.
            return;
        }
        // Whoever still has it has forgotten a guard, and will not count; or only shares with it.
        if self.try_hold().is_none() {
            self.cells.lock.fetch_and(ACTIVE, Ordering::Release);
        }
        self.books.remove(&self.cells);
    }
}

impl ShardGuard<'_> {
    /// A block of `bytes`, of which `requested` were asked for, is handed out.
    #[inline]
    pub fn allocate(&mut self, pool: PoolSize, bytes: usize, requested: usize) {
        let (bytes, requested) = (bytes as i64, requested as i64);
        while !self.counting().allocate(pool, bytes, requested) {
            self.ask(pool, bytes, requested);
        }
    }

    /// As [`ShardGuard::allocate`], unless a peak might rise; whether it is counted. Who knows of blocks that were given back and are not
    /// counted yet counts these first.
    #[inline]
    pub(crate) fn allocate_below_peak(&mut self, pool: PoolSize, bytes: usize, requested: usize) -> bool {
        let (bytes, requested) = (bytes as i64, requested as i64);
        self.counting().allocate_below_peak(pool, bytes, requested)
            || self.allocate_shared(pool, bytes, requested)
    }

    /// A block is given back, and no stream uses it. It may have come from another shard; so for the two below.
    #[inline]
    pub fn free(&mut self, pool: PoolSize, bytes: usize, requested: usize) {
        self.counting().free(pool, bytes as i64, requested as i64);
    }

    /// A block is given back that a stream still uses: it stays active.
    pub fn request_free(&mut self, pool: PoolSize, bytes: usize) {
        self.counting().request_free(pool, bytes as i64);
    }

    /// No stream uses such a block any more.
    pub fn complete_free(&mut self, pool: PoolSize, bytes: usize, requested: usize) {
        self.counting().complete_free(pool, bytes as i64, requested as i64);
    }

    /// Still has the shard, but may now wait for others. What is counted afterwards arms it again, at the price of an atomic
    /// exchange.
    pub fn disarm(&mut self) {
        // Release: what was counted is seen by whoever takes the activity away.
        self.shard.cells.lock.fetch_and(!TOKEN, Ordering::Release);
    }

    /// The cells, when they may be written.
    #[inline]
    fn counting(&mut self) -> &Cells {
        let cells = &self.shard.cells;
        // An armed shard's word is changed by its own thread only.
        if cells.lock.load(Ordering::Relaxed) != self.counting {
            self.begin_counting();
        }
        cells
    }

    #[cold]
    #[inline(never)]
    fn begin_counting(&mut self) {
        let cells = &self.shard.cells;
        // Acquire: what it may have is seen, if it is still active.
        let before = cells.lock.fetch_or(self.counting & TOKEN, Ordering::Acquire);
        if before & ACTIVE == 0 {
            self.shard.be_admitted(Sums::default());
        }
    }

    /// Counts a block if others have room for it that they do not use: no peak rises then.
    #[cold]
    #[inline(never)]
    fn allocate_shared(&self, pool: PoolSize, bytes: i64, requested: i64) -> bool {
        let Shard { cells, others, .. } = self.shard;
        cells.is_bound()
            && others.share(cells, Sums::of_block(pool, bytes, requested))
            && cells.allocate(pool, bytes, requested)
    }

    /// Gets room for a block that the shard has none for.
    #[cold]
    #[inline(never)]
    fn ask(&self, pool: PoolSize, bytes: i64, requested: i64) {
        let Shard { cells, others, .. } = self.shard;
        let block = Sums::of_block(pool, bytes, requested);
        if others.share(cells, block) {
            return;
        }
        // From here on the cells stand still. Release: what was counted is seen by whoever has the books.
        cells.lock.fetch_and(!ACTIVE, Ordering::Release);
        self.shard.be_admitted(block);
    }
}

impl Drop for ShardGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        let lock = &self.shard.cells.lock;
        let now = lock.load(Ordering::Relaxed);
        // Release: what the holder did is done for the next one, and what was counted for whoever takes the activity away.
        if now & TOKEN == 0 {
            // Somebody may be taking it away right now.
            lock.fetch_and(!HELD, Ordering::Release);
        } else {
            lock.store(now & ACTIVE, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests;
