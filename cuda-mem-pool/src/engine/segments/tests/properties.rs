//! Any sequence of calls, on the heap and on the model.

use proptest::prelude::*;
use proptest::sample::Index;

use super::model::{Model, Segment};
use super::support::{MIB, layout, reserved};
use crate::engine::segments::{Allocation, Block, BlockState, Checkpoint, Options, PoolError, SegmentHeap};
use crate::statistics::PoolSize;

#[derive(Debug, Clone)]
enum Step {
    /// With room made first, if nothing fits.
    Allocate {
        stream: u64,
        bytes: u64,
        make_room: bool,
    },
    Free(Index),
    FreePending(Index),
    Complete(Index),
    ReleaseCached,
    NoSplit(bool),
    Adopt(u64, u64),
    Checkpoint,
    Restore,
}

struct Machine {
    heap: SegmentHeap,
    model: Model,
    live: Vec<u64>,
    pending: Vec<u64>,
    dead: Vec<u64>,
    kept: Option<(Checkpoint, Vec<Segment>, usize)>,
    segments: u64,
}

impl Machine {
    fn new(options: Options) -> Self {
        Self {
            heap: SegmentHeap::new(options),
            model: Model::new(options),
            live: Vec::new(),
            pending: Vec::new(),
            dead: Vec::new(),
            kept: None,
            segments: 0,
        }
    }

    /// As a driver may: one upwards, one downwards, with nothing between some of them.
    fn fresh_address(&mut self, bytes: u64) -> u64 {
        self.segments += 1;
        let step = self.segments * (1 << 30);
        if self.segments.is_multiple_of(2) { (1 << 45) + step } else { (1 << 45) - step + (1 << 30) - bytes }
    }

    fn allocate(&mut self, stream: u64, bytes: u64, make_room: bool) {
        let size = self.model_size(bytes);
        let expected = self.model.allocate(stream, size, bytes);
        let block = match self.heap.allocate(stream, bytes).unwrap() {
            Allocation::Hit(block) => {
                assert_eq!(Some(block.address), expected, "not the best fit");
                block
            }
            Allocation::Miss(wanted) => {
                assert_eq!(expected, None, "missed what fits");
                if make_room {
                    let available = self.heap.release_available(&wanted);
                    let taken: Vec<u64> = available.iter().map(|segment| segment.address).collect();
                    assert_eq!(taken, self.model.release_available(stream, size));
                }
                let address = self.fresh_address(wanted.bytes);
                self.model.grow(stream, size, bytes, address, wanted.bytes);
                self.heap.add_segment(&wanted, address).unwrap()
            }
        };
        assert_eq!(self.heap.get(block.address), Some(block));
        assert!(block.size >= bytes.max(1) && block.requested == bytes && block.stream == stream);
        self.live.push(block.address);
    }

    fn model_size(&self, bytes: u64) -> u64 {
        self.heap.options.block_size(bytes).unwrap()
    }

    fn step(&mut self, step: &Step) {
        match step {
            &Step::Allocate { stream, bytes, make_room } => self.allocate(stream, bytes, make_room),
            Step::Free(index) if !self.live.is_empty() => {
                let block = self.live.swap_remove(index.index(self.live.len()));
                self.heap.free(block).unwrap();
                self.model.free(block);
                self.dead.push(block);
            }
            Step::FreePending(index) if !self.live.is_empty() => {
                let block = self.live.swap_remove(index.index(self.live.len()));
                self.heap.free_pending(block).unwrap();
                self.model.pending(block);
                assert_eq!(self.heap.free(block), None, "freed twice");
                self.pending.push(block);
            }
            Step::Complete(index) if !self.pending.is_empty() => {
                let block = self.pending.swap_remove(index.index(self.pending.len()));
                self.heap.complete(block).unwrap();
                self.model.free(block);
                self.dead.push(block);
            }
            Step::ReleaseCached => {
                let mut taken: Vec<u64> = self.heap.release_cached().iter().map(|s| s.address).collect();
                taken.sort_unstable();
                assert_eq!(taken, self.model.release_cached());
            }
            &Step::NoSplit(no_split) => {
                self.heap.no_split = no_split;
                self.model.no_split = no_split;
            }
            &Step::Adopt(from, to) => {
                self.heap.adopt(from, to);
                self.model.adopt(from, to);
            }
            Step::Checkpoint => match self.heap.checkpoint() {
                Ok(checkpoint) => {
                    assert!(self.pending.is_empty());
                    self.kept = Some((checkpoint, self.model.segments.clone(), self.live.len()));
                }
                Err(error) => self.expect_pending(error),
            },
            Step::Restore => self.restore(),
            _ => {}
        }
    }

    fn restore(&mut self) {
        let Some((checkpoint, then, live)) = &self.kept else { return };
        match self.heap.restore(checkpoint) {
            Ok([freed, allocated]) => {
                let addresses =
                    |blocks: Vec<Block>| blocks.iter().map(|block| block.address).collect::<Vec<u64>>();
                let [mut freed, allocated] = [freed, allocated].map(addresses);
                assert!(self.pending.is_empty() && self.model.has_all_of(then));
                self.live.sort_unstable();
                freed.sort_unstable();
                assert_eq!(freed, self.live);
                assert_eq!(allocated.len(), *live);
                self.model.restore(then);
                self.dead.append(&mut self.live);
                self.live = allocated;
            }
            Err(PoolError::MissingSegment { .. }) => assert!(!self.model.has_all_of(then)),
            Err(error) => self.expect_pending(error),
        }
    }

    fn expect_pending(&self, error: PoolError) {
        let PoolError::Pending { address } = error else { panic!("{error}") };
        assert!(self.pending.contains(&address));
    }

    fn check(&mut self) {
        let here = layout(&self.heap);
        assert_eq!(here, self.model.layout());
        for (address, bytes, .., blocks) in &here {
            let mut end = *address;
            for block in blocks {
                assert_eq!(block.address, end, "a gap or an overlap");
                assert!(
                    block.address.is_multiple_of(512) && block.size.is_multiple_of(512) && block.size > 0
                );
                end += block.size;
            }
            assert_eq!(end, address + bytes);
            let free = |block: &Block| block.state == BlockState::Inactive;
            assert!(!blocks.windows(2).any(|two| free(&two[0]) && free(&two[1])), "free neighbours");
        }
        assert!(here.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "segments overlap");
        for kind in [PoolSize::Small, PoolSize::Large] {
            assert_eq!(self.heap.splits(kind), self.model.splits(kind));
        }
        for &block in self.live.iter().chain(&self.pending) {
            assert_eq!(self.heap.get(block).unwrap().address, block);
        }
        let again: Vec<u64> = self.live.iter().chain(&self.pending).copied().collect();
        for &block in self.dead.iter().rev().filter(|block| !again.contains(block)).take(4) {
            assert_eq!((self.heap.get(block), self.heap.free(block)), (None, None));
        }
        assert!(self.heap.check_live_allocations(&self.live.iter().copied().collect()));
    }
}

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0u64..5000,
        3 => 1u64..(2 * MIB),
        3 => MIB..(12 * MIB),
        1 => (18 * MIB)..(70 * MIB),
        1 => prop_oneof![Just(MIB), Just(MIB + 1), Just(10 * MIB), Just(20 * MIB), Just(32 * MIB)],
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = any::<Index>;
    let step = prop_oneof![
        10 => (0u64..3, sizes(), any::<bool>())
            .prop_map(|(stream, bytes, make_room)| Step::Allocate { stream, bytes, make_room }),
        6 => index().prop_map(Step::Free),
        2 => index().prop_map(Step::FreePending),
        3 => index().prop_map(Step::Complete),
        1 => Just(Step::ReleaseCached),
        1 => any::<bool>().prop_map(Step::NoSplit),
        1 => (0u64..3, 0u64..3).prop_map(|(from, to)| Step::Adopt(from, to)),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Restore),
    ];
    prop::collection::vec(step, 1..120)
}

fn options() -> impl Strategy<Value = Options> {
    let most_split = prop_oneof![2 => Just(None), 1 => Just(Some(20 * MIB)), 1 => Just(Some(32 * MIB))];
    (most_split, prop_oneof![Just(20 * MIB), Just(40 * MIB)], prop_oneof![3 => Just(0u64), 1 => Just(4)])
        .prop_map(|(most_split, rounding, divisions)| {
            let options = Options::default().with_max_split_size(most_split);
            let options = options.with_max_non_split_rounding(Some(rounding));
            options.with_roundup_power2_divisions([divisions; 16])
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_heap_is_its_model(options in options(), steps in steps()) {
        let mut machine = Machine::new(options);
        for step in &steps {
            machine.step(step);
            machine.check();
        }
        machine.pending.clone().into_iter().for_each(|block| { machine.heap.complete(block).unwrap(); });
        machine.live.clone().into_iter().for_each(|block| { machine.heap.free(block).unwrap(); });
        let held = reserved(&machine.heap);
        let released: u64 = machine.heap.release_cached().iter().map(|segment| segment.bytes).sum();
        prop_assert_eq!(released, held, "a segment that was not joined");
        prop_assert!(machine.heap.is_empty());
        prop_assert_eq!([PoolSize::Small, PoolSize::Large].map(|kind| machine.heap.splits(kind)), [(0, 0); 2]);
    }
}
