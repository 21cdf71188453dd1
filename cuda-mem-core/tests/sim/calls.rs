//! How many driver calls things take.

use cuda_mem_core::{Context, DeviceBuffer, Stream};
use cuda_mem_sim::Sim;

use crate::rig::{current, log_of, on, on_simulator, read_on, text};

const WORK: [&str; 3] = ["cuMemAllocAsync", "cuMemcpyAsync", "cuMemFreeAsync"];

fn set_current(sim: &Sim, raw: *mut std::ffi::c_void) {
    // SAFETY: none, or a context that lives.
    let _ = unsafe { sim.table().cuCtxSetCurrent().unwrap()(raw.cast()) };
}

/// The calls of allocating, copying one KiB and dropping, when every function is known already.
fn calls(sim: &Sim, stream: &Stream, work: fn(&Stream, &[u8])) -> Vec<&'static str> {
    let source = [1u8; 1024];
    work(stream, &source);
    let records = log_of(&sim.log(), || work(stream, &source));
    records.iter().map(|record| record.function).collect()
}

fn at_once(stream: &Stream, source: &[u8]) {
    drop(DeviceBuffer::from_slice(stream, source).unwrap());
}

fn in_steps(stream: &Stream, source: &[u8]) {
    let buffer = DeviceBuffer::<u8>::uninit(stream, source.len()).unwrap();
    buffer.copy_from_slice(stream, source).unwrap();
    drop(buffer);
}

/// What is done for captures of others, whose cost is a few nanoseconds each: the driver counts allocations, frees and waits as
/// unsafe while any thread captures, and takes their captures from them.
const FOR_CAPTURES: [&str; 2] = ["cuThreadExchangeStreamCaptureMode", "cuStreamIsCapturing"];

#[test]
fn allocating_copying_and_dropping_takes_what_it_needs_and_one_wait() {
    on_simulator(|sim, context| {
        let stream = Stream::new(context).unwrap();
        let other = sim_context(sim, context);
        set_current(sim, context.as_raw());
        let same = calls(sim, &stream, at_once);
        println!("the context current: {} calls: {}", same.len(), same.join(" "));
        let work: Vec<_> = same.iter().copied().filter(|call| !FOR_CAPTURES.contains(call)).collect();
        assert_eq!(
            work,
            [WORK[0], "cuCtxGetCurrent", WORK[1], "cuCtxGetCurrent", "cuStreamSynchronize", WORK[2]]
        );
        assert!(same.len() - work.len() <= 5, "{same:?}");
        let steps = calls(sim, &stream, in_steps);
        println!("in separate steps: {} calls: {}", steps.len(), steps.join(" "));
        assert!(steps.len() <= same.len() + 3, "{steps:?}");

        for raw in [other.0, std::ptr::null_mut()] {
            set_current(sim, raw);
            let calls = calls(sim, &stream, at_once);
            println!("{raw:?} current: {} calls: {}", calls.len(), calls.join(" "));
            assert!(calls.len() <= same.len() + 2, "{calls:?}");
            assert_eq!(current(sim.table()), raw.addr());
        }
    });
}

/// Another context, until it is dropped.
struct Other<'s>(*mut std::ffi::c_void, &'s Sim);

fn sim_context<'s>(sim: &'s Sim, of: &Context) -> Other<'s> {
    let mut raw = std::ptr::null_mut();
    // SAFETY: one handle to write, a valid device.
    let result = unsafe { sim.table().cuCtxCreate().unwrap()(&mut raw, 0, of.device().as_raw()) };
    assert_eq!(result.0, 0);
    Other(raw.cast(), sim)
}

impl Drop for Other<'_> {
    fn drop(&mut self) {
        set_current(self.1, std::ptr::null_mut());
        // SAFETY: made in `sim_context`, destroyed once.
        let _ = unsafe { self.1.table().cuCtxDestroy().unwrap()(self.0.cast()) };
    }
}

#[test]
fn older_drivers_are_asked_what_is_current_before_each_call() {
    on(Sim::builder().driver(12020), |sim, context| {
        let stream = Stream::new(context).unwrap();
        set_current(sim, context.as_raw());
        let calls = calls(sim, &stream, at_once);
        println!("CUDA 12.2: {} calls: {}", calls.len(), calls.join(" "));
        let besides = |call: &&str| FOR_CAPTURES.contains(call) || *call == "cuCtxGetCurrent";
        let work: Vec<_> = calls.iter().copied().filter(|call| !besides(call)).collect();
        assert_eq!(work, [WORK[0], WORK[1], "cuStreamSynchronize", WORK[2]]);
        set_current(sim, std::ptr::null_mut());
    });
}

#[test]
fn a_buffer_that_needs_no_event_has_none() {
    on_simulator(|sim, context| {
        let stream = Stream::new(context).unwrap();
        sim.log().clear();
        let buffer = DeviceBuffer::from_slice(&stream, &[1u8; 5000]).unwrap();
        let other = DeviceBuffer::<u8>::zeroed(&stream, 5000).unwrap();
        read_on(&buffer, &stream, &other);
        drop(buffer.on(&stream).unwrap());
        assert_eq!(other.to_vec(&stream).unwrap(), [1; 5000]);
        drop((buffer, other));
        let events = sim.log().filter(|record| record.function.starts_with("cuEvent"));
        assert!(events.is_empty(), "{}", text(&events));
    });
}

#[test]
fn events_that_order_streams_are_used_again() {
    on_simulator(|sim, context| {
        let (one, two) = (Stream::new(context).unwrap(), Stream::new(context).unwrap());
        let buffer = DeviceBuffer::<u8>::zeroed(&one, 5000).unwrap();
        sim.log().clear();
        for _ in 0..100 {
            buffer.whole().fill_bytes(&two, 1).unwrap();
            buffer.whole().fill_bytes(&one, 2).unwrap();
        }
        assert_eq!(sim.log().count("cuEventCreate"), 1);
        assert_eq!((sim.log().count("cuEventRecord"), sim.log().count("cuStreamWaitEvent")), (200, 200));
    });
}
