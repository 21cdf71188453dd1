//! What the snapshots of small programs say, written as each version of PyTorch writes them.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use super::super::space::Space;
use super::super::stacks::Stacks;
use super::super::{Input, Options, write};
use super::{Files, read, spaces};

/// What `programs.py` says that the page has to show.
#[derive(Debug, Deserialize)]
pub(super) struct Expected {
    pub(super) lines: Vec<String>,
    live: u64,
    host: u64,
    reserved: u64,
}

/// Writes the snapshot of a program into its file.
pub(super) fn snapshot(files: &Files, program: &str, version: &str) -> Expected {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/programs.py");
    let out = files.0.join(format!("{program}.pickle"));
    let output = Command::new("python3").arg(script).arg(out).args([program, version]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The innermost frames of the user's files that hold something at a moment, with their bytes and blocks.
fn lines(space: &Space, stacks: &Stacks, moment: u32) -> Vec<(String, u64, u64)> {
    let mut found: Vec<(String, u64, u64)> = Vec::new();
    for (stack, (bytes, blocks)) in space.held(moment) {
        let frames = stack.map_or(&[][..], |stack| stacks.frames_of(stack));
        let mut frames = frames.iter().filter_map(|frame| stacks.frame(*frame));
        let line = frames.find(|frame| frame.file.starts_with("/home/"));
        let name =
            line.map_or(String::new(), |f| format!("{}:{}", f.file.rsplit('/').next().unwrap(), f.line));
        match found.iter_mut().find(|(known, ..)| *known == name) {
            Some(sum) => (sum.1, sum.2) = (sum.1 + bytes, sum.2 + blocks),
            None => found.push((name, bytes, blocks)),
        }
    }
    found.sort_by_key(|(_, bytes, _)| std::cmp::Reverse(*bytes));
    found
}

#[test]
fn snapshots_of_every_version_are_read_with_what_they_have() {
    for version in ["2.6", "2.9", "2.11", "2.13", "2.15"] {
        let files = Files::new(&format!("version-{version}"));
        let expected = snapshot(&files, "all", version);
        let (spaces, _) = spaces(&files.arguments("all.pickle")).unwrap();
        let new = version == "2.15";
        let names: Vec<_> = spaces.iter().map(|space| space.name.as_str()).collect();
        let host = if new { &["Pinned host memory"][..] } else { &[] };
        assert_eq!(names, [&["GPU 0", "GPU 1"][..], host].concat(), "{version}");
        let gpu = &spaces[0];
        assert_eq!(gpu.notes, Vec::<String>::new(), "{version}");
        let end = gpu.held(gpu.curves.events).values().map(|(bytes, _)| bytes).sum::<u64>();
        assert_eq!(
            (end, *gpu.curves.reserved.last().unwrap()),
            (expected.live, expected.reserved),
            "{version}"
        );
        assert_eq!(gpu.annotations.iter().map(|(name, ..)| name.as_str()).collect::<Vec<_>>(), ["epoch"]);
        let (_, from, to) = gpu.annotations[0];
        assert!(0 < from && from < to && to < gpu.curves.events);
        let pooled = gpu.labels.iter().find(|label| label.pool == Some((0, 1)));
        assert_eq!(pooled.unwrap().tag, "weights", "{version}");
        assert!(gpu.blocks.iter().any(|block| block.stream == 7));
        // What the user said: text, from 2.15 on a dictionary too; annotations of tensors from 2.14 on.
        let said = |text: &str| gpu.labels.iter().any(|label| label.said == text);
        let metadata = if new { "phase=validation, epoch=3" } else { "validation" };
        assert_eq!(said(metadata), !["2.6", "2.9"].contains(&version), "{version}: {:?}", gpu.labels);
        assert_eq!(said("embedding"), new);
        // The second device grows by pages.
        assert!(spaces[1].segments.iter().all(|segment| segment.owner.grows));
        if new {
            assert_eq!(spaces[2].curves.peak_live.0, expected.host);
        }
    }
}

#[test]
fn the_leak_is_one_line_with_all_its_blocks() {
    let files = Files::new("leak");
    let expected = snapshot(&files, "leak", "2.11");
    let (spaces, stacks) = spaces(&files.arguments("leak.pickle")).unwrap();
    let found = lines(&spaces[0], &stacks, spaces[0].curves.peak_live.1);
    assert_eq!(found, [(expected.lines[0].clone(), 42 * (8 << 20), 42)]);
}

#[test]
fn before_and_after_are_compared_by_call_site() {
    let files = Files::new("compare");
    snapshot(&files, "three", "2.13");
    snapshot(&files, "leak", "2.13");
    let page = files.0.join("page.html");
    let before = Input::file(files.0.join("leak.pickle"));
    let options = Options { before: Some(before), page: Some(page.clone()), ..Options::default() };
    write(&[Input::file(files.0.join("three.pickle"))], &options, &mut |_| {}).unwrap();
    let text = std::fs::read_to_string(page).unwrap();
    let data = text.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["before"]["name"], "leak.pickle");
    let held = data["before"]["spaces"][0]["end"][0].as_array().unwrap().clone();
    assert_eq!((held[1].as_u64(), held[2].as_u64()), (Some(41 * (8 << 20)), Some(41)));
    let stack = data["stacks"][held[0].as_u64().unwrap() as usize - 1][1].as_u64().unwrap();
    assert_eq!(data["frames"][stack as usize][2], 10);
}

#[test]
fn exports_have_what_the_viewers_read() {
    let files = Files::new("export");
    let expected = snapshot(&files, "three", "2.13");
    let [perfetto, folded] = ["a.json", "a.folded"].map(|name| files.0.join(name));
    let options =
        Options { perfetto: Some(perfetto.clone()), folded: Some(folded.clone()), ..Options::default() };
    let written = write(&[Input::file(files.0.join("three.pickle"))], &options, &mut |_| {}).unwrap();
    assert_eq!(written.page_bytes, 0);
    let figures = &written.figures[0];
    let folded = std::fs::read_to_string(folded).unwrap();
    let sum =
        folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum::<u64>();
    assert_eq!(sum, figures.peak_active);
    assert!(
        folded.lines().all(|line| line.starts_with("GPU 0;<module> (/home/user/train.py:30);")),
        "{folded}"
    );
    assert!(expected.lines.iter().all(|line| folded.contains(line)), "{folded}");
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(perfetto).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |kind: &str| events.iter().filter(|event| event["ph"] == kind).count();
    assert_eq!((of("b"), of("e")), (figures.allocations as usize, figures.allocations as usize));
    assert_eq!(of("X"), 120);
    let live = events.iter().filter_map(|event| event["args"]["live"].as_u64()).max();
    assert_eq!(live, Some(figures.peak_live));
}

/// R2: what PyTorch reserved for the same work is a line of the page.
#[test]
fn r2_references_are_lines_of_the_page() {
    let files = Files::new("reference");
    snapshot(&files, "leak", "2.13");
    let page = files.0.join("page.html");
    let options = Options {
        references: vec![("PyTorch, native".to_owned(), 3_656_000_000)],
        page: Some(page.clone()),
        ..Options::default()
    };
    write(&[Input::file(files.0.join("leak.pickle"))], &options, &mut |_| {}).unwrap();
    let text = std::fs::read_to_string(page).unwrap();
    assert!(
        text.contains("Reserved by PyTorch, native") && text.contains("[\"PyTorch, native\",3656000000]")
    );
}

#[test]
fn several_recordings_share_a_page_by_name() {
    let files = Files::new("several");
    snapshot(&files, "leak", "2.13");
    snapshot(&files, "all", "2.15");
    let inputs = [
        Input::file(files.0.join("leak.pickle")).named("native"),
        Input::file(files.0.join("all.pickle")).named("ours"),
    ];
    let options = Options { page: Some(files.0.join("page.html")), ..Options::default() };
    let written = write(&inputs, &options, &mut |_| {}).unwrap();
    let names: Vec<_> = written.figures.iter().map(|figures| figures.name.as_str()).collect();
    assert_eq!(names, ["native", "ours: GPU 0", "ours: GPU 1", "ours: Pinned host memory"]);
}

#[test]
fn progress_ends_with_done() {
    let files = Files::new("progress");
    snapshot(&files, "leak", "2.13");
    let mut stages = Vec::new();
    let input = Input::file(files.0.join("leak.pickle"));
    write(&[input], &Options::default(), &mut |progress| stages.push(progress.stage)).unwrap();
    assert_eq!(stages.last(), Some(&super::super::Progress::DONE));
    assert!(read(&files.arguments("leak.pickle")).is_ok());
}
