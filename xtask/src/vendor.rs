//! `cargo xtask vendor DIR`: copies `cuda-mem-sys` and proves that the copy stands alone.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

const CRATE: &str = "cuda-mem-sys";

/// What a copy consists of.
const PARTS: &[&str] = &["Cargo.toml", "README.md", "LICENSE-APACHE", "LICENSE-MIT", "src"];

/// Copies the crate into `folder`, which must be empty or not there, and builds the copy where nothing else is near.
pub(crate) fn run(root: &Path, folder: &Path) -> Result<()> {
    if let Ok(mut entries) = fs::read_dir(folder) {
        ensure!(entries.next().is_none(), "{} is not empty", folder.display());
    }
    let source = root.join(CRATE);
    let mut files = 0;
    for part in PARTS {
        files += copy(&source.join(part), &folder.join(part))?;
    }
    println!("copied {files} files to {}", folder.display());

    // Elsewhere, so that neither a workspace around the folder nor a lock file takes part, and the copy stays clean.
    let scratch = tempfile::tempdir()?;
    let alone = scratch.path();
    for part in PARTS {
        copy(&folder.join(part), &alone.join(part))?;
    }
    fs::copy(root.join("Cargo.lock"), alone.join("Cargo.lock"))?;
    cargo(alone, &["build", "--quiet"])?;
    println!("it builds alone");

    let dependencies = dependencies(alone)?;
    ensure!(
        dependencies.direct == ["libloading"],
        "its only dependency should be libloading; it has {}",
        dependencies.direct.join(", ")
    );
    println!(
        "its only dependency is libloading; with that one's own it needs {}",
        dependencies.all.join(", ")
    );
    Ok(())
}

/// Copies a file or a folder; returns how many files that were.
fn copy(from: &Path, to: &Path) -> Result<usize> {
    let context = || format!("cannot copy {}", from.display());
    if !from.is_dir() {
        let parent = to.parent().context("a file lies in a folder")?;
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        fs::copy(from, to).with_context(context)?;
        return Ok(1);
    }
    let mut files = 0;
    for entry in fs::read_dir(from).with_context(context)? {
        let name = entry?.file_name();
        files += copy(&from.join(&name), &to.join(&name))?;
    }
    Ok(files)
}

/// What cargo resolves in `folder`, as names with versions.
struct Dependencies {
    direct: Vec<String>,
    all: Vec<String>,
}

fn dependencies(folder: &Path) -> Result<Dependencies> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        version: String,
        source: Option<String>,
        dependencies: Vec<Dependency>,
    }
    #[derive(Deserialize)]
    struct Dependency {
        name: String,
    }
    let output = cargo(folder, &["metadata", "--format-version", "1"])?;
    let metadata: Metadata =
        serde_json::from_slice(&output).context("cargo metadata wrote something unexpected")?;
    let mut direct = Vec::new();
    let mut all = Vec::new();
    for package in metadata.packages {
        if package.source.is_some() {
            all.push(format!("{} {}", package.name, package.version));
        } else {
            direct.extend(package.dependencies.into_iter().map(|dependency| dependency.name));
        }
    }
    Ok(Dependencies { direct, all })
}

/// Runs cargo in `folder` and returns what it wrote.
fn cargo(folder: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new("cargo")
        .current_dir(folder)
        .args(arguments)
        // A setting of the caller's would put the build somewhere else.
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .context("cannot start cargo")?;
    ensure!(
        output.status.success(),
        "`cargo {}` failed in the copy:\n{}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_in_use_is_left_alone() {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join("mine"), "").unwrap();
        let error = run(Path::new("."), scratch.path()).unwrap_err().to_string();
        assert!(error.ends_with("is not empty"), "{error}");
    }
}
