//! The simulated driver as a library, for processes that load theirs.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The library, which is told or built, by its whole path.
pub(crate) fn simulator() -> PathBuf {
    if let Some(path) = std::env::var_os("CUDA_MEM_SIM_LIBRARY") {
        return PathBuf::from(path).canonicalize().unwrap();
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "cuda-mem-sim-library"]).stdin(Stdio::null());
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{cargo:?}\n{}", String::from_utf8_lossy(&output.stderr));
    // Beside the folder of the tests.
    let folder = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().canonicalize().unwrap();
    folder.join("libcuda_mem_sim.so")
}
