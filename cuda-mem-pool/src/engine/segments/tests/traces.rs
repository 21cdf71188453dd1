//! Real programs: what PyTorch reserved for them, this reserves.

use std::collections::{HashMap, HashSet};
use std::io::Read;

use super::support::{allocate_at, reserved};
use crate::engine::segments::{Options, SegmentHeap};

/// The most that was reserved, here and in the trace's header.
fn replay(trace: &[u8]) -> (u64, u64) {
    let mut text = String::new();
    flate2::read::GzDecoder::new(trace).read_to_string(&mut text).unwrap();
    let (header, events) = text.split_once("\nop,id,size,stream\n").unwrap();
    let native =
        header.split_whitespace().find_map(|word| word.strip_prefix("native_reserved_peak=")).unwrap();
    // A block that has a line of its own for that is free again only there.
    let pending: HashSet<&str> =
        events.lines().filter_map(|line| line.strip_prefix("c,")?.split(',').next()).collect();
    let mut blocks: HashMap<&str, u64> = HashMap::new();
    let (mut heap, mut peak, mut next) = (SegmentHeap::new(Options::default()), 0, 1 << 40);
    for line in events.lines() {
        let [op, id, size, stream] = line.split(',').collect::<Vec<_>>()[..] else { panic!("{line}") };
        match op {
            "a" => {
                let (size, stream) = (size.parse().unwrap(), stream.parse().unwrap());
                let before = reserved(&heap);
                blocks.insert(id, allocate_at(&mut heap, stream, size, next));
                let held = reserved(&heap);
                (peak, next) = (peak.max(held), next + held - before);
            }
            "f" if pending.contains(id) => heap.free_pending(blocks[id]).map(drop).unwrap(),
            "f" => heap.free(blocks[id]).map(drop).unwrap(),
            _ => heap.complete(blocks[id]).map(drop).unwrap(),
        }
    }
    (peak, native.parse().unwrap())
}

fn expect_within_five_percent(trace: &[u8]) {
    let (ours, native) = replay(trace);
    let off = ours.abs_diff(native) as f64 / native as f64;
    assert!(off <= 0.05, "{ours} bytes at most, where PyTorch had {native}");
}

#[test]
fn a_trained_transformer() {
    expect_within_five_percent(include_bytes!("../../../../../ci/traces/gpt2_fixed.csv.gz"));
}

#[test]
fn a_sampled_graph_network() {
    expect_within_five_percent(include_bytes!("../../../../../ci/traces/gnn_sampling.csv.gz"));
}
