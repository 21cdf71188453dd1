//! Who may touch which slot of the ring, and which part of it: the protocol, without the memory.
//!
//! A slot has one holder at a time, and [`Slot`] is the proof. The holder posts a load for it; threads, the holder
//! among them, claim the load's parts, no byte of it twice; when all parts are finished the holder has the slot back. A load
//! that is dropped is withdrawn: parts that nobody has claimed are never copied, and the drop returns when the claimed ones
//! are finished. So no thread works on a slot or on the caller's memory behind the caller's back.

use std::collections::VecDeque;
use std::io;
use std::mem::{self, ManuallyDrop};
use std::ops::Range;
use std::sync::PoisonError;
use std::thread::{self, JoinHandle};

use super::primitive::{Arc, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, look};
use crate::driver::fork;

/// The slots of one ring. `W` is what a thread needs to know to copy a part.
pub(super) struct Board<W> {
    state: Mutex<State<W>>,
    /// Told when there are parts to claim, and at the end.
    work: Condvar,
    /// Told when a load is finished.
    finished: Condvar,
    /// How often each of the two was told, for threads that look before they sleep.
    posts: AtomicUsize,
    finishes: AtomicUsize,
}

/// A board that several hold.
pub(super) type Shared<W> = Arc<Board<W>>;

struct State<W> {
    free: Vec<usize>,
    /// What was posted, by slot.
    loads: Vec<Option<Load<W>>>,
    /// The slots whose loads have parts to claim, in the order of posting.
    open: VecDeque<usize>,
    /// Who waits for a slot: first come, first served.
    queue: VecDeque<u64>,
    next_ticket: u64,
    /// How many slots were given out.
    granted: u64,
    /// How many threads sleep until there is work, and until a load is finished.
    idle: usize,
    watching: usize,
    closed: bool,
}

struct Load<W> {
    task: W,
    len: usize,
    part: usize,
    /// Where the first part starts that nobody has claimed.
    next: usize,
    /// How many parts are claimed and not finished.
    running: usize,
    failure: Option<Failure>,
}

/// Why a part could not be copied.
#[derive(Debug)]
pub(super) struct Failure {
    /// The first byte of the whole copy that is missing.
    pub(super) at: usize,
    pub(super) source: io::Error,
}

impl<W: Clone> Board<W> {
    pub(super) fn new(slots: usize) -> Arc<Self> {
        let state = State {
            free: (0..slots).rev().collect(),
            loads: (0..slots).map(|_| None).collect(),
            open: VecDeque::new(),
            queue: VecDeque::new(),
            next_ticket: 0,
            granted: 0,
            idle: 0,
            watching: 0,
            closed: false,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            work: Condvar::new(),
            finished: Condvar::new(),
            posts: AtomicUsize::new(0),
            finishes: AtomicUsize::new(0),
        })
    }

    /// The next part of any load, when there is one; `None` when the board is closed.
    pub(super) fn claim(&self) -> Option<Part<'_, W>> {
        let mut looked = false;
        let mut state = self.lock();
        loop {
            if let Some(part) = state.open.front().copied().and_then(|slot| self.cut(&mut state, slot)) {
                return Some(part);
            }
            if state.closed {
                return None;
            }
            if looked {
                state.idle = state.idle.saturating_add(1);
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle = state.idle.saturating_sub(1);
                looked = false;
            } else {
                let seen = self.posts.load(Ordering::Relaxed);
                drop(state);
                look(|| self.posts.load(Ordering::Relaxed) != seen);
                looked = true;
                state = self.lock();
            }
        }
    }

    /// Ends the threads.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.posts.fetch_add(1, Ordering::Relaxed);
        self.work.notify_all();
    }

    /// How many slots were given out so far: while the number stands still, nobody gets on.
    pub(super) fn granted(&self) -> u64 {
        self.lock().granted
    }

    fn cut(&self, state: &mut State<W>, slot: usize) -> Option<Part<'_, W>> {
        let load = state.loads.get_mut(slot)?.as_mut()?;
        if load.next >= load.len {
            return None;
        }
        let start = load.next;
        load.next = start.saturating_add(load.part).min(load.len);
        load.running = load.running.saturating_add(1);
        let part =
            Part { board: self, slot, task: load.task.clone(), range: start..load.next, failure: None };
        if load.next == load.len {
            state.open.retain(|open| *open != slot);
        }
        Some(part)
    }

    fn lock(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller's place among those who want slots. Dropped, it lets the others pass.
pub(super) struct Turn<W: Clone> {
    board: Arc<Board<W>>,
    ticket: Option<u64>,
}

impl<W: Clone> Turn<W> {
    pub(super) fn new(board: &Arc<Board<W>>) -> Self {
        Self { board: Arc::clone(board), ticket: None }
    }

    /// A slot, if one is free and nobody has waited for longer. If not, this waits from now on.
    pub(super) fn take(&mut self) -> Option<Slot<W>> {
        let mut state = self.board.lock();
        if state.queue.front().copied() == self.ticket
            && let Some(index) = state.free.pop()
        {
            state.queue.pop_front();
            self.ticket = None;
            state.granted = state.granted.wrapping_add(1);
            return Some(Slot { board: Arc::clone(&self.board), index });
        }
        if self.ticket.is_none() {
            let ticket = state.next_ticket;
            state.next_ticket = ticket.wrapping_add(1);
            state.queue.push_back(ticket);
            self.ticket = Some(ticket);
        }
        None
    }

    /// Gives the place up.
    pub(super) fn leave(&mut self) {
        if let Some(ticket) = self.ticket.take().filter(|_| !fork::forked()) {
            self.board.lock().queue.retain(|waiting| *waiting != ticket);
        }
    }
}

impl<W: Clone> Drop for Turn<W> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A slot, with its one holder. Dropped, it is free.
pub(super) struct Slot<W: Clone> {
    board: Arc<Board<W>>,
    index: usize,
}

impl<W: Clone> Slot<W> {
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Has `len` bytes of it copied, `part` of them at a time.
    pub(super) fn post(self, task: W, len: usize, part: usize) -> Posted<W> {
        let board = &self.board;
        let mut state = board.lock();
        let load = Load { task, len, part: part.max(1), next: 0, running: 0, failure: None };
        if let Some(place) = state.loads.get_mut(self.index) {
            *place = Some(load);
        }
        state.open.push_back(self.index);
        // One part is the caller's own.
        let wanted = len.div_ceil(part.max(1)).saturating_sub(1);
        let woken = wanted.min(state.idle);
        drop(state);
        board.posts.fetch_add(1, Ordering::Relaxed);
        (0..woken).for_each(|_| board.work.notify_one());
        Posted { slot: Some(self) }
    }
}

impl<W: Clone> Drop for Slot<W> {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that is not there.
        if !fork::forked() {
            self.board.lock().free.push(self.index);
        }
    }
}

/// A slot with a load that threads copy. Dropped, the load is withdrawn and the slot is free.
pub(super) struct Posted<W: Clone> {
    /// Taken out at the end.
    slot: Option<Slot<W>>,
}

impl<W: Clone> Posted<W> {
    /// A part for the caller to copy, if one is left.
    pub(super) fn claim(&self) -> Option<Part<'_, W>> {
        let slot = self.slot.as_ref()?;
        slot.board.cut(&mut slot.board.lock(), slot.index)
    }

    /// Whether no part is left or under way.
    pub(super) fn is_finished(&self) -> bool {
        self.slot.as_ref().is_none_or(|slot| slot.board.lock().is_finished(slot.index))
    }

    /// Returns when no part is under way any more. The caller has seen that none is left to claim.
    pub(super) fn wait(&self) {
        let Some(Slot { board, index }) = &self.slot else { return };
        let seen = board.finishes.load(Ordering::Relaxed);
        if !self.is_finished() {
            look(|| board.finishes.load(Ordering::Relaxed) != seen);
        }
        let mut state = board.lock();
        while !state.is_finished(*index) {
            state.watching = state.watching.saturating_add(1);
            state = board.finished.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.watching = state.watching.saturating_sub(1);
        }
    }

    /// The slot, after all of it was copied.
    pub(super) fn into_slot(mut self) -> Result<Slot<W>, Failure> {
        match (self.withdraw(), self.slot.take()) {
            (None, Some(slot)) => Ok(slot),
            (Some(failure), _) => Err(failure),
            // It is taken out here alone.
            (None, None) => Err(Failure { at: 0, source: io::ErrorKind::Other.into() }),
        }
    }

    /// Takes the load back; returns when no part of it is under way any more.
    fn withdraw(&self) -> Option<Failure> {
        // In a forked child the threads are not there that have parts of it.
        let Slot { board, index } = self.slot.as_ref().filter(|_| !fork::forked())?;
        board.lock().stop(*index);
        self.wait();
        let load = board.lock().loads.get_mut(*index)?.take();
        load?.failure
    }
}

impl<W: Clone> Drop for Posted<W> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl<W> State<W> {
    fn is_finished(&self, slot: usize) -> bool {
        let load = self.loads.get(slot).and_then(Option::as_ref);
        load.is_none_or(|load| load.next >= load.len && load.running == 0)
    }

    /// Leaves no part of a load to claim.
    fn stop(&mut self, slot: usize) {
        if let Some(load) = self.loads.get_mut(slot).and_then(Option::as_mut) {
            load.next = load.len;
        }
        self.open.retain(|open| *open != slot);
    }
}

/// Bytes of a load that one thread copies. Dropped, they are finished.
pub(super) struct Part<'b, W: Clone> {
    board: &'b Board<W>,
    slot: usize,
    task: W,
    range: Range<usize>,
    failure: Option<Failure>,
}

impl<W: Clone> Part<'_, W> {
    /// Copies it with `copy`. A failure ends the whole load.
    pub(super) fn copy(mut self, copy: impl FnOnce(&W, Range<usize>) -> Result<(), Failure>) {
        self.failure = copy(&self.task, self.range.clone()).err();
    }
}

impl<W: Clone> Drop for Part<'_, W> {
    fn drop(&mut self) {
        let mut state = self.board.lock();
        if self.failure.is_some() {
            state.stop(self.slot);
        }
        if let Some(load) = state.loads.get_mut(self.slot).and_then(Option::as_mut) {
            load.running = load.running.saturating_sub(1);
            let failure = self.failure.take().into_iter().chain(load.failure.take());
            // Parts are claimed in order: what lies before the first that failed was copied.
            load.failure = failure.min_by_key(|failure| failure.at);
        }
        if state.is_finished(self.slot) {
            let watched = state.watching > 0;
            drop(state);
            self.board.finishes.fetch_add(1, Ordering::Relaxed);
            if watched {
                self.board.finished.notify_all();
            }
        }
    }
}

/// Threads that copy parts until the board is closed. They make no driver call.
pub(super) struct Pool<W: Clone + Send + 'static> {
    board: Arc<Board<W>>,
    threads: ManuallyDrop<Vec<JoinHandle<()>>>,
}

impl<W: Clone + Send + 'static> Pool<W> {
    /// Starts `count` threads, each of which calls `work` for every part.
    pub(super) fn start(board: &Arc<Board<W>>, count: usize, work: fn(&Board<W>)) -> io::Result<Self> {
        let mut pool = Self { board: Arc::clone(board), threads: ManuallyDrop::new(Vec::new()) };
        for _ in 0..count {
            let board = Arc::clone(board);
            let name = "cuda-mem-stager".to_owned();
            pool.threads.push(thread::Builder::new().name(name).spawn(move || work(&board))?);
        }
        Ok(pool)
    }

    pub(super) fn len(&self) -> usize {
        self.threads.len()
    }
}

impl<W: Clone + Send + 'static> Drop for Pool<W> {
    fn drop(&mut self) {
        if fork::forked() {
            // The threads stayed with the parent: there is nobody to join.
            return;
        }
        self.board.close();
        // With its memory, which nothing else drops.
        for thread in mem::take(&mut *self.threads) {
            // It ends without a panic: what it calls has none.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
