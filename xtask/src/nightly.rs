//! `cargo xtask nightly`: what takes too long for every change, or needs the nightly toolchain.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::steps::{Steps, cargo, succeeds};
use crate::workspace::{Package, Workspace};

/// Sanitizers need the target named, so that build scripts and macros are left as they are.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The crates whose unit tests call no driver and map no memory, which Miri cannot follow.
const MIRI: &[&str] = &["cuda-mem-sys", "cuda-mem-core"];

/// Cases that a property test tries, where it tries 256 by itself.
const CASES: &str = "100000";
const CASES_QUICK: &str = "2000";

/// Runs all of it, or with `quick` so much of it as a change can wait for; whether nothing failed.
pub(crate) fn run(root: &Path, quick: bool) -> Result<bool> {
    let workspace = Workspace::read(root)?;
    let tests = tests(&workspace);
    let mut steps = Steps::new(root);

    steps.command(
        "properties",
        cargo("test --release").args(&tests).env("PROPTEST_CASES", if quick { CASES_QUICK } else { CASES }),
    );
    sanitizers(&mut steps, &workspace, &tests);
    loom(&mut steps, &workspace);
    miri(&mut steps, quick);
    Ok(steps.finish())
}

/// Cargo's words for all tests of the libraries but those of error messages, which are the compiler's of one version.
fn tests(workspace: &Workspace) -> Vec<String> {
    let mut words = ["--workspace", "--exclude", "xtask", "--lib"].map(str::to_owned).to_vec();
    let targets =
        workspace.packages.iter().filter(|package| package.name != "xtask").flat_map(Package::tests);
    let mut names = targets.filter(|name| *name != "ui").collect::<Vec<_>>();
    names.sort_unstable();
    names.dedup();
    words.extend(names.into_iter().flat_map(|name| ["--test".to_owned(), name.to_owned()]));
    words
}

/// Whether the nightly toolchain has a component, which is installed if it can be had.
fn has_component(name: &str) -> bool {
    let mut add = Command::new("rustup");
    add.args(["component", "add", "--toolchain", "nightly", name]);
    succeeds(&mut add, Duration::from_secs(300))
}

/// All tests with memory errors and data races made loud; the standard library is instrumented with them.
fn sanitizers(steps: &mut Steps, workspace: &Workspace, tests: &[String]) {
    let nightly = succeeds(&mut cargo("+nightly --version"), Duration::from_secs(60));
    let sources = nightly && has_component("rust-src");
    for (name, sanitizer) in [("address sanitizer", "address"), ("thread sanitizer", "thread")] {
        if sources {
            let mut command = cargo("+nightly test -Zbuild-std");
            command
                .args(["--target", TARGET, "--target-dir"])
                .arg(workspace.target_directory.join("nightly").join(sanitizer))
                .args(tests)
                .env("RUSTFLAGS", format!("-Zsanitizer={sanitizer}"));
            steps.command(name, &mut command);
        } else if sanitizer == "address"
            && succeeds(Command::new("valgrind").arg("--version"), Duration::from_secs(60))
        {
            // The next best witness of memory errors. Of data races there is none: helgrind does not know atomics.
            let mut command = cargo("test");
            command.args(tests).env(
                "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER",
                "valgrind --quiet --error-exitcode=1 --trace-children=no",
            );
            steps.command("valgrind", &mut command);
        } else {
            steps.skip(name, "there is no nightly toolchain with the component rust-src");
        }
    }
}

/// Every interleaving of the concurrent parts, in the crates that model them.
fn loom(steps: &mut Steps, workspace: &Workspace) {
    let has_models =
        |package: &&Package| package.dependencies.iter().any(|dependency| dependency.name == "loom");
    let with_models = workspace.packages.iter().filter(has_models).collect::<Vec<_>>();
    if with_models.is_empty() {
        return steps.skip("loom", "no crate has a loom model");
    }
    for package in with_models {
        let mut command = cargo("test --release --lib --package");
        command
            .arg(&package.name)
            .arg("--target-dir")
            .arg(workspace.target_directory.join("nightly/loom"))
            .env("RUSTFLAGS", "--cfg loom")
            .env("LOOM_MAX_PREEMPTIONS", "3");
        steps.command(&format!("loom {}", package.name), &mut command);
    }
}

fn miri(steps: &mut Steps, quick: bool) {
    if !has_component("miri") {
        return steps.skip("miri", "the nightly toolchain has no miri");
    }
    for package in MIRI {
        let mut command = cargo("+nightly miri test --lib --package");
        // Addresses as integers are for the driver alone; many seeds are many schedules of threads.
        let flags = if quick {
            "-Zmiri-strict-provenance"
        } else {
            "-Zmiri-strict-provenance -Zmiri-many-seeds=0..16"
        };
        command.arg(package).env("MIRIFLAGS", flags);
        steps.command(&format!("miri {package}"), &mut command);
    }
}
