//! Traces and memory snapshots as one HTML page that a browser shows, from nothing but the file.
//!
//! A trace is what `cuda_mem_pool::trace` writes; a snapshot is PyTorch's, or one in its format. `docs/report.md` says what is on the
//! page and what it does not know.
//!
//! ```
//! // An empty snapshot, as Python's pickle has it.
//! let snapshot = b"\x80\x02}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces]u.";
//! let page = cuda_mem_report::of_snapshot(snapshot, None, "an empty one")?;
//! assert!(page.contains("an empty one"));
//! assert!(cuda_mem_report::of_snapshot(b"not a pickle", None, "none").is_err());
//! # Ok::<(), cuda_mem_report::Error>(())
//! ```

// Layers, the upper first: page and export; encode; space; keep, walk and calls; trace, snapshot and stacks; records; pickle, mapped and
// input; history and spill.
mod calls;
mod encode;
mod export;
mod history;
mod input;
mod keep;
mod mapped;
mod page;
mod pickle;
mod records;
mod snapshot;
mod space;
mod spill;
mod stacks;
#[cfg(test)]
mod tests;
mod trace;
mod walk;

use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use history::Reference;
use input::Content;
use space::Space;
use stacks::Stacks;

/// Why there is no page: what was to be shown, and what is wrong with it.
pub struct Error(anyhow::Error);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl std::error::Error for Error {}

/// A recording: a trace (.csv, .csv.gz), or a memory snapshot of PyTorch or of ours (.pickle, .pickle.gz).
#[derive(Debug, Clone)]
pub struct Input {
    name: String,
    source: Source,
}

#[derive(Debug, Clone)]
enum Source {
    File(PathBuf),
    Bytes(Vec<u8>),
}

impl Input {
    /// Names a file, read while the page is drawn. The page calls it by the last part of its path.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Self { name, source: Source::File(path) }
    }

    /// Takes a recording that is in memory; the page calls it `name`.
    #[must_use]
    pub fn bytes(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { name: name.into(), source: Source::Bytes(bytes) }
    }

    /// Has the page call it by another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }
}

/// What is written, and from what else.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The page's heading; without, the names of the inputs.
    pub title: Option<String>,
    /// A snapshot of before, which the page compares the first input with, call site by call site.
    pub before: Option<Input>,
    /// The call log of a replay of the first input, a trace: adds reserved memory and addresses.
    pub calls: Option<Input>,
    /// The device that is shown first; without, the one that has most.
    pub device: Option<i64>,
    /// Lines across the timeline: what other allocators reserved for the same work, in bytes.
    pub references: Vec<(String, u64)>,
    /// Where the page goes.
    pub page: Option<PathBuf>,
    /// Where the timeline goes as a trace of Perfetto (JSON).
    pub perfetto: Option<PathBuf>,
    /// Where live bytes at the peak go by call stack, as tools for flame graphs read it ("folded").
    pub folded: Option<PathBuf>,
}

/// How far a call of [`write()`] has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub stage: &'static str,
    /// Bytes read, or events, of this stage.
    pub done: u64,
    /// All of them; 0 where that is not known.
    pub total: u64,
}

impl Progress {
    /// The stage of the last call.
    pub const DONE: &'static str = "done";
}

/// What one device, or pinned host memory, of one input came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// The input, and the device where a snapshot has several.
    pub name: String,
    /// The most bytes that the program held at once.
    pub peak_live: u64,
    /// With the blocks that it had freed and that a stream still used.
    pub peak_active: u64,
    /// The most bytes that were taken from the device, where that is recorded.
    pub peak_reserved: Option<u64>,
    /// Allocations within the recording.
    pub allocations: u64,
    /// Allocations that failed.
    pub out_of_memory: u64,
}

/// What [`write()`] wrote.
#[derive(Debug, Clone, PartialEq)]
pub struct Written {
    /// Figures of all devices of all inputs, in their order.
    pub figures: Vec<Figures>,
    /// Bytes of the page; 0 without one.
    pub page_bytes: u64,
}

/// Draws recordings as one page, and as what other viewers read, each where [`Options`] names a file.
///
/// Several inputs (runs of one program with several allocators, say) share the page, one beside the other. `progress` is called
/// a few times a second. Memory beside the page itself stays bounded: what a large snapshot needs goes to an unnamed
/// file in the folder for temporary files.
///
/// # Errors
///
/// Files that cannot be read or written, or are not what they should be: which, what is wrong, and at which byte.
pub fn write(
    inputs: &[Input],
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Written, Error> {
    write_all(inputs, options, progress).map_err(Error)
}

fn write_all(inputs: &[Input], options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Written> {
    ensure!(!inputs.is_empty(), "there is nothing to draw");
    let mut stacks = Stacks::default();
    let mut spaces = Vec::new();
    for input in inputs {
        let found = read(input, inputs.len(), options.calls.as_ref(), &mut stacks, progress)?;
        let several = found.len() > 1;
        spaces.extend(found.into_iter().map(|mut space| {
            if inputs.len() > 1 {
                space.name =
                    if several { format!("{}: {}", input.name, space.name) } else { input.name.clone() };
            }
            space
        }));
    }
    for space in &mut spaces {
        let lines = options.references.iter();
        let lines =
            lines.map(|(name, bytes)| Reference { id: "reference", name: name.clone(), bytes: *bytes });
        space.references.extend(lines);
    }
    let before = match &options.before {
        Some(input) => Some((input.name.as_str(), read(input, 1, None, &mut stacks, progress)?)),
        None => None,
    };
    let shown = shown(&spaces, options.device)?;
    let mut page_bytes = 0;
    if let Some(path) = &options.page {
        progress(Progress { stage: "writing", done: 0, total: 0 });
        let names: Vec<_> = inputs.iter().map(|input| input.name.as_str()).collect();
        let title = options.title.clone().unwrap_or_else(|| names.join(", "));
        let before = before.as_ref().map(|(name, spaces)| (*name, spaces.as_slice()));
        let page = page::draw(&spaces, before, &stacks, &title, shown);
        page_bytes = page.len() as u64;
        std::fs::write(path, &page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    type Export = fn(&[Space], &Stacks, &mut dyn Write) -> Result<()>;
    let exports: [(&Option<PathBuf>, Export); 2] =
        [(&options.perfetto, export::perfetto), (&options.folded, export::folded)];
    for (path, export) in exports {
        let Some(path) = path else { continue };
        let why = || format!("cannot write {}", path.display());
        let mut file = BufWriter::new(File::create(path).with_context(why)?);
        export(&spaces, &stacks, &mut file).and_then(|()| Ok(file.flush()?)).with_context(why)?;
    }
    progress(Progress { stage: Progress::DONE, done: 0, total: 0 });
    Ok(Written { figures: spaces.iter().map(figures).collect(), page_bytes })
}

fn figures(space: &Space) -> Figures {
    let curves = &space.curves;
    Figures {
        name: space.name.clone(),
        peak_live: curves.peak_live.0,
        peak_active: curves.peak_active.0,
        peak_reserved: (!curves.reserved.is_empty()).then_some(curves.peak_reserved.0),
        allocations: space.allocations,
        out_of_memory: space.failed,
    }
}

/// The space that is shown first.
fn shown(spaces: &[Space], device: Option<i64>) -> Result<usize> {
    if let Some(device) = device {
        let place = spaces.iter().position(|space| space.device == Some(device));
        let known: Vec<_> = spaces.iter().filter_map(|space| space.device).collect();
        ensure!(
            !known.is_empty(),
            "--device chooses among the devices of a snapshot; this recording has none"
        );
        // A snapshot of nothing has nothing of any device.
        let nothing =
            spaces.iter().all(|space| space.curves.events == 0 && space.curves.peak_reserved.0 == 0);
        return place
            .or(nothing.then_some(0))
            .with_context(|| format!("the recording has nothing of device {device}, only of {known:?}"));
    }
    let on_devices = spaces.iter().enumerate().filter(|(_, space)| space.curves.peak_active.0 > 0);
    let most =
        on_devices.max_by_key(|(place, space)| (space.curves.peak_active.0, std::cmp::Reverse(*place)));
    Ok(most.map_or(0, |(place, _)| place))
}

/// The page of a snapshot that is called `name`, which shows one device first, or else the one that has most.
///
/// # Errors
///
/// A snapshot that is none, or has nothing of the device.
pub fn of_snapshot(pickle: &[u8], device: Option<i64>, name: &str) -> Result<String, Error> {
    let mut stacks = Stacks::default();
    let drawn = read_snapshot(Box::new(pickle), 1, &mut stacks, &mut |_, _, _| {}).and_then(|spaces| {
        let shown = shown(&spaces, device)?;
        Ok(page::draw(&spaces, None, &stacks, name, shown))
    });
    drawn.map_err(Error)
}

fn read_snapshot(
    reader: Box<dyn Read + '_>,
    inputs: usize,
    stacks: &mut Stacks,
    progress: &mut dyn FnMut(&'static str, u64, u64),
) -> Result<Vec<Space>> {
    let mut snapshot = snapshot::read(reader, &mut |done| progress("reading", done, 0))?;
    if snapshot.parts.is_empty() {
        // Of an idle program.
        snapshot.parts.push(snapshot::Part::of(Some(0)));
    }
    let busy = snapshot.parts.iter().filter(|part| !part.events.is_empty()).count();
    let parts = busy.max(1) as u64 * inputs as u64;
    let spaces = snapshot.parts.iter().map(|part| Space::of_part(&snapshot, part, parts, stacks, progress));
    spaces.collect()
}

/// What an input has, one space a device.
fn read(
    input: &Input,
    inputs: usize,
    calls: Option<&Input>,
    stacks: &mut Stacks,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Space>> {
    let unfit = || format!("cannot show {}", input.name);
    match input::open(input)? {
        Content::Table(text) => {
            let trace = trace::read(&text).with_context(unfit)?;
            let history = match calls {
                None => trace.history,
                Some(calls) => {
                    let Content::Table(text) = input::open(calls)? else {
                        bail!("{} is no call log", calls.name)
                    };
                    calls::read(&text, trace).with_context(|| format!("cannot show {}", calls.name))?
                }
            };
            Ok(vec![Space::of_history(history, "Trace").with_context(unfit)?])
        }
        Content::Pickle { reader, bytes } => {
            ensure!(calls.is_none(), "--calls goes with a trace; {} is a snapshot", input.name);
            let mut last = Instant::now();
            let mut told = |stage, done, total| {
                let total = if stage == "reading" { bytes } else { total };
                if last.elapsed() >= Duration::from_millis(200) {
                    last = Instant::now();
                    progress(Progress { stage, done, total });
                }
            };
            read_snapshot(reader, inputs, stacks, &mut told).with_context(unfit)
        }
    }
}
