//! Every order that threads can run in.

use loom::sync::Arc;
use loom::thread;

use crate::pinned_cache::pending::Waiters;
use crate::statistics::{CountedCell, PeakCounter};

/// While one thread adds, one looks and one takes everything, each value comes out once, and none before it is ready.
#[test]
fn each_value_comes_out_once() {
    loom::model(|| {
        let waiters = Arc::new(Waiters::default());
        waiters.push(1);
        let adding = thread::spawn({
            let waiters = waiters.clone();
            move || waiters.push(2)
        });
        let looking = thread::spawn({
            let waiters = waiters.clone();
            move || waiters.take(|value| *value == 1)
        });
        let mut out = waiters.take_all();
        adding.join().unwrap();
        let looked = looking.join().unwrap();
        assert!(!looked.contains(&2), "came out before it was ready");
        out.extend(looked);
        out.extend(waiters.take_all());
        out.sort_unstable();
        assert_eq!(out, [1, 2]);
    });
}

/// Two that look at once do not both get a value.
#[test]
fn one_looks_at_a_time() {
    loom::model(|| {
        let waiters = Arc::new(Waiters::default());
        waiters.push(1);
        waiters.push(2);
        let other = thread::spawn({
            let waiters = waiters.clone();
            move || waiters.take(|_| true)
        });
        let mut out = waiters.take(|_| true);
        out.extend(other.join().unwrap());
        out.extend(waiters.take_all());
        out.sort_unstable();
        assert_eq!(out, [1, 2]);
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
