//! Every order that threads can run in.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

use super::read;
use crate::statistics::*;

const SMALL: PoolSize = PoolSize::Small;

fn bytes(counter: &PeakCounter) -> Stat {
    read(counter).requested_bytes.all
}

/// The shard is a lock: for its own figures and, counting or not, for what else is behind it.
#[test]
fn who_has_a_shard_sees_what_the_last_one_did() {
    for counts in [false, true] {
        loom::model(move || {
            let counter = PeakCounter::default();
            let shared = Arc::new((counter.shard(), AtomicU64::new(0)));
            let work = move |(shard, behind): &(Shard, AtomicU64)| {
                let guard = shard.hold();
                if counts {
                    guard.allocate(SMALL, 1, 1);
                }
                behind.store(behind.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            };
            let thread = thread::spawn({
                let shared = Arc::clone(&shared);
                move || work(&shared)
            });
            work(&shared);
            thread.join().unwrap();
            assert_eq!(shared.1.load(Ordering::Relaxed), 2);
            let blocks = if counts { 2 } else { 0 };
            assert_eq!(
                read(&counter).allocation.all,
                Stat { current: blocks, peak: blocks, allocated: blocks, freed: 0 }
            );
        });
    }
}

/// Whoever looks first, all is counted, and the peak is that of an order there may have been: a block that was freed
/// before is not in it. The first overlap has limits be as far above as a quantum here, which is 2.
#[test]
fn a_block_that_was_freed_before_is_not_in_the_peak() {
    loom::model(|| {
        let counter = PeakCounter::default();
        let (mine, other) = (counter.shard(), counter.shard());
        let freed = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let freed = Arc::clone(&freed);
            move || {
                other.hold().allocate(SMALL, 8, 8);
                other.hold().free(SMALL, 8, 8);
                freed.store(true, Ordering::Release);
                other
            }
        });
        let after = freed.load(Ordering::Acquire);
        mine.hold().allocate(SMALL, 4, 4);
        let other = thread.join().unwrap();
        let bytes = bytes(&counter);
        assert_eq!((bytes.current, bytes.allocated, bytes.freed), (4, 12, 8));
        assert!((8 - 4..=8).contains(&bytes.peak) || bytes.peak <= 12 && !after, "{bytes:?}, {after}");
        drop(other);
    });
}

/// As above, the other way round.
#[test]
fn a_block_that_was_there_before_is_in_the_peak() {
    loom::model(|| {
        let counter = PeakCounter::default();
        let (mine, other) = (counter.shard(), counter.shard());
        mine.hold().allocate(SMALL, 8, 8);
        let there = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let there = Arc::clone(&there);
            move || {
                other.hold().allocate(SMALL, 8, 8);
                there.store(true, Ordering::Release);
                other
            }
        });
        let after = there.load(Ordering::Acquire);
        mine.hold().allocate(SMALL, 8, 8);
        mine.hold().free(SMALL, 16, 16);
        let other = thread.join().unwrap();
        let bytes = bytes(&counter);
        assert_eq!((bytes.current, bytes.allocated), (8, 24));
        let near = |most: u64| (most - 4..=most).contains(&bytes.peak);
        assert!(near(24) || near(16) && !after, "{bytes:?}, {after}");
        drop(other);
    });
}

/// Each has its own shard when it stops the other one: neither waits for ever.
#[test]
fn two_that_ask_at_a_time_both_get_it() {
    loom::model(|| {
        let counter = PeakCounter::default();
        let (mine, other) = (counter.shard(), counter.shard());
        let thread = thread::spawn(move || {
            let guard = other.hold();
            guard.allocate(SMALL, 2, 2);
            guard.free(SMALL, 2, 2);
            drop(guard);
            other
        });
        let guard = mine.hold();
        guard.allocate(SMALL, 1, 1);
        drop(guard);
        let other = thread.join().unwrap();
        let bytes = bytes(&counter);
        assert_eq!((bytes.current, bytes.allocated), (1, 3));
        assert!((1..=3).contains(&bytes.peak));
        drop(other);
    });
}

/// One goes on alone while the other one counts, or does not: what both have stays counted.
#[test]
fn one_goes_on_alone_while_another_counts() {
    loom::model(|| {
        let counter = PeakCounter::default();
        counter.be_shared();
        let (mine, other) = (counter.shard(), counter.shard());
        mine.hold().allocate(SMALL, 16, 16);
        let thread = thread::spawn(move || {
            other.hold().allocate(SMALL, 8, 8);
            other
        });
        for _ in 0..2 {
            mine.hold().free(SMALL, 8, 8);
        }
        let other = thread.join().unwrap();
        mine.hold().allocate(SMALL, 32, 32);
        let bytes = bytes(&counter);
        assert_eq!((bytes.current, bytes.allocated), (40, 56));
        assert!((36..=40).contains(&bytes.peak), "{bytes:?}");
        drop(other);
    });
}

/// Peaks start anew while another thread counts.
#[test]
fn peaks_that_start_anew_have_what_is_there() {
    loom::model(|| {
        let counter = PeakCounter::default();
        let shard = counter.shard();
        shard.hold().allocate(SMALL, 8, 8);
        let thread = thread::spawn(move || {
            shard.hold().free(SMALL, 8, 8);
            shard.hold().allocate(SMALL, 2, 2);
            shard
        });
        counter.reset_peak();
        let shard = thread.join().unwrap();
        let bytes = bytes(&counter);
        assert_eq!(bytes.current, 2);
        assert!([2, 8].contains(&bytes.peak), "{bytes:?}");
        assert_eq!(counter.peak_active_bytes(), 8);
        drop(shard);
    });
}
