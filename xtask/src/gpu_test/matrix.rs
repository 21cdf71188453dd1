//! `ci/gpu-matrix.toml`: groups of rows, each written once and expanded to every combination of what it lists.
//!
//! Most of those on the simulator run with `--full` alone: the others have each value of each list in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::workspace::FeatureSet;

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    /// Seconds that a row may take, where its group says nothing else.
    time_limit: u64,
    #[serde(default)]
    bundle: Extras,
    row: Vec<Group>,
}

/// Programs that a bundle carries beside the tests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Extras {
    #[serde(default)]
    pub(crate) examples: Vec<Extra>,
    #[serde(default)]
    pub(crate) benches: Vec<Extra>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Extra {
    #[serde(rename = "crate")]
    pub(crate) package: String,
    pub(crate) name: String,
}

/// One `[[row]]`: every list in it is one axis of a product.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Group {
    kind: Kind,
    /// What the rows' names say in place of their targets.
    name: Option<String>,
    crates: Vec<String>,
    #[serde(default = "default_features")]
    features: Vec<FeatureSet>,
    /// Not an axis: a row runs all of them, `lib` meaning the unit tests; for Python the names of scripts.
    #[serde(default)]
    targets: Vec<String>,
    /// Not an axis: of the tests those alone whose names hold one of these.
    #[serde(default)]
    only: Vec<String>,
    /// What the tests start. Where it is not built for them they call cargo.
    #[serde(default)]
    examples: Vec<Extra>,
    drivers: Vec<Driver>,
    /// More settings of the simulator, such as `numa=2`; hardware has what it has.
    #[serde(default = "no_settings")]
    simulator: Vec<String>,
    #[serde(default = "one_device")]
    devices: Vec<usize>,
    #[serde(default = "legacy")]
    default_stream: Vec<DefaultStream>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// What its rows on a GPU need of the machine.
    engine: Option<Engine>,
    time_limit: Option<u64>,
    /// Whether its rows run with `--full` alone.
    #[serde(default)]
    full: bool,
}

fn default_features() -> Vec<FeatureSet> {
    vec![FeatureSet::Default]
}

fn no_settings() -> Vec<String> {
    vec![String::new()]
}

fn one_device() -> Vec<usize> {
    vec![1]
}

fn legacy() -> Vec<DefaultStream> {
    vec![DefaultStream::Legacy]
}

/// What a row does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Runs test executables.
    Tests,
    /// Runs the examples in the documentation.
    Doctests,
    /// Builds and runs a program outside the workspace whose only dependency is the crate.
    OutsideProject,
    /// Runs scripts of `ci/cuda-core` with cuda.core as it is published.
    Python,
    /// Copies the crate as a user would vendor it and runs its tests there.
    Vendored,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Tests => "tests",
            Self::Doctests => "doctests",
            Self::OutsideProject => "outside-project",
            Self::Python => "python",
            Self::Vendored => "vendored",
        }
    }
}

/// A library that a machine with a GPU may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Engine {
    Nvshmem,
    Nccl,
}

/// Whose functions a row calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Driver {
    /// The simulator, telling this version: 1000 × major + 10 × minor.
    Simulator(i32),
    /// The system's driver.
    Gpu,
}

impl TryFrom<String> for Driver {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let version = |text: &str| {
            let (major, minor) = text.split_once('.')?;
            Some(major.parse::<i32>().ok()? * 1000 + minor.parse::<i32>().ok()? * 10)
        };
        match text.strip_prefix("sim-") {
            Some(rest) => version(rest).map(Self::Simulator),
            None => (text == "gpu").then_some(Self::Gpu),
        }
        .ok_or_else(|| {
            format!("`{text}` is no driver: write `gpu`, or `sim-` and a version, such as `sim-13.0`")
        })
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simulator(version) => write!(f, "sim-{}", Version(*version)),
            Self::Gpu => f.write_str("gpu"),
        }
    }
}

/// 12020 as people write it: 12.2.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Version(pub(crate) i32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// Which stream a row's tests mean by the null stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DefaultStream {
    Legacy,
    PerThread,
}

impl DefaultStream {
    /// As the tests read it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::PerThread => "per_thread",
        }
    }
}

/// One combination: what is run, on what, and for how long at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) kind: Kind,
    /// What its name says it does.
    what: String,
    pub(crate) package: String,
    /// Packages of a row that is of several.
    also: Vec<String>,
    pub(crate) features: FeatureSet,
    pub(crate) targets: Vec<String>,
    /// Parts of the names of the tests that are run; empty for all.
    pub(crate) only: Vec<String>,
    /// What the tests start.
    pub(crate) examples: Vec<Extra>,
    pub(crate) driver: Driver,
    /// More settings of the simulator; empty on hardware.
    pub(crate) simulator: String,
    pub(crate) devices: usize,
    pub(crate) default_stream: DefaultStream,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) engine: Option<Engine>,
    pub(crate) limit: Duration,
    /// Whether it runs with `--full` alone.
    pub(crate) full: bool,
}

impl Row {
    /// Its name: unique in the matrix, and what `--row` is matched against.
    pub(crate) fn name(&self) -> String {
        let separator = if self.simulator.is_empty() { "" } else { "," };
        format!(
            "{}/{}/{}/{}{separator}{}/x{}/{}",
            self.short_package(),
            self.what,
            self.features,
            self.driver,
            self.simulator,
            self.devices,
            self.default_stream.name()
        )
    }

    /// The package, without what all of them have in common.
    pub(crate) fn short_package(&self) -> &str {
        if self.also.is_empty() { self.package.trim_start_matches("cuda-mem-") } else { "workspace" }
    }

    /// All packages that it is of: one, but for the documentation's examples.
    pub(crate) fn packages(&self) -> impl Iterator<Item = &str> {
        [&self.package].into_iter().chain(&self.also).map(String::as_str)
    }

    /// The same tests on a simulator that tells this version: what a hardware row is compared with. A million rounds of the litmus test are for
    /// hardware alone.
    pub(crate) fn twin(&self, version: i32) -> Self {
        let mut twin = Self { driver: Driver::Simulator(version), ..self.clone() };
        twin.env.remove("CUDA_MEM_LITMUS_ROUNDS");
        twin
    }
}

/// All rows, and what a bundle carries beside them.
#[derive(Debug)]
pub(crate) struct Matrix {
    pub(crate) rows: Vec<Row>,
    pub(crate) extras: Extras,
}

impl Matrix {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is not a matrix", path.display()))
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        let file: File = toml::from_str(text)?;
        let mut rows = Vec::new();
        let mut turn = 0;
        for group in &file.row {
            group.check()?;
            // The examples of all documentation are one row: built together they share what they are built with.
            let each = if group.kind == Kind::Doctests { group.crates.len() } else { 1 };
            for packages in group.crates.chunks(each.max(1)) {
                rows.extend(group.expand(packages, turn, file.time_limit));
                turn += 1;
            }
        }
        let mut names = BTreeSet::new();
        for row in &rows {
            ensure!(names.insert(row.name()), "two rows are named {}", row.name());
        }
        Ok(Self { rows, extras: file.bundle })
    }
}

impl Group {
    fn check(&self) -> Result<()> {
        let what = format!("the {} rows of {}", self.kind.name(), self.crates.join(", "));
        let has_targets = matches!(self.kind, Kind::Tests | Kind::Python);
        ensure!(
            has_targets != self.targets.is_empty(),
            "{what}: `targets` belong to rows of kind `tests` or `python`, and only there"
        );
        ensure!(
            has_targets || self.kind == Kind::OutsideProject || !self.drivers.contains(&Driver::Gpu),
            "{what}: only `tests`, `python` and `outside-project` run on a GPU, whose host may have no cargo"
        );
        ensure!(self.only.is_empty() || self.kind == Kind::Tests, "{what}: `only` chooses from tests");
        ensure!(self.examples.is_empty() || self.kind == Kind::Tests, "{what}: only tests start `examples`");
        let axes = [self.crates.len(), self.features.len(), self.drivers.len(), self.devices.len()];
        ensure!(
            !axes.contains(&0) && !self.simulator.is_empty() && !self.default_stream.is_empty(),
            "{what}: an empty list makes no rows: leave it out or fill it"
        );
        ensure!(!self.devices.contains(&0), "{what}: a row needs at least one device");
        Ok(())
    }

    /// The product for one row's packages, the last axis running fastest.
    fn expand(&self, packages: &[String], turn: usize, time_limit: u64) -> Vec<Row> {
        let of_kind =
            if self.kind == Kind::Tests { self.targets.join("+") } else { self.kind.name().to_owned() };
        let what = self.name.clone().unwrap_or(of_kind);
        let mut rows = Vec::new();
        for features in &self.features {
            for (driver, simulator) in self.drivers() {
                for &devices in &self.devices {
                    for &default_stream in &self.default_stream {
                        let is_run = self.covers(turn, (driver, simulator), devices, default_stream);
                        rows.push(Row {
                            kind: self.kind,
                            what: what.clone(),
                            package: packages[0].clone(),
                            also: packages[1..].to_vec(),
                            features: features.clone(),
                            targets: self.targets.clone(),
                            only: self.only.clone(),
                            examples: self.examples.clone(),
                            driver,
                            simulator: simulator.to_owned(),
                            devices,
                            default_stream,
                            env: self.env.clone(),
                            engine: self.engine,
                            limit: Duration::from_secs(self.time_limit.unwrap_or(time_limit)),
                            full: self.full || !is_run,
                        });
                    }
                }
            }
        }
        rows
    }

    /// Whether a combination is run without `--full`: as few as have each value of each list in them, of the simulator and of hardware.
    /// Which values meet there differs by `turn`.
    fn covers(
        &self,
        turn: usize,
        (driver, settings): (Driver, &str),
        devices: usize,
        stream: DefaultStream,
    ) -> bool {
        let is_gpu = |driver: &Driver| *driver == Driver::Gpu;
        let drivers = self.drivers.iter().copied().filter(|other| is_gpu(other) == is_gpu(&driver));
        let drivers = drivers.collect::<Vec<_>>();
        let settings = if is_gpu(&driver) { (0, 1) } else { place(&self.simulator, &settings.to_owned()) };
        let (devices, stream) = (place(&self.devices, &devices), place(&self.default_stream, &stream));
        let places = [(place(&drivers, &driver), 0), (devices, 0), (settings, turn), (stream, turn)];
        let longest = places.iter().map(|((_, of), _)| *of).max().unwrap_or_default();
        (0..longest).any(|at| places.iter().all(|((place, of), turn)| (at + turn) % of == *place))
    }

    /// Each driver with each of its settings.
    fn drivers(&self) -> impl Iterator<Item = (Driver, &str)> {
        self.drivers.iter().flat_map(|&driver| {
            let settings = self.simulator.iter().map(String::as_str);
            // Hardware takes none, and runs once.
            settings
                .take(if driver == Driver::Gpu { 1 } else { usize::MAX })
                .map(move |settings| (driver, if driver == Driver::Gpu { "" } else { settings }))
        })
    }
}

/// Where a value stands in its list, and of how many.
fn place<T: PartialEq>(list: &[T], value: &T) -> (usize, usize) {
    (list.iter().take_while(|other| *other != value).count(), list.len())
}

#[cfg(test)]
mod tests;
