//! Pages that are used: every part is clicked through, and each answers.

use std::path::PathBuf;

use serde_json::Value;

use super::browse::dom_in;
use super::programs::snapshot;
use super::{CALLS, Files, TRACE, pickled};
use crate::{Input, Options, write};

/// Helpers of the scripts below, which note what they see in `seen`.
const HELPERS: &str = r##"
const $ = (id) => document.getElementById(id), all = (selector) => [...document.querySelectorAll(selector)], seen = {};
const click = (node) => node.dispatchEvent(new MouseEvent("click", { bubbles: true }));
const change = (id, value) => { $(id).value = value; $(id).dispatchEvent(new Event("change")); };
const type = (id, value) => { $(id).value = value; $(id).dispatchEvent(new Event("input")); };
const mouse = (node, kind, x, y, more) => {
  const box = node.getBoundingClientRect(), Kind = kind === "wheel" ? WheelEvent : kind.startsWith("pointer") ? PointerEvent : MouseEvent;
  node.dispatchEvent(new Kind(kind, { clientX: box.left + x, clientY: box.top + y, bubbles: true, cancelable: true, pointerType: "mouse", pointerId: 1, ...more }));
};
const key = (node, name, more) => node.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true, ...more }));
const over = $("chart-over");
over.setPointerCapture = () => {};
$("overview").setPointerCapture = () => {};
const texts = (selector) => all(selector).map((node) => node.textContent.trim());
// What is written on canvases from here on.
const written = (action) => { const list = [], before = CanvasRenderingContext2D.prototype.fillText; CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) { list.push(text); return before.call(this, text, ...rest); }; action(); CanvasRenderingContext2D.prototype.fillText = before; return list; };
"##;

struct Page {
    files: Files,
    inputs: Vec<PathBuf>,
    options: Options,
    window: &'static str,
}

impl Page {
    fn of(name: &str, program: &str) -> Self {
        let files = Files::new(&format!("clicks-{name}"));
        snapshot(&files, program, "2.15");
        let inputs = vec![files.0.join(format!("{program}.pickle"))];
        Self { inputs, ..Self::with(files) }
    }

    fn with(files: Files) -> Self {
        Self { files, inputs: Vec::new(), options: Options::default(), window: "1280,1600" }
    }

    /// What a script saw, once the page has come to its end.
    fn run(self, script: &str) -> Value {
        let out = self.files.0.join("page.html");
        let options = Options { page: Some(out.clone()), ..self.options };
        let inputs: Vec<_> = self.inputs.into_iter().map(Input::file).collect();
        write(&inputs, &options, &mut |_| {}).unwrap();
        let page = std::fs::read_to_string(&out).unwrap();
        let script = format!(
            "{page}<p id=\"seen\"></p><script>(() => {{{HELPERS}{script}\n$(\"seen\").textContent = JSON.stringify(seen).replaceAll(\"<\", \"\\\\u003c\").replaceAll(\"&\", \"\\\\u0026\");}})();</script>"
        );
        std::fs::write(&out, script).unwrap();
        let dom = dom_in(&out, self.window).unwrap();
        assert!(dom.contains("data-ready=\"true\""), "the scripts did not come to their end");
        assert!(dom.contains("data-errors=\"0\""), "the scripts failed");
        let seen = dom.rsplit_once("id=\"seen\">").unwrap().1.split_once("</p>").unwrap().0;
        let seen = seen.replace("&gt;", ">");
        serde_json::from_str(&seen).unwrap_or_else(|error| panic!("{error}: {seen}"))
    }
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn the_first_screen_names_the_line_of_each_program() {
    for program in ["leak", "three", "fragmented", "pinned"] {
        let files = Files::new(&format!("first-{program}"));
        let expected = snapshot(&files, program, "2.15");
        // A desktop's window, and a phone's.
        for window in ["1280,800", "390,844"] {
            let mut page = Page::of(&format!("line-{program}"), program);
            page.window = window;
            let seen = page.run(
                "seen.shown = all(\"#standouts li, #who-rows tr\").filter((node) => node.getBoundingClientRect().bottom <= innerHeight).map((node) => node.textContent);
                 seen.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;",
            );
            let shown = seen["shown"].to_string();
            for line in &expected.lines {
                assert!(shown.contains(line.as_str()), "{program} in {window}: {line} is not in {shown}");
            }
            assert_eq!(seen["wide"], 0, "{program} in {window}: it scrolls sideways");
        }
    }
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn r1_addresses_of_free_places_are_whole_numbers() {
    let seen = Page::of("r1", "fragmented").run(
        r##"click(all("#jumps button").find((node) => node.textContent === "End"));
           const map = $("map"), box = map.getBoundingClientRect(), told = new Set();
           for (let y = 8; y < box.height; y += 21) for (let x = 151; x < box.width - 20; x += 7) { mouse(map, "pointermove", x, y); told.add($("map-readout").textContent); }
           seen.free = [...told].filter((text) => text.includes(": free, "));"##,
    );
    let free = seen["free"].as_array().unwrap();
    assert!(free.len() > 20, "{free:?}");
    for text in free {
        let address = text.as_str().unwrap().split(": ").next().unwrap();
        let digits = address.strip_prefix("0x").unwrap();
        assert!(digits.chars().all(|digit| digit.is_ascii_hexdigit()), "{address}");
    }
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn r3_equal_blocks_are_one_row_that_grows() {
    let seen = Page::of("r3", "leak").run(
        r##"const row = all("#who-rows tr")[0]; seen.rows = all("#who-rows tr").length; seen.site = row.dataset.site; seen.bytes = +row.dataset.bytes; seen.blocks = +row.dataset.blocks;
           seen.growing = row.querySelector(".growing") !== null; seen.growth = row.cells[5].textContent;
           click($("second-start")); seen.since = $("who-rows").rows[0].cells[5].textContent; seen.total = $("who-total").textContent;"##,
    );
    assert_eq!((&seen["rows"], &seen["site"]), (&1.into(), &"leak.py:10".into()));
    assert_eq!((&seen["bytes"], &seen["blocks"]), (&(42 << 23).into(), &42.into()));
    assert_eq!(
        (&seen["growing"], &seen["growth"], &seen["since"]),
        (&true.into(), &"+160.0 MiB".into(), &"+336.0 MiB".into())
    );
    assert!(seen["total"].as_str().unwrap().contains("336.0 MiB"), "{seen}");
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn r4_slider_and_chart_go_along_the_same_axis() {
    // Times that are far from even: the last event is as late as all others together.
    let mut page = Page::of("r4", "leak");
    let text = "op,id,size,stream,time_us,thread\n".to_owned()
        + &(0..100).map(|id| format!("a,{id},1048576,0,{},1\n", 10 * id)).collect::<String>()
        + "a,100,1048576,0,2000,1\n";
    page.inputs = vec![page.files.write("trace.csv", &text)];
    let seen = page.run(
        r##"seen.axis = $("axis").value; seen.cursor = [];
           for (const axis of ["events", "time"]) {
             change("axis", axis);
             for (const share of [0.25, 0.5]) {
               type("moment", share * 10000);
               const words = over.getAttribute("aria-label");
               // A click on the chart at that share chooses the same moment, and leaves the slider where it was.
               const plot = over.clientWidth - 74 - 16;
               mouse(over, "pointerdown", 74 + share * plot, 200); mouse(over, "pointerup", 74 + share * plot, 200);
               seen.cursor.push([words, over.getAttribute("aria-label"), Math.abs($("moment").value / 10000 - share) < 0.02]);
             }
           }"##,
    );
    assert_eq!(seen["axis"], "events");
    let events: Vec<i64> = seen["cursor"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            let number = |at: usize| {
                let text = entry[at].as_str().unwrap();
                text.split("event ")
                    .nth(1)
                    .unwrap()
                    .split(':')
                    .next()
                    .unwrap()
                    .replace(',', "")
                    .parse::<i64>()
                    .unwrap()
            };
            assert!((number(0) - number(1)).abs() <= 2 && entry[2] == true, "{entry}");
            number(0)
        })
        .collect();
    assert!((24..=27).contains(&events[0]) && (49..=52).contains(&events[1]), "{events:?}");
    // In time the first hundred events are the first half.
    assert!((49..=52).contains(&events[2]) && events[3] >= 99, "{events:?}");
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn r5_lines_are_whole_and_the_users_own() {
    let seen = Page::of("r5", "three").run(
        r##"seen.sites = all("#who-rows td.name").map((cell) => [cell.textContent, cell.scrollWidth <= cell.clientWidth]);
           click(all("#who-rows td.name button").find((node) => node.textContent.includes("history.py"))); seen.frames = texts("#who-rows .frames li");"##,
    );
    let sites = seen["sites"].as_array().unwrap();
    assert!(
        sites.iter().all(|site| site[1] == true && !site[0].as_str().unwrap().contains("_tensor.py")),
        "{sites:?}"
    );
    assert!(
        sites.iter().any(|site| site[0]
            .as_str()
            .unwrap()
            .starts_with("train.py:24 trainin metrics/history.py:5 remember")),
        "{sites:?}"
    );
    assert_eq!(seen["frames"][0], "empty (/opt/venv/lib/python3.12/site-packages/torch/_tensor.py:51)");
    assert_eq!(seen["frames"][2], "train (/home/user/train.py:24)");
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn r6_an_empty_snapshot_has_no_ticks_below_a_byte() {
    let files = Files::new("clicks-r6");
    let input = pickled(&files, "dict(segments=[], device_traces=[[]])");
    let page = Page { inputs: vec![input], ..Page::with(files) };
    let seen = page.run(r##"seen.texts = written(() => { change("colour-by", "site"); }); seen.rows = all("#who-rows tr").length;"##);
    let texts: Vec<_> = seen["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert_eq!(
        texts.iter().filter(|text| text.ends_with(" B")).collect::<Vec<_>>(),
        [&"0 B", &"all 0 B"],
        "{texts:?}"
    );
    assert_eq!(seen["rows"], 0);
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn r7_blocks_are_searched_sorted_and_summed() {
    let seen = Page::of("r7", "three").run(
        r##"seen.count = $("table-count").textContent; seen.rows = all("#blocks tr").length; click($("table-more")); seen.more = all("#blocks tr").length;
           type("block-search", "history.py"); seen.found = $("table-count").textContent; type("block-search", "");
           click(all("#block-head button").find((node) => node.dataset.order === "from")); click(all("#block-head button").find((node) => node.dataset.order === "from"));
           seen.sorted = all("#block-head th").find((head) => head.textContent === "allocated at").getAttribute("aria-sort");
           change("which", "now"); seen.now = $("table-count").textContent;
           type("who-search", "remember"); seen.who = texts("#who-rows tr").length; seen.total = texts("#who-total td"); type("who-search", "");
           click(all("#who-head button").find((node) => node.dataset.order === "blocks")); seen.most = all("#who-rows tr")[0].dataset.site;"##,
    );
    assert_eq!(seen["count"], "showing 25 of 318, 4.43 GiB in all");
    assert_eq!((&seen["rows"], &seen["more"]), (&25.into(), &225.into()));
    assert_eq!(seen["found"], "showing 24 of 24, 24.0 MiB in all");
    assert_eq!(seen["sorted"], "descending");
    assert_eq!(seen["now"], "showing 80 of 80, 254.0 MiB in all");
    assert_eq!(
        (&seen["who"], &seen["total"][1], &seen["total"][4]),
        (&1.into(), &"1 of 6".into(), &"24".into())
    );
    assert_eq!(seen["most"], "train.py:11");
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn many_call_sites_are_shown_in_steps() {
    let files = Files::new("clicks-many");
    let input = pickled(
        &files,
        "[segment(total_size=57 * 512, blocks=[dict(address=4096 + 512 * n, size=512, state='active_allocated', \
         frames=[dict(filename='/home/user/a.py', line=n, name='f')]) for n in range(57)])]",
    );
    let page = Page { inputs: vec![input], ..Page::with(files) };
    let seen = page.run(
        r##"const rows = () => texts("#who-rows tr").length; seen.rows = [rows()]; seen.more = $("who-more").textContent; click($("who-more")); seen.rows.push(rows()); seen.hidden = $("who-more").hidden;"##,
    );
    assert_eq!((&seen["rows"], &seen["hidden"]), (&serde_json::json!([12, 57]), &true.into()));
    assert_eq!(seen["more"], "Show 45 more of 45");
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn a_line_of_the_standard_library_is_no_call_site() {
    let files = Files::new("clicks-standard");
    // Python's folder, and that of its build without a global lock.
    let input = pickled(
        &files,
        "[segment(blocks=[dict(address=4096 + 512 * n, size=512, state='active_allocated', \
         frames=[dict(filename=f'/usr/lib/{python}/contextlib.py', line=81, name='inner'), \
         dict(filename='/home/user/a.py', line=7, name='f')]) for n, python in enumerate(['python3.12', 'python3.13t'])])]",
    );
    let page = Page { inputs: vec![input], ..Page::with(files) };
    let seen = page.run(r##"seen.sites = all("#who-rows tr").map((row) => row.dataset.site);"##);
    assert_eq!(seen["sites"], serde_json::json!(["a.py:7"]));
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn r8_figures_are_one_line_each() {
    let seen = Page::of("r8", "fragmented").run(
        r##"seen.cards = all(".of-space:not([hidden]) .card dd:not(.about)").map((node) => [node.textContent, node.getClientRects().length === 1 && node.offsetHeight < 36]);
           seen.now = all("#now dd").map((node) => [node.textContent, node.offsetHeight < 30]); seen.heads = texts("#block-head th");"##,
    );
    for list in ["cards", "now"] {
        let entries = seen[list].as_array().unwrap();
        assert!(entries.len() >= 5 && entries.iter().all(|entry| entry[1] == true), "{entries:?}");
    }
    assert!(seen["heads"].to_string().contains("allocated at"));
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn r9_pointing_redraws_nothing_but_what_follows_the_pointer() {
    let seen = Page::of("r9", "three").run(
        r##"let images = 0, sheets = 0;
           const put = OffscreenCanvasRenderingContext2D.prototype.putImageData, draw = CanvasRenderingContext2D.prototype.drawImage;
           OffscreenCanvasRenderingContext2D.prototype.putImageData = function (...rest) { images++; return put.call(this, ...rest); };
           CanvasRenderingContext2D.prototype.drawImage = function (...rest) { sheets++; return draw.call(this, ...rest); };
           for (let x = 80; x < 600; x += 5) mouse(over, "pointermove", x, 200);
           seen.while = [images, sheets]; click($("zoom-in")); seen.after = [images, sheets];
           seen.texts = written(() => mouse(over, "pointermove", 400, 330));"##,
    );
    assert_eq!((&seen["while"], &seen["after"]), (&serde_json::json!([0, 0]), &serde_json::json!([1, 2])));
    assert!(seen["texts"].to_string().contains("by train.py:"), "{seen}");
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn a_device_is_compared_with_itself() {
    let mut page = Page::of("compared", "all");
    // The earlier one has one device, this one two and pinned host memory.
    snapshot(&page.files, "three", "2.13");
    page.options.before = Some(Input::file(page.files.0.join("three.pickle")));
    let seen = page.run(
        r##"seen.before = all("#tabs button").map((tab) => { click(tab); return $("compare-total").cells[1].textContent; });"##,
    );
    let before = seen["before"].as_array().unwrap();
    assert_ne!(before[0], "0 B");
    assert_eq!(before[1..], ["0 B", "0 B"], "{seen}");
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn the_only_devices_of_two_ranks_are_compared() {
    let files = Files::new("clicks-ranks");
    let of_rank = |name, device| {
        let host = "host_segments=[segment(total_size=512)]";
        let found = pickled(&files, &format!("dict(segments=[segment(device={device})], {host})"));
        let path = files.0.join(name);
        std::fs::rename(found, &path).unwrap();
        path
    };
    let (before, input) = (of_rank("rank0.pickle", 0), of_rank("rank1.pickle", 1));
    let mut page = Page { inputs: vec![input], ..Page::with(files) };
    page.options.before = Some(Input::file(before));
    let seen = page.run(
        r##"seen.change = all("#tabs button").map((tab) => { click(tab); return $("compare-total").cells[5].textContent; });"##,
    );
    assert_eq!(seen["change"].as_array().unwrap().len(), 2, "{seen}");
    assert_eq!(seen["change"][0], seen["change"][1], "both hold what they held: {seen}");
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn every_part_of_the_page_answers() {
    let mut page = Page::of("all", "all");
    snapshot(&page.files, "three", "2.13");
    page.options.before = Some(Input::file(page.files.0.join("three.pickle")));
    let seen = page.run(
        r##"click(all("#tabs button")[0]);
           seen.tabs = texts("#tabs button"); seen.space = all(".of-space:not([hidden]) .sub").map((node) => node.textContent);
           key($("tabs"), "ArrowRight"); seen.second = all("#tabs button").findIndex((tab) => tab.getAttribute("aria-selected") === "true"); key($("tabs"), "ArrowLeft");
           for (const group of ["category", "stream", "pool", "tag"]) { change("who-group", group); seen[group] = texts("#who-rows td.name").sort(); }
           change("who-group", "site");
           for (const group of ["category", "stream", "pool", "site"]) { change("colour-by", group); seen["legend-" + group] = $("chart-legend").textContent; }
           // The chart: point, click, drag, wheel, keys, buttons.
           const moment = () => over.getAttribute("aria-label"), plot = over.clientWidth - 90;
           mouse(over, "pointermove", 74 + plot * 0.9, 380); mouse(over, "pointerdown", 74 + plot * 0.9, 380); mouse(over, "pointerup", 74 + plot * 0.9, 380);
           seen.pinned = $("pinned").hidden ? null : $("pinned").textContent; click([...$("pinned").querySelectorAll("button")].pop()); seen.closed = $("pinned").hidden;
           const axisTexts = (action) => written(action).filter((text) => /^[\d,.]+$/.test(text));
           seen.full = axisTexts(() => click($("zoom-all")));
           seen.dragged = axisTexts(() => { mouse(over, "pointerdown", 174, 200); mouse(over, "pointermove", 400, 200); mouse(over, "pointerup", 400, 200); });
           seen.wheel = axisTexts(() => mouse(over, "wheel", 300, 200, { deltaY: -100 }));
           seen.shown = axisTexts(() => mouse(over, "dblclick", 300, 200));
           key(over, "End"); const end = moment(); key(over, "ArrowLeft"); seen.keys = [end !== moment(), (key(over, "Home"), moment())];
           seen.plus = axisTexts(() => key(over, "+")); axisTexts(() => key(over, "0"));
           seen.annotation = written(() => mouse(over, "pointermove", 74 + plot * 0.7, 6));
           for (const id of ["zoom-in", "later", "earlier", "zoom-out", "zoom-all"]) click($(id));
           mouse($("overview"), "pointerdown", 300, 10); mouse($("overview"), "pointerup", 300, 10);
           for (const jump of all("#jumps button")) click(jump);
           click($("second-here")); seen.since = $("second-text").textContent; click($("second-start"));
           // The flame graph: point, click, keys.
           mouse($("flame"), "pointermove", 30, 30); seen.flame = $("flame-readout").textContent; mouse($("flame"), "click", 30, 30); seen.zoomed = !$("flame-all").hidden; click($("flame-all")); seen.flameAll = $("flame-all").hidden;
           key($("flame"), "ArrowDown"); key($("flame"), "ArrowRight"); key($("flame"), "Escape");
           // Events, blocks, map, comparison.
           change("event-filter", "mapped"); seen.mapped = texts("#event-rows td.word").filter((text, at, list) => list.indexOf(text) === at); change("event-filter", "all"); seen.events = all("#event-rows tr").length; click(all("#event-rows button")[3]);
           click(all("#blocks button")[0]); seen.block = !$("pinned").hidden;
           for (const id of ["map-in", "map-on", "map-back", "map-out", "map-all", "map-fixed"]) click($(id));
           key($("map"), "ArrowRight"); seen.map = $("map-readout").textContent; mouse($("map"), "click", 200, 10);
           seen.compare = all("#compare-rows tr").map((row) => [row.cells[0].textContent, +row.dataset.change]).slice(0, 2); change("compare-when", "peak"); type("compare-search", "train.py"); seen.compared = all("#compare-rows tr").length; click(all("#compare-head button")[0]);
           seen.settings = $("settings").textContent.split("\n").length; seen.categories = texts("#category-rows tr");
           click(all("#standouts button")[0]);
           click(all("#tabs button")[2]); seen.host = $("now").textContent;"##,
    );
    assert_eq!(seen["tabs"].as_array().unwrap().len(), 3);
    assert_eq!(seen["second"], 1);
    assert_eq!(
        seen["category"],
        serde_json::json!(["embedding", "phase=validation, epoch=3", "unknown"]),
        "{seen}"
    );
    assert!(
        seen["stream"].to_string().contains("stream 7") && seen["pool"].to_string().contains("pool (0, 1)")
    );
    assert_eq!(seen["tag"], serde_json::json!(["no tag", "weights"]));
    assert!(seen["legend-category"].as_str().unwrap().contains("embedding"), "{seen}");
    let pinned = seen["pinned"].as_str().unwrap_or_else(|| panic!("nothing was pinned: {seen}"));
    assert!(pinned.contains("all.py:2") && pinned.contains("lifetime"), "{pinned}");
    assert_eq!(
        (&seen["closed"], &seen["zoomed"], &seen["flameAll"], &seen["block"]),
        (&true.into(), &true.into(), &true.into(), &true.into())
    );
    for view in ["dragged", "wheel", "plus"] {
        assert_ne!(seen[view], seen["full"], "{view}");
    }
    assert_eq!(seen["shown"], seen["full"]);
    assert_eq!(seen["keys"][0], true);
    assert!(seen["keys"][1].as_str().unwrap().contains("before the first event"));
    assert!(seen["annotation"].to_string().contains("epoch"), "{seen}");
    assert!(seen["flame"].as_str().unwrap().contains(" in "), "{seen}");
    assert_eq!(seen["mapped"], serde_json::json!(["mapped"]));
    assert!(seen["events"].as_u64().unwrap() > 20);
    assert!(seen["map"].as_str().unwrap().contains("live"), "{seen}");
    assert_eq!(seen["compare"][0], serde_json::json!(["train.py:11 validate", -(90 << 20)]), "{seen}");
    assert!(seen["compared"].as_u64().unwrap() >= 3);
    assert!(seen["settings"].as_u64().unwrap() >= 4 && seen["categories"].to_string().contains("unknown"));
    assert!(seen["host"].as_str().unwrap().contains("32.0 MiB"), "{seen}");
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn failed_allocations_say_what_was_free_and_what_would_have_fitted() {
    let seen = Page::of("failed", "fragmented").run(
        r##"seen.row = texts("#failure-rows td"); seen.fitting = +all("#failure-rows tr")[0].dataset.fitting; click(all("#failure-rows button")[0]); seen.here = texts("#event-rows tr").pop(); seen.out = texts("#standouts li")[0];"##,
    );
    // 40 ranges of 18 MiB are free, and 300 MiB were needed.
    assert_eq!(seen["fitting"], 18 << 20);
    assert_eq!(
        (&seen["row"][1], &seen["row"][3], &seen["row"][6]),
        (&"300.0 MiB".into(), &"720.0 MiB".into(), &"only in pieces".into()),
        "{seen}"
    );
    assert_eq!(seen["row"][2], "100.0 MiB");
    assert_eq!(
        seen["out"],
        "Out of memory once: serve.py:18 <module> asked for 300.0 MiB; 720.0 MiB were free in 40 pieces, the largest 18.0 MiB"
    );
}

#[test]
#[ignore = "needs Chromium; cargo xtask ci runs it"]
fn a_replay_has_a_map_and_a_trace_says_how_to_get_one() {
    let mut page = Page::of("replay", "leak");
    page.inputs = vec![page.files.write("trace.csv", TRACE)];
    let seen =
        page.run(r##"seen.map = $("map-readout").textContent; seen.rows = all("#who-rows tr").length;"##);
    assert!(seen["map"].as_str().unwrap().contains("cargo xtask replay"));
    let mut page = Page::of("replayed", "leak");
    page.inputs = vec![page.files.write("trace.csv", TRACE)];
    page.options.calls = Some(Input::file(page.files.write("calls.csv", CALLS)));
    let seen = page.run(r##"key($("map"), "ArrowRight"); seen.map = $("map-readout").textContent;"##);
    assert!(seen["map"].as_str().unwrap().starts_with("0x10000000"), "{seen}");
}
