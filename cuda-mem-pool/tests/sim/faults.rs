//! Every driver call of every scenario fails once, each in a run of its own, on machines of every kind.
//!
//! Whatever fails, nothing may panic, abort or hang; what comes back is a result or a typed error; the current context and the
//! capture mode are as they were; and when everything was dropped, nothing is left and no memory was misused.
//!
//! The machines of a driver, which differ little, share its calls, and so do an older and a newer driver with two others: each machine has
//! every sixth call fail, and so every call fails on two drivers; on all machines of all drivers if `CUDA_MEM_FAULTS` is `all`.

use std::collections::BTreeMap;
use std::mem::discriminant;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use cuda_mem_core::Driver;
use cuda_mem_core::sys::{CUresult, Table};
use cuda_mem_pool::{Error, Result};
use cuda_mem_sim::{Sim, Struck};

use crate::common::capture::{THREAD_LOCAL, exchange_mode, thread_mode};
use crate::machines::{Machine, machines};
use crate::scenarios::{self, Scenario};

/// How many machines share the calls: the three of a driver, and those of the next one.
const SHARED_BY: u64 = 6;

/// What calls fail with: a lack of memory and an invalid value, which the crate explains, and what may be anybody's error.
const CODES: [CUresult; 3] =
    [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_INVALID_VALUE, CUresult::CUDA_ERROR_UNKNOWN];

/// From the first call to the last.
fn whole(table: &'static Table, scenario: &Scenario) -> Result<()> {
    let context = Driver::over(table)?.device(0)?.primary_context()?;
    (scenario.run)(&context)
}

fn current(table: &Table) -> usize {
    let mut context = ptr::null_mut();
    // SAFETY: one handle to write.
    assert_eq!(unsafe { table.cuCtxGetCurrent().unwrap()(&mut context) }, CUresult::CUDA_SUCCESS);
    context.addr()
}

/// A simulator that is initialised, in a thread whose capture mode is not the one that calls leave by accident.
fn fresh(machine: Machine) -> Sim {
    let sim = machine.builder().build();
    // SAFETY: cuInit may be called at any time with flags 0.
    assert_eq!(unsafe { sim.table().cuInit().unwrap()(0) }, CUresult::CUDA_SUCCESS);
    exchange_mode(sim.table(), THREAD_LOCAL);
    sim
}

/// Whether an error is one that the fault, or the machine without it, accounts for.
fn is_accounted_for(error: &Error, struck: CUresult, without: &Result<()>) -> bool {
    let code = error.driver_error().map(cuda_mem_core::DriverError::code);
    let explained = struck == CUresult::CUDA_ERROR_INVALID_VALUE
        && matches!(
            error,
            Error::NoNumaNode { .. } | Error::NoSuchNumaNode { .. } | Error::Unsupported { .. }
        );
    let as_without = without.as_ref().is_err_and(|expected| discriminant(expected) == discriminant(error));
    code == Some(struck) || explained || as_without
}

/// What there is to say against a run; nothing if all is well.
fn complaints(
    sim: &Sim,
    outcome: std::thread::Result<Result<()>>,
    struck: CUresult,
    without: &Result<()>,
) -> Vec<String> {
    let driver = Driver::over(sim.table()).unwrap();
    let mut complaints = Vec::new();
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(error)) if is_accounted_for(&error, struck, without) => {}
        Ok(Err(error)) => complaints.push(format!("an error of another kind: {error:?}")),
        Err(_) => complaints.push("a panic".to_owned()),
    }
    if current(sim.table()) != 0 {
        complaints.push("another context is current".to_owned());
    }
    if thread_mode(sim.table()) != THREAD_LOCAL {
        complaints.push("the capture mode is another".to_owned());
    }
    if driver.release_failures() != 0 {
        complaints.push(format!("{} releases failed for good", driver.release_failures()));
    }
    complaints.extend(sim.misuse().iter().map(|misuse| format!("misused: {misuse}")));
    complaints.extend(sim.leaks().iter().map(|leak| format!("leaked: {leak}")));
    complaints
}

/// Runs a scenario with its `nth` call failing. None if it has fewer.
fn with_fault(
    machine: Machine,
    scenario: &Scenario,
    nth: u64,
    code: CUresult,
    without: &Result<()>,
) -> Option<(Struck, Vec<String>)> {
    let sim = fresh(machine);
    sim.fail_nth_call_overall(nth, code);
    let outcome = catch_unwind(AssertUnwindSafe(|| whole(sim.table(), scenario)));
    let struck = *sim.struck().first()?;
    let complaints = complaints(&sim, outcome, struck.code, without);
    Some((struck, complaints))
}

/// `first` is the part of the driver, 0 or 1.
fn every_call_may_fail(driver: i32, first: u64) {
    let mut functions = BTreeMap::<&str, u64>::new();
    let mut failures = Vec::new();
    let all = std::env::var("CUDA_MEM_FAULTS").is_ok_and(|faults| faults == "all");
    for (number, machine) in (3 * first..).zip(machines(driver)) {
        let stride = if all { 1 } else { SHARED_BY };
        for scenario in scenarios::ALL {
            let name = scenario.name;
            let sim = fresh(machine);
            let without = whole(sim.table(), scenario);
            assert_eq!(without.is_ok(), (scenario.works_on)(machine), "{name} on {machine:?}: {without:?}");
            let unharmed = complaints(&sim, Ok(Ok(())), CUresult::CUDA_SUCCESS, &without);
            assert!(unharmed.is_empty(), "{name} on {machine:?} without a fault: {unharmed:#?}");
            for nth in (1 + number % stride..).step_by(stride as usize) {
                // A call meets one code on each machine, and another on the next.
                let code = CODES[((nth / stride + number) % CODES.len() as u64) as usize];
                let Some((struck, complaints)) = with_fault(machine, scenario, nth, code, &without) else {
                    // Else all of this would pass by failing nothing.
                    assert!(nth > 1, "{name} on {machine:?}: no call failed");
                    break;
                };
                *functions.entry(struck.function).or_default() += 1;
                if !complaints.is_empty() {
                    let what = complaints.join("\n    ");
                    failures.push(format!(
                        "{name} on {machine:?}: call {nth}, {}, failing with {}:\n    {what}",
                        struck.function, code.0
                    ));
                }
            }
        }
    }
    let count = functions.values().sum::<u64>();
    println!("{count} faults injected, in {} functions:", functions.len());
    assert!(count > 500, "only {count} faults, and each scenario has many calls");
    functions.iter().for_each(|(function, count)| println!("  {count:5} {function}"));
    assert!(failures.is_empty(), "{} of them did harm:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_call_may_fail_on_12_2() {
    every_call_may_fail(12020, 0);
}

#[test]
fn every_call_may_fail_on_12_6() {
    every_call_may_fail(12060, 1);
}

#[test]
fn every_call_may_fail_on_12_9() {
    every_call_may_fail(12090, 0);
}

#[test]
fn every_call_may_fail_on_13_0() {
    every_call_may_fail(13000, 1);
}
