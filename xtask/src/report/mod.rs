//! `cargo xtask report`: a recording as one page that a browser shows, from nothing but the file.

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

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use history::History;
use input::Input;

/// Draw a trace or a memory snapshot as one HTML page.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A trace (.csv, .csv.gz), or a memory snapshot of PyTorch or of ours (.pickle).
    #[arg(value_name = "TRACE|SNAPSHOT")]
    input: PathBuf,
    /// Where the page goes.
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// The call log of a replay of the trace: adds reserved memory and addresses.
    #[arg(long, value_name = "FILE")]
    calls: Option<PathBuf>,
    /// The device of the snapshot [default: the first that it has anything of].
    #[arg(long, value_name = "N")]
    device: Option<i64>,
}

/// Writes the page.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let page = draw(arguments)?;
    std::fs::write(&arguments.out, &page)
        .with_context(|| format!("cannot write {}", arguments.out.display()))?;
    println!("{}: {} bytes", arguments.out.display(), page.len());
    Ok(())
}

fn draw(arguments: &Arguments) -> Result<String> {
    let path = &arguments.input;
    let (history, kind) = read(arguments)?;
    let name = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    page::draw(&history, &name(path), &kind)
}

/// What happened, and what kind of recording tells it.
fn read(arguments: &Arguments) -> Result<(History, String)> {
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
            let snapshot = snapshot::read(&bytes, arguments.device).with_context(unfit)?;
            let kind = format!("A memory snapshot of device {}", snapshot.device);
            Ok((rebuild::history(snapshot).with_context(unfit)?, kind))
        }
    }
}
