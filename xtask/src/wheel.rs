//! `cargo xtask wheel`: builds the library and packs the Python package around it, for every system that PyTorch runs on.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::steps::cargo;
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
    /// A version of PyTorch to build the shim for, instead of all.
    #[arg(long, value_name = "VERSION", conflicts_with_all = ["headers", "no_shim"])]
    torch: Vec<String>,
    /// For systems as new as this one, with cargo alone.
    #[arg(long)]
    plain: bool,
    /// Leave building the shim to the user's machine.
    #[arg(long)]
    no_shim: bool,
}

/// The oldest and the newest PyTorch that is supported.
pub(crate) const EDGES: [&str; 2] = ["2.11.0", "2.15.0"];

/// The program that runs the wheel with each PyTorch.
pub(crate) fn matrix(root: &Path) -> Command {
    let mut matrix = Command::new("python3");
    matrix.arg(root.join("ci/torch/simulated/matrix.py"));
    matrix
}

/// What the shim is compiled and linked with.
const NEEDED: [&str; 4] = ["torch/include", "torch/lib", "nvidia/cu13/include", "nvidia/cu13/lib"];

/// Builds and packs.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<()> {
    // Before the minute that the library takes.
    if let Some(headers) = &arguments.headers {
        expect_headers(headers)?;
    }
    let workspace = Workspace::read(root)?;
    let library = build_library(root, &workspace.target_directory, arguments.plain)?;
    let out = arguments.out.clone().unwrap_or_else(|| workspace.target_directory.join("wheel"));
    let mut pack = Command::new("python3");
    pack.arg(root.join("cuda-mem-torch/python/build_wheel.py")).arg("--library").arg(library);
    pack.arg("--out").arg(out).env("PYTHONDONTWRITEBYTECODE", "1");
    if let Some(headers) = &arguments.headers {
        pack.arg("--headers").arg(headers);
    }
    for version in &arguments.torch {
        pack.arg("--torch").arg(version);
    }
    if arguments.no_shim {
        pack.arg("--no-shim");
    }
    if !arguments.plain {
        pack.arg("--old-system");
    }
    succeed(pack, "the wheel could not be packed")
}

/// Builds the library, by cargo-zigbuild for PyTorch's oldest glibc unless it is `plain`; where it lies. The program is a package of Python's.
fn build_library(root: &Path, target: &Path, plain: bool) -> Result<PathBuf> {
    let tools = target.join("tools/zigbuild");
    let program = tools.join("bin/cargo-zigbuild");
    if !plain && !program.is_file() {
        let mut fetch = Command::new("python3");
        fetch.args(["-m", "pip", "install", "--quiet", "--target"]).arg(&tools).arg("cargo-zigbuild");
        succeed(
            fetch,
            "cargo-zigbuild could not be fetched: --plain does without it, for systems as new as this one",
        )?;
    }
    let mut build = if plain { cargo("build") } else { Command::new(program) };
    if !plain {
        build.args(["zigbuild", "--target", "x86_64-unknown-linux-gnu.2.28"]).env("PYTHONPATH", &tools);
    }
    build.current_dir(root).args(["--package", "cuda-mem-torch", "--lib", "--profile", "bundle"]);
    succeed(build, "the library could not be built")?;
    let folder = if plain { "bundle" } else { "x86_64-unknown-linux-gnu/bundle" };
    Ok(target.join(folder).join("libcuda_mem_torch.so"))
}

fn expect_headers(folder: &Path) -> Result<()> {
    match NEEDED.iter().find(|needed| !folder.join(needed).is_dir()) {
        Some(missing) => {
            bail!("there is no {missing} in {}; --headers wants {}", folder.display(), NEEDED.join(", "))
        }
        None => Ok(()),
    }
}

fn succeed(mut command: Command, failure: &str) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    ensure!(status.success(), "{failure}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_and_the_newest_are_those_that_shims_are_built_for() {
        let script = include_str!("../../cuda-mem-torch/python/build_wheel.py");
        let list = script.split("TORCHES = [").nth(1).unwrap().split(']').next().unwrap();
        let versions: Vec<_> = list.split(", ").map(|version| version.trim_matches('"')).collect();
        assert_eq!([versions[0], versions[versions.len() - 1]], EDGES);
    }

    #[test]
    fn a_folder_without_headers_is_told_what_it_lacks() {
        let folder = std::env::temp_dir().join(format!("xtask-wheel-{}", std::process::id()));
        let error = expect_headers(&folder).unwrap_err().to_string();
        assert!(error.starts_with("there is no torch/include in "), "{error}");
        for needed in NEEDED {
            std::fs::create_dir_all(folder.join(needed)).unwrap();
        }
        expect_headers(&folder).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }
}
