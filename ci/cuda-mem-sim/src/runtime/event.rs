//! Events: points in streams.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cuda_mem_sys::{CUevent, CUevent_flags, CUresult};

use super::capture::CapturedPoint;
use super::context::Context;
use super::op::{Outcome, Run};
use super::queue::Mark;
use super::stream::Stream;
use super::{HandleKind, Runtime, State, new_handle};
use crate::call::Call;
use crate::driver::Driver;
use crate::memory::shared::SharedPage;
use crate::order::Clock;
use crate::site::Site;

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: Arc<Context>,
    pub(crate) flags: u32,
    pub(crate) made: Site,
    pub(crate) last: Last,
    /// Where other processes see it, if it is for them or theirs.
    shared: Option<Arc<SharedPage>>,
    /// Whether another process made it.
    is_opened: bool,
}

/// What an event was last recorded as.
#[derive(Debug, Clone)]
pub(crate) enum Last {
    Never,
    At(Point),
    /// In a stream that captures: it stands for nodes of a graph and for no time.
    Captured(CapturedPoint),
}

/// A point in a stream.
#[derive(Debug, Clone)]
pub(crate) struct Point {
    pub(crate) mark: Mark,
    pub(crate) clock: Clock,
    /// Whether and when it was reached.
    pub(crate) reached: Arc<Reached>,
}

/// What is noted when a stream comes to a point.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    time: OnceLock<Instant>,
    /// The page of an event that other processes see, and the number of this record there.
    shared: Option<(Arc<SharedPage>, u64)>,
}

impl Reached {
    pub(super) fn reach(&self) {
        self.time.get_or_init(Instant::now);
        if let Some((page, number)) = &self.shared {
            page.reach(*number);
        }
    }
}

/// How long the host sleeps between two looks at an event that another process records.
const PAUSE: Duration = Duration::from_micros(50);

impl Event {
    fn has_time(&self) -> bool {
        self.flags & CUevent_flags::CU_EVENT_DISABLE_TIMING.0 == 0
    }

    /// The page and the number of the latest record, if another process made that.
    fn foreign(&self) -> Option<(Arc<SharedPage>, u64)> {
        let page = self.shared.as_ref()?;
        let latest = page.recorded();
        let own = match &self.last {
            Last::At(point) => point.reached.shared.as_ref().map_or(0, |(_, number)| *number),
            Last::Never => 0,
            Last::Captured(_) => return None,
        };
        (latest != own).then(|| (Arc::clone(page), latest))
    }
}

const INVALID_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;

impl Runtime {
    pub(crate) fn create_event(&self, call: &Call<'_>, context: Arc<Context>, flags: u32) -> Outcome<usize> {
        let is_shared = flags & CUevent_flags::CU_EVENT_INTERPROCESS.0 != 0;
        let shared = if is_shared {
            Some(Arc::new(SharedPage::create().map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?))
        } else {
            None
        };
        Ok(self.add_event(call, context, flags, shared, false))
    }

    fn add_event(
        &self,
        call: &Call<'_>,
        context: Arc<Context>,
        flags: u32,
        shared: Option<Arc<SharedPage>>,
        is_opened: bool,
    ) -> usize {
        let handle = new_handle(HandleKind::Event);
        let event = Event { context, flags, made: call.site(), last: Last::Never, shared, is_opened };
        self.lock().events.insert(handle, event);
        handle
    }

    /// A ticket for an event, to be opened in another process.
    pub(crate) fn export_event(&self, event: CUevent) -> Outcome<[u64; 8]> {
        let state = self.lock();
        let event = state.event(event)?;
        let page = event.shared.as_ref().filter(|_| !event.is_opened).ok_or(INVALID_HANDLE)?;
        Ok(page.ticket())
    }

    /// Opens the event of another process; each time it is another handle.
    pub(crate) fn open_event(
        &self,
        call: &Call<'_>,
        context: Arc<Context>,
        ticket: [u64; 8],
    ) -> Outcome<usize> {
        match SharedPage::is_own(ticket) {
            None => return Err(CUresult::CUDA_ERROR_MAP_FAILED),
            Some(true) => return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
            Some(false) => {}
        }
        let page = SharedPage::open(ticket).map_err(|_| CUresult::CUDA_ERROR_MAP_FAILED)?;
        let flags = CUevent_flags::CU_EVENT_INTERPROCESS.0 | CUevent_flags::CU_EVENT_DISABLE_TIMING.0;
        Ok(self.add_event(call, context, flags, Some(Arc::new(page)), true))
    }

    /// Destroys an event; what waits for it still does.
    pub(crate) fn destroy_event(&self, event: CUevent) -> Outcome<()> {
        let mut state = self.lock();
        match state.events.remove(&event.addr()) {
            // A lost context says so, but has let go of the event.
            Some(event) => event.context.check(),
            None => Err(state.unknown(event.addr(), INVALID_HANDLE)),
        }
    }

    /// Records an event in a stream, or in the graph that the stream captures into.
    pub(crate) fn record(&self, stream: &Arc<Stream>, event: CUevent, as_node: bool) -> Outcome<()> {
        let mut state = self.lock();
        let known = state.event(event)?;
        if known.context.id != stream.context.id {
            return Err(INVALID_HANDLE);
        }
        state.refuse_implicit_use(stream)?;
        if state.is_capturing(stream) {
            return state.capture_record(stream, event, as_node);
        }
        if as_node {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        state.record_now(stream, event.addr(), None);
        self.wake_workers(&mut state);
        Ok(())
    }

    /// Makes a stream wait for what an event was last recorded as.
    pub(crate) fn wait_for_event(&self, stream: &Arc<Stream>, event: CUevent, as_node: bool) -> Outcome<()> {
        let mut state = self.lock();
        let last = state.event(event)?.last.clone();
        state.refuse_implicit_use(stream)?;
        if let Last::Captured(point) = &last
            && !as_node
        {
            return state.capture_wait(stream, point);
        }
        let foreign = state.event(event)?.foreign();
        if matches!(last, Last::Never) && foreign.is_none() && !as_node {
            return Ok(());
        }
        let context = Arc::clone(&state.event(event)?.context);
        if context.id != stream.context.id && context.device == stream.context.device {
            return Err(INVALID_HANDLE);
        }
        if state.is_capturing(stream) {
            return state.capture_outside_wait(stream, event, as_node);
        }
        if as_node {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        if let Some((page, number)) = foreign {
            let poll = Run::Poll(Arc::new(move |_: &Driver, _| Ok(page.is_reached(number))));
            state.push(stream, poll, &[], None);
        } else if let Last::At(point) = last {
            state.push(stream, Run::Nothing, &[point.mark], Some(&point.clock));
        }
        self.wake_workers(&mut state);
        Ok(())
    }

    /// Records an event that stands for all work of a context so far.
    pub(crate) fn record_context(&self, context: &Context, event: CUevent) -> Outcome<()> {
        let mut state = self.lock();
        state.refuse_capture_in(context)?;
        if state.event(event)?.context.id != context.id {
            return Err(INVALID_HANDLE);
        }
        let whole = state.contexts.get(&context.handle()).map(|home| Arc::clone(&home.whole));
        let whole = whole.ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
        state.record_now(&whole, event.addr(), None);
        self.wake_workers(&mut state);
        Ok(())
    }

    /// Makes all work that a context is given from now on wait for an event.
    pub(crate) fn context_waits(&self, context: &Context, event: CUevent) -> Outcome<()> {
        let mut state = self.lock();
        state.refuse_capture_in(context)?;
        let point = match &state.event(event)?.last {
            Last::At(point) => point.clone(),
            Last::Captured(_) => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            Last::Never => return Ok(()),
        };
        let reached: Vec<Mark> = Vec::new();
        let mut barrier = state.contexts.get(&context.handle()).map_or(reached, |home| home.barrier.clone());
        barrier.retain(|&mark| !state.is_reached(mark));
        barrier.push(point.mark);
        if let Some(home) = state.contexts.get_mut(&context.handle()) {
            home.barrier = barrier;
            home.barrier_clock.join(&point.clock);
        }
        Ok(())
    }

    /// Whether an event is complete; the host then knows it.
    pub(crate) fn event_is_complete(&self, event: CUevent) -> Outcome<bool> {
        let mut state = self.lock();
        if let Some((page, number)) = state.event(event)?.foreign() {
            return Ok(page.is_reached(number));
        }
        let Some(point) = state.point(event)? else { return Ok(true) };
        let is_complete = state.is_reached(point.mark);
        if is_complete {
            state.host_learns(&point.clock);
        }
        Ok(is_complete)
    }

    /// Waits until an event is complete.
    pub(crate) fn wait_for_event_on_host(&self, event: CUevent) -> Outcome<()> {
        let mut state = self.lock();
        let context = Arc::clone(&state.event(event)?.context);
        if let Some((page, number)) = state.event(event)?.foreign() {
            drop(state);
            while !page.is_reached(number) {
                std::thread::sleep(PAUSE);
            }
            return context.check();
        }
        let Some(point) = state.point(event)? else { return Ok(()) };
        state = self.wait(state, &[point.mark])?;
        state.host_learns(&point.clock);
        drop(state);
        context.check()
    }

    /// The milliseconds between two events.
    pub(crate) fn elapsed(&self, start: CUevent, end: CUevent) -> Outcome<f32> {
        let state = self.lock();
        let mut times = [None; 2];
        for (event, time) in [start, end].into_iter().zip(&mut times) {
            let known = state.event(event)?;
            if !known.has_time() {
                return Err(INVALID_HANDLE);
            }
            *time = match &known.last {
                Last::Never => return Err(INVALID_HANDLE),
                Last::Captured(_) => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
                Last::At(point) => Some(point.reached.time.get().copied()),
            };
        }
        let [Some(Some(start)), Some(Some(end))] = times else { return Err(CUresult::CUDA_ERROR_NOT_READY) };
        let forward = end.saturating_duration_since(start).as_secs_f32();
        let backward = start.saturating_duration_since(end).as_secs_f32();
        Ok((forward - backward) * 1e3)
    }

    /// Whether the host may wait for an event at all: not if its context is lost or it was recorded in a capture.
    pub(crate) fn check_wait_for_event(&self, event: CUevent) -> Outcome<()> {
        let mut state = self.lock();
        state.event(event)?.context.check()?;
        state.point(event).map(drop)
    }
}

impl State {
    pub(crate) fn event(&self, event: CUevent) -> Outcome<&Event> {
        self.events.get(&event.addr()).ok_or_else(|| self.unknown(event.addr(), INVALID_HANDLE))
    }

    /// The point that an event stands for, if it was recorded.
    fn point(&mut self, event: CUevent) -> Outcome<Option<Point>> {
        match self.event(event)?.last.clone() {
            Last::Never => Ok(None),
            Last::At(point) => Ok(Some(point)),
            Last::Captured(point) => Err(self.refuse_captured_point(&point)),
        }
    }

    /// Records an event at the end of a stream, or as a node of a graph that is launched there, which knows less.
    pub(super) fn record_now(&mut self, stream: &Arc<Stream>, event: usize, of_node: Option<Clock>) {
        let page = self.events.get(&event).and_then(|event| event.shared.clone());
        let shared = page.map(|page| {
            let number = page.record();
            (page, number)
        });
        let reached = Arc::new(Reached { time: OnceLock::new(), shared });
        let (mark, clock) = self.push(stream, Run::Reach(Arc::clone(&reached)), &[], None);
        let clock = of_node.unwrap_or(clock);
        if let Some(event) = self.events.get_mut(&event) {
            event.last = Last::At(Point { mark, clock, reached });
        }
    }
}
