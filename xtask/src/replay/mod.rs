//! `cargo xtask replay`: has an allocator do what a recorded program did, and tells what that took.

mod caching;
mod calls;
mod candidate;
mod capacity;
mod check;
mod costs;
mod driver;
mod files;
mod machine;
mod model;
mod plan;
mod play;
mod progress;
mod report;
mod setting;
#[cfg(test)]
mod tests;
mod torch;
mod uses;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use calls::CallLog;
use capacity::Capacity;
use plan::Plan;
use report::Row;
use setting::{Allocator, Backend, Setting};

use crate::same_file;

/// Replay allocation traces: what an allocator reserves for them, and what that takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Traces, as CSV or gzipped CSV.
    #[arg(required_unless_present = "check_calls")]
    traces: Vec<PathBuf>,
    /// Which allocator.
    #[arg(long, value_enum, default_value = "caching")]
    allocator: Allocator,
    /// Operations that the device runs behind the host [default: 0].
    #[arg(long, value_name = "N", value_parser = operations, allow_negative_numbers = true)]
    lag: Option<u64>,
    /// The most bytes there are, a multiple of the trace's peak active bytes such as 1.05x, or `auto`: find the smallest
    /// number of bytes without an out-of-memory event.
    #[arg(long, value_name = "BYTES|FACTORx|auto")]
    capacity: Option<Capacity>,
    /// 2: blocks are freed on another thread than they are allocated on.
    #[arg(long, value_name = "1|2", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2))]
    threads: u32,
    /// What it runs on; `auto` takes a GPU if there is one.
    #[arg(long, value_enum, default_value = "auto")]
    backend: Backend,
    /// Write what was done to this file, gzipped, and check it; for one trace.
    #[arg(long, value_name = "FILE")]
    calls: Option<PathBuf>,
    /// Write JSON, one line a trace.
    #[arg(long)]
    json: bool,
    /// Replay nothing: check such a file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["traces", "calls", "allocator", "capacity", "threads"])]
    check_calls: Option<PathBuf>,
    /// The trace that the checked file is a replay of.
    #[arg(long, value_name = "TRACE")]
    trace: Option<PathBuf>,
}

/// A lag as the command line has it.
fn operations(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is no whole number of operations from 0 on"))
}

/// Replays; whether all went well. No figure decides that, but a log that the checker rejects does.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    if let Some(log) = &arguments.check_calls {
        let read = |path: &Path| files::read_trace(path).with_context(|| path.display().to_string());
        let trace = arguments.trace.as_deref().map(read).transpose()?;
        let sums = check::check(files::read_log(log)?, trace.as_ref(), arguments.lag)
            .with_context(|| format!("{} is rejected", log.display()))?;
        print!("{}", report::sums(&sums));
        return Ok(true);
    }
    ensure!(arguments.trace.is_none(), "--trace goes with --check-calls");
    ensure!(
        arguments.calls.is_none() || arguments.traces.len() == 1,
        "--calls takes one trace, not {}",
        arguments.traces.len()
    );
    ensure!(
        arguments.calls.is_none() || arguments.allocator != Allocator::DriverPool,
        "--calls needs an allocator that maps its own memory; driver-pool has the driver do it"
    );
    let backend = setting::choose(arguments.allocator, arguments.backend)?;
    let setting = Setting {
        allocator: arguments.allocator,
        backend,
        lag: arguments.lag.unwrap_or(0),
        threads: arguments.threads,
    };
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for path in &arguments.traces {
        match replay(path, &setting, arguments).with_context(|| path.display().to_string()) {
            Ok(row) => {
                if arguments.json {
                    println!("{}", row.json());
                }
                rows.push(row);
            }
            // One bad file is no reason to leave the others.
            Err(error) => failures.push(error),
        }
    }
    if !arguments.json && !rows.is_empty() {
        print!("{}", report::tables(&rows, &setting));
    }
    let Some(last) = failures.pop() else { return Ok(true) };
    for failure in failures {
        eprintln!("error: {failure:#}");
    }
    Err(last)
}

/// Replays a file.
fn replay(path: &Path, setting: &Setting, arguments: &Arguments) -> Result<Row> {
    if let Some(calls) = &arguments.calls {
        same_file::refuse(path, calls, "--calls")?;
    }
    let trace = files::read_trace(path)?;
    let plan = Plan::new(&files::name(path), &trace)?;
    row(&plan, &trace, setting, arguments)
}

fn row(
    plan: &Plan,
    trace: &cuda_mem_pool::trace::Trace,
    setting: &Setting,
    arguments: &Arguments,
) -> Result<Row> {
    let bytes = match arguments.capacity {
        Some(capacity) => capacity.bytes(plan),
        None => None,
    };
    let log = match &arguments.calls {
        Some(file) => CallLog::new(files::create_log(file)?),
        None => CallLog::nowhere(),
    };
    let outcome = setting.replay(plan, bytes, log)?;
    if let Some(file) = &arguments.calls {
        let checked = check::check(files::read_log(file)?, Some(trace), setting.checked_lag());
        let sums = checked.with_context(|| format!("the checker rejects {}", file.display()))?;
        report::compare(&sums, &outcome)?;
    }
    let smallest = match arguments.capacity {
        Some(Capacity::Auto) => {
            ensure!(
                outcome.oom == 0,
                "{} of its allocations are refused without a limit too, so that no capacity is enough",
                outcome.oom
            );
            Some(capacity::smallest(plan, trace, setting, outcome.peaks.reserved)?)
        }
        _ => None,
    };
    Ok(Row::new(plan, setting, outcome, smallest))
}
