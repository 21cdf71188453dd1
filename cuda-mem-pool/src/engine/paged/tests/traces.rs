//! Real traces: how much is held, and what it costs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;

use super::model::{Model, Others};
use crate::engine::paged::{
    Block, GrowError, Load, NoIndex, PageSource, Policy, StreamHeap, Wanted, block_size,
};

struct Figures {
    ratio: f64,
    share: f64,
    line: String,
}

fn text(name: &str) -> String {
    let path = format!("{}/../ci/traces/{name}.csv.gz", env!("CARGO_MANIFEST_DIR"));
    let path = std::env::var("TRACES").map_or(path, |dir| format!("{dir}/{name}.csv.gz"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    text
}

fn replay(name: &str, lag: u64, policy: Policy, capacity: usize, check: bool) -> Figures {
    let text = text(name);
    let wall: f64 = text.split_once("wall_s=").unwrap().1.split_whitespace().next().unwrap().parse().unwrap();
    let late: HashSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("c,")?.split(',').next()).collect();
    let mut source = PageSource::new(Model::new(lag, capacity), policy, 4 << 40);
    let mut heaps: HashMap<u32, StreamHeap> = HashMap::new();
    let mut live: HashMap<&str, (u32, Block)> = HashMap::new();
    let mut physical: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    let (mut active, mut peak, mut ooms) = (0usize, 0usize, 0);
    let mut spent = std::time::Duration::ZERO;
    let mut slowest = std::time::Duration::ZERO;
    let (mut count, mut grows) = (0u64, 0u64);
    for line in text.lines().filter(|line| !line.starts_with(['#', 'o'])) {
        let fields: Vec<&str> = line.split(',').collect();
        source.backend_mut().now += 1;
        let id = fields[1];
        match fields[0] {
            "a" => {
                count += 1;
                let stream: u32 = fields[3].parse().unwrap();
                let size = block_size(fields[2].parse().unwrap()).unwrap();
                let mut heap = heaps.remove(&stream).unwrap_or_default();
                let begun = std::time::Instant::now();
                let mut block = heap.allocate(size, 0, &NoIndex);
                if block.is_none() {
                    grows += 1;
                    let load = Load { active, peak };
                    let grown = source.grow(
                        stream,
                        &mut heap,
                        &mut Others(&mut heaps),
                        Wanted { size, unused: 0, load },
                        &NoIndex,
                    );
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
            "f" if late.contains(id) => {}
            _ => {
                let Some((stream, block)) = live.remove(id) else { continue };
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
    let share = model.microseconds() as f64 / 1e6 / wall;
    let line = format!(
        "{name:24} lag {lag:4} ratio {ratio:.4} share {:.3}% create {} map {} unmap {} marks {} waits {} most {} grows {grows} ooms {ooms} ns/op {:.0} slowest {:.0}us meta {}",
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
    Figures { ratio, share, line }
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
#[ignore = "prints figures for choosing the policy"]
fn figures() {
    let policy = Policy {
        slack: knob("SLACK", Policy::DEFAULT.slack),
        tight: knob("TIGHT", Policy::DEFAULT.tight),
        handles_per_block: knob("PARTS", Policy::DEFAULT.handles_per_block as u32) as usize,
        smallest_handle: (knob("CMIN", (Policy::DEFAULT.smallest_handle >> 20) as u32) as usize) << 20,
        largest_handle: (knob("CMAX", (Policy::DEFAULT.largest_handle >> 20) as u32) as usize) << 20,
        smallest_tail: (knob("TMIN", (Policy::DEFAULT.smallest_tail >> 20) as u32) as usize) << 20,
        placed: (knob("PLACED", (Policy::DEFAULT.placed >> 20) as u32) as usize) << 20,
        price_of_waste: u64::from(knob("WASTE", Policy::DEFAULT.price_of_waste as u32)),
        ..Policy::DEFAULT
    };
    let only = std::env::var("TRACE").unwrap_or_default();
    for name in ALL.iter().filter(|name| name.contains(&only)) {
        for lag in [0, 100, 1000] {
            let figures = replay(name, lag, policy, usize::MAX, knob("CHECK", 0) > 0);
            println!("{}", figures.line);
            assert!(figures.ratio > 0.9 && figures.share < 1.0);
        }
    }
}
