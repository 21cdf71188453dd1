//! Streams, events, host functions and stream memory operations.

use std::ffi::c_void;
use std::ptr;
use std::sync::Mutex;

use cuda_mem_sys::*;

use crate::Case;
use crate::machine::{Machine, code, codes, set};

pub(crate) const CASES: &[Case] = &[
    ("event never recorded: query, synchronize, wait", |m| {
        let (event, stream) = (m.event(2), m.stream(1));
        codes(&[
            code!(m, cuEventQuery(event)),
            code!(m, cuEventSynchronize(event)),
            code!(m, cuStreamWaitEvent(stream, event, 0)),
        ])
    }),
    ("null event: wait, record, query, destroy", |m| {
        let (none, stream) = (ptr::null_mut(), m.stream(1));
        codes(&[
            code!(m, cuStreamWaitEvent(stream, none, 0)),
            code!(m, cuEventRecord(none, stream)),
            code!(m, cuEventQuery(none)),
            code!(m, cuEventDestroy(none)),
        ])
    }),
    ("cuStreamWaitEvent: flags 1 outside a capture, flags 2", |m| {
        let (event, stream) = (m.done_event(), m.stream(1));
        codes(&[code!(m, cuStreamWaitEvent(stream, event, 1)), code!(m, cuStreamWaitEvent(stream, event, 2))])
    }),
    ("cuEventElapsedTime: never recorded, second never, no timing, valid, null", |m| {
        let (start, end, untimed, stream) = (m.event(0), m.event(0), m.event(2), m.stream(1));
        let mut time = 0.0;
        let never = code!(m, cuEventElapsedTime(&mut time, start, end));
        code!(m, cuEventRecord(start, stream));
        code!(m, cuEventRecord(untimed, stream));
        code!(m, cuStreamSynchronize(stream));
        let second = code!(m, cuEventElapsedTime(&mut time, start, end));
        let no_timing = code!(m, cuEventElapsedTime(&mut time, untimed, start));
        code!(m, cuEventRecord(end, stream));
        code!(m, cuStreamSynchronize(stream));
        let valid = code!(m, cuEventElapsedTime(&mut time, start, end));
        let none = code!(m, cuEventElapsedTime(&mut time, ptr::null_mut(), end));
        codes(&[never, second, no_timing, valid, none])
    }),
    ("cuEventElapsedTime: second unfinished", |m| {
        let (start, end, stream, word) = (m.event(0), m.event(0), m.stream(1), m.pinned());
        code!(m, cuEventRecord(start, stream));
        m.hold(stream, word);
        code!(m, cuEventRecord(end, stream));
        let mut time = 0.0;
        let pending = [code!(m, cuEventElapsedTime(&mut time, start, end)), code!(m, cuEventQuery(end))];
        m.release(word);
        codes(&[pending[0], pending[1], code!(m, cuStreamSynchronize(stream))])
    }),
    ("cuEventCreate: flags 0x10, interprocess with timing, null result", |m| {
        let mut event = ptr::null_mut();
        codes(&[
            code!(m, cuEventCreate(&mut event, 0x10)),
            code!(m, cuEventCreate(&mut event, 4)),
            code!(m, cuEventCreate(ptr::null_mut(), 0)),
        ])
    }),
    ("cuEventDestroy: pending, another stream waits for it", |m| {
        let (event, first, second, word) = (m.event(2), m.stream(1), m.stream(1), m.pinned());
        m.hold(first, word);
        code!(m, cuEventRecord(event, first));
        code!(m, cuStreamWaitEvent(second, event, 0));
        let destroyed = code!(m, cuEventDestroy(event));
        let waiting = code!(m, cuStreamQuery(second));
        m.release(word);
        codes(&[destroyed, waiting, code!(m, cuStreamSynchronize(second))])
    }),
    ("cuStreamQuery: idle, busy, legacy beside blocking, legacy beside non-blocking, per-thread", |m| {
        let (blocking, free) = (m.stream(0), m.stream(1));
        let (one, two) = (m.pinned(), m.pinned());
        let idle = code!(m, cuStreamQuery(free));
        m.hold(free, one);
        let busy = code!(m, cuStreamQuery(free));
        let beside_free = code!(m, cuStreamQuery(ptr::null_mut()));
        m.hold(blocking, two);
        let beside_blocking = code!(m, cuStreamQuery(ptr::null_mut()));
        let own = code!(m, cuStreamQuery(CU_STREAM_PER_THREAD));
        m.release(one);
        m.release(two);
        code!(m, cuCtxSynchronize());
        codes(&[idle, busy, beside_blocking, beside_free, own])
    }),
    ("cuStreamCreate: flags 2, null result; priority -100", |m| {
        let (mut stream, mut priority) = (ptr::null_mut(), 0);
        let flags = code!(m, cuStreamCreate(&mut stream, 2));
        let null = code!(m, cuStreamCreate(ptr::null_mut(), 0));
        let clamped = code!(m, cuStreamCreateWithPriority(&mut stream, 1, -100));
        code!(m, cuStreamGetPriority(stream, &mut priority));
        format!("{flags} {null} {clamped} {priority}")
    }),
    ("cuStreamDestroy: default streams 0, 1, 2", |m| {
        let default = |handle| code!(m, cuStreamDestroy(ptr::without_provenance_mut(handle)));
        codes(&[default(0), default(1), default(2)])
    }),
    ("cuStreamGetId: legacy under both names, per-thread another, recycled handles never", |m| {
        let id = |stream| {
            let mut id = 0;
            assert_eq!(code!(m, cuStreamGetId(stream, &mut id)), 0);
            id
        };
        let (legacy, own) = (id(CU_STREAM_LEGACY), id(CU_STREAM_PER_THREAD));
        let mut ids: Vec<u64> = (0..20)
            .map(|_| {
                let stream = m.stream(1);
                let id = id(stream);
                code!(m, cuStreamDestroy(stream));
                id
            })
            .collect();
        ids.sort_unstable();
        ids.dedup();
        format!("{} {} {}", id(ptr::null_mut()) == legacy, own != legacy, ids.len())
    }),
    ("event of one context, stream of another: record, wait", |m| {
        let event = m.event(2);
        let mut other = ptr::null_mut();
        assert_eq!(code!(m, cuCtxCreate(&mut other, 0, 0)), 0);
        let stream = m.stream(1);
        codes(&[code!(m, cuEventRecord(event, stream)), code!(m, cuStreamWaitEvent(stream, event, 0))])
    }),
    ("driver calls inside a host function", |m| {
        struct Seen<'a> {
            machine: &'a Machine,
            stream: CUstream,
            codes: Mutex<Vec<u32>>,
        }
        unsafe extern "C" fn look(data: *mut c_void) {
            // SAFETY: the case passes a pointer to its `Seen`, which it keeps until the stream is done.
            let Seen { machine: m, stream, codes } = unsafe { &*data.cast::<Seen<'_>>() };
            let (mut pointer, mut context, mut free, mut total) = (0, ptr::null_mut(), 0, 0);
            let (mut version, mut id, mut kind) = (0, 0, 0_u32);
            let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
            codes.lock().unwrap().extend([
                code!(m, cuMemAlloc(&mut pointer, 16)),
                code!(m, cuCtxGetCurrent(&mut context)),
                code!(m, cuStreamQuery(*stream)),
                code!(m, cuMemGetInfo(&mut free, &mut total)),
                code!(m, cuDriverGetVersion(&mut version)),
                code!(m, cuEventRecord(ptr::null_mut(), *stream)),
                code!(m, cuEventQuery(ptr::null_mut())),
                code!(m, cuMemFree(0)),
                code!(m, cuCtxSetCurrent(ptr::null_mut())),
                code!(m, cuPointerGetAttribute((&raw mut kind).cast(), attribute, 0x1000)),
                code!(m, cuMemHostUnregister(ptr::without_provenance_mut(0x1000))),
                code!(m, cuStreamGetId(*stream, &mut id)),
            ]);
        }
        let stream = m.stream(1);
        let seen = Seen { machine: m, stream, codes: Mutex::default() };
        assert_eq!(code!(m, cuLaunchHostFunc(stream, Some(look), (&raw const seen).cast_mut().cast())), 0);
        assert_eq!(code!(m, cuStreamSynchronize(stream)), 0);
        let null = code!(m, cuLaunchHostFunc(stream, None, ptr::null_mut()));
        format!("{} then null {null}", codes(&seen.codes.lock().unwrap()))
    }),
    ("cuStreamWriteValue64: device, +4, +1, 32 bits at +2, pinned, null, flags 8", |m| {
        let (at, word, stream) = (m.memory(64), m.pinned(), m.stream(1));
        let write = |at, flags| code!(m, cuStreamWriteValue64(stream, at, 5, flags));
        codes(&[
            write(at, 0),
            write(at + 4, 0),
            write(at + 1, 0),
            code!(m, cuStreamWriteValue32(stream, at + 2, 5, 0)),
            write(word.addr() as u64, 0),
            write(0, 0),
            write(at, 8),
            code!(m, cuStreamSynchronize(stream)),
        ])
    }),
    ("cuStreamWriteValue64: pageable, freed, stream-ordered, managed memory", |m| {
        let stream = m.stream(1);
        let mut pageable = vec![0_u64; 8];
        let freed = m.memory(32 << 20);
        code!(m, cuMemFree(freed));
        let (mut ordered, mut managed) = (0, 0);
        assert_eq!(code!(m, cuMemAllocAsync(&mut ordered, 64, stream)), 0);
        assert_eq!(code!(m, cuMemAllocManaged(&mut managed, 65536, 1)), 0);
        let write = |at| code!(m, cuStreamWriteValue64(stream, at, 5, 0));
        codes(&[write(pageable.as_mut_ptr().addr() as u64), write(freed), write(ordered), write(managed)])
    }),
    ("cuStreamWaitValue64: +4, flags 4, flush", |m| {
        let (at, stream) = (m.memory(64), m.stream(1));
        let wait = |at, flags| code!(m, cuStreamWaitValue64(stream, at, 0, flags));
        codes(&[wait(at + 4, 0), wait(at, 4), wait(at, 1 << 30)])
    }),
    ("cuStreamWaitValue64 GEQ: word 1<<63 for 1, (1<<63)+1 for 1, 1<<62 for 5, ~0 for 5", |m| {
        let tries = [(1 << 63, 1), ((1 << 63) + 1, 1), (1 << 62, 5), (u64::MAX, 5)];
        let begun = tries.map(|(value, wanted): (u64, u64)| {
            let (word, stream) = (m.pinned(), m.stream(1));
            set(word, value);
            assert_eq!(code!(m, cuStreamWaitValue64(stream, word.addr() as u64, wanted, 0)), 0);
            (word, wanted, stream)
        });
        // Far longer than it takes whoever passes, also where the host is busy.
        std::thread::sleep(std::time::Duration::from_secs(1));
        let passed = begun.map(|(_, _, stream)| code!(m, cuStreamQuery(stream)));
        for (word, wanted, stream) in begun {
            set(word, wanted);
            assert_eq!(code!(m, cuStreamSynchronize(stream)), 0);
        }
        codes(&passed)
    }),
    ("no current context, handles of another thread's", |m| {
        let (stream, event) = (m.stream(1).addr(), m.event(2).addr());
        m.elsewhere(false, |m| {
            let (stream, event) = (ptr::without_provenance_mut(stream), ptr::without_provenance_mut(event));
            let (mut id, mut context, mut pointer) = (0, ptr::null_mut(), 0);
            codes(&[
                code!(m, cuMemAlloc(&mut pointer, 16)),
                code!(m, cuStreamQuery(stream)),
                code!(m, cuStreamSynchronize(stream)),
                code!(m, cuEventRecord(event, stream)),
                code!(m, cuEventQuery(event)),
                code!(m, cuEventSynchronize(event)),
                code!(m, cuStreamWaitEvent(stream, event, 0)),
                code!(m, cuStreamGetId(stream, &mut id)),
                code!(m, cuStreamGetCtx(stream, &mut context)),
                code!(m, cuStreamQuery(ptr::null_mut())),
                code!(m, cuEventDestroy(event)),
                code!(m, cuStreamDestroy(stream)),
            ])
        })
    }),
    ("no current context: default streams 0, 1, 2, creation", |m| {
        m.elsewhere(false, |m| {
            let default = |handle| code!(m, cuStreamQuery(ptr::without_provenance_mut(handle)));
            let (mut stream, mut event) = (ptr::null_mut(), ptr::null_mut());
            codes(&[
                default(0),
                default(1),
                default(2),
                code!(m, cuStreamCreate(&mut stream, 0)),
                code!(m, cuEventCreate(&mut event, 0)),
                code!(m, cuStreamBeginCapture(ptr::null_mut(), CUstreamCaptureMode(0))),
            ])
        })
    }),
];
