//! `cargo xtask planted-faults`: faults that tests have to find, planted one after the other.
//!
//! They are planted in a copy of the workspace, so that nothing has to be restored, however this ends.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::steps::{Steps, cargo, limit_tests};
use crate::workspace::Workspace;

/// Seconds for one test executable. One that hangs found the fault, too.
const LIMIT: u32 = 300;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    fault: Vec<Fault>,
}

/// One fault.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fault {
    name: String,
    file: PathBuf,
    /// What is in the file once, and what is put in its place.
    text: String,
    fault: String,
    /// Words for `cargo test` of the file's crate, each of which has to fail.
    tests: Vec<String>,
}

impl Fault {
    /// The crate: its folder has its name.
    fn package(&self) -> Cow<'_, str> {
        self.file.iter().next().unwrap_or_default().to_string_lossy()
    }

    fn tests_with_package(&self) -> impl Iterator<Item = (Cow<'_, str>, &String)> {
        self.tests.iter().map(|test| (self.package(), test))
    }
}

/// Whether each fault is found by each of its tests, which pass without it.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let faults = read(root)?;
    let folder = Workspace::read(root)?.target_directory.join("planted-faults");
    let copy = folder.join("workspace");
    copy_sources(root, &copy)?;
    let mut steps = Steps::new(&copy);
    let mut tests: Vec<_> = faults.iter().flat_map(Fault::tests_with_package).collect();
    tests.sort_unstable();
    tests.dedup();
    for (package, test) in tests {
        steps.check(test, "without a fault", || {
            Ok(if passes(&copy, &package, test)? { Ok(()) } else { Err("it fails".into()) })
        });
    }
    for fault in &faults {
        let path = copy.join(&fault.file);
        let sound = fs::read_to_string(&path)?;
        fs::write(&path, sound.replacen(&fault.text, &fault.fault, 1))?;
        steps.check(&fault.name, &fault.tests.join(", "), || found(&copy, fault));
        fs::write(&path, sound)?;
    }
    Ok(steps.finish())
}

/// The faults, each of which fits the sources.
fn read(root: &Path) -> Result<Vec<Fault>> {
    let path = root.join("ci/planted-faults.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let file: File =
        toml::from_str(&text).with_context(|| format!("cannot understand {}", path.display()))?;
    let mut unfit = Vec::new();
    for fault in &file.fault {
        let source = fs::read_to_string(root.join(&fault.file))
            .with_context(|| format!("{}: cannot read {}", fault.name, fault.file.display()))?;
        let times = source.matches(&fault.text).count();
        if times != 1 {
            unfit.push(format!("{}: its text is {times} times in {}", fault.name, fault.file.display()));
        }
        ensure!(!fault.tests.is_empty(), "{}: no test is to find it", fault.name);
    }
    ensure!(unfit.is_empty(), "{}", unfit.join("\n"));
    Ok(file.fault)
}

fn found(copy: &Path, fault: &Fault) -> Result<Result<(), String>> {
    for test in &fault.tests {
        // A fault that does not compile is found by nobody. With the test's own words: some are compiled with a feature alone.
        let mut build = test_command(copy, &fault.package(), test);
        ensure!(build.arg("--no-run").status()?.success(), "it does not compile for {test}");
        if passes(copy, &fault.package(), test)? {
            return Ok(Err(format!("{test} passes all the same")));
        }
    }
    Ok(Ok(()))
}

fn passes(copy: &Path, package: &str, test: &str) -> Result<bool> {
    let mut command = test_command(copy, package, test);
    let output = limit_tests(&mut command, LIMIT, "").output().context("cannot start cargo")?;
    let ran = String::from_utf8_lossy(&output.stdout);
    ensure!(!ran.contains("running 0 tests"), "no test is called {test}");
    Ok(output.status.success())
}

fn test_command(copy: &Path, package: &str, test: &str) -> Command {
    let mut command = cargo("test --quiet --package");
    command.arg(package).args(test.split(' ')).current_dir(copy);
    command
}

/// Copies what git knows or would add, and leaves files alone that are the same: cargo does not build them again.
fn copy_sources(root: &Path, copy: &Path) -> Result<()> {
    let mut list = Command::new("git");
    list.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = list.output().context("cannot start git")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    let names = String::from_utf8(output.stdout).context("a file's name is not UTF-8")?;
    for name in names.split_terminator('\0') {
        let (from, to) = (root.join(name), copy.join(name));
        // A link to a folder, or a file that was removed and not committed.
        let Ok(bytes) = fs::read(&from) else { continue };
        if fs::read(&to).is_ok_and(|there| there == bytes) {
            continue;
        }
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&to, bytes).with_context(|| format!("cannot write {}", to.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_fits_the_sources() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let faults = read(root).unwrap();
        assert!(faults.iter().all(|fault| fault.text != fault.fault));
    }
}
