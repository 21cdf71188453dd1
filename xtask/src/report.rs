//! `cargo xtask report`: a recording as one page that a browser shows.

use std::path::PathBuf;

use anyhow::{Context, Result};
use cuda_mem_report::Recording;

use crate::same_file;

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
pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let Arguments { input, out, calls, device } = arguments;
    for read in calls.iter().chain([&input]) {
        same_file::refuse(read, &out, "--out")?;
    }
    let page = cuda_mem_report::draw(&Recording { input, calls, device })?;
    std::fs::write(&out, &page).with_context(|| format!("cannot write {}", out.display()))?;
    println!("{}: {} bytes", out.display(), page.len());
    Ok(())
}
