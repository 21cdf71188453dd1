//! What the test programs share.
#![allow(dead_code, reason = "each test program uses its part")]

pub(crate) mod capture;
pub(crate) mod child;
pub(crate) mod files;
pub(crate) mod gate;
pub(crate) mod kernels;
pub(crate) mod library;
pub(crate) mod outcome;
pub(crate) mod pair;
pub(crate) mod scenarios;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cuda_mem_core::{Context, Driver, Stream};
use cuda_mem_sim::{Misuse, MisuseKind};

/// What portable tests run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Simulator,
    Gpu,
}

/// The backend that the environment variable `CUDA_MEM_BACKEND` names.
pub(crate) fn backend() -> Backend {
    match std::env::var("CUDA_MEM_BACKEND").as_deref() {
        Ok("gpu") => Backend::Gpu,
        Ok("sim") | Err(std::env::VarError::NotPresent) => Backend::Simulator,
        other => panic!("CUDA_MEM_BACKEND is {other:?}; accepted: sim, gpu"),
    }
}

/// How often a process is killed at each step: `CUDA_MEM_DEATH_ROUNDS`, which nightly sets; once without it.
pub(crate) fn death_rounds() -> usize {
    let set = std::env::var("CUDA_MEM_DEATH_ROUNDS").ok();
    set.map_or(1, |rounds| rounds.parse().expect("CUDA_MEM_DEATH_ROUNDS is a number"))
}

/// The driver under test. Without a GPU, the `gpu` backend fails: nothing passes by being skipped.
pub(crate) fn driver() -> Driver {
    let driver = match backend() {
        Backend::Simulator => Driver::over(cuda_mem_sim::table()),
        Backend::Gpu => Driver::system(),
    };
    driver.expect("a driver")
}

/// The stream that a test works on: a new one, or the default stream that `CUDA_MEM_DEFAULT_STREAM` names.
pub(crate) fn default_stream(context: &Context) -> Stream {
    match std::env::var("CUDA_MEM_DEFAULT_STREAM").as_deref() {
        Ok("legacy") => Stream::legacy(context),
        Ok("per_thread") => Stream::per_thread(context),
        Err(std::env::VarError::NotPresent) => Stream::new(context),
        other => panic!("CUDA_MEM_DEFAULT_STREAM is {other:?}; accepted: legacy, per_thread"),
    }
    .expect("a stream")
}

/// How long a test waits for what earlier ones left. A stream that one of them left busy keeps it for ever.
const LEFTOVERS_WITHIN: Duration = Duration::from_secs(5);

/// One test's turn with the driver, on its first device.
pub(crate) struct World {
    pub(crate) driver: Driver,
    pub(crate) context: Context,
    pub(crate) stream: Stream,
    turn: Turn,
}

/// One test at a time in a process. A capture in the global mode forbids calls in every thread, a few streams that wait hold
/// up all others on real devices, and frees wait for all of them.
static TURNS: Mutex<()> = Mutex::new(());

/// A turn with the driver. At its end nothing may have been used that was freed meanwhile, or in no order: the simulator knows,
/// also where the bytes happened to be right.
struct Turn {
    /// How often memory was misused before, or was meant to be.
    misused: AtomicUsize,
    _lock: MutexGuard<'static, ()>,
}

impl Turn {
    fn take() -> Self {
        let lock = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
        Self { misused: AtomicUsize::new(misuse().len()), _lock: lock }
    }

    fn new_misuse(&self) -> Vec<Misuse> {
        let all = misuse();
        let known = self.misused.swap(all.len(), Ordering::Relaxed);
        all.into_iter().skip(known).collect()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let misused: Vec<_> = self.new_misuse().iter().map(ToString::to_string).collect();
            assert!(misused.is_empty(), "memory was misused:\n{}", misused.join("\n"));
        }
    }
}

/// What the simulator has seen; a GPU tells nothing.
fn misuse() -> Vec<Misuse> {
    if backend() == Backend::Simulator { cuda_mem_sim::misuse() } else { Vec::new() }
}

impl World {
    pub(crate) fn new() -> Self {
        let turn = Turn::take();
        let driver = driver();
        // What earlier tests left registered is undone by a thread of the driver's. The driver waits for all work meanwhile, also for a stream
        // that this test holds up by a gate, and holds up who records events: nobody would open the gate.
        let until = Instant::now() + LEFTOVERS_WITHIN;
        while driver.registrations_left() > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let context = driver.device(0).expect("a device").primary_context().expect("its context");
        let stream = default_stream(&context);
        Self { driver, context, stream, turn }
    }

    /// Memory was misused in these ways, and was meant to be.
    pub(crate) fn expect_misuse(&self, expected: &[MisuseKind]) {
        let found: Vec<_> = self.turn.new_misuse().iter().map(|misuse| misuse.kind).collect();
        assert!(backend() == Backend::Gpu || found == expected, "{found:?}, not {expected:?}");
    }

    /// What the device has free, in bytes. What earlier tests freed behind work is free by then: it would seem to be this one's later.
    pub(crate) fn free_bytes(&self) -> usize {
        self.context.synchronize().expect("work that ends");
        self.context.memory_info().expect("its memory").free
    }

    /// Another stream of the context.
    pub(crate) fn new_stream(&self) -> Stream {
        Stream::new(&self.context).expect("a stream")
    }
}

/// Whether all bytes have one value. It is one comparison of memory: tests are not optimised, and a loop over the bytes takes seconds
/// for what some of them have.
pub(crate) fn is_filled(bytes: &[u8], value: u8) -> bool {
    bytes.first().is_none_or(|first| *first == value && bytes[1..] == bytes[..bytes.len() - 1])
}

/// Bytes that differ from their neighbours, and from those of other seeds.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    // After so many they begin again. Tests are not optimised, and some have gigabytes made here.
    const PERIOD: usize = 2048;
    let byte = |index: usize| ((index * 31) >> 3) as u8 ^ (index as u8) ^ seed;
    let period: Vec<u8> = (0..PERIOD).map(byte).collect();
    let mut bytes = period.repeat(len.div_ceil(PERIOD));
    bytes.truncate(len);
    bytes
}
