//! `cargo xtask gpu-test`: the whole matrix, each row in processes of its own, on the simulator and on the GPU if there is one.

mod build;
mod compare;
mod engines;
mod failures;
mod lanes;
mod libtest;
mod machine;
mod matrix;
mod plan;
mod progress;
mod projects;
mod python;
mod report;
mod run;
mod script;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

pub(crate) use build::{Builder, MANIFEST, Programs, TESTED};
pub(crate) use machine::Machine;
pub(crate) use matrix::{Kind, Matrix};
pub(crate) use plan::{Backend, matches, portable};
pub(crate) use projects::OUTSIDE;
pub(crate) use python::{FOLDER as SCRIPTS, list_name};

use crate::workspace::Workspace;
use build::Broken;
use compare::Compared;
use matrix::Row;
use plan::{Decision, Planned};
use report::Tally;
use run::{Done, Outcome, Runner};

/// Run the test matrix.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Whose driver the rows run on.
    #[arg(long, value_enum, default_value = "auto")]
    backend: Backend,
    /// Only rows whose name holds this text, or matches it with `*` for anything.
    #[arg(long, value_name = "PATTERN")]
    row: Option<String>,
    /// Run each combination; without it the simulator runs as few as have each driver, number of devices and default stream.
    #[arg(long)]
    full: bool,
    /// Run nothing; list the rows and what would become of each.
    #[arg(long)]
    list: bool,
    /// Where logs, records, JUnit and JSON go [default: target/gpu-test, or gpu-test-report beside a bundle].
    #[arg(long, value_name = "DIR")]
    report_dir: Option<PathBuf>,
}

/// Where the tool stands.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Home<'a> {
    /// In the workspace, with cargo.
    Workspace(&'a Path),
    /// In a bundle, with what it carries and nothing else.
    Bundle(&'a Path),
}

/// Runs the matrix; whether everything that ran passed.
pub(crate) fn run(home: Home<'_>, arguments: &Arguments) -> Result<bool> {
    let (workspace, files, default_reports) = match home {
        Home::Workspace(root) => (Some(Workspace::read(root)?), root.join("ci"), "target/gpu-test"),
        Home::Bundle(folder) => (None, folder.to_path_buf(), "gpu-test-report"),
    };
    let (Home::Workspace(base) | Home::Bundle(base)) = home;
    let reports = arguments.report_dir.clone().unwrap_or_else(|| base.join(default_reports));
    let reports = clean(&reports)?;

    let mut rows = Matrix::read(&files.join("gpu-matrix.toml"))?.rows;
    if workspace.is_none() {
        rows = portable(&rows);
    }
    if let Some(pattern) = &arguments.row {
        rows.retain(|row| matches(pattern, &row.name()));
        ensure!(!rows.is_empty(), "no row matches `{pattern}`; `--list --full` shows them all");
    }
    let all = rows.len();
    // Whoever names rows of the others alone means them.
    if !arguments.full && rows.iter().any(|row| !row.full) {
        rows.retain(|row| !row.full);
    }
    let left_out = match all - rows.len() {
        0 => String::new(),
        count => format!(
            "; {count} more with `--full`, each combination of what these cover and each feature alone"
        ),
    };

    let mut programs = match (&workspace, home) {
        (Some(workspace), _) => {
            let builder = Builder { workspace, profile: "dev" };
            Programs { probe: builder.extra("example", "cuda-mem-sys", "probe")?, ..Programs::default() }
        }
        (None, _) => Programs::carried(base)?,
    };
    let machine = Machine::probe(&programs.probe, &reports)?;
    println!("machine: {}", machine.describe());
    let plan = plan::plan(rows, arguments.backend, &machine);
    ensure!(!plan.is_empty(), "no row left: none of those chosen is for this backend");
    println!("backend: {}", backend(arguments.backend, &machine));
    if arguments.list {
        list(&plan);
        println!("{} rows{left_out}", plan.len());
        return Ok(true);
    }

    let mut broken = Broken::new();
    let runnable = plan.iter().filter(|planned| planned.decision == Decision::Run);
    let rows = runnable.map(|planned| &planned.row).collect::<Vec<_>>();
    if let Some(workspace) = &workspace {
        let builder = Builder { workspace, profile: "dev" };
        (programs.tests, broken) = builder.tests(rows.iter().copied());
        // Most of it is built by now, and was beside the rest.
        programs.simulator = builder.simulator()?;
        // As a newcomer has them built.
        programs.examples = if arguments.full { None } else { builder.examples(rows.iter().copied()) };
    }
    let gpu = machine.gpu.as_ref().map_or("-", |gpu| &gpu.devices[0].name);
    let runner = Runner {
        workspace: workspace.as_ref(),
        programs: &programs,
        outside: OnceLock::new(),
        rows,
        reports: &reports,
        scripts: files.join(SCRIPTS),
        gpu: gpu.to_owned(),
    };
    let mut done = lanes::run(&plan, &runner, &broken);
    let known = files.join("known-differences.tsv");
    if let Some(comparison) = compare_rows(&plan, &done, &runner, &known, arguments.row.is_some())? {
        done.push(comparison);
    }

    report::write(&machine, &done, &reports)?;
    show(&done, &reports, &left_out);
    Ok(Tally::of(&done).is_success())
}

/// Makes the folder, and removes what an earlier run left in it.
fn clean(reports: &Path) -> Result<PathBuf> {
    for name in ["logs", "records"] {
        let folder = reports.join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    for name in ["report.json", "junit.xml", "comparison.tsv", "comparison.md"] {
        let file = reports.join(name);
        if file.exists() {
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
    }
    // Rows run in other folders.
    reports.canonicalize().with_context(|| format!("cannot find {}", reports.display()))
}

/// Which driver the rows get, in words.
fn backend(backend: Backend, machine: &Machine) -> &'static str {
    match (backend, machine.gpu.is_ok()) {
        (Backend::Sim, _) => "simulator, as asked",
        (Backend::Gpu, true) => "GPU, as asked, and the simulator to compare with",
        (Backend::Gpu, false) => "GPU, as asked; there is none",
        (Backend::Auto, true) => "GPU, and the simulator beside it",
        (Backend::Auto, false) => "simulator; there is no GPU",
    }
}

fn list(plan: &[Planned]) {
    for Planned { row, decision, .. } in plan {
        match decision {
            Decision::Run => println!("{}", row.name()),
            Decision::Skip(reason) => println!("{} (would be skipped: {reason})", row.name()),
            Decision::Fail(reason) => println!("{} (would fail: {reason})", row.name()),
        }
    }
}

/// The row `comparison`: what hardware and simulator recorded in the same tests. None where no hardware row ran.
fn compare_rows(
    plan: &[Planned],
    done: &[Done],
    runner: &Runner<'_>,
    known: &Path,
    is_selection: bool,
) -> Result<Option<Done>> {
    let started = Instant::now();
    let pairs: Vec<(&Row, &Row)> = plan
        .iter()
        .zip(done)
        .filter(|(_, done)| !matches!(done.outcome, Outcome::Skipped(_)))
        .filter_map(|(planned, _)| Some((&planned.row, &plan[planned.twin?].row)))
        .collect();
    if pairs.is_empty() {
        return Ok(None);
    }
    let known = compare::known(known)?;
    let mut compared: Vec<Compared> = Vec::new();
    for (hardware, simulated) in pairs {
        let record = |row: &Row| compare::record(row.short_package(), &runner.record(row));
        let (simulator, gpu) = (record(simulated)?, record(hardware)?);
        compared.extend(compare::compare(&hardware.name(), &simulator, &gpu, &known));
    }
    compare::write(&compared, runner.reports)?;
    let (count, different) = compare::judge(&compared);
    for compared in different.iter().take(20) {
        println!("differs: {}", compared.describe());
    }
    let outcome = match (count, different.len()) {
        // Of some rows nothing is recorded; of all, something is, or the comparison is broken.
        (0, _) if is_selection => Outcome::Skipped("the chosen rows record nothing to compare".to_owned()),
        (0, _) => Outcome::Failed("the tests recorded nothing to compare".to_owned()),
        (_, 0) => Outcome::Passed,
        (_, different) => Outcome::Failed(format!("{different} of {count} results differ without a reason")),
    };
    let counts = libtest::Counts { passed: count - different.len(), failed: different.len(), ignored: 0 };
    Ok(Some(Done {
        backend: "both".to_owned(),
        counts,
        time: started.elapsed(),
        ..Done::unstarted("comparison".to_owned(), outcome)
    }))
}

/// The end of a run: the table, why rows failed, the tally. The table is long, and of long outputs the end is kept.
fn show(done: &[Done], reports: &Path, left_out: &str) {
    println!("\n{}\n{}", report::summary(done), failures::text(done));
    println!("{} rows{left_out}\nlogs and reports: {}\n{}", done.len(), reports.display(), Tally::of(done));
}
