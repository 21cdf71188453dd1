//! `cargo xtask report`: a recording as one page that a browser shows.

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use cuda_mem_report::{Input, Options, Progress};

use crate::same_file;

/// Draw traces or memory snapshots as one HTML page.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Traces (.csv, .csv.gz), or memory snapshots of PyTorch or of ours (.pickle, .pickle.gz).
    #[arg(value_name = "TRACE|SNAPSHOT", required = true)]
    inputs: Vec<PathBuf>,
    /// Where the page goes.
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// A snapshot of before: what each call site holds now is compared with it.
    #[arg(long, value_name = "SNAPSHOT")]
    before: Option<PathBuf>,
    /// The call log of a replay of the trace: adds reserved memory and addresses.
    #[arg(long, value_name = "FILE")]
    calls: Option<PathBuf>,
    /// The device that is shown first [default: the one that has most].
    #[arg(long, value_name = "N")]
    device: Option<i64>,
    /// A line across the timeline: what another allocator reserved for the same work. May be given several times.
    #[arg(long, value_name = "NAME=BYTES", value_parser = reference)]
    reference: Vec<(String, u64)>,
    /// Write the timeline for Perfetto (ui.perfetto.dev), too.
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
    /// Write live bytes at the peak by call stack for tools that draw flame graphs, too.
    #[arg(long, value_name = "FILE")]
    folded: Option<PathBuf>,
}

/// Writes what was asked for.
pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let Arguments { inputs, out, before, calls, device, reference, perfetto, folded } = arguments;
    let outputs = [("--out", &out), ("--perfetto", &perfetto), ("--folded", &folded)];
    ensure!(
        outputs.iter().any(|(_, path)| path.is_some()),
        "say where the page goes: --out FILE, or --perfetto FILE, or --folded FILE"
    );
    for read in inputs.iter().chain(&before).chain(&calls) {
        for (name, out) in outputs.iter().filter_map(|(name, out)| Some((name, out.as_ref()?))) {
            same_file::refuse(read, out, name)?;
        }
    }
    let inputs: Vec<_> = inputs.into_iter().map(Input::file).collect();
    let options = Options {
        before: before.map(Input::file),
        calls: calls.map(Input::file),
        device,
        references: reference,
        page: out,
        perfetto,
        folded,
        ..Options::default()
    };
    let written = cuda_mem_report::write(&inputs, &options, &mut shown())?;
    if let Some(page) = &options.page {
        println!("{}: {} bytes", page.display(), written.page_bytes);
    }
    Ok(())
}

fn reference(text: &str) -> Result<(String, u64)> {
    let (name, bytes) = text.rsplit_once('=').context("a name, =, and a number of bytes")?;
    Ok((name.to_owned(), bytes.parse().with_context(|| format!("{bytes:?} is no number of bytes"))?))
}

/// Tells a terminal how far it is; says nothing elsewhere.
fn shown() -> impl FnMut(Progress) {
    let terminal = std::io::stderr().is_terminal();
    move |progress| {
        if !terminal {
            return;
        }
        let Progress { stage, done, total } = progress;
        match (done * 100).checked_div(total) {
            Some(percent) => eprint!("\r\x1b[K{stage}: {percent} %"),
            None => eprint!("\r\x1b[K{stage}"),
        }
        if stage == Progress::DONE {
            eprint!("\r\x1b[K");
        }
    }
}
