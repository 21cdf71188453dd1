//! Rows that use a crate as others do: from a project of their own, and vendored.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::matrix::Row;
use super::run::Step;
use crate::workspace::{FeatureSet, Package, Workspace};

/// A program that knows one crate only, in a workspace of its own.
pub(crate) fn outside(workspace: &Workspace, row: &Row) -> Result<Vec<Step>> {
    let package = workspace.package(&row.package)?;
    let target = workspace.target_directory.join("outside-projects");
    let folder = target.join("sources").join(format!("{}-{}", row.package, row.features));
    start_project(workspace, &folder, &outside_manifest(package, &row.features)?)?;
    let program = workspace.root.join("ci/outside-projects").join(&row.package).with_extension("rs");
    fs::create_dir_all(folder.join("src"))?;
    fs::copy(&program, folder.join("src/main.rs"))
        .with_context(|| format!("cannot copy {}", program.display()))?;

    let mut run = Command::new("cargo");
    run.current_dir(&folder).args(["run", "--quiet"]).env("CARGO_TARGET_DIR", target);
    Ok(vec![Step::program("outside-project", run)])
}

fn outside_manifest(package: &Package, features: &FeatureSet) -> Result<String> {
    let features = match features {
        FeatureSet::Default => String::new(),
        set => {
            let names = package.closure(set)?.into_iter().collect::<Vec<_>>();
            format!("default-features = false\nfeatures = {names:?}\n")
        }
    };
    Ok(format!(
        "[workspace]\n\n\
         [package]\nname = \"outside-project\"\nedition = \"2024\"\n\n\
         [dependencies.{}]\npath = {:?}\n{features}",
        package.name,
        package.folder()
    ))
}

/// What a user gets from `cargo xtask vendor`, inside a workspace as users have one, with the crate's own tests run.
pub(crate) fn vendored(workspace: &Workspace, row: &Row) -> Result<Vec<Step>> {
    let target = workspace.target_directory.join("vendored");
    let consumer = target.join("consumer");
    if consumer.exists() {
        fs::remove_dir_all(&consumer)?;
    }
    let manifest = format!("[workspace]\nresolver = \"3\"\nmembers = [{:?}]\n", row.package);
    start_project(workspace, &consumer, &manifest)?;

    let mut vendor = Command::new(std::env::current_exe()?);
    vendor.arg("vendor").arg(consumer.join(&row.package));
    let mut tests = Command::new("cargo");
    tests
        .current_dir(&consumer)
        .args(["test", "--quiet", "--package", &row.package])
        .env("CARGO_TARGET_DIR", target);
    Ok(vec![Step::program("vendor", vendor), Step::tests("tests", tests)])
}

/// A folder with a manifest, and the dependencies' versions that everything else was tested with.
fn start_project(workspace: &Workspace, folder: &Path, manifest: &str) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::copy(workspace.root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    Ok(())
}
