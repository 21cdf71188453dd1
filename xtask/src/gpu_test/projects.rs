//! Rows that use a crate as others do: from a project of their own, and vendored.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::build::ONCE;
use super::matrix::Row;
use super::run::Step;
use crate::workspace::{FeatureSet, Workspace};

/// What the program of an outside project is called among the built ones.
pub(crate) const OUTSIDE: &str = "outside-project";

/// Programs that know one crate each, in a workspace of their own: what they share is built once, and with the features of all.
pub(super) struct OutsideProjects<'w> {
    workspace: &'w Workspace,
    folder: PathBuf,
}

impl<'w> OutsideProjects<'w> {
    /// Writes the projects, for packages with features.
    pub(super) fn write<'r>(
        workspace: &'w Workspace,
        projects: impl Iterator<Item = (&'r str, &'r FeatureSet)>,
    ) -> Result<Self> {
        let folder = workspace.target_directory.join("outside-projects");
        let mut members = Vec::new();
        for (package, features) in projects {
            let name = name(package, features);
            write_project(workspace, &folder.join(&name), &name, package, features)?;
            members.push(name);
        }
        let manifest = format!("[workspace]\nresolver = \"3\"\nmembers = {members:?}\n");
        start_project(workspace, &folder, &manifest)?;
        Ok(Self { workspace, folder })
    }

    /// Builds one of them, or all.
    pub(super) fn build(&self, project: Option<(&str, &FeatureSet)>, options: &[&str]) -> Result<()> {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&self.folder).arg("build").args(options);
        // As the workspace has its dependencies built.
        cargo.env("CARGO_TARGET_DIR", &self.workspace.target_directory).env("CARGO_PROFILE_DEV_DEBUG", "0");
        cargo.env(ONCE.0, ONCE.1);
        match project {
            Some((package, features)) => cargo.args(["--package", &name(package, features)]),
            None => cargo.arg("--workspace"),
        };
        let status = cargo.status().context("cannot start cargo")?;
        ensure!(status.success(), "the outside project does not build");
        Ok(())
    }

    /// Where the program of one of them is.
    pub(super) fn program(&self, package: &str, features: &FeatureSet, options: &[&str]) -> PathBuf {
        let profile = if options.contains(&"--release") { "release" } else { "debug" };
        self.workspace.target_directory.join(profile).join(name(package, features))
    }
}

fn name(package: &str, features: &FeatureSet) -> String {
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
