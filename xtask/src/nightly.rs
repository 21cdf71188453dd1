//! `cargo xtask nightly`: what takes too long for every change, or needs the nightly toolchain.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::gpu_test::Builder;
use crate::steps::{Steps, cargo, limit_tests, succeeds};
use crate::wheel::{EDGES, matrix};
use crate::workspace::{Package, Workspace};

/// Seconds for one test executable: with many cases, with few, and with instrumentation.
const LIMIT: u32 = 4 * 3600;
const LIMIT_QUICK: u32 = 300;
const LIMIT_SANITIZED: u32 = 1200;

/// The crates whose unit tests call no driver, which Miri cannot follow.
const MIRI: &[&str] = &["cuda-mem-sys", "cuda-mem-core"];

/// Those of their tests that it cannot follow either: they ask the system about its memory, or write past the cache.
const NOT_FOR_MIRI: &[&str] = &[
    "copy::stager::past_cache",
    "host::numa::tests::a_node_that_does_not_exist",
    "host::populate",
    "host::residency::tests::both_ways_to_ask",
    "host::system",
];

/// Tests that load the library into programs which are not instrumented, and have nothing that its instrumentation calls.
const NOT_INSTRUMENTED: &[&str] = &["a_c_program_allocates", "the_package_without_pytorch"];

/// Tests that ThreadSanitizer cannot follow: the first four reserve more addresses than it leaves free, and the library that
/// the others open is not instrumented.
const NOT_FOR_THREADS: &[&str] = &[
    "addresses_are_many_and_aligned",
    "hundreds_of_thousands_of_mappings_need_no_more_than_their_handles",
    "without_data_any_size_can_be_had",
    "the_driver_answers_as_measured",
    "the_shared_library_is_a_driver",
    "the_first_pin_loads_the_driver",
    "without_a_change_it_is_the_native_one",
];

/// The targets of `ci/fuzz/`.
const FUZZED: &[&str] = &["trace", "snapshot", "settings", "frame", "connection", "hand_over", "ring"];

/// Cases that a property test tries, where it tries 24 to 256 by itself.
const CASES: &str = "100000";
const CASES_QUICK: &str = "2000";

/// Rounds of data before its flag, where the matrix has three thousand.
const LITMUS: &str = "100000";
const LITMUS_QUICK: &str = "10000";

/// Operations that the engine of the caching allocator is tried with, where little is held and where much is; the seeds are printed.
const MACHINE: &str = "10000000";
const MACHINE_QUICK: &str = "500000";

/// Runs all of it, or with `quick` so much of it as a change can wait for; whether nothing failed.
pub(crate) fn run(root: &Path, quick: bool) -> Result<bool> {
    let workspace = Workspace::read(root)?;
    let tests = tests(&workspace);
    // Built once and plainly: the simulator's own tests open it, also from an instrumented process.
    let simulator = Builder { workspace: &workspace, profile: "dev" }.simulator()?;
    let mut steps = Steps::new(root);
    steps.env("CUDA_MEM_SIM_LIBRARY", &simulator);

    let (cases, litmus, limit) =
        if quick { (CASES_QUICK, LITMUS_QUICK, LIMIT_QUICK) } else { (CASES, LITMUS, LIMIT) };
    let mut properties = cargo("test --release --no-fail-fast");
    properties.args(&tests).env("PROPTEST_CASES", cases).env("CUDA_MEM_FAULTS", "all");
    properties.env("CUDA_MEM_LITMUS_ROUNDS", litmus);
    steps.command("properties", limit_tests(&mut properties, limit, ""));
    // Processes killed at each step of what they say to each other; the count is printed by step.
    let mut deaths = cargo("test --release --package cuda-mem-ipc --test processes --test symmetric death");
    deaths.args(["--", "--nocapture"]).env("CUDA_MEM_DEATH_ROUNDS", if quick { "3" } else { "20" });
    steps.command("deaths", limit_tests(&mut deaths, limit, ""));
    let mut soak = cargo("test --release --package cuda-mem-pool --test sim soak");
    soak.env("CUDA_MEM_SOAK_SECONDS", if quick { "30" } else { "600" });
    steps.command("soak", &mut soak);
    let mut machine = cargo("test --release --package cuda-mem-pool --lib random_work -- --nocapture");
    machine.env("CUDA_MEM_MACHINE_OPERATIONS", if quick { MACHINE_QUICK } else { MACHINE });
    steps.command("caching engine", limit_tests(&mut machine, LIMIT, ""));
    let mut figures = cargo("test --release --package cuda-mem-pool --lib engine::paged");
    figures.args(["--", "--ignored", "--nocapture"]);
    steps.command("figures", &mut figures);
    if !quick {
        steps.check("planted faults", "cargo xtask planted-faults", || {
            Ok(if crate::planted_faults::run(root)? { Ok(()) } else { Err("not all were found".to_owned()) })
        });
    }
    if !quick {
        // What a change runs a part of.
        steps.command("matrix", &mut cargo("xtask gpu-test --full"));
        // Built with what each asks for itself, and not with what others ask for.
        for package in workspace.packages.iter().filter(|package| package.is_published()) {
            let check = format!("check --package {}", package.name);
            steps.command(&format!("{} alone", package.name), &mut cargo(&check));
        }
    }
    torch(&mut steps, root, quick);
    if !quick {
        emulated(&mut steps, root)?;
    }
    sanitizers(&mut steps, &workspace, &tests);
    loom(&mut steps, &workspace);
    miri(&mut steps, quick);
    fuzz(&mut steps, root, quick)?;
    Ok(steps.finish())
}

/// The wheel with each PyTorch; quickly with the oldest and the newest.
fn torch(steps: &mut Steps, root: &Path, quick: bool) {
    let versions = if quick { &EDGES[..] } else { &[] };
    let mut wheel = cargo(if quick { "xtask wheel --plain" } else { "xtask wheel" });
    steps.command("wheel", wheel.args(versions.iter().flat_map(|version| ["--torch", version])));
    steps.command("torch matrix", matrix(root).args(versions));
    let mut cudas = Command::new("python3");
    steps.command("shim with other CUDAs", cudas.arg("ci/torch/cudas.py").args(versions));
}

/// The tests on the other processor that wheels are made for, as far as an emulator can run them.
fn emulated(steps: &mut Steps, root: &Path) -> Result<()> {
    let script = root.join("ci/emulated/run");
    let check = Command::new(&script).arg("--check").output()?;
    if check.status.success() {
        steps.command("aarch64", &mut Command::new(script));
    } else {
        steps.skip("aarch64", String::from_utf8_lossy(&check.stdout).trim());
    }
    Ok(())
}

/// Integration tests that start cargo themselves: error messages of one compiler, and programs as users run them.
const WITH_CARGO: &[&str] = &["ui", "tour"];

/// Cargo's words for all tests of the libraries that are the same under every compiler.
fn tests(workspace: &Workspace) -> Vec<String> {
    let mut words = ["--workspace", "--exclude", "xtask", "--lib"].map(str::to_owned).to_vec();
    let targets =
        workspace.packages.iter().filter(|package| package.name != "xtask").flat_map(Package::tests);
    let mut names = targets.filter(|name| !WITH_CARGO.contains(name)).collect::<Vec<_>>();
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
    if nightly && has_component("rust-src") {
        let folder = workspace.root.join("ci/sanitizers");
        let mut address = sanitized(workspace, "address", tests);
        address.env("LSAN_OPTIONS", options(&folder.join("leaks.txt")));
        skip(&mut address, NOT_INSTRUMENTED);
        steps.command("address sanitizer", &mut address);
        let mut thread = sanitized(workspace, "thread", tests);
        // Tests fork with threads running, and start some in the child.
        thread.env("TSAN_OPTIONS", options(&folder.join("races.txt")) + ":die_after_fork=0");
        skip(&mut thread, &[NOT_INSTRUMENTED, NOT_FOR_THREADS].concat());
        steps.command("thread sanitizer", &mut thread);
        return;
    }
    let missing = "there is no nightly toolchain with the component rust-src";
    if succeeds(Command::new("valgrind").arg("--version"), Duration::from_secs(60)) {
        // The next best witness of memory errors. Of data races there is none: helgrind does not know atomics.
        let mut command = cargo("test --no-fail-fast");
        command.args(tests);
        steps.command("valgrind", limit_tests(&mut command, LIMIT, "valgrind --quiet --error-exitcode=1"));
    } else {
        steps.skip("address sanitizer", missing);
    }
    steps.skip("thread sanitizer", missing);
}

/// Leaves out tests whose names have one of these in them; the last words of a command.
fn skip(command: &mut Command, names: &[&str]) {
    command.arg("--").args(names.iter().flat_map(|name| ["--skip", name]));
}

/// What is known, by file; a test may look at what its child printed, and finds nothing of ours there.
fn options(known: &Path) -> String {
    format!("suppressions={}:print_suppressions=0", known.display())
}

fn sanitized(workspace: &Workspace, sanitizer: &str, tests: &[String]) -> Command {
    let mut command = cargo("+nightly test -Zbuild-std --no-fail-fast");
    // With the target named, build scripts and macros are left as they are.
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    command
        .args(["--target", &target, "--target-dir"])
        .arg(workspace.target_directory.join("nightly").join(sanitizer))
        .args(tests)
        .env("RUSTFLAGS", format!("-Zsanitizer={sanitizer}"));
    limit_tests(&mut command, LIMIT_SANITIZED, "");
    command
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
        let mut flags = "-Zmiri-strict-provenance".to_owned();
        if !quick {
            flags += " -Zmiri-many-seeds=0..16";
        }
        // Few cases, for it is slow, and none kept: it opens no file.
        for (name, value) in [("PROPTEST_CASES", "16"), ("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1")] {
            flags += &format!(" -Zmiri-env-forward={name}");
            command.env(name, value);
        }
        command.arg(package).env("MIRIFLAGS", flags);
        skip(&mut command, NOT_FOR_MIRI);
        steps.command(&format!("miri {package}"), &mut command);
    }
}

/// The targets of `ci/fuzz/`, what they find being kept there.
fn fuzz(steps: &mut Steps, root: &Path, quick: bool) -> Result<()> {
    if !succeeds(&mut cargo("+nightly fuzz --version"), Duration::from_secs(60)) {
        steps.skip("fuzz", "there is no nightly toolchain with cargo-fuzz");
        return Ok(());
    }
    for target in FUZZED {
        unpack_seeds(&root.join("ci/fuzz"), target)?;
        let seconds = if quick { 30 } else { 1800 };
        let mut command = cargo("+nightly fuzz run --fuzz-dir ci/fuzz");
        command.arg(target).args(["--", &format!("-max_total_time={seconds}")]);
        steps.command(&format!("fuzz {target}"), &mut command);
    }
    Ok(())
}

/// Makes a file of each line of hexadecimal digits in `seeds/`, where the fuzzer looks for inputs.
fn unpack_seeds(folder: &Path, target: &str) -> Result<()> {
    let Ok(text) = fs::read_to_string(folder.join("seeds").join(target).with_extension("txt")) else {
        return Ok(());
    };
    let corpus = folder.join("corpus").join(target);
    fs::create_dir_all(&corpus)?;
    for (index, line) in text.lines().filter(|line| !line.starts_with('#')).enumerate() {
        let (pairs, _) = line.as_bytes().as_chunks::<2>();
        let byte = |pair: &[u8; 2]| Ok(u8::from_str_radix(str::from_utf8(pair)?, 16)?);
        fs::write(corpus.join(format!("seed-{index}")), pairs.iter().map(byte).collect::<Result<Vec<_>>>()?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::NOT_INSTRUMENTED;

    #[test]
    fn what_is_left_out_is_there() {
        let tests = concat!(
            include_str!("../../cuda-mem-torch/tests/abi/program.rs"),
            include_str!("../../cuda-mem-torch/tests/python.rs"),
        );
        for name in NOT_INSTRUMENTED {
            assert!(tests.contains(&format!("#[test]\nfn {name}() {{")), "there is no test {name}");
        }
    }
}
