//! Against a plain count.

use super::read;
use crate::statistics::*;
use proptest::prelude::*;
use proptest::sample::Index;

const SMALL: PoolSize = PoolSize::Small;
const LARGE: PoolSize = PoolSize::Large;
const SHARDS: usize = 3;

#[derive(Debug, Clone)]
enum Step {
    Allocate(usize, PoolSize, usize),
    AllocateBelowPeak(usize, PoolSize, usize),
    /// Gives a block back, in any shard.
    Free(usize, Index),
    RequestFree(usize, Index),
    CompleteFree(usize, Index),
    /// A heap ends and another begins.
    Replace(usize),
    /// Another thread allocates in a shard while somebody has the next one, and gives a block back there.
    Beside(usize, Index),
    Read,
    ResetPeak,
    ResetAccumulated,
}

fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let (shard, index) = (0..SHARDS, any::<Index>);
    let pool = prop_oneof![Just(SMALL), Just(LARGE)];
    let step = prop_oneof![
        8 => (shard.clone(), pool.clone(), 1..most).prop_map(|(shard, pool, size)| Step::Allocate(shard, pool, size)),
        4 => (shard.clone(), pool, 1..most).prop_map(|(shard, pool, size)| Step::AllocateBelowPeak(shard, pool, size)),
        6 => (shard.clone(), index()).prop_map(|(shard, block)| Step::Free(shard, block)),
        2 => (shard.clone(), index()).prop_map(|(shard, block)| Step::RequestFree(shard, block)),
        2 => (shard.clone(), index()).prop_map(|(shard, block)| Step::CompleteFree(shard, block)),
        1 => shard.clone().prop_map(Step::Replace),
        1 => (shard, index()).prop_map(|(shard, block)| Step::Beside(shard, block)),
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
    counted: DeviceStatistics,
    live: Vec<Block>,
    pending: Vec<Block>,
}

impl Model {
    fn hand_out(&mut self, block: Block) {
        self.live.push(block);
        let (counted, bytes, requested) = (&mut self.counted, block.bytes() as u64, block.requested as u64);
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

    fn peaks(&self) -> Vec<u64> {
        figures(self.counted).map(|stat| stat.peak).collect()
    }

    fn each(&mut self, change: fn(&mut PoolStat)) {
        let DeviceStatistics { allocation, allocated_bytes, active, active_bytes, requested_bytes, .. } =
            &mut self.counted;
        [allocation, allocated_bytes, active, active_bytes, requested_bytes].into_iter().for_each(change);
    }
}

fn take(blocks: &mut Vec<Block>, index: Index) -> Option<Block> {
    (!blocks.is_empty()).then(|| blocks.swap_remove(index.index(blocks.len())))
}

/// What the model is told, the counter is told too. Gives the figures of both at each `Read` and at the end.
fn run(counter: &PeakCounter, steps: Vec<Step>, mut check: impl FnMut(DeviceStatistics, DeviceStatistics)) {
    let mut shards: Vec<_> = (0..SHARDS).map(|_| counter.shard()).collect();
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Allocate(shard, pool, requested) => {
                let block = Block { pool, requested };
                shards[shard].hold().allocate(pool, block.bytes(), requested);
                model.hand_out(block);
            }
            Step::AllocateBelowPeak(shard, pool, requested) => {
                let block = Block { pool, requested };
                if shards[shard].hold().allocate_below_peak(pool, block.bytes(), requested) {
                    let peaks = model.peaks();
                    model.hand_out(block);
                    assert!(counter.is_shared() || model.peaks() == peaks, "a peak rose");
                }
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
            Step::Replace(shard) => shards[shard] = counter.shard(),
            // Calls overlap here: where they do not yet, that is not to begin.
            Step::Beside(shard, index) if counter.is_shared() => {
                let block = Block { pool: SMALL, requested: 7 };
                let guard = shards[(shard + 1) % SHARDS].hold();
                if let Some(block) = take(&mut model.live, index) {
                    guard.free(block.pool, block.bytes(), block.requested);
                    model.give_back(block);
                    model.end(block);
                }
                std::thread::scope(|scope| {
                    let shard = &shards[shard];
                    scope.spawn(move || shard.hold().allocate(block.pool, block.bytes(), block.requested));
                    std::thread::yield_now();
                    drop(guard);
                });
                model.hand_out(block);
            }
            Step::Beside(..) => {}
            Step::Read => check(read(counter), model.counted),
            Step::ResetPeak => {
                counter.reset_peak();
                model.each(PoolStat::reset_peak);
            }
            Step::ResetAccumulated => {
                counter.reset_accumulated();
                model.each(PoolStat::reset_accumulated);
            }
        }
        assert_eq!(counter.active_bytes() as u64, model.counted.active_bytes.all.current);
    }
    check(read(counter), model.counted);
}

fn figures(live: DeviceStatistics) -> impl Iterator<Item = Stat> {
    let DeviceStatistics { allocation, allocated_bytes, active, active_bytes, requested_bytes, .. } = live;
    [allocation, allocated_bytes, active, active_bytes, requested_bytes]
        .into_iter()
        .flat_map(|figure| [figure.all, figure.small_pool, figure.large_pool])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn all_figures_are_those_of_a_plain_count(steps in steps(1000)) {
        run(&PeakCounter::default(), steps, |counted, plain| assert_eq!(counted, plain));
    }

    /// A peak is low by no more than a quantum, and never high; all else is exact.
    #[test]
    fn peaks_where_calls_overlap_are_near(steps in steps(3 << 20)) {
        let counter = PeakCounter::default();
        counter.be_shared();
        run(&counter, steps, |counted, plain| {
            let near = [128, 512 << 10, 128, 512 << 10, 512 << 10];
            let near = near.into_iter().flat_map(|near| [near; 3]);
            for ((counted, plain), near) in figures(counted).zip(figures(plain)).zip(near) {
                assert!(counted.peak <= plain.peak && counted.peak + near >= plain.peak, "{counted:?} for {plain:?}");
                assert_eq!(Stat { peak: plain.peak, ..counted }, plain);
            }
        });
    }
}

#[test]
fn one_at_a_time_has_a_shard() {
    let counter = PeakCounter::default();
    let shard = counter.shard();
    let guard = shard.hold();
    // Who asks in vain leaves the lock with its holder.
    (0..2).for_each(|_| assert!(shard.try_hold().is_none()));
    guard.allocate(SMALL, 512, 1);
    (0..2).for_each(|_| assert!(shard.try_hold().is_none()));
    drop(guard);
    assert!(shard.try_hold().is_some());
}

/// What another thread is about to free is not in a peak that rises behind it.
#[test]
fn who_raises_a_peak_waits_for_who_has_another_shard() {
    let counter = PeakCounter::default();
    let [one, other] = [(); 2].map(|()| counter.shard());
    other.hold().allocate(LARGE, 8 << 20, 8 << 20);
    let guard = other.hold();
    std::thread::scope(|scope| {
        let raises = scope.spawn(|| one.hold().allocate(LARGE, 4 << 20, 4 << 20));
        while !counter.is_stopping() {
            std::thread::yield_now();
        }
        // A new shard would be let go with those that are stopped, whoever has it.
        let comes = scope.spawn(|| counter.shard());
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(!raises.is_finished() && !comes.is_finished());
        guard.free(LARGE, 8 << 20, 8 << 20);
        guard.allocate(LARGE, 2 << 20, 2 << 20);
        drop(guard);
        raises.join().unwrap();
    });
    let bytes = read(&counter).active_bytes.all;
    assert_eq!((bytes.current, bytes.peak), (6 << 20, 8 << 20));
}

/// The small pool's peak has a quantum of its own.
#[test]
fn a_large_pools_peak_leaves_the_small_one_exact() {
    let counter = PeakCounter::default();
    let [one, other] = [(); 2].map(|()| counter.shard());
    counter.be_shared();
    one.hold().allocate(LARGE, 80 << 30, 80 << 30);
    one.hold().free(LARGE, 80 << 30, 80 << 30);
    counter.be_shared();
    for _ in 0..40 {
        other.hold().allocate(SMALL, 1 << 20, 1 << 20);
    }
    (0..40).for_each(|_| other.hold().free(SMALL, 1 << 20, 1 << 20));
    let peak = read(&counter).active_bytes.small_pool.peak;
    assert!((39 << 20..=40 << 20).contains(&peak), "{peak}");
}

/// More than a shelf's first places have.
#[test]
fn shards_come_while_others_count() {
    let counter = PeakCounter::default();
    let most = 40;
    std::thread::scope(|scope| {
        let counting = || {
            let shards: Vec<_> = (0..most).map(|_| counter.shard()).collect();
            for (number, shard) in shards.iter().enumerate() {
                shard.hold().allocate(LARGE, 1 << number, 1);
            }
            shards.iter().enumerate().for_each(|(number, shard)| shard.hold().free(LARGE, 1 << number, 1));
        };
        for _ in 0..2 {
            scope.spawn(counting);
        }
    });
    let bytes = read(&counter).active_bytes.all;
    let all = (1 << most) - 1;
    assert_eq!((bytes.current, bytes.allocated), (0, 2 * all));
    assert!((all..=2 * all).contains(&bytes.peak), "{bytes:?}");
    assert!((most..=2 * most).contains(&counter.shards()));
}

/// Decisions that are made by it do not depend on what a program does to its statistics.
#[test]
fn the_most_that_ever_was_active_outlives_resets() {
    let counter = PeakCounter::default();
    let shard = counter.shard();
    shard.hold().allocate(LARGE, 4 << 20, 4 << 20);
    shard.hold().free(LARGE, 4 << 20, 4 << 20);
    counter.reset_peak();
    shard.hold().allocate(LARGE, 1 << 20, 1 << 20);
    assert_eq!(counter.peak_active_bytes(), 4 << 20);
    assert_eq!(read(&counter).active_bytes.all.peak, 1 << 20);
    shard.hold().allocate(LARGE, 5 << 20, 5 << 20);
    assert_eq!(counter.peak_active_bytes(), 6 << 20);
}

/// After overlaps one thread may go on alone, and then peaks are exact again.
#[test]
fn one_that_goes_on_alone_has_exact_peaks_again() {
    let counter = PeakCounter::default();
    let (one, other) = (counter.shard(), counter.shard());
    counter.be_shared();
    other.hold().allocate(LARGE, 8 << 20, 8 << 20);
    for more in 0..100 {
        one.hold().allocate(LARGE, (4 << 20) + (more << 20), 4 << 20);
        one.hold().free(LARGE, (4 << 20) + (more << 20), 4 << 20);
    }
    assert!(!counter.is_shared());
    for more in 1..100 {
        let bytes = (103 << 20) + more;
        one.hold().allocate(LARGE, bytes, bytes);
        one.hold().free(LARGE, bytes, bytes);
        assert_eq!(read(&counter).active_bytes.all.peak, (8 << 20) + bytes as u64);
    }
    counter.be_shared();
    counter.reset_peak();
    assert!(!counter.is_shared());
}

/// Shards of heaps that are gone are used again, so that a counter does not grow with each.
#[test]
fn the_next_heap_takes_a_shard_over() {
    let counter = PeakCounter::default();
    for _ in 0..100 {
        counter.shard().hold().allocate(SMALL, 512, 500);
    }
    assert_eq!(counter.shards(), 1);
    assert_eq!(read(&counter).requested_bytes.small_pool.current, 50_000);
}
