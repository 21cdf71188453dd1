//! The header under two compilers' modes, and a C program on the library and the simulator.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::library::simulator;
use crate::support::turn;

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}\n{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn the_header_is_c11_and_cpp17() {
    // Pipes would take the numbers of descriptors that another test has just closed.
    let _turn = turn();
    let header = crate_folder().join("include/cuda_mem_torch.h");
    for (compiler, standard, language) in [("cc", "c11", "c"), ("c++", "c++17", "c++")] {
        run(Command::new(compiler)
            .args(["-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-x", language])
            .arg(format!("-std={standard}"))
            .arg(&header));
    }
}

/// The folder that this test was built into, where the library is too.
fn built() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_path_buf()
}

#[test]
fn a_c_program_allocates() {
    let _turn = turn();
    let folder = built();
    let library = folder.join("libcuda_mem_torch.so");
    assert!(library.is_file(), "{} is built with this test", library.display());
    let program = folder.join(format!("cuda-mem-torch-program-{}", std::process::id()));
    run(Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(crate_folder().join("tests/abi/program.c"))
        .arg("-I")
        .arg(crate_folder().join("include"))
        .arg(&library));
    let text = run(Command::new(&program)
        .env("CUDA_MEM_DRIVER", simulator())
        .env("CUDA_MEM_SIM", "devices=2")
        .env("LD_LIBRARY_PATH", &folder));
    std::fs::remove_file(&program).unwrap();
    assert_eq!(text.lines().last(), Some("well"), "{text}");
}
