//! Every order in which streams end and others come.

use super::*;
use crate::primitive::{Arc, Exclusive};
use loom::thread;

/// A stream by its number, and the end of its work by whether it is reached.
type Model = Owner<u64, bool>;

fn is_reached(end: &End<bool>) -> bool {
    matches!(end, End::At(true))
}

/// A heap with its owner. It is touched by whom it serves alone, and behind the end of whom it served before.
struct Slot {
    owner: Model,
    heap: Exclusive,
}

impl Slot {
    fn new() -> Arc<Self> {
        Arc::new(Self { owner: Owner::new(1, 1), heap: Exclusive::default() })
    }
}

/// The thread of a stream uses the heap and ends; two others want it. One gets it, behind the first, and its end by the wrong number does
/// not end the next.
#[test]
fn a_heap_serves_one_stream_after_the_other() {
    loom::model(|| {
        let slot = Slot::new();
        let ends = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                slot.heap.touch();
                assert!(slot.owner.is(1));
                assert!(slot.owner.end(1, |_| Some(End::Done)).is_some());
                // As a thread whose stream was forgotten before.
                assert!(slot.owner.end(1, |_| Some(End::Done)).is_none());
            })
        };
        let comes = |stream: u64| {
            slot.owner.settle(is_reached);
            if slot.owner.take_over(stream, &stream) {
                assert!(slot.owner.is(stream));
                assert_eq!(slot.owner.stream(), Some(stream));
                slot.heap.touch();
                assert_eq!(slot.owner.end(stream, |_| Some(End::At(true))), Some(stream));
            }
        };
        let other = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                slot.owner.settle(is_reached);
                if slot.owner.take_over(3, &3) {
                    slot.heap.touch();
                    assert_eq!(slot.owner.end(3, |_| Some(End::Done)), Some(3));
                }
            })
        };
        comes(2);
        other.join().unwrap();
        ends.join().unwrap();
        slot.owner.settle(is_reached);
        assert!(slot.owner.take_over(4, &4));
    });
}

/// A thread that ends beside the end of the allocator: what there is of the stream goes once, and with the allocator.
#[test]
fn a_heap_may_go_while_its_stream_ends() {
    loom::model(|| {
        let stream = Arc::new(1u64);
        let owner = Arc::new(Owner::<Arc<u64>, bool>::new(1, Arc::clone(&stream)));
        let ends = {
            let owner = Arc::clone(&owner);
            thread::spawn(move || {
                owner.end(1, |_| Some(End::Done));
            })
        };
        owner.close();
        ends.join().unwrap();
        assert!(owner.stream().is_none());
        assert_eq!(Arc::strong_count(&stream), 1);
    });
}

/// A stream that is forgotten while another thread has it do something: what that one counts on comes before the end.
#[test]
fn what_a_stream_is_seen_to_do_comes_before_its_end() {
    loom::model(|| {
        let (owner, work) = (Arc::new(Model::new(1, 1)), Arc::new(AtomicU64::new(0)));
        let forgets = {
            let (owner, work) = (Arc::clone(&owner), Arc::clone(&work));
            thread::spawn(move || {
                let mut behind = 0;
                let look = |_: &u64| {
                    behind = work.load(Ordering::Relaxed);
                    Some(End::Done)
                };
                assert!(owner.end(1, look).is_some());
                behind
            })
        };
        let counts_on = owner.stream().is_some() && {
            work.store(1, Ordering::Relaxed);
            owner.stream().is_some()
        };
        let behind = forgets.join().unwrap();
        assert!(!counts_on || behind == 1);
        assert!(owner.take_over(2, &2));
    });
}

/// Work that is not done keeps the heap from others, who have its end to wait for.
#[test]
fn a_heap_waits_for_the_end_of_its_streams_work() {
    loom::model(|| {
        let slot = Slot::new();
        let ends = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                slot.heap.touch();
                slot.owner.end(1, |_| Some(End::At(false)));
            })
        };
        assert!(!slot.owner.take_over(2, &2));
        match slot.owner.served() {
            Ok(stream) => assert_eq!(stream, 1),
            Err(end) => assert!(matches!(end, End::At(false))),
        }
        ends.join().unwrap();
        slot.owner.settle(is_reached);
        assert!(!slot.owner.take_over(2, &2));
        slot.owner.settle(|_| true);
        assert!(slot.owner.take_over(2, &2));
    });
}
