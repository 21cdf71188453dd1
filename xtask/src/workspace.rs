//! What cargo knows of this workspace: its packages, their features, targets and dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// The packages of the workspace, as `cargo metadata` lists them.
#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    pub(crate) packages: Vec<Package>,
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    pub(crate) target_directory: PathBuf,
}

/// One package of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) features: BTreeMap<String, Vec<String>>,
    pub(crate) targets: Vec<Target>,
    pub(crate) dependencies: Vec<Dependency>,
    /// The registries it may be published to: none at all for the workspace's own tools.
    pub(crate) publish: Option<Vec<String>>,
}

/// One thing that cargo builds from a package.
#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
    /// Whether `cargo test` builds it with a harness.
    #[cfg(test)]
    pub(crate) test: bool,
}

/// One line of a package's dependency tables.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// None for an ordinary one, else `dev` or `build`.
    pub(crate) kind: Option<String>,
    /// Set for a package of this workspace.
    pub(crate) path: Option<PathBuf>,
}

impl Dependency {
    /// Whether only tests, examples and benchmarks need it.
    pub(crate) fn is_dev(&self) -> bool {
        self.kind.as_deref() == Some("dev")
    }
}

impl Workspace {
    /// Asks cargo about the workspace in `root`.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let output = Command::new("cargo")
            .current_dir(root)
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .output()
            .context("cannot start cargo")?;
        ensure!(
            output.status.success(),
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        serde_json::from_slice(&output.stdout).context("cargo metadata wrote something unexpected")
    }

    /// The package of that name.
    pub(crate) fn package(&self, name: &str) -> Result<&Package> {
        self.packages
            .iter()
            .find(|package| package.name == name)
            .with_context(|| format!("the workspace has no package {name}"))
    }

    /// The package that the manifest is of.
    pub(crate) fn of_manifest(&self, manifest: &Path) -> Option<&Package> {
        self.packages.iter().find(|package| package.manifest_path == manifest)
    }
}

impl Package {
    /// The folder its manifest lies in.
    pub(crate) fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(&self.manifest_path)
    }

    /// The names of its integration tests.
    pub(crate) fn tests(&self) -> impl Iterator<Item = &str> {
        let tests = self.targets.iter().filter(|target| target.kind.iter().any(|kind| kind == "test"));
        tests.map(|target| target.name.as_str())
    }

    /// Whether it is meant for a registry.
    pub(crate) fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }

    /// Whether a registry could take it before any other package of this workspace.
    pub(crate) fn is_publishable_alone(&self) -> bool {
        let in_workspace = |dependency: &Dependency| dependency.path.is_some() && !dependency.is_dev();
        self.is_published() && !self.dependencies.iter().any(in_workspace)
    }

    /// What is really switched on by a set: its features and those they imply, `default` itself not counted.
    ///
    /// Two sets with one closure are the same build.
    pub(crate) fn closure(&self, set: &FeatureSet) -> Result<BTreeSet<String>> {
        let mut pending: Vec<&str> = match set {
            FeatureSet::Default => vec!["default"],
            FeatureSet::None => vec![],
            FeatureSet::All => self.features.keys().map(String::as_str).collect(),
            FeatureSet::Named(names) => {
                for name in names {
                    ensure!(self.features.contains_key(name), "{} has no feature {name}", self.name);
                }
                names.iter().map(String::as_str).collect()
            }
        };
        let mut closure = BTreeSet::new();
        while let Some(name) = pending.pop() {
            // `dep:x` and `crate/feature` are not features of this package and imply no more of them.
            let Some(implied) = self.features.get(name) else { continue };
            if name == "default" || closure.insert(name.to_owned()) {
                pending.extend(implied.iter().map(String::as_str));
            }
        }
        Ok(closure)
    }

    /// The builds that differ: none, default, each feature alone, all.
    #[cfg(test)]
    pub(crate) fn distinct_builds(&self) -> Result<BTreeSet<BTreeSet<String>>> {
        let alone = self.features.keys().filter(|name| *name != "default");
        let sets = [FeatureSet::None, FeatureSet::Default, FeatureSet::All]
            .into_iter()
            .chain(alone.map(|name| FeatureSet::Named(vec![name.clone()])));
        sets.map(|set| self.closure(&set)).collect()
    }
}

/// Which features of a package a row is built with: `default`, `none`, `all`, or names joined by `+` (those and no others).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub(crate) enum FeatureSet {
    Default,
    None,
    All,
    Named(Vec<String>),
}

impl FeatureSet {
    /// How cargo is told.
    pub(crate) fn arguments(&self) -> Vec<String> {
        match self {
            Self::Default => vec![],
            Self::None => vec!["--no-default-features".to_owned()],
            Self::All => vec!["--all-features".to_owned()],
            Self::Named(names) => {
                vec!["--no-default-features".to_owned(), "--features".to_owned(), names.join(",")]
            }
        }
    }
}

impl From<String> for FeatureSet {
    fn from(text: String) -> Self {
        match text.as_str() {
            "default" => Self::Default,
            "none" => Self::None,
            "all" => Self::All,
            names => Self::Named(names.split('+').map(str::to_owned).collect()),
        }
    }
}

impl From<FeatureSet> for String {
    fn from(set: FeatureSet) -> Self {
        set.to_string()
    }
}

impl fmt::Display for FeatureSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::None => f.write_str("none"),
            Self::All => f.write_str("all"),
            Self::Named(names) => f.write_str(&names.join("+")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(features: &[(&str, &[&str])]) -> Package {
        let features = features
            .iter()
            .map(|(name, implied)| {
                ((*name).to_owned(), implied.iter().map(|name| (*name).to_owned()).collect())
            })
            .collect();
        Package {
            name: "p".to_owned(),
            version: "1.0.0".to_owned(),
            manifest_path: PathBuf::from("p/Cargo.toml"),
            features,
            targets: vec![],
            dependencies: vec![],
            publish: None,
        }
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_closure_follows_features_and_leaves_dependencies_out() {
        let package = package(&[("default", &["a"]), ("a", &["b", "dep:x", "y/z"]), ("b", &[]), ("c", &[])]);
        let closure = |text: &str| package.closure(&FeatureSet::from(text.to_owned()));
        assert_eq!(closure("default").unwrap(), set(&["a", "b"]));
        assert_eq!(closure("none").unwrap(), set(&[]));
        assert_eq!(closure("all").unwrap(), set(&["a", "b", "c"]));
        assert_eq!(closure("b+c").unwrap(), set(&["b", "c"]));
        assert_eq!(closure("d").unwrap_err().to_string(), "p has no feature d");
    }

    #[test]
    fn equal_builds_count_once() {
        assert_eq!(package(&[]).distinct_builds().unwrap().len(), 1);
        // none = default, tracing = all.
        assert_eq!(package(&[("tracing", &["dep:tracing"])]).distinct_builds().unwrap().len(), 2);
        let two = package(&[("default", &[]), ("a", &[]), ("b", &[])]);
        assert_eq!(
            two.distinct_builds().unwrap(),
            [set(&[]), set(&["a"]), set(&["b"]), set(&["a", "b"])].into()
        );
    }

    #[test]
    fn a_set_becomes_cargo_arguments() {
        let arguments = |text: &str| FeatureSet::from(text.to_owned()).arguments().join(" ");
        assert_eq!(arguments("default"), "");
        assert_eq!(arguments("none"), "--no-default-features");
        assert_eq!(arguments("all"), "--all-features");
        assert_eq!(arguments("a+b"), "--no-default-features --features a,b");
    }
}
