//! Writes a snapshot, to be opened with `python -m torch.cuda._memory_viz` or <https://pytorch.org/memory_viz>.
//!
//! `cargo run -p cuda-mem-pool --example snapshot FILE`. What it shows did not happen: two pages are mapped, blocks come and go,
//! and a page moves to another address when nothing is left in it.
#![allow(clippy::print_stderr, reason = "a program that tells how it is used")]

use std::error::Error;
use std::fs::File;
use std::io::BufWriter;

use cuda_mem_pool::history::{Event, History, HistoryOptions, RecordContext, backtrace, set_user_metadata};
use cuda_mem_pool::snapshot::{Action, AllocatorSettings, BlockInfo, BlockState, SegmentInfo, Snapshot};
use cuda_mem_pool::statistics::PoolSize;

const PAGE: u64 = 2 << 20;
const BASE: u64 = 0x7f00_0000_0000;
/// Where the second page moves to.
const ELSEWHERE: u64 = BASE + 512 * PAGE;
const STREAM: u64 = 0x55d0_c8a3_b2f0;

fn record(history: &History, action: Action, address: u64, size: u64) {
    let frames = history.frames(RecordContext::Alloc);
    history.record(Event { action, address, size, stream: STREAM }, frames.as_ref());
}

fn live(history: &History) -> Vec<SegmentInfo> {
    let frames = history.frames(RecordContext::State);
    let used = |address, size, requested_size, state| BlockInfo {
        address,
        size,
        requested_size,
        state,
        frames: frames.clone(),
    };
    let small = used(BASE, 512, 500, BlockState::ActiveAllocated);
    let pending = used(BASE + 512, 1024, 1000, BlockState::ActivePendingFree);
    let free = BlockInfo { address: BASE + 1536, size: PAGE - 1536, ..BlockInfo::default() };
    let large = used(ELSEWHERE, PAGE, PAGE, BlockState::ActiveAllocated);
    let mut segments = [
        SegmentInfo::of(0, PoolSize::Small, vec![small, pending, free]),
        SegmentInfo::of(0, PoolSize::Large, vec![large]),
    ];
    for segment in &mut segments {
        (segment.stream, segment.is_expandable) = (STREAM, true);
    }
    segments.into()
}

fn main() -> Result<(), Box<dyn Error>> {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: snapshot FILE");
        return Err("no file is named".into());
    };
    let history = History::new();
    history.start(&HistoryOptions::default().with_frames(RecordContext::Alloc, backtrace));
    set_user_metadata(Some("step 1"));
    record(&history, Action::SegmentMap, BASE, 2 * PAGE);
    record(&history, Action::Alloc, BASE, 500);
    record(&history, Action::Alloc, BASE + 512, 1000);
    record(&history, Action::Alloc, BASE + PAGE, PAGE);
    set_user_metadata(Some("step 2"));
    record(&history, Action::FreeRequested, BASE + PAGE, PAGE);
    record(&history, Action::FreeCompleted, BASE + PAGE, PAGE);
    record(&history, Action::SegmentUnmap, BASE + PAGE, PAGE);
    record(&history, Action::SegmentMap, ELSEWHERE, PAGE);
    record(&history, Action::Alloc, ELSEWHERE, PAGE);
    record(&history, Action::FreeRequested, BASE + 512, 1000);
    record(&history, Action::Oom, 3 << 30, 4 << 30);
    record(&history, Action::Snapshot, 0, PAGE + 1536);

    let snapshot = Snapshot {
        segments: live(&history),
        device_traces: vec![history.entries()],
        allocator_settings: AllocatorSettings { expandable_segments: true, ..AllocatorSettings::default() },
        external_annotations: Vec::new(),
    };
    Ok(snapshot.write_pickle(BufWriter::new(File::create(path)?))?)
}
