//! The caching allocator, over the model and over the simulated driver.

use super::super::calls::{CallLog, Text};
use super::super::check;
use super::super::files::read_trace;
use super::super::plan::Plan;
use super::super::report::{self, Row};
use super::super::setting::{Allocator, Backend, Setting};
use super::{PAGE, checked, ci_trace, setting, trace};

const TRACES: [&str; 6] = [
    "gnn_sampling",
    "gpt2_fixed",
    "gpt2_varlen",
    "llama_lora_varlen",
    "prefetch_three_streams",
    "vision_multires",
];

/// Without a limit the recorded programs hold about what they hold with expandable segments. docs/replay.md has what is reached.
#[test]
fn recorded_programs_take_little_more_than_with_expandable_segments() {
    // Beside each other: unoptimised each takes seconds.
    std::thread::scope(|scope| {
        for name in TRACES {
            scope.spawn(move || takes_little_more_than_with_expandable_segments(name));
        }
    });
}

fn takes_little_more_than_with_expandable_segments(name: &str) {
    let trace = read_trace(&ci_trace(name)).unwrap();
    let (_, expandable, _) = checked(&trace, &setting(Allocator::Expandable, 100, 1), None);
    let setting = setting(Allocator::Caching, 100, 1);
    let (plan, outcome, sums) = checked(&trace, &setting, None);
    assert_eq!((outcome.oom, outcome.costs.syncs, sums.waits), (0, 0, 0));
    assert!(outcome.peaks.mappings <= 200_000);
    let most = expandable.peaks.reserved / 100 * 106;
    assert!(outcome.peaks.reserved <= most, "{name}: {} of {most}", outcome.peaks.reserved);
    let row = Row::new(&plan, &setting, outcome, None).json();
    assert_eq!(row["stream_waits"], 0, "{name}: {row}");
    assert!(row["driver_share"].as_f64().unwrap() <= 0.02, "{name}: {row}");
}

/// Where the device has little more than is in use, what does not move goes back to the driver and is made anew.
#[test]
fn pages_that_stay_where_they_are_are_made_anew() {
    let trace = read_trace(&ci_trace("gnn_sampling")).unwrap();
    let [moving, staying] = [Allocator::Caching, Allocator::CachingNoMove].map(|allocator| {
        let setting = setting(allocator, 0, 1);
        let active = Plan::new("t", &trace).unwrap().peak_active;
        let (plan, outcome, _) = checked(&trace, &setting, Some((active as f64 * 1.03) as u64));
        assert_eq!(outcome.oom, 0);
        Row::new(&plan, &setting, outcome, None).json()["driver_calls"]["create"].as_u64().unwrap()
    });
    assert!(staying > 2 * moving, "{moving} handles are made with moves, {staying} without");
}

#[test]
fn memory_of_another_stream_is_had_behind_its_work() {
    // All memory there is was stream 0's, which is behind.
    let trace = trace("a,0,33554432,0 f,0,,0 a,1,33554432,1 a,2,1,0 a,3,1,0");
    let (_, outcome, sums) = checked(&trace, &setting(Allocator::Caching, 3, 1), Some(36 << 20));
    assert_eq!((outcome.oom, sums.waits), (0, 0));
}

#[test]
fn a_block_that_another_stream_uses_is_waited_for_on_the_device_where_memory_runs_out() {
    let trace = trace("a,0,33554432,0 f,0,,0 a,1,33554432,0 a,2,1,0 a,3,1,0 c,0,,0");
    let (_, outcome, sums) = checked(&trace, &setting(Allocator::Caching, 0, 1), Some(36 << 20));
    assert_eq!((outcome.oom, outcome.tally.retries, sums.waits), (0, 1, 0));
    assert!(outcome.peaks.reserved < 2 * (32 << 20));
}

#[test]
fn what_does_not_fit_is_out_of_memory_and_the_rest_goes_on() {
    let trace = trace("a,0,1048576,0 a,1,1099511627776,0 f,0,,0 a,2,1048576,0");
    let (_, outcome, _) = checked(&trace, &setting(Allocator::Caching, 0, 1), Some(8 * PAGE));
    assert_eq!(outcome.oom, 1);
}

/// The allocator itself, with its own books against those of the replay and of the simulated driver.
#[test]
fn on_a_driver_the_allocator_does_as_over_the_model() {
    let trace = read_trace(&ci_trace("gnn_sampling")).unwrap();
    let plan = Plan::new("t", &trace).unwrap();
    for threads in [1, 2] {
        let over = |backend| {
            let text = Text::default();
            let setting = Setting { allocator: Allocator::Caching, backend, lag: 0, threads };
            let outcome = setting.replay(&plan, None, CallLog::new(text.clone())).unwrap();
            let sums = check::check(&*text.take(), Some(&trace), setting.checked_lag()).unwrap();
            report::compare(&sums, &outcome).unwrap();
            outcome
        };
        let (model, driver) = (over(Backend::Model), over(Backend::Sim));
        assert_eq!(driver.oom, 0);
        assert_eq!(driver.tally.unconfirmed, Some(0));
        assert_eq!(driver.peaks, model.peaks);
    }
}

#[test]
fn a_capacity_holds_on_a_driver() {
    let trace = trace("a,0,33554432,0 f,0,,0 a,1,33554432,0 a,2,1,0 a,3,1,0 c,0,,0");
    let plan = Plan::new("t", &trace).unwrap();
    let text = Text::default();
    let setting = Setting { allocator: Allocator::Caching, backend: Backend::Sim, lag: 0, threads: 1 };
    let outcome = setting.replay(&plan, Some(36 << 20), CallLog::new(text.clone())).unwrap();
    let sums = check::check(&*text.take(), Some(&trace), None).unwrap();
    report::compare(&sums, &outcome).unwrap();
    assert_eq!((outcome.oom, outcome.tally.retries), (0, 1));
    assert!(outcome.peaks.reserved <= 36 << 20);
}

#[test]
fn what_idle_streams_have_is_not_missing_elsewhere() {
    // Each stream in turn has one block, and 10 MiB are enough for one: handles of 4 MiB leave 2 MiB of them.
    let lines = (0..12).map(|number| format!("a,{number},3000000,{number} f,{number},,{number}"));
    let trace = trace(&lines.collect::<Vec<_>>().join(" "));
    for allocator in [Allocator::Caching, Allocator::CachingNoMove] {
        let (_, outcome, _) = checked(&trace, &setting(allocator, 0, 1), Some(10 << 20));
        assert_eq!(outcome.oom, 0, "{allocator:?}");
    }
}
