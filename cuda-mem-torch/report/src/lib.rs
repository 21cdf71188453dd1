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

mod calls;
mod encode;
mod history;
mod input;
mod mapped;
mod page;
mod pickle;
mod rebuild;
mod snapshot;
#[cfg(test)]
mod tests;
mod trace;

use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use history::History;
use input::Content;

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

/// How far a call of [`write`] has come.
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

/// What [`write`] wrote.
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
    let [input] = inputs else { bail!("one input is drawn at a time") };
    progress(Progress { stage: "reading", done: 0, total: 0 });
    let (history, kind) = read(input, options)?;
    let series = history.series()?;
    let figures = history.figures(&series);
    let page = page::draw(&history, options.title.as_deref().unwrap_or(&input.name), &kind)?;
    if let Some(path) = &options.page {
        std::fs::write(path, &page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let figures = vec![Figures {
        name: input.name.clone(),
        peak_live: figures.peak_live,
        peak_active: figures.peak_active,
        peak_reserved: figures.peak_reserved,
        allocations: figures.allocations as u64,
        out_of_memory: figures.out_of_memory as u64,
    }];
    progress(Progress { stage: Progress::DONE, done: 0, total: 0 });
    Ok(Written { figures, page_bytes: page.len() as u64 })
}

/// The page of a snapshot that is called `name`, of one device or of the first that it has anything of.
///
/// # Errors
///
/// A snapshot that is none, or has nothing of the device.
pub fn of_snapshot(pickle: &[u8], device: Option<i64>, name: &str) -> Result<String, Error> {
    let drawn = read_snapshot(pickle, device).and_then(|(history, kind)| page::draw(&history, name, &kind));
    drawn.map_err(Error)
}

fn read_snapshot(pickle: &[u8], device: Option<i64>) -> Result<(History, String)> {
    let snapshot = snapshot::read(pickle, device)?;
    let kind = format!("A memory snapshot of device {}", snapshot.device);
    Ok((rebuild::history(snapshot)?, kind))
}

/// What happened, and what kind of recording tells it.
fn read(input: &Input, options: &Options) -> Result<(History, String)> {
    let unfit = || format!("cannot show {}", input.name);
    match input::read(input)? {
        Content::Table(text) => {
            ensure!(options.device.is_none(), "--device chooses among those of a snapshot; this is a trace");
            let trace = trace::read(&text).with_context(unfit)?;
            let Some(calls) = &options.calls else {
                return Ok((trace.history, "An allocation trace".to_owned()));
            };
            let Content::Table(text) = input::read(calls)? else { bail!("{} is no call log", calls.name) };
            Ok((
                calls::read(&text, trace).with_context(|| format!("cannot show {}", calls.name))?,
                "An allocation trace that was replayed".to_owned(),
            ))
        }
        Content::Pickle(bytes) => {
            ensure!(options.calls.is_none(), "--calls goes with a trace; this is a snapshot");
            read_snapshot(&bytes, options.device).with_context(unfit)
        }
    }
}
