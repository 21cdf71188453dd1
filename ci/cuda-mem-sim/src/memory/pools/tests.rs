//! What a pool gives out, and when.

use super::*;
use crate::memory::blocks::Devices;
use proptest::prelude::*;

fn pool() -> Pool {
    let access = Access { read: Devices::NONE, write: Devices::NONE, host: false };
    Pool::new(Location::Host, access)
}

fn clock(stream: u64, moment: u64) -> Clock {
    let mut clock = Clock::default();
    clock.advance(stream, moment);
    clock
}

fn freed(stream: u64, moment: u64) -> Freed {
    let freed = under_way(stream, moment);
    freed.enqueued.store(true, Ordering::Release);
    freed
}

/// One that its stream does not have yet.
fn under_way(stream: u64, moment: u64) -> Freed {
    Freed { stream, clock: clock(stream, moment), enqueued: Arc::default(), reached: Arc::default() }
}

#[test]
fn what_a_stream_has_yet_to_be_given_is_not_behind_it() {
    let mut pool = pool();
    pool.grow(0, 1024);
    let own = clock(1, 9);
    let asker = Asker { stream: 1, clock: &own };
    assert_eq!((pool.take(512, 512, &asker), pool.take(512, 512, &asker)), (Some(0), Some(512)));
    let frees = [freed(1, 2), under_way(1, 3)];
    pool.give_back(0, 512, 512, frees[0].clone());
    pool.give_back(512, 512, 512, frees[1].clone());
    assert_eq!(pool.take(1024, 1024, &asker), None, "they are no whole");
    assert_eq!((pool.take(512, 512, &asker), pool.take(512, 512, &asker)), (Some(0), None));
    pool.give_back(0, 512, 512, frees[0].clone());
    frees[1].enqueued.store(true, Ordering::Release);
    pool.merge(512);
    assert_eq!(pool.take(1024, 1024, &asker), Some(0));
}

#[test]
fn a_hole_is_for_those_who_come_after_its_frees() {
    let mut pool = pool();
    pool.policy.allow_opportunistic = false;
    pool.grow(0, 1024);
    let (one, two) = (clock(1, 5), clock(2, 5));
    assert_eq!(pool.take(1024, 1000, &Asker { stream: 1, clock: &one }), Some(0));
    let free = freed(1, 6);
    pool.give_back(0, 1024, 1000, free.clone());
    assert_eq!(pool.take(512, 512, &Asker { stream: 2, clock: &two }), None);
    assert_eq!(pool.awaited(512).map(|after| after.len()), Some(1));
    let mut later = two.clone();
    later.join(&free.clock);
    assert_eq!(pool.take(512, 512, &Asker { stream: 2, clock: &later }), Some(0));
    free.reached.store(true, Ordering::Release);
    assert_eq!(pool.take(512, 512, &Asker { stream: 2, clock: &two }), None, "it may not look");
    pool.policy.allow_opportunistic = true;
    assert_eq!(pool.take(512, 512, &Asker { stream: 2, clock: &two }), Some(512));
}

#[test]
fn neighbours_of_different_streams_join_once_both_are_reached() {
    let mut pool = pool();
    pool.grow(0, 1024);
    let own = clock(1, 1);
    let asker = Asker { stream: 1, clock: &own };
    assert_eq!((pool.take(512, 512, &asker), pool.take(512, 512, &asker)), (Some(0), Some(512)));
    let frees = [freed(1, 2), freed(2, 2)];
    pool.give_back(0, 512, 512, frees[0].clone());
    pool.give_back(512, 512, 512, frees[1].clone());
    assert_eq!(pool.take(1024, 1024, &asker), None);
    assert!(pool.shrink(0).is_empty(), "nothing goes back before its frees are reached");
    frees.iter().for_each(|free| free.reached.store(true, Ordering::Release));
    assert_eq!(pool.shrink(0), [(0, 1024)]);
    assert_eq!((pool.reserved.current, pool.reserved.high), (0, 1024));
}

proptest! {
    /// Blocks never overlap and lie in segments, and when all is free again the segments are whole.
    #[test]
    fn nothing_is_given_twice_or_lost(steps in prop::collection::vec((0..3u64, 1..9u64, any::<usize>()), 1..120)) {
        const LEN: u64 = 64;
        let mut pool = pool();
        pool.grow(0, LEN);
        pool.grow(LEN, LEN);
        let mut owner = [false; 2 * LEN as usize];
        let mut live = Vec::new();
        for (moment, (stream, len, index)) in steps.into_iter().enumerate() {
            let now = clock(stream + 1, moment as u64);
            if index % 2 == 0 || live.is_empty() {
                let asker = Asker { stream: stream + 1, clock: &now };
                let Some(start) = pool.take(len, len, &asker) else { continue };
                let cells = &mut owner[start as usize..(start + len) as usize];
                prop_assert!(!cells.contains(&true) && pool.holds(start, len));
                cells.fill(true);
                live.push((start, len));
            } else {
                let (start, len) = live.swap_remove(index % live.len());
                owner[start as usize..(start + len) as usize].fill(false);
                let free = freed(stream + 1, moment as u64);
                free.reached.store(index % 3 == 0, Ordering::Release);
                pool.give_back(start, len, len, free);
            }
            prop_assert_eq!(pool.used.current, live.iter().map(|(_, len)| len).sum::<u64>());
        }
        for (start, len) in live {
            pool.give_back(start, len, len, freed(1, 1000));
        }
        for hole in pool.holes.values() {
            hole.after.iter().for_each(|free| free.reached.store(true, Ordering::Release));
        }
        prop_assert_eq!(pool.shrink(0), [(0, LEN), (LEN, LEN)]);
    }
}
