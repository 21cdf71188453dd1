//! Every order that threads can run in.

use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::pinned_cache::pending::{Look, StreamQueue};
use crate::pinned_cache::worker::{Signal, Task};
use crate::statistics::{CountedCell, PeakCounter};

/// While one thread adds, one polls and one takes everything, each value comes out once, and none before it is ready.
#[test]
fn each_value_comes_out_once() {
    loom::model(|| {
        let queue = Arc::new(StreamQueue::<u32, u32>::new());
        let out = Arc::new(Mutex::new(Vec::new()));
        queue.push(1, 1);
        let adding = thread::spawn({
            let queue = queue.clone();
            move || queue.push(0, 2)
        });
        let polling = thread::spawn({
            let (queue, out) = (queue.clone(), out.clone());
            move || {
                queue.poll(
                    |&ready| if ready == 1 { Look::Reached } else { Look::NotYet },
                    |value| {
                        assert_eq!(value, 1, "came out before its point");
                        out.lock().unwrap().push(value);
                    },
                );
            }
        });
        let taken: Vec<u32> = queue.take_all().into_iter().map(|(_, value)| value).collect();
        out.lock().unwrap().extend(taken);
        adding.join().unwrap();
        polling.join().unwrap();
        let mut out = out.lock().unwrap().clone();
        out.extend(queue.take_all().into_iter().map(|(_, value)| value));
        out.sort_unstable();
        assert_eq!(out, [1, 2]);
    });
}

/// Two that poll at once do not both get the head.
#[test]
fn one_looks_at_a_time() {
    loom::model(|| {
        let queue = Arc::new(StreamQueue::<(), u32>::new());
        queue.push((), 1);
        queue.push((), 2);
        let poll = |queue: &StreamQueue<(), u32>| {
            let mut out = Vec::new();
            queue.poll(|()| Look::Reached, |value| out.push(value));
            out
        };
        let other = thread::spawn({
            let queue = queue.clone();
            move || poll(&queue)
        });
        let mut out = poll(&queue);
        out.extend(other.join().unwrap());
        out.sort_unstable();
        assert_eq!(out, [1, 2]);
    });
}

/// The thread sees each request and the end, in whatever moment they come, and never sleeps through one.
#[test]
fn no_request_is_slept_through() {
    loom::model(|| {
        let signal = Arc::new(Signal::default());
        let worker = thread::spawn({
            let signal = Arc::clone(&signal);
            move || assert_eq!(signal.next(None), Task::Work)
        });
        signal.want();
        worker.join().unwrap();
    });
}

#[test]
fn the_end_is_seen_beside_requests() {
    loom::model(|| {
        let signal = Arc::new(Signal::default());
        let worker = thread::spawn({
            let signal = Arc::clone(&signal);
            move || while signal.next(None) != Task::Stop {}
        });
        let other = thread::spawn({
            let signal = Arc::clone(&signal);
            move || signal.want()
        });
        signal.stop();
        assert!(signal.is_stopped());
        other.join().unwrap();
        worker.join().unwrap();
    });
}

/// A block that an owner keeps while another thread closes the cache is taken by the one or kept by the other, not lost: this is
/// how thread caches end.
#[test]
fn nothing_is_lost_between_its_owner_and_who_closes_it() {
    loom::model(|| {
        let cell = Arc::new(CountedCell::new(PeakCounter::default().shard(), (Vec::new(), false)));
        let owner = thread::spawn({
            let cell = Arc::clone(&cell);
            move || {
                let kept = cell.try_with(|(blocks, closed): &mut (Vec<u32>, bool), _| {
                    if !*closed {
                        blocks.push(7);
                    }
                    !*closed
                });
                u32::from(kept != Some(true))
            }
        });
        let taken = cell.with(|(blocks, closed), _| {
            *closed = true;
            std::mem::take(blocks)
        });
        assert_eq!(taken.len() as u32 + owner.join().unwrap(), 1);
    });
}
