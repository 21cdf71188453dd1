//! What is written is loaded by Python and compared with what was written.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on fails, and one that cannot begin says so"
)]

use std::io::Write as _;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use crate::mempool_id::MempoolId;
use crate::statistics::PoolSize;

/// Reads pairs of a pickle and a line with the expression it must equal, also in its types and in the order of its keys. The
/// opcodes are those that the web viewer knows.
const CHECK: &str = r#"
import io, pickle, pickletools, sys
known = set("PROTO APPENDS BINGET BININT BININT1 BININT2 EMPTY_DICT EMPTY_LIST LONG1 LONG_BINGET MARK BINPUT LONG_BINPUT "
            "SETITEMS BINUNICODE STOP TUPLE2 BINFLOAT NEWTRUE NEWFALSE".split())
read, checked = sys.stdin.buffer, 0
while length := read.readline():
    data = read.read(int(length))
    expected = eval(read.readline())
    loaded = pickle.load(io.BytesIO(data))
    if loaded != expected or repr(loaded) != repr(expected):
        sys.exit(f"loaded   {loaded!r}\nexpected {expected!r}")
    unknown = {op.name for op, _, _ in pickletools.genops(data)} - known
    if unknown:
        sys.exit(f"opcodes the viewer does not know: {unknown}")
    checked += 1
print(checked)
"#;

/// Where there is no Python it says so and does nothing.
fn python_agrees(snapshots: &[Snapshot]) {
    let python =
        Command::new("python3").args(["-c", CHECK]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut python = match python {
        Ok(python) => python,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return eprintln!("SKIPPED: there is no python3 to load what is written");
        }
        Err(error) => panic!("{error}"),
    };
    let mut input = python.stdin.take().unwrap();
    let mut cases = Vec::new();
    for snapshot in snapshots {
        let mut pickle = Vec::new();
        snapshot.write_pickle(&mut pickle).unwrap();
        writeln!(cases, "{}", pickle.len()).unwrap();
        cases.extend(pickle);
        writeln!(cases, "{}", expression(snapshot)).unwrap();
    }
    // It may end before it has read all, and its answer says why.
    let _ = input.write_all(&cases);
    drop(input);
    let output = python.wait_with_output().unwrap();
    let answer = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && answer.trim() == snapshots.len().to_string(), "{answer}");
}

fn expression(snapshot: &Snapshot) -> String {
    let mut segments: Vec<_> = snapshot.segments.iter().collect();
    segments.sort_by_key(|segment| segment.address);
    let traces = snapshot.device_traces.iter().map(|trace| list(trace.iter().map(trace_expression)));
    let settings = &snapshot.allocator_settings;
    let divisions = settings.roundup_power2_divisions.iter().enumerate();
    let divisions: Vec<_> = divisions.map(|(power, value)| format!("'{}': {value}", 1u64 << power)).collect();
    format!(
        "{{'segments': {}, 'device_traces': {}, 'allocator_settings': {{'PYTORCH_CUDA_ALLOC_CONF': '', 'max_split_size': {}, \
         'garbage_collection_threshold': float('{:e}'), 'expandable_segments': {}, 'pinned_num_register_threads': 0, \
         'release_lock_on_cudamalloc': False, 'pinned_use_cuda_host_register': False, 'graph_capture_record_stream_reuse': {}, \
         'roundup_power2_divisions': {{{}}}}}, 'external_annotations': {}}}",
        list(segments.into_iter().map(segment_expression)),
        list(traces),
        settings.max_split_size.map_or("-1".to_owned(), |size| size.to_string()),
        settings.garbage_collection_threshold,
        truth(settings.expandable_segments),
        truth(settings.graph_capture_record_stream_reuse),
        divisions.join(", "),
        list(snapshot.tags.iter().map(|(device, MempoolId(first, second), name)| {
            format!(
                "{{'name': '{name}', 'stage': 'TAG', 'device': {device}, 'time_us': 0, 'pool_id': '{first}, {second}'}}"
            )
        })),
    )
}

fn segment_expression(segment: &SegmentInfo) -> String {
    let blocks = segment.blocks.iter().map(|block| {
        format!(
            "{{'address': {}, 'size': {}, 'requested_size': {}, 'state': '{}', 'frames': {}}}",
            block.address,
            block.size,
            block.requested_size,
            match block.state {
                BlockState::ActiveAllocated => "active_allocated",
                BlockState::ActivePendingFree => "active_pending_free",
                BlockState::Inactive => "inactive",
            },
            frames_expression(block.frames.as_ref())
        )
    });
    format!(
        "{{'device': {}, 'address': {}, 'total_size': {}, 'allocated_size': {}, 'active_size': {}, 'requested_size': {}, \
         'stream': {}, 'segment_type': '{}', 'segment_pool_id': {}, 'is_expandable': {}, 'frames': {}, 'blocks': {}}}",
        segment.device,
        segment.address,
        segment.total_size,
        segment.allocated_size,
        segment.active_size,
        segment.requested_size,
        segment.stream,
        if segment.segment_type == PoolSize::Small { "small" } else { "large" },
        segment.segment_pool_id,
        truth(segment.is_expandable),
        frames_expression(segment.frames.as_ref()),
        list(blocks),
    )
}

fn trace_expression(entry: &TraceEntry) -> String {
    let frames =
        entry.frames.as_ref().map(|frames| format!(", 'frames': {}", frames_expression(Some(frames))));
    format!(
        "{{'action': '{}', '{}': {}, 'size': {}, 'stream': {}, 'time_us': {}, 'compile_context': {}, 'user_metadata': {}{}}}",
        entry.action.name(),
        if entry.action == Action::Oom { "device_free" } else { "addr" },
        entry.address,
        entry.size,
        entry.stream,
        entry.time_us,
        text(entry.compile_context.as_deref().unwrap_or("N/A")),
        text(entry.user_metadata.as_deref().unwrap_or_default()),
        frames.unwrap_or_default(),
    )
}

fn frames_expression(frames: Option<&Frames>) -> String {
    let frame = |frame: &Frame| {
        format!(
            "{{'filename': {}, 'line': {}, 'name': {}}}",
            text(&frame.filename),
            frame.line,
            text(&frame.name)
        )
    };
    list(frames.into_iter().flat_map(|frames| frames.iter().map(frame)))
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

fn text(text: &str) -> String {
    let escape = |c: char| format!("\\U{:08x}", u32::from(c));
    format!("'{}'", text.chars().map(escape).collect::<String>())
}

fn truth(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// Numbers of each length that there is.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0u32..64).prop_map(|(bits, shift)| bits >> shift)
}

fn frames() -> impl Strategy<Value = Option<Frames>> {
    let frame = ("\\PC{0,9}", any::<u32>(), "\\PC{0,9}");
    let frame =
        frame.prop_map(|(filename, line, name)| Frame { filename: filename.into(), line, name: name.into() });
    prop::option::of(prop::collection::vec(frame, 0..4).prop_map(Frames::from))
}

fn segment() -> impl Strategy<Value = SegmentInfo> {
    let state = prop_oneof![
        Just(BlockState::ActiveAllocated),
        Just(BlockState::ActivePendingFree),
        Just(BlockState::Inactive)
    ];
    let block = (number(), number(), number(), state, frames()).prop_map(
        |(address, size, requested_size, state, frames)| BlockInfo {
            address,
            size,
            requested_size,
            state,
            frames,
        },
    );
    let kind = prop_oneof![Just(PoolSize::Small), Just(PoolSize::Large)];
    let blocks = prop::collection::vec(block, 0..5);
    let pool = (number(), number()).prop_map(|(first, second)| MempoolId(first, second));
    (any::<u32>(), kind, blocks, number(), pool, any::<bool>(), frames()).prop_map(
        |(device, kind, blocks, stream, segment_pool_id, is_expandable, frames)| SegmentInfo {
            stream,
            segment_pool_id,
            is_expandable,
            frames,
            ..SegmentInfo::of(device, kind, blocks)
        },
    )
}

fn entry() -> impl Strategy<Value = TraceEntry> {
    let words = || prop::option::of("\\PC{0,12}".prop_map(|word| word.into()));
    let action = prop::sample::select(Action::ALL.to_vec());
    (action, number(), number(), number(), number(), frames(), words(), words()).prop_map(
        |(action, address, size, stream, time_us, frames, compile_context, user_metadata)| TraceEntry {
            action,
            address,
            size,
            stream,
            pool: MempoolId::NONE,
            time_us,
            frames,
            compile_context,
            user_metadata,
        },
    )
}

fn settings() -> impl Strategy<Value = AllocatorSettings> {
    let flags = prop::array::uniform2(any::<bool>());
    let divisions = prop::collection::vec(number(), 0..17);
    (prop::option::of(number()), 0.0..1.0f64, flags, divisions).prop_map(
        |(max_split_size, threshold, flags, roundup_power2_divisions)| AllocatorSettings {
            max_split_size,
            garbage_collection_threshold: threshold,
            expandable_segments: flags[0],
            graph_capture_record_stream_reuse: flags[1],
            roundup_power2_divisions,
        },
    )
}

fn snapshot() -> impl Strategy<Value = Snapshot> {
    (
        prop::collection::vec(segment(), 0..5),
        prop::collection::vec(prop::collection::vec(entry(), 0..6), 0..3),
        settings(),
    )
        .prop_map(|(segments, device_traces, allocator_settings)| Snapshot {
            tags: vec![(1, MempoolId(9, 7), "weights".to_owned()); device_traces.len()],
            segments,
            device_traces,
            allocator_settings,
        })
}

/// Each case starts Python. The macro would have `PROPTEST_CASES` replace their number, which is meant for cases that cost little.
#[test]
fn python_loads_what_was_written() {
    let few = ProptestConfig { source_file: Some(file!()), ..ProptestConfig::with_cases(8) };
    let snapshots = prop::collection::vec(snapshot(), 20);
    let checked = TestRunner::new(few).run(&snapshots, |snapshots| {
        python_agrees(&snapshots);
        Ok(())
    });
    checked.unwrap();
}

fn long_trace(length: usize) -> Snapshot {
    let frame = |line| Frame { filename: "train.py".into(), line, name: "step".into() };
    let stacks: Vec<Frames> = (0..7).map(|line| Frames::from(vec![frame(line), frame(99)])).collect();
    let entry = |index: usize| TraceEntry {
        action: Action::ALL[index % 9],
        address: 0x7f00_0000_0000 + index as u64,
        size: 512 << (index % 30),
        stream: 0,
        pool: MempoolId::NONE,
        time_us: 1_700_000_000_000_000 + index as u64,
        frames: Some(stacks[index % 7].clone()),
        compile_context: None,
        user_metadata: None,
    };
    Snapshot { device_traces: vec![Vec::new(), (0..length).map(entry).collect()], ..Snapshot::default() }
}

#[test]
fn lists_of_any_length_are_loaded_whole() {
    let lengths = [0, 1, 999, 1000, 1001, 2500];
    python_agrees(&lengths.map(long_trace));
}

/// Keys and stacks are written once: what comes with each entry is its numbers.
#[test]
fn entries_are_short() {
    let mut pickle = Vec::new();
    long_trace(10_000).write_pickle(&mut pickle).unwrap();
    assert!(pickle.len() < 70 * 10_000, "{} bytes", pickle.len());
}

#[test]
fn a_writer_that_fails_says_so() {
    let mut small = [0; 100];
    let error = long_trace(10).write_pickle(&mut small[..]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WriteZero);
}

#[test]
fn a_segments_sizes_are_those_of_its_blocks() {
    let block =
        |size, requested_size, state| BlockInfo { address: 4096, size, requested_size, state, frames: None };
    let blocks = vec![
        block(512, 500, BlockState::ActiveAllocated),
        block(1024, 1000, BlockState::ActivePendingFree),
        block(2048, 0, BlockState::Inactive),
    ];
    let segment = SegmentInfo::of(1, PoolSize::Large, blocks);
    assert_eq!((segment.address, segment.total_size), (4096, 3584));
    assert_eq!((segment.allocated_size, segment.active_size, segment.requested_size), (512, 1536, 1500));
}
