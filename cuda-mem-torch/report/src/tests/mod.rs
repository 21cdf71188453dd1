//! Recordings read back, against the account that a small allocator kept.

mod browse;
mod clicks;
mod hostile;
mod ours;
mod programs;
mod real;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::history::NEVER;
use super::space::Space;
use super::stacks::Stacks;
use super::{Input, Options};

/// What a test draws.
struct Recording {
    input: PathBuf,
    calls: Option<PathBuf>,
    device: Option<i64>,
}

impl Recording {
    fn options(&self) -> Options {
        Options { calls: self.calls.clone().map(Input::file), device: self.device, ..Options::default() }
    }
}

/// All spaces of a recording, and the stacks of their blocks.
fn spaces(recording: &Recording) -> anyhow::Result<(Vec<Space>, Stacks)> {
    let mut stacks = Stacks::default();
    let calls = recording.calls.clone().map(Input::file);
    let spaces = super::read(&Input::file(&recording.input), 1, calls.as_ref(), &mut stacks, &mut |_| {})?;
    Ok((spaces, stacks))
}

/// The space that is shown first.
fn read(recording: &Recording) -> anyhow::Result<Space> {
    let (mut spaces, _) = spaces(recording)?;
    let shown = super::shown(&spaces, recording.device)?;
    Ok(spaces.remove(shown))
}

fn draw(recording: &Recording) -> Result<String, super::Error> {
    let page = recording.input.with_extension("drawn.html");
    let options = Options { page: Some(page.clone()), ..recording.options() };
    super::write(&[Input::file(&recording.input)], &options, &mut |_| {})?;
    Ok(std::fs::read_to_string(page).unwrap())
}

/// What the allocator of `snapshot.py` says of itself.
#[derive(Debug, Deserialize)]
struct Account {
    /// Live, pending and reserved bytes at each moment.
    account: Vec<[u64; 3]>,
    allocations: usize,
    out_of_memory: usize,
}

/// Files of one test, gone when it ends.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("cuda-mem-report-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn arguments(&self, input: &str) -> Recording {
        Recording { input: self.0.join(input), calls: None, device: None }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn snapshot(&self, events: usize, ring: usize, seed: u64) -> Account {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/snapshot.py");
        let numbers = [events.to_string(), ring.to_string(), seed.to_string()];
        let output =
            Command::new("python3").arg(script).arg(self.0.join("snapshot.pickle")).args(numbers).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Bytes of the blocks and segments at a moment, counted one by one.
fn recount(space: &Space, moment: u32) -> [u64; 3] {
    let blocks = space.blocks.iter().filter(|block| block.allocated <= moment && moment < block.done);
    let (live, pending) = blocks.partition::<Vec<_>, _>(|block| moment < block.freed);
    let sum = |blocks: Vec<&super::history::Block>| blocks.iter().map(|block| block.size).sum();
    let there = |segment: &&super::history::Segment| segment.from <= moment && moment < segment.to;
    [sum(live), sum(pending), space.segments.iter().filter(there).map(|segment| segment.size).sum()]
}

#[test]
fn a_snapshot_gives_its_past_back() {
    let files = Files::new("past");
    // The second and third kept less than there was.
    for (ring, seed) in [(900, 1), (600, 2), (300, 3), (20, 4)] {
        let account = files.snapshot(900, ring, seed);
        let space = read(&files.arguments("snapshot.pickle")).unwrap();
        assert_eq!(space.notes, Vec::<String>::new(), "seed {seed}");
        assert_eq!(space.curves.events as usize + 1, account.account.len());
        let series = &space.curves;
        let reserved = &series.reserved;
        for (moment, expected) in account.account.iter().enumerate() {
            let found = [series.live[moment], series.pending[moment], reserved[moment]];
            assert_eq!(found, *expected, "seed {seed}, moment {moment}");
            assert_eq!(recount(&space, moment as u32), *expected, "seed {seed}, moment {moment}");
        }
        let found = (space.allocations as usize, space.failed as usize);
        assert_eq!(found, (account.allocations, account.out_of_memory));
        let peak = |of: fn(&[u64; 3]) -> u64| account.account.iter().map(of).max().unwrap();
        assert_eq!(series.peak_live.0, peak(|bytes| bytes[0]));
        assert_eq!(series.peak_active.0, peak(|bytes| bytes[0] + bytes[1]));
        assert_eq!(series.peak_reserved.0, peak(|bytes| bytes[2]));
    }
}

#[test]
fn blocks_of_the_past_lie_in_segments_and_apart() {
    let files = Files::new("apart");
    files.snapshot(600, 500, 9);
    let space = read(&files.arguments("snapshot.pickle")).unwrap();
    for moment in (0..=space.curves.events).step_by(7) {
        let mut segments =
            space.segments.iter().filter(|s| s.from <= moment && moment < s.to).collect::<Vec<_>>();
        segments.sort_by_key(|segment| segment.address);
        assert!(segments.windows(2).all(|pair| pair[0].address + pair[0].size <= pair[1].address));
        let blocks = space.blocks.iter().filter(|block| block.allocated <= moment && moment < block.done);
        let mut ranges = blocks.map(|block| (block.address.unwrap(), block.size)).collect::<Vec<_>>();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "moment {moment}");
        for (address, size) in ranges {
            let mut at = address;
            for segment in &segments {
                if segment.address <= at && at < segment.address + segment.size {
                    at = segment.address + segment.size;
                }
            }
            assert!(at >= address + size, "moment {moment}: {address:#x} is not mapped");
        }
    }
}

#[test]
fn frames_come_with_the_blocks_that_they_allocated() {
    let files = Files::new("frames");
    files.snapshot(200, 200, 5);
    let (spaces, stacks) = spaces(&files.arguments("snapshot.pickle")).unwrap();
    let mut used: Vec<_> = spaces[0].blocks.iter().map(|block| block.stack.unwrap()).collect();
    used.sort_unstable();
    used.dedup();
    assert_eq!(used.len(), 5);
    for stack in used {
        let frames = stacks.frames_of(stack).iter().map(|frame| stacks.frame(*frame).unwrap().text());
        let frames: Vec<_> = frames.collect();
        assert_eq!(frames[1..], ["main (/opt/train.py:7)", "at::empty_cuda"]);
    }
}

#[test]
fn devices_are_chosen_by_number() {
    let files = Files::new("device");
    files.snapshot(50, 50, 6);
    let ask = |device| read(&Recording { device: Some(device), ..files.arguments("snapshot.pickle") });
    assert_eq!(ask(1).unwrap().curves.events, 50);
    assert_eq!(
        ask(0).unwrap_err().root_cause().to_string(),
        "the recording has nothing of device 0, only of [1]"
    );
}

#[test]
fn a_snapshot_without_history_is_one_moment() {
    let files = Files::new("still");
    // {"segments": [{"device": 0, "address": 2 MiB, "total_size": 2 MiB, "stream": 0, "blocks": [1 MiB live, 1 MiB free]}]}
    let script = "import pickle,sys\nb=lambda s,n:dict(size=n,requested_size=n,state=s)\n\
                  m=1<<20\nopen(sys.argv[1],'wb').write(pickle.dumps(dict(segments=[dict(device=0,address=2*m,\
                  total_size=2*m,stream=0,blocks=[b('active_allocated',m),b('inactive',m)])])))";
    let path = files.0.join("still.pickle");
    assert!(Command::new("python3").args(["-c", script]).arg(&path).status().unwrap().success());
    let space = read(&files.arguments("still.pickle")).unwrap();
    assert_eq!((space.curves.events, recount(&space, 0)), (0, [1 << 20, 0, 2 << 20]));
    assert!(space.notes[0].contains("no history"));
    draw(&files.arguments("still.pickle")).unwrap();
}

const TRACE: &str = "# native_reserved_peak=6291456\nop,id,size,stream,time_us,thread\na,0,1000,0,100,1\na,1,2097152,1,250,1\n\
                     f,1,,1,300,2\nf,0,,0,400,1\nc,1,,1,900,1\n";

const CALLS: &str = "1,create,7,2097152\n2,map,0x10000000,7,2097152\n3,access,0x10000000,2097152\n4,alloc,0,0x10000000,1000,0\n\
                     5,create,8,2097152\n6,map,0x10200000,8,2097152\n7,alloc,1,0x10200000,2097152,1\n8,order,0,1\n9,free,1\n\
                     10,wait,event\n11,free,0\n12,done,0\n13,done,1\n14,unmap,0x10000000,2097152\n15,release,7\n";

/// A snapshot of one block of 512 bytes at 4096, as Python writes the expression.
fn pickled(files: &Files, expression: &str) -> PathBuf {
    let path = files.0.join("odd.pickle");
    let script = "import pickle, sys\n\
                  def segment(address=4096, **more):\n\
                  \x20   block = dict(address=address, size=512, state='active_allocated')\n\
                  \x20   return dict(dict(device=0, address=4096, total_size=1024, stream=0, blocks=[block]), **more)\n\
                  pickle.dump(eval(sys.argv[2]), open(sys.argv[1], 'wb'))";
    let output = Command::new("python3").args(["-c", script]).arg(&path).arg(expression).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

#[test]
fn snapshots_that_say_less_or_more_are_read() {
    let files = Files::new("odd");
    for expression in [
        // What torch.cuda.memory_snapshot gives.
        "[segment()]",
        "dict(segments=[segment(new=None)], new={})",
        "dict(segments=[segment()], device_traces=[[dict(action='new')]])",
    ] {
        pickled(&files, expression);
        let space = read(&files.arguments("odd.pickle")).unwrap();
        let [block] = &space.blocks[..] else { panic!("{space:?}") };
        assert_eq!((block.address, block.size), (Some(4096), 512), "{expression}");
    }
}

#[test]
fn a_snapshot_that_contradicts_itself_is_refused_where_it_does() {
    let files = Files::new("wrong");
    for (expression, error) in [
        (
            "[segment(3584)]",
            "segments[0]: blocks[0] begins before its segment, or before the end of another block",
        ),
        ("[segment(4992)]", "segments[0]: blocks[0] ends beyond its segment"),
        ("[segment(blocks=2 * segment()['blocks'])]", "blocks[1] begins before"),
        ("[segment(device=None)]", "segments[0]: device: expected an integer, found None"),
        (
            "[segment(blocks=[dict(size=512, state='lost')])]",
            "the state \"lost\" is not known; there are active_allocated",
        ),
    ] {
        pickled(&files, expression);
        let found = format!("{:#}", read(&files.arguments("odd.pickle")).unwrap_err());
        assert!(found.contains(error), "{expression}: {found}");
    }
}

#[test]
fn a_call_log_adds_addresses_and_reserved_memory() {
    let files = Files::new("calls");
    files.write("trace.csv", TRACE);
    let calls = files.write("calls.csv", CALLS);
    let space = read(&Recording { calls: Some(calls), ..files.arguments("trace.csv") }).unwrap();
    let [small, large] = &space.blocks[..] else { panic!("{space:?}") };
    assert_eq!((small.address, small.size, small.requested), (Some(0x1000_0000), 1024, 1000));
    assert_eq!((small.allocated, small.freed, small.done), (4, 11, 11));
    // The trace is done with it after its fourth event, which is line 11.
    assert_eq!((large.allocated, large.freed, large.done), (7, 9, 11));
    let page = 2 << 20;
    assert_eq!(
        space.curves.reserved[4..=15],
        [
            page,
            2 * page,
            2 * page,
            2 * page,
            2 * page,
            2 * page,
            2 * page,
            2 * page,
            2 * page,
            2 * page,
            2 * page,
            page
        ]
    );
    assert_eq!(recount(&space, 7), [page + 1024, 0, 2 * page]);
    assert_eq!(recount(&space, 15), [0, 0, page]);
    assert_eq!(space.segments.iter().filter(|segment| segment.to == NEVER).count(), 1);
    assert_eq!([4, 7, 9, 11].map(|moment| space.curves.times[moment]), [0, 150, 200, 300]);
}

#[test]
fn what_a_call_log_lacks_could_not_be_allocated() {
    let files = Files::new("failed");
    // Of a block without bytes no log says anything.
    files.write("trace.csv", &format!("{TRACE}a,90,0,0,950,1\na,91,{},0,951,1\nf,91,,0,952,1\n", 1u64 << 60));
    let calls =
        files.write("calls.csv", "0,malloc,8192,1048576\n1,alloc,0,8192,1000,0\n2,free,0\n3,mfree,8192\n");
    let space = read(&Recording { calls: Some(calls), ..files.arguments("trace.csv") }).unwrap();
    let [failed, larger] = &space.out_of_memory[..] else { panic!("{space:?}") };
    assert_eq!((failed.moment, failed.requested, failed.free), (2, 2 << 20, None));
    assert_eq!((larger.moment, larger.requested, larger.free), (3, 1 << 60, None));
    assert_eq!(space.curves.reserved, [0, 1 << 20, 1 << 20, 1 << 20, 0]);
    assert_eq!(recount(&space, 2), [1024, 0, 1 << 20]);
}

#[test]
fn a_call_log_of_another_trace_is_refused() {
    let files = Files::new("other");
    files.write("trace.csv", TRACE);
    for (line, reason) in [
        ("1,alloc,5,0x1000,512,0", "the trace has no block 5: is it the log of another?"),
        ("1,release,3", "handle 3 was not created"),
        ("1,free,0", "block 0 was not allocated"),
        ("1,jump,0", "unknown op \"jump\""),
        ("1,map,18446744073709547520,1,8192", "ends beyond 2^52"),
        ("1,mfree,4096", "0x1000 was not allocated"),
        ("1,alloc,0,4503599627370000,1000,0", "ends beyond 2^52"),
    ] {
        let calls = files.write("calls.csv", line);
        let error = read(&Recording { calls: Some(calls), ..files.arguments("trace.csv") }).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("line 1 of the call log") && error.contains(reason), "{error}");
    }
}

#[test]
fn options_that_do_not_fit_the_file_are_refused() {
    let files = Files::new("options");
    files.write("trace.csv", TRACE);
    files.snapshot(10, 10, 1);
    let device = Recording { device: Some(0), ..files.arguments("trace.csv") };
    assert!(read(&device).unwrap_err().to_string().contains("--device"));
    let calls = Recording { calls: Some(files.0.join("trace.csv")), ..files.arguments("snapshot.pickle") };
    assert!(read(&calls).unwrap_err().to_string().contains("--calls"));
}
