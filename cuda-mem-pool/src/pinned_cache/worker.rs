//! The thread that gives back large segments that fit nothing, when no stream is busy: the driver waits for all of them.

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

/// The thread, once it was needed. It ends when nobody can send any more. One request stands for all that come before it is served.
#[derive(Debug, Default)]
pub(super) struct Worker(Mutex<Option<(SyncSender<()>, JoinHandle<()>)>>);

impl Worker {
    /// Has the thread look whether memory should be given back. Not behind [`stop`](Self::stop).
    pub(super) fn want(&self, shared: &Arc<Shared>) {
        let mut thread = lock(&self.0);
        if thread.is_none() {
            let ((sender, receiver), shared) = (sync_channel(1), Arc::downgrade(shared));
            let builder = thread::Builder::new().name("pinned-cache".to_owned());
            // Without the thread, what fits nothing stays.
            *thread = builder.spawn(move || run(&receiver, &shared)).ok().map(|thread| (sender, thread));
        }
        if let Some((requests, _)) = &*thread {
            let _ = requests.try_send(());
        }
    }

    /// Ends the thread, and waits for that.
    pub(super) fn stop(&self) {
        let ended = lock(&self.0).take();
        if let Some((requests, thread)) = ended
            && thread.thread().id() != thread::current().id()
        {
            drop(requests);
            let _ = thread.join();
        }
    }
}

fn run(requests: &Receiver<()>, shared: &Weak<Shared>) {
    while requests.recv().is_ok() {
        // Since when there is something to give back that streams are in the way of.
        let busy_since = Instant::now();
        while let Some(shared) = shared.upgrade()
            && shared.is_surplus_left(busy_since.elapsed() < PATIENCE)
        {
            drop(shared);
            let until = Instant::now() + PAUSE;
            // The next look serves what is asked for meanwhile.
            while let Some(left) = until.checked_duration_since(Instant::now()) {
                if requests.recv_timeout(left) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
        }
    }
}
