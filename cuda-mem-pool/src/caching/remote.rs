//! Frees from threads that do not have the heap's lock.
//!
//! Each thread has a ring for each heap that it frees to: a free takes two plain stores, a third one after a drain, and no
//! atomic exchange. The thread that holds the heap's lock drains the rings of all threads.

use std::cell::RefCell;

use super::slot::Apart;
use crate::primitive::{Arc, AtomicBool, AtomicU32, Mutex, Ordering, lock, try_lock, unique};

/// How many frees of one thread wait for a drain. A power of two.
const DEPTH: usize = if cfg!(all(loom, test)) { 2 } else { 128 };

/// There is no room: the caller takes the heap's lock, drains, and frees by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// The blocks of one heap that other threads have freed, by record.
#[derive(Debug)]
pub(super) struct RemoteFrees {
    id: u64,
    rings: Mutex<Vec<Arc<Ring>>>,
    /// Something was pushed since the last drain began.
    pending: AtomicBool,
}

#[derive(Debug)]
struct Ring {
    /// How many were pushed; written by the ring's thread. Counters wrap.
    pushed: Apart<AtomicU32>,
    /// How many were drained; written by the thread that drains. Counters wrap.
    drained: Apart<AtomicU32>,
    records: [AtomicU32; DEPTH],
}

#[derive(Debug)]
pub(super) struct Pusher {
    ring: Arc<Ring>,
    pushed: u32,
    /// At most what [`Ring::drained`] has.
    drained: u32,
}

/// The rings that a thread pushes to, by heap.
struct Pushers {
    /// The one that was asked for last: a thread that stays with one heap finds it with one comparison.
    recent: usize,
    entries: Vec<(u64, Pusher)>,
}

thread_local! {
    static LOCAL: RefCell<Pushers> = const { RefCell::new(Pushers { recent: 0, entries: Vec::new() }) };
}

impl Pushers {
    #[inline]
    fn get(&mut self, heap: u64) -> Option<&mut Pusher> {
        if self.entries.get(self.recent).is_none_or(|(id, _)| *id != heap) {
            self.recent = self.position(heap)?;
        }
        self.entries.get_mut(self.recent).map(|(_, pusher)| pusher)
    }

    #[inline(never)]
    fn position(&self, heap: u64) -> Option<usize> {
        self.entries.iter().position(|(id, _)| *id == heap)
    }
}

impl RemoteFrees {
    pub(super) fn new() -> Self {
        Self { id: unique(), rings: Mutex::new(Vec::new()), pending: AtomicBool::new(false) }
    }

    /// Leaves a free for the next drain.
    #[inline]
    pub(super) fn push(&self, record: u32) -> Result<(), Full> {
        let pushed = LOCAL.try_with(|local| {
            let mut pushers = local.try_borrow_mut().map_err(|_| Full)?;
            match pushers.get(self.id) {
                Some(pusher) => pusher.push(record),
                None => self.join(&mut pushers, record),
            }
        });
        // At its end a thread has no rings any more.
        pushed.unwrap_or(Err(Full))?;
        self.note();
        Ok(())
    }

    /// Calls `done` once for every free that was pushed before, by any thread, and drops the rings of threads that have
    /// ended. `done` must not push to this heap.
    pub(super) fn drain(&self, mut done: impl FnMut(u32)) {
        // Before looking: what is pushed later is noted again.
        self.pending.store(false, Ordering::Relaxed);
        lock(&self.rings).retain_mut(|ring| {
            // Asked before it is emptied: the last push came before the end.
            let ended = Arc::get_mut(ring).is_some();
            ring.drain(&mut done);
            !ended
        });
    }

    /// Whether there is nothing to drain: a hint, which may miss a push during the last drain. `drain` misses none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        !self.pending.load(Ordering::Relaxed)
    }

    /// Whether a drain would find a free that was pushed before this call; true also while another thread drains. Does not wait for it.
    pub(super) fn has_any(&self) -> bool {
        try_lock(&self.rings).is_none_or(|rings| rings.iter().any(|ring| ring.has_any()))
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        lock(&self.rings).len() * size_of::<Ring>()
    }

    #[inline]
    fn note(&self) {
        // Read first: between two drains all threads read this cache line, and one of them has written it.
        if !self.pending.load(Ordering::Relaxed) {
            self.pending.store(true, Ordering::Relaxed);
        }
    }

    #[cold]
    fn join(&self, pushers: &mut Pushers, record: u32) -> Result<(), Full> {
        // Those of heaps that have ended.
        pushers.entries.retain_mut(|(_, pusher)| Arc::get_mut(&mut pusher.ring).is_none());
        let mut pusher = self.pusher();
        let pushed = pusher.push(record);
        pushers.recent = pushers.entries.len();
        pushers.entries.push((self.id, pusher));
        pushed
    }

    pub(super) fn pusher(&self) -> Pusher {
        let ring = Arc::new(Ring::new());
        lock(&self.rings).push(Arc::clone(&ring));
        Pusher { ring, pushed: 0, drained: 0 }
    }
}

impl Pusher {
    #[inline]
    pub(super) fn push(&mut self, record: u32) -> Result<(), Full> {
        if self.pushed.wrapping_sub(self.drained) as usize >= DEPTH {
            // Acquire: what was drained was read before it is overwritten.
            self.drained = self.ring.drained.0.load(Ordering::Acquire);
            if self.pushed.wrapping_sub(self.drained) as usize >= DEPTH {
                return Err(Full);
            }
        }
        self.ring.record(self.pushed).store(record, Ordering::Relaxed);
        self.pushed = self.pushed.wrapping_add(1);
        // Release: a thread that sees the count sees the record, and all that was done before the free.
        self.ring.pushed.0.store(self.pushed, Ordering::Release);
        Ok(())
    }
}

impl Ring {
    fn new() -> Self {
        let line = || Apart(AtomicU32::new(0));
        Self { pushed: line(), drained: line(), records: std::array::from_fn(|_| AtomicU32::new(0)) }
    }

    #[inline]
    fn record(&self, number: u32) -> &AtomicU32 {
        &self.records[number as usize % DEPTH]
    }

    fn has_any(&self) -> bool {
        // A push that happens before this call is seen.
        self.pushed.0.load(Ordering::Acquire) != self.drained.0.load(Ordering::Relaxed)
    }

    /// Called by one thread at a time.
    fn drain(&self, done: &mut impl FnMut(u32)) {
        let pushed = self.pushed.0.load(Ordering::Acquire);
        let mut drained = self.drained.0.load(Ordering::Relaxed);
        while drained != pushed {
            let record = self.record(drained).load(Ordering::Relaxed);
            drained = drained.wrapping_add(1);
            // Release: the record was read. Before `done`, which may panic: nothing is handed out twice.
            self.drained.0.store(drained, Ordering::Release);
            done(record);
        }
    }
}

#[cfg(test)]
#[path = "remote/tests.rs"]
mod tests;
