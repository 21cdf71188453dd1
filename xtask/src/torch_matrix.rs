//! `cargo xtask torch-matrix`: the wheel in fresh environments with each PyTorch, on the simulated driver.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::steps::cargo;

/// The oldest and the newest PyTorch that is supported.
pub(crate) const EDGES: [&str; 2] = ["2.11.0", "2.15.0"];

/// What is run.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Versions of PyTorch [default: the last release of each that is supported].
    versions: Vec<String>,
    /// The package [default: the one in target/wheel, which `cargo xtask wheel` builds].
    #[arg(long, value_name = "FILE")]
    wheel: Option<PathBuf>,
    /// Keep the environments.
    #[arg(long)]
    keep: bool,
}

/// Makes the environments one after the other and runs the programs of `ci/torch/simulated` in them; whether all passed.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<bool> {
    let built = cargo("build --quiet --package cuda-mem-sim-library").current_dir(root).status();
    ensure!(built.context("cannot start cargo")?.success(), "the simulated driver could not be built");
    let mut matrix = script(root);
    matrix.args(&arguments.versions);
    if let Some(wheel) = &arguments.wheel {
        matrix.arg("--wheel").arg(wheel);
    }
    if arguments.keep {
        matrix.arg("--keep");
    }
    Ok(matrix.status().context("cannot start python3")?.success())
}

/// The script, without words.
pub(crate) fn script(root: &Path) -> Command {
    let mut matrix = Command::new("python3");
    matrix.arg(root.join("ci/torch/simulated/matrix.py"));
    matrix
}
