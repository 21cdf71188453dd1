//! Ours in `cargo xtask bench`: a process that measures what it is asked for, one line each. docs/benchmarks.md tells what the
//! cases mean.
//!
//! It is asked `PARTICIPANT CASE key=value ...` on its standard input and answers with one JSON object.

#![allow(clippy::print_stdout, reason = "answers go to the standard output")]

mod machine;
mod memory;
mod mix;
mod pair;
mod protocol;
mod ready;
mod staging;

use cuda_mem_pool::cuda_mem_core::Driver;

use machine::Machine;
use pair::Pairs;
use protocol::{Answer, Outcome, Request};
use staging::Staging;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let driver = match std::env::var("CUDA_MEM_BACKEND").as_deref() {
        Ok("sim") => Driver::over(cuda_mem_sim::table()),
        _ => Driver::system(),
    };
    let machine = match driver.and_then(Machine::new) {
        Ok(machine) => machine,
        Err(error) => return Ok(protocol::say(&Answer::Error(error.to_string()))?),
    };
    let mut staging = Staging::default();
    let pairs = Pairs::new(&machine);
    protocol::serve(&machine.versions()?, |request| answer(&machine, &pairs, &mut staging, request))
}

fn answer(machine: &Machine, pairs: &Pairs, staging: &mut Staging, request: &Request) -> Outcome {
    match request.case.as_str() {
        "ready" => ready::measure(machine, request),
        "pair" => pairs.measure(request),
        "h2d" | "d2h" => staging.measure(machine, request),
        "mix" => mix::measure(machine, request),
        other => Err(format!("nobody measures {other} here").into()),
    }
}
