//! Real traces: how much is held, and what it costs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;

use super::model::{Model, Others};
use crate::engine::paged::{
    Block, GrowError, Load, NoIndex, PageSource, Policy, StreamHeap, Wanted, block_size,
};

pub(super) struct Figures {
    pub(super) ratio: f64,
    share: f64,
    pub(super) line: String,
    pub(super) peak: usize,
    pub(super) ooms: u64,
    /// Driver calls after the first third of the trace, for ten thousand allocations.
    pub(super) late_calls: f64,
}

fn text(name: &str) -> String {
    let path = format!("{}/../ci/traces/{name}.csv.gz", env!("CARGO_MANIFEST_DIR"));
    let path = std::env::var("TRACES").map_or(path, |dir| format!("{dir}/{name}.csv.gz"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    text
}

/// What a program did, in order.
pub(super) enum Event {
    Allocate { id: u32, size: usize, stream: u32 },
    Free(u32),
}

pub(super) struct Trace {
    pub(super) name: String,
    pub(super) wall: f64,
    pub(super) events: Vec<Event>,
}

impl Trace {
    /// A recorded run, with all sizes above 1 MiB so many thousandths of what they were.
    fn read(name: &str, scale: usize) -> Self {
        let text = text(name);
        let wall = text.split_once("wall_s=").unwrap().1.split_whitespace().next().unwrap().parse().unwrap();
        let late: HashSet<&str> =
            text.lines().filter_map(|line| line.strip_prefix("c,")?.split(',').next()).collect();
        let mut events = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with(['#', 'o'])) {
            let fields: Vec<&str> = line.split(',').collect();
            let id = fields[1].parse().unwrap();
            match fields[0] {
                "a" => {
                    let size: usize = fields[2].parse().unwrap();
                    let size = if size > 1 << 20 { size / 1000 * scale + size % 1000 } else { size };
                    let size = block_size(size).unwrap();
                    events.push(Event::Allocate { id, size, stream: fields[3].parse().unwrap() });
                }
                "f" if late.contains(fields[1]) => {}
                _ => events.push(Event::Free(id)),
            }
        }
        Self { name: name.to_owned(), wall, events }
    }

    pub(super) fn replay(&self, lag: u64, policy: Policy, capacity: usize, check: bool) -> Figures {
        let mut source = PageSource::new(Model::new(lag, capacity), policy, 4 << 40);
        source.set_limit(capacity);
        let mut heaps: BTreeMap<u32, StreamHeap> = BTreeMap::new();
        let mut live: HashMap<u32, (u32, Block)> = HashMap::new();
        let mut physical: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        let (mut active, mut peak, mut ooms) = (0usize, 0usize, 0u64);
        let mut spent = std::time::Duration::ZERO;
        let mut slowest = std::time::Duration::ZERO;
        let (mut count, mut grows) = (0u64, 0u64);
        let mut early = (0, 0);
        for (at, event) in self.events.iter().enumerate() {
            source.backend_mut().now += 1;
            if at == self.events.len() / 3 {
                early = (count, source.backend().calls());
            }
            match *event {
                Event::Allocate { id, size, stream } => {
                    count += 1;
                    let mut heap = heaps.remove(&stream).unwrap_or_default();
                    let begun = std::time::Instant::now();
                    let mut block = heap.allocate(size, 0, &NoIndex);
                    if block.is_none() {
                        grows += 1;
                        let wanted = Wanted { size, unused: 0, load: Load { active, peak } };
                        let grown = source.grow(stream, &mut heap, &mut Others(&mut heaps), wanted, &NoIndex);
                        block = match grown {
                            Ok(block) => Some(block),
                            Err(GrowError::OutOfMemory) => None,
                            Err(error) => panic!("{error:?}"),
                        };
                    }
                    let took = begun.elapsed();
                    spent += took;
                    slowest = slowest.max(took);
                    heaps.insert(stream, heap);
                    let Some(block) = block else {
                        ooms += 1;
                        continue;
                    };
                    assert_eq!(block.size, size);
                    active += size;
                    peak = peak.max(active);
                    if check {
                        enter(&mut physical, source.backend(), block);
                    }
                    live.insert(id, (stream, block));
                }
                Event::Free(id) => {
                    let Some((stream, block)) = live.remove(&id) else { continue };
                    active -= block.size;
                    if check {
                        leave(&mut physical, source.backend(), block);
                    }
                    let begun = std::time::Instant::now();
                    let freed = heaps.get_mut(&stream).unwrap().free(block.number, &NoIndex);
                    assert_eq!(freed.map(|freed| freed.size), Some(block.size));
                    spent += begun.elapsed();
                }
            }
        }
        let model = source.backend();
        let ratio = source.most_reserved() as f64 / peak as f64;
        let share = model.microseconds() as f64 / 1e6 / self.wall;
        let late = (count - early.0) as f64 / 1e4;
        let late_calls = (model.calls() - early.1) as f64 / late;
        let line = format!(
            "{:24} lag {lag:4} ratio {ratio:.4} share {:.3}% create {} map {} unmap {} marks {} waits {} most {} grows {grows} ooms {ooms} late calls {late_calls:.0} ns/op {:.0} slowest {:.0}us meta {}",
            self.name,
            share * 100.0,
            model.creates,
            model.maps,
            model.unmaps,
            model.marks,
            model.waits,
            source.most_mappings(),
            spent.as_nanos() as f64 / count as f64,
            slowest.as_secs_f64() * 1e6,
            source.metadata_bytes() + heaps.values().map(StreamHeap::metadata_bytes).sum::<usize>(),
        );
        Figures { ratio, share, line, peak, ooms, late_calls }
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

fn knob(name: &str, default: u32) -> u32 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

#[test]
#[ignore = "takes long where it is not optimised; nightly runs it"]
fn figures() {
    let policy = Policy {
        slack: knob("SLACK", Policy::DEFAULT.slack),
        tight: knob("TIGHT", Policy::DEFAULT.tight),
        handles_per_block: knob("PARTS", Policy::DEFAULT.handles_per_block as u32) as usize,
        smallest_handle: (knob("CMIN", (Policy::DEFAULT.smallest_handle >> 20) as u32) as usize) << 20,
        largest_handle: (knob("CMAX", (Policy::DEFAULT.largest_handle >> 20) as u32) as usize) << 20,
        smallest_tail: (knob("TMIN", (Policy::DEFAULT.smallest_tail >> 20) as u32) as usize) << 20,
        little: (knob("LITTLE", (Policy::DEFAULT.little >> 20) as u32) as usize) << 20,
        placed: (knob("PLACED", (Policy::DEFAULT.placed >> 20) as u32) as usize) << 20,
        price_of_waste: u64::from(knob("WASTE", Policy::DEFAULT.price_of_waste as u32)),
        ..Policy::DEFAULT
    };
    let only = std::env::var("TRACE").unwrap_or_default();
    let scales = std::env::var("SCALES").unwrap_or_else(|_| "1000".to_owned());
    for name in ALL.iter().filter(|name| name.contains(&only)) {
        for scale in scales.split(',') {
            let trace = Trace::read(name, scale.parse().unwrap());
            let mut worst = (0f64, 0f64);
            for lag in [0, 100, 1000] {
                let figures = trace.replay(lag, policy, usize::MAX, knob("CHECK", 0) > 0);
                if knob("BRIEF", 0) == 0 {
                    println!("{}", figures.line);
                }
                worst = (worst.0.max(figures.ratio), worst.1.max(figures.share));
                assert!(figures.ratio > 0.9 && figures.share < 1.0 && figures.ooms == 0);
            }
            println!("{name:24} x {scale} worst ratio {:.4} share {:.3}%", worst.0, worst.1 * 100.0);
        }
    }
}

/// The smallest capacity that a trace runs in, as a share of its most active bytes.
fn least_capacity(trace: &Trace, lag: u64, peak: usize) -> f64 {
    let ooms = |capacity| trace.replay(lag, Policy::DEFAULT, capacity, false).ooms;
    let (mut enough, mut step) = (peak / 1000 * 1100, peak / 1000 * 50);
    if ooms(enough) > 0 {
        return f64::INFINITY;
    }
    while step > peak / 1000 {
        if ooms(enough - step) == 0 {
            enough -= step;
        }
        step /= 2;
    }
    enough as f64 / peak as f64
}

#[test]
#[ignore = "replays each trace many times; nightly runs it"]
fn capacity() {
    let only = std::env::var("TRACE").unwrap_or_default();
    for name in ALL.iter().filter(|name| name.contains(&only)) {
        let trace = Trace::read(name, 1000);
        let peak = trace.replay(0, Policy::DEFAULT, usize::MAX, false).peak;
        for lag in [0, 1000] {
            let least = least_capacity(&trace, lag, peak);
            let tight = trace.replay(lag, Policy::DEFAULT, peak / 100 * 105, false);
            println!(
                "{name:24} lag {lag:4} least {least:.4} late calls at 1.05: {:.0} of 10,000",
                tight.late_calls
            );
            assert!(least <= 1.03, "{name}, lag {lag}: runs in {least} of what it uses");
        }
    }
}
