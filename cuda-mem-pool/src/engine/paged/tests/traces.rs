//! Real traces: how much is held, and what it costs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::BufReader;

use super::model::{AllHeaps, Model};
use crate::engine::paged::{
    Block, GrowError, Hold, NoIndex, PageSource, Policy, StreamHeap, Wanted, block_size,
};
use crate::trace;

pub(super) struct Figures {
    pub(super) ratio: f64,
    share: f64,
    pub(super) line: String,
    pub(super) peak: usize,
    pub(super) ooms: u64,
}

/// What a program did, in order.
pub(super) enum Event {
    Allocate { id: u32, size: usize, stream: u32 },
    Free(u32),
}

pub(super) struct Trace {
    pub(super) name: String,
    pub(super) wall: f64,
    /// What expandable segments held of it, over what was in blocks.
    expandable: f64,
    pub(super) events: Vec<Event>,
}

impl Trace {
    /// A recorded run.
    fn read(name: &str) -> Self {
        let path = format!("{}/../ci/traces/{name}.csv.gz", env!("CARGO_MANIFEST_DIR"));
        let path = std::env::var("TRACES").map_or(path, |dir| format!("{dir}/{name}.csv.gz"));
        let file = flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap());
        let trace = trace::Trace::read(BufReader::new(file)).unwrap();
        let figure = |name: &str| trace.number(name).unwrap().unwrap();
        let (wall, expandable) =
            (figure("wall_s"), figure("expandable_reserved_peak") / figure("alloc_peak"));
        let completed = trace.events.iter().filter(|event| event.action == trace::Action::Complete);
        let late: HashSet<u64> = completed.map(|event| event.id).collect();
        let mut events = Vec::new();
        for trace::Event { action, id, stream, .. } in &trace.events {
            match action {
                trace::Action::Allocate { size } => {
                    let size = block_size(*size as usize).unwrap();
                    events.push(Event::Allocate { id: *id as u32, size, stream: *stream as u32 });
                }
                trace::Action::Free if late.contains(id) => {}
                _ => events.push(Event::Free(*id as u32)),
            }
        }
        Self { name: name.to_owned(), wall, expandable, events }
    }

    pub(super) fn replay(&self, lag: u64, policy: Policy, capacity: usize, check: bool) -> Figures {
        let mut source = PageSource::new(Model::new(lag, capacity), policy, 80 << 30);
        source.set_limit(capacity);
        let mut heaps: BTreeMap<u32, StreamHeap> = BTreeMap::new();
        let mut live: HashMap<u32, (u32, Block)> = HashMap::new();
        let mut physical: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        let (mut active, mut peak, mut ooms) = (0usize, 0usize, 0u64);
        let mut most_reserved = 0;
        let mut spent = std::time::Duration::ZERO;
        let mut slowest = std::time::Duration::ZERO;
        let (mut count, mut grows) = (0u64, 0u64);
        let mut early = (0, 0);
        for (at, event) in self.events.iter().enumerate() {
            source.backend.now += 1;
            if at == self.events.len() / 3 {
                early = (count, source.backend.calls());
            }
            match *event {
                Event::Allocate { id, size, stream } => {
                    count += 1;
                    let heap = heaps.entry(stream).or_insert_with(StreamHeap::new);
                    let begun = std::time::Instant::now();
                    let mut block = heap.allocate(size, 0, &NoIndex);
                    if block.is_none() {
                        grows += 1;
                        let wanted = Wanted { size, unused: 0, peak: peak.max(active + size) };
                        source.begin();
                        let grown = source.grow(stream, &mut AllHeaps(&mut heaps, &NoIndex), wanted);
                        block = match grown {
                            Ok(block) => Some(block),
                            Err(GrowError::OutOfMemory) => None,
                            Err(error) => panic!("{error:?}"),
                        };
                    }
                    most_reserved = most_reserved.max(source.reserved());
                    let took = begun.elapsed();
                    spent += took;
                    slowest = slowest.max(took);
                    let Some(block) = block else {
                        ooms += 1;
                        continue;
                    };
                    assert_eq!(block.size, size);
                    active += size;
                    peak = peak.max(active);
                    if check {
                        enter(&mut physical, &source.backend, block);
                    }
                    live.insert(id, (stream, block));
                }
                Event::Free(id) => {
                    let Some((stream, block)) = live.remove(&id) else { continue };
                    active -= block.size;
                    if check {
                        leave(&mut physical, &source.backend, block);
                    }
                    let begun = std::time::Instant::now();
                    let freed = heaps.get_mut(&stream).unwrap().free(block.number, &NoIndex);
                    assert_eq!(freed.map(|freed| freed.size), Some(block.size));
                    spent += begun.elapsed();
                }
            }
        }
        let model = &source.backend;
        let ratio = most_reserved as f64 / peak as f64;
        let share = model.microseconds() as f64 / 1e6 / self.wall;
        let late = (count - early.0) as f64 / 1e4;
        let late_calls = (model.calls() - early.1) as f64 / late;
        let line = format!(
            "{:24} lag {lag:4} ratio {ratio:.4} share {:.3}% create {} map {} unmap {} marks {} waits {} grows {grows} ooms {ooms} late calls {late_calls:.0} ns/op {:.0} slowest {:.0}us meta {}",
            self.name,
            share * 100.0,
            model.creates,
            model.maps,
            model.unmaps,
            model.marks,
            model.waits,
            spent.as_nanos() as f64 / count as f64,
            slowest.as_secs_f64() * 1e6,
            source.metadata_bytes() + heaps.values().map(StreamHeap::metadata_bytes).sum::<usize>(),
        );
        Figures { ratio, share, line, peak, ooms }
    }
}

/// The bytes of a block, by handle and offset, belong to nobody else.
fn pieces(model: &Model, block: Block) -> Vec<(u64, u64, u64)> {
    let end = block.address + block.size as u64;
    let mut address = block.address;
    let mut pieces = Vec::new();
    while address < end {
        let (memory, offset, mapped_to) = model.translate(address);
        let bytes = mapped_to.min(end) - address;
        pieces.push((memory, offset, bytes));
        address += bytes;
    }
    pieces
}

fn enter(physical: &mut BTreeMap<(u64, u64), u64>, model: &Model, block: Block) {
    for (memory, offset, bytes) in pieces(model, block) {
        if let Some((&(other, start), &held)) = physical.range(..(memory, offset + bytes)).next_back() {
            assert!(other != memory || start + held <= offset, "two blocks have the same bytes");
        }
        physical.insert((memory, offset), bytes);
    }
}

fn leave(physical: &mut BTreeMap<(u64, u64), u64>, model: &Model, block: Block) {
    for (memory, offset, bytes) in pieces(model, block) {
        assert_eq!(physical.remove(&(memory, offset)), Some(bytes));
    }
}

const ALL: [&str; 6] = [
    "gnn_sampling",
    "gpt2_fixed",
    "gpt2_varlen",
    "llama_lora_varlen",
    "vision_multires",
    "prefetch_three_streams",
];

#[test]
fn small_blocks_leave_a_large_end_whole_and_large_ones_fit_it() {
    let mut heap = StreamHeap::new();
    heap.large.offer(1 << 40, 350 << 20, 0).unwrap();
    let [hole, between] = [180 << 20, 2 << 20].map(|size| heap.allocate(size, 0, &NoIndex).unwrap());
    let end = between.address + between.size as u64;
    heap.free(hole.number, &NoIndex).unwrap();
    // The end, of 168 MiB, is the closer fit for both.
    for (size, place) in [(100 << 20, hole.address), (150 << 20, end)] {
        heap.coalesce(&NoIndex);
        let block = heap.allocate(size, 0, &NoIndex).unwrap();
        assert_eq!(block.address, place);
        heap.free(block.number, &NoIndex).unwrap();
    }
    // Without a hole that has room it serves whoever comes.
    heap.coalesce(&NoIndex);
    heap.allocate(180 << 20, 0, &NoIndex).unwrap();
    assert_eq!(heap.allocate(7 << 20, 0, &NoIndex).unwrap().address, end);
}

#[test]
fn an_empty_slab_parts_nothing_that_a_large_block_needs_whole() {
    let mut heap = StreamHeap::new();
    heap.large.offer(1 << 40, 350 << 20, 0).unwrap();
    let [large, small] = [200 << 20, 512].map(|size| heap.allocate(size, 0, &NoIndex).unwrap());
    heap.free(large.number, &NoIndex).unwrap();
    assert!(heap.allocate(300 << 20, 0, &NoIndex).is_none(), "around a small block");
    heap.free(small.number, &NoIndex).unwrap();
    assert_eq!(heap.allocate(300 << 20, 0, &NoIndex).unwrap().address, 1 << 40);
}

/// The time that moves take decides about the reserve, not about what others on the device were promised.
#[test]
fn what_is_held_tightly_stays_so_however_long_moves_take() {
    let allocate = |id, size| Event::Allocate { id, size, stream: 0 };
    let mut events: Vec<Event> = (0..64).map(|id| allocate(id, 20 << 20)).collect();
    events.extend((0..64).step_by(2).map(Event::Free));
    events.push(allocate(64, 600 << 20));
    let trace = Trace { name: "holes".to_owned(), wall: 1.0, expandable: 1.0, events };
    let hold = Hold::Tight { over_peak: 1.02 };
    let policy = Policy { hold, moves_us_per_s: 0, ..Policy::for_memory(80 << 30) };
    let figures = trace.replay(0, policy, 80 << 30, true);
    assert!(figures.ratio < 1.05 && figures.ooms == 0, "{}", figures.line);
}

/// What other streams have free and does not suffice is waited for once, whatever sizes of handles there are.
#[test]
fn a_request_that_fails_has_its_stream_wait_once() {
    let mut source = PageSource::new(Model::new(1000, 80 << 30), Policy::for_memory(80 << 30), 80 << 30);
    let mut heaps: BTreeMap<u32, StreamHeap> = (0..2).map(|heap| (heap, StreamHeap::new())).collect();
    let wanted = |size: usize| Wanted { size, unused: 0, peak: 64 << 20 };
    // A handle of 6 MiB.
    source.set_limit(3 << 30);
    source.grow(0, &mut AllHeaps(&mut heaps, &NoIndex), wanted(6 << 20)).unwrap();
    // Ten of 2 MiB, which the other stream may still use, and room for two more.
    source.set_limit(30 << 20);
    let freed = source.grow(1, &mut AllHeaps(&mut heaps, &NoIndex), wanted(20 << 20)).unwrap();
    heaps.get_mut(&1).unwrap().free(freed.number, &NoIndex).unwrap();
    let refused = source.grow(0, &mut AllHeaps(&mut heaps, &NoIndex), wanted(30 << 20));
    assert_eq!(refused.unwrap_err(), GrowError::OutOfMemory);
    assert_eq!(source.backend.waits, 1);
}

/// What is held of a short trace, and that no byte belongs to two blocks, without a limit and close to what is in use.
#[test]
fn a_recorded_program_is_held_and_never_twice() {
    let trace = Trace::read("gnn_sampling");
    let ample = trace.replay(100, Policy::for_memory(80 << 30), usize::MAX, true);
    assert!(ample.ratio < 1.37 && ample.ooms == 0, "more than expandable segments hold: {}", ample.line);
    let capacity = ample.peak / 100 * 105;
    let tight = trace.replay(100, Policy::for_memory(capacity), capacity, true);
    assert!(tight.ooms == 0 && tight.share < 0.1, "{}", tight.line);
}

#[test]
#[ignore = "takes long where it is not optimised; nightly runs it"]
fn figures() {
    let only = std::env::var("TRACE").unwrap_or_default();
    for name in ALL.iter().filter(|name| name.contains(&only)) {
        let trace = Trace::read(name);
        for lag in [0, 100, 1000] {
            let figures = trace.replay(lag, Policy::for_memory(80 << 30), usize::MAX, true);
            println!("{}", figures.line);
            assert!(figures.ratio < 1.06 * trace.expandable && figures.share < 0.01 && figures.ooms == 0);
            let capacity = figures.peak / 100 * 103;
            let tight = trace.replay(lag, Policy::for_memory(capacity), capacity, true);
            println!("{}", tight.line);
            assert_eq!(tight.ooms, 0, "{name}, lag {lag}, with 1.03 of what it uses");
        }
    }
}
