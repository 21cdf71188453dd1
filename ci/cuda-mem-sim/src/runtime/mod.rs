//! Contexts, streams, events and graphs: what runs when.
//!
//! One lock guards all of it; workers and waiting callers hold it only between operations, never while one runs. The lock
//! is never held together with that of the memory.

mod branches;
pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod kernels;
pub(crate) mod module;
pub(crate) mod op;
pub(crate) mod queue;
pub(crate) mod stream;
mod workers;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use cuda_mem_sys::{CUresult, CUstreamCaptureMode};

use crate::config::Config;
use crate::driver::Driver;
use crate::memory::misuse::Leak;
use crate::order::{Clock, HOST};
use crate::site::Site;
use capture::Capture;
use context::{Home, Primary};
use event::Event;
use graph::{Exec, Graph, UserObject};
use module::{Function, Module};
use queue::Queue;
use stream::Stream;

/// What runs when, on one simulated driver.
#[derive(Debug)]
pub(crate) struct Runtime {
    driver: Weak<Driver>,
    slot: usize,
    max_workers: usize,
    state: Mutex<State>,
    /// Something was completed.
    completed: Condvar,
    /// There may be something to do for a worker.
    work: Condvar,
}

/// Everything that the lock guards.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) contexts: BTreeMap<usize, Home>,
    pub(crate) primaries: Vec<Primary>,
    pub(crate) threads: BTreeMap<u64, Thread>,
    pub(crate) streams: BTreeMap<usize, Arc<Stream>>,
    /// By stream id; a destroyed stream's is there until it is empty.
    pub(crate) queues: BTreeMap<u64, Queue>,
    pub(crate) events: BTreeMap<usize, Event>,
    pub(crate) captures: BTreeMap<u64, Capture>,
    pub(crate) graphs: BTreeMap<usize, Graph>,
    pub(crate) execs: BTreeMap<usize, Exec>,
    pub(crate) objects: BTreeMap<usize, UserObject>,
    pub(crate) modules: BTreeMap<usize, Module>,
    pub(crate) functions: BTreeMap<usize, Function>,
    /// Handles of contexts that have ended and of what ended with them, with their devices.
    pub(crate) ended: BTreeMap<usize, usize>,
    /// Devices that a fault has lost, with its code.
    pub(crate) lost: BTreeMap<usize, CUresult>,
    /// What the host knows to be complete, and its own moments.
    host: Clock,
    host_moment: u64,
    last_ticket: u64,
    /// The id of the stream that was made last.
    last_stream: u64,
    workers: workers::Count,
}

/// What the driver keeps for a thread of the program.
#[derive(Debug)]
pub(crate) struct Thread {
    /// Handles of contexts; the last one is current.
    pub(crate) stack: Vec<usize>,
    pub(crate) capture_mode: CUstreamCaptureMode,
}

impl Default for Thread {
    fn default() -> Self {
        Self { stack: Vec::new(), capture_mode: CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL }
    }
}

/// What a handle is for. Its number is part of the handle, so no handle is ever taken for one of another kind.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HandleKind {
    Context = 0x51,
    Stream,
    Event,
    Module,
    Function,
    Graph,
    Node,
    Exec,
    UserObject,
}

/// A handle that no simulator of the process has given out before.
pub(crate) fn new_handle(kind: HandleKind) -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    ((kind as usize) << 40) | ((LAST.fetch_add(1, Ordering::Relaxed) + 1) << 4)
}

impl Runtime {
    pub(crate) fn new(driver: Weak<Driver>, config: &Config, slot: usize) -> Self {
        let state = State {
            contexts: BTreeMap::new(),
            primaries: config.devices.iter().map(|_| Primary::default()).collect(),
            threads: BTreeMap::new(),
            streams: BTreeMap::new(),
            queues: BTreeMap::new(),
            events: BTreeMap::new(),
            captures: BTreeMap::new(),
            graphs: BTreeMap::new(),
            execs: BTreeMap::new(),
            objects: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            ended: BTreeMap::new(),
            lost: BTreeMap::new(),
            host: Clock::default(),
            host_moment: 0,
            last_ticket: 0,
            last_stream: 0,
            workers: workers::Count::default(),
        };
        Self {
            driver,
            slot,
            max_workers: config.workers,
            state: Mutex::new(state),
            completed: Condvar::new(),
            work: Condvar::new(),
        }
    }

    /// The state. A model that panicked with the lock held is a bug that was reported; the state is the best there is.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new moment of the host's timeline, for what the host does itself.
    pub(crate) fn host_clock(&self) -> Clock {
        self.lock().host_clock()
    }

    /// What was made and not released.
    pub(crate) fn leaks(&self) -> Vec<Leak> {
        let state = self.lock();
        let leak = |what, handle: usize, made: &Site| Leak {
            what,
            range: handle as u64..handle as u64,
            made: Some(made.clone()),
        };
        let created =
            state.contexts.values().filter_map(|home| home.context.made.as_ref().map(|made| (home, made)));
        let contexts = created.map(|(home, made)| leak("context", home.context.handle(), made));
        let retained = state.primaries.iter().flat_map(|primary| &primary.retained_by);
        let retained = retained.map(|made| leak("retained primary context", 0, made));
        let streams =
            state.streams.values().filter_map(|stream| Some((stream.handle, stream.made.as_ref()?)));
        let streams = streams.map(|(handle, made)| leak("stream", handle, made));
        let events = state.events.iter().map(|(&handle, event)| leak("event", handle, &event.made));
        let graphs = state.graphs.iter().map(|(&handle, graph)| leak("graph", handle, &graph.made));
        let execs = state.execs.iter().map(|(&handle, exec)| leak("executable graph", handle, &exec.made));
        let objects = state.objects.iter().map(|(&handle, object)| leak("user object", handle, &object.made));
        let modules = state.modules.iter().map(|(&handle, module)| leak("module", handle, &module.made));
        contexts
            .chain(retained)
            .chain(streams)
            .chain(events)
            .chain(graphs)
            .chain(execs)
            .chain(objects)
            .chain(modules)
            .collect()
    }
}

impl State {
    pub(crate) fn thread(&mut self, number: u64) -> &mut Thread {
        self.threads.entry(number).or_default()
    }

    pub(crate) fn host_clock(&mut self) -> Clock {
        self.host_moment += 1;
        self.host.advance(HOST, self.host_moment);
        self.host.clone()
    }

    /// The host has learnt that all that `clock` knows is complete.
    pub(crate) fn host_learns(&mut self, clock: &Clock) {
        self.host.join(clock);
    }
}
