//! Measures the page of a large snapshot: seconds, those of a processor, anonymous memory, bytes of the page, and how long the page takes to follow the pointer.
//!
//! ```text
//! cargo bench -p cuda-mem-report --bench large -- [EVENTS] [FOLDER]
//! ```
//!
//! Writes a snapshot of `EVENTS` events (45 million without) as Python pickles one, 3 GB for that many, and draws it. With
//! `CHROMIUM` naming a browser the page is opened and the pointer moved over its timeline 200 times.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cuda_mem_report::{Input, Options, write};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let events = arguments.first().map_or(Ok(45_000_000), |events| events.parse::<u64>())?;
    let folder = arguments.get(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let (snapshot, page) = (folder.join("large.pickle"), folder.join("large.html"));
    generate(&snapshot, events)?;
    let bytes = std::fs::metadata(&snapshot)?.len();
    let (highest, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let watch = std::thread::spawn({
        let (highest, stop) = (highest.clone(), stop.clone());
        move || {
            while !stop.load(Ordering::Relaxed) {
                highest.fetch_max(anonymous(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    });
    let (start, used) = (Instant::now(), processor());
    let options = Options { page: Some(page.clone()), ..Options::default() };
    let mut said = String::new();
    let written = write(&[Input::file(&snapshot)], &options, &mut |progress| {
        if said != progress.stage {
            said = progress.stage.to_owned();
            out(&format!("{:6.1} s: {said}", start.elapsed().as_secs_f64()));
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    let _ = watch.join();
    let written = written?;
    out(&format!("snapshot: {bytes} bytes, {events} events, {} allocations", written.figures[0].allocations));
    out(&format!("seconds: {seconds:.1}, of a processor: {:.1}", processor() - used));
    out(&format!("anonymous memory: {} MiB", highest.load(Ordering::Relaxed) >> 20));
    out(&format!("page: {} bytes", written.page_bytes));
    if let Some(browser) = std::env::var_os("CHROMIUM") {
        out(&format!("pointer over the timeline, milliseconds: {}", hover(Path::new(&browser), &page)?));
    }
    std::fs::remove_file(snapshot)?;
    Ok(())
}

fn out(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Bytes of anonymous memory that the process has.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Seconds of a processor that the process took, of a hundredth each.
fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// A pickle in protocol 4, as Python's `pickle.dump` writes a snapshot of PyTorch: keys and frames by reference, events one by one.
struct Pickle {
    file: BufWriter<File>,
    memo: u32,
}

impl Pickle {
    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.write_all(bytes)
    }

    fn memoize(&mut self) -> std::io::Result<u32> {
        self.memo += 1;
        self.put(b"\x94")?;
        Ok(self.memo - 1)
    }

    fn text(&mut self, text: &str) -> std::io::Result<u32> {
        self.put(&[0x8c, u8::try_from(text.len()).unwrap_or(0)])?;
        self.put(text.as_bytes())?;
        self.memoize()
    }

    fn get(&mut self, memo: u32) -> std::io::Result<()> {
        match u8::try_from(memo) {
            Ok(short) => self.put(&[b'h', short]),
            Err(_) => {
                self.put(b"j")?;
                self.put(&memo.to_le_bytes())
            }
        }
    }

    fn number(&mut self, number: u64) -> std::io::Result<()> {
        let bytes = number.to_le_bytes();
        match number {
            0..0x100 => self.put(&[b'K', bytes[0]]),
            0x100..0x1_0000 => self.put(&[b'M', bytes[0], bytes[1]]),
            0x1_0000..0x8000_0000 => self.put(&[b'J', bytes[0], bytes[1], bytes[2], bytes[3]]),
            _ => {
                self.put(&[0x8a, 7])?;
                self.put(&bytes[..7])
            }
        }
    }

    fn pairs(&mut self, pairs: &[(u32, u64)]) -> std::io::Result<()> {
        for (key, number) in pairs {
            self.get(*key)?;
            self.number(*number)?;
        }
        Ok(())
    }
}

const KEYS: [&str; 11] = [
    "action",
    "addr",
    "size",
    "stream",
    "time_us",
    "frames",
    "segments",
    "device_traces",
    "compile_context",
    "user_metadata",
    "pool_id",
];
const ACTIONS: [&str; 4] = ["alloc", "free_requested", "free_completed", "segment_alloc"];
const SITES: u64 = 400;

/// Steps of a training run: activations that come and go, a block that stays every 20,000 allocations, and no more than 2000 at once.
fn generate(path: &Path, events: u64) -> Result<(), Failure> {
    let mut pickle = Pickle { file: BufWriter::with_capacity(1 << 20, File::create(path)?), memo: 0 };
    pickle.put(b"\x80\x04}")?;
    pickle.memoize()?;
    pickle.put(b"(")?;
    let names = KEYS.map(|key| (key, pickle.text(key)));
    let [action, addr, size, stream, time, frames, segments, traces, compiled, metadata, pool] =
        names.map(|(_, memo)| memo.unwrap_or(0));
    // Those texts are no pairs yet: dropped again, remembered all the same.
    pickle.put(b"1(")?;
    let [alloc, requested, completed, mapped] = ACTIONS.map(|name| pickle.text(name).unwrap_or(0));
    let mut stacks = Vec::new();
    let [filename, line, name] = ["filename", "line", "name"].map(|key| pickle.text(key).unwrap_or(0));
    for site in 0..SITES {
        pickle.put(b"]")?;
        stacks.push(pickle.memoize()?);
        pickle.put(b"(")?;
        for depth in 0..20 {
            pickle.put(b"}")?;
            pickle.memoize()?;
            pickle.put(b"(")?;
            pickle.get(filename)?;
            let file = if depth == 0 { "/opt/site-packages/torch/x.py" } else { "/home/user/model.py" };
            pickle.text(file)?;
            pickle.get(line)?;
            pickle.number(if depth < 3 { 10 + site * 3 + depth } else { 5000 + depth })?;
            pickle.get(name)?;
            pickle.text("forward")?;
            pickle.put(b"u")?;
        }
        pickle.put(b"e")?;
    }
    pickle.put(b"1}")?;
    pickle.memo += 1;
    pickle.put(b"\x94(")?;
    pickle.get(traces)?;
    pickle.put(b"]")?;
    pickle.memoize()?;
    pickle.put(b"]")?;
    pickle.memoize()?;
    let (mut held, mut state, mut written, mut base, mut stay) =
        (std::collections::VecDeque::new(), 1u64, 0, 0x7f00_0000_0000, 0);
    let mut kept = Vec::new();
    let mut event = |pickle: &mut Pickle, what, address, bytes, stack: Option<u32>| -> std::io::Result<()> {
        if written % 1000 == 0 {
            pickle.put(if written == 0 { b"(" } else { b"e(" })?;
        }
        written += 1;
        pickle.put(b"}")?;
        pickle.memoize()?;
        pickle.put(b"(")?;
        pickle.get(action)?;
        pickle.get(what)?;
        pickle.pairs(&[
            (addr, address),
            (size, bytes),
            (stream, 0),
            (time, 1_750_000_000_000_000 + 3 * written),
        ])?;
        // New objects for each event, as PyTorch makes them.
        pickle.get(compiled)?;
        pickle.text("N/A")?;
        pickle.get(metadata)?;
        pickle.text("")?;
        pickle.get(pool)?;
        pickle.put(b"K\0K\0\x86")?;
        pickle.memoize()?;
        if let Some(stack) = stack {
            pickle.get(frames)?;
            pickle.get(stack)?;
        }
        pickle.put(b"u")
    };
    let mut free = Vec::new();
    let mut total = 0;
    while total < events {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let bytes = if state % 50 == 0 { 4 << 20 } else { 512 + state % 65_536 };
        let address = free.pop().unwrap_or_else(|| {
            base += 8 << 20;
            base
        });
        if address == base {
            event(&mut pickle, mapped, address, 8 << 20, None)?;
            total += 1;
        }
        let stack = stacks[(state >> 20) as usize % stacks.len()];
        event(&mut pickle, alloc, address, bytes, Some(stack))?;
        total += 1;
        stay += 1;
        if stay % 20_000 == 0 {
            kept.push((address, bytes, stack));
        } else {
            held.push_back((address, bytes));
        }
        if held.len() > 2000 - (state >> 40) as usize % 64
            && let Some((address, bytes)) = held.pop_front()
        {
            event(&mut pickle, requested, address, bytes, None)?;
            event(&mut pickle, completed, address, bytes, None)?;
            free.push(address);
            total += 2;
        }
    }
    pickle.put(b"ea")?;
    pickle.get(segments)?;
    pickle.put(b"](")?;
    let blocks = held.iter().map(|(address, bytes)| (*address, *bytes, None));
    let blocks = blocks.chain(kept.iter().map(|(address, bytes, stack)| (*address, *bytes, Some(*stack))));
    let empty = free.iter().map(|address| (*address, 0, None));
    for (address, bytes, stack) in blocks.chain(empty) {
        pickle.put(b"}(")?;
        for (key, number) in [("device", 0), ("address", address), ("total_size", 8 << 20), ("stream", 0)] {
            pickle.text(key)?;
            pickle.number(number)?;
        }
        pickle.text("blocks")?;
        pickle.put(b"](")?;
        if bytes > 0 {
            pickle.put(b"}(")?;
            pickle.text("size")?;
            pickle.number(u64::next_multiple_of(bytes, 512))?;
            pickle.text("requested_size")?;
            pickle.number(bytes)?;
            pickle.text("state")?;
            pickle.text("active_allocated")?;
            if let Some(stack) = stack {
                pickle.get(frames)?;
                pickle.get(stack)?;
            }
            pickle.put(b"u")?;
        }
        pickle.put(b"eu")?;
    }
    pickle.put(b"eu.")?;
    pickle.file.flush()?;
    Ok(())
}

/// Moves a pointer over the timeline; the 99th hundredth and the longest of 200.
fn hover(browser: &Path, page: &Path) -> Result<String, Failure> {
    const MEASURE: &str = r#"<p id="measured"></p><script>
const over = document.getElementById("chart-over"), box = over.getBoundingClientRect(), times = [];
for (let i = 0; i < 200; i++) {
  const from = performance.now();
  over.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + 80 + i * 4, clientY: box.top + 60 + i }));
  times.push(performance.now() - from);
}
times.sort((one, other) => one - other);
document.getElementById("measured").textContent = "99th of 200: " + times[197].toFixed(2) + ", longest " + times[199].toFixed(2) + ", ready after " + performance.now().toFixed(0);
</script>"#;
    let opened = page.with_extension("hover.html");
    let text = std::fs::read_to_string(page)? + MEASURE;
    std::fs::write(&opened, text)?;
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1400,1000",
        ])
        .arg(format!("--user-data-dir={}", page.with_extension("profile").display()))
        .args(["--timeout=120000", "--dump-dom"])
        .arg(format!("file://{}", opened.display()))
        .output()?;
    let dom = String::from_utf8_lossy(&output.stdout);
    let measured = dom.split_once("id=\"measured\">").and_then(|(_, rest)| rest.split_once('<'));
    Ok(measured.map_or("the page was not opened".to_owned(), |(text, _)| text.to_owned()))
}
