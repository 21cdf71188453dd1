//! The simulator answers as the hardware does: named cases, run through any driver, compared with what was measured.
//!
//! On the simulator, which is the default, each result must be the one in `hardware.tsv`. With `CUDA_MEM_BACKEND=gpu` the
//! cases run on the system's driver, each in a process of its own because some are the end of it, and are compared just
//! the same. `CUDA_MEM_RECORD=FILE` writes `conformance<TAB>case<TAB>result` lines to a file, whatever the backend.
//!
//! A line of `hardware.tsv` with a third column is a difference that is known: what the simulator answers, and in a fourth
//! why.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "this is a test"
)]

mod captures;
mod contexts;
mod device;
mod host;
mod ipc;
mod machine;
mod pointers;
mod pools;
mod questions;
mod shared_pools;
mod streams;
mod vmm;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use machine::Machine;

/// A name, and what gives the result: codes and values, joined by blanks.
pub(crate) type Case = (&'static str, fn(&Machine) -> String);

/// How long a case may take in a process of its own.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tells the process that is to run one case which.
const CASE: &str = "CUDA_MEM_CASE";

/// Marks the line with the result in what that process prints.
const RESULT: &str = "conformance result: ";

fn cases() -> impl Iterator<Item = &'static Case> {
    let runtime = [streams::CASES, captures::CASES, contexts::CASES];
    let memory = [
        device::CASES,
        host::CASES,
        pointers::CASES,
        pools::CASES,
        shared_pools::CASES,
        vmm::CASES,
        ipc::CASES,
    ];
    runtime.into_iter().chain(memory).flatten()
}

/// What the hardware answers and, where that is known to differ, what the simulator does.
fn measured() -> BTreeMap<&'static str, (&'static str, Option<&'static str>)> {
    let lines =
        include_str!("../hardware.tsv").lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let columns = lines.map(|line| line.split('\t').collect::<Vec<_>>());
    columns.map(|columns| (columns[0], (columns[1], columns.get(2).copied()))).collect()
}

fn is_gpu() -> bool {
    match std::env::var("CUDA_MEM_BACKEND").as_deref() {
        Err(_) | Ok("sim") => false,
        Ok("gpu") => true,
        Ok(other) => panic!("CUDA_MEM_BACKEND cannot be {other:?}; accepted: sim, gpu"),
    }
}

#[test]
fn every_case_has_a_name_of_its_own_and_was_measured() {
    let mut names: Vec<_> = cases().map(|case| case.0).collect();
    let measured = measured();
    for name in &names {
        assert!(measured.contains_key(name), "{name} is not in hardware.tsv");
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    for name in measured.keys() {
        assert!(names.contains(name), "{name} of hardware.tsv is no case");
    }
}

#[test]
fn the_driver_answers_as_measured() {
    let (gpu, measured) = (is_gpu(), measured());
    let (mut record, mut wrong) = (String::new(), String::new());
    for (name, run) in cases() {
        let result = if gpu { in_own_process(name) } else { run(&Machine::simulated()) };
        writeln!(record, "conformance\t{name}\t{result}").unwrap();
        // Where the two are known to differ, hardware was also seen to do what the simulator does: it is a matter of luck
        // whether what is left behind a destroyed handle ends the process.
        let expected = match measured.get(name) {
            Some(&(hardware, Some(simulated))) if gpu => [hardware, simulated],
            Some(&(_, Some(simulated))) => [simulated; 2],
            Some(&(hardware, None)) => [hardware; 2],
            None => ["(never measured)"; 2],
        };
        if !expected.contains(&result.as_str()) {
            writeln!(wrong, "{name}: {result}, measured {}", expected[0]).unwrap();
        }
    }
    if let Some(path) = std::env::var_os("CUDA_MEM_RECORD") {
        std::fs::write(path, record).unwrap();
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

fn in_own_process(name: &str) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "one_case", "--ignored", "--nocapture"])
        .env(CASE, name)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
            return "never returns".to_owned();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let line = printed.lines().find_map(|line| line.split_once(RESULT));
    line.map_or_else(|| "crash".to_owned(), |(_, result)| result.to_owned())
}

#[test]
#[ignore = "run by the comparison, in a process of its own"]
fn one_case() {
    let name = std::env::var(CASE).expect(CASE);
    let (_, run) = cases().find(|case| case.0 == name).expect("a case of that name");
    let machine = if is_gpu() { Machine::real() } else { Machine::simulated() };
    println!("{RESULT}{}", run(&machine));
}
