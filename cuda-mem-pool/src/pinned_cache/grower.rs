//! The thread that works ahead: it pins memory before requests for small blocks need it, and gives back large segments that fit
//! nothing, when no stream is busy: the driver waits for all of them.

use std::sync::{Arc, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::arena::Arena;
use super::shared::Shared;
use crate::engine::growth;
use crate::primitive::{Condvar, Mutex, lock};

/// How long it waits before it looks again whether no stream is busy.
const PAUSE: Duration = Duration::from_millis(50);

/// How long it waits for that in all. A program whose streams are never idle together would hold more and more.
const PATIENCE: Duration = Duration::from_secs(2);

/// The hand-shake with the thread.
#[derive(Debug, Default)]
pub(super) struct Grower {
    signal: Arc<Signal>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Signal {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wanted: bool,
    stop: bool,
}

/// What the thread is to do.
#[derive(Debug, PartialEq, Eq)]
enum Task {
    Work,
    Poll,
    Stop,
}

impl Grower {
    /// Has the thread look whether memory should be pinned ahead or given back.
    pub(super) fn want(&self, shared: &Arc<Shared>) {
        self.signal.want();
        self.start(shared);
    }

    /// Starts the thread, if it does not run.
    pub(super) fn start(&self, shared: &Arc<Shared>) {
        let mut thread = lock(&self.thread);
        if thread.is_none() && !self.signal.is_stopped() {
            let (signal, shared) = (Arc::clone(&self.signal), Arc::downgrade(shared));
            let builder = thread::Builder::new().name("pinned-cache".to_owned());
            // Without the thread, requests pin what they need themselves.
            *thread = builder.spawn(move || run(&signal, &shared)).ok();
        }
    }

    /// Ends the thread, and waits for that.
    pub(super) fn stop(&self) {
        self.signal.stop();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Signal {
    fn want(&self) {
        lock(&self.state).wanted = true;
        self.changed.notify_one();
    }

    fn stop(&self) {
        lock(&self.state).stop = true;
        self.changed.notify_all();
    }

    fn is_stopped(&self) -> bool {
        lock(&self.state).stop
    }

    fn next(&self, poll_interval: Option<Duration>) -> Task {
        let mut state = lock(&self.state);
        loop {
            if state.stop {
                return Task::Stop;
            }
            if std::mem::take(&mut state.wanted) {
                return Task::Work;
            }
            state = match poll_interval {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(interval) => {
                    let waited = self.changed.wait_timeout(state, interval);
                    let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() && !state.stop && !state.wanted {
                        return Task::Poll;
                    }
                    state
                }
            };
        }
    }
}

fn run(signal: &Signal, shared: &Weak<Shared>) {
    let interval = shared.upgrade().and_then(|shared| shared.options().poll_interval);
    // Since when there is something to give back that streams are in the way of.
    let mut busy_since: Option<Instant> = None;
    loop {
        let pause =
            busy_since.map_or(interval, |_| Some(interval.map_or(PAUSE, |interval| interval.min(PAUSE))));
        let task = signal.next(pause);
        let Some(shared) = shared.upgrade() else { return };
        match task {
            Task::Work => grow_ahead(&shared.arena(shared.options().numa_id)),
            Task::Poll => shared.poll(),
            Task::Stop => return,
        }
        if task == Task::Work || busy_since.is_some() {
            let patience = busy_since.is_none_or(|since| since.elapsed() < PATIENCE);
            let is_left = shared.is_surplus_left(patience);
            busy_since = is_left.then(|| busy_since.unwrap_or_else(Instant::now));
        }
    }
}

/// Whether so little is free for small blocks that a segment should be pinned ahead, and may be.
pub(super) fn is_due(arena: &Arena) -> bool {
    let shared = arena.shared();
    let options = shared.options();
    let held = usize::try_from(shared.counters().held.current().bytes).unwrap_or(usize::MAX);
    let ahead = growth::segment_ahead(held);
    let allowed = options.max_cached.is_none_or(|most| shared.cached().saturating_add(ahead) <= most);
    options.grow_ahead && arena.is_home() && allowed && growth::runs_short(arena.small_free(), held)
}

fn grow_ahead(arena: &Arc<Arena>) {
    if !is_due(arena) {
        return;
    }
    let held = usize::try_from(arena.shared().counters().held.current().bytes).unwrap_or(usize::MAX);
    // A failure here is nobody's: a request that misses meets it again, and tells it.
    if let Ok(segment) = arena.pin(growth::segment_ahead(held)) {
        arena.add_small(segment);
    }
}

#[cfg(all(loom, test))]
mod models {
    use super::*;
    use loom::sync::Arc;

    /// The thread sees each request and the end, in whatever moment they come, and never sleeps through one.
    #[test]
    fn no_request_is_slept_through() {
        loom::model(|| {
            let signal = Arc::new(Signal::default());
            let grower = loom::thread::spawn({
                let signal = Arc::clone(&signal);
                move || assert_eq!(signal.next(None), Task::Work)
            });
            signal.want();
            grower.join().unwrap();
        });
    }

    #[test]
    fn the_end_is_seen_beside_requests() {
        loom::model(|| {
            let signal = Arc::new(Signal::default());
            let grower = loom::thread::spawn({
                let signal = Arc::clone(&signal);
                move || while signal.next(None) != Task::Stop {}
            });
            let other = loom::thread::spawn({
                let signal = Arc::clone(&signal);
                move || signal.want()
            });
            signal.stop();
            assert!(signal.is_stopped());
            other.join().unwrap();
            grower.join().unwrap();
        });
    }
}
