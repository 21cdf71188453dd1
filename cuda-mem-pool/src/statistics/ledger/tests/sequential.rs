//! Against a plain count.

use super::super::*;
use crate::statistics::Stat;
use proptest::prelude::*;
use proptest::sample::Index;

const SMALL: PoolSize = PoolSize::Small;
const LARGE: PoolSize = PoolSize::Large;
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
    /// Somebody has another shard meanwhile, and counts there too.
    Beside(usize, usize),
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
        1 => shard.clone().prop_map(Step::Disarm),
        2 => (shard, 1usize..1000).prop_map(|(shard, size)| Step::Beside(shard, size)),
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
            Step::Beside(shard, requested) => {
                let block = Block { pool: LARGE, requested };
                let mut beside = shards[(shard + 1) % SHARDS].hold();
                beside.allocate(LARGE, block.bytes(), requested);
                model.hand_out(block);
                shards[shard].hold().allocate(LARGE, block.bytes(), requested);
                model.hand_out(block);
                beside.free(LARGE, block.bytes(), requested);
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

/// Sixteen heaps with 64 blocks each, of which one goes and another comes: below the peak they share what they may have, and
/// hardly ever ask the books.
#[test]
fn the_books_are_asked_where_a_peak_is_in_sight_and_hardly_elsewhere() {
    const HEAPS: usize = 16;
    const LIVE: usize = 64;
    const PAIRS: usize = 40_000;
    let ledger = PeakLedger::new(Peaks::Exact);
    let shards: Vec<_> = (0..HEAPS).map(|_| ledger.shard()).collect();
    let mut live = vec![[None::<Block>; LIVE]; HEAPS];
    let mut model = Model::default();
    let mut chance = 1u64;
    let mut below = |end: u64| {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((chance >> 33) * end) >> 31
    };
    // Of each heap the block that goes next; one that has gone makes room for another.
    let (mut steps, mut gone) = ([0usize; HEAPS], [false; HEAPS]);
    let mut before = 0;
    for half in 0..2 * PAIRS {
        let heap = below(HEAPS as u64) as usize;
        let place = &mut live[heap][steps[heap] * 29 % LIVE];
        gone[heap] = !gone[heap];
        if gone[heap] {
            if let Some(block) = place.take() {
                shards[heap].hold().free(block.pool, block.bytes(), block.requested);
                model.give_back(block);
                model.end(block);
            }
        } else {
            // From 512 bytes to 32 MiB, as many of each power of two.
            let requested = 512usize << below(16);
            let requested = requested + below(requested as u64) as usize;
            let block = Block { pool: if requested <= 1 << 20 { SMALL } else { LARGE }, requested };
            shards[heap].hold().allocate(block.pool, block.bytes(), requested);
            model.hand_out(block);
            *place = Some(block);
            steps[heap] += 1;
        }
        if half == PAIRS {
            before = ledger.books.asked.load(Ordering::Relaxed);
        }
    }
    let asked = ledger.books.asked.load(Ordering::Relaxed) - before;
    model.live.clear();
    assert_eq!(ledger.read(), model.counted);
    // Half of the pairs, all of which asked two in ten times when all shares were moved by the books.
    assert!(asked < PAIRS / 2 / 50, "{asked} times in {} pairs", PAIRS / 2);
}

/// A program has many streams, most of them idle: those at work have what these do not use.
#[test]
fn one_that_nobody_has_leaves_others_all_that_it_does_not_use() {
    const MIB: usize = 1 << 20;
    let ledger = PeakLedger::new(Peaks::Exact);
    let (idle, one) = (ledger.shard(), ledger.shard());
    let unused = || idle.cells.most().less(idle.cells.now()).active_bytes();
    for _ in 0..4 {
        idle.hold().allocate(LARGE, 16 * MIB, 16 * MIB);
    }
    one.hold().allocate(SMALL, 512, 512);
    for _ in 0..4 {
        idle.hold().free(LARGE, 16 * MIB, 16 * MIB);
    }
    // The first time it may be at work itself.
    one.hold().allocate(LARGE, 8 * MIB, 8 * MIB);
    assert!(unused() > 16 * MIB as u64, "{}", unused());
    one.hold().allocate(LARGE, 48 * MIB, 48 * MIB);
    assert_eq!(unused(), 0);
    let asked = ledger.books.asked.load(Ordering::Relaxed);
    idle.hold().allocate(LARGE, 2 * MIB, 2 * MIB);
    assert_eq!(
        ledger.books.asked.load(Ordering::Relaxed),
        asked,
        "it has its part of what the other does not use"
    );
    let all = ledger.read().active_bytes.all;
    assert_eq!((all.current, all.peak), ((58 * MIB + 512) as u64, (64 * MIB + 512) as u64));
}
