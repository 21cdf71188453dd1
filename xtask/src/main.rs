//! `cargo xtask`: everything that is done to this workspace and is more than one cargo command.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks on its standard output, and complains on the other"
)]

#[cfg(test)]
mod api_coverage;
mod bench;
#[cfg(feature = "bindgen")]
mod bindgen;
mod bundle;
mod chromium;
mod ci;
#[cfg(test)]
mod dependencies;
mod docs_check;
mod gpu_test;
#[cfg(feature = "header")]
mod header;
mod house;
mod nightly;
mod packed;
mod planted_faults;
mod process;
#[cfg(feature = "replay")]
mod replay;
#[cfg(feature = "report")]
mod report;
#[cfg(any(feature = "replay", feature = "report"))]
mod same_file;
#[cfg(test)]
mod soundness;
mod steps;
mod table;
mod vendor;
mod wheel;
mod workspace;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// The workspace's own tool.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

/// What it can do.
#[derive(Debug, Subcommand)]
enum Task {
    Bench(bench::Arguments),
    /// Write cuda-mem-sys's bindings from NVIDIA's headers.
    Bindgen {
        /// Write nothing; fail if the committed bindings are not what the headers give.
        #[arg(long)]
        check: bool,
    },
    /// Write a folder that runs gpu-test on a GPU host without Rust or sources.
    Bundle {
        /// Where to; an older bundle there is replaced [default: target/gpu-bundle].
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Carry RMM, which is fetched, for `bench alloc`.
        #[arg(long)]
        with_rmm: bool,
    },
    /// Run every check that a change must pass.
    Ci,
    /// Check links, sizes and style of the documents.
    DocsCheck,
    GpuTest(gpu_test::Arguments),
    /// Write cuda-mem-torch's header for C from its functions.
    Header {
        /// Write nothing; fail if the committed header is not what the functions give.
        #[arg(long)]
        check: bool,
    },
    /// Check how large crates and files are, and that their modules form layers.
    House {
        /// Make today's figures the limits.
        #[arg(long)]
        write: bool,
    },
    /// Run what takes long: property tests, sanitizers, models, Miri.
    Nightly {
        /// A few minutes of it.
        #[arg(long)]
        quick: bool,
    },
    /// Plant faults in a copy of the workspace, each of which a test has to find.
    PlantedFaults,
    #[cfg(feature = "replay")]
    Replay(replay::Arguments),
    /// Replay allocation traces: what an allocator reserves for them, and what that takes.
    #[cfg(not(feature = "replay"))]
    #[command(disable_help_flag = true, after_help = "Its options: cargo xtask replay --help")]
    Replay {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        words: Vec<std::ffi::OsString>,
    },
    #[cfg(feature = "report")]
    Report(report::Arguments),
    /// Draw a trace or a memory snapshot as one HTML page.
    #[cfg(not(feature = "report"))]
    #[command(disable_help_flag = true, after_help = "Its options: cargo xtask report --help")]
    Report {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        words: Vec<std::ffi::OsString>,
    },
    /// Run the wheel with each PyTorch, in fresh environments on the simulated driver.
    #[command(disable_help_flag = true, after_help = "Its options: cargo xtask torch-matrix --help")]
    TorchMatrix {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        words: Vec<std::ffi::OsString>,
    },
    /// Copy cuda-mem-sys into an empty folder and prove that the copy builds alone.
    Vendor {
        /// Where to; must be empty or not there.
        folder: PathBuf,
    },
    /// Build the Python package with the library and the C++ shim for PyTorch.
    Wheel(wheel::Arguments),
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        // What failed was told already.
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // The whole chain of causes, on one line; what a program reads from standard output stays whole.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the task found all well.
fn run(arguments: Arguments) -> Result<bool> {
    let done = |()| true;
    match arguments.task {
        Task::Bench(arguments) => match bundle_folder() {
            Some(folder) => bench::run(gpu_test::Home::Bundle(&folder), &arguments),
            None => bench::run(gpu_test::Home::Workspace(&root()?), &arguments),
        },
        Task::Bindgen { check } => run_bindgen(&root()?, check),
        Task::Bundle { out, with_rmm } => {
            let root = root()?;
            bundle::run(&root, &out.unwrap_or_else(|| root.join("target/gpu-bundle")), with_rmm).map(done)
        }
        Task::Header { check } => run_header(&root()?, check),
        Task::Ci => ci::run(&root()?),
        Task::DocsCheck => docs_check::run(&root()?),
        Task::House { write } => house::run(&root()?, write),
        Task::Nightly { quick } => nightly::run(&root()?, quick),
        Task::PlantedFaults => planted_faults::run(&root()?),
        Task::GpuTest(arguments) => match bundle_folder() {
            Some(folder) => gpu_test::run(gpu_test::Home::Bundle(&folder), &arguments),
            None => gpu_test::run(gpu_test::Home::Workspace(&root()?), &arguments),
        },
        #[cfg(feature = "replay")]
        Task::Replay(arguments) => replay::run(&arguments),
        #[cfg(not(feature = "replay"))]
        Task::Replay { words } => with_feature(None, "replay", "release", words),
        #[cfg(feature = "report")]
        Task::Report(arguments) => report::run(arguments).map(done),
        #[cfg(not(feature = "report"))]
        Task::Report { words } => with_feature(None, "report", "dev", words),
        Task::TorchMatrix { words } => Ok(wheel::matrix(&root()?).args(words).status()?.success()),
        Task::Vendor { folder } => vendor::run(&root()?, &folder).map(done),
        Task::Wheel(arguments) => wheel::run(&root()?, &arguments).map(done),
    }
}

/// The workspace's folder, from the manifest that cargo runs this tool with.
fn root() -> Result<PathBuf> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").context("start this tool with `cargo xtask`")?;
    let manifest = PathBuf::from(manifest);
    manifest.parent().map(Path::to_path_buf).context("the tool's manifest lies in no workspace")
}

/// The bundle that this program lies in, if it is one.
fn bundle_folder() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?;
    folder.join(gpu_test::MANIFEST).is_file().then(|| folder.to_path_buf())
}

#[cfg(feature = "bindgen")]
fn run_bindgen(root: &Path, check: bool) -> Result<bool> {
    bindgen::run(root, check).map(|()| true)
}

/// bindgen is heavy to build and rarely needed.
#[cfg(not(feature = "bindgen"))]
fn run_bindgen(root: &Path, check: bool) -> Result<bool> {
    with_feature(Some(root), "bindgen", "dev", check.then(|| "--check".into()).into_iter().collect())
}

#[cfg(feature = "header")]
fn run_header(root: &Path, check: bool) -> Result<bool> {
    header::run(root, check).map(|()| true)
}

/// cbindgen is needed here alone.
#[cfg(not(feature = "header"))]
fn run_header(root: &Path, check: bool) -> Result<bool> {
    with_feature(Some(root), "header", "dev", check.then(|| "--check".into()).into_iter().collect())
}

/// Starts the tool again with what a task needs built in: the feature of the same name. A replay measures, and is optimised. Whether it
/// found all well: it says itself what was wrong.
#[cfg(not(all(feature = "bindgen", feature = "header", feature = "replay", feature = "report")))]
fn with_feature(
    folder: Option<&Path>,
    task: &str,
    profile: &str,
    words: Vec<std::ffi::OsString>,
) -> Result<bool> {
    let mut command = std::process::Command::new("cargo");
    if let Some(folder) = folder {
        command.current_dir(folder);
    }
    command.args(["run", "--quiet", "--package", "xtask", "--profile", profile]);
    command.args(["--features", task, "--", task]).args(words);
    let status = command.status().context("cannot start cargo")?;
    Ok(status.success())
}
