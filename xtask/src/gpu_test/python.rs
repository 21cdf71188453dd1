//! Rows that run cuda.core, as it is published for Python, on a driver.
//!
//! On the simulator the packages are those of `requirements.txt`, in an environment of their own. On a GPU host, which may
//! have no network, they are the ones that its Python has.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use super::matrix::{Driver, Row};
use super::run::Step;
use crate::workspace::Workspace;

/// The folder of the scripts, in `ci` and in a bundle.
pub(crate) const FOLDER: &str = "cuda-core";

const REQUIREMENTS: &str = "requirements.txt";

/// The rows have one environment and one folder with the driver, which the first one makes.
static MAKING: Mutex<()> = Mutex::new(());

/// What programs know the driver by.
const DRIVER: &str = "libcuda.so.1";

/// Why this machine's own Python cannot run the scripts, if it cannot.
pub(super) fn lacks() -> Option<String> {
    let mut python = Command::new("python3");
    let asked = python.args(["-c", "import cuda.core, cuda.bindings"]).stdin(Stdio::null()).output();
    match asked {
        Err(_) => Some("the machine has no python3".to_owned()),
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let reason = said.lines().last().unwrap_or("no reason given").to_owned();
            Some(format!("the machine's python3 has no cuda.core: {reason}"))
        }
    }
}

/// One step a script. Without a workspace the interpreter is the machine's.
pub(super) fn steps(
    workspace: Option<&Workspace>,
    scripts: &Path,
    simulator: &Path,
    reports: &Path,
    row: &Row,
) -> Result<Vec<Step>> {
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let own = workspace.filter(|_| row.driver != Driver::Gpu);
    let interpreter = match own {
        Some(workspace) => environment(workspace, scripts)?,
        None => PathBuf::from("python3"),
    };
    let step = |script: &String| {
        let mut command = Command::new(&interpreter);
        command.arg(scripts.join(script).with_extension("py")).env("PYTHONDONTWRITEBYTECODE", "1");
        if row.driver != Driver::Gpu {
            command.env("LD_LIBRARY_PATH", as_system_driver(simulator, reports)?);
        }
        Ok(Step::script(script, command))
    };
    row.targets.iter().map(step).collect()
}

/// A folder in which the simulator has the name of the system's driver.
fn as_system_driver(simulator: &Path, reports: &Path) -> Result<PathBuf> {
    let folder = reports.join("system-driver");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let link = folder.join(DRIVER);
    let simulator = simulator.canonicalize().context("the simulator is not there")?;
    // A row that runs may be about to open it.
    if fs::read_link(&link).is_ok_and(|there| there == simulator) {
        return Ok(folder);
    }
    if link.symlink_metadata().is_ok() {
        fs::remove_file(&link).with_context(|| format!("cannot replace {}", link.display()))?;
    }
    symlink(simulator, &link).with_context(|| format!("cannot link {}", link.display()))?;
    Ok(folder)
}

/// The interpreter of an environment with the required packages, which is made once for each list of them.
fn environment(workspace: &Workspace, scripts: &Path) -> Result<PathBuf> {
    let list = scripts.join(REQUIREMENTS);
    let wanted = fs::read(&list).with_context(|| format!("cannot read {}", list.display()))?;
    let cache = workspace.target_directory.join("python");
    let folder = cache.join(list_name(&wanted));
    let interpreter = |folder: &Path| folder.join("bin/python3");
    if folder.is_dir() {
        return Ok(interpreter(&folder));
    }
    // Made beside and renamed, so that an interrupted run leaves nothing that looks complete.
    let partial = cache.join(format!("partial-{}", std::process::id()));
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let mut make = Command::new("python3");
    make.args(["-m", "venv"]).arg(&partial);
    succeed(make, "python3 could not make an environment")?;
    let mut install = Command::new(interpreter(&partial));
    install
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"])
        .arg(&list);
    succeed(install, "pip could not install what ci/cuda-core/requirements.txt asks for")?;
    fs::rename(&partial, &folder).with_context(|| format!("cannot rename {}", partial.display()))?;
    Ok(interpreter(&folder))
}

/// What a folder is called that has the packages of a list, and no other list's.
pub(crate) fn list_name(list: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    list.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn succeed(mut command: Command, failure: &str) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().context("cannot start python3")?;
    ensure!(output.status.success(), "{failure}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
