//! `cargo xtask`: everything that is done to this workspace and is more than one cargo command.

#![allow(clippy::print_stdout, reason = "a command-line tool talks on its standard output")]

#[cfg(feature = "bindgen")]
mod bindgen;

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
    /// Write cuda-mem-sys's bindings from NVIDIA's headers.
    Bindgen {
        /// Write nothing; fail if the committed bindings are not what the headers give.
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The whole chain of causes, on one line.
            println!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    let root = root()?;
    match arguments.task {
        Task::Bindgen { check } => run_bindgen(&root, check),
    }
}

/// The workspace's folder, from the manifest that cargo runs this tool with.
fn root() -> Result<PathBuf> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").context("start this tool with `cargo xtask`")?;
    let manifest = PathBuf::from(manifest);
    manifest.parent().map(Path::to_path_buf).context("the tool's manifest lies in no workspace")
}

#[cfg(feature = "bindgen")]
fn run_bindgen(root: &Path, check: bool) -> Result<()> {
    bindgen::run(root, check)
}

/// bindgen is heavy to build and rarely needed: the tool starts itself again with it built in.
#[cfg(not(feature = "bindgen"))]
fn run_bindgen(root: &Path, check: bool) -> Result<()> {
    let mut command = std::process::Command::new("cargo");
    command.current_dir(root).args([
        "run",
        "--quiet",
        "--package",
        "xtask",
        "--features",
        "bindgen",
        "--",
        "bindgen",
    ]);
    if check {
        command.arg("--check");
    }
    let status = command.status().context("cannot start cargo")?;
    anyhow::ensure!(status.success(), "bindgen failed");
    Ok(())
}
