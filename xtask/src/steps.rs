//! A list of checks that are run one after the other, each timed, with a table and a tally at the end.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
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

/// How much of a failed step's output is told again, in bytes: of a long log often only the end is kept.
const TAIL: usize = 4 << 10;

/// How long nothing has to be heard of a command that has ended before what it left behind is not listened to any more.
const SILENCE: Duration = Duration::from_secs(1);

/// The steps so far. A failed one does not keep the next from running: all that is wrong is told at once.
#[derive(Debug)]
pub(crate) struct Steps {
    /// Where commands run.
    root: PathBuf,
    /// What each of them finds in its environment.
    env: Vec<(&'static str, PathBuf)>,
    ended: Vec<(String, Outcome, Duration)>,
    /// The end of what each failed step printed.
    tails: Vec<(String, String)>,
}

impl Steps {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf(), env: Vec::new(), ended: Vec::new(), tails: Vec::new() }
    }

    /// Tells all commands from here on where something lies.
    pub(crate) fn env(&mut self, name: &'static str, path: &Path) {
        self.env.push((name, path.to_path_buf()));
    }

    /// Runs a command that shows its own output.
    pub(crate) fn command(&mut self, name: &str, command: &mut Command) {
        let line = describe(command);
        command.current_dir(&self.root).envs(self.env.iter().map(|(name, path)| (name, path)));
        let mut tail = String::new();
        self.check(name, &line, || {
            let (status, end) = shown(command).with_context(|| format!("cannot run {line}"))?;
            tail = end;
            Ok(status.success().then_some(()).ok_or_else(|| process::Ending::from(status).to_string()))
        });
        if self.ended.last().is_some_and(|(_, outcome, _)| matches!(outcome, Outcome::Failed(_))) {
            self.tails.push((name.to_owned(), tail));
        }
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

    /// Prints how the failed steps' output ended, the table and the tally; whether nothing failed.
    pub(crate) fn finish(self) -> bool {
        for (name, tail) in &self.tails {
            println!("\n== {name} FAILED; its last words:\n{tail}");
        }
        println!("\n{}\n{}", self.table(), self.tally());
        self.failures() == 0
    }

    /// How many failed so far.
    pub(crate) fn failures(&self) -> usize {
        self.ended.iter().filter(|(_, outcome, _)| matches!(outcome, Outcome::Failed(_))).count()
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

/// Runs a command, shows both its outputs as they come, and returns their end.
///
/// What the command leaves behind may keep its outputs open: once it has ended, silence ends the reading too.
fn shown(command: &mut Command) -> io::Result<(ExitStatus, String)> {
    let (output, end) = io::pipe()?;
    let mut child = command.stdout(end.try_clone()?).stderr(end).spawn()?;
    // Of the pipe's writing end the command holds copies too: the output ends when those are closed.
    command.stdout(Stdio::inherit()).stderr(Stdio::inherit());
    let blocks = blocks_of(output);
    let mut tail = VecDeque::with_capacity(TAIL);
    let mut last = None;
    let status = loop {
        match blocks.recv_timeout(SILENCE) {
            Ok(text) => {
                if let Err(error) = print(&text) {
                    // Nobody looks any more. What it was doing ends with it.
                    child.kill()?;
                    child.wait()?;
                    return Err(error);
                }
                tail.extend(&text);
                tail.drain(..tail.len().saturating_sub(TAIL));
            }
            Err(RecvTimeoutError::Disconnected) => break child.wait()?,
            // The time between the end and this look may have had output: one more silence.
            Err(RecvTimeoutError::Timeout) => match last {
                Some(status) => break status,
                None => last = child.try_wait()?,
            },
        }
    };
    let tail = String::from_utf8_lossy(tail.make_contiguous());
    // The first line is cut where the rest was let go.
    let whole =
        tail.split_once('\n').map_or(&*tail, |(_, rest)| if tail.len() < TAIL { &tail } else { rest });
    Ok((status, whole.trim_end().to_owned()))
}

/// What comes out of a pipe, until it is closed.
fn blocks_of(mut output: io::PipeReader) -> mpsc::Receiver<Vec<u8>> {
    let (sender, blocks) = mpsc::channel();
    thread::spawn(move || {
        let mut block = vec![0; TAIL];
        loop {
            match output.read(&mut block) {
                Ok(0) => return,
                Ok(length) if sender.send(block[..length].to_vec()).is_ok() => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    });
    blocks
}

fn print(text: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text)?;
    stdout.flush()
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
    // In a process group of its own, so that what a test started ends with it. Ctrl-C does not reach that group, so it is told to
    // end when cargo does.
    let limit = format!("setpriv --pdeathsig TERM timeout --kill-after=10 {seconds} {wrapper}");
    command.env(runner, limit.trim_end())
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
    fn a_test_that_hangs_ends_with_what_it_started() {
        let mut hang = Command::new("sh");
        let script = "sleep 600 & echo $!; sleep 600";
        let runner = "$(env | sed -n 's/^CARGO_TARGET_.*_RUNNER=//p')";
        hang.args(["-c", &format!("{runner} sh -c '{script}'")]);
        let (status, said) = shown(limit_tests(&mut hang, 1, "")).unwrap();
        assert_eq!(status.code(), Some(124));
        assert!(said.parse::<u32>().is_ok(), "{said}");
        // It has been killed, which takes as long as it takes.
        let killed = Instant::now();
        while is_running(&said) {
            assert!(killed.elapsed() < Duration::from_secs(60), "{said}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn what_a_step_leaves_behind_does_not_hold_it_up() {
        let mut leaves = Command::new("sh");
        let (status, said) = shown(leaves.args(["-c", "sleep 600 & echo $!"])).unwrap();
        assert!(status.success() && is_running(&said), "{said}");
        assert!(Command::new("kill").arg(&said).status().unwrap().success());
    }

    /// Whether there is a process of that number that has not ended.
    fn is_running(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
    }

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
    fn a_failed_step_keeps_its_last_words() {
        let mut steps = Steps::new(Path::new("/"));
        steps.command("quiet", Command::new("sh").args(["-c", "echo fine"]));
        steps.command("loud", Command::new("sh").args(["-c", "seq 1 5000; echo why >&2; exit 3"]));
        let [(name, tail)] = &steps.tails[..] else { panic!("{:?}", steps.tails) };
        assert_eq!(name, "loud");
        assert!(tail.ends_with("4999\n5000\nwhy") && tail.len() < TAIL, "{tail}");
        assert!(tail.lines().next().is_some_and(|line| line.len() == 4), "no cut line: {tail}");
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
