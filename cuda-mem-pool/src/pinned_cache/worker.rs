//! The thread that gives back large segments that fit nothing, when no stream is busy: the driver waits for all of them.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::shared::Shared;
use crate::primitive::{Mutex, lock};

/// How long it waits before it looks again whether no stream is busy.
const PAUSE: Duration = Duration::from_millis(50);

/// How long it waits for that in all. A program whose streams are never idle together would hold more and more.
const PATIENCE: Duration = Duration::from_secs(2);

/// The thread, which ends when nothing is left to give back.
#[derive(Debug, Default)]
pub(super) struct Worker(Mutex<Option<JoinHandle<()>>>);

impl Worker {
    /// Has a thread give memory back, unless one does. Not behind [`stop`](Self::stop).
    pub(super) fn want(&self, shared: &Arc<Shared>) {
        let mut thread = lock(&self.0);
        if thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let (shared, began) = (Arc::downgrade(shared), Instant::now());
        let give_back = move || {
            while let Some(shared) = shared.upgrade()
                && shared.is_surplus_left(began.elapsed() < PATIENCE)
            {
                drop(shared);
                thread::park_timeout(PAUSE);
            }
        };
        // Without the thread, what fits nothing stays.
        *thread = thread::Builder::new().name("pinned-cache".to_owned()).spawn(give_back).ok();
    }

    /// Ends the thread, which is told to by the allocator's end, and waits for that.
    pub(super) fn stop(&self) {
        let ended = lock(&self.0).take();
        if let Some(thread) = ended
            && thread.thread().id() != thread::current().id()
        {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
