//! Contexts, what is left of them, and faults.

use std::ptr;

use cuda_mem_sys::*;

use crate::Case;
use crate::machine::{Machine, code, codes};

/// What calls answer whose context has ended but is still current.
fn stale(m: &Machine, end: fn(&Machine)) -> String {
    let (stream, event, at) = (m.stream(1), m.event(2), m.memory(1 << 20));
    end(m);
    let mut current = ptr::null_mut();
    assert_eq!(code!(m, cuCtxGetCurrent(&mut current)), 0);
    let is_old = current == m.context;
    let results = codes(&[
        code!(m, cuCtxSynchronize()),
        code!(m, cuCtxGetDevice(&mut 0)),
        code!(m, cuMemGetInfo(&mut 0, &mut 0)),
        code!(m, cuMemAlloc(&mut 0, 16)),
        code!(m, cuCtxGetId(m.context, &mut 0)),
        code!(m, cuStreamQuery(stream)),
        code!(m, cuStreamSynchronize(stream)),
        code!(m, cuStreamGetId(stream, &mut 0)),
        code!(m, cuStreamQuery(ptr::null_mut())),
        code!(m, cuEventQuery(event)),
        code!(m, cuEventRecord(event, stream)),
        code!(m, cuMemFree(at)),
        code!(m, cuStreamDestroy(stream)),
        code!(m, cuEventDestroy(event)),
        code!(m, cuCtxSetCurrent(m.context)),
        code!(m, cuDevicePrimaryCtxRelease(0)),
    ]);
    format!("{is_old} {results}")
}

/// Makes a kernel write where nothing is.
fn fault(m: &Machine) -> CUstream {
    let stream = m.stream(1);
    assert_eq!(m.launch(m.kernel(c"write_checked"), stream, &[0x10_0000]), 0);
    stream
}

pub(crate) const CASES: &[Case] = &[
    ("stale after cuDevicePrimaryCtxReset", |m| {
        stale(m, |m| assert_eq!(code!(m, cuDevicePrimaryCtxReset(0)), 0))
    }),
    ("stale after the last cuDevicePrimaryCtxRelease", |m| {
        stale(m, |m| assert_eq!(code!(m, cuDevicePrimaryCtxRelease(0)), 0))
    }),
    ("retained again: same handle, usable at once, another id", |m| {
        let id = || {
            let mut id = 0;
            assert_eq!(code!(m, cuCtxGetId(m.context, &mut id)), 0);
            id
        };
        let before = id();
        assert_eq!(code!(m, cuDevicePrimaryCtxRelease(0)), 0);
        let mut again = ptr::null_mut();
        let retained = code!(m, cuDevicePrimaryCtxRetain(&mut again, 0));
        let allocated = code!(m, cuMemAlloc(&mut 0, 16));
        format!("{retained} {} {allocated} {}", again == m.context, id() != before)
    }),
    ("no current context: stack calls", |m| {
        m.elsewhere(false, |m| {
            let none = ptr::null_mut();
            codes(&[
                code!(m, cuCtxGetCurrent(&mut ptr::null_mut())),
                code!(m, cuCtxGetDevice(&mut 0)),
                code!(m, cuCtxSynchronize()),
                code!(m, cuCtxPopCurrent(&mut ptr::null_mut())),
                code!(m, cuCtxSetCurrent(none)),
                code!(m, cuCtxPushCurrent(none)),
                code!(m, cuCtxGetId(none, &mut 0)),
            ])
        })
    }),
    ("the stack: set replaces, null pops", |m| {
        let context = m.context.addr();
        m.elsewhere(false, |m| {
            let context = ptr::without_provenance_mut(context);
            code!(m, cuCtxPushCurrent(context));
            code!(m, cuCtxPushCurrent(context));
            code!(m, cuCtxSetCurrent(context));
            code!(m, cuCtxSetCurrent(ptr::null_mut()));
            let pop = || code!(m, cuCtxPopCurrent(&mut ptr::null_mut()));
            codes(&[pop(), pop()])
        })
    }),
    ("cuCtxSetCurrent: garbage; cuCtxDestroy: primary", |m| {
        let garbage = m.elsewhere(false, |m| code!(m, cuCtxSetCurrent(ptr::without_provenance_mut(0x1230))));
        codes(&[garbage, code!(m, cuCtxDestroy(m.context))])
    }),
    ("cuCtxRecordEvent: null context, null event, timed event, no current context", |m| {
        let (event, context) = (m.event(0).addr(), m.context.addr());
        let null = code!(m, cuCtxRecordEvent(ptr::null_mut(), ptr::without_provenance_mut(event)));
        let no_event = code!(m, cuCtxRecordEvent(m.context, ptr::null_mut()));
        let timed = code!(m, cuCtxRecordEvent(m.context, ptr::without_provenance_mut(event)));
        let elsewhere = m.elsewhere(false, |m| {
            let (context, event) = (ptr::without_provenance_mut(context), ptr::without_provenance_mut(event));
            code!(m, cuCtxRecordEvent(context, event))
        });
        codes(&[null, no_event, timed, elsewhere])
    }),
    ("cuCtxRecordEvent: every kind of stream is covered", |m| {
        let own = CU_STREAM_PER_THREAD;
        let covered = |stream| {
            let (event, word) = (m.event(2), m.pinned());
            m.hold(stream, word);
            assert_eq!(code!(m, cuCtxRecordEvent(m.context, event)), 0);
            let pending = code!(m, cuEventQuery(event));
            m.release(word);
            assert_eq!(code!(m, cuEventSynchronize(event)), 0);
            pending
        };
        codes(&[ptr::null_mut(), CU_STREAM_LEGACY, own, m.stream(0), m.stream(1)].map(covered))
    }),
    ("cuCtxRecordEvent: later work is not held back", |m| {
        let (first, second, event, word, at) =
            (m.stream(1), m.stream(1), m.event(2), m.pinned(), m.memory(16));
        m.hold(first, word);
        code!(m, cuCtxRecordEvent(m.context, event));
        code!(m, cuMemsetD32Async(at, 1, 1, second));
        let done = code!(m, cuStreamSynchronize(second));
        let pending = code!(m, cuEventQuery(event));
        m.release(word);
        codes(&[done, pending, code!(m, cuCtxSynchronize())])
    }),
    ("cuCtxWaitEvent: never recorded; every kind of stream is held back", |m| {
        let never = code!(m, cuCtxWaitEvent(m.context, m.event(2)));
        let held = |stream| {
            let (first, event, word, at) = (m.stream(1), m.event(2), m.pinned(), m.memory(16));
            m.hold(first, word);
            code!(m, cuEventRecord(event, first));
            code!(m, cuCtxWaitEvent(m.context, event));
            code!(m, cuMemsetD32Async(at, 1, 1, stream));
            let pending = code!(m, cuStreamQuery(stream));
            m.release(word);
            assert_eq!(code!(m, cuCtxSynchronize()), 0);
            pending
        };
        let streams = [ptr::null_mut(), CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, m.stream(0), m.stream(1)];
        format!("{never} {}", codes(&streams.map(held)))
    }),
    ("after a kernel fault", |m| {
        let (before, at) = (m.done_event(), m.memory(16));
        let stream = fault(m);
        codes(&[
            code!(m, cuStreamSynchronize(stream)),
            code!(m, cuStreamQuery(stream)),
            code!(m, cuStreamQuery(ptr::null_mut())),
            code!(m, cuEventQuery(before)),
            code!(m, cuMemAlloc(&mut 0, 16)),
            code!(m, cuMemFree(at)),
            code!(m, cuMemGetInfo(&mut 0, &mut 0)),
            code!(m, cuCtxGetCurrent(&mut ptr::null_mut())),
            code!(m, cuCtxGetDevice(&mut 0)),
            code!(m, cuCtxGetId(m.context, &mut 0)),
            code!(m, cuStreamGetId(stream, &mut 0)),
            code!(m, cuStreamCreate(&mut ptr::null_mut(), 0)),
            code!(m, cuEventDestroy(before)),
            code!(m, cuStreamDestroy(stream)),
        ])
    }),
    ("after a kernel fault: a second context, reset, retained again", |m| {
        let stream = fault(m);
        let seen = code!(m, cuStreamSynchronize(stream));
        let created = code!(m, cuCtxCreate(&mut ptr::null_mut(), 0, 0));
        let synchronized = code!(m, cuCtxSynchronize());
        let reset = code!(m, cuDevicePrimaryCtxReset(0));
        let retained = code!(m, cuDevicePrimaryCtxRetain(&mut ptr::null_mut(), 0));
        codes(&[seen, created, synchronized, reset, retained])
    }),
    ("kernel store: misaligned", |m| {
        let at = m.memory(16);
        let launched = m.launch(m.kernel(c"write_checked"), ptr::null_mut(), &[at + 1]);
        codes(&[launched, code!(m, cuCtxSynchronize())])
    }),
    ("devices: ordinals 99 and -1, attributes", |m| {
        let attribute =
            |attribute, device| code!(m, cuDeviceGetAttribute(&mut 0, CUdevice_attribute(attribute), device));
        codes(&[
            code!(m, cuDeviceGet(&mut 0, 99)),
            code!(m, cuDeviceGet(&mut 0, -1)),
            attribute(9999, 0),
            attribute(75, 99),
            attribute(0, 0),
        ])
    }),
    ("limits: all of them, read and set", |m| {
        let limit = |limit| {
            let mut value = 0;
            let read = code!(m, cuCtxGetLimit(&mut value, CUlimit(limit)));
            format!("{read}/{}", code!(m, cuCtxSetLimit(CUlimit(limit), value)))
        };
        (0..12).map(limit).collect::<Vec<_>>().join(" ")
    }),
];
