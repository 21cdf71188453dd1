//! Tests in Python: of the package, on the library and the simulator that were built, without PyTorch, which they play; and of a program
//! that compares with PyTorch.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test that cannot go on fails")]

#[path = "../../cuda-mem-core/tests/common/library.rs"]
mod library;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use library::simulator;

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn built() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_path_buf()
}

/// Whether this machine has what the scripts need; a machine without Python builds and tests all the rest.
fn has_python() -> bool {
    let asked =
        Command::new("python3").args(["-c", "import sys; assert sys.version_info >= (3, 9)"]).status();
    let there = asked.is_ok_and(|status| status.success());
    if !there {
        println!("skipped: there is no python3 of 3.9 or newer");
    }
    there
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{}{text}", String::from_utf8_lossy(&output.stdout));
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
}

/// The package as a wheel would install it.
fn installed(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("python-{}-{name}", std::process::id()));
    let package = folder.join("cuda_mem_torch");
    copy(&crate_folder().join("python/cuda_mem_torch"), &package);
    copy(&crate_folder().join("shim"), &package.join("shim"));
    copy(&crate_folder().join("shim/symmetric"), &package.join("shim/symmetric"));
    copy(&crate_folder().join("include"), &package.join("include"));
    fs::copy(built().join("libcuda_mem_torch.so"), package.join("libcuda_mem_torch.so")).unwrap();
    // As pip does: each of the programs that the tests start would do it by itself.
    run(Command::new("python3").args(["-m", "compileall", "-q"]).arg(&package));
    folder
}

#[test]
fn the_package_without_pytorch() {
    with_the_package("test_package.py");
}

#[test]
fn the_commands_without_pytorch() {
    with_the_package("test_commands.py");
}

fn with_the_package(script: &str) {
    if !has_python() {
        return;
    }
    let folder = installed(script);
    let script = crate_folder().join("python/tests").join(script);
    run(Command::new("python3")
        .arg(script)
        .env("PYTHONPATH", &folder)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("CUDA_MEM_DRIVER", simulator()));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_wheel() {
    if has_python() {
        let script = crate_folder().join("python/tests/test_wheel.py");
        run(Command::new("python3").arg(script).env("PYTHONDONTWRITEBYTECODE", "1"));
    }
}

#[test]
fn workloads_take_turns() {
    if has_python() {
        let script = crate_folder().join("../ci/torch/test_workloads.py");
        run(Command::new("python3").arg(script).env("PYTHONDONTWRITEBYTECODE", "1"));
    }
}
