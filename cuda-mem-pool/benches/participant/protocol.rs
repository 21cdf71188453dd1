//! Lines in, lines out.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::str::FromStr;

pub(crate) type Outcome = Result<Answer, Box<dyn Error>>;

/// What is to be measured.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) participant: String,
    pub(crate) case: String,
    arguments: BTreeMap<String, String>,
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Answer {
    Ready(BTreeMap<&'static str, String>),
    Figures(Vec<(&'static str, f64)>),
    Error(String),
}

impl Request {
    fn parse(line: &str) -> Result<Self, Box<dyn Error>> {
        let mut words = line.split_whitespace();
        let (Some(participant), Some(case)) = (words.next(), words.next()) else {
            return Err(format!("`{line}` names no participant and case").into());
        };
        let arguments = words
            .map(|word| {
                let (key, value) = word.split_once('=').ok_or_else(|| format!("`{word}` is no key=value"))?;
                Ok((key.to_owned(), value.to_owned()))
            })
            .collect::<Result<_, Box<dyn Error>>>()?;
        Ok(Self { participant: participant.to_owned(), case: case.to_owned(), arguments })
    }

    /// Whether the argument is there at all.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.arguments.contains_key(key)
    }

    /// A number.
    pub(crate) fn number<N: FromStr>(&self, key: &str) -> Result<N, Box<dyn Error>> {
        let value = self.arguments.get(key).ok_or_else(|| format!("no {key} is given"))?;
        value.parse().map_err(|_| format!("{key} is `{value}`, which is no number").into())
    }

    /// Numbers, separated by commas.
    pub(crate) fn numbers(&self, key: &str) -> Result<Vec<usize>, Box<dyn Error>> {
        let list = self.arguments.get(key).ok_or_else(|| format!("no {key} are given"))?;
        let number =
            |word: &str| word.parse().map_err(|_| format!("{key} hold `{word}`, which is no number").into());
        list.split(',').map(number).collect()
    }
}

/// Answers until the standard input ends.
pub(crate) fn serve(
    versions: &BTreeMap<&'static str, String>,
    mut answer: impl FnMut(&Request) -> Outcome,
) -> Result<(), Box<dyn Error>> {
    say(&Answer::Ready(versions.clone()))?;
    for line in io::stdin().lines() {
        let outcome = Request::parse(&line?).and_then(|request| answer(&request));
        say(&outcome.unwrap_or_else(|error| Answer::Error(error.to_string())))?;
    }
    Ok(())
}

/// Writes one answer.
pub(crate) fn say(answer: &Answer) -> io::Result<()> {
    let line = match answer {
        Answer::Ready(versions) => {
            let pairs = versions.iter().map(|(name, version)| format!("{}:{}", quote(name), quote(version)));
            format!("{{\"ready\":{{{}}}}}", pairs.collect::<Vec<_>>().join(","))
        }
        Answer::Figures(figures) => {
            let pairs = figures.iter().map(|(metric, value)| format!("{}:{value:e}", quote(metric)));
            format!("{{\"figures\":{{{}}}}}", pairs.collect::<Vec<_>>().join(","))
        }
        Answer::Error(reason) => format!("{{\"error\":{}}}", quote(reason)),
    };
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()
}

/// A JSON string.
fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            // Writing to a string does not fail.
            control if control.is_control() => drop(write!(quoted, "\\u{:04x}", u32::from(control))),
            other => quoted.push(other),
        }
    }
    quoted + "\""
}
