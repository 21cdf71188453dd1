//! A driver in the middle of whose calls others do something.

use std::ffi::{CStr, c_uint, c_void};
use std::ptr;
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cuda_mem_core::sys::{CUdeviceptr, CUevent, CUresult, CUstream, Table};
use cuda_mem_core::{Context, Driver, Stream};
use cuda_mem_sim::{Builder, Sim};

use crate::common::capture::{Capture, RELAXED};
use crate::rig::expect_clean;

/// Far longer than anything here needs.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Only one test at a time has something done in the middle of a call.
static TURNS: Mutex<()> = Mutex::new(());

/// The simulator of the test whose turn it is.
static SIM: Mutex<Option<&'static Sim>> = Mutex::new(None);

/// What is to be done once, before the driver is asked about a stream or has one record an event, or unregisters memory.
static MEANWHILE: Mutex<Option<Meanwhile>> = Mutex::new(None);

/// What is to be done once, before the driver has a stream wait for an event.
static BEFORE_WAIT: Mutex<Option<Meanwhile>> = Mutex::new(None);

/// What is to be done once, after the driver has had a stream record an event.
static BEHIND_RECORD: Mutex<Option<Meanwhile>> = Mutex::new(None);

/// What is to be done once, before the driver copies from a device.
static BEFORE_COPY: Mutex<Option<Meanwhile>> = Mutex::new(None);

type Meanwhile = Box<dyn FnOnce() + Send>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has something done before the driver is asked about a stream or has one record an event, or unregisters memory, once.
pub(crate) fn meanwhile(todo: impl FnOnce() + Send + 'static) {
    *lock(&MEANWHILE) = Some(Box::new(todo));
}

/// Has something done before the driver has a stream wait for an event, once.
pub(crate) fn before_wait(todo: impl FnOnce() + Send + 'static) {
    *lock(&BEFORE_WAIT) = Some(Box::new(todo));
}

/// Has something done before the driver copies from a device, once.
pub(crate) fn before_copy(todo: impl FnOnce() + Send + 'static) {
    *lock(&BEFORE_COPY) = Some(Box::new(todo));
}

/// As [`meanwhile`]: the owner of a stream has it capture.
pub(crate) fn begin_to_capture(stream: &Stream) -> Receiver<Capture> {
    let (begun, captured) = std::sync::mpsc::channel();
    let stream = stream.clone();
    meanwhile(move || begun.send(Capture::begin(&stream, RELAXED)).unwrap());
    captured
}

/// The owner of a stream has it capture for as long as the next event is recorded.
pub(crate) fn capture_around_record(stream: &Stream) {
    let stream = stream.clone();
    meanwhile(move || {
        let capture = Capture::begin(&stream, RELAXED);
        *lock(&BEHIND_RECORD) = Some(Box::new(move || drop(capture.end().unwrap())));
    });
}

fn table() -> &'static Table {
    let todo = lock(&MEANWHILE).take();
    if let Some(todo) = todo {
        todo();
    }
    lock(&SIM).expect("a simulator").table()
}

unsafe extern "C" fn query(stream: CUstream) -> CUresult {
    // SAFETY: the caller's stream.
    unsafe { table().cuStreamQuery().expect("cuStreamQuery")(stream) }
}

unsafe extern "C" fn synchronize(stream: CUstream) -> CUresult {
    // SAFETY: the caller's stream.
    unsafe { table().cuStreamSynchronize().expect("cuStreamSynchronize")(stream) }
}

unsafe extern "C" fn wait(stream: CUstream, event: CUevent, flags: c_uint) -> CUresult {
    let todo = lock(&BEFORE_WAIT).take();
    if let Some(todo) = todo {
        todo();
    }
    let table = lock(&SIM).expect("a simulator").table();
    // SAFETY: the caller's stream and event.
    unsafe { table.cuStreamWaitEvent().expect("cuStreamWaitEvent")(stream, event, flags) }
}

unsafe extern "C" fn copy(
    target: CUdeviceptr,
    source: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    let todo = lock(&BEFORE_COPY).take();
    if let Some(todo) = todo {
        todo();
    }
    let table = lock(&SIM).expect("a simulator").table();
    // SAFETY: the caller's memory and stream.
    unsafe { table.cuMemcpyAsync().expect("cuMemcpyAsync")(target, source, bytes, stream) }
}

unsafe extern "C" fn record(event: CUevent, stream: CUstream) -> CUresult {
    // SAFETY: the caller's event and stream.
    let result = unsafe { table().cuEventRecord().expect("cuEventRecord")(event, stream) };
    let todo = lock(&BEHIND_RECORD).take();
    if let Some(todo) = todo {
        todo();
    }
    result
}

unsafe extern "C" fn unregister(memory: *mut c_void) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe { table().cuMemHostUnregister().expect("cuMemHostUnregister")(memory) }
}

/// Runs a test on a simulator of its own that does what it is told by [`meanwhile`].
pub(crate) fn on_interrupted(test: impl FnOnce(&'static Sim, &Context)) {
    interrupted(Sim::builder(), test);
}

/// As [`on_interrupted`], with a machine to choose.
pub(crate) fn interrupted(builder: Builder, test: impl FnOnce(&'static Sim, &Context)) {
    let _turn = lock(&TURNS);
    let place = Box::into_raw(Box::new(builder.record(true).build()));
    // SAFETY: it stays until nobody has it any more, at the end.
    let sim: &'static Sim = unsafe { &*place };
    *lock(&SIM) = Some(sim);
    let lookup = |symbol: &CStr| match symbol.to_bytes() {
        b"cuGetProcAddress_v2" => ptr::null(),
        b"cuStreamQuery" => query as *const _,
        b"cuStreamSynchronize" => synchronize as *const _,
        b"cuStreamWaitEvent" => wait as *const _,
        b"cuMemcpyAsync" => copy as *const _,
        b"cuEventRecord" => record as *const _,
        b"cuMemHostUnregister" => unregister as *const _,
        _ => sim.symbol(symbol),
    };
    // SAFETY: the addresses are those of functions that have the types of the names they are given for.
    let table = unsafe { Table::from_lookup(lookup) }.unwrap();
    let driver = Driver::over(Box::leak(Box::new(table))).unwrap();
    let context = driver.device(0).unwrap().primary_context().unwrap();
    test(sim, &context);
    until("all is undone", || driver.registrations_left() == 0);
    drop((context, driver));
    expect_clean(sim);
    // A process has room for few simulators at a time.
    *lock(&SIM) = None;
    // SAFETY: made above; the driver and all that was made with it are gone.
    drop(unsafe { Box::from_raw(place) });
}

/// Runs a test with the legacy stream of a context and a blocking stream, whose captures what names the other one ends.
pub(crate) fn beside_legacy(sim: &Sim, context: &Context, test: impl FnOnce(&Stream, &Stream)) {
    let mut raw = ptr::null_mut();
    // SAFETY: one handle to write; the context is current.
    let made = context.with_current(|| unsafe { sim.table().cuStreamCreate().unwrap()(&mut raw, 0) });
    assert_eq!(made.unwrap(), CUresult::CUDA_SUCCESS);
    {
        // SAFETY: destroyed when nobody has it any more.
        let blocking = unsafe { Stream::borrow_raw(context, raw.cast()) }.unwrap();
        test(&Stream::legacy(context).unwrap(), &blocking);
    }
    // SAFETY: made above, destroyed once, when nobody has it any more.
    assert_eq!(unsafe { sim.table().cuStreamDestroy().unwrap()(raw) }, CUresult::CUDA_SUCCESS);
}

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
