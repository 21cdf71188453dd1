//! The streams that blocks of private pools belong to.

use std::collections::HashMap;

use cuda_mem_core::Stream;

use crate::primitive::{Mutex, lock};

/// By id, behind a lock in which no other is taken: who ends the stream of a heap asks for them too.
#[derive(Debug, Default)]
pub(in crate::caching) struct Streams(Mutex<HashMap<u64, Stream>>);

impl Streams {
    pub(super) fn add(&self, stream: &Stream) {
        lock(&self.0).entry(stream.id().as_raw()).or_insert_with(|| stream.clone());
    }

    pub(super) fn get(&self, id: u64) -> Option<Stream> {
        lock(&self.0).get(&id).cloned()
    }

    pub(in crate::caching) fn all(&self) -> Vec<Stream> {
        lock(&self.0).values().cloned().collect()
    }

    /// Those that there are at most so many handles to, with the one that is here.
    pub(super) fn left_to(&self, handles: usize) -> Vec<Stream> {
        let streams = lock(&self.0);
        streams.values().filter(|stream| stream.is_left_to(handles)).cloned().collect()
    }

    /// Whether there are at most `others` handles to a stream beside the one that may be here.
    pub(in crate::caching) fn is_left_to(&self, stream: &Stream, others: usize) -> bool {
        let streams = lock(&self.0);
        let here = usize::from(streams.contains_key(&stream.id().as_raw()));
        stream.is_left_to(others.saturating_add(here))
    }

    /// Takes streams out, to be dropped without a lock.
    pub(super) fn take(&self, mut is_wanted: impl FnMut(u64) -> bool) -> Vec<Stream> {
        lock(&self.0).extract_if(|id, _| is_wanted(*id)).map(|(_, stream)| stream).collect()
    }
}
