//! Ours in `cargo xtask bench`: a process that measures what it is asked for, one line each. docs/benchmarks.md tells what the
//! cases mean.
//!
//! It is asked `PARTICIPANT CASE key=value ...` on its standard input and answers with one JSON object.

#![allow(clippy::print_stdout, reason = "answers go to the standard output")]

mod again;
mod device;
mod machine;
mod memory;
mod mix;
mod pair;
mod protocol;
mod ready;
mod staging;

use cuda_mem_pool::cuda_mem_core::Driver;

use again::Again;
use device::Device;
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
    let mut kept = Kept {
        pairs: Pairs::new(&machine),
        again: Again::default(),
        staging: Staging::default(),
        device: None,
    };
    protocol::serve(&machine.versions()?, |request| kept.answer(&machine, request))
}

/// What lives from one round to the next.
struct Kept {
    pairs: Pairs,
    again: Again,
    staging: Staging,
    device: Option<Device>,
}

impl Kept {
    fn answer(&mut self, machine: &Machine, request: &Request) -> Outcome {
        match request.case.as_str() {
            "ready" => ready::measure(machine, request),
            "pair" => self.pairs.measure(request),
            "mix" => mix::measure(machine, request),
            "again" => self.again.measure(machine, request),
            "h2d" | "d2h" => self.staging.measure(machine, request),
            "churn" | "hit" | "remote" | "random" | "streams" | "pressure" => {
                let device = match &self.device {
                    Some(device) => device,
                    None => self.device.insert(Device::new(machine)?),
                };
                device.measure(machine, request)
            }
            other => Err(format!("nobody measures {other} here").into()),
        }
    }
}
