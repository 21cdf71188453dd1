//! Handles go back to their places.

use std::collections::BTreeMap;

use super::model::{Model, Others};
use crate::engine::paged::{Backend, Block, Load, NoIndex, PageSource, Policy, StreamHeap, Wanted};

const MIB: usize = 1 << 20;

/// A heap without nests, and what it has in use.
struct Line {
    source: PageSource<Model>,
    heap: StreamHeap,
    load: Load,
}

impl Line {
    fn new(limit: usize) -> Self {
        let policy = Policy { little: 0, ..Policy::DEFAULT };
        let mut source = PageSource::new(Model::new(0, limit), policy, 1 << 40);
        source.set_limit(limit);
        Self { source, heap: StreamHeap::new(), load: Load { active: 0, peak: 0 } }
    }

    fn allocate(&mut self, size: usize) -> Block {
        self.source.backend_mut().now += 1;
        let block = self.heap.allocate(size, 0, &NoIndex).unwrap_or_else(|| {
            let wanted = Wanted { size, unused: 0, load: self.load };
            self.source.grow(0, &mut self.heap, &mut Others(&mut BTreeMap::new()), wanted, &NoIndex).unwrap()
        });
        self.load.active += size;
        self.load.peak = self.load.peak.max(self.load.active);
        block
    }

    fn free(&mut self, block: Block) {
        self.source.backend_mut().now += 1;
        self.load.active -= block.size;
        self.heap.free(block.number, &NoIndex).unwrap();
    }

    fn calls(&self) -> u64 {
        let model = self.source.backend();
        model.creates + model.maps + model.unmaps
    }
}

/// Every other block goes, and one that is as long as four of them is made of what they leave. As soon as that is gone too, all is as it
/// was before: blocks lie where they lay, and no call is needed for them.
#[test]
fn what_was_moved_for_a_block_goes_back_after_it() {
    let mut line = Line::new(usize::MAX);
    let mut blocks: Vec<Block> = (0..16).map(|_| line.allocate(128 * MIB)).collect();
    for _ in 0..3 {
        let holes: Vec<Block> = (0..8).map(|at| blocks.remove(at)).collect();
        holes.iter().for_each(|block| line.free(*block));
        let long = line.allocate(512 * MIB);
        assert!(blocks.iter().all(|block| block.address.abs_diff(long.address) >= 128 * MIB as u64));
        line.free(long);

        let calls = line.calls();
        blocks.extend((0..8).map(|_| line.allocate(128 * MIB)));
        assert_eq!(line.calls(), calls, "memory that is there");
        let places = |blocks: &[Block]| {
            blocks.iter().map(|block| block.address).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(places(&blocks[8..]), places(&holes), "the line is as it was");
        blocks.sort_unstable_by_key(|block| block.address);
    }
    assert!(line.source.most_reserved() <= (16 * 128 + 64) * MIB, "{}", line.source.most_reserved() / MIB);
}

/// What is pinned stays where it is, wherever it belongs.
#[test]
fn a_pinned_handle_does_not_go_back() {
    let mut line = Line::new(usize::MAX);
    let mut blocks: Vec<Block> = (0..8).map(|_| line.allocate(128 * MIB)).collect();
    (0..4).for_each(|at| {
        let block = blocks.remove(at);
        line.free(block);
    });
    let long = line.allocate(384 * MIB);
    let end = long.address + long.size as u64;
    let pinned = line.source.pin(long.address, end).unwrap();
    let behind = |line: &Line| {
        let model = line.source.backend();
        (model.translate(long.address), model.translate(end - 1))
    };
    let before = behind(&line);
    line.free(long);
    // Comes to the source, which brings home what may go.
    let other = line.allocate(256 * MIB);
    assert_eq!(behind(&line), before);
    assert!(line.source.pinned() >= 384 * MIB);
    line.free(other);
    line.source.unpin(&pinned);
    assert_eq!(line.source.pinned(), 0);
}

/// One call unmaps a row, and takes one range: the driver may give ranges that touch.
#[test]
fn no_row_goes_on_in_the_next_range() {
    let mut line = Line::new(usize::MAX);
    line.source.add_range(4 * MIB).unwrap();
    let (first, _) = line.source.ground.ranges().next().unwrap();
    line.source.backend_mut().next_address = first + line.source.range;
    line.source.add_range(4 * MIB).unwrap();
    let ranges: Vec<_> = line.source.ground.ranges().collect();
    assert_eq!(ranges[1].0, ranges[0].0 + line.source.range, "they touch");
    assert!(ranges[0].1 < ranges[1].0, "a page stays empty: {ranges:#x?}");
}

/// A row of memory of which one cannot be mapped: what comes before that is there, and nothing behind it.
#[test]
fn a_row_tells_how_much_of_it_is_mapped() {
    let mut model = Model::new(0, usize::MAX);
    let at = model.reserve(1 << 30).unwrap().unwrap();
    let row: Vec<(usize, u64)> = (0..4).map(|_| (4 * MIB, model.create(4 * MIB).unwrap().unwrap())).collect();
    let calls = model.calls();
    assert_eq!(model.map_row(at, &row), (4, Ok(())));
    assert_eq!(model.calls() - calls, 5, "the device is let in once");
    model.unmap(at, 16 * MIB).unwrap();
    assert!(model.mapped.is_empty());
    let mut refusing = Refusing { model, refused: row[2].1 };
    assert_eq!(refusing.map_row(at, &row), (2, Err("refused")));
    assert_eq!(refusing.model.mapped.keys().copied().collect::<Vec<_>>(), [at, at + (4 << 20)]);
}

/// A model that does not map one piece of memory.
struct Refusing {
    model: Model,
    refused: u64,
}

impl Backend for Refusing {
    type Error = &'static str;
    type Mark = u64;

    fn reserve(&mut self, bytes: u64) -> Result<Option<u64>, &'static str> {
        self.model.reserve(bytes)
    }
    fn create(&mut self, bytes: usize) -> Result<Option<u64>, &'static str> {
        self.model.create(bytes)
    }
    fn map(&mut self, address: u64, bytes: usize, memory: u64) -> Result<(), &'static str> {
        if memory == self.refused { Err("refused") } else { self.model.map(address, bytes, memory) }
    }
    fn unmap(&mut self, address: u64, bytes: usize) -> Result<(), &'static str> {
        self.model.unmap(address, bytes)
    }
    fn release(&mut self, memory: u64, bytes: usize) -> Result<(), &'static str> {
        self.model.release(memory, bytes)
    }
    fn mark(&mut self, heap: u32) -> Result<Option<u64>, &'static str> {
        self.model.mark(heap)
    }
    fn is_done(&mut self, mark: &u64) -> Result<bool, &'static str> {
        self.model.is_done(mark)
    }
    fn wait(&mut self, waiter: u32, of: u32, mark: &u64) -> Result<bool, &'static str> {
        self.model.wait(waiter, of, mark)
    }
}
