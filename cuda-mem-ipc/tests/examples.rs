//! The short programs of the README, as they stand in `examples/`, over the simulated driver's library.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

const EXAMPLES: [&str; 5] = ["producer", "consumer", "ranks", "upload", "foreign"];

fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

/// The folder of the examples, as they were built with this test if the environment says so, and the driver for them.
fn built() -> (PathBuf, PathBuf) {
    // Where cargo puts what this test was built with.
    let folder = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
    let examples = std::env::var_os("CUDA_MEM_EXAMPLES").map_or_else(
        || {
            for example in EXAMPLES {
                let build = ["build", "--quiet", "--package", "cuda-mem-ipc", "--example", example];
                assert!(cargo(&build).status().unwrap().success(), "{example}");
            }
            folder.join("examples")
        },
        PathBuf::from,
    );
    if let Some(path) = std::env::var_os("CUDA_MEM_SIM_LIBRARY") {
        return (examples, path.into());
    }
    assert!(cargo(&["build", "--quiet", "--package", "cuda-mem-sim-library"]).status().unwrap().success());
    (examples, folder.join("libcuda_mem_sim.so"))
}

fn start((folder, driver): &(PathBuf, PathBuf), example: &str, arguments: &[&str]) -> Child {
    Command::new(folder.join(example)).args(arguments).env("CUDA_MEM_DRIVER", driver).spawn().unwrap()
}

fn finish(mut child: Child) {
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn each_has_twenty_lines_at_most_and_nothing_unsafe() {
    for example in EXAMPLES {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(example).with_extension("rs");
        let text = fs::read_to_string(path).unwrap();
        let code = text.lines().filter(|line| !line.trim().is_empty() && !line.trim().starts_with("//"));
        assert!(code.count() <= 20 && !text.contains("unsafe"), "{example}");
    }
}

#[test]
fn they_run() {
    let built = built();
    // Another test may run meanwhile, of the same user.
    let name = format!("trainer-{}", std::process::id());
    let consumer = start(&built, "consumer", &[&name]);
    finish(start(&built, "producer", &[&name]));
    finish(consumer);
    let directory = std::env::temp_dir().join(format!("cuda-mem-ranks-{}", std::process::id()));
    for ranks in ["2", "4"] {
        let all = &["0", "1", "2", "3"][..ranks.parse().unwrap()];
        let start = |rank: &&str| start(&built, "ranks", &[rank, ranks, directory.to_str().unwrap()]);
        all.iter().map(start).collect::<Vec<_>>().into_iter().for_each(finish);
    }
    fs::remove_dir_all(directory).unwrap();
    finish(start(&built, "upload", &[]));
    finish(start(&built, "foreign", &[]));
}
