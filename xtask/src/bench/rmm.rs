//! RMM as a peer: its published packages, fetched under `target`, and the program that is built over them. It needs no CUDA
//! toolkit, here or where it runs, because the runtime is linked into it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::gpu_test::list_name;

/// The program's name; in a bundle it lies in `peers/rmm`, with the libraries beside it.
pub(crate) const PROGRAM: &str = "rmm_device";

const REQUIREMENTS: &str = "rmm-requirements.txt";

/// Where packages have their headers.
const HEADERS: [&str; 4] =
    ["librmm/include", "librmm/include/rapids", "rapids_logger/include", "nvidia/cu13/include"];

const LIBRARIES: [&str; 2] = ["librmm/lib64/librmm.so", "rapids_logger/lib64/librapids_logger.so"];

/// A folder with the program and what it loads, built anew.
pub(crate) fn build(sources: &Path, target: &Path) -> Result<PathBuf> {
    let packages = packages(&sources.join(REQUIREMENTS), target)?;
    let folder = target.join("rmm/program");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut compile = Command::new("c++");
    compile.args(["-O2", "-std=c++20", "-w", "-pthread", "-Wl,-rpath,$ORIGIN"]);
    compile.args(HEADERS.map(|headers| format!("-isystem{}", packages.join(headers).display())));
    compile.arg(sources.join(PROGRAM).with_extension("cpp")).arg("-o").arg(folder.join(PROGRAM));
    for library in LIBRARIES {
        let (from, name) = (packages.join(library), Path::new(library).file_name().unwrap_or_default());
        let to = folder.join(name);
        fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        compile.arg(to);
    }
    compile.arg(packages.join("nvidia/cu13/lib/libcudart_static.a")).args(["-ldl", "-lrt"]);
    succeed(compile, "RMM's peer does not compile")?;
    Ok(folder)
}

/// The unpacked packages, which are fetched once for each list of them.
fn packages(list: &Path, target: &Path) -> Result<PathBuf> {
    let wanted = fs::read(list).with_context(|| format!("cannot read {}", list.display()))?;
    let folder = target.join("rmm").join(list_name(&wanted));
    if folder.is_dir() {
        return Ok(folder);
    }
    // Unpacked beside and renamed, so that an interrupted run leaves nothing that looks complete.
    let partial = target.join("rmm").join(format!("partial-{}", std::process::id()));
    let mut install = Command::new("python3");
    install
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile"])
        .args(["--only-binary=:all:", "--target"])
        .arg(&partial)
        .arg("--requirement")
        .arg(list)
        // A folder of our own is written, nobody's Python: pip's warning about root does not apply.
        .env("PIP_ROOT_USER_ACTION", "ignore");
    succeed(install, "pip could not fetch RMM")?;
    fs::rename(&partial, &folder).with_context(|| format!("cannot rename {}", partial.display()))?;
    Ok(folder)
}

fn succeed(mut command: Command, failure: &str) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    ensure!(output.status.success(), "{failure}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
