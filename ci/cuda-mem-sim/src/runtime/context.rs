//! Contexts: which one is current to a thread, and how they begin and end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use cuda_mem_sys::CUresult;

use super::op::Outcome;
use super::queue::Mark;
use super::stream::{Kind, Stream};
use super::{HandleKind, Runtime, State, new_handle};
use crate::call::Call;
use crate::order::Clock;
use crate::site::Site;

/// A context.
#[derive(Debug)]
pub(crate) struct Context {
    /// Never used twice in a process.
    pub(crate) id: u64,
    handle: usize,
    pub(crate) device: usize,
    /// None for a primary context.
    pub(crate) made: Option<Site>,
    pub(crate) flags: AtomicU32,
    /// The error that ended it, 0 while it is well.
    error: AtomicU32,
}

impl Context {
    fn new(handle: usize, device: usize, flags: u32, made: Option<Site>) -> Arc<Self> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let id = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        Arc::new(Self { id, handle, device, made, flags: AtomicU32::new(flags), error: AtomicU32::new(0) })
    }

    pub(crate) fn handle(&self) -> usize {
        self.handle
    }

    /// The error that nearly every call in this context returns, once there is one.
    pub(crate) fn check(&self) -> Outcome<()> {
        match self.error.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(CUresult(code)),
        }
    }

    /// Ends all work of the context: the first error stays.
    pub(crate) fn fail(&self, code: CUresult) {
        let _ = self.error.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// What belongs to a context.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) context: Arc<Context>,
    pub(crate) legacy: Arc<Stream>,
    /// Orders events that stand for all work of the context.
    pub(crate) whole: Arc<Stream>,
    pub(crate) per_thread: BTreeMap<u64, Arc<Stream>>,
    /// What all work that is enqueued from now on comes after.
    pub(crate) barrier: Vec<Mark>,
    pub(crate) barrier_clock: Clock,
    /// What was done on streams that are gone, with their queues: whoever waits for all of the context has waited for that, too.
    pub(crate) gone: Clock,
    pub(crate) limits: BTreeMap<u32, usize>,
    /// Devices whose memory kernels of this context may reach.
    pub(crate) peers: BTreeSet<usize>,
}

/// The primary context of a device.
#[derive(Debug, Default)]
pub(crate) struct Primary {
    /// The same whenever it is alive; 0 until it first is.
    handle: usize,
    /// The calls that retained it and were not matched by a release.
    pub(crate) retained_by: Vec<Site>,
    pub(crate) flags: u32,
    /// Its last release is under way: whoever retains it now waits for the end, and gets a new one.
    ends: bool,
}

impl Runtime {
    /// The context that is current to a thread: 201 if there is none, 709 if it has ended.
    pub(crate) fn current(&self, thread: u64) -> Outcome<Arc<Context>> {
        self.lock().current(thread)
    }

    /// The context of a handle.
    pub(crate) fn context(&self, handle: usize) -> Outcome<Arc<Context>> {
        let state = self.lock();
        match state.contexts.get(&handle) {
            Some(home) => Ok(Arc::clone(&home.context)),
            None => Err(state.unknown(handle, CUresult::CUDA_ERROR_INVALID_CONTEXT)),
        }
    }

    /// Retains the primary context of a device; gives its handle.
    pub(crate) fn retain_primary(&self, device: usize, by: Site) -> Outcome<usize> {
        let mut state = self.lock();
        while state.primaries.get(device).is_some_and(|primary| primary.ends) {
            state = self.completed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let primary = state.primaries.get_mut(device).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
        if primary.handle == 0 {
            primary.handle = new_handle(HandleKind::Context);
        }
        primary.retained_by.push(by);
        let (handle, flags) = (primary.handle, primary.flags);
        if !state.contexts.contains_key(&handle) {
            let lost = state.lost.get(&device).copied();
            if let Some(code) = lost {
                // A device that was lost to a fault stays lost to the process.
                state.primaries.get_mut(device).and_then(|primary| primary.retained_by.pop());
                return Err(code);
            }
            state.add_context(Context::new(handle, device, flags, None));
        }
        Ok(handle)
    }

    /// Releases the primary context once; the last release ends it.
    pub(crate) fn release_primary(&self, call: &Call<'_>, device: usize) -> Outcome<()> {
        let mut state = self.lock();
        let primary = state.primaries.get_mut(device).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
        primary.retained_by.pop().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        let (handle, is_last) = (primary.handle, primary.retained_by.is_empty());
        if !is_last || !state.contexts.contains_key(&handle) {
            return Ok(());
        }
        if let Some(primary) = state.primaries.get_mut(device) {
            primary.ends = true;
        }
        drop(state);
        let ended = self.end_context(call, handle);
        if let Some(primary) = self.lock().primaries.get_mut(device) {
            primary.ends = false;
        }
        self.completed.notify_all();
        ended
    }

    /// Ends the primary context of a device, whoever retains it; they still have to release it.
    pub(crate) fn reset_primary(&self, call: &Call<'_>, device: usize) -> Outcome<()> {
        let state = self.lock();
        let primary = state.primaries.get(device).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
        let handle = primary.handle;
        let is_active = state.contexts.contains_key(&handle);
        drop(state);
        if is_active { self.end_context(call, handle) } else { Ok(()) }
    }

    /// Makes a context and makes it current; gives its handle.
    pub(crate) fn create_context(&self, call: &Call<'_>, device: usize, flags: u32) -> Outcome<usize> {
        let handle = new_handle(HandleKind::Context);
        let mut state = self.lock();
        if let Some(&code) = state.lost.get(&device) {
            return Err(code);
        }
        state.add_context(Context::new(handle, device, flags, Some(call.site())));
        state.thread(call.thread).stack.push(handle);
        Ok(handle)
    }

    /// Destroys a context that [`create_context`](Self::create_context) made.
    pub(crate) fn destroy_context(&self, call: &Call<'_>, handle: usize) -> Outcome<()> {
        let context = self.context(handle)?;
        if context.made.is_none() {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        self.end_context(call, handle)?;
        let mut state = self.lock();
        let stack = &mut state.thread(call.thread).stack;
        if stack.last() == Some(&handle) {
            stack.pop();
        }
        Ok(())
    }

    /// Ends a context with all that belongs to it, after the work that it was given.
    fn end_context(&self, call: &Call<'_>, handle: usize) -> Outcome<()> {
        let context = self.context(handle)?;
        // A sticky error is no reason to keep it.
        let _ = self.wait_for_context(&context);
        let mut state = self.lock();
        if state.contexts.remove(&handle).is_none() {
            return Ok(());
        }
        context.fail(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        let State { streams, events, ended, .. } = &mut *state;
        ended.insert(handle, context.device);
        let streams =
            streams.values().filter(|stream| stream.context.id == context.id).map(|stream| stream.handle);
        let events =
            events.iter().filter(|(_, event)| event.context.id == context.id).map(|(&handle, _)| handle);
        ended.extend(streams.chain(events).map(|handle| (handle, context.device)));
        state.queues.retain(|_, queue| queue.stream.context.id != context.id);
        state.streams.retain(|_, stream| stream.context.id != context.id);
        state.events.retain(|_, event| event.context.id != context.id);
        state.modules.retain(|_, module| module.context.id != context.id);
        let State { functions, modules, captures, queues, .. } = &mut *state;
        functions.retain(|_, function| modules.contains_key(&function.module));
        captures.retain(|_, capture| queues.contains_key(&capture.origin));
        self.completed.notify_all();
        drop(state);
        call.memory().lock().end_context(handle);
        Ok(())
    }
}

impl State {
    /// The context that is current to a thread.
    pub(crate) fn current(&mut self, thread: u64) -> Outcome<Arc<Context>> {
        let handle = *self.thread(thread).stack.last().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        let home = self
            .contexts
            .get(&handle)
            .ok_or_else(|| self.unknown(handle, CUresult::CUDA_ERROR_INVALID_CONTEXT))?;
        Ok(Arc::clone(&home.context))
    }

    /// The device of the context that is current to a thread, even if that has ended.
    pub(crate) fn current_device(&mut self, thread: u64) -> Outcome<usize> {
        let handle = *self.thread(thread).stack.last().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        let alive = self.contexts.get(&handle).map(|home| home.context.device);
        alive.or_else(|| self.ended.get(&handle).copied()).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
    }

    /// The error for a handle that nothing has: 709 if it belonged to a context that has ended.
    pub(crate) fn unknown(&self, handle: usize, otherwise: CUresult) -> CUresult {
        if self.ended.contains_key(&handle) { CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED } else { otherwise }
    }

    fn add_context(&mut self, context: Arc<Context>) {
        let legacy = self.make_stream(Arc::clone(&context), Kind::Legacy, false, 0, None);
        let whole = self.make_stream(Arc::clone(&context), Kind::Whole, true, 0, None);
        let home = Home {
            legacy,
            whole,
            per_thread: BTreeMap::new(),
            barrier: Vec::new(),
            barrier_clock: Clock::default(),
            gone: Clock::default(),
            limits: BTreeMap::new(),
            peers: BTreeSet::new(),
            context,
        };
        self.contexts.insert(home.context.handle, home);
    }

    /// The handle of a device's primary context, if that is alive.
    pub(crate) fn active_primary(&self, device: usize) -> Option<&Home> {
        self.contexts.get(&self.primaries.get(device)?.handle)
    }
}
