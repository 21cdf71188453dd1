//! What is free in one heap and wanted in another.

use std::collections::BTreeMap;

use super::device::Device;
use super::model::Others;
use crate::engine::paged::{Block, Load, NoIndex, PageSource, Policy, StreamHeap, Wanted};

const BLOCK: usize = 64 << 20;
const HEAPS: u32 = 6;

struct Program {
    source: PageSource<Device>,
    heaps: BTreeMap<u32, StreamHeap>,
    active: usize,
    peak: usize,
}

impl Program {
    /// Six heaps with a page each, and one of them with what it has freed again after its stream worked there: 256 MiB.
    fn with_an_idle_heap() -> Self {
        let source = PageSource::new(Device::new(HEAPS, 8 << 30), Policy::DEFAULT, 1 << 40);
        let heaps = (0..HEAPS).map(|heap| (heap, StreamHeap::new())).collect();
        let mut program = Self { source, heaps, active: 0, peak: 0 };
        for heap in (0..HEAPS).filter(|heap| *heap != 1) {
            program.allocate(heap, 512);
        }
        let blocks: Vec<Block> = (0..4).map(|_| program.allocate(1, BLOCK)).collect();
        for block in blocks {
            program.source.backend_mut().work(1, block.address, block.size);
            program.free(1, block);
        }
        program.heaps.get_mut(&1).unwrap().release_spare_pages(&NoIndex);
        program
    }

    fn allocate(&mut self, heap: u32, size: usize) -> Block {
        let mut mine = self.heaps.remove(&heap).unwrap();
        let block = mine.allocate(size, 0, &NoIndex).unwrap_or_else(|| {
            let load = Load { active: self.active, peak: self.peak };
            let wanted = Wanted { size, unused: 0, load };
            self.source.grow(heap, &mut mine, &mut Others(&mut self.heaps), wanted, &NoIndex).unwrap()
        });
        self.heaps.insert(heap, mine);
        self.active += size;
        self.peak = self.peak.max(self.active);
        block
    }

    fn free(&mut self, heap: u32, block: Block) {
        self.heaps.get_mut(&heap).unwrap().free(block.number, &NoIndex).unwrap();
        self.active -= block.size;
    }

    fn is_of_idle_heap(&self, block: Block) -> bool {
        self.heaps[&1].layout().iter().all(|(address, size, _)| {
            address + *size as u64 <= block.address || block.address + block.size as u64 <= *address
        })
    }
}

#[test]
fn what_an_idle_heap_has_changes_hands_where_it_is() {
    let mut program = Program::with_an_idle_heap();
    let (held, mappings) = (program.source.reserved(), program.source.most_mappings());
    let had: Vec<_> = program.heaps[&1].layout();
    let block = program.allocate(0, 3 * BLOCK / 2);
    let inside = |(address, size, free): &(u64, usize, bool)| {
        *free && *address <= block.address && block.address + block.size as u64 <= address + *size as u64
    };
    assert!(had.iter().any(inside), "{block:?} is not where it was free: {had:x?}");
    assert_eq!((program.source.reserved(), program.source.most_mappings()), (held, mappings));
    assert!(program.is_of_idle_heap(block), "two heaps have the same bytes");
    // The device refuses this unless the stream waits for the other's work.
    program.source.backend_mut().work(0, block.address, block.size);
    program.source.backend_mut().finish();
    // What came with it serves the next one.
    let before = program.source.reserved();
    program.allocate(0, BLOCK / 2);
    assert_eq!(program.source.reserved(), before);
}

/// A stream that captures cannot wait for another: it gets memory of its own, and what is free stays where it was.
#[test]
fn what_cannot_be_waited_for_stays_where_it_was() {
    let mut program = Program::with_an_idle_heap();
    let had = program.heaps[&1].layout();
    program.source.backend_mut().capturing.insert(0);
    program.allocate(0, 3 * BLOCK / 2);
    assert_eq!(program.heaps[&1].layout(), had);
}

/// What a heap got from another and has not used is free there since then: a point that its stream made before is none to wait for.
#[test]
fn what_changes_hands_twice_is_waited_for_where_it_was_used() {
    let mut program = Program::with_an_idle_heap();
    let now = program.heaps[&0].now();
    program.source.hand_over(2, 0, now, now).unwrap();
    let block = program.allocate(0, 3 * BLOCK / 2);
    let next = block.address + block.size as u64;
    // Nothing else is to be had, and 32 MiB of what came with the block.
    let held = program.source.reserved();
    program.source.set_limit(held);
    program.allocate(1, 2 * BLOCK);
    let stolen = program.allocate(2, BLOCK / 2);
    let free = program.heaps[&0].layout().iter().any(|(address, _, free)| *address == next && *free);
    assert!(!free, "it is another heap's");
    // The device refuses this unless the stream waits for the work of the heap that had it at first.
    program.source.backend_mut().work(2, stolen.address, stolen.size);
    program.source.backend_mut().finish();
}

/// Two streams that have their peaks by turns have one another's memory where it is: nothing is mapped after the first two.
#[test]
fn what_two_heaps_need_by_turns_stays_mapped_where_it_is() {
    const BLOCKS: usize = 40;
    let source = PageSource::new(Device::new(2, 8 << 30), Policy::DEFAULT, 1 << 40);
    let heaps = (0..2).map(|heap| (heap, StreamHeap::new())).collect();
    let mut program = Program { source, heaps, active: 0, peak: 0 };
    let mut mappings = Vec::new();
    for round in 0..6 {
        let heap = round % 2;
        let blocks: Vec<Block> = (0..BLOCKS).map(|_| program.allocate(heap, BLOCK)).collect();
        for block in blocks {
            // The device refuses this unless the stream waits for the other's work.
            program.source.backend_mut().work(heap, block.address, block.size);
            program.free(heap, block);
        }
        mappings.push(program.source.most_mappings());
    }
    program.source.backend_mut().finish();
    assert_eq!(mappings[5], mappings[1], "{mappings:?}");
    let held = program.source.reserved() as f64 / program.peak as f64;
    assert!(held <= 1.03, "{held} held");
}

/// What is moved from another heap is what has been free there for longest, and one wait does for all of it.
#[test]
fn a_stream_waits_once_and_for_no_more_than_it_must() {
    let source = PageSource::new(Device::new(2, 8 << 30), Policy::DEFAULT, 1 << 40);
    let heaps = (0..2).map(|heap| (heap, StreamHeap::new())).collect();
    let mut program = Program { source, heaps, active: 0, peak: 0 };
    let mut blocks: Vec<Block> = (0..80).map(|_| program.allocate(1, BLOCK)).collect();
    // No two side by side, so that nothing changes hands where it is.
    let mut free = |program: &mut Program, count: usize| {
        for _ in 0..count {
            let block = blocks.remove(0);
            program.source.backend_mut().work(1, block.address, block.size);
            program.free(1, block);
            let kept = blocks.remove(0);
            program.source.backend_mut().work(1, kept.address, kept.size);
        }
    };
    free(&mut program, 12);
    // The source makes a point behind those.
    program.allocate(1, 2 * BLOCK);
    free(&mut program, 12);
    assert_eq!(program.source.backend().waits(0, 1), (0, false));
    let block = program.allocate(0, 4 * BLOCK);
    assert_eq!(program.source.backend().waits(0, 1), (1, false));
    program.source.backend_mut().work(0, block.address, block.size);
    program.free(0, block);
    program.source.backend_mut().finish();
    // The heap that had it makes no other point, and none is needed to know that it has left it.
    let mine = program.heaps.get_mut(&0).unwrap();
    program.source.mark_free(0, mine).unwrap();
    assert_eq!(program.source.release_free(0, mine, 0).unwrap(), block.size);
}
