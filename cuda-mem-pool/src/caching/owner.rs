//! Which stream a heap serves.
//!
//! A heap outlives its stream: blocks of it may be in use when that ends, and what is free in it is there for others. So the next stream that
//! comes for the first time takes it over, with all that is in it, once what the last one was given is done. For the heap it is then as if
//! it had been one stream all the time: whatever was freed before is behind nothing that still runs.

use std::sync::Arc;

use cuda_mem_core::{Error, Event, Stream, Uses};

use crate::primitive::{AtomicU64, Mutex, Ordering, lock, lock_over_calls};

/// No stream has this number.
const NO_STREAM: u64 = u64::MAX;

/// The stream that a heap serves, by its number without a lock.
#[derive(Debug)]
pub(super) struct Owner<S = Stream, E = Arc<Event>> {
    id: AtomicU64,
    /// The stream, as long as it may be given work.
    served: Mutex<Result<S, End<E>>>,
}

/// Where the work of a stream ends that is given no more.
#[derive(Debug, Clone)]
pub(super) enum End<E> {
    /// All of it is done.
    Done,
    /// Behind all of it.
    At(E),
    /// No thread can name the stream of this number, as one whose thread ended while it was busy: only a wait for the context ends this.
    Lost(u64),
}

impl<S: Clone, E: Clone> Owner<S, E> {
    pub(super) fn new(id: u64, stream: S) -> Self {
        Self { id: AtomicU64::new(id), served: Mutex::new(Ok(stream)) }
    }

    /// Whether it serves the stream of this number. The answer stays true while the caller may use the stream, which does not end then.
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
        lock(&self.served).clone()
    }

    /// The stream of this number ends, if it is served here and `look`, which must not wait, finds where its work ends; the stream, to be
    /// dropped without a lock. `look` runs under the lock: a thread that gives the stream work, and finds it still served here afterwards, gave
    /// it before the end that `look` found.
    pub(super) fn end(&self, id: u64, look: impl FnOnce(&S) -> Option<End<E>>) -> Option<S> {
        let mut served = lock_over_calls(&self.served);
        let stream = served.as_ref().ok().filter(|_| self.is(id))?;
        let end = look(stream)?;
        self.id.store(NO_STREAM, Ordering::Relaxed);
        std::mem::replace(&mut *served, Err(end)).ok()
    }

    /// Notes that the work of a stream that has ended is done, if `is_done` says so of its end.
    pub(super) fn settle(&self, is_done: impl FnOnce(&End<E>) -> bool) {
        let mut served = lock_over_calls(&self.served);
        if served.as_ref().is_err_and(is_done) {
            *served = Err(End::Done);
        }
    }

    /// Serves another stream, if the last one has ended and all its work is done.
    pub(super) fn take_over(&self, id: u64, stream: &S) -> bool {
        let mut served = lock(&self.served);
        let has_ended = matches!(&*served, Err(End::Done));
        if has_ended {
            self.id.store(id, Ordering::Relaxed);
            *served = Ok(stream.clone());
        }
        has_ended
    }

    /// The heap ends: its handle to the stream is dropped here, though the stream's thread may keep this value.
    pub(super) fn close(&self) {
        let last = std::mem::replace(&mut *lock(&self.served), Err(End::Done));
        self.id.store(NO_STREAM, Ordering::Relaxed);
        drop(last);
    }
}

impl Owner {
    /// The thread ends whose default stream this is. In a thread-local's destructor: it asks the driver only what is answered at once, also
    /// beside a free that waits for the device (docs/measurements.md), which a record of an event is not. The memory of a stream that is
    /// busy, or cannot be asked, serves others after a wait for the context.
    pub(super) fn end_with_thread(&self, id: u64) {
        // Where the driver may have left the thread already it cannot be asked.
        drop(self.end(id, |stream| Some(if is_done(stream) { End::Done } else { End::Lost(id) })));
    }

    /// Ends the stream if it is done and only the allocator has a handle to it, and looks whether one that has ended is done now. The stream,
    /// as of [`Owner::end`].
    pub(super) fn look_for_end(&self) -> Option<Stream> {
        let is_left = |stream: &Stream| stream.is_left_to(1) && is_done(stream);
        let ended = self.end(self.id.load(Ordering::Relaxed), |stream| is_left(stream).then_some(End::Done));
        self.settle(|end| matches!(end, End::At(point) if point.is_complete().unwrap_or(false)));
        ended
    }

    /// The stream, or where the work of the last one ends. A disowned value knows nothing of what another value of the stream was given since:
    /// that ends where all work of the context does, and is lost while no point can be made behind that, or only by a wait.
    pub(super) fn place(&self, waits: bool) -> Result<Stream, End<Arc<Event>>> {
        let stream = self.served()?;
        match stream.is_capturing() {
            Err(Error::Disowned) if !stream.is_guest() => {
                let context = stream.context();
                // Without this function the point would be a wait.
                let has_points = context.driver().table().cuCtxRecordEvent().is_ok();
                let point = (waits || has_points).then(|| context.point().ok()).flatten();
                Err(point.map_or(End::Lost(NO_STREAM), |point| End::At(Arc::new(point))))
            }
            _ => Ok(stream),
        }
    }

    /// Waits for all that the stream, or the last one, was given.
    pub(super) fn wait(&self) -> cuda_mem_core::Result<()> {
        match self.place(true) {
            Ok(stream) => wait_for(&stream),
            Err(End::Done) => Ok(()),
            Err(End::At(point)) => point.synchronize(),
            Err(End::Lost(_)) => Err(Error::WrongThread),
        }
    }
}

/// Whether a stream is known to be idle. One that captures was lent by its handle: asked, it would lose its capture.
fn is_done(stream: &Stream) -> bool {
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
