//! Ours in `cargo xtask bench symmetric`: a process that measures what it is asked for, with two ranks that it starts itself.
//! docs/benchmarks.md tells what the cases mean.
//!
//! The ranks are processes, each with a device of its own where there are two. `crew` has the asking, `cases` what each rank does.

#![allow(clippy::print_stdout, reason = "answers go to the standard output")]

mod board;
mod cases;
mod crew;
#[allow(dead_code, reason = "its other users need more of it")]
#[path = "../../../cuda-mem-pool/benches/participant/protocol.rs"]
mod protocol;
mod rank;
mod timed;

use std::error::Error;

use crew::Crew;
use protocol::{Answer, Outcome, Request};

/// The argument that makes a process a rank; its number and the group's directory follow.
const RANK: &str = "--rank";

/// What `cases::fresh` finds, in its order.
const FRESH: &[&str] = &[
    "fresh",
    "allocate",
    "rendezvous",
    "first_read",
    "create",
    "export",
    "map",
    "access",
    "clear",
    "announce",
    "import",
    "peer_map",
    "peer_access",
    "exchange",
    "words",
    "grown",
];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = std::env::args().skip(1).collect::<Vec<_>>();
    if let [role, number, directory] = &arguments[..]
        && role == RANK
    {
        return crew::be_rank(number.parse()?, directory.as_ref());
    }
    let versions = match rank::versions() {
        Ok(versions) => versions,
        Err(error) => return Ok(protocol::say(&Answer::Error(error.to_string()))?),
    };
    let mut staying = None;
    protocol::serve(&versions, |request| answer(&mut staying, request))
}

fn answer(staying: &mut Option<Crew>, request: &Request) -> Outcome {
    let numbers = |names: &[&str]| {
        names.iter().map(|name| request.number::<f64>(name)).collect::<Result<Vec<_>, Box<dyn Error>>>()
    };
    let (case, names, metrics): (_, &[_], &[_]) = match request.case.as_str() {
        "start" => {
            // Processes that have a context and nothing else.
            let crew = Crew::start()?;
            return Ok(figures(&["start", "join"], &crew.ask("start", &numbers(&["bytes"])?)?));
        }
        "inside" => ("inside", &["times", "bytes"], &["p50", "p99", "allocation", "handle"]),
        "fresh" => ("fresh", &["times", "bytes"], FRESH),
        "read" => ("read", &["times", "bytes"], &["rate"]),
        other => return Err(format!("{other} is not measured here").into()),
    };
    if staying.is_none() {
        let crew = Crew::start()?;
        crew.ask("start", &numbers(&["bytes"])?)?;
        *staying = Some(crew);
    }
    let found = staying.as_ref().ok_or("there are no ranks")?.ask(case, &numbers(names)?);
    if found.is_err() {
        // They may have come apart.
        *staying = None;
    }
    Ok(figures(metrics, &found?))
}

/// What was found, by name; nothing for what is no number.
fn figures(names: &[&'static str], found: &[f64]) -> Answer {
    let all = names.iter().copied().zip(found.iter().copied());
    Answer::Figures(all.filter(|(_, value)| value.is_finite()).collect())
}
