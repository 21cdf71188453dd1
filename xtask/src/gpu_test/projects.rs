//! Rows that use a crate as others do: from a project of their own, and vendored.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::matrix::Row;
use super::run::Step;
use crate::workspace::{FeatureSet, Workspace};

/// What the program of an outside project is called among the built ones.
pub(crate) const OUTSIDE: &str = "outside-project";

/// Writes programs that know one crate each, in a workspace of their own: what they share is built once, and with the features of
/// all. Returns its folder.
pub(super) fn write_outside(
    workspace: &Workspace,
    projects: &BTreeSet<(&str, &FeatureSet)>,
) -> Result<PathBuf> {
    let folder = workspace.target_directory.join("outside-projects");
    let mut members = Vec::new();
    for (package, features) in projects {
        let name = outside_name(package, features);
        write_project(workspace, &folder.join(&name), &name, package, features)?;
        members.push(name);
    }
    let manifest = format!("[workspace]\nresolver = \"3\"\nmembers = {members:?}\n");
    start_project(workspace, &folder, &manifest)?;
    Ok(folder)
}

/// What the program of a package with its features is called.
pub(super) fn outside_name(package: &str, features: &FeatureSet) -> String {
    format!("outside-{package}-{}", features.to_string().replace('+', "-"))
}

/// What it depends on from outside is the workspace's own: the same files in the same folder, where features are equal.
fn write_project(
    workspace: &Workspace,
    folder: &Path,
    name: &str,
    package: &str,
    features: &FeatureSet,
) -> Result<()> {
    let package = workspace.package(package)?;
    let features = match features {
        FeatureSet::Default => String::new(),
        set => {
            let names = package.closure(set)?.into_iter().collect::<Vec<_>>();
            format!("default-features = false\nfeatures = {names:?}\n")
        }
    };
    let manifest = format!(
        "[package]\nname = {name:?}\nedition = \"2024\"\n\n[dependencies.{}]\npath = {:?}\n{features}",
        package.name,
        package.folder()
    );
    let program = workspace.root.join("ci/outside-projects").join(&package.name).with_extension("rs");
    fs::create_dir_all(folder.join("src")).with_context(|| format!("cannot create {}", folder.display()))?;
    let text = fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
    fs::write(folder.join("Cargo.toml"), manifest)?;
    let main = folder.join("src/main.rs");
    // A file that is written anew is compiled again.
    if fs::read(&main).ok().as_ref() != Some(&text) {
        fs::write(main, text)?;
    }
    Ok(())
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

    // As one types it. Not this program's file: a row before, the tour's, has this tool built with another feature in its place.
    let mut vendor = Command::new("cargo");
    vendor.current_dir(&workspace.root).args(["xtask", "vendor"]).arg(consumer.join(&row.package));
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
