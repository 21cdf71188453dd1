use super::*;
use crate::statistics::Stat;

const SMALL: PoolSize = PoolSize::Small;
#[cfg(not(loom))]
const LARGE: PoolSize = PoolSize::Large;

#[cfg(not(loom))]
mod sequential {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::Index;

    const SHARDS: usize = 3;

    #[derive(Debug, Clone)]
    enum Step {
        Allocate(usize, PoolSize, usize),
        /// Gives a block back, in any shard.
        Free(usize, Index),
        RequestFree(usize, Index),
        CompleteFree(usize, Index),
        /// A heap ends and another begins.
        Replace(usize),
        /// Whoever counts waits in between.
        Disarm(usize),
        Read,
        ResetPeak,
        ResetAccumulated,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let (shard, index) = (0..SHARDS, any::<Index>);
        let pool = prop_oneof![Just(SMALL), Just(LARGE)];
        let step = prop_oneof![
            10 => (shard.clone(), pool, 1usize..1000).prop_map(|(shard, pool, size)| Step::Allocate(shard, pool, size)),
            6 => (shard.clone(), index()).prop_map(|(shard, block)| Step::Free(shard, block)),
            2 => (shard.clone(), index()).prop_map(|(shard, block)| Step::RequestFree(shard, block)),
            2 => (shard.clone(), index()).prop_map(|(shard, block)| Step::CompleteFree(shard, block)),
            1 => shard.clone().prop_map(Step::Replace),
            1 => shard.prop_map(Step::Disarm),
            2 => Just(Step::Read),
            1 => Just(Step::ResetPeak),
            1 => Just(Step::ResetAccumulated),
        ];
        prop::collection::vec(step, 1..150)
    }

    #[derive(Debug, Clone, Copy)]
    struct Block {
        pool: PoolSize,
        requested: usize,
    }

    impl Block {
        fn bytes(self) -> usize {
            self.requested.next_multiple_of(512)
        }
    }

    /// As PyTorch counts: each figure by itself, at each step.
    #[derive(Debug, Default)]
    struct Model {
        counted: LiveStatistics,
        live: Vec<Block>,
        pending: Vec<Block>,
    }

    impl Model {
        fn hand_out(&mut self, block: Block) {
            self.live.push(block);
            let (counted, bytes, requested) =
                (&mut self.counted, block.bytes() as u64, block.requested as u64);
            counted.allocation.increase(block.pool, 1);
            counted.allocated_bytes.increase(block.pool, bytes);
            counted.active.increase(block.pool, 1);
            counted.active_bytes.increase(block.pool, bytes);
            counted.requested_bytes.increase(block.pool, requested);
        }

        fn give_back(&mut self, block: Block) {
            self.counted.allocation.decrease(block.pool, 1);
            self.counted.allocated_bytes.decrease(block.pool, block.bytes() as u64);
        }

        fn end(&mut self, block: Block) {
            self.counted.active.decrease(block.pool, 1);
            self.counted.active_bytes.decrease(block.pool, block.bytes() as u64);
            self.counted.requested_bytes.decrease(block.pool, block.requested as u64);
        }

        fn each(&mut self, change: fn(&mut PoolStat)) {
            let LiveStatistics { allocation, allocated_bytes, active, active_bytes, requested_bytes } =
                &mut self.counted;
            [allocation, allocated_bytes, active, active_bytes, requested_bytes].into_iter().for_each(change);
        }
    }

    fn take(blocks: &mut Vec<Block>, index: Index) -> Option<Block> {
        (!blocks.is_empty()).then(|| blocks.swap_remove(index.index(blocks.len())))
    }

    /// What the model is told, the ledger is told too. Gives the ledger's figures at each `Read` and at the end.
    fn run(peaks: Peaks, steps: Vec<Step>, mut check: impl FnMut(LiveStatistics, LiveStatistics)) {
        let ledger = PeakLedger::new(peaks);
        let mut shards: Vec<_> = (0..SHARDS).map(|_| ledger.shard()).collect();
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Allocate(shard, pool, requested) => {
                    let block = Block { pool, requested };
                    shards[shard].hold().allocate(pool, block.bytes(), requested);
                    model.hand_out(block);
                }
                Step::Free(shard, index) => {
                    if let Some(block) = take(&mut model.live, index) {
                        shards[shard].hold().free(block.pool, block.bytes(), block.requested);
                        model.give_back(block);
                        model.end(block);
                    }
                }
                Step::RequestFree(shard, index) => {
                    if let Some(block) = take(&mut model.live, index) {
                        shards[shard].hold().request_free(block.pool, block.bytes());
                        model.give_back(block);
                        model.pending.push(block);
                    }
                }
                Step::CompleteFree(shard, index) => {
                    if let Some(block) = take(&mut model.pending, index) {
                        shards[shard].hold().complete_free(block.pool, block.bytes(), block.requested);
                        model.end(block);
                    }
                }
                Step::Replace(shard) => shards[shard] = ledger.shard(),
                Step::Disarm(shard) => {
                    let block = Block { pool: SMALL, requested: 7 };
                    let mut guard = shards[shard].hold();
                    guard.allocate(SMALL, block.bytes(), block.requested);
                    guard.disarm();
                    // Another may have become active meanwhile.
                    shards[(shard + 1) % SHARDS].hold().allocate(SMALL, block.bytes(), block.requested);
                    guard.free(SMALL, block.bytes(), block.requested);
                    model.hand_out(block);
                    model.hand_out(block);
                    model.live.pop();
                    model.give_back(block);
                    model.end(block);
                }
                Step::Read => check(ledger.read(), model.counted),
                Step::ResetPeak => {
                    ledger.reset_peak();
                    model.each(PoolStat::reset_peak);
                }
                Step::ResetAccumulated => {
                    ledger.reset_accumulated();
                    model.each(PoolStat::reset_accumulated);
                }
            }
        }
        check(ledger.read(), model.counted);
    }

    fn figures(live: LiveStatistics) -> impl Iterator<Item = Stat> {
        let LiveStatistics { allocation, allocated_bytes, active, active_bytes, requested_bytes } = live;
        [allocation, allocated_bytes, active, active_bytes, requested_bytes]
            .into_iter()
            .flat_map(|figure| [figure.all, figure.small_pool, figure.large_pool])
    }

    proptest! {
        #[test]
        fn all_figures_are_those_of_a_plain_count(steps in steps()) {
            run(Peaks::Exact, steps, |counted, plain| assert_eq!(counted, plain));
        }

        #[test]
        fn sharded_peaks_are_never_too_low_and_all_else_is_exact(steps in steps()) {
            run(Peaks::Sharded, steps, |counted, plain| {
                for (counted, plain) in figures(counted).zip(figures(plain)) {
                    assert!(counted.peak >= plain.peak, "{counted:?} is below {plain:?}");
                    assert_eq!(Stat { peak: plain.peak, ..counted }, plain);
                }
            });
        }
    }

    #[test]
    fn a_thread_may_have_two_shards() {
        let ledger = PeakLedger::new(Peaks::Exact);
        let (one, other) = (ledger.shard(), ledger.shard());
        let (mut first, mut second) = (one.hold(), other.hold());
        first.allocate(LARGE, 512, 512);
        second.allocate(LARGE, 512, 512);
        first.free(LARGE, 512, 512);
        assert_eq!(ledger.read().active.all.current, 1);
        second.free(LARGE, 512, 512);
        drop((first, second));
        assert_eq!(ledger.read().active.all, Stat { current: 0, peak: 2, allocated: 2, freed: 2 });
        assert!(one.try_hold().is_some() && other.try_hold().is_some());
    }

    #[test]
    fn one_at_a_time_has_a_shard() {
        let ledger = PeakLedger::new(Peaks::Exact);
        let shard = ledger.shard();
        let mut guard = shard.hold();
        assert!(shard.try_hold().is_none());
        guard.disarm();
        assert!(shard.try_hold().is_none());
        drop(guard);
        assert!(shard.try_hold().is_some());
    }

    #[allow(clippy::mem_forget, reason = "it is what is tested")]
    #[test]
    fn a_forgotten_guard_holds_nothing_up_when_the_shard_is_gone() {
        let ledger = PeakLedger::new(Peaks::Exact);
        let shard = ledger.shard();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut guard = shard.hold();
                guard.allocate(SMALL, 512, 1);
                std::mem::forget(guard);
            });
        });
        drop(shard);
        assert_eq!(ledger.read().allocation.all.current, 1);
    }

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
}

#[cfg(loom)]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU64};
    use loom::thread;

    fn peak(ledger: &PeakLedger) -> Stat {
        ledger.read().requested_bytes.all
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
                assert_eq!(
                    ledger.read().allocation.all,
                    Stat { current: 2, peak: 2, allocated: 2, freed: 0 }
                );
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
}
