//! The order of streams: what waits for what, and what does not.

use std::ffi::c_void;
use std::ptr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use cuda_mem_sys::{
    CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUdriverProcAddress_flags, CUresult, CUstream,
    PFN_cuGetProcAddress_v12000, PFN_cuStreamGetId_v12000,
};

use crate::common::{Gate, Machine, NOT_READY, code, ok};

#[test]
fn work_of_a_stream_is_done_in_order_and_the_host_goes_on() {
    let machine = Machine::new();
    let stream = machine.stream(1);
    let at = machine.memory(4);
    let gate = machine.gate(stream);
    ok!(machine.table, cuMemsetD32Async(at, 1, 1, stream));
    ok!(machine.table, cuMemsetD32Async(at, 2, 1, stream));
    assert_eq!(code!(machine.table, cuStreamQuery(stream)), NOT_READY);
    gate.open();
    ok!(machine.table, cuStreamSynchronize(stream));
    ok!(machine.table, cuStreamQuery(stream));
    assert_eq!(machine.word(at), 2);
}

#[test]
fn an_event_orders_two_streams_as_it_was_when_the_wait_was_given() {
    let machine = Machine::new();
    let (first, second) = (machine.stream(1), machine.stream(1));
    let (at, event) = (machine.memory(4), machine.event(2));
    let gate = machine.gate(first);
    ok!(machine.table, cuMemsetD32Async(at, 1, 1, first));
    ok!(machine.table, cuEventRecord(event, first));
    ok!(machine.table, cuStreamWaitEvent(second, event, 0));
    // The wait stands for the first record, not for this one, which another gate holds back.
    let other_gate = machine.gate(first);
    ok!(machine.table, cuEventRecord(event, first));
    ok!(machine.table, cuMemsetD32Async(at, 2, 1, second));
    assert_eq!(code!(machine.table, cuEventQuery(event)), NOT_READY);
    gate.open();
    ok!(machine.table, cuStreamSynchronize(second));
    assert_eq!(code!(machine.table, cuEventQuery(event)), NOT_READY);
    other_gate.open();
    ok!(machine.table, cuEventSynchronize(event));
    assert_eq!(machine.word(at), 2);
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_only() {
    let machine = Machine::new();
    for (flags, expected) in [(0, NOT_READY), (1, 0)] {
        let stream = machine.stream(flags);
        let gate = machine.gate(stream);
        assert_eq!(code!(machine.table, cuStreamQuery(ptr::null_mut())), expected);
        assert_eq!(code!(machine.table, cuStreamQuery(CU_STREAM_LEGACY)), expected);
        gate.open();
        ok!(machine.table, cuStreamSynchronize(stream));
    }
}

#[test]
fn blocking_streams_wait_for_the_legacy_stream() {
    let machine = Machine::new();
    let (blocking, free) = (machine.stream(0), machine.stream(1));
    let gate = machine.gate(CU_STREAM_LEGACY);
    let at = machine.memory(8);
    ok!(machine.table, cuMemsetD32Async(at, 1, 1, blocking));
    ok!(machine.table, cuMemsetD32Async(at + 4, 1, 1, free));
    ok!(machine.table, cuStreamSynchronize(free));
    assert_eq!(code!(machine.table, cuStreamQuery(blocking)), NOT_READY);
    gate.open();
    ok!(machine.table, cuStreamSynchronize(blocking));
}

#[test]
fn the_null_stream_is_the_threads_own_for_the_per_thread_functions() {
    let machine = Machine::new();
    let look_up = machine.sim.symbol(c"cuGetProcAddress_v2");
    // SAFETY: the export of exactly this type.
    let look_up = unsafe { std::mem::transmute::<*const c_void, PFN_cuGetProcAddress_v12000>(look_up) };
    let flags = CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM.0.into();
    let (mut found, status) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: a terminated name and one address to write.
    let code = unsafe { look_up(c"cuStreamGetId".as_ptr(), &mut found, 12000, flags, status) };
    assert_eq!(code, CUresult::CUDA_SUCCESS);
    // SAFETY: the function of this type, whose null stream is the calling thread's.
    let get_own_id = unsafe { std::mem::transmute::<*mut c_void, PFN_cuStreamGetId_v12000>(found) };
    let own_id = |stream: CUstream| {
        let mut id = 0;
        // SAFETY: a default stream, and one number to write.
        assert_eq!(unsafe { get_own_id(stream, &mut id) }, CUresult::CUDA_SUCCESS);
        id
    };
    let id = |stream: CUstream| {
        let mut id = 0;
        ok!(machine.table, cuStreamGetId(stream, &mut id));
        id
    };
    let mine = own_id(ptr::null_mut());
    assert_eq!(mine, id(CU_STREAM_PER_THREAD));
    assert_eq!(id(ptr::null_mut()), own_id(CU_STREAM_LEGACY));
    assert_ne!(mine, id(CU_STREAM_LEGACY));
    let context = machine.context.addr();
    let theirs = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                ok!(machine.table, cuCtxSetCurrent(ptr::without_provenance_mut(context)));
                own_id(ptr::null_mut())
            })
            .join()
            .unwrap()
    });
    assert_ne!(mine, theirs);
}

#[test]
fn stream_ids_are_never_used_again() {
    let machine = Machine::new();
    let mut ids = Vec::new();
    for _ in 0..10 {
        let stream = machine.stream(1);
        let mut id = 0;
        ok!(machine.table, cuStreamGetId(stream, &mut id));
        ok!(machine.table, cuStreamDestroy(stream));
        ids.push(id);
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 10);
}

#[test]
fn a_destroyed_stream_still_does_its_work() {
    let machine = Machine::new();
    let stream = machine.stream(1);
    let at = machine.memory(4);
    let gate = machine.gate(stream);
    ok!(machine.table, cuMemsetD32Async(at, 7, 1, stream));
    ok!(machine.table, cuStreamDestroy(stream));
    assert_eq!(code!(machine.table, cuStreamQuery(stream)), 400);
    gate.open();
    ok!(machine.table, cuCtxSynchronize());
    assert_eq!(machine.word(at), 7);
}

#[test]
fn an_event_of_the_whole_context_covers_every_stream() {
    let machine = Machine::new();
    let (first, second) = (machine.stream(1), machine.stream(0));
    let event = machine.event(2);
    let gates = [machine.gate(first), machine.gate(second)];
    ok!(machine.table, cuCtxRecordEvent(machine.context, event));
    for gate in &gates {
        assert_eq!(code!(machine.table, cuEventQuery(event)), NOT_READY);
        gate.open();
        std::thread::sleep(Duration::from_millis(5));
    }
    ok!(machine.table, cuEventSynchronize(event));
}

#[test]
fn a_context_that_waits_holds_back_every_stream() {
    let machine = Machine::new();
    let (first, second) = (machine.stream(1), machine.stream(1));
    let event = machine.event(2);
    let gate = machine.gate(first);
    ok!(machine.table, cuEventRecord(event, first));
    ok!(machine.table, cuCtxWaitEvent(machine.context, event));
    let at = machine.memory(4);
    ok!(machine.table, cuMemsetD32Async(at, 1, 1, second));
    assert_eq!(code!(machine.table, cuStreamQuery(second)), NOT_READY);
    gate.open();
    ok!(machine.table, cuStreamSynchronize(second));
}

#[test]
fn events_tell_time_in_both_directions() {
    let machine = Machine::new();
    let stream = machine.stream(1);
    let (start, end, untimed) = (machine.event(0), machine.event(0), machine.event(2));
    let mut time = 0.0;
    assert_eq!(code!(machine.table, cuEventElapsedTime(&mut time, start, end)), 400);
    let (begun, spin) = (Instant::now(), machine.kernel(c"spin_ns"));
    ok!(machine.table, cuEventRecord(start, stream));
    assert_eq!(machine.launch(spin, stream, &[5_000_000]), 0);
    let gate = machine.gate(stream);
    ok!(machine.table, cuEventRecord(end, stream));
    assert_eq!(code!(machine.table, cuEventElapsedTime(&mut time, start, end)), NOT_READY);
    gate.open();
    ok!(machine.table, cuEventSynchronize(end));
    let all = begun.elapsed().as_secs_f32() * 1000.0;
    ok!(machine.table, cuEventElapsedTime(&mut time, start, end));
    assert!((5.0..=all).contains(&time), "{time} of {all}");
    ok!(machine.table, cuEventElapsedTime(&mut time, end, start));
    assert!(time <= -5.0);
    ok!(machine.table, cuEventRecord(untimed, stream));
    assert_eq!(code!(machine.table, cuEventElapsedTime(&mut time, start, untimed)), 400);
}

#[test]
fn host_functions_run_in_order_and_may_not_call_the_driver() {
    struct Seen {
        table: &'static cuda_mem_sys::Table,
        codes: Mutex<Vec<u32>>,
    }
    unsafe extern "C" fn look(data: *mut c_void) {
        // SAFETY: the test passes a pointer to its `Seen`, which it keeps until the stream is done.
        let seen = unsafe { &*data.cast::<Seen>() };
        let (mut free, mut total, mut version) = (0, 0, 0);
        let codes = [
            code!(seen.table, cuMemGetInfo(&mut free, &mut total)),
            code!(seen.table, cuMemFree(0)),
            code!(seen.table, cuDriverGetVersion(&mut version)),
        ];
        seen.codes.lock().unwrap().extend(codes);
    }
    let machine = Machine::new();
    let stream = machine.stream(1);
    let seen = Seen { table: machine.table, codes: Mutex::default() };
    ok!(machine.table, cuLaunchHostFunc(stream, Some(look), (&raw const seen).cast_mut().cast()));
    ok!(machine.table, cuStreamSynchronize(stream));
    assert_eq!(*seen.codes.lock().unwrap(), [800, 800, 0]);
    assert_eq!(code!(machine.table, cuLaunchHostFunc(stream, None, ptr::null_mut())), 1);
}

#[test]
fn a_waiting_stream_keeps_no_worker() {
    let machine = Machine::of(cuda_mem_sim::Sim::builder().workers(1));
    let waiting: Vec<_> = (0..4).map(|_| machine.stream(1)).collect();
    let gates: Vec<_> = waiting.iter().map(|&stream| machine.gate(stream)).collect();
    let (stream, at) = (machine.stream(1), machine.memory(4));
    ok!(machine.table, cuMemsetD32Async(at, 3, 1, stream));
    while code!(machine.table, cuStreamQuery(stream)) == NOT_READY {
        std::thread::yield_now();
    }
    gates.iter().for_each(Gate::open);
    ok!(machine.table, cuCtxSynchronize());
}

#[test]
fn words_are_written_and_waited_for_in_device_memory() {
    let machine = Machine::new();
    let (first, second) = (machine.stream(1), machine.stream(1));
    let at = machine.memory(16);
    // Filling device memory does not wait, and neither stream waits for the legacy one.
    ok!(machine.table, cuMemsetD8(at, 0, 16));
    ok!(machine.table, cuCtxSynchronize());
    ok!(machine.table, cuStreamWaitValue64(second, at + 8, 5, 0));
    let event = machine.event(2);
    ok!(machine.table, cuEventRecord(event, second));
    ok!(machine.table, cuStreamWriteValue64(first, at + 8, 4, 0));
    ok!(machine.table, cuStreamSynchronize(first));
    assert_eq!(code!(machine.table, cuEventQuery(event)), NOT_READY);
    ok!(machine.table, cuStreamWriteValue64(first, at + 8, 6, 0));
    ok!(machine.table, cuEventSynchronize(event));
    assert_eq!(code!(machine.table, cuStreamWriteValue64(first, at + 4, 1, 0)), 1);
    assert_eq!(code!(machine.table, cuStreamWaitValue64(first, at, 1, 1 << 30)), 801);
}
