//! Captures: how they begin and end, and what they and other calls do to each other.

use std::ptr;

use cuda_mem_sys::*;

use crate::Case;
use crate::machine::{Machine, code, codes};

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

fn begin(m: &Machine, stream: CUstream, mode: u32) -> u32 {
    code!(m, cuStreamBeginCapture(stream, CUstreamCaptureMode(mode)))
}

/// The code of the end, and whether there is a graph.
fn end(m: &Machine, stream: CUstream) -> (u32, bool) {
    let mut graph = ptr::null_mut();
    (code!(m, cuStreamEndCapture(stream, &mut graph)), !graph.is_null())
}

fn status(m: &Machine, stream: CUstream) -> u32 {
    let mut status = CUstreamCaptureStatus(9);
    assert_eq!(code!(m, cuStreamIsCapturing(stream, &mut status)), 0);
    status.0
}

fn exchange(m: &Machine, mode: u32) -> u32 {
    let mut mode = CUstreamCaptureMode(mode);
    code!(m, cuThreadExchangeStreamCaptureMode(&mut mode))
}

/// In each mode, by this thread and by another: the code of a call beside the capture of a stream, a `!` if that ended it.
fn beside(m: &Machine, flags: u32, call: fn(&Machine, CUstream) -> u32) -> String {
    let mut results = Vec::new();
    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        for other_thread in [false, true] {
            let stream = m.stream(flags);
            assert_eq!(begin(m, stream, mode), 0);
            let handle = stream.addr();
            let code = if other_thread {
                m.elsewhere(true, |m| call(m, ptr::without_provenance_mut(handle)))
            } else {
                call(m, stream)
            };
            let ended = status(m, stream) == 2;
            assert_eq!(end(m, stream).0, if ended { 901 } else { 0 });
            results.push(format!("{code}{}", if ended { "!" } else { "" }));
        }
    }
    results.join(" ")
}

/// As [`beside`], this thread only, relaxed itself.
fn beside_relaxed_thread(m: &Machine, call: fn(&Machine, CUstream) -> u32) -> String {
    let mut results = Vec::new();
    for mode in [GLOBAL, THREAD_LOCAL] {
        let stream = m.stream(1);
        assert_eq!(begin(m, stream, mode), 0);
        assert_eq!(exchange(m, RELAXED), 0);
        let code = call(m, stream);
        assert_eq!(exchange(m, GLOBAL), 0);
        let ended = status(m, stream) == 2;
        assert_eq!(end(m, stream).0, if ended { 901 } else { 0 });
        results.push(format!("{code}{}", if ended { "!" } else { "" }));
    }
    results.join(" ")
}

fn allocate(m: &Machine, _: CUstream) -> u32 {
    code!(m, cuMemAlloc(&mut 0, 16))
}

pub(crate) const CASES: &[Case] = &[
    ("cuStreamBeginCapture: legacy streams, mode 9, per-thread relaxed", |m| {
        let own = CU_STREAM_PER_THREAD;
        codes(&[
            begin(m, ptr::null_mut(), GLOBAL),
            begin(m, ptr::null_mut(), RELAXED),
            begin(m, CU_STREAM_LEGACY, RELAXED),
            begin(m, m.stream(1), 9),
            begin(m, own, RELAXED),
            end(m, own).0,
        ])
    }),
    ("cuStreamBeginCapture: again", |m| {
        let stream = m.stream(1);
        codes(&[begin(m, stream, GLOBAL), begin(m, stream, GLOBAL), status(m, stream), end(m, stream).0])
    }),
    ("cuStreamEndCapture: not capturing", |m| codes(&[end(m, m.stream(1)).0])),
    ("cuStreamEndCapture: another thread, thread-local and relaxed", |m| {
        let result = |mode| {
            let stream = m.stream(1);
            begin(m, stream, mode);
            let handle = stream.addr();
            let code = m.elsewhere(true, |m| end(m, ptr::without_provenance_mut(handle)).0);
            format!("{code} {}", status(m, stream))
        };
        format!("{} {}", result(THREAD_LOCAL), result(RELAXED))
    }),
    ("cuStreamEndCapture: a stream not joined back", |m| {
        let (stream, other, fork, at) = (m.stream(1), m.stream(1), m.event(2), m.memory(16));
        begin(m, stream, GLOBAL);
        code!(m, cuEventRecord(fork, stream));
        let join = code!(m, cuStreamWaitEvent(other, fork, 0));
        code!(m, cuMemsetD32Async(at, 1, 1, other));
        let (code, graph) = end(m, stream);
        format!("{join} {code} {graph}")
    }),
    ("event recorded only in a capture that has ended: query, wait, elapsed", |m| {
        let (stream, event) = (m.stream(1), m.event(0));
        begin(m, stream, GLOBAL);
        code!(m, cuEventRecord(event, stream));
        end(m, stream);
        codes(&[
            code!(m, cuEventQuery(event)),
            code!(m, cuStreamWaitEvent(m.stream(1), event, 0)),
            code!(m, cuEventElapsedTime(&mut 0.0, event, event)),
        ])
    }),
    ("cuThreadExchangeStreamCaptureMode: mode 7", |m| codes(&[exchange(m, 7)])),
    ("cuStreamDestroy: capturing stream", |m| {
        let stream = m.stream(1);
        begin(m, stream, GLOBAL);
        codes(&[code!(m, cuStreamDestroy(stream))])
    }),
    ("beside a capture: cuMemAlloc", |m| beside(m, 1, allocate)),
    ("beside a capture, thread set to relaxed: cuMemAlloc", |m| beside_relaxed_thread(m, allocate)),
    ("beside a capture: cuMemFree(null)", |m| beside(m, 1, |m, _| code!(m, cuMemFree(0)))),
    ("beside a capture: cuMemHostAlloc", |m| {
        beside(m, 1, |m, _| code!(m, cuMemHostAlloc(&mut ptr::null_mut(), 16, 0)))
    }),
    ("beside a capture: cuStreamQuery(other)", |m| beside(m, 1, |m, _| code!(m, cuStreamQuery(m.stream(1))))),
    ("beside a capture: cuStreamSynchronize(legacy)", |m| {
        beside(m, 1, |m, _| code!(m, cuStreamSynchronize(CU_STREAM_LEGACY)))
    }),
    ("beside a capture: cuEventQuery(never recorded)", |m| {
        beside(m, 1, |m, _| code!(m, cuEventQuery(m.event(2))))
    }),
    ("beside a capture: cuEventSynchronize(never recorded)", |m| {
        beside(m, 1, |m, _| code!(m, cuEventSynchronize(m.event(2))))
    }),
    ("beside a capture: cuStreamQuery(capturing)", |m| {
        beside(m, 1, |m, stream| code!(m, cuStreamQuery(stream)))
    }),
    ("beside a capture: cuStreamSynchronize(capturing)", |m| {
        beside(m, 1, |m, stream| code!(m, cuStreamSynchronize(stream)))
    }),
    ("beside a capture: cuStreamGetId(capturing)", |m| {
        beside(m, 1, |m, stream| code!(m, cuStreamGetId(stream, &mut 0)))
    }),
    ("beside a capture: cuCtxSynchronize", |m| beside(m, 1, |m, _| code!(m, cuCtxSynchronize()))),
    ("beside a capture: cuCtxRecordEvent", |m| {
        beside(m, 1, |m, _| code!(m, cuCtxRecordEvent(m.context, m.event(2))))
    }),
    ("beside a capture: cuEventRecord(legacy)", |m| {
        beside(m, 1, |m, _| code!(m, cuEventRecord(m.event(2), ptr::null_mut())))
    }),
    ("beside a capture: cuStreamCreate and cuStreamDestroy", |m| {
        beside(m, 1, |m, _| code!(m, cuStreamDestroy(m.stream(1))))
    }),
    ("beside a capture: cuMemGetInfo", |m| beside(m, 1, |m, _| code!(m, cuMemGetInfo(&mut 0, &mut 0)))),
    ("beside a capture: cuModuleLoadData", |m| {
        beside(m, 1, |m, _| {
            let image = cuda_mem_sim::TEST_KERNELS.as_ptr().cast();
            code!(m, cuModuleLoadData(&mut ptr::null_mut(), image))
        })
    }),
    ("beside a capture: captured event, query", |m| {
        beside(m, 1, |m, stream| {
            let event = m.event(2);
            assert_eq!(code!(m, cuEventRecord(event, stream)), 0);
            code!(m, cuEventQuery(event))
        })
    }),
    ("beside a capture: cuStreamWaitEvent(legacy, captured event)", |m| {
        beside(m, 1, |m, stream| {
            let event = m.event(2);
            assert_eq!(code!(m, cuEventRecord(event, stream)), 0);
            code!(m, cuStreamWaitEvent(ptr::null_mut(), event, 0))
        })
    }),
    ("beside a capture: cuStreamWaitEvent(capturing, never recorded)", |m| {
        beside(m, 1, |m, stream| code!(m, cuStreamWaitEvent(stream, m.event(2), 0)))
    }),
    ("beside a blocking capture: cuStreamQuery(legacy)", |m| {
        beside(m, 0, |m, _| code!(m, cuStreamQuery(ptr::null_mut())))
    }),
    ("beside a blocking capture: cuStreamGetId(legacy)", |m| {
        beside(m, 0, |m, _| code!(m, cuStreamGetId(ptr::null_mut(), &mut 0)))
    }),
    ("beside a blocking capture: cuStreamIsCapturing(legacy)", |m| {
        beside(m, 0, |m, _| code!(m, cuStreamIsCapturing(ptr::null_mut(), &mut CUstreamCaptureStatus(0))))
    }),
    ("beside a blocking capture: cuEventRecord(legacy)", |m| {
        beside(m, 0, |m, _| code!(m, cuEventRecord(m.event(2), ptr::null_mut())))
    }),
    ("wait for an event from outside", |m| {
        let (stream, done) = (m.stream(1), m.done_event());
        begin(m, stream, GLOBAL);
        codes(&[code!(m, cuStreamWaitEvent(stream, done, 0)), status(m, stream), end(m, stream).0])
    }),
    ("wait for an event from outside, external", |m| {
        let (stream, done) = (m.stream(1), m.done_event());
        begin(m, stream, GLOBAL);
        codes(&[code!(m, cuStreamWaitEvent(stream, done, 1)), status(m, stream), end(m, stream).0])
    }),
];
