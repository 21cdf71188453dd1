//! Capture: streams that write down what they are given instead of doing it.
//!
//! A capture begins in one stream, its origin, and takes in every stream that waits for an event recorded in it. Whatever
//! cannot be written down ends it: the call fails, and from then on the capture is invalid until its origin ends it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_mem_sys::{CUevent, CUgraphNodeType, CUresult, CUstreamCaptureMode};

use super::context::Context;
use super::event::Last;
use super::graph::{Graph, Work};
use super::op::{Op, Outcome};
use super::stream::{Kind, Stream};
use super::{Runtime, State};
use crate::call::Call;

/// A capture under way.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) mode: CUstreamCaptureMode,
    /// The thread that began it.
    thread: u64,
    /// The stream that it began in.
    pub(crate) origin: u64,
    /// The handle of the graph that it writes.
    pub(crate) graph: usize,
    /// What the next node of each stream comes after.
    pub(crate) after: BTreeMap<u64, Vec<usize>>,
    pub(crate) is_valid: bool,
}

/// What an event recorded in a capture stands for.
#[derive(Debug, Clone)]
pub(crate) struct CapturedPoint {
    capture: u64,
    after: Vec<usize>,
}

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

impl Runtime {
    pub(crate) fn begin_capture(
        &self,
        call: &Call<'_>,
        stream: &Stream,
        mode: CUstreamCaptureMode,
    ) -> Outcome<()> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        if mode.0 > RELAXED.0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let mut state = self.lock();
        if stream.kind == Kind::Legacy {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if state.is_capturing(stream) {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        let graph = state.add_graph(Graph::new(call.site(), true));
        let id = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let after = BTreeMap::from([(stream.id, Vec::new())]);
        let capture = Capture { mode, thread: call.thread, origin: stream.id, graph, after, is_valid: true };
        state.captures.insert(id, capture);
        if let Some(queue) = state.queues.get_mut(&stream.id) {
            queue.capture = Some(id);
        }
        Ok(())
    }

    /// Ends the capture that began in a stream; gives the graph.
    pub(crate) fn end_capture(&self, thread: u64, stream: &Stream) -> Outcome<usize> {
        let mut state = self.lock();
        let id = state.capture_of(stream).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        let Some(capture) = state.captures.get(&id) else { return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE) };
        let is_wrong_thread = capture.mode != RELAXED && capture.thread != thread;
        if capture.origin != stream.id {
            state.invalidate(stream);
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let Some(capture) = state.captures.remove(&id) else {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        };
        for queue in state.queues.values_mut().filter(|queue| queue.capture == Some(id)) {
            queue.capture = None;
        }
        let joined = capture.after.get(&stream.id).cloned().unwrap_or_default();
        let is_joined = state.graphs.get(&capture.graph).is_some_and(|graph| graph.all_come_before(&joined));
        let failure = match (capture.is_valid, is_joined) {
            // It ends all the same.
            _ if is_wrong_thread => Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD),
            (true, true) => None,
            (false, _) => Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
            (true, false) => Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED),
        };
        match failure {
            None => {
                if let Some(graph) = state.graphs.get_mut(&capture.graph) {
                    graph.is_being_captured = false;
                }
                Ok(capture.graph)
            }
            Some(code) => {
                super::graph::remove_graph(state, capture.graph);
                Err(code)
            }
        }
    }

    /// Refuses calls that are unsafe during a capture, as far as the calling thread's mode and those of the captures say.
    pub(crate) fn forbid_unsafe_call(&self, thread: u64) -> Outcome<()> {
        let mut state = self.lock();
        let own_mode = state.thread(thread).capture_mode;
        let mut is_forbidden = false;
        for capture in state.captures.values_mut() {
            let minds = match own_mode {
                RELAXED => false,
                GLOBAL => capture.mode == GLOBAL || (capture.mode != RELAXED && capture.thread == thread),
                _ => capture.mode != RELAXED && capture.thread == thread,
            };
            if minds {
                capture.is_valid = false;
                is_forbidden = true;
            }
        }
        if is_forbidden { Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    pub(crate) fn is_capturing(&self, stream: &Stream) -> bool {
        self.lock().is_capturing(stream)
    }
}

impl State {
    pub(crate) fn capture_of(&self, stream: &Stream) -> Option<u64> {
        self.queues.get(&stream.id).and_then(|queue| queue.capture)
    }

    pub(crate) fn is_capturing(&self, stream: &Stream) -> bool {
        self.capture_of(stream).is_some()
    }

    /// Makes the capture that a stream takes part in invalid.
    pub(crate) fn invalidate(&mut self, stream: &Stream) {
        if let Some(capture) = self.capture_of(stream).and_then(|id| self.captures.get_mut(&id)) {
            capture.is_valid = false;
        }
    }

    /// Refuses use of a legacy stream while a stream that it would wait for captures: that would be a dependency which no
    /// graph can hold.
    pub(crate) fn refuse_implicit_use(&mut self, stream: &Stream) -> Outcome<()> {
        let capturing = self.captures_beside_legacy(stream);
        capturing.iter().for_each(|stream| self.invalidate(stream));
        if capturing.is_empty() { Ok(()) } else { Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) }
    }

    /// If this is a legacy stream, the streams that capture and that it would wait for.
    pub(crate) fn captures_beside_legacy(&self, stream: &Stream) -> Vec<Arc<Stream>> {
        if stream.kind != Kind::Legacy || self.captures.is_empty() {
            return Vec::new();
        }
        let capturing = self.queues.values().filter(|queue| {
            queue.capture.is_some()
                && queue.stream.context.id == stream.context.id
                && queue.stream.is_blocking()
        });
        capturing.map(|queue| Arc::clone(&queue.stream)).collect()
    }

    /// Refuses what a stream that captures cannot do, and ends its capture.
    pub(crate) fn refuse_if_capturing(&mut self, stream: &Stream) -> Outcome<()> {
        let Some(capture) = self.capture_of(stream).and_then(|id| self.captures.get_mut(&id)) else {
            return Ok(());
        };
        if !std::mem::replace(&mut capture.is_valid, false) {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }

    /// As [`refuse_if_capturing`](Self::refuse_if_capturing), for what concerns a whole context.
    pub(crate) fn refuse_capture_in(&mut self, context: &Context) -> Outcome<()> {
        self.streams_of(context).iter().try_for_each(|stream| self.refuse_if_capturing(stream))
    }

    /// The valid capture of a stream.
    fn valid_capture(&mut self, stream: &Stream) -> Outcome<&mut Capture> {
        let id = self.capture_of(stream).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        let capture = self.captures.get_mut(&id).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.is_valid { Ok(capture) } else { Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) }
    }

    /// Writes an operation down.
    pub(super) fn capture_op(&mut self, stream: &Stream, op: Op) -> Outcome<()> {
        let kind = op.kind;
        self.capture_work(stream, kind, Work::Op(op))
    }

    /// Writes down a node that comes after all that the stream was given.
    pub(super) fn capture_work(&mut self, stream: &Stream, kind: CUgraphNodeType, work: Work) -> Outcome<()> {
        let capture = self.valid_capture(stream)?;
        let (handle, after) = (capture.graph, capture.after.get(&stream.id).cloned().unwrap_or_default());
        let graph = self.graphs.get_mut(&handle).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        let node = graph.add(kind, after, work);
        self.valid_capture(stream)?.after.insert(stream.id, vec![node]);
        Ok(())
    }

    /// Records an event in a capture: as a node of the graph if asked for, else as a point to wait for within it.
    pub(super) fn capture_record(&mut self, stream: &Stream, event: CUevent, as_node: bool) -> Outcome<()> {
        if as_node {
            let work = Work::Record(event.addr());
            return self.capture_work(stream, CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD, work);
        }
        let after = self.valid_capture(stream)?.after.get(&stream.id).cloned().unwrap_or_default();
        let capture = self.capture_of(stream).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        if let Some(event) = self.events.get_mut(&event.addr()) {
            event.last = Last::Captured(CapturedPoint { capture, after });
        }
        Ok(())
    }

    /// Has a stream wait for a point in a capture, which takes it into that capture.
    pub(super) fn capture_wait(&mut self, stream: &Stream, point: &CapturedPoint) -> Outcome<()> {
        let own = self.capture_of(stream);
        if own.is_some() {
            self.valid_capture(stream)?;
        }
        if own.is_some_and(|own| own != point.capture) {
            self.invalidate(stream);
            if let Some(other) = self.captures.get_mut(&point.capture) {
                other.is_valid = false;
                return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE);
            }
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        }
        let Some(capture) = self.captures.get_mut(&point.capture) else {
            // The capture has ended, and the event stands for nothing any more.
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        if !capture.is_valid {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        if stream.kind == Kind::Legacy {
            capture.is_valid = false;
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        let after = capture.after.entry(stream.id).or_default();
        let all: BTreeSet<usize> = after.iter().chain(&point.after).copied().collect();
        *after = all.into_iter().collect();
        if let Some(queue) = self.queues.get_mut(&stream.id) {
            queue.capture = Some(point.capture);
        }
        Ok(())
    }

    /// The error of a wait on the host for an event that was recorded in a capture, which that ends.
    pub(super) fn refuse_captured_point(&mut self, point: &CapturedPoint) -> CUresult {
        match self.captures.get_mut(&point.capture) {
            Some(capture) => {
                capture.is_valid = false;
                CUresult::CUDA_ERROR_CAPTURED_EVENT
            }
            None => CUresult::CUDA_ERROR_INVALID_VALUE,
        }
    }

    /// Has a stream that captures wait for an event from outside: as a node if asked for, else that is an error.
    pub(super) fn capture_outside_wait(
        &mut self,
        stream: &Stream,
        event: CUevent,
        as_node: bool,
    ) -> Outcome<()> {
        self.valid_capture(stream)?;
        if as_node {
            let work = Work::Wait(event.addr());
            return self.capture_work(stream, CUgraphNodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT, work);
        }
        self.invalidate(stream);
        Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
    }
}
