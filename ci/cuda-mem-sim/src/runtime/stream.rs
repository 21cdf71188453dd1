//! Streams: which one a handle means, and how they are made and destroyed.

use std::sync::Arc;

use cuda_mem_sys::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUresult, CUstream};

use super::context::Context;
use super::op::Outcome;
use super::queue::Queue;
use super::{HandleKind, Runtime, State, new_handle};
use crate::site::Site;

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Never used twice in a simulator. Others count for themselves, as other libraries do.
    pub(crate) id: u64,
    /// 1 for a legacy stream, 2 for a per-thread one.
    pub(crate) handle: usize,
    pub(crate) context: Arc<Context>,
    pub(crate) kind: Kind,
    /// Whether it ignores the legacy stream.
    pub(crate) non_blocking: bool,
    pub(crate) priority: i32,
    /// None for default streams.
    pub(crate) made: Option<Site>,
}

/// What kind of stream it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The default stream that a context's threads share.
    Legacy,
    /// The default stream of one thread.
    PerThread,
    Created,
    /// Not a stream of the program: the order of a whole context, for events that stand for all of it.
    Whole,
}

impl Stream {
    /// Whether it waits for the legacy stream and is waited for by it.
    pub(crate) fn is_blocking(&self) -> bool {
        !self.non_blocking && matches!(self.kind, Kind::PerThread | Kind::Created)
    }
}

impl Runtime {
    /// The stream that a handle means to a thread: the default streams are those of its current context.
    pub(crate) fn stream(&self, thread: u64, per_thread: bool, handle: CUstream) -> Outcome<Arc<Stream>> {
        let mut state = self.lock();
        if handle.is_null() || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD {
            let context = state.current(thread)?;
            let wants_own = handle == CU_STREAM_PER_THREAD || (handle.is_null() && per_thread);
            return state.default_stream(&context, wants_own.then_some(thread));
        }
        let known = state.streams.get(&handle.addr()).cloned();
        known.ok_or_else(|| {
            if self.driver.upgrade().is_some_and(|driver| driver.config.faults_on_ended_streams) {
                std::process::abort();
            }
            state.unknown(handle.addr(), CUresult::CUDA_ERROR_INVALID_HANDLE)
        })
    }

    /// Waits until a stream that was destroyed has done what it was given. The host has learnt nothing by that: nobody promises the wait.
    pub(crate) fn wait_for_the_end_of(&self, stream: &Stream) -> Outcome<()> {
        let state = self.lock();
        let end = state.queues.get(&stream.id).map(Queue::end);
        self.wait(state, end.as_slice()).map(drop)
    }

    /// Forgets a thread that has ended, and its default streams once they are empty.
    pub(crate) fn end_thread(&self, thread: u64) {
        let mut state = self.lock();
        state.threads.remove(&thread);
        let homes = state.contexts.values_mut();
        let streams: Vec<_> = homes.filter_map(|home| home.per_thread.remove(&thread)).collect();
        streams.iter().for_each(|stream| state.remove_stream(stream));
    }
}

impl State {
    /// The legacy stream of a context, or the default stream that a thread has in it.
    fn default_stream(&mut self, context: &Arc<Context>, thread: Option<u64>) -> Outcome<Arc<Stream>> {
        let home = self.contexts.get(&context.handle()).ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
        let Some(thread) = thread else { return Ok(Arc::clone(&home.legacy)) };
        if let Some(stream) = home.per_thread.get(&thread) {
            return Ok(Arc::clone(stream));
        }
        let stream = self.make_stream(Arc::clone(context), Kind::PerThread, false, 0, None);
        if let Some(home) = self.contexts.get_mut(&context.handle()) {
            home.per_thread.insert(thread, Arc::clone(&stream));
        }
        Ok(stream)
    }

    pub(crate) fn make_stream(
        &mut self,
        context: Arc<Context>,
        kind: Kind,
        non_blocking: bool,
        priority: i32,
        made: Option<Site>,
    ) -> Arc<Stream> {
        let handle = match kind {
            Kind::Legacy | Kind::Whole => CU_STREAM_LEGACY.addr(),
            Kind::PerThread => CU_STREAM_PER_THREAD.addr(),
            Kind::Created => new_handle(HandleKind::Stream),
        };
        self.last_stream += 1;
        let id = self.last_stream;
        let stream = Arc::new(Stream { id, handle, context, kind, non_blocking, priority, made });
        self.queues.insert(id, Queue::new(Arc::clone(&stream)));
        if kind == Kind::Created {
            self.streams.insert(handle, Arc::clone(&stream));
        }
        stream
    }

    /// Takes a stream's handle away; what it was given already is still done.
    pub(crate) fn remove_stream(&mut self, stream: &Stream) {
        self.streams.remove(&stream.handle);
        if let Some(queue) = self.queues.get_mut(&stream.id) {
            queue.abandoned = true;
        }
        self.drop_empty_queue(stream.id);
    }

    /// How many were destroyed before they had done what they were given.
    pub(crate) fn streams_that_end(&self) -> usize {
        let made = |queue: &&Queue| queue.abandoned && queue.stream.kind == Kind::Created;
        self.queues.values().filter(made).count()
    }

    /// The streams of a context, default ones included.
    pub(crate) fn streams_of(&self, context: &Context) -> Vec<Arc<Stream>> {
        let queues = self.queues.values().filter(|queue| queue.stream.context.id == context.id);
        queues.map(|queue| Arc::clone(&queue.stream)).collect()
    }
}
