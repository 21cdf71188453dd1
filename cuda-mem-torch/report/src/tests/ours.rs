//! Snapshots that the caching allocator wrote, against its own statistics.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use super::super::space::Space;
use super::{Files, read};

/// Runs the pool crate's example, which writes `snapshot.pickle`; what it says of itself.
pub(super) fn run(files: &Files) -> HashMap<String, u64> {
    // As it was built with this test, where the environment says so.
    let mut command = match std::env::var_os("CUDA_MEM_EXAMPLES") {
        Some(folder) => Command::new(Path::new(&folder).join("snapshot")),
        None => {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["run", "--quiet", "--package", "cuda-mem-pool", "--example", "snapshot", "--"]);
            cargo
        }
    };
    command.arg(files.0.join("snapshot.pickle"));
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    // No library of that name: the simulated driver in the program itself is what runs.
    command.env("CUDA_MEM_DRIVER", "/nonexistent/libcuda.so");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.filter_map(|(key, value)| Some((key.to_owned(), value.parse().ok()?))).collect()
}

fn space(files: &Files, input: &str) -> Space {
    let space = read(&files.arguments(input)).unwrap();
    assert_eq!(space.notes, Vec::<String>::new(), "{input}");
    space
}

#[test]
fn our_snapshots_show_what_the_statistics_say() {
    let files = Files::new("ours");
    let statistics = run(&files);
    let of = |key: &str| statistics[key];
    let space = space(&files, "snapshot.pickle");
    assert_eq!(space.curves.peak_live.0, of("allocated_bytes.peak"));
    assert_eq!(space.curves.peak_active.0, of("active_bytes.peak"));
    assert_eq!(space.allocations, of("allocation.allocated"));
    assert_eq!(space.curves.peak_reserved.0, of("reserved_bytes.peak"));
    assert_eq!(space.failed, of("num_ooms"));
    assert_eq!(space.failed, 1);
}
