//! The parts together: allocators on the model, their logs before the checker, the command line.

mod caching;
mod careless;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use cuda_mem_pool::trace::Trace;
use proptest::prelude::*;

use super::calls::{CallLog, Text};
use super::check;
use super::costs::Kind;
use super::plan::Plan;
use super::play::Outcome;
use super::report::{self, Row};
use super::setting::{Allocator, Backend, Setting, choose};

const PAGE: u64 = 2 << 20;

fn trace(lines: &str) -> Trace {
    let text = format!("# wall_s=2\nop,id,size,stream\n{}", lines.replace(' ', "\n"));
    Trace::read(text.as_bytes()).unwrap()
}

fn ci_trace(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(format!("ci/traces/{name}.csv.gz"))
}

fn setting(allocator: Allocator, lag: u64, threads: u32) -> Setting {
    Setting { allocator, backend: Backend::Model, lag, threads }
}

/// Replays and checks the log.
fn checked(trace: &Trace, setting: &Setting, capacity: Option<u64>) -> (Plan, Outcome, check::Sums) {
    let plan = Plan::new("t", trace).unwrap();
    let text = Text::default();
    let outcome = setting.replay(&plan, capacity, CallLog::new(text.clone())).unwrap();
    let sums = check::check(&*text.take(), Some(trace), Some(setting.lag)).unwrap();
    report::compare(&sums, &outcome).unwrap();
    (plan, outcome, sums)
}

/// Whether the checker's bill is the replay's, but for what stands in no log: events and reservations.
fn costs_agree(outcome: &Outcome, sums: &check::Sums) -> bool {
    let unlogged = |(kind, count)| match kind {
        Kind::Reserve => 5e-6 * count as f64,
        Kind::Record => 0.11e-6 * count as f64,
        Kind::Query => 0.1e-6 * count as f64,
        Kind::StreamWait => 0.22e-6 * count as f64,
        _ => 0.0,
    };
    let made =
        outcome.costs.calls.by_kind().find(|(kind, _)| *kind == Kind::Create).map_or(0, |(_, count)| count);
    // A refused call takes time and stands in no log.
    let refused = 7e-6 * (made - sums.creates) as f64;
    let unlogged = outcome.costs.calls.by_kind().map(unlogged).sum::<f64>() + refused;
    let logged = outcome.costs.driver.as_secs_f64() - unlogged;
    // The replay counts whole nanoseconds.
    (logged - sums.driver_seconds).abs() < 1e-9 * (1 + outcome.costs.calls.total()) as f64
}

#[test]
fn replay_and_checker_agree_on_a_real_trace() {
    let trace = super::files::read_trace(&ci_trace("gnn_sampling")).unwrap();
    for allocator in MODELLED {
        for lag in [0, 100] {
            let (_, outcome, sums) = checked(&trace, &setting(allocator, lag, 1), None);
            assert!(costs_agree(&outcome, &sums));
            assert_eq!((sums.waits, outcome.oom), (0, 0));
        }
    }
}

#[test]
fn a_second_thread_changes_nothing_in_virtual_time() {
    let trace = super::files::read_trace(&ci_trace("gnn_sampling")).unwrap();
    let plan = Plan::new("t", &trace).unwrap();
    let logs = [1, 2].map(|threads| {
        let text = Text::default();
        setting(Allocator::Expandable, 10, threads).replay(&plan, None, CallLog::new(text.clone())).unwrap();
        text.take()
    });
    assert!(!logs[0].is_empty());
    assert!(logs[0] == logs[1], "the logs differ");
}

#[test]
fn memory_that_runs_out_is_counted_and_what_was_refused_is_not_freed() {
    // 30 MiB at 20 MiB a segment: the second block is refused.
    let trace = trace("a,0,4194304,0 a,1,20971520,0 a,2,4194304,0 f,1,,0 f,0,,0");
    let (_, outcome, sums) = checked(&trace, &setting(Allocator::Native, 0, 1), Some(30 << 20));
    assert_eq!((outcome.oom, sums.oom, outcome.peaks.reserved), (1, 1, 20 << 20));
    assert_eq!(outcome.tally.retries, 1);
    // Nor is it live: that would be a program which there was no memory for.
    assert_eq!((outcome.peak_live, outcome.peak_active), (8 << 20, 8 << 20));
}

#[test]
fn more_bytes_than_there_are_addresses_are_refused_and_not_a_failure() {
    let trace = trace(&format!("a,0,{},0 a,1,1,0 f,0,,0", cuda_mem_pool::trace::MAX_SIZE));
    for allocator in MODELLED {
        let (_, outcome, _) = checked(&trace, &setting(allocator, 0, 1), None);
        assert_eq!((outcome.oom, outcome.peak_live), (1, 512), "{allocator:?}");
    }
    let plan = Plan::new("t", &trace).unwrap();
    for allocator in [Allocator::Caching, Allocator::DriverPool] {
        let setting = Setting { backend: Backend::Sim, ..setting(allocator, 0, 1) };
        let outcome = setting.replay(&plan, None, CallLog::nowhere()).unwrap();
        assert_eq!((outcome.oom, outcome.peak_live), (1, 512), "{allocator:?}");
    }
}

#[test]
fn something_held_for_nothing_has_no_ratio() {
    // One block, and it is refused.
    let plan = Plan::new("t", &trace("a,0,5000000,0")).unwrap();
    let setting = setting(Allocator::Caching, 0, 1);
    let mut outcome = setting.replay(&plan, Some(2 << 20), CallLog::nowhere()).unwrap();
    assert_eq!((outcome.oom, outcome.peak_active, outcome.peaks.reserved), (1, 0, 0));
    outcome.peaks.reserved = 2 << 20;
    assert!(Row::new(&plan, &setting, outcome, None).json()["ratio"].is_null());
    let plan = Plan::new("t", &trace("")).unwrap();
    let outcome = setting.replay(&plan, None, CallLog::nowhere()).unwrap();
    assert_eq!(Row::new(&plan, &setting, outcome, None).json()["ratio"], 1.0);
}

/// The chunk of the large block has to go before the small one gets its own.
fn trace_of_two_pools() -> Trace {
    trace("a,0,20971520,0 f,0,,0 a,1,1,0 a,2,1,0 a,3,1,0")
}

fn waited(operations: f64, plan: &Plan) -> Duration {
    Duration::from_secs_f64(operations * plan.seconds_per_operation())
}

#[test]
fn giving_back_waits_for_a_device_that_is_behind() {
    let trace = trace("a,0,20971520,0 f,0,,0 a,1,41943040,0 a,2,1,0 a,3,1,0");
    for (lag, wait) in [(0, 0.0), (3, 3.0)] {
        let (plan, outcome, _) = checked(&trace, &setting(Allocator::Native, lag, 1), Some(45 << 20));
        assert_eq!((outcome.oom, outcome.costs.syncs), (0, 1));
        assert_eq!(outcome.costs.host_wait, waited(wait, &plan), "lag {lag}");
    }
    let trace = trace_of_two_pools();
    let (plan, outcome, _) = checked(&trace, &setting(Allocator::Expandable, 3, 1), Some(21 << 20));
    assert_eq!((outcome.oom, outcome.costs.syncs), (0, 0));
    assert_eq!(outcome.costs.host_wait, waited(3.0, &plan));
}

#[test]
fn the_smallest_memory_is_found_and_told() {
    let trace = trace("a,0,20971520,0 a,1,41943040,0 f,0,,0 f,1,,0 a,2,31457280,0");
    let plan = Plan::new("t", &trace).unwrap();
    let setting = setting(Allocator::Native, 0, 1);
    let smallest = super::capacity::smallest(&plan, &trace, &setting, 90 << 20).unwrap();
    assert_eq!(smallest.bytes, 60 << 20);
    let outcome = setting.replay(&plan, None, CallLog::nowhere()).unwrap();
    let row = Row::new(&plan, &setting, outcome, Some(smallest));
    assert_eq!(row.json()["min_capacity_ratio"], 1.0);
}

#[test]
fn json_has_the_keys_that_it_is_said_to_have() {
    let plan = Plan::new("t", &trace("a,0,1,0 f,0,,0")).unwrap();
    let setting = setting(Allocator::Expandable, 7, 2);
    let outcome = setting.replay(&plan, None, CallLog::nowhere()).unwrap();
    let json = Row::new(&plan, &setting, outcome, None).json();
    let keys = json.as_object().unwrap().keys().map(String::as_str).collect::<BTreeSet<_>>();
    let expected = "trace allocator backend lag threads allocs peak_live peak_active peak_reserved ratio driver_calls \
         driver_seconds host_wait_seconds driver_share mappings_peak metadata_bytes ns_per_op device_syncs oom \
         min_capacity_ratio late_calls_per_10k late_share stream_waits host_waits";
    assert_eq!(keys, expected.split_whitespace().collect());
    assert_eq!((&json["allocator"], &json["backend"]), (&"expandable".into(), &"model".into()));
    assert_eq!((&json["lag"], &json["threads"], &json["allocs"]), (&7.into(), &2.into(), &1.into()));
    assert_eq!((&json["peak_reserved"], &json["ratio"]), (&PAGE.into(), &4096.0.into()));
    assert_eq!(json["driver_calls"]["create"], 1);
    // Reserve, create, map and access, of a run of two seconds.
    assert_eq!(json["driver_share"], 33e-6 / 2.0);
    assert!(json["min_capacity_ratio"].is_null());
}

#[test]
fn the_tables_end_with_a_plain_line() {
    let plan = Plan::new("tiny", &trace("a,0,1,0 f,0,,0")).unwrap();
    let setting = setting(Allocator::Native, 0, 1);
    let outcome = setting.replay(&plan, None, CallLog::nowhere()).unwrap();
    let text = report::tables(&[Row::new(&plan, &setting, outcome, None)], &setting);
    assert_eq!(
        text.lines().last().unwrap(),
        "1 trace, native on model, lag 0, threads 1: ratio 4096.0000 to 4096.0000, driver share at most 0.001 %, \
         0 device synchronisations, 0 out-of-memory events"
    );
}

#[test]
fn an_allocator_runs_where_it_can() {
    assert_eq!(choose(Allocator::Native, Backend::Auto).unwrap(), Backend::Model);
    assert_eq!(choose(Allocator::DriverPool, Backend::Sim).unwrap(), Backend::Sim);
    let told = |allocator, backend| choose(allocator, backend).unwrap_err().to_string();
    assert_eq!(
        told(Allocator::Expandable, Backend::Gpu),
        "expandable does not run on the backend `gpu`; it runs on model"
    );
    assert_eq!(
        told(Allocator::DriverPool, Backend::Model),
        "driver-pool does not run on the backend `model`; it runs on gpu and sim"
    );
}

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    arguments: super::Arguments,
}

fn run(words: &[&str]) -> Result<bool> {
    let line = Line::try_parse_from(std::iter::once("replay").chain(words.iter().copied()))?;
    super::run(&line.arguments)
}

#[test]
fn the_command_writes_a_log_that_it_accepts_again() {
    let scratch = tempfile::tempdir().unwrap();
    let plain = scratch.path().join("small.csv");
    std::fs::write(&plain, "op,id,size,stream\na,0,1000,0\na,1,2000,1\nf,0,,0\n").unwrap();
    let (plain, log) = (plain.to_str().unwrap(), scratch.path().join("log.gz"));
    let log = log.to_str().unwrap();
    assert!(run(&[plain, "--allocator", "native", "--calls", log, "--json"]).unwrap());
    assert!(run(&["--check-calls", log, "--trace", plain, "--lag", "0"]).unwrap());
    let gnn = ci_trace("gnn_sampling");
    let other = run(&["--check-calls", log, "--trace", gnn.to_str().unwrap()]).unwrap_err();
    assert!(format!("{other:#}").contains("is rejected: line 2: "), "{other:#}");
    let missing = run(&["missing.csv", plain, "--allocator", "native", "--json"]).unwrap_err();
    assert!(format!("{missing:#}").starts_with("missing.csv: cannot be opened: "), "{missing:#}");
    let two = run(&[plain, plain, "--allocator", "native", "--calls", log]).unwrap_err();
    assert_eq!(two.to_string(), "--calls takes one trace, not 2");
    let itself = run(&[plain, "--allocator", "native", "--calls", plain]).unwrap_err();
    assert!(format!("{itself:#}").contains(" would overwrite "), "{itself:#}");
    assert!(run(&[plain, "--allocator", "native", "--json"]).unwrap(), "it is as it was");
    std::fs::write(plain, "op,id,size,stream\na,0,1152921504606846976,0\n").unwrap();
    let never = run(&[plain, "--capacity", "auto", "--backend", "model"]).unwrap_err();
    assert!(
        format!("{never:#}")
            .ends_with("1 of its allocations are refused without a limit too, so that no capacity is enough")
    );
    for wrong in
        [&[][..], &[plain, "--threads", "3"], &[plain, "--capacity", "some"], &[plain, "--lag", "-1"]]
    {
        assert!(Line::try_parse_from(std::iter::once(&"replay").chain(wrong)).is_err(), "{wrong:?}");
    }
    let wrong = Line::try_parse_from(["replay", plain, "--lag", "-1"]).unwrap_err().to_string();
    assert!(wrong.contains("\"-1\" is no whole number of operations from 0 on"), "{wrong}");
}

/// What runs on the model.
const MODELLED: [Allocator; 4] =
    [Allocator::Caching, Allocator::CachingNoMove, Allocator::Native, Allocator::Expandable];

/// A program of a few blocks on two streams, some of them used by a third.
fn programs() -> impl Strategy<Value = String> {
    let block = (1u64..48 << 20, 0u64..2, 0usize..12, 0usize..4);
    let block = (block, any::<bool>()).prop_map(|((size, stream, life, end), small)| {
        (if small { size % 5000 + 1 } else { size }, stream, life, end)
    });
    prop::collection::vec(block, 1..60).prop_map(|blocks| {
        let mut events: Vec<(usize, u32, String)> = Vec::new();
        for (id, (size, stream, life, end)) in blocks.into_iter().enumerate() {
            events.push((id, 2, format!("a,{id},{size},{stream}")));
            if life < 10 {
                events.push((id + life, 3, format!("f,{id},,{stream}")));
                if end > 1 {
                    events.push((id + life + end, 4, format!("c,{id},,{stream}")));
                }
            }
        }
        events.sort();
        events.into_iter().map(|(_, _, line)| line).collect::<Vec<_>>().join(" ")
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_replay_of_the_models_is_found_right(
        program in programs(),
        lag in 0u64..8,
        threads in 1u32..3,
        allocator in prop::sample::select(&MODELLED),
        capacity in prop::option::of(64u64 << 20..512 << 20),
    ) {
        let (_, outcome, sums) = checked(&trace(&program), &setting(allocator, lag, threads), capacity);
        prop_assert!(capacity.is_none_or(|capacity| outcome.peaks.reserved <= capacity));
        prop_assert!(capacity.is_some() || outcome.oom == 0);
        // What a refused allocation of a whole segment would have taken depends on its size.
        prop_assert!(outcome.tally.retries > 0 || costs_agree(&outcome, &sums));
    }

    #[test]
    fn no_log_makes_the_checker_panic(
        events in prop::collection::vec(
            "(create|map|access|unmap|release|malloc|mfree|wait|alloc|free|done|order),[0-3]{1,2}(,[0-9]{1,20}){0,3}",
            0..12
        )
    ) {
        let lines = events.iter().enumerate().map(|(number, event)| format!("{number},{event}\n"));
        let _ = check::check(lines.collect::<String>().as_bytes(), Some(&trace("a,0,1,0 f,0,,0")), Some(1));
    }
}
