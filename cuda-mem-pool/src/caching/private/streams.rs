//! The streams that blocks of private pools belong to.

use std::collections::HashMap;

use cuda_mem_core::{Stream, forked};

use crate::caching::owner::Owner;
use crate::caching::thread_slots;
use crate::primitive::{Arc, Mutex, lock};

/// By id, behind a lock in which no other is taken: who ends the stream of a heap asks for them too.
#[derive(Debug, Default)]
pub(in crate::caching) struct Streams(Mutex<HashMap<u64, Known>>);

/// A stream, and for the default stream of a thread who knows whether that has ended.
#[derive(Debug)]
pub(super) struct Known {
    stream: Stream,
    thread: Option<Arc<Owner>>,
}

impl Known {
    fn new(stream: &Stream) -> Self {
        let thread = stream.is_per_thread().then(|| {
            let owner = Arc::new(Owner::new(stream.id().as_raw(), stream.clone()));
            thread_slots::end_with_thread(&owner, stream.id());
            owner
        });
        Self { stream: stream.clone(), thread }
    }

    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is(self.stream.id().as_raw()))
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        // In a forked child somebody may have had the lock who does not run there.
        if let Some(thread) = self.thread.take().filter(|_| !forked()) {
            thread.close();
        }
    }
}

impl Streams {
    /// A stream has a block.
    pub(super) fn add(&self, stream: &Stream) {
        let known = || Known::new(stream);
        let mut streams = lock(&self.0);
        let at = streams.entry(stream.id().as_raw()).or_insert_with(known);
        // A destructor that runs late in its thread has it come back.
        let before = at.has_ended().then(|| std::mem::replace(at, known()));
        drop(streams);
        drop(before);
    }

    /// A stream has memory that was on its way out.
    pub(super) fn keep(&self, stream: &Stream) {
        let known = || Known { stream: stream.clone(), thread: None };
        lock(&self.0).entry(stream.id().as_raw()).or_insert_with(known);
    }

    pub(super) fn get(&self, id: u64) -> Option<Stream> {
        lock(&self.0).get(&id).map(|known| known.stream.clone())
    }

    pub(in crate::caching) fn all(&self) -> Vec<Stream> {
        lock(&self.0).values().map(|known| known.stream.clone()).collect()
    }

    /// Those that there are at most so many handles to, with the one that is here.
    pub(super) fn left_to(&self, handles: usize) -> Vec<Stream> {
        let streams = lock(&self.0);
        let left = streams.values().map(|known| &known.stream).filter(|stream| stream.is_left_to(handles));
        left.cloned().collect()
    }

    /// Whether there are at most `others` handles to a stream beside the one that may be here.
    pub(in crate::caching) fn is_left_to(&self, stream: &Stream, others: usize) -> bool {
        let streams = lock(&self.0);
        let here = usize::from(streams.contains_key(&stream.id().as_raw()));
        stream.is_left_to(others.saturating_add(here))
    }

    /// The default streams of threads that have ended, done, by id.
    pub(super) fn ended(&self) -> Vec<u64> {
        let streams = lock(&self.0);
        streams.iter().filter(|(_, known)| known.has_ended()).map(|(id, _)| *id).collect()
    }

    /// Whether a stream is a thread's that has not ended.
    pub(super) fn is_in_use(&self, id: u64) -> bool {
        lock(&self.0).get(&id).is_some_and(|known| known.thread.is_some() && !known.has_ended())
    }

    /// Whether a stream is a thread's that has ended, done.
    pub(super) fn has_ended(&self, stream: &Stream) -> bool {
        lock(&self.0).get(&stream.id().as_raw()).is_some_and(Known::has_ended)
    }

    /// Takes streams out, to be dropped without a lock.
    pub(super) fn take(&self, mut is_wanted: impl FnMut(u64) -> bool) -> Vec<Known> {
        lock(&self.0).extract_if(|id, _| is_wanted(*id)).map(|(_, known)| known).collect()
    }
}
