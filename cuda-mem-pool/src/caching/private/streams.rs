//! The streams that blocks of private pools belong to, and the memory of those that nobody else has any more.
//!
//! Such a stream is given nothing else, so once it is done another stream can have all that it had, also allocated blocks: as
//! with the heaps of the default pool it is as if it had been one stream all the time. What a graph may use stays as it is.

use std::collections::{HashMap, HashSet};

use cuda_mem_core::{Stream, forked};

use super::PrivatePools;
use super::blocks::{Found, Routed};
use crate::caching::owner::{Owner, is_done};
use crate::caching::streams::end_with_thread;
use crate::error::Result;
use crate::primitive::{Arc, Mutex, lock, lock_over_calls};

/// Streams by id, behind a lock in which only owners of threads' streams are locked: who ends the stream of a heap asks for them too.
#[derive(Debug, Default)]
pub(in crate::caching) struct PoolStreams {
    known: Mutex<HashMap<u64, KnownStream>>,
    /// Held by the thread that looks for streams that nobody has: its handles would count as somebody's.
    looking: Mutex<()>,
}

/// A stream, and for the default stream of a thread who knows whether that has ended.
#[derive(Debug)]
pub(super) struct KnownStream {
    stream: Stream,
    thread: Option<Arc<Owner>>,
}

impl KnownStream {
    fn new(stream: &Stream) -> Self {
        let thread = stream.is_per_thread().then(|| {
            let owner = Arc::new(Owner::new(stream.id().as_raw(), stream.clone()));
            end_with_thread(&owner, stream.id());
            owner
        });
        Self { stream: stream.clone(), thread }
    }

    /// Whether its thread has ended, and it is done.
    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| thread.has_ended())
    }

    /// Whether its thread has ended, or is about to.
    fn is_over(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is(self.stream.id().as_raw()))
    }
}

impl Drop for KnownStream {
    fn drop(&mut self) {
        // In a forked child somebody may have had the lock who does not run there.
        if let Some(thread) = self.thread.take().filter(|_| !forked()) {
            thread.close();
        }
    }
}

impl PoolStreams {
    pub(super) fn add(&self, stream: &Stream) {
        let known = || KnownStream::new(stream);
        let mut streams = lock(&self.known);
        let at = streams.entry(stream.id().as_raw()).or_insert_with(known);
        // A destructor that runs late in its thread has it come back.
        let before = at.is_over().then(|| std::mem::replace(at, known()));
        drop(streams);
        drop(before);
    }

    pub(super) fn get(&self, id: u64) -> Option<Stream> {
        lock(&self.known).get(&id).map(|known| known.stream.clone())
    }

    pub(in crate::caching) fn owners(&self) -> Vec<Arc<Owner>> {
        lock(&self.known).values().filter_map(|known| known.thread.clone()).collect()
    }

    pub(in crate::caching) fn all(&self) -> Vec<Stream> {
        lock(&self.known).values().map(|known| known.stream.clone()).collect()
    }

    /// The streams that there are at most so many handles to, with the one that is here.
    pub(super) fn with_at_most(&self, handles: usize) -> Vec<Stream> {
        let streams = lock(&self.known);
        let left = streams.values().map(|known| &known.stream).filter(|stream| stream.is_left_to(handles));
        left.cloned().collect()
    }

    /// Whether there are at most `others` handles to a stream beside the one that may be here.
    pub(in crate::caching) fn is_left_to(&self, stream: &Stream, others: usize) -> bool {
        let streams = lock(&self.known);
        let here = usize::from(streams.contains_key(&stream.id().as_raw()));
        stream.is_left_to(others.saturating_add(here))
    }

    /// Whether a stream is a thread's that has ended, done.
    pub(super) fn has_ended(&self, stream: &Stream) -> bool {
        lock(&self.known).get(&stream.id().as_raw()).is_some_and(KnownStream::has_ended)
    }

    /// Takes streams out, to be dropped without a lock.
    pub(super) fn take(&self, mut is_wanted: impl FnMut(u64) -> bool) -> Vec<KnownStream> {
        lock(&self.known).extract_if(|id, _| is_wanted(*id)).map(|(_, known)| known).collect()
    }
}

impl PrivatePools<'_> {
    /// Looks again with the pool's memory of each stream that nobody has, until that will do. Waits for nothing.
    pub(super) fn look_at_abandoned(self, routed: Routed<'_>) -> Result<Option<Found>> {
        let abandoned = self.abandoned_streams();
        let found = abandoned.iter().find_map(|&from| {
            let found = self.adopt(routed, from).then(|| self.look(routed))?;
            (!matches!(found, Ok(Found::Miss(..)))).then_some(found)
        });
        self.forget_without_memory(&abandoned);
        found.transpose()
    }

    /// Forgets those of these streams that have no memory. None while a segment is out: it may be theirs, and come back.
    pub(super) fn forget_without_memory(self, abandoned: &[u64]) {
        if abandoned.is_empty() {
            return;
        }
        let state = lock(&self.private.state);
        if state.pools.iter().any(|(_, pool)| pool.is_leaving()) {
            return;
        }
        let with_memory: HashSet<u64> = state.segments().map(|(_, segment)| segment.stream).collect();
        let gone = self.private.streams.take(|id| abandoned.contains(&id) && !with_memory.contains(&id));
        drop(state);
        drop(gone);
    }

    /// The streams, by id, that are done and nobody else has any more, but for late destructors of their threads.
    pub(super) fn abandoned_streams(self) -> Vec<u64> {
        let known = &self.private.streams;
        let _alone = lock_over_calls(&known.looking);
        // One handle is with the pools and one with a heap, if the stream has any.
        let streams = known.with_at_most(2);
        let is_abandoned = |stream: &Stream| match self.shared.streams.slot_of(stream.id()) {
            Some(slot) => slot.owner.is_left(stream, |own| known.is_left_to(own, 2)),
            None => known.is_left_to(stream, 1) && is_done(stream),
        };
        let abandoned = streams.iter().filter(|stream| is_abandoned(stream));
        let mut ids: Vec<u64> = abandoned.map(|stream| stream.id().as_raw()).collect();
        let streams = lock(&known.known);
        ids.extend(streams.iter().filter(|(_, known)| known.has_ended()).map(|(id, _)| *id));
        ids
    }

    /// Gives a request's stream the memory that another has in the pool; whether there was any.
    fn adopt(self, routed: Routed<'_>, from: u64) -> bool {
        let Routed { pool: id, stream, .. } = routed;
        let to = stream.id().as_raw();
        let mut state = lock(&self.private.state);
        let is_in_use = lock(&self.private.streams.known)
            .get(&from)
            .is_some_and(|known| known.thread.is_some() && !known.has_ended());
        let Ok(pool) = state.pools.get_mut(id) else { return false };
        if pool.is_captured || is_in_use || !pool.heap.segments().any(|segment| segment.stream == from) {
            return false;
        }
        pool.heap.adopt(from, to);
        self.private.streams.add(stream);
        true
    }
}
