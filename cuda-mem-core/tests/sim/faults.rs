//! Every driver call of every scenario fails once, each in a run of its own.
//!
//! Whatever fails, nothing may panic, abort or hang; what comes back is a result or a typed error; the current context and the
//! capture mode are as they were; and when everything was dropped, nothing is left and no memory was misused.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::Duration;

use cuda_mem_core::sys::{CUresult, Table};
use cuda_mem_core::{Driver, Error, Result};
use cuda_mem_sim::{Sim, Struck};

use crate::common::capture::{THREAD_LOCAL, exchange_mode, thread_mode};
use crate::common::scenarios::{self, Scenario};

/// What calls fail with: a lack of memory, which the call has by itself, and an unknown error, which may be anybody's.
const CODES: [CUresult; 2] = [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_UNKNOWN];

/// From the first call to the last.
fn whole(table: &'static Table, scenario: Scenario) -> Result<()> {
    let context = Driver::over(table)?.device(0)?.primary_context()?;
    scenario(&context)
}

fn current(table: &Table) -> usize {
    let mut context = ptr::null_mut();
    // SAFETY: one handle to write.
    assert_eq!(unsafe { table.cuCtxGetCurrent().unwrap()(&mut context) }, CUresult::CUDA_SUCCESS);
    context.addr()
}

/// A simulator that is initialised, in a thread whose capture mode is not the one that calls leave by accident.
fn fresh() -> Sim {
    let sim = Sim::builder().devices(2).workers(2).build();
    // SAFETY: cuInit may be called at any time with flags 0.
    assert_eq!(unsafe { sim.table().cuInit().unwrap()(0) }, CUresult::CUDA_SUCCESS);
    exchange_mode(sim.table(), THREAD_LOCAL);
    sim
}

/// What there is to say against a run; nothing if all is well.
fn complaints(sim: &Sim, outcome: std::thread::Result<Result<()>>, struck: Struck) -> Vec<String> {
    let driver = Driver::over(sim.table()).unwrap();
    let mut complaints = Vec::new();
    match outcome {
        Ok(Ok(())) => {}
        // The injected code, or what the crate makes of it.
        Ok(Err(Error::Driver(error))) if error.code() == struck.code => {}
        Ok(Err(Error::Unsupported { .. })) => {}
        Ok(Err(error)) => complaints.push(format!("an error of another kind: {error:?}")),
        Err(_) => complaints.push("a panic".to_owned()),
    }
    // A stream that could not be asked counted as busy. A thread asks again.
    while driver.registrations_left() > 0 {
        std::thread::sleep(Duration::from_millis(1));
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
fn with_fault(scenario: Scenario, nth: u64, code: CUresult) -> Option<(Struck, Vec<String>)> {
    let sim = fresh();
    sim.fail_nth_call_overall(nth, code);
    let outcome = catch_unwind(AssertUnwindSafe(|| whole(sim.table(), scenario)));
    let struck = *sim.struck().first()?;
    let complaints = complaints(&sim, outcome, struck);
    Some((struck, complaints))
}

#[test]
fn every_call_may_fail() {
    let mut functions = BTreeMap::<&str, u64>::new();
    let mut failures = Vec::new();
    for &(name, scenario) in scenarios::ALL.iter().chain(scenarios::WAITING) {
        whole(fresh().table(), scenario).unwrap_or_else(|error| panic!("{name} without a fault: {error}"));
        for code in CODES {
            for nth in 1.. {
                let Some((struck, complaints)) = with_fault(scenario, nth, code) else {
                    // Else all of this would pass by failing nothing.
                    assert!(nth > 1, "{name}: no call failed");
                    break;
                };
                *functions.entry(struck.function).or_default() += 1;
                if !complaints.is_empty() {
                    let what = complaints.join("\n    ");
                    failures.push(format!(
                        "{name}: call {nth}, {}, failing with {}:\n    {what}",
                        struck.function, code.0
                    ));
                }
            }
        }
    }
    println!("{} faults injected, in {} functions:", functions.values().sum::<u64>(), functions.len());
    functions.iter().for_each(|(function, count)| println!("  {count:5} {function}"));
    assert!(failures.is_empty(), "{} of them did harm:\n{}", failures.len(), failures.join("\n"));
}
