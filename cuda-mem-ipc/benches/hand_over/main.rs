//! Ours in `cargo xtask bench ipc`: a process that measures what it is asked for, with a second one that it starts itself.
//! docs/benchmarks.md tells what the cases mean.
//!
//! Each case has a file with both ends: `measure` runs in the process that is asked, `play` in the other.

#![allow(clippy::print_stdout, reason = "answers go to the standard output")]

mod first_mapping;
mod floor;
mod leaks;
mod many;
mod mapping_steps;
#[allow(dead_code, reason = "its other users need more of it")]
#[path = "../../../cuda-mem-pool/benches/participant/protocol.rs"]
mod protocol;
mod quiet;
mod side;
mod table;
mod team;
mod warm;

use protocol::{Answer, Outcome, Request};
use team::Lead;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().nth(1).as_deref() == Some(team::SECOND) {
        return team::second();
    }
    let lead = match Lead::start() {
        Ok(lead) => lead,
        Err(error) => return Ok(protocol::say(&Answer::Error(error.to_string()))?),
    };
    protocol::serve(&lead.side.versions()?, |request| answer(&lead, request))
}

fn answer(lead: &Lead, request: &Request) -> Outcome {
    match (request.participant.as_str(), request.case.as_str()) {
        // As in programs of the runtime, which the peers are.
        ("ours", "warm") => lead.side.context.with_current(|| warm::measure(lead, request))?,
        ("floor", "warm") => floor::measure(lead, request),
        ("ours", "many") => many::measure(lead, request),
        ("ours", "first") => first_mapping::measure(lead, request),
        ("announced", "first") => first_mapping::measure_announced(lead, request),
        ("at-once", "first") => first_mapping::measure_at_once(lead, request),
        ("cuIpcOpenMemHandle", "first") => first_mapping::measure_driver(lead, request),
        ("steps", "first") => mapping_steps::measure(lead, request),
        ("ours", "leaks") => leaks::measure(lead, request),
        (who, case) => Err(format!("{who} does not measure {case} here").into()),
    }
}
