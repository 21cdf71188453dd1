//! Threads, against what each of them knows.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use super::read;
use crate::statistics::*;

const SMALL: PoolSize = PoolSize::Small;
const LARGE: PoolSize = PoolSize::Large;

/// What all threads did is counted, whoever reads meanwhile, and the peak is one that they can have reached.
#[test]
fn threads_lose_nothing() {
    const THREADS: u64 = 4;
    const PAIRS: u64 = 5000;
    let counter = PeakCounter::default();
    let shards: Vec<_> = (0..2).map(|_| counter.shard()).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (shards, counter) = (&shards, &counter);
            scope.spawn(move || {
                for pair in 0..PAIRS {
                    let shard = &shards[(thread + pair / 64) as usize % shards.len()];
                    shard.hold().allocate(SMALL, 1024, 1000);
                    if pair % 100 == 0 {
                        assert!(read(counter).active.all.allocated > pair);
                    }
                    shards[thread as usize % shards.len()].hold().free(SMALL, 1024, 1000);
                }
            });
        }
    });
    let live = read(&counter);
    let bytes = live.active_bytes.all;
    assert_eq!((bytes.current, bytes.allocated), (0, THREADS * PAIRS * 1024));
    assert_eq!((bytes.freed, live.allocation.small_pool.freed), (bytes.allocated, THREADS * PAIRS));
    assert!(bytes.peak <= THREADS * 1024, "{bytes:?}");
}

/// What is live, as all threads know it together, and the most of it.
#[derive(Default)]
struct Known {
    now: AtomicI64,
    most: AtomicI64,
}

impl Known {
    fn add(&self, bytes: i64) {
        let now = self.now.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    fn most(&self) -> u64 {
        u64::try_from(self.most.load(Ordering::SeqCst)).unwrap()
    }
}

/// A block is live somewhere between its request and its return. A peak is no more than what may have been live at once, and less
/// than what surely was by no more than a quantum, whether calls overlap or not.
#[test]
fn the_peak_is_near_what_was_live_at_once() {
    const THREADS: usize = 4;
    const STEPS: usize = 20_000;
    const LIVE: usize = 8;
    const QUANTUM: u64 = 512 << 10;
    let counter = PeakCounter::default();
    let shards: Vec<_> = (0..THREADS).map(|_| counter.shard()).collect();
    let (surely, perhaps) = (Known::default(), Known::default());
    std::thread::scope(|scope| {
        for (thread, shard) in shards.iter().enumerate() {
            let (surely, perhaps, counter) = (&surely, &perhaps, &counter);
            scope.spawn(move || {
                let mut live = [0usize; LIVE];
                let mut chance = thread as u64 + 1;
                for step in 0..STEPS {
                    if step == STEPS / 2 && thread == 0 {
                        counter.be_shared();
                    }
                    let slot = &mut live[step % LIVE];
                    let pool = |bytes: usize| if bytes < 1 << 20 { SMALL } else { LARGE };
                    if *slot > 0 {
                        surely.add(-(*slot as i64));
                        shard.hold().free(pool(*slot), *slot, *slot);
                        perhaps.add(-(*slot as i64));
                    }
                    chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    *slot = 1 + (chance >> 42) as usize;
                    perhaps.add(*slot as i64);
                    shard.hold().allocate(pool(*slot), *slot, *slot);
                    surely.add(*slot as i64);
                }
            });
        }
    });
    let bytes = read(&counter).active_bytes.all;
    assert_eq!(i64::try_from(bytes.current).unwrap(), surely.now.load(Ordering::SeqCst));
    assert!(surely.most() <= bytes.peak + QUANTUM, "{} {bytes:?}", surely.most());
    assert!(bytes.peak <= perhaps.most(), "{} {bytes:?}", perhaps.most());
}

/// Whoever reads takes no shard's lock.
#[test]
fn reading_waits_for_nobody_who_has_a_shard() {
    let counter = PeakCounter::default();
    let shard = counter.shard();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let guard = shard.hold();
        guard.allocate(LARGE, 2 << 20, 2 << 20);
        let reader = scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                assert!(read(&counter).active.all.current <= 1);
                assert!(counter.peak_active_bytes() <= 2 << 20);
            }
        });
        // It reads with the shard held, or the test would not end.
        read(&counter);
        for _ in 0..1000 {
            guard.free(LARGE, 2 << 20, 2 << 20);
            guard.allocate(LARGE, 2 << 20, 2 << 20);
        }
        ended.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        drop(guard);
    });
    assert_eq!(read(&counter).active.all.peak, 1);
}

/// A block is freed in one shard before there is one in the next: whoever reads sees one at most.
#[test]
fn what_was_freed_before_is_never_seen_beside_what_came_after() {
    let counter = PeakCounter::default();
    let shards: Vec<_> = (0..8).map(|_| counter.shard()).collect();
    // Each may have one, so that none asks another below.
    shards.iter().for_each(|shard| shard.hold().allocate(LARGE, 2 << 20, 2 << 20));
    shards.iter().for_each(|shard| shard.hold().free(LARGE, 2 << 20, 2 << 20));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                let active = read(&counter).active.all;
                assert!(active.current <= 1, "{active:?}");
            }
        });
        for shard in shards.iter().cycle().take(20_000) {
            shard.hold().allocate(LARGE, 2 << 20, 2 << 20);
            // It lives about as long as it takes to read a shard.
            (0..50).for_each(|_| std::hint::spin_loop());
            shard.hold().free(LARGE, 2 << 20, 2 << 20);
        }
        ended.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
}
