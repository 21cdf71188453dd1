//! Threads, against what each of them knows.

use std::sync::atomic::AtomicI64;

use super::super::*;

const SMALL: PoolSize = PoolSize::Small;
const LARGE: PoolSize = PoolSize::Large;

/// What all threads did is counted, and the peak is one that they can have reached.
#[test]
fn threads_lose_nothing() {
    const THREADS: u64 = 4;
    const PAIRS: u64 = 5000;
    for peaks in [Peaks::Exact, Peaks::Sharded] {
        let ledger = PeakLedger::new(peaks);
        let shards: Vec<_> = (0..2).map(|_| ledger.shard()).collect();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (shards, ledger) = (&shards, &ledger);
                scope.spawn(move || {
                    for pair in 0..PAIRS {
                        let shard = &shards[(thread + pair / 64) as usize % shards.len()];
                        shard.hold().allocate(SMALL, 1024, 1000);
                        if pair % 100 == 0 {
                            let live = ledger.read();
                            assert!(live.active.all.current >= 1 && live.active.all.current <= THREADS);
                        }
                        shards[thread as usize % shards.len()].hold().free(SMALL, 1024, 1000);
                    }
                });
            }
        });
        let live = ledger.read();
        let bytes = live.active_bytes.all;
        assert_eq!((bytes.current, bytes.allocated), (0, THREADS * PAIRS * 1024));
        assert_eq!((bytes.freed, live.allocation.small_pool.freed), (bytes.allocated, THREADS * PAIRS));
        assert!(bytes.peak >= 1024, "{peaks:?}");
        if peaks == Peaks::Exact {
            assert!(bytes.peak <= THREADS * 1024, "{bytes:?}");
        }
    }
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

/// A block is live somewhere between its request and its return: what was surely live at once is in the peak, and nothing but
/// what may have been.
#[test]
fn the_peak_is_what_was_live_at_once() {
    const THREADS: usize = 4;
    const STEPS: usize = 20_000;
    const LIVE: usize = 8;
    let ledger = PeakLedger::new(Peaks::Exact);
    let shards: Vec<_> = (0..THREADS).map(|_| ledger.shard()).collect();
    let (surely, perhaps) = (Known::default(), Known::default());
    std::thread::scope(|scope| {
        for (thread, shard) in shards.iter().enumerate() {
            let (surely, perhaps, ledger) = (&surely, &perhaps, &ledger);
            scope.spawn(move || {
                let mut live = [0usize; LIVE];
                let mut chance = thread as u64 + 1;
                for step in 0..STEPS {
                    let slot = &mut live[step % LIVE];
                    let pool = |bytes: usize| if bytes < 3000 { SMALL } else { LARGE };
                    if *slot > 0 {
                        surely.add(-(*slot as i64));
                        shard.hold().free(pool(*slot), *slot, *slot);
                        perhaps.add(-(*slot as i64));
                    }
                    chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    *slot = 1 + (chance >> 52) as usize;
                    perhaps.add(*slot as i64);
                    shard.hold().allocate(pool(*slot), *slot, *slot);
                    surely.add(*slot as i64);
                    if step % 5000 == 2500 {
                        assert!(ledger.read().active_bytes.all.peak <= perhaps.most());
                    }
                }
            });
        }
    });
    let bytes = ledger.read().active_bytes.all;
    assert_eq!(i64::try_from(bytes.current).unwrap(), surely.now.load(Ordering::SeqCst));
    assert!(surely.most() <= bytes.peak, "{} {bytes:?}", surely.most());
    assert!(bytes.peak <= perhaps.most(), "{} {bytes:?}", perhaps.most());
}
