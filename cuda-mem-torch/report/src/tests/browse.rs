//! Pages as a browser shows them, against counts made elsewhere.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{CALLS, Files, Recording, TRACE, draw, ours, pickled};

/// The elements of a page after its scripts ran; an error if they said anything on the console.
fn dom(page: &Path) -> Result<String> {
    dom_in(page, "1280,1600")
}

/// As [`dom`], in a window of so many pixels across and down.
pub(super) fn dom_in(page: &Path, window: &str) -> Result<String> {
    let program = std::env::var_os("CHROMIUM").context("CHROMIUM names no browser")?;
    let profile = page.with_extension("profile");
    let output = Command::new("timeout")
        .args(["--kill-after=5", "120"])
        .arg(program)
        // The page is ours, and containers refuse the sandbox to root.
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--enable-logging=stderr",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(["--virtual-time-budget=10000", &format!("--window-size={window}"), "--dump-dom"])
        .arg(format!("file://{}", page.display()))
        .output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    let said = log.lines().filter(|line| line.contains("CONSOLE")).collect::<Vec<_>>().join("\n");
    ensure!(said.is_empty(), "the page wrote to the console: {said}");
    ensure!(output.status.success(), "the browser failed ({}): {log}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// What the page says of a figure after its scripts ran: the tool's count and the script's.
fn figure(dom: &str, id: &str) -> [String; 2] {
    let at = dom.find(&format!("id=\"{id}\"")).unwrap_or_else(|| panic!("the page has no {id}"));
    let tag = &dom[at..at + dom[at..].find('>').unwrap()];
    ["data-value", "data-drawn"].map(|name| {
        let (_, rest) =
            tag.split_once(&format!("{name}=\"")).unwrap_or_else(|| panic!("{id} has no {name}: {tag}"));
        rest.split('"').next().unwrap().to_owned()
    })
}

/// Opens a page and compares its figures, as counted by the tool and as drawn by the script.
fn open(arguments: &Recording, figures: &HashMap<&str, u64>, rows: usize) -> String {
    open_with("", arguments, figures, rows)
}

/// As [`open`], with more at the page's end.
fn open_with(more: &str, arguments: &Recording, figures: &HashMap<&str, u64>, rows: usize) -> String {
    let page = draw(arguments).unwrap() + more;
    assert!(page.len() < 30_000_000, "{} bytes", page.len());
    let out = arguments.input.with_file_name("page.html");
    std::fs::write(&out, page).unwrap();
    let dom = dom(&out).unwrap();
    assert!(dom.contains("data-ready=\"true\""), "the scripts did not come to their end");
    assert!(dom.contains("data-errors=\"0\""), "the scripts failed");
    for (id, expected) in figures {
        let expected = expected.to_string();
        assert_eq!(figure(&dom, id), [expected.clone(), expected], "{id}");
    }
    let blocks = dom.split_once("<tbody id=\"blocks\">").unwrap().1.split_once("</tbody>").unwrap().0;
    assert_eq!(blocks.matches("<tr data-bytes=").count(), rows.min(25));
    dom
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn a_snapshot_shows_its_figures_in_a_browser() {
    let files = Files::new("browse");
    let account = files.snapshot(2500, 2000, 11);
    let peak = |of: fn(&[u64; 3]) -> u64| account.account.iter().map(of).max().unwrap();
    let figures = HashMap::from([
        ("peak-live", peak(|bytes| bytes[0])),
        ("peak-active", peak(|bytes| bytes[0] + bytes[1])),
        ("peak-reserved", peak(|bytes| bytes[2])),
        ("allocations", account.allocations as u64),
        ("out-of-memory", account.out_of_memory as u64),
    ]);
    let dom = open(&files.arguments("snapshot.pickle"), &figures, 100);
    assert!(dom.contains("/opt/train.py") && dom.contains("Largest free range"));
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn our_snapshot_shows_its_statistics_in_a_browser() {
    let files = Files::new("browse-ours");
    let statistics = ours::run(&files);
    let figures = HashMap::from([
        ("peak-live", statistics["allocated_bytes.peak"]),
        ("peak-reserved", statistics["reserved_bytes.peak"]),
        ("allocations", statistics["allocation.allocated"]),
        ("out-of-memory", 1),
    ]);
    let rows = statistics["allocation.allocated"] as usize;
    let dom = open(&files.arguments("snapshot.pickle"), &figures, rows);
    assert!(dom.contains("snapshot::main"));
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn a_long_trace_shows_its_figures_in_a_browser() {
    let files = Files::new("long");
    // Sizes from a rule, the account from a plain count beside it.
    let (mut lines, mut held, mut live, mut peak) = (vec!["op,id,size,stream".to_owned()], Vec::new(), 0, 0);
    for id in 0..100_000_u64 {
        let size = id * 7919 % 1_000_003 + 1;
        lines.push(format!("a,{id},{size},0"));
        held.push((id, size.next_multiple_of(512)));
        live += size.next_multiple_of(512);
        peak = peak.max(live);
        if id % 5 != 0 {
            let (id, size) = held.swap_remove((id * 31 % held.len() as u64) as usize);
            lines.push(format!("f,{id},,0"));
            live -= size;
        }
    }
    files.write("trace.csv", &lines.join("\n"));
    let figures = HashMap::from([("peak-live", peak), ("allocations", 100_000), ("out-of-memory", 0)]);
    let dom = open(&files.arguments("trace.csv"), &figures, 100);
    assert!(dom.contains("This recording has no addresses"));
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn a_replay_shows_its_figures_in_a_browser() {
    let files = Files::new("replay");
    files.write("trace.csv", TRACE);
    let calls = files.write("calls.csv", CALLS);
    let figures = HashMap::from([("peak-live", 2_098_176), ("peak-reserved", 4 << 20), ("allocations", 2)]);
    let arguments = Recording { calls: Some(calls), ..files.arguments("trace.csv") };
    let dom = open(&arguments, &figures, 2);
    assert!(dom.contains("reference-native") && dom.contains("0x10000000"));
}

/// Notes what the map says of places all over it.
const POINT_AT_THE_MAP: &str = r#"<p id="told"></p><script>
const box = document.getElementById("map").getBoundingClientRect(), told = new Set();
for (let y = 8; y < box.height; y += 21) for (let x = 151; x < box.width - 20; x += 7) {
  document.getElementById("map").dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + x, clientY: box.top + y }));
  told.add(document.getElementById("map-readout").textContent.split(",")[0]);
}
document.getElementById("told").textContent = [...told].join("; ");
</script>"#;

/// A history without its mappings, and that of a device beside the snapshot of a pool that has nothing.
#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn blocks_of_which_no_mapping_is_known_have_places_of_their_own() {
    let events = "device_traces=[[dict(action=action, addr=addr, size=65536, stream=0) for action, addr in \
                  [('alloc', 1 << 30), ('alloc', 1 << 20), ('free_completed', 1 << 30), ('free_completed', 1 << 20)]]]";
    let files = Files::new("unmapped");
    let figures = HashMap::from([("peak-live", 2 << 16), ("allocations", 2), ("out-of-memory", 0)]);
    pickled(&files, &format!("dict(segments=[], {events})"));
    let dom = open_with(POINT_AT_THE_MAP, &files.arguments("odd.pickle"), &figures, 2);
    assert_eq!(figure(&dom, "peak-reserved"), ["", ""]);
    assert!(dom.contains("Mappings were not recorded") && dom.contains("0x100000: live; 0x40000000: live"));
    // One mapping is known, below both.
    pickled(&files, &format!("dict(segments=[segment(blocks=[])], {events})"));
    let dom = open_with(POINT_AT_THE_MAP, &files.arguments("odd.pickle"), &figures, 2);
    assert!(dom.contains("free; 0x100000: live; 0x40000000: live"));
    assert!(dom.contains("in 1 segment; 2 where no mapping was recorded"));
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn what_goes_wrong_in_a_page_is_noticed() {
    let files = Files::new("wrong");
    let page = files.write("page.html", "<!doctype html><script>undefined_name()</script>");
    let error = dom(&page).unwrap_err().to_string();
    assert!(error.contains("undefined_name"), "{error}");
}
