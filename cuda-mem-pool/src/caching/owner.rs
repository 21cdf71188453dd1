//! Which stream a heap serves.
//!
//! A heap outlives its stream: blocks of it may be in use when that ends, and what is free in it is there for others. So the next stream that
//! comes for the first time takes it over, with all that is in it, once what the last one was given is done. For the heap it is then as if
//! it had been one stream all the time: whatever was freed before is behind nothing that still runs.

use std::sync::Arc;

use cuda_mem_core::{Error, Event, Stream, Uses};

use crate::primitive::{AtomicU64, Mutex, Ordering, lock, lock_over_calls};

/// No stream has this number.
const NOBODY: u64 = u64::MAX;

/// The stream that a heap serves, by its number without a lock.
#[derive(Debug)]
pub(super) struct Owner<S = Stream, E = Arc<Event>> {
    id: AtomicU64,
    state: Mutex<State<S, E>>,
}

#[derive(Debug)]
enum State<S, E> {
    Live(S),
    /// It is given no more work; what is known of the end of all that it was given.
    Ended(S, End<E>),
    /// The heap is no more.
    Closed,
}

/// Where the work of a stream ends that is given no more.
#[derive(Debug, Clone)]
pub(super) enum End<E> {
    /// All of it is done.
    Done,
    /// Behind all of it.
    At(E),
    /// Its thread ended while it was busy, and nobody can name it: a wait for the whole context tells.
    Lost,
}

impl<S: Clone, E: Clone> Owner<S, E> {
    pub(super) fn new(id: u64, stream: S) -> Self {
        Self { id: AtomicU64::new(id), state: Mutex::new(State::Live(stream)) }
    }

    /// Whether it serves the stream of this number. Whoever may use that stream is told right: it does not end while they do.
    #[inline]
    pub(super) fn is(&self, id: u64) -> bool {
        self.id.load(Ordering::Relaxed) == id
    }

    /// The stream, unless it has ended.
    pub(super) fn stream(&self) -> Option<S> {
        self.served().ok()
    }

    /// The stream, or where the work of the last one ends.
    pub(super) fn served(&self) -> Result<S, End<E>> {
        match &*lock(&self.state) {
            State::Live(stream) => Ok(stream.clone()),
            State::Ended(_, end) => Err(end.clone()),
            State::Closed => Err(End::Done),
        }
    }

    /// The stream, or the last one: for those who are told of it.
    pub(super) fn last(&self) -> Option<S> {
        match &*lock(&self.state) {
            State::Live(stream) | State::Ended(stream, _) => Some(stream.clone()),
            State::Closed => None,
        }
    }

    /// The stream of this number ends, if it is served here and `look`, which waits for nobody, finds where its work ends. `look` runs under the
    /// lock: a thread that gives the stream work, and finds it still served here afterwards, gave it before the end that `look` found.
    pub(super) fn end(&self, id: u64, look: impl FnOnce(&S) -> Option<End<E>>) -> bool {
        let mut state = lock_over_calls(&self.state);
        let State::Live(stream) = &*state else { return false };
        if !self.is(id) {
            return false;
        }
        let Some(end) = look(stream) else { return false };
        *state = State::Ended(stream.clone(), end);
        self.id.store(NOBODY, Ordering::Relaxed);
        true
    }

    /// Serves another stream, if the last one has ended and all its work is done; that one, to be dropped without a lock.
    pub(super) fn take_over(&self, id: u64, stream: &S, is_reached: impl FnOnce(&E) -> bool) -> Option<S> {
        if !self.is(NOBODY) {
            return None;
        }
        let mut state = lock_over_calls(&self.state);
        let is_done = match &*state {
            State::Ended(_, End::Done) => true,
            State::Ended(_, End::At(point)) => is_reached(point),
            State::Ended(_, End::Lost) | State::Live(_) | State::Closed => false,
        };
        if !is_done {
            return None;
        }
        self.id.store(id, Ordering::Relaxed);
        match std::mem::replace(&mut *state, State::Live(stream.clone())) {
            State::Live(last) | State::Ended(last, _) => Some(last),
            State::Closed => None,
        }
    }

    /// Whether the stream has ended, and is done.
    pub(super) fn has_ended(&self) -> bool {
        matches!(&*lock(&self.state), State::Ended(_, End::Done) | State::Closed)
    }

    /// The heap is no more. What is left of its stream goes here, whoever else may look.
    pub(super) fn close(&self) {
        let last = std::mem::replace(&mut *lock(&self.state), State::Closed);
        self.id.store(NOBODY, Ordering::Relaxed);
        drop(last);
    }
}

impl Owner {
    /// The thread ends whose default stream this is. In a thread-local's destructor: it asks the driver only what is answered at once, also
    /// beside a free that waits for the device (docs/measurements.md), which a record of an event is not. The memory of a stream that is
    /// busy, or cannot be asked, serves others once somebody has waited for the context.
    pub(super) fn end_with_thread(&self, id: u64) {
        // Where the driver may have left the thread already it cannot be asked.
        self.end(id, |stream| Some(if is_done(stream) { End::Done } else { End::Lost }));
    }

    /// Ends the stream if it is done and `is_left` says of its handles, while one is here, that nobody but the allocator has any.
    pub(super) fn end_if_left(&self, is_left: impl FnOnce(&Stream) -> bool) {
        self.end_left(self.id.load(Ordering::Relaxed), is_left);
    }

    /// Whether a stream that was served here last has ended, is done, and nobody but the allocator has it any more.
    pub(super) fn is_left(&self, stream: &Stream, is_left: impl Fn(&Stream) -> bool) -> bool {
        self.end_left(stream.id().as_raw(), &is_left)
            || matches!(&*lock(&self.state), State::Ended(last, End::Done) if last == stream && is_left(last))
    }

    /// The stream, if it is a thread's that ended while it was busy.
    pub(super) fn lost(&self) -> Option<Stream> {
        match &*lock(&self.state) {
            State::Ended(stream, End::Lost) => Some(stream.clone()),
            _ => None,
        }
    }

    /// All that a lost stream was given is known to be done. Another one may have taken its place meanwhile, and be lost too.
    pub(super) fn found_done(&self, lost: &Stream) {
        match &mut *lock(&self.state) {
            State::Ended(stream, end @ End::Lost) if stream == lost => *end = End::Done,
            _ => {}
        }
    }

    fn end_left(&self, id: u64, is_left: impl FnOnce(&Stream) -> bool) -> bool {
        self.end(id, |stream| (is_left(stream) && is_done(stream)).then_some(End::Done))
    }

    /// Waits for all that the stream, or the last one, was given.
    pub(super) fn wait(&self) -> cuda_mem_core::Result<()> {
        match self.served() {
            Ok(stream) => wait_for(&stream),
            Err(End::Done) => Ok(()),
            Err(End::At(point)) => point.synchronize(),
            Err(End::Lost) => Err(Error::WrongThread),
        }
    }
}

/// Whether a stream is known to be idle. One that captures was lent by its handle: asked, it would lose its capture.
pub(super) fn is_done(stream: &Stream) -> bool {
    !stream.is_capturing().unwrap_or(true) && stream.is_idle().unwrap_or(false)
}

/// Waits for all that a stream was given, by an event: a wait for the stream would end a capture that begins meanwhile.
pub(super) fn wait_for(stream: &Stream) -> cuda_mem_core::Result<()> {
    let uses = Uses::new();
    uses.record_stream(stream)?;
    uses.wait()
}

#[cfg(all(loom, test))]
mod models;
