//! Every order that threads can run in.

use super::super::*;
use crate::statistics::Stat;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64};
use loom::thread;

const SMALL: PoolSize = PoolSize::Small;

fn peak(ledger: &PeakLedger) -> Stat {
    ledger.read().requested_bytes.all
}

/// There were so many bytes at once, and four blocks: else their number would be what rises above its peak.
fn leave_a_peak(shard: &Shard, bytes: usize) {
    let sizes = [bytes, 0, 0, 0];
    sizes.into_iter().for_each(|bytes| shard.hold().allocate(SMALL, bytes, bytes));
    sizes.into_iter().for_each(|bytes| shard.hold().free(SMALL, bytes, bytes));
}

/// Whatever the order, all is counted and the peak is that of an order there may have been. What happened before is
/// before.
#[test]
fn a_block_that_was_freed_before_is_not_in_the_peak() {
    loom::model(|| {
        let ledger = PeakLedger::new(Peaks::Exact);
        let (mine, other) = (ledger.shard(), ledger.shard());
        let freed = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let freed = Arc::clone(&freed);
            move || {
                other.hold().allocate(SMALL, 2, 2);
                other.hold().free(SMALL, 2, 2);
                freed.store(true, Ordering::Release);
                other
            }
        });
        let after = freed.load(Ordering::Acquire);
        mine.hold().allocate(SMALL, 1, 1);
        let other = thread.join().unwrap();
        let peak = peak(&ledger);
        assert_eq!((peak.current, peak.allocated, peak.freed), (1, 3, 2));
        assert!(peak.peak == 2 || peak.peak == 3 && !after, "{peak:?}, {after}");
        drop(other);
    });
}

/// As above, the other way round.
#[test]
fn a_block_that_was_there_before_is_in_the_peak() {
    loom::model(|| {
        let ledger = PeakLedger::new(Peaks::Exact);
        let (mine, other) = (ledger.shard(), ledger.shard());
        mine.hold().allocate(SMALL, 4, 4);
        let there = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let there = Arc::clone(&there);
            move || {
                other.hold().allocate(SMALL, 2, 2);
                there.store(true, Ordering::Release);
                other
            }
        });
        let after = there.load(Ordering::Acquire);
        mine.hold().allocate(SMALL, 1, 1);
        mine.hold().free(SMALL, 5, 5);
        let other = thread.join().unwrap();
        let peak = peak(&ledger);
        assert_eq!((peak.current, peak.allocated), (2, 7));
        assert!(peak.peak == 7 || peak.peak == 5 && !after, "{peak:?}, {after}");
        drop(other);
    });
}

/// Two threads take turns with one shard while a third reads.
#[test]
fn a_read_sees_what_was_counted_in_whole() {
    for peaks in [Peaks::Exact, Peaks::Sharded] {
        loom::model(move || {
            let ledger = PeakLedger::new(peaks);
            let shard = Arc::new(ledger.shard());
            let thread = thread::spawn({
                let shard = Arc::clone(&shard);
                move || {
                    let mut guard = shard.hold();
                    guard.allocate(SMALL, 2, 2);
                    guard.allocate(SMALL, 2, 2);
                }
            });
            let live = ledger.read();
            assert!([0, 2].contains(&live.allocation.all.current), "{live:?}");
            assert_eq!(live.allocated_bytes.all.current, 2 * live.allocation.all.current);
            assert_eq!(live.active_bytes.all.peak, live.allocated_bytes.all.allocated);
            thread.join().unwrap();
            assert_eq!(ledger.read().active_bytes.all.peak, 4);
        });
    }
}

/// The shard is a lock: for its own figures and, disarmed or not, for what else is behind it.
#[test]
fn who_has_a_shard_sees_what_the_last_one_did() {
    for disarmed in [false, true] {
        loom::model(move || {
            let ledger = PeakLedger::new(Peaks::Sharded);
            let shared = Arc::new((ledger.shard(), AtomicU64::new(0)));
            let work = move |(shard, behind): &(Shard, AtomicU64)| {
                let mut guard = shard.hold();
                guard.allocate(SMALL, 1, 1);
                if disarmed {
                    guard.disarm();
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
            assert_eq!(ledger.read().allocation.all, Stat { current: 2, peak: 2, allocated: 2, freed: 0 });
        });
    }
}

/// Neither waits for ever, though each is armed when it asks for the activity.
#[test]
fn two_that_ask_at_a_time_both_get_it() {
    loom::model(|| {
        let ledger = PeakLedger::new(Peaks::Exact);
        let (mine, other) = (ledger.shard(), ledger.shard());
        let thread = thread::spawn(move || {
            let mut guard = other.hold();
            guard.allocate(SMALL, 2, 2);
            guard.disarm();
            guard.free(SMALL, 2, 2);
            drop(guard);
            other
        });
        mine.hold().allocate(SMALL, 1, 1);
        let other = thread.join().unwrap();
        let peak = peak(&ledger);
        assert_eq!((peak.current, peak.allocated), (1, 3));
        assert!([2, 3].contains(&peak.peak));
        drop(other);
    });
}

/// Two that stay below the peak together count beside each other, and leave it where it is.
#[test]
fn shares_of_a_peak_do_not_raise_it() {
    loom::model(|| {
        let ledger = PeakLedger::new(Peaks::Exact);
        let (mine, other) = (ledger.shard(), ledger.shard());
        leave_a_peak(&mine, 4);
        let thread = thread::spawn(move || {
            other.hold().allocate(SMALL, 2, 2);
            other.hold().free(SMALL, 2, 2);
            other
        });
        mine.hold().allocate(SMALL, 2, 2);
        mine.hold().free(SMALL, 2, 2);
        let other = thread.join().unwrap();
        let peak = peak(&ledger);
        assert_eq!((peak.current, peak.peak, peak.allocated), (0, 4, 8));
        drop(other);
    });
}

/// Each has a share of an older peak, and both together rise above it, whoever asks whom.
#[test]
fn what_two_have_at_once_is_in_the_peak() {
    loom::model(|| {
        let ledger = PeakLedger::new(Peaks::Exact);
        let (mine, other) = (ledger.shard(), ledger.shard());
        mine.hold().allocate(SMALL, 4, 4);
        mine.hold().free(SMALL, 3, 3);
        other.hold().allocate(SMALL, 1, 1);
        let thread = thread::spawn(move || {
            other.hold().allocate(SMALL, 2, 2);
            other
        });
        mine.hold().allocate(SMALL, 2, 2);
        let glance = ledger.glance_at_active_bytes().peak;
        assert!((4..=6).contains(&glance), "{glance}");
        let other = thread.join().unwrap();
        let peak = peak(&ledger);
        assert_eq!((peak.current, peak.peak), (6, 6));
        drop(other);
    });
}

/// One that was made to rest by who asks for its share finds its way back, whenever it comes.
#[test]
fn one_that_is_asked_for_its_share_goes_on() {
    loom::model(|| {
        let ledger = PeakLedger::new(Peaks::Exact);
        let (mine, other) = (ledger.shard(), ledger.shard());
        leave_a_peak(&mine, 8);
        // Now both have shares, and the other one most of what there is.
        other.hold().allocate(SMALL, 1, 1);
        let thread = thread::spawn(move || {
            drop(other.hold());
            let mut guard = other.hold();
            guard.allocate(SMALL, 1, 1);
            guard.disarm();
            guard.free(SMALL, 2, 2);
            drop(guard);
            other
        });
        mine.hold().allocate(SMALL, 5, 5);
        mine.hold().free(SMALL, 5, 5);
        let other = thread.join().unwrap();
        let peak = peak(&ledger);
        assert_eq!((peak.current, peak.peak, peak.allocated), (0, 8, 15));
        drop(other);
    });
}

/// Two that have shares: `mine` has 3 and room for 2 more, `other` 1 and room for 2, and the peak is 8.
fn two_with_shares(ledger: &PeakLedger) -> (Shard, Shard) {
    let (mine, other) = (ledger.shard(), ledger.shard());
    leave_a_peak(&mine, 8);
    other.hold().allocate(SMALL, 1, 1);
    mine.hold().allocate(SMALL, 3, 3);
    (mine, other)
}

/// Each asks the other one at the same time, and there is just enough.
#[test]
fn two_that_share_with_each_other_stay_below_the_peak() {
    loom::model(|| {
        let ledger = PeakLedger::new(Peaks::Exact);
        let (mine, other) = two_with_shares(&ledger);
        let thread = thread::spawn(move || {
            other.hold().allocate(SMALL, 3, 3);
            other.hold().free(SMALL, 3, 3);
            other
        });
        mine.hold().allocate(SMALL, 1, 1);
        mine.hold().free(SMALL, 4, 4);
        mine.hold().allocate(SMALL, 4, 4);
        let other = thread.join().unwrap();
        let peak = peak(&ledger);
        assert_eq!((peak.current, peak.peak, peak.allocated), (5, 8, 20));
        drop(other);
    });
}

/// What one shares is read as one moment, and none of it is lost.
#[test]
fn a_read_while_two_share_sees_what_they_have() {
    loom::model(|| {
        let ledger = PeakLedger::new(Peaks::Exact);
        let (mine, other) = two_with_shares(&ledger);
        let thread = thread::spawn(move || {
            other.hold().allocate(SMALL, 4, 4);
            other
        });
        let between = peak(&ledger);
        assert!([4, 8].contains(&between.current) && between.peak == 8, "{between:?}");
        let other = thread.join().unwrap();
        mine.hold().allocate(SMALL, 1, 1);
        assert_eq!((peak(&ledger).current, peak(&ledger).peak), (9, 9));
        drop(other);
    });
}

/// A shard goes while another may have it to share with it: nobody waits for ever, and what it has stays counted.
#[test]
fn one_may_go_while_another_shares_with_it() {
    loom::model(|| {
        let ledger = PeakLedger::new(Peaks::Exact);
        let (mine, other) = two_with_shares(&ledger);
        // All are made to rest when one goes: this one first, before the other is waited for.
        let thread = thread::spawn(move || drop(mine));
        other.hold().allocate(SMALL, 4, 4);
        thread.join().unwrap();
        other.hold().free(SMALL, 8, 8);
        other.hold().allocate(SMALL, 8, 8);
        let peak = peak(&ledger);
        assert_eq!((peak.current, peak.peak), (8, 8));
    });
}

/// Who shares with a shard does not have it: nobody who comes for it is turned away.
#[test]
fn a_shard_that_another_shares_with_is_nobodys() {
    loom::model(|| {
        let ledger = PeakLedger::new(Peaks::Exact);
        let (mine, other) = two_with_shares(&ledger);
        let thread = thread::spawn(move || {
            other.hold().allocate(SMALL, 4, 4);
            other
        });
        mine.try_hold().expect("nobody has it").free(SMALL, 1, 1);
        let other = thread.join().unwrap();
        let peak = peak(&ledger);
        assert_eq!((peak.current, peak.peak), (7, 8));
        drop(other);
    });
}

/// What one has taken of another's share the other one does not have any more.
#[test]
fn what_two_share_is_not_there_twice() {
    loom::model(|| {
        let ledger = PeakLedger::new(Peaks::Exact);
        let (mine, other) = two_with_shares(&ledger);
        let thread = thread::spawn(move || {
            other.hold().allocate(SMALL, 4, 4);
            other
        });
        mine.hold().allocate(SMALL, 2, 2);
        let other = thread.join().unwrap();
        let peak = peak(&ledger);
        assert_eq!((peak.current, peak.peak), (10, 10));
        drop(other);
    });
}
