//! The thread that gives back large segments that fit nothing, when no stream is busy: the driver waits for all of them. It looks for blocks
//! whose streams are done too, if it is to.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::shared::Shared;
use crate::primitive::{Mutex, lock};

/// How long it waits before it looks again whether no stream is busy.
const PAUSE: Duration = Duration::from_millis(50);

/// How long it waits for that in all. A program whose streams are never idle together would hold more and more.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Worker(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_stopped: bool,
    /// The thread, which ends when nobody can send any more. One request stands for all that come before it is served.
    thread: Option<(SyncSender<()>, JoinHandle<()>)>,
}

impl Worker {
    /// Has the thread look whether memory should be given back.
    pub(super) fn want(&self, shared: &Arc<Shared>) {
        self.start(shared);
        if let Some((requests, _)) = &lock(&self.0).thread {
            let _ = requests.try_send(());
        }
    }

    /// Starts the thread, if it does not run.
    pub(super) fn start(&self, shared: &Arc<Shared>) {
        let mut state = lock(&self.0);
        if state.thread.is_none() && !state.is_stopped {
            let ((sender, receiver), shared) = (sync_channel(1), Arc::downgrade(shared));
            let builder = thread::Builder::new().name("pinned-cache".to_owned());
            // Without the thread, what fits nothing stays.
            state.thread = builder.spawn(move || run(&receiver, &shared)).ok().map(|thread| (sender, thread));
        }
    }

    /// Ends the thread, and waits for that.
    pub(super) fn stop(&self) {
        let mut state = lock(&self.0);
        state.is_stopped = true;
        let ended = state.thread.take();
        drop(state);
        if let Some((requests, thread)) = ended
            && thread.thread().id() != thread::current().id()
        {
            drop(requests);
            let _ = thread.join();
        }
    }
}

fn run(requests: &Receiver<()>, shared: &Weak<Shared>) {
    let interval = shared.upgrade().and_then(|shared| shared.options.poll_interval);
    // Since when there is something to give back that streams are in the way of.
    let mut busy_since: Option<Instant> = None;
    loop {
        let pause = if busy_since.is_some() { Some(interval.unwrap_or(PAUSE).min(PAUSE)) } else { interval };
        let request = match pause {
            Some(pause) => requests.recv_timeout(pause),
            None => requests.recv().map_err(RecvTimeoutError::from),
        };
        let Some(shared) = shared.upgrade() else { return };
        match request {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => shared.poll(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if request.is_ok() || busy_since.is_some() {
            let patience = busy_since.is_none_or(|since| since.elapsed() < PATIENCE);
            let is_left = shared.is_surplus_left(patience);
            busy_since = is_left.then(|| busy_since.unwrap_or_else(Instant::now));
        }
    }
}
