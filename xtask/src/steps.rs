//! A list of checks that are run one after the other, each timed, with a table and a tally at the end.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::process;
use crate::table;

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

/// The steps so far. A failed one does not keep the next from running: all that is wrong is told at once.
#[derive(Debug)]
pub(crate) struct Steps {
    /// Where commands run.
    root: PathBuf,
    ended: Vec<(String, Outcome, Duration)>,
}

impl Steps {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf(), ended: Vec::new() }
    }

    /// Runs a command that shows its own output.
    pub(crate) fn command(&mut self, name: &str, command: &mut Command) {
        command.current_dir(&self.root);
        let line = describe(command);
        self.check(name, &line, || {
            let status = command.status().with_context(|| format!("cannot start {line}"))?;
            Ok(status.success().then_some(()).ok_or_else(|| process::Ending::from(status).to_string()))
        });
    }

    /// Runs a check in this process; the inner error is a finding, the outer one means that it could not be made.
    pub(crate) fn check(
        &mut self,
        name: &str,
        what: &str,
        check: impl FnOnce() -> Result<Result<(), String>>,
    ) {
        println!("\n== {name}: {what}");
        let started = Instant::now();
        let outcome = match check() {
            Ok(Ok(())) => Outcome::Passed,
            Ok(Err(finding)) => Outcome::Failed(finding),
            Err(error) => Outcome::Failed(format!("{error:#}")),
        };
        if let Outcome::Failed(reason) = &outcome {
            println!("== {name} FAILED: {reason}");
        }
        self.ended.push((name.to_owned(), outcome, started.elapsed()));
    }

    /// Notes a step that cannot be made here, and why.
    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        println!("\n== {name} skipped: {reason}");
        self.ended.push((name.to_owned(), Outcome::Skipped(reason.to_owned()), Duration::ZERO));
    }

    /// Prints the table and the tally; whether nothing failed.
    pub(crate) fn finish(self) -> bool {
        println!("\n{}\n{}", self.table(), self.tally());
        !self.ended.iter().any(|(_, outcome, _)| matches!(outcome, Outcome::Failed(_)))
    }

    fn table(&self) -> String {
        let rows = self.ended.iter().map(|(name, outcome, time)| {
            let (time, result) = match outcome {
                Outcome::Passed => (table::seconds(*time), "passed".to_owned()),
                Outcome::Failed(reason) => (table::seconds(*time), format!("FAILED: {reason}")),
                Outcome::Skipped(reason) => ("-".to_owned(), format!("skipped: {reason}")),
            };
            vec![name.clone(), time, result]
        });
        table::render(&["step", "time", "result"], &rows.collect::<Vec<_>>(), &[1])
    }

    fn tally(&self) -> String {
        let count =
            |of: fn(&Outcome) -> bool| self.ended.iter().filter(|(_, outcome, _)| of(outcome)).count();
        format!(
            "{} passed, {} failed, {} skipped",
            count(|outcome| *outcome == Outcome::Passed),
            count(|outcome| matches!(outcome, Outcome::Failed(_))),
            count(|outcome| matches!(outcome, Outcome::Skipped(_)))
        )
    }
}

/// A cargo command from its words.
pub(crate) fn cargo(words: &str) -> Command {
    let mut command = Command::new("cargo");
    command.args(words.split(' '));
    command
}

/// Ends each test executable that cargo starts after `seconds`: a hang is a failure, and not a wait.
///
/// `wrapper` is what else is put in front of an executable.
pub(crate) fn limit_tests<'c>(command: &'c mut Command, seconds: u32, wrapper: &str) -> &'c mut Command {
    let runner = format!("CARGO_TARGET_{}_UNKNOWN_LINUX_GNU_RUNNER", std::env::consts::ARCH.to_uppercase());
    // In the foreground, so that Ctrl-C still reaches the tests.
    command.env(runner, format!("timeout --foreground --kill-after=10 {seconds} {wrapper}").trim_end())
}

/// Whether a command succeeds within a time, its output thrown away: for questions, not for checks.
pub(crate) fn succeeds(command: &mut Command, limit: Duration) -> bool {
    let Ok(nowhere) = File::options().write(true).open("/dev/null") else { return false };
    process::run(command, &nowhere, limit, &mut || ()).is_ok_and(process::Ending::is_success)
}

/// A command as one would type it.
fn describe(command: &Command) -> String {
    let settings = command.get_envs().filter_map(|(name, value)| {
        let value = value?.to_string_lossy();
        let value = if value.contains(' ') { format!("'{value}'") } else { value.into_owned() };
        Some(format!("{}={value}", name.to_string_lossy()))
    });
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words = words.map(|word| word.to_string_lossy().into_owned());
    settings.chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_counted_once() {
        let mut steps = Steps::new(Path::new("/"));
        steps.command("true", &mut Command::new("true"));
        steps.command("false", &mut Command::new("false"));
        steps.check("finding", "", || Ok(Err("wrong".to_owned())));
        steps.skip("absent", "no tool");
        assert_eq!(steps.tally(), "1 passed, 2 failed, 1 skipped");
        let table = steps.table();
        assert!(table.contains("FAILED: exited with 1") && table.contains("skipped: no tool"), "{table}");
        assert!(!steps.finish());
    }

    #[test]
    fn skips_are_not_failures() {
        let mut steps = Steps::new(Path::new("/"));
        steps.skip("absent", "no tool");
        assert!(steps.finish());
    }

    #[test]
    fn a_command_reads_as_it_is_typed() {
        let mut command = Command::new("cargo");
        command.arg("doc").env("FLAGS", "-D warnings").env_remove("OTHER");
        assert_eq!(describe(&command), "FLAGS='-D warnings' cargo doc");
    }
}
