//! Real programs: what PyTorch reserved for them, this reserves.

use std::collections::{HashMap, HashSet};
use std::io::BufReader;

use super::support::{allocate_at, reserved};
use crate::engine::segments::{Options, SegmentHeap};
use crate::trace::{Action, Trace};

/// The most that was reserved, here and in the trace's header.
fn replay(trace: &[u8]) -> (u64, u64) {
    let trace = Trace::read(BufReader::new(flate2::read::GzDecoder::new(trace))).unwrap();
    // A block that has a line of its own for that is free again only there.
    let completed = trace.events.iter().filter(|event| event.action == Action::Complete);
    let pending: HashSet<u64> = completed.map(|event| event.id).collect();
    let mut blocks: HashMap<u64, u64> = HashMap::new();
    let (mut heap, mut peak, mut next) = (SegmentHeap::new(Options::default()), 0, 1 << 40);
    for event in &trace.events {
        match event.action {
            Action::Allocate { size } => {
                let before = reserved(&heap);
                blocks.insert(event.id, allocate_at(&mut heap, event.stream, size, next));
                let held = reserved(&heap);
                (peak, next) = (peak.max(held), next + held - before);
            }
            Action::Free if pending.contains(&event.id) => {
                heap.free_pending(blocks[&event.id]).map(drop).unwrap()
            }
            Action::Free => heap.free(blocks[&event.id]).map(drop).unwrap(),
            Action::Complete => heap.complete(blocks[&event.id]).map(drop).unwrap(),
        }
    }
    (peak, trace.number("native_reserved_peak").unwrap().unwrap() as u64)
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
