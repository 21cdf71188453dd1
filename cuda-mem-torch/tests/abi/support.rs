//! One driver for all tests, which take turns: the allocators are the process's.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cuda_mem_torch::abi::*;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::MempoolId;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::{CUresult, CUstreamCaptureMode};
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Context, Driver, Stream};

use cuda_mem_sim::Sim;

pub(crate) const MIB: usize = 1 << 20;
pub(crate) const NO_POOL: cuda_mem_torch_pool_id = cuda_mem_torch_pool_id { first: 0, second: 0 };

/// A test's turn, at whose end no memory may have been misused.
pub(crate) struct Turn {
    misused_before: usize,
    _lock: MutexGuard<'static, ()>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let misused: Vec<_> =
                sim().misuse().iter().skip(self.misused_before).map(ToString::to_string).collect();
            assert!(misused.is_empty(), "memory was misused:\n{}", misused.join("\n"));
        }
    }
}

pub(crate) fn turn() -> Turn {
    static TURN: Mutex<()> = Mutex::new(());
    // One that failed leaves streams that capture, routes and settings behind: others would fail by them, or wait for ever.
    let lock = TURN.lock().unwrap_or_else(|_| panic!("a test before this one failed: it says why"));
    assert!(use_driver(driver()));
    succeed(cuda_mem_torch_init(1));
    // What the test before has left is unregistered in the background, by a call that waits for all streams: those that a test holds up
    // would wait for it.
    let start = Instant::now();
    while driver().registrations_left() > 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "the test before this one left registrations");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Of what the test before has freed nothing is left either, in whichever order they come.
    cuda_mem_torch_plain_reset();
    empty_cache(NO_POOL);
    Turn { misused_before: sim().misuse().len(), _lock: lock }
}

pub(crate) fn driver() -> Driver {
    Driver::over(sim().table()).unwrap()
}

/// Of its devices, most tests use the first; the last is used by none.
pub(crate) fn sim() -> &'static Sim {
    static SIM: LazyLock<Sim> = LazyLock::new(|| Sim::builder().devices(3).build());
    &SIM
}

pub(crate) fn context() -> Context {
    context_of(0)
}

pub(crate) fn context_of(device: usize) -> Context {
    driver().device(device).unwrap().primary_context().unwrap()
}

/// How often `what` makes the driver wait for all of a context.
pub(crate) fn waits(what: impl FnOnce()) -> usize {
    calls(what).into_iter().filter(|call| *call == "cuMemFreeHost").count()
}

/// What `what` asks of the driver.
pub(crate) fn calls(what: impl FnOnce()) -> Vec<&'static str> {
    sim().log().clear();
    sim().record(true);
    what();
    sim().record(false);
    sim().log().records().iter().map(|record| record.function).collect()
}

/// A stream that lives as long as the process: the allocators know it by its handle.
pub(crate) fn new_stream() -> &'static Stream {
    // Found there by the leak sanitizer when its test is over.
    static ALL: Mutex<Vec<&'static Stream>> = Mutex::new(Vec::new());
    let stream: &'static Stream = Box::leak(Box::new(Stream::new(&context()).unwrap()));
    ALL.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    stream
}

/// As `cudaStreamBeginCapture` in its relaxed mode.
pub(crate) fn begin_capture(stream: &Stream) {
    begin_capture_of(stream.as_raw());
}

pub(crate) fn begin_capture_of(stream: *mut c_void) {
    let begin = driver().table().cuStreamBeginCapture().unwrap();
    // SAFETY: a live stream.
    let result = unsafe { begin(stream.cast(), CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) };
    assert_eq!(result, CUresult::CUDA_SUCCESS);
}

/// Ends it; what was captured stays behind.
pub(crate) fn end_capture(stream: &Stream) {
    end_capture_of(stream.as_raw());
}

pub(crate) fn end_capture_of(stream: *mut c_void) {
    let end = driver().table().cuStreamEndCapture().unwrap();
    let mut graph = null_mut();
    // SAFETY: a live stream that captures; one handle to write.
    assert_eq!(unsafe { end(stream.cast(), &mut graph) }, CUresult::CUDA_SUCCESS);
}

pub(crate) fn user_pool() -> cuda_mem_torch_pool_id {
    let MempoolId(first, second) = MempoolId::for_user();
    cuda_mem_torch_pool_id { first, second }
}

pub(crate) fn message() -> String {
    // SAFETY: text that stays until the next failure.
    unsafe { CStr::from_ptr(cuda_mem_torch_last_error()) }.to_str().unwrap().to_owned()
}

#[track_caller]
pub(crate) fn succeed(code: c_int) {
    assert_eq!(code, CUDA_MEM_TORCH_OK, "{}", message());
}

#[track_caller]
pub(crate) fn allocate(bytes: usize, stream: *mut c_void) -> *mut c_void {
    let mut block = null_mut();
    // SAFETY: a live stream and a place.
    succeed(unsafe { cuda_mem_torch_malloc(0, bytes, stream, &mut block) });
    block
}

#[track_caller]
pub(crate) fn delete(block: *mut c_void) {
    // SAFETY: nothing uses it.
    succeed(unsafe { cuda_mem_torch_delete(block) });
}

pub(crate) fn stats() -> cuda_mem_torch_device_stats {
    let mut stats = cuda_mem_torch_device_stats::default();
    // SAFETY: a place.
    succeed(unsafe { cuda_mem_torch_stats(0, &mut stats) });
    stats
}

pub(crate) fn empty_cache(pool: cuda_mem_torch_pool_id) -> usize {
    let mut bytes = 0;
    // SAFETY: a place.
    succeed(unsafe { cuda_mem_torch_empty_cache(CUDA_MEM_TORCH_ALL_DEVICES, pool, &mut bytes) });
    bytes
}

/// What a snapshot told.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) segments: Vec<cuda_mem_torch_segment>,
    pub(crate) blocks: Vec<cuda_mem_torch_block>,
    /// Action, context and the two texts.
    pub(crate) traces: Vec<(c_int, usize, String, String)>,
}

pub(crate) fn snapshot(pool: cuda_mem_torch_pool_id) -> Seen {
    fn seen<'s>(data: *mut c_void) -> &'s mut Seen {
        // SAFETY: what the visitor below passes.
        unsafe { &mut *data.cast() }
    }
    unsafe extern "C" fn segment(data: *mut c_void, segment: *const cuda_mem_torch_segment) {
        // SAFETY: a segment.
        let segment = unsafe { *segment };
        seen(data).segments.push(segment);
    }
    unsafe extern "C" fn block(data: *mut c_void, block: *const cuda_mem_torch_block) {
        // SAFETY: a block.
        let block = unsafe { *block };
        seen(data).blocks.push(block);
    }
    unsafe extern "C" fn trace(data: *mut c_void, entry: *const cuda_mem_torch_trace_entry) {
        // SAFETY: an entry.
        let entry = unsafe { *entry };
        let text = |text| {
            // SAFETY: the texts are there during the call.
            unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
        };
        let told =
            (entry.action, entry.context.addr(), text(entry.compile_context), text(entry.user_metadata));
        seen(data).traces.push(told);
    }
    let mut seen = Seen::default();
    let visitor = cuda_mem_torch_visitor {
        data: (&raw mut seen).cast(),
        segment: Some(segment),
        block: Some(block),
        trace: Some(trace),
        tag: None,
    };
    // SAFETY: functions that may be called.
    succeed(unsafe { cuda_mem_torch_snapshot(0, pool, true, &visitor) });
    seen
}
