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
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use history::History;
use input::Input;

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

/// What is drawn.
#[derive(Debug, Clone)]
pub struct Recording {
    /// A trace (.csv, .csv.gz), or a memory snapshot of PyTorch or of ours (.pickle).
    pub input: PathBuf,
    /// The call log of a replay of the trace: adds reserved memory and addresses.
    pub calls: Option<PathBuf>,
    /// The device of the snapshot; without, the first that it has anything of.
    pub device: Option<i64>,
}

/// The page of a recording.
///
/// # Errors
///
/// Files that cannot be read, or are not what they should be.
pub fn draw(recording: &Recording) -> Result<String, Error> {
    let name = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let drawn =
        read(recording).and_then(|(history, kind)| page::draw(&history, &name(&recording.input), &kind));
    drawn.map_err(Error)
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
fn read(arguments: &Recording) -> Result<(History, String)> {
    let unfit = || format!("cannot show {}", arguments.input.display());
    match input::read(&arguments.input)? {
        Input::Table(text) => {
            ensure!(
                arguments.device.is_none(),
                "--device chooses among those of a snapshot; this is a trace"
            );
            let trace = trace::read(&text).with_context(unfit)?;
            let Some(calls) = &arguments.calls else {
                return Ok((trace.history, "An allocation trace".to_owned()));
            };
            let Input::Table(text) = input::read(calls)? else { bail!("{} is no call log", calls.display()) };
            Ok((
                calls::read(&text, trace).with_context(|| format!("cannot show {}", calls.display()))?,
                "An allocation trace that was replayed".to_owned(),
            ))
        }
        Input::Pickle(bytes) => {
            ensure!(arguments.calls.is_none(), "--calls goes with a trace; this is a snapshot");
            read_snapshot(&bytes, arguments.device).with_context(unfit)
        }
    }
}
