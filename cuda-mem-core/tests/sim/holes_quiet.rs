//! Holes around waits that the driver refuses: what may still be written is never given back.

use std::ffi::c_void;
use std::process::Command;
use std::thread;
use std::time::Duration;

use cuda_mem_core::host::PinnedFlags;
use cuda_mem_core::ipc::SharedWords;
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, DeviceBuffer, Error, FenceLine, PinnedBuffer, Stream, Transfer};
use cuda_mem_sim::Sim;

use crate::common::capture::{Capture, RELAXED, raw};
use crate::rig::on_simulator;

const REFUSED: CUresult = CUresult::CUDA_ERROR_OPERATING_SYSTEM;

/// A copy that waits for a fence.
struct Held {
    line: FenceLine,
    other: Stream,
    stream: Stream,
    device: DeviceBuffer<u8>,
}

impl Held {
    fn new(context: &Context) -> Self {
        let (stream, other) = (Stream::new(context).unwrap(), Stream::new(context).unwrap());
        let device = DeviceBuffer::<u8>::from_slice(&stream, &[7; 64]).unwrap();
        stream.synchronize().unwrap();
        let line = FenceLine::new(context).unwrap();
        line.fence(1).unwrap().make_wait(&stream).unwrap();
        Self { line, other, stream, device }
    }

    fn let_go(&self) {
        self.line.record(&self.other).unwrap();
    }
}

fn refuse_waits(sim: &Sim, times: usize) {
    for _ in 0..times {
        sim.fail_call("cuEventSynchronize", 1, REFUSED);
        sim.fail_call("cuStreamSynchronize", 1, REFUSED);
    }
}

fn pinned(context: &Context) -> PinnedBuffer<u8> {
    PinnedBuffer::zeroed(context, 64, PinnedFlags::default()).unwrap()
}

/// Sixteen refusals, 11 ms, used to be taken for a lost context.
#[test]
fn d2_memory_does_not_come_back_while_the_copy_waits() {
    on_simulator(|sim, context| {
        let held = Held::new(context);
        let transfer = Transfer::download(&held.stream, &held.device.whole(), pinned(context)).unwrap();
        refuse_waits(sim, 40);
        let pinned = thread::scope(|threads| {
            threads.spawn(|| {
                while sim.struck().len() < 80 {
                    thread::yield_now();
                }
                held.let_go();
            });
            let refused = transfer.wait().unwrap_err();
            assert_eq!(refused.error.code(), Some(REFUSED), "the first refusal is told");
            refused.owner.unwrap()
        });
        assert_eq!(pinned.as_slice().unwrap(), [7; 64], "the copy was waited for");
    });
}

#[test]
fn d2_memory_that_cannot_be_waited_for_is_leaked_and_counted() {
    let sim = Sim::builder().build();
    let context =
        cuda_mem_core::Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    context.driver().set_patience(Duration::ZERO);
    let held = Held::new(&context);
    let transfer = Transfer::download(&held.stream, &held.device.whole(), pinned(&context)).unwrap();
    refuse_waits(&sim, 1);
    let refused = transfer.wait().unwrap_err();
    assert!(matches!(refused.error, Error::StillInUse { .. }), "{:?}", refused.error);
    assert_eq!(refused.error.code(), Some(REFUSED));
    assert!(refused.owner.is_none());
    // So does a drop.
    let transfer = Transfer::download(&held.stream, &held.device.whole(), pinned(&context)).unwrap();
    refuse_waits(&sim, 1);
    let before = context.driver().release_failures();
    drop(transfer);
    assert_eq!(context.driver().release_failures(), before + 1);
    held.let_go();
    held.stream.synchronize().unwrap();
    assert!(sim.misuse().is_empty(), "{:?}", sim.misuse());
    let leaked = sim.leaks().iter().filter(|leak| leak.what.contains("host")).count();
    assert!(leaked >= 2, "{:?}", sim.leaks());
}

/// Drops what a stream was given, in the stream.
unsafe extern "C" fn drop_there<T>(value: *mut c_void) {
    // SAFETY: the test's box, which is passed once.
    drop(unsafe { Box::from_raw(value.cast::<T>()) });
}

fn drop_in_host_function<T: Send + 'static>(stream: Stream, value: T) {
    let (done, ended) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let launch = stream.context().driver().table().cuLaunchHostFunc().unwrap();
        let value = Box::into_raw(Box::new(value)).cast();
        // SAFETY: a live stream, and a box that the function takes.
        let launched = unsafe { launch(raw(&stream), Some(drop_there::<T>), value) };
        assert_eq!(launched, CUresult::CUDA_SUCCESS);
        stream.synchronize().unwrap();
        done.send(()).unwrap();
    });
    ended.recv_timeout(Duration::from_secs(20)).expect("the stream goes on");
}

/// The stream waits for its host function: no wait in there can end.
#[test]
fn d2_memory_that_is_dropped_in_a_host_function_holds_up_nobody() {
    let sim = Sim::builder().build();
    let driver = cuda_mem_core::Driver::over(sim.table()).unwrap();
    let context = driver.device(0).unwrap().primary_context().unwrap();
    let stream = Stream::new(&context).unwrap();
    let buffer = pinned(&context);
    drop(buffer.on(&stream).unwrap());
    drop_in_host_function(stream, buffer);
    assert_eq!((driver.reclaim(), driver.release_failures()), (0, 0), "it goes back behind the function");
}

/// The driver would refuse it there, for good.
#[test]
fn d2_what_was_put_off_is_not_released_in_a_host_function() {
    let sim = Sim::builder().build();
    let driver = cuda_mem_core::Driver::over(sim.table()).unwrap();
    let context = driver.device(0).unwrap().primary_context().unwrap();
    let (stream, capturing) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
    let [buffer, put_off] = [(); 2].map(|()| pinned(&context));
    drop(buffer.on(&stream).unwrap());
    drop(put_off.on(&capturing).unwrap());
    let capture = Capture::begin(&capturing, RELAXED);
    drop(put_off);
    drop(capture.end().unwrap());
    drop_in_host_function(stream, buffer);
    assert_eq!((driver.reclaim(), driver.release_failures()), (0, 0), "both go back behind the function");
}

fn with_two_streams(sim: &Sim) -> (cuda_mem_core::Driver, Context, [Stream; 2]) {
    let driver = cuda_mem_core::Driver::over(sim.table()).unwrap();
    let context = driver.device(0).unwrap().primary_context().unwrap();
    let streams = [(); 2].map(|()| Stream::new(&context).unwrap());
    (driver, context, streams)
}

/// A stream that somebody else may have capture is asked by an event, which a host function may record and ask.
#[test]
fn d2_a_line_that_is_dropped_in_a_host_function_holds_up_nobody() {
    let sim = Sim::builder().build();
    let (driver, context, [stream, other]) = with_two_streams(&sim);
    assert!(!stream.as_raw().is_null());
    // From here on there is an event for it.
    other.wait_stream(&stream).unwrap();
    let line = FenceLine::new(&context).unwrap();
    line.record(&stream).unwrap();
    line.fence(5).unwrap().make_wait(&other).unwrap();
    drop_in_host_function(stream, line);
    other.synchronize().unwrap();
    until_reclaimed(driver);
}

/// Words that a host function drops are put off, and go back behind it.
fn until_reclaimed(driver: cuda_mem_core::Driver) {
    let start = std::time::Instant::now();
    while driver.reclaim() > 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "it stays");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(driver.release_failures(), 0, "it is not leaked");
}

/// As words that two processes have.
#[test]
fn d2_shared_words_that_are_dropped_in_a_host_function_go_back_behind_it() {
    let sim = Sim::builder().build();
    let (driver, context, [stream, other]) = with_two_streams(&sim);
    let words = SharedWords::create(&context, 2).unwrap();
    words.line(0).unwrap().record(&stream).unwrap();
    words.line(1).unwrap().fence(5).unwrap().make_wait(&other).unwrap();
    drop_in_host_function(stream, words);
    other.synchronize().unwrap();
    until_reclaimed(driver);
}

/// A kernel that fails takes everything down that ran in its context, and no process.
#[test]
fn d2_a_lost_context_gives_memory_back() {
    for code in [
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
        CUresult::CUDA_ERROR_LAUNCH_FAILED,
        CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK,
        CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED,
    ] {
        on_simulator(|sim, context| {
            let stream = Stream::new(context).unwrap();
            let device = DeviceBuffer::<u8>::zeroed(&stream, 64).unwrap();
            let transfer = Transfer::download(&stream, &device.whole(), pinned(context)).unwrap();
            stream.synchronize().unwrap();
            sim.fail_call("cuEventSynchronize", 1, code);
            sim.fail_call("cuStreamSynchronize", 1, code);
            let refused = transfer.wait().unwrap_err();
            assert_eq!(refused.error.code(), Some(code));
            assert!(refused.owner.is_some());
            sim.clear_faults();
            let mut target = [1u8; 64];
            cuda_mem_core::scope(context, |scope| scope.download(&stream, &device.whole(), &mut target))
                .unwrap();
            assert_eq!(target, [0; 64]);
        });
    }
}

/// The scope's memory goes back to its owner when it returns: it does not return.
#[test]
fn d2_a_scope_that_cannot_be_waited_for_aborts_with_its_name() {
    const NAME: &str = "holes_quiet::d2_a_scope_that_cannot_be_waited_for_aborts_with_its_name";
    if std::env::var_os("CUDA_MEM_TEST_CHILD").is_some() {
        let sim = Sim::builder().build();
        let context =
            cuda_mem_core::Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
        context.driver().set_patience(Duration::ZERO);
        let held = Held::new(&context);
        let mut target = pinned(&context);
        let target = target.as_mut_slice().unwrap();
        refuse_waits(&sim, 1);
        let _ = cuda_mem_core::scope(&context, |scope| {
            scope.download(&held.stream, &held.device.whole(), target)
        });
        println!("the scope has returned");
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", NAME, "--nocapture", "--test-threads=1"]).env("CUDA_MEM_TEST_CHILD", "1");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("the scope has returned"));
    assert!(said.contains("scope: borrowed memory may still be in use"), "{said}");
}
