//! What a recorder writes is a trace that can be replayed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{self, Write};
use std::sync::Arc;

use crate::history::History;
use crate::mempool_id::MempoolId;
use crate::primitive::{Mutex, lock, thread_number};
use crate::snapshot;
use crate::trace::{Action, Trace, TraceRecorder};

/// What was written, for the test to read while the recorder has it too.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    /// Kind, id and stream of each event.
    fn events(&self) -> Vec<(&'static str, u64, u64)> {
        let trace = Trace::read(&**lock(&self.0)).unwrap();
        let letter = |action| match action {
            Action::Allocate { .. } => "a",
            Action::Free => "f",
            Action::Complete => "c",
        };
        trace.events.iter().map(|event| (letter(event.action), event.id, event.stream)).collect()
    }
}

fn recorder() -> (TraceRecorder, Shared) {
    let shared = Shared::default();
    (TraceRecorder::new(shared.clone(), &Default::default()).unwrap(), shared)
}

#[test]
fn addresses_become_ids_and_streams_small_numbers() {
    let (recorder, written) = recorder();
    recorder.freed(0x100);
    recorder.completed(0x100);
    recorder.allocated(0x100, 1, 0xdead);
    recorder.allocated(0x200, 2, 0xbeef);
    recorder.freed(0x100);
    recorder.completed(0x100);
    recorder.allocated(0x100, 3, 0xdead);
    recorder.freed(0x200);
    recorder.freed(0x100);
    recorder.completed(0x200);
    recorder.completed(0x200);
    recorder.finish().unwrap();
    recorder.allocated(0x300, 4, 0xdead);
    let events = [("a", 0, 0), ("a", 1, 1), ("f", 0, 0), ("a", 2, 0), ("f", 1, 1), ("f", 2, 0), ("c", 1, 1)];
    assert_eq!(written.events(), events);
    recorder.finish().unwrap();
}

#[test]
fn a_history_tells_the_recorder() {
    use snapshot::Action::{Alloc, FreeCompleted, FreeRequested, SegmentAlloc};

    let (recorder, written) = recorder();
    let history = History::new();
    history.attach(move |entry| recorder.track(entry));
    for (action, address) in [
        (SegmentAlloc, 0),
        (Alloc, 0),
        (Alloc, 512),
        (FreeRequested, 0),
        (FreeRequested, 512),
        (FreeCompleted, 0),
    ] {
        history.tell(action, address, 100, 3, MempoolId::NONE, None);
    }
    assert_eq!(written.events(), [("a", 0, 0), ("a", 1, 0), ("f", 0, 0), ("f", 1, 0), ("c", 0, 0)]);
    let trace = Trace::read(&**lock(&written.0)).unwrap();
    let times: Vec<_> = trace.events.iter().map(|event| event.time_us).collect();
    assert!(times.is_sorted() && times[0].is_some());
    let thread = u64::try_from(thread_number()).unwrap();
    assert!(trace.events.iter().all(|event| event.thread == Some(thread)));
}

/// What threads do at the same time stands in an order that can be replayed: the reader checks that.
#[test]
fn threads_make_one_trace() {
    let (recorder, written) = recorder();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let recorder = &recorder;
            scope.spawn(move || {
                for step in 0..500 {
                    let address = thread * 0x1000 + step % 7;
                    recorder.allocated(address, 8, thread);
                    recorder.freed(address);
                    recorder.completed(address);
                }
            });
        }
    });
    recorder.finish().unwrap();
    let events = written.events();
    let count = |kind: &str| events.iter().filter(|event| event.0 == kind).count();
    assert_eq!((count("a"), count("f")), (2000, 2000));
}

#[test]
fn a_failure_ends_the_recording_and_is_told() {
    struct Full;

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if bytes.starts_with(b"a") { Err(io::ErrorKind::StorageFull.into()) } else { Ok(bytes.len()) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let recorder = TraceRecorder::new(Full, &Default::default()).unwrap();
    recorder.allocated(0, 1, 0);
    recorder.freed(0);
    assert_eq!(recorder.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
    let recorder = TraceRecorder::new(Vec::new(), &Default::default()).unwrap();
    recorder.allocated(0, u64::MAX, 0);
    assert_eq!(recorder.finish().unwrap_err().kind(), io::ErrorKind::InvalidInput);
}
