//! The thread that works ahead: it pins memory before requests for small blocks need it, and gives back large segments that fit
//! nothing, when no stream is busy: the driver waits for all of them.

use std::sync::{Arc, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::arena::Arena;
use super::heap;
use super::shared::Shared;
use crate::primitive::{Condvar, Mutex, lock};

/// How long it waits before it looks again whether no stream is busy.
const PAUSE: Duration = Duration::from_millis(50);

/// How long it waits for that in all. A program whose streams are never idle together would hold more and more.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Worker {
    signal: Arc<Signal>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The hand-shake with the thread.
#[derive(Debug, Default)]
pub(super) struct Signal {
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
pub(super) enum Task {
    Work,
    Poll,
    Stop,
}

impl Worker {
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
    pub(super) fn want(&self) {
        lock(&self.state).wanted = true;
        self.changed.notify_one();
    }

    pub(super) fn stop(&self) {
        lock(&self.state).stop = true;
        self.changed.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        lock(&self.state).stop
    }

    /// Waits for the next task. With an interval, that is to poll if nothing else comes meanwhile.
    pub(super) fn next(&self, poll_interval: Option<Duration>) -> Task {
        let mut state = lock(&self.state);
        loop {
            if state.stop {
                return Task::Stop;
            }
            if std::mem::take(&mut state.wanted) {
                return Task::Work;
            }
            let Some(interval) = poll_interval else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let waited = self.changed.wait_timeout(state, interval);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() && !woken.stop && !woken.wanted {
                return Task::Poll;
            }
            state = woken;
        }
    }
}

fn run(signal: &Signal, shared: &Weak<Shared>) {
    let interval = shared.upgrade().and_then(|shared| shared.options.poll_interval);
    // Since when there is something to give back that streams are in the way of.
    let mut busy_since: Option<Instant> = None;
    loop {
        let pause = if busy_since.is_some() { Some(interval.unwrap_or(PAUSE).min(PAUSE)) } else { interval };
        let task = signal.next(pause);
        let Some(shared) = shared.upgrade() else { return };
        match task {
            Task::Work => grow_ahead(&shared, &shared.arena(shared.options.numa_id)),
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

/// Pins a segment for small blocks before a request needs it.
fn grow_ahead(shared: &Shared, arena: &Arc<Arena>) {
    if !shared.runs_short(arena) {
        return;
    }
    // A request that misses meets a failure again, and returns it.
    if let Ok(segment) = shared.pin(arena, heap::segment_ahead(shared.figures.held()), 0) {
        arena.add_small(segment);
    }
}
