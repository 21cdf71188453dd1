//! What the rows run: built by one call of cargo for each feature set, however many rows share it, or carried by a bundle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::matrix::{Kind, Row};
use super::projects;
use crate::packed;
use crate::workspace::{FeatureSet, Workspace};

/// The name of the manifest that makes a folder a bundle.
pub(crate) const MANIFEST: &str = "bundle.json";

/// Everything is built once here: what helps a second build is a third of the time of the first. A test that fails names its line
/// without what helps a debugger, which is a fifth.
pub(super) const ONCE: [(&str, &str); 2] = [("CARGO_INCREMENTAL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "0")];

/// What the matrix tests, as it builds it: whoever asks for the same packages with the same features has them built already.
pub(crate) const TESTED: &str = "--package cuda-mem-core --package cuda-mem-ipc --package cuda-mem-pool \
    --package cuda-mem-report --package cuda-mem-sim --package cuda-mem-sys --package cuda-mem-top \
    --package cuda-mem-torch --all-features";

/// Why tests could not be built, by package and features.
pub(super) type Broken = BTreeMap<(String, FeatureSet), String>;

/// Packages with their test targets.
type Wanted<'r> = BTreeMap<&'r str, BTreeSet<&'r str>>;

/// The built programs; in a bundle this is its manifest, with paths relative to it.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Programs {
    /// The simulated driver as a shared library.
    pub(crate) simulator: PathBuf,
    /// What asks the driver about the machine.
    pub(crate) probe: PathBuf,
    pub(crate) tests: Vec<TestProgram>,
    /// The folder of the examples that tests start. A bundle has no such tests.
    #[serde(skip)]
    pub(crate) examples: Option<PathBuf>,
    /// Examples and benchmarks that a bundle carries for people to start.
    pub(crate) extras: Vec<PathBuf>,
}

/// One test executable.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestProgram {
    #[serde(rename = "crate")]
    pub(crate) package: String,
    pub(crate) features: FeatureSet,
    /// `lib` for the unit tests, `outside-project` for that program, else the name of the file in `tests/`.
    pub(crate) target: String,
    pub(crate) path: PathBuf,
}

impl Programs {
    /// Reads a bundle's manifest.
    pub(crate) fn carried(bundle: &Path) -> Result<Self> {
        let path = bundle.join(MANIFEST);
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut programs: Self =
            serde_json::from_slice(&text).with_context(|| format!("{} is no manifest", path.display()))?;
        let tests = programs.tests.iter_mut().map(|test| &mut test.path);
        for path in tests.chain([&mut programs.simulator, &mut programs.probe]).chain(&mut programs.extras) {
            *path = bundle.join(&*path);
        }
        programs.tests.iter().try_for_each(|test| packed::unpack(&test.path))?;
        Ok(programs)
    }

    /// What a bundle carries beside the tests, by its name.
    pub(crate) fn extra(&self, name: &str) -> Result<&Path> {
        let found = self.extras.iter().find(|path| path.file_name().is_some_and(|file| file == name));
        found.map(PathBuf::as_path).with_context(|| format!("the bundle has no {name}"))
    }

    /// The executable that a row asks for.
    pub(crate) fn test(&self, row: &Row, target: &str) -> Result<&Path> {
        self.tests
            .iter()
            .find(|test| test.is_for(row, target))
            .map(|test| test.path.as_path())
            .with_context(|| format!("{} has no test target `{target}`", row.package))
    }
}

impl TestProgram {
    /// Whether a row that runs `target` means this one.
    pub(crate) fn is_for(&self, row: &Row, target: &str) -> bool {
        self.package == row.package && self.features == row.features && self.target == target
    }
}

/// What cargo says of a file that it built.
#[derive(Debug, Deserialize)]
struct Artifact {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<ArtifactTarget>,
    profile: Option<ArtifactProfile>,
    executable: Option<PathBuf>,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct ArtifactTarget {
    name: String,
    kind: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct ArtifactProfile {
    test: bool,
}

/// Calls cargo in a workspace, always with the same profile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Builder<'a> {
    pub(crate) workspace: &'a Workspace,
    pub(crate) profile: &'a str,
}

impl Builder<'_> {
    /// Builds the test executables of all rows; a crate that does not build fails its rows and not the others.
    pub(crate) fn tests<'r>(&self, rows: impl Iterator<Item = &'r Row>) -> (Vec<TestProgram>, Broken) {
        let mut wanted: BTreeMap<&FeatureSet, Wanted<'_>> = BTreeMap::new();
        for row in rows.filter(|row| row.kind == Kind::Tests) {
            let targets = wanted.entry(&row.features).or_default().entry(&row.package).or_default();
            targets.extend(row.targets.iter().map(String::as_str));
        }
        let mut programs = Vec::new();
        let mut failures = BTreeMap::new();
        for (features, wanted) in wanted {
            // What they share is built once if cargo knows of all of them.
            if let Ok(built) = self.test_programs(features, &wanted) {
                programs.extend(built);
                continue;
            }
            for (package, targets) in wanted {
                match self.test_programs(features, &[(package, targets)].into()) {
                    Ok(built) => programs.extend(built),
                    Err(error) => {
                        failures.insert((package.to_owned(), features.clone()), format!("{error:#}"));
                    }
                }
            }
        }
        (programs, failures)
    }

    fn test_programs(&self, features: &FeatureSet, wanted: &Wanted<'_>) -> Result<Vec<TestProgram>> {
        let mut arguments = vec!["test".to_owned(), "--no-run".to_owned()];
        arguments.extend(wanted.keys().flat_map(|package| ["--package".to_owned(), (*package).to_owned()]));
        arguments.extend(features.arguments());
        for target in wanted.values().flatten().collect::<BTreeSet<_>>() {
            match *target {
                "lib" => arguments.push("--lib".to_owned()),
                name => arguments.extend(["--test".to_owned(), name.to_owned()]),
            }
        }
        let artifacts = self.cargo(&arguments)?;
        let programs = artifacts.into_iter().filter_map(|artifact| {
            let target = artifact.target?;
            let is_test = artifact.profile?.test;
            let path = artifact.executable.filter(|_| is_test)?;
            let package = self.workspace.of_manifest(artifact.manifest_path.as_deref()?)?.name.clone();
            let target =
                if target.kind.iter().any(|kind| kind == "test") { target.name } else { "lib".to_owned() };
            Some(TestProgram { package, features: features.clone(), target, path })
        });
        Ok(programs.collect())
    }

    /// Builds what the tests of the rows start, with the same packages and features and so from the same libraries; their folder.
    ///
    /// None if there is nothing or it does not build: tests without it call cargo, and tell.
    pub(crate) fn examples<'r>(&self, rows: impl Iterator<Item = &'r Row> + Clone) -> Option<PathBuf> {
        let features = &rows.clone().find(|row| !row.examples.is_empty())?.features;
        let together = rows.filter(|row| row.kind == Kind::Tests && row.features == *features);
        let examples = together.clone().flat_map(|row| &row.examples).collect::<BTreeSet<_>>();
        let packages = together.map(|row| &row.package);
        let packages =
            packages.chain(examples.iter().map(|example| &example.package)).collect::<BTreeSet<_>>();
        let mut arguments = vec!["build".to_owned()];
        arguments.extend(packages.into_iter().flat_map(|package| ["--package".to_owned(), package.clone()]));
        arguments.extend(features.arguments());
        arguments
            .extend(examples.into_iter().flat_map(|example| ["--example".to_owned(), example.name.clone()]));
        let built = self.cargo(&arguments).ok()?.into_iter();
        let folder = |artifact: Artifact| Some(artifact.executable?.parent()?.to_path_buf());
        built.filter_map(folder).find(|folder| folder.ends_with("examples"))
    }

    /// Builds the outside projects of all rows; of one that does not build there is no program.
    pub(crate) fn outside_projects<'r>(
        &self,
        rows: impl Iterator<Item = &'r Row>,
    ) -> Result<Vec<TestProgram>> {
        let rows = rows.filter(|row| row.kind == Kind::OutsideProject);
        let wanted = rows.map(|row| (row.package.as_str(), &row.features)).collect::<BTreeSet<_>>();
        let folder = projects::write_outside(self.workspace, &wanted)?;
        // Optimised for a bundle.
        let profile = if self.profile == "dev" { "dev" } else { "release" };
        let words = "build --workspace --keep-going --config profile.release.strip=true";
        let mut arguments = words.split(' ').map(str::to_owned).collect::<Vec<_>>();
        // What is from outside of the workspace and has the same features is built already.
        let target = &self.workspace.target_directory;
        arguments.extend(["--target-dir".to_owned(), target.display().to_string()]);
        let (_, artifacts) = cargo(&folder, profile, &arguments)?;
        let built = artifacts.into_iter().filter_map(|artifact| artifact.executable);
        let built = built.filter_map(|path| Some((path.file_name()?.to_str()?.to_owned(), path)));
        let built = built.collect::<BTreeMap<_, _>>();
        let program = |(package, features): (&str, &FeatureSet)| {
            Some(TestProgram {
                package: package.to_owned(),
                features: features.clone(),
                target: projects::OUTSIDE.to_owned(),
                path: built.get(&projects::outside_name(package, features))?.clone(),
            })
        };
        Ok(wanted.into_iter().filter_map(program).collect())
    }

    /// Builds the simulated driver's shared library.
    pub(crate) fn simulator(&self) -> Result<PathBuf> {
        let arguments = ["build", "--package", "cuda-mem-sim-library"].map(str::to_owned);
        self.cargo(&arguments)?
            .into_iter()
            .filter(|artifact| artifact.target.as_ref().is_some_and(|target| target.kind == ["cdylib"]))
            .find_map(|artifact| artifact.filenames.into_iter().next())
            .context("cargo built no shared library of the simulator")
    }

    /// Builds this tool with what `replay` and `report` need: where it goes there is no cargo to build it again.
    pub(crate) fn tool(&self) -> Result<PathBuf> {
        let arguments = ["build", "--package", "xtask", "--bin", "xtask", "--features", "replay,report"];
        self.cargo(&arguments.map(str::to_owned))?
            .into_iter()
            .filter(|artifact| artifact.target.as_ref().is_some_and(|target| target.kind == ["bin"]))
            .find_map(|artifact| artifact.executable)
            .context("cargo built no xtask")
    }

    /// Builds one example or, with `kind` as `bench`, one benchmark; unoptimised from the libraries of the tests.
    pub(crate) fn extra(&self, kind: &str, package: &str, name: &str) -> Result<PathBuf> {
        // A benchmark is built as `cargo bench` builds it; `cargo build` would leave out the harness.
        let command = if kind == "bench" { "bench --no-run" } else { "build" };
        let packages = match self.profile {
            "dev" => TESTED.to_owned(),
            _ => format!("--package {package}"),
        };
        let words = format!("{command} {packages} --{kind} {name}");
        let arguments = words.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        self.cargo(&arguments)?
            .into_iter()
            .filter(|artifact| artifact.target.as_ref().is_some_and(|target| target.kind == [kind]))
            .find_map(|artifact| artifact.executable)
            .with_context(|| format!("cargo built no {kind} `{name}` of {package}"))
    }

    /// Builds in the workspace, and returns what was built.
    fn cargo(&self, arguments: &[String]) -> Result<Vec<Artifact>> {
        let (built_all, artifacts) = cargo(&self.workspace.root, self.profile, arguments)?;
        ensure!(built_all, "`cargo {}` failed", arguments.join(" "));
        Ok(artifacts)
    }
}

/// Runs cargo, whose messages for people go where ours go. Whether it succeeded, and what it built.
fn cargo(folder: &Path, profile: &str, arguments: &[String]) -> Result<(bool, Vec<Artifact>)> {
    let output = Command::new("cargo")
        .current_dir(folder)
        .args(arguments)
        .args(["--profile", profile, "--message-format=json-render-diagnostics"])
        .envs(ONCE)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    let mut artifacts = Vec::new();
    for line in String::from_utf8(output.stdout).context("cargo wrote no text")?.lines() {
        match serde_json::from_str::<Artifact>(line) {
            Ok(artifact) if artifact.reason == "compiler-artifact" => artifacts.push(artifact),
            Ok(_) => {}
            Err(error) => bail!("cargo wrote `{line}`: {error}"),
        }
    }
    Ok((output.status.success(), artifacts))
}
