//! `cargo xtask wheel`: builds the library and packs the Python package around it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace::Workspace;

/// How the wheel is built.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Where to [default: target/wheel].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// A folder with PyTorch's and CUDA's headers and libraries, torch/ and nvidia/cu13/, instead of fetching them.
    #[arg(long, value_name = "DIR", conflicts_with = "no_shim")]
    headers: Option<PathBuf>,
    /// Leave building the shim to the user's machine.
    #[arg(long)]
    no_shim: bool,
}

/// Builds and packs.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<()> {
    let workspace = Workspace::read(root)?;
    let mut build = Command::new("cargo");
    build.current_dir(root).args(["build", "--package", "cuda-mem-torch", "--lib", "--profile", "bundle"]);
    succeed(build, "the library could not be built")?;
    let library = workspace.target_directory.join("bundle/libcuda_mem_torch.so");
    let out = arguments.out.clone().unwrap_or_else(|| workspace.target_directory.join("wheel"));
    let mut pack = Command::new("python3");
    pack.arg(root.join("cuda-mem-torch/python/build_wheel.py")).arg("--library").arg(library);
    pack.arg("--out").arg(out).env("PYTHONDONTWRITEBYTECODE", "1");
    if let Some(headers) = &arguments.headers {
        pack.arg("--headers").arg(headers);
    }
    if arguments.no_shim {
        pack.arg("--no-shim");
    }
    succeed(pack, "the wheel could not be packed")
}

fn succeed(mut command: Command, failure: &str) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    ensure!(status.success(), "{failure}");
    Ok(())
}
