//! Blocks that serve a capture again in which streams used them, beside a plain model of what comes before what. The simulator
//! judges the graph: what uses the same bytes has to be ordered by its edges.

use std::collections::BTreeSet;

use cuda_mem_core::{Context, Event, Stream};
use cuda_mem_pool::MempoolId;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::segments::Filter;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::common::capture::{Capture, GLOBAL};
use crate::common::kernels::Kernels;
use crate::rig::on_simulator;

const COUNT: u64 = 1024;
const BYTES: usize = COUNT as usize;

#[derive(Debug, Clone)]
enum Op {
    /// Has one stream come after all that another was given.
    Join(usize, usize),
    Work(usize),
    Allocate(usize),
    /// Has a stream read a block, behind what its owner wrote.
    Use(Index, usize),
    Free(Index),
}

fn ops() -> impl Strategy<Value = (usize, Vec<Op>)> {
    (2..5usize).prop_flat_map(|streams| {
        let op = prop_oneof![
            4 => (0..streams, 0..streams).prop_map(|(from, to)| Op::Join(from, to)),
            1 => (0..streams).prop_map(Op::Work),
            4 => (0..streams).prop_map(Op::Allocate),
            4 => (any::<Index>(), 0..streams).prop_map(|(which, stream)| Op::Use(which, stream)),
            3 => any::<Index>().prop_map(Op::Free),
        ];
        (Just(streams), vec(op, 1..80))
    })
}

/// A stream; the numbers of all work that comes before where it stands, none while it is outside the capture; and what it
/// writes to, which is nobody else's.
struct Lane {
    stream: Stream,
    knows: Option<BTreeSet<usize>>,
    own: u64,
}

/// A block that somebody has, or that waits.
struct Block {
    address: u64,
    owner: usize,
    users: BTreeSet<usize>,
    /// The work that has to come before the next who has it, from its free on.
    behind: BTreeSet<usize>,
}

struct World<'w> {
    allocator: &'w CachingAllocator,
    kernels: &'w Kernels,
    lanes: Vec<Lane>,
    live: Vec<Block>,
    waiting: Vec<Block>,
    works: usize,
}

impl World<'_> {
    fn knows(&self, lane: usize) -> Option<&BTreeSet<usize>> {
        self.lanes[lane].knows.as_ref()
    }

    fn join(&mut self, from: usize, to: usize) {
        let Some(known) = self.lanes[from].knows.clone().filter(|_| from != to) else { return };
        let (from, to) = (self.lanes[from].stream.clone(), &mut self.lanes[to]);
        let event = Event::new(from.context()).unwrap();
        from.record(&event).unwrap();
        // SAFETY: nobody else works at the captures of this test, and its graphs are not launched.
        unsafe { to.stream.join_capture(&event) }.unwrap();
        to.knows.get_or_insert_default().extend(known);
    }

    fn note_work(&mut self, lane: usize) {
        self.works += 1;
        self.lanes[lane].knows.get_or_insert_default().insert(self.works);
    }

    fn allocate(&mut self, lane: usize) {
        let Some(known) = self.lanes[lane].knows.as_ref() else { return };
        let comes_back = |block: &Block| block.owner == lane && block.behind.is_subset(known);
        self.waiting.retain(|block| !comes_back(block));
        let stream = &self.lanes[lane].stream;
        let address = self.allocator.allocate_by_address(BYTES, stream).unwrap();
        assert!(
            self.live.iter().chain(&self.waiting).all(|block| block.address != address),
            "it is somebody's"
        );
        // SAFETY: of the pool, which is there until after the last launch.
        unsafe { self.kernels.fill_u32(stream, address, COUNT / 4, 1) };
        self.note_work(lane);
        self.live.push(Block { address, owner: lane, users: BTreeSet::new(), behind: BTreeSet::new() });
        self.check();
    }

    fn use_block(&mut self, which: Index, lane: usize) {
        if self.live.is_empty() || self.knows(lane).is_none() {
            return;
        }
        let at = which.index(self.live.len());
        self.join(self.live[at].owner, lane);
        let (Lane { stream, own, .. }, block) = (&self.lanes[lane], &mut self.live[at]);
        // SAFETY: as above, into memory that nobody else writes to and that is freed at the end.
        unsafe { self.kernels.copy_u8(stream, *own, block.address, COUNT) };
        if lane != block.owner {
            self.allocator.record_stream(block.address, stream).unwrap();
            block.users.insert(lane);
        }
        self.note_work(lane);
    }

    fn free(&mut self, which: Index) {
        if self.live.is_empty() {
            return;
        }
        let mut block = self.live.swap_remove(which.index(self.live.len()));
        // SAFETY: freed once, and used by whom it was recorded for.
        unsafe { self.allocator.free_by_address(block.address) }.unwrap();
        if !block.users.is_empty() {
            let users = block.users.iter().chain([&block.owner]);
            block.behind = users.filter_map(|&user| self.knows(user)).flatten().copied().collect();
            self.waiting.push(block);
        }
        self.check();
    }

    fn check(&self) {
        let active = self.allocator.statistics().active.all.current;
        assert_eq!(active as usize, self.live.len() + self.waiting.len() + self.lanes.len());
    }

    fn run(&mut self, ops: &[Op]) {
        for op in ops {
            match *op {
                Op::Join(from, to) => self.join(from, to),
                Op::Work(lane) => {
                    if self.knows(lane).is_some() {
                        let Lane { stream, own, .. } = &self.lanes[lane];
                        // SAFETY: as in `use_block`.
                        unsafe { self.kernels.fill_u32(stream, *own, COUNT / 4, 2) };
                        self.note_work(lane);
                    }
                }
                Op::Allocate(lane) => self.allocate(lane),
                Op::Use(which, lane) => self.use_block(which, lane),
                Op::Free(which) => self.free(which),
            }
        }
    }
}

fn run(context: &Context, streams: usize, ops: &[Op]) {
    let kernels = Kernels::load(context);
    let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
    // SAFETY: the capture is this thread's, and nobody changes its graph.
    unsafe { allocator.set_graph_capture_record_stream_reuse(true) }.unwrap();
    let lane = |_| {
        let stream = Stream::new(context).unwrap();
        let own = allocator.allocate_by_address(BYTES, &stream).unwrap();
        Lane { stream, knows: None, own }
    };
    let lanes: Vec<Lane> = (0..streams).map(lane).collect();
    let (origin, id) = (lanes[0].stream.clone(), MempoolId::for_graph());
    let (live, waiting) = (Vec::new(), Vec::new());
    let mut world = World { allocator: &allocator, kernels: &kernels, lanes, live, waiting, works: 0 };
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    let capture = Capture::begin(&origin, GLOBAL);
    world.lanes[0].knows = Some(BTreeSet::new());
    world.run(ops);
    (1..streams).for_each(|lane| world.join(lane, 0));
    let graph = capture.end().expect("to ask leaves a capture alone");
    allocator.end_allocate_to_pool(id).unwrap();
    // SAFETY: the pool is there, and so is what each stream writes to.
    (0..2).for_each(|_| unsafe { graph.run(&origin) });
    let World { lanes, live, .. } = world;
    drop(graph);
    for address in live.iter().map(|block| block.address).chain(lanes.iter().map(|lane| lane.own)) {
        // SAFETY: freed once, behind the last launch, which was waited for.
        unsafe { allocator.free_by_address(address) }.unwrap();
    }
    allocator.release_pool(id).unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.statistics().active.all.current, 0);
    assert_eq!(allocator.reserved_bytes(), 0);
}

/// Only what was freed may come back.
#[test]
fn the_graph_is_not_looked_at_for_a_block_in_use() {
    on_simulator(|sim, context| {
        let kernels = Kernels::load(context);
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        // SAFETY: the capture is this thread's, and nobody changes its graph.
        unsafe { allocator.set_graph_capture_record_stream_reuse(true) }.unwrap();
        let [stream, other] = [(); 2].map(|()| Stream::new(context).unwrap());
        let join = |from: &Stream, to: &Stream| {
            let event = Event::new(context).unwrap();
            from.record(&event).unwrap();
            // SAFETY: nobody else works at the capture, and its graph is not launched.
            unsafe { to.join_capture(&event) }.unwrap();
        };
        let id = MempoolId::for_graph();
        allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
        let capture = Capture::begin(&stream, GLOBAL);
        let used = allocator.allocate_by_address(BYTES, &stream).unwrap();
        // SAFETY: as above: it is never written.
        unsafe { kernels.fill_u32(&stream, used, COUNT / 4, 1) };
        join(&stream, &other);
        allocator.record_stream(used, &other).unwrap();
        let looks = || sim.log().count("cuGraphNodeGetDependencies");
        let before = looks();
        let more = allocator.allocate_by_address(BYTES, &stream).unwrap();
        assert_eq!(looks(), before);
        join(&other, &stream);
        drop(capture.end().unwrap());
        allocator.end_allocate_to_pool(id).unwrap();
        for address in [used, more] {
            // SAFETY: freed once; nothing runs that uses it.
            unsafe { allocator.free_by_address(address) }.unwrap();
        }
        allocator.release_pool(id).unwrap();
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_block_comes_back_as_soon_as_the_graph_orders_it_and_no_sooner((streams, ops) in ops()) {
        on_simulator(|_, context| run(context, streams, &ops));
    }
}
