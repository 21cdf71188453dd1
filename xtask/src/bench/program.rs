//! A program that takes part: started once, asked one line at a time, ended with its standard input.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::process;

/// What a program may take to start, and to answer: PyTorch's start on a cold disk, tens of GiB pinned page by page.
const PATIENCE: Duration = Duration::from_secs(180);

/// What a program says, one a line.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// First of all: it runs, with these versions.
    Ready(Map<String, Value>),
    /// What it measured, by metric.
    Figures(BTreeMap<String, f64>),
    /// It cannot take part, and why.
    Skip(String),
    /// It tried and failed.
    Error(String),
}

/// A running program.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    /// None once it has been told to end.
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Program {
    /// Starts it and waits for its first answer. What it writes to standard error goes to `log`.
    pub(crate) fn start(command: &mut Command, log: File) -> Result<(Self, Answer)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        process::own_group(command);
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("a child without an output")?;
        let (sender, lines) = channel();
        // Ends with the program, or with this value: then nobody receives.
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // Libraries may print too: an answer is an object.
                if line.starts_with('{') && sender.send(line).is_err() {
                    return;
                }
            }
        });
        let program = Self { child, input, lines };
        let answer = program.answer();
        Ok((program, answer))
    }

    /// Asks for one measurement.
    pub(crate) fn ask(&mut self, request: &str) -> Answer {
        let told = match &mut self.input {
            Some(input) => writeln!(input, "{request}").and_then(|()| input.flush()),
            None => return Answer::Error("the program has ended".to_owned()),
        };
        match told {
            Ok(()) => self.answer(),
            Err(error) => Answer::Error(format!("the program does not listen: {error}")),
        }
    }

    fn answer(&self) -> Answer {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => serde_json::from_str(&line)
                .unwrap_or_else(|error| Answer::Error(format!("it wrote `{line}`: {error}"))),
            Err(RecvTimeoutError::Disconnected) => Answer::Error("the program ended".to_owned()),
            Err(RecvTimeoutError::Timeout) => {
                // Its next answer would be taken for another question's.
                process::kill_group(&self.child);
                Answer::Error(format!("no answer within {} s", PATIENCE.as_secs()))
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.input.take());
        for _ in 0..100 {
            match self.child.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(100)),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        process::kill_group(&self.child);
        // Killed: it ends, whatever it was doing.
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (Program, Answer) {
        let log = File::options().write(true).open("/dev/null").unwrap();
        Program::start(Command::new("sh").args(["-c", script]), log).unwrap()
    }

    #[test]
    fn questions_and_answers() {
        let script = r#"echo noise; echo '{"ready":{"version":"1"}}'
            read question; echo "{\"error\":\"$question\"}"
            read question; echo '{"figures":{"ready":1.5}}'
            read question; echo '{"skip":"no"}'; echo '{wrong'; read question"#;
        let (mut program, first) = shell(script);
        assert!(matches!(first, Answer::Ready(info) if info["version"] == "1"));
        assert_eq!(program.ask("ours pair"), Answer::Error("ours pair".to_owned()));
        assert_eq!(program.ask(""), Answer::Figures([("ready".to_owned(), 1.5)].into()));
        assert_eq!(program.ask(""), Answer::Skip("no".to_owned()));
        assert!(matches!(program.ask(""), Answer::Error(why) if why.contains("it wrote `{wrong`")));
    }

    #[test]
    fn one_that_dies_is_an_error_and_not_a_wait() {
        let (mut program, first) = shell("exit 3");
        assert_eq!(first, Answer::Error("the program ended".to_owned()));
        assert!(matches!(program.ask("ours pair"), Answer::Error(_)));
    }
}
