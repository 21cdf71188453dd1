//! Rows that use a crate as others do: from a project of their own, and vendored.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::matrix::Row;
use super::run::Step;
use crate::workspace::{FeatureSet, Workspace};

/// The name under which a bundle carries the program of an outside project.
pub(crate) const OUTSIDE: &str = "outside-project";

/// A program that knows one crate only, in a workspace of its own, run by cargo.
pub(crate) fn outside(workspace: &Workspace, row: &Row) -> Result<Vec<Step>> {
    let project = OutsideProject::write(workspace, &row.package, &row.features)?;
    let mut run = project.cargo("run");
    run.arg("--quiet");
    Ok(vec![Step::program(OUTSIDE, run)])
}

/// The same program built for a bundle: optimised and stripped.
pub(crate) fn build_outside(workspace: &Workspace, package: &str, features: &FeatureSet) -> Result<PathBuf> {
    let project = OutsideProject::write(workspace, package, features)?;
    let mut build = project.cargo("build");
    let status = build
        .args(["--release", "--config", "profile.release.strip=true"])
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "the outside project of {package} does not build");
    Ok(workspace.target_directory.join("release").join(project.name))
}

/// What it depends on from outside is the workspace's own: the same files in the same folder, where features are equal.
struct OutsideProject {
    name: String,
    folder: PathBuf,
    target: PathBuf,
}

impl OutsideProject {
    fn write(workspace: &Workspace, package: &str, features: &FeatureSet) -> Result<Self> {
        let package = workspace.package(package)?;
        let name = format!("outside-{}-{}", package.name, features.to_string().replace('+', "-"));
        let target = workspace.target_directory.clone();
        let folder = target.join("outside-projects").join(&name);
        let features = match features {
            FeatureSet::Default => String::new(),
            set => {
                let names = package.closure(set)?.into_iter().collect::<Vec<_>>();
                format!("default-features = false\nfeatures = {names:?}\n")
            }
        };
        let manifest = format!(
            "[workspace]\n\n\
             [package]\nname = {name:?}\nedition = \"2024\"\n\n\
             [dependencies.{}]\npath = {:?}\n{features}",
            package.name,
            package.folder()
        );
        start_project(workspace, &folder, &manifest)?;
        let program = workspace.root.join("ci/outside-projects").join(&package.name).with_extension("rs");
        fs::create_dir_all(folder.join("src"))?;
        let text = fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
        let main = folder.join("src/main.rs");
        // A file that is written anew is compiled again.
        if fs::read(&main).ok().as_ref() != Some(&text) {
            fs::write(main, text)?;
        }
        Ok(Self { name, folder, target })
    }

    fn cargo(&self, command: &str) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&self.folder).arg(command).env("CARGO_TARGET_DIR", &self.target);
        // As the workspace has its dependencies built.
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
        cargo
    }
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
