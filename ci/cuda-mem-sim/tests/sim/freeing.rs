//! What a free that waits for work holds up in other threads, as measured (docs/measurements.md).

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_sys::{CUdeviceptr, CUevent, CUpointer_attribute, CUstream, Table};

use crate::common::{Gate, Machine, NOT_READY, code, ok};

/// A call that has not returned when so many intervals have passed waits.
const STUCK: (u32, Duration) = (5, Duration::from_millis(10));
/// Far longer than anything here needs.
const LIMIT: Duration = Duration::from_secs(60);

/// What calls need, by address.
#[derive(Clone, Copy)]
struct Things {
    table: &'static Table,
    context: usize,
    event: usize,
    stream: usize,
    memory: CUdeviceptr,
    pages: usize,
}

impl Things {
    fn event(&self) -> CUevent {
        ptr::without_provenance_mut(self.event)
    }

    fn stream(&self) -> CUstream {
        ptr::without_provenance_mut(self.stream)
    }
}

/// Open at the latest when a test ends, also by a panic: the threads of its scope are joined then.
struct Opened(Gate);

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// What it returns does not count: it is whether it returns.
type Act = fn(&Things) -> u32;

const HELD_UP: [(&str, Act); 8] = [
    ("record", |t| code!(t.table, cuEventRecord(t.event(), t.stream()))),
    ("fill", |t| code!(t.table, cuMemsetD8Async(t.memory, 1, 1, t.stream()))),
    ("copy", |t| code!(t.table, cuMemcpyDtoDAsync(t.memory, t.memory + 8, 4, t.stream()))),
    ("allocate", |t| code!(t.table, cuMemAlloc(&mut 0, 1))),
    ("register", |t| code!(t.table, cuMemHostRegister(ptr::with_exposed_provenance_mut(t.pages), 4096, 0))),
    ("create a stream", |t| code!(t.table, cuStreamCreate(&mut ptr::null_mut(), 1))),
    ("destroy a stream", |t| code!(t.table, cuStreamDestroy(ptr::null_mut()))),
    ("free", |t| code!(t.table, cuMemFree(t.memory + 4096))),
];

#[test]
fn a_free_that_waits_holds_up_who_gives_work_and_nobody_who_asks() {
    for (what, act) in HELD_UP {
        for free in ["cuMemHostUnregister", "cuMemFree", "cuMemFreeHost"] {
            let machine = Machine::new();
            let held = machine.stream(1);
            let mut host = ptr::null_mut();
            ok!(machine.table, cuMemHostAlloc(&mut host, 4096, 0));
            let (device, gone) = (machine.memory(8192), host.expose_provenance());
            let (own, other) = (vec![0_u8; 3 * 4096].leak().as_mut_ptr(), vec![0_u8; 2 * 4096].leak());
            ok!(machine.table, cuMemHostRegister(own.cast(), 4096, 0));
            let things = Things {
                table: machine.table,
                context: machine.context.addr(),
                event: machine.event(2).addr(),
                stream: machine.stream(1).addr(),
                memory: machine.memory(8192),
                pages: other.as_mut_ptr().expose_provenance(),
            };
            let registered = own.expose_provenance();
            let gate = Opened(machine.gate(held));
            let begun = AtomicU64::new(0);
            let current = move || {
                ok!(things.table, cuCtxSetCurrent(ptr::without_provenance_mut(things.context)));
            };
            let (begun, things) = (&begun, &things);
            thread::scope(move |scope| {
                let gate = gate;
                let freeing = scope.spawn(move || {
                    current();
                    match free {
                        "cuMemFree" => ok!(things.table, cuMemFree(device)),
                        "cuMemFreeHost" => {
                            ok!(things.table, cuMemFreeHost(ptr::with_exposed_provenance_mut(gone)));
                        }
                        _ => {
                            let at = ptr::with_exposed_provenance_mut(registered);
                            ok!(things.table, cuMemHostUnregister(at));
                        }
                    }
                });
                let calling = scope.spawn(move || {
                    current();
                    // At least once after the free has begun, and no more when it has ended.
                    while !freeing.is_finished() {
                        begun.fetch_add(1, Ordering::SeqCst);
                        let _ = act(things);
                        // Not so many that the stream's books take long to grow.
                        thread::sleep(Duration::from_millis(1));
                    }
                });
                let start = Instant::now();
                let (mut seen, mut intervals) = (0, 0);
                while intervals < STUCK.0 {
                    thread::sleep(STUCK.1);
                    let now = begun.load(Ordering::SeqCst);
                    intervals = if now > 0 && now == seen { intervals + 1 } else { 0 };
                    seen = now;
                    assert!(start.elapsed() < LIMIT, "{what} does not wait for {free}");
                }
                // These return, or nothing ever does.
                assert_eq!(code!(things.table, cuStreamQuery(held)), NOT_READY);
                // What the calls have put there ends.
                while code!(things.table, cuStreamQuery(things.stream())) == NOT_READY {
                    assert!(start.elapsed() < LIMIT, "the stream of {what} is busy");
                    thread::yield_now();
                }
                assert_eq!(code!(things.table, cuStreamQuery(things.stream())), 0);
                ok!(things.table, cuEventQuery(things.event()));
                ok!(things.table, cuStreamWriteValue64(things.stream(), things.memory, 1, 0));
                current();
                let kind = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
                let mut found = 0_u32;
                ok!(things.table, cuPointerGetAttribute((&raw mut found).cast(), kind, things.memory));
                assert!(!calling.is_finished(), "{what} waits for {free}");
                drop(gate);
            });
        }
    }
}

/// The driver destroys 56 of them at once.
#[test]
fn one_of_many_streams_that_are_destroyed_while_they_wait_holds_up_who_gives_work() {
    let machine = Machine::new();
    let (table, held, other, event) = (machine.table, machine.stream(1), machine.stream(1), machine.event(2));
    let gate = Opened(machine.gate(held));
    ok!(table, cuEventRecord(event, held));
    let waiting = || {
        let stream = machine.stream(1);
        ok!(table, cuStreamWaitEvent(stream, event, 0));
        stream
    };
    let all = (0..57).map(|_| waiting()).collect::<Vec<_>>();
    let (last, first) = all.split_last().unwrap();
    for stream in first {
        ok!(table, cuStreamDestroy(*stream));
    }
    let (context, last, event) = (machine.context.addr(), last.addr(), event.addr());
    let other = other.addr();
    let current = move || ok!(table, cuCtxSetCurrent(ptr::without_provenance_mut(context)));
    thread::scope(move |scope| {
        let gate = gate;
        let destroying = scope.spawn(move || {
            current();
            ok!(table, cuStreamDestroy(ptr::without_provenance_mut(last)));
        });
        thread::sleep(STUCK.0 * STUCK.1);
        assert!(!destroying.is_finished());
        let recording = scope.spawn(move || {
            current();
            let (event, stream) = (ptr::without_provenance_mut(event), ptr::without_provenance_mut(other));
            ok!(table, cuEventRecord(event, stream));
        });
        thread::sleep(STUCK.0 * STUCK.1);
        assert!(!recording.is_finished());
        gate.0.open();
        destroying.join().unwrap();
        recording.join().unwrap();
    });
}
