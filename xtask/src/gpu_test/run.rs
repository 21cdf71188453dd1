//! Runs one row: its environment, its processes, and what came of them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Serialize;

use super::build::{Builder, ONCE, Programs};
use super::libtest::{self, Case, Counts};
use super::matrix::{Driver, Kind, Row};
use super::{engines, projects, python, script};
use crate::process::{self, Ending};
use crate::workspace::Workspace;

/// What came of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

/// A row that is done with.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Done {
    pub(crate) name: String,
    /// What its tests called: the simulator, a GPU, or nothing where it did not run.
    pub(crate) backend: String,
    pub(crate) outcome: Outcome,
    pub(crate) counts: Counts,
    pub(crate) time: Duration,
    pub(crate) cases: Vec<Case>,
    /// Everything that its processes printed.
    pub(crate) log: Option<PathBuf>,
}

impl Done {
    /// A row of which nothing was run.
    pub(crate) fn unstarted(name: String, outcome: Outcome) -> Self {
        Self {
            name,
            backend: "-".to_owned(),
            outcome,
            counts: Counts::default(),
            time: Duration::ZERO,
            cases: Vec::new(),
            log: None,
        }
    }
}

/// Where rows find what they run and leave what they write.
#[derive(Debug)]
pub(crate) struct Runner<'a> {
    /// None in a bundle.
    pub(crate) workspace: Option<&'a Workspace>,
    pub(crate) programs: &'a Programs,
    /// Those of outside projects, which the first of their rows has built while the other lane goes on; none in a bundle.
    pub(crate) outside: OnceLock<Result<Programs, String>>,
    /// All rows that run.
    pub(crate) rows: Vec<&'a Row>,
    pub(crate) reports: &'a Path,
    /// The scripts in Python.
    pub(crate) scripts: PathBuf,
    /// What a row on hardware is said to have run on.
    pub(crate) gpu: String,
}

/// One process of a row.
pub(crate) struct Step {
    name: String,
    command: Command,
    output: Output,
}

/// What a process prints.
#[derive(Debug, Clone, Copy)]
enum Output {
    /// What a test executable prints.
    Libtest,
    /// What a script of steps prints.
    Script,
    /// Anything: the process counts as one test, passed if it exits with 0.
    Free,
}

impl Step {
    pub(crate) fn tests(name: &str, command: Command) -> Self {
        Self { name: name.to_owned(), command, output: Output::Libtest }
    }

    pub(crate) fn script(name: &str, command: Command) -> Self {
        Self { name: name.to_owned(), command, output: Output::Script }
    }

    pub(crate) fn program(name: &str, command: Command) -> Self {
        Self { name: name.to_owned(), command, output: Output::Free }
    }
}

impl Runner<'_> {
    /// Where a row's tests write their results, to be compared between drivers.
    pub(crate) fn record(&self, row: &Row) -> PathBuf {
        self.reports.join("records").join(file_name(&row.name())).with_extension("tsv")
    }

    /// Runs a row and judges it. `tick` is called while it runs.
    pub(crate) fn run(&self, row: &Row, tick: &mut dyn FnMut()) -> Done {
        let started = Instant::now();
        let mut done = Done::unstarted(row.name(), Outcome::Passed);
        done.backend = match row.driver {
            Driver::Simulator(_) => "simulator".to_owned(),
            Driver::Gpu => self.gpu.clone(),
        };
        if let Some(reason) = self.lacks(row) {
            return Done::unstarted(row.name(), Outcome::Skipped(reason));
        }
        let log = self.reports.join("logs").join(file_name(&done.name)).with_extension("log");
        let ended = self.steps(row).and_then(|steps| execute(steps, row, &log, &mut done, tick));
        done.time = started.elapsed();
        done.outcome = match ended {
            Err(error) => Outcome::Failed(format!("{error:#}")),
            Ok(()) if done.counts.failed > 0 => {
                Outcome::Failed(format!("{} failed", tests(done.counts.failed)))
            }
            Ok(()) => Outcome::Passed,
        };
        done.log = log.exists().then_some(log);
        done
    }

    /// What the machine lacks for a row, which only shows when the row is about to run.
    fn lacks(&self, row: &Row) -> Option<String> {
        if let Some(engine) = row.engine.filter(|_| row.driver == Driver::Gpu) {
            return engines::find(engine).err();
        }
        let on_machines_python = self.workspace.is_none() || row.driver == Driver::Gpu;
        if row.kind == Kind::Python && on_machines_python { python::lacks() } else { None }
    }

    fn steps(&self, row: &Row) -> Result<Vec<Step>> {
        let mut steps = match row.kind {
            Kind::Tests => self.test_programs(row),
            Kind::Doctests => self.doctests(row),
            Kind::OutsideProject => self.outside_project(row),
            Kind::Python => {
                let simulator = &self.programs.simulator;
                python::steps(self.workspace, &self.scripts, simulator, self.reports, row)
            }
            Kind::Vendored => projects::vendored(self.sources()?, row),
        }?;
        for step in &mut steps {
            self.environment(row, &mut step.command);
        }
        Ok(steps)
    }

    /// How the tests are told which driver to use. Nothing of it is inherited from whoever started this tool.
    fn environment(&self, row: &Row, command: &mut Command) {
        match row.driver {
            Driver::Simulator(version) => {
                command
                    .env("CUDA_MEM_BACKEND", "sim")
                    .env(
                        "CUDA_MEM_SIM",
                        format!("devices={},driver={version},{}", row.devices, row.simulator),
                    )
                    // Whoever opens the system's driver finds the simulator too, also on a machine with a GPU.
                    .env("CUDA_MEM_DRIVER", &self.programs.simulator)
                    // The simulator's own tests are told where it lies, and may leave it alone.
                    .env("CUDA_MEM_SIM_LIBRARY", &self.programs.simulator)
                    .env_remove("CUDA_VISIBLE_DEVICES");
            }
            Driver::Gpu => {
                command
                    .env("CUDA_MEM_BACKEND", "gpu")
                    .env_remove("CUDA_MEM_SIM")
                    .env("CUDA_VISIBLE_DEVICES", visible_devices(row.devices));
                if let Some((variable, path)) = row.engine.and_then(|engine| engines::find(engine).ok()) {
                    command.env(variable, path);
                }
            }
        }
        command
            .env("CUDA_MEM_DEFAULT_STREAM", row.default_stream.name())
            .env("CUDA_MEM_RECORD", self.record(row))
            // For those that call cargo.
            .envs(ONCE)
            .envs(&row.env);
        if let Some(examples) = &self.programs.examples {
            command.env("CUDA_MEM_EXAMPLES", examples);
        }
    }

    fn test_programs(&self, row: &Row) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        for target in &row.targets {
            let mut command = Command::new(self.programs.test(row, target)?);
            command.args(&row.only);
            match self.workspace {
                // As `cargo test` starts them.
                Some(workspace) => {
                    let package = workspace.package(&row.package)?;
                    command
                        .current_dir(package.folder())
                        .env("CARGO_MANIFEST_DIR", package.folder())
                        .env("CARGO_PKG_NAME", &package.name)
                        .env("CARGO_PKG_VERSION", &package.version);
                }
                None => {
                    command.current_dir(self.reports);
                }
            }
            steps.push(Step::tests(target, command));
        }
        Ok(steps)
    }

    fn outside_project(&self, row: &Row) -> Result<Vec<Step>> {
        let command = Command::new(self.outside_programs()?.test(row, projects::OUTSIDE)?);
        Ok(vec![Step::program(projects::OUTSIDE, command)])
    }

    fn outside_programs(&self) -> Result<&Programs> {
        let Some(workspace) = self.workspace else { return Ok(self.programs) };
        let build = || {
            let tests = Builder { workspace, profile: "dev" }.outside_projects(self.rows.iter().copied());
            let programs = tests.map(|tests| Programs { tests, ..Programs::default() });
            programs.map_err(|error| format!("{error:#}"))
        };
        self.outside.get_or_init(build).as_ref().map_err(|error| anyhow!("{error}"))
    }

    fn doctests(&self, row: &Row) -> Result<Vec<Step>> {
        let mut command = Command::new("cargo");
        command
            .current_dir(&self.sources()?.root)
            .args(["test", "--quiet", "--doc"])
            .args(row.packages().flat_map(|package| ["--package", package]))
            .args(row.features.arguments());
        Ok(vec![Step::tests("doctests", command)])
    }

    fn sources(&self) -> Result<&Workspace> {
        self.workspace.context("this row needs the sources")
    }
}

/// Runs the steps in order, one log for all, until one ends badly.
fn execute(steps: Vec<Step>, row: &Row, log: &Path, done: &mut Done, tick: &mut dyn FnMut()) -> Result<()> {
    let started = Instant::now();
    for mut step in steps {
        let file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        let before = file.metadata()?.len();
        let left = row.limit.saturating_sub(started.elapsed());
        let ending = process::run(&mut step.command, &file, left, tick)?;

        let printed = fs::read(log)?;
        let printed = String::from_utf8_lossy(printed.get(usize::try_from(before)?..).unwrap_or_default());
        let report = match step.output {
            Output::Libtest => libtest::parse(&printed),
            Output::Script => script::parse(&printed),
            Output::Free => libtest::Report::of_program(step.name.clone(), ending.is_success()),
        };
        done.counts.add(report.counts);
        done.cases.extend(report.cases);
        match ending {
            Ending::Exited(0) => ensure!(report.counts.ran() > 0, "{}: no test ran", step.name),
            Ending::TimedOut { .. } => {
                let hang = libtest::unfinished(&printed).join(", ");
                let limit = row.limit.as_secs();
                let named = if hang.is_empty() { String::new() } else { format!(": {hang}") };
                bail!("{} was still running when the row's {limit} s were over{named}", step.name)
            }
            // The count of failed tests says it better.
            Ending::Exited(_) if report.counts.failed > 0 => break,
            _ if report.summaries == 0 => bail!("{} {ending} before its summary", step.name),
            _ => bail!("{} {ending} though no test failed", step.name),
        }
    }
    Ok(())
}

/// The first devices of those that the user left visible.
fn visible_devices(count: usize) -> String {
    let visible = match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(visible) => visible.split(',').take(count).map(str::to_owned).collect::<Vec<_>>(),
        Err(_) => (0..count).map(|ordinal| ordinal.to_string()).collect(),
    };
    visible.join(",")
}

/// A row's name as a file name.
fn file_name(row: &str) -> String {
    // The dots of version numbers would be taken for the start of an extension.
    row.replace(['/', '.'], "_")
}

fn tests(count: usize) -> String {
    format!("{count} test{}", if count == 1 { "" } else { "s" })
}
