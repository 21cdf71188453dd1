//! The queues of streams: what waits for what, and how far each one is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use cuda_mem_sys::CUresult;

use super::context::Context;
use super::op::{Op, Outcome, Run};
use super::stream::{Kind, Stream};
use super::{Runtime, State};
use crate::call::Call;
use crate::memory::misuse::Act;
use crate::order::Clock;
use crate::site::Site;

/// A place in a stream: it is reached when the stream has completed that many operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) stream: u64,
    pub(crate) count: u64,
}

/// What a stream was given and has not done yet.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) stream: Arc<Stream>,
    pub(super) tasks: VecDeque<Task>,
    /// How many operations it was given, and how many it has completed.
    pub(super) given: u64,
    pub(super) done: u64,
    /// Whether a worker runs the first task.
    pub(super) is_running: bool,
    /// What its next operation comes after.
    pub(super) clock: Clock,
    /// The capture that it takes part in.
    pub(crate) capture: Option<u64>,
    /// Whether the program has destroyed the stream.
    pub(super) abandoned: bool,
}

/// One operation in a queue.
#[derive(Debug)]
pub(super) struct Task {
    /// In the order of enqueueing over all streams.
    pub(super) ticket: u64,
    pub(super) after: Vec<Mark>,
    pub(super) run: Run,
    /// When it was first asked whether it is complete.
    pub(super) begun: Option<Instant>,
    /// When it is worth asking again.
    pub(super) not_before: Option<Instant>,
}

impl Queue {
    pub(crate) fn new(stream: Arc<Stream>) -> Self {
        Self {
            stream,
            tasks: VecDeque::new(),
            given: 0,
            done: 0,
            is_running: false,
            clock: Clock::default(),
            capture: None,
            abandoned: false,
        }
    }

    /// The place after all that the stream was given.
    pub(crate) fn end(&self) -> Mark {
        Mark { stream: self.stream.id, count: self.given }
    }
}

impl Runtime {
    /// Appends an operation to a stream's queue, or to the graph that the stream captures into.
    pub(crate) fn enqueue(&self, call: &Call<'_>, stream: &Arc<Stream>, op: Op) -> Outcome<()> {
        let mut state = self.lock();
        state.refuse_implicit_use(stream)?;
        if state.is_capturing(stream) {
            return state.capture_op(stream, op);
        }
        let Op { reads, writes, run, .. } = op;
        let clock = state.push(stream, run, &[], None).1;
        self.wake_workers(&mut state);
        drop(state);
        self.note_uses(call, &reads, &writes, clock, &call.site());
        Ok(())
    }

    /// As [`enqueue`](Self::enqueue), for an operation that the host waits for: no capture can hold it.
    pub(crate) fn enqueue_synchronous(&self, call: &Call<'_>, stream: &Arc<Stream>, op: Op) -> Outcome<()> {
        let mut state = self.lock();
        state.refuse_implicit_use(stream)?;
        state.refuse_if_capturing(stream)?;
        drop(state);
        self.enqueue(call, stream, op)
    }

    /// Checks what an operation does with memory against the order of all streams.
    pub(super) fn note_uses(
        &self,
        call: &Call<'_>,
        reads: &[std::ops::Range<u64>],
        writes: &[std::ops::Range<u64>],
        clock: Clock,
        site: &Site,
    ) {
        if !call.driver.config.finds_misuse || (reads.is_empty() && writes.is_empty()) {
            return;
        }
        let act = Act { clock, site: site.clone() };
        let mut memory = call.memory().lock();
        let reads = reads.iter().map(|range| (range, false));
        for (range, writes) in reads.chain(writes.iter().map(|range| (range, true))) {
            memory.note_use(range, writes, &act);
        }
    }

    /// The clock of an operation that were enqueued on `stream` now.
    pub(crate) fn stream_clock(&self, stream: &Stream) -> Clock {
        let state = self.lock();
        let (_, mut clock) = state.order_of_next(stream);
        let given = state.queues.get(&stream.id).map_or(0, |queue| queue.given);
        clock.advance(stream.id, given + 1);
        clock
    }

    /// Waits for all that a stream was given so far; the host then knows that it is complete.
    pub(crate) fn wait_for_stream(&self, stream: &Arc<Stream>) -> Outcome<()> {
        let mut state = self.lock();
        state.refuse_implicit_use(stream)?;
        state.refuse_if_capturing(stream)?;
        let (marks, clock) = state.end_of_stream(stream);
        state = self.wait(state, &marks)?;
        state.host_learns(&clock);
        drop(state);
        stream.context.check()
    }

    /// Waits for all work of a context.
    pub(crate) fn wait_for_context(&self, context: &Arc<Context>) -> Outcome<()> {
        let mut state = self.lock();
        let (marks, clock) = state.end_of_context(context);
        state = self.wait(state, &marks)?;
        state.host_learns(&clock);
        drop(state);
        context.check()
    }

    /// Whether a stream has done all that it was given; the host then knows it.
    pub(crate) fn is_idle(&self, stream: &Arc<Stream>) -> Outcome<bool> {
        let mut state = self.lock();
        state.refuse_implicit_use(stream)?;
        state.refuse_if_capturing(stream)?;
        stream.context.check()?;
        let (marks, clock) = state.end_of_stream(stream);
        let is_idle = marks.iter().all(|&mark| state.is_reached(mark));
        if is_idle {
            state.host_learns(&clock);
        }
        Ok(is_idle)
    }
}

impl State {
    /// Whether a stream has come to a place.
    pub(crate) fn is_reached(&self, mark: Mark) -> bool {
        self.queues.get(&mark.stream).is_none_or(|queue| queue.done >= mark.count)
    }

    /// What the next operation of a stream comes after, besides the stream's own: the legacy stream for a blocking one, all
    /// blocking ones for the legacy one, and what the whole context was told to wait for.
    pub(super) fn order_of_next(&self, stream: &Stream) -> (Vec<Mark>, Clock) {
        let mut marks = Vec::new();
        let mut clock = self.queues.get(&stream.id).map(|queue| queue.clock.clone()).unwrap_or_default();
        clock.join(&self.host);
        let Some(home) = self.contexts.get(&stream.context.handle()) else { return (marks, clock) };
        if stream.is_blocking() {
            if let Some(legacy) = self.queues.get(&home.legacy.id) {
                marks.push(legacy.end());
                clock.join(&legacy.clock);
            }
        } else if matches!(stream.kind, Kind::Legacy | Kind::Whole) {
            let whole = stream.kind == Kind::Whole;
            if whole {
                clock.join(&home.gone);
            }
            for queue in self.queues.values() {
                let other = &queue.stream;
                if other.context.id == stream.context.id
                    && other.id != stream.id
                    && (whole || other.is_blocking())
                {
                    marks.push(queue.end());
                    clock.join(&queue.clock);
                }
            }
        }
        marks.extend(&home.barrier);
        clock.join(&home.barrier_clock);
        marks.retain(|&mark| !self.is_reached(mark));
        (marks, clock)
    }

    /// The end of what a stream was given so far.
    fn end_of_stream(&self, stream: &Stream) -> (Vec<Mark>, Clock) {
        let queue = self.queues.get(&stream.id);
        let (mut marks, clock) = match stream.kind {
            // To wait for the legacy stream is to wait for all that its next operation would wait for.
            Kind::Legacy => self.order_of_next(stream),
            _ => (Vec::new(), queue.map(|queue| queue.clock.clone()).unwrap_or_default()),
        };
        marks.extend(queue.map(Queue::end));
        (marks, clock)
    }

    /// The ends of all streams of a context.
    pub(super) fn end_of_context(&self, context: &Context) -> (Vec<Mark>, Clock) {
        let mut clock = Clock::default();
        let mut marks = Vec::new();
        for queue in self.queues.values().filter(|queue| queue.stream.context.id == context.id) {
            marks.push(queue.end());
            clock.join(&queue.clock);
        }
        if let Some(home) = self.contexts.get(&context.handle()) {
            clock.join(&home.gone);
        }
        (marks, clock)
    }

    /// Appends to a stream's queue something that also comes after `after`; gives its place and its clock.
    pub(super) fn push(
        &mut self,
        stream: &Arc<Stream>,
        run: Run,
        after: &[Mark],
        knows: Option<&Clock>,
    ) -> (Mark, Clock) {
        let (mut marks, mut clock) = self.order_of_next(stream);
        marks.extend(after.iter().copied().filter(|&mark| !self.is_reached(mark)));
        if let Some(knows) = knows {
            clock.join(knows);
        }
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        // A context that is gone has no queues; its work is gone with it.
        let Some(queue) = self.queues.get_mut(&stream.id) else {
            return (Mark { stream: stream.id, count: 0 }, clock);
        };
        queue.given += 1;
        clock.advance(stream.id, queue.given);
        queue.clock = clock.clone();
        queue.tasks.push_back(Task { ticket, after: marks, run, begun: None, not_before: None });
        let end = queue.end();
        if self.settle_one(stream.id) {
            self.settle();
        }
        (end, clock)
    }

    /// Completes what is at the head of queues and takes no time, until no queue moves any more.
    pub(super) fn settle(&mut self) {
        let mut moved = true;
        while moved {
            let waiting = self.queues.iter().filter(|(_, queue)| !queue.tasks.is_empty());
            let waiting: Vec<u64> = waiting.map(|(&id, _)| id).collect();
            moved = false;
            for id in waiting {
                moved |= self.settle_one(id);
            }
        }
    }

    /// As [`settle`](Self::settle), for one queue; whether it moved.
    fn settle_one(&mut self, id: u64) -> bool {
        let mut moved = false;
        loop {
            let Some(queue) = self.queues.get(&id) else { return moved };
            let Some(task) = queue.tasks.front() else { break };
            // After an error nothing of the context runs any more, but all of it counts as done.
            let is_void = queue.stream.context.check().is_err();
            if queue.is_running || !(is_void || task.run.is_instant() && self.may_run(task)) {
                return moved;
            }
            if let Run::Reach(point) = &task.run {
                point.reach();
            }
            if let Some(queue) = self.queues.get_mut(&id) {
                queue.tasks.pop_front();
                queue.done += 1;
            }
            moved = true;
        }
        self.drop_empty_queue(id);
        moved
    }

    pub(super) fn may_run(&self, task: &Task) -> bool {
        task.after.iter().all(|&mark| self.is_reached(mark))
    }

    /// Forgets a queue that is empty and will stay so.
    pub(super) fn drop_empty_queue(&mut self, id: u64) {
        if self.queues.get(&id).is_some_and(|queue| queue.abandoned && queue.tasks.is_empty()) {
            let Some(queue) = self.queues.remove(&id) else { return };
            if let Some(home) = self.contexts.get_mut(&queue.stream.context.handle()) {
                home.gone.join(&queue.clock);
            }
        }
    }

    /// Work of a stream failed: its device is lost, and with it every context there.
    pub(super) fn lose_device_of(&mut self, stream: u64, code: CUresult) {
        let Some(device) = self.queues.get(&stream).map(|queue| queue.stream.context.device) else { return };
        self.lost.entry(device).or_insert(code);
        let contexts = self.contexts.values().map(|home| &home.context);
        contexts.filter(|context| context.device == device).for_each(|context| context.fail(code));
    }
}
