//! Capture: what becomes a graph, what a capture forbids, and what ends it.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_mem_sys::*;

use crate::common::{Machine, code, ok};

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const THREAD_LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

fn status(machine: &Machine, stream: CUstream) -> u32 {
    let mut status = CUstreamCaptureStatus(9);
    ok!(machine.table, cuStreamIsCapturing(stream, &mut status));
    status.0
}

fn end(machine: &Machine, stream: CUstream) -> (u32, CUgraph) {
    let mut graph = ptr::without_provenance_mut(0xBAD);
    (code!(machine.table, cuStreamEndCapture(stream, &mut graph)), graph)
}

fn exec(machine: &Machine, graph: CUgraph) -> CUgraphExec {
    let mut exec = ptr::null_mut();
    ok!(machine.table, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    exec
}

fn node_kinds(machine: &Machine, graph: CUgraph) -> Vec<CUgraphNodeType> {
    let mut count = 0;
    ok!(machine.table, cuGraphGetNodes(graph, ptr::null_mut(), &mut count));
    let mut nodes = vec![ptr::null_mut(); count];
    ok!(machine.table, cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
    let kind = |node| {
        let mut kind = CUgraphNodeType(99);
        ok!(machine.table, cuGraphNodeGetType(node, &mut kind));
        kind
    };
    nodes.into_iter().map(kind).collect()
}

#[test]
fn a_graph_does_what_was_captured_as_often_as_it_is_launched() {
    let machine = Machine::new();
    let (stream, at) = (machine.stream(1), machine.memory(16));
    ok!(machine.table, cuMemsetD32(at, 10, 4));
    let add = machine.kernel(c"add_one_u32");
    ok!(machine.table, cuStreamBeginCapture(stream, GLOBAL));
    assert_eq!(machine.launch(add, stream, &[at, 4]), 0);
    ok!(machine.table, cuMemcpyDtoDAsync(at + 4, at, 4, stream));
    ok!(machine.table, cuMemsetD32Async(at + 8, 1, 1, stream));
    let (code, graph) = end(&machine, stream);
    assert_eq!(code, 0);
    assert_eq!(machine.word(at), 10, "a capture does nothing");
    assert_eq!(
        node_kinds(&machine, graph),
        [
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET
        ]
    );
    let exec = exec(&machine, graph);
    ok!(machine.table, cuGraphDestroy(graph));
    for round in 1..=3 {
        ok!(machine.table, cuGraphLaunch(exec, stream));
        ok!(machine.table, cuStreamSynchronize(stream));
        assert_eq!((machine.word(at), machine.word(at + 4)), (10 + round, 10 + round));
    }
    ok!(machine.table, cuGraphExecDestroy(exec));
}

#[test]
fn other_streams_join_by_events_and_must_be_joined_back() {
    let machine = Machine::new();
    let (origin, other) = (machine.stream(1), machine.stream(1));
    let (fork, join, at) = (machine.event(2), machine.event(2), machine.memory(8));
    for joins in [true, false] {
        ok!(machine.table, cuStreamBeginCapture(origin, GLOBAL));
        ok!(machine.table, cuMemsetD32Async(at, 1, 1, origin));
        ok!(machine.table, cuEventRecord(fork, origin));
        ok!(machine.table, cuStreamWaitEvent(other, fork, 0));
        assert_eq!(status(&machine, other), 1);
        ok!(machine.table, cuMemsetD32Async(at + 4, 1, 1, other));
        if joins {
            ok!(machine.table, cuEventRecord(join, other));
            ok!(machine.table, cuStreamWaitEvent(origin, join, 0));
        }
        let (code, graph) = end(&machine, origin);
        assert_eq!(code, if joins { 0 } else { 904 });
        assert_eq!(graph.is_null(), !joins);
        assert_eq!((status(&machine, origin), status(&machine, other)), (0, 0));
    }
    // The capture is over, and so is what the event stood for.
    assert_eq!(code!(machine.table, cuEventQuery(fork)), 1);
}

#[test]
fn unsafe_calls_end_a_capture_as_the_modes_say() {
    let machine = Machine::new();
    let own = |mode: CUstreamCaptureMode| {
        let mut mode = mode;
        ok!(machine.table, cuThreadExchangeStreamCaptureMode(&mut mode));
        mode
    };
    for (capture_mode, thread_mode, expected) in [
        (GLOBAL, GLOBAL, 900),
        (THREAD_LOCAL, GLOBAL, 900),
        (RELAXED, GLOBAL, 0),
        (GLOBAL, RELAXED, 0),
        (THREAD_LOCAL, RELAXED, 0),
        (GLOBAL, THREAD_LOCAL, 900),
    ] {
        let stream = machine.stream(1);
        ok!(machine.table, cuStreamBeginCapture(stream, capture_mode));
        assert_eq!(own(thread_mode), GLOBAL);
        let mut pointer = 0;
        assert_eq!(
            code!(machine.table, cuMemAlloc(&mut pointer, 16)),
            expected,
            "{capture_mode:?} {thread_mode:?}"
        );
        assert_eq!(own(GLOBAL), thread_mode);
        assert_eq!(status(&machine, stream), if expected == 0 { 1 } else { 2 });
        assert_eq!(end(&machine, stream).0, if expected == 0 { 0 } else { 901 });
    }
}

#[test]
fn another_threads_global_capture_forbids_unsafe_calls_here() {
    let machine = Machine::new();
    let context = machine.context.addr();
    for (mode, expected) in [(GLOBAL, 900), (THREAD_LOCAL, 0), (RELAXED, 0)] {
        let stream = machine.stream(1);
        ok!(machine.table, cuStreamBeginCapture(stream, mode));
        let table = machine.table;
        let there = std::thread::spawn(move || {
            ok!(table, cuCtxSetCurrent(ptr::without_provenance_mut(context)));
            let mut pointer = 0;
            code!(table, cuMemAlloc(&mut pointer, 16))
        });
        assert_eq!(there.join().unwrap(), expected, "{mode:?}");
        assert_eq!(end(&machine, stream).0, if expected == 0 { 0 } else { 901 });
    }
}

#[test]
fn a_capture_is_ended_by_the_thread_that_began_it_unless_it_is_relaxed() {
    let machine = Machine::new();
    for (mode, expected) in [(THREAD_LOCAL, 908), (RELAXED, 0)] {
        let stream = machine.stream(1);
        ok!(machine.table, cuStreamBeginCapture(stream, mode));
        let (table, handle) = (machine.table, stream.addr());
        let there = std::thread::spawn(move || {
            let mut graph = ptr::null_mut();
            code!(table, cuStreamEndCapture(ptr::without_provenance_mut(handle), &mut graph))
        });
        assert_eq!(there.join().unwrap(), expected);
        assert_eq!(status(&machine, stream), 0);
    }
}

#[test]
fn what_a_capture_cannot_hold_is_refused() {
    let machine = Machine::new();
    let (stream, other) = (machine.stream(1), machine.stream(1));
    let (done, captured) = (machine.event(2), machine.event(2));
    ok!(machine.table, cuEventRecord(done, other));
    ok!(machine.table, cuEventSynchronize(done));
    type Attempt<'a> = (&'a str, u32, Box<dyn Fn() -> u32 + 'a>);
    let table = machine.table;
    let attempts: Vec<Attempt<'_>> = vec![
        ("query of the stream", 900, Box::new(|| code!(table, cuStreamQuery(stream)))),
        ("wait for the stream", 900, Box::new(|| code!(table, cuStreamSynchronize(stream)))),
        ("wait for the context", 900, Box::new(|| code!(table, cuCtxSynchronize()))),
        ("event of the context", 900, Box::new(|| code!(table, cuCtxRecordEvent(machine.context, done)))),
        ("id of the stream", 900, Box::new(|| code!(table, cuStreamGetId(stream, &mut 0)))),
        ("query of a captured event", 907, Box::new(|| code!(table, cuEventQuery(captured)))),
        ("wait for a captured event", 907, Box::new(|| code!(table, cuEventSynchronize(captured)))),
        ("event from outside", 905, Box::new(|| code!(table, cuStreamWaitEvent(stream, done, 0)))),
        (
            "captured event into the legacy stream",
            906,
            Box::new(|| code!(table, cuStreamWaitEvent(ptr::null_mut(), captured, 0))),
        ),
    ];
    for (what, expected, attempt) in attempts {
        ok!(table, cuStreamBeginCapture(stream, RELAXED));
        ok!(table, cuEventRecord(captured, stream));
        assert_eq!(attempt(), expected, "{what}");
        assert_eq!(status(&machine, stream), 2, "{what}");
        assert_eq!(end(&machine, stream).0, 901, "{what}");
    }
}

#[test]
fn a_blocking_stream_that_captures_forbids_the_legacy_stream() {
    let machine = Machine::new();
    let stream = machine.stream(0);
    ok!(machine.table, cuStreamBeginCapture(stream, RELAXED));
    let mut asked = CUstreamCaptureStatus(9);
    assert_eq!(code!(machine.table, cuStreamIsCapturing(ptr::null_mut(), &mut asked)), 906);
    assert_eq!(status(&machine, stream), 1, "to ask ends nothing");
    assert_eq!(code!(machine.table, cuStreamGetId(ptr::null_mut(), &mut 0)), 906);
    assert_eq!(end(&machine, stream).0, 901);
    ok!(machine.table, cuStreamGetId(ptr::null_mut(), &mut 0));
}

#[test]
fn begin_and_end_are_matched() {
    let machine = Machine::new();
    let stream = machine.stream(1);
    assert_eq!(end(&machine, stream).0, 401);
    assert_eq!(code!(machine.table, cuStreamBeginCapture(ptr::null_mut(), RELAXED)), 900);
    assert_eq!(code!(machine.table, cuStreamBeginCapture(stream, CUstreamCaptureMode(9))), 1);
    ok!(machine.table, cuStreamBeginCapture(stream, GLOBAL));
    assert_eq!(code!(machine.table, cuStreamBeginCapture(stream, GLOBAL)), 401);
    assert_eq!(end(&machine, stream).0, 0);
}

#[test]
fn dependencies_can_be_read_and_set() {
    let machine = Machine::new();
    let (stream, at) = (machine.stream(1), machine.memory(8));
    ok!(machine.table, cuStreamBeginCapture(stream, GLOBAL));
    ok!(machine.table, cuMemsetD32Async(at, 1, 1, stream));
    let (mut state, mut id, mut graph) = (CUstreamCaptureStatus(9), 0, ptr::null_mut());
    let (mut after, mut count) = (ptr::null(), 0);
    ok!(
        machine.table,
        cuStreamGetCaptureInfo(stream, &mut state, &mut id, &mut graph, &mut after, &mut count)
    );
    assert_eq!((state.0, count), (1, 1));
    assert!(id != 0 && !graph.is_null());
    let mut empty = ptr::null_mut();
    ok!(machine.table, cuGraphAddEmptyNode(&mut empty, graph, after, count));
    ok!(machine.table, cuStreamUpdateCaptureDependencies(stream, &mut empty, 1, 1));
    ok!(machine.table, cuMemsetD32Async(at + 4, 1, 1, stream));
    let (code, graph) = end(&machine, stream);
    assert_eq!(code, 0);
    assert_eq!(node_kinds(&machine, graph).len(), 3);
}

#[test]
fn user_objects_live_as_long_as_the_last_who_holds_them() {
    unsafe extern "C" fn count(data: *mut c_void) {
        // SAFETY: the test passes a pointer to its counter, which outlives the object.
        let counter = unsafe { &*data.cast::<AtomicU32>() };
        counter.fetch_add(1, Ordering::SeqCst);
    }
    let machine = Machine::new();
    let destroyed = AtomicU32::new(0);
    let (mut graph, mut object) = (ptr::null_mut(), ptr::null_mut());
    ok!(machine.table, cuGraphCreate(&mut graph, 0));
    ok!(
        machine.table,
        cuUserObjectCreate(&mut object, (&raw const destroyed).cast_mut().cast(), Some(count), 1, 1)
    );
    ok!(machine.table, cuGraphRetainUserObject(graph, object, 1, 1));
    let exec = exec(&machine, graph);
    ok!(machine.table, cuGraphDestroy(graph));
    assert_eq!(destroyed.load(Ordering::SeqCst), 0);
    ok!(machine.table, cuGraphExecDestroy(exec));
    assert_eq!(destroyed.load(Ordering::SeqCst), 1);
    assert_eq!(code!(machine.table, cuUserObjectRelease(object, 1)), 1);
}
