//! `cargo xtask bench ipc`.

use super::figures::Figures;
use super::goal::Verdict;
use super::goal::Wanted::{AtLeast, AtMost};
use super::goal::least;
use super::suite::{Case, Kind, Scale, Seat, Suite, size};

const SPINNING: &str = "hand-over, spinning";
const SLEEPING: &str = "hand-over, sleeping";

const OURS: &str = "ours";
const FLOOR: &str = "floor";
/// Ours, of segments that are announced ahead: when they are mapped, and right away.
const ANNOUNCED: &str = "announced";
const AT_ONCE: &str = "at-once";
const OPEN: &str = "cuIpcOpenMemHandle";
const STEPS: &str = "steps";
const CUDA_CORE: &str = "cuda.core";

/// PyTorch's queues: the one that everybody uses, and the one without a thread between.
const TORCH: [&str; 2] = ["torch-queue", "torch-simple-queue"];

pub(crate) fn suite(scale: Scale) -> Suite {
    let Scale { quick, .. } = scale;
    let rounds = |full| if quick { 2 } else { full };
    let case = |name: String, participants, request: String, rounds| Case {
        name,
        participants,
        warm_up: Some(request.clone()),
        request,
        rounds,
        // Of the host.
        memory: 0,
    };
    // What a stream is busy with while its fence is handed over: a tenth of a millisecond of copies.
    let (times, work) = if quick { (20, 1 << 20) } else { (1000, 256 << 20) };
    let warm = |asleep| format!("warm rounds={times} work={work} asleep={asleep}");
    let (count, segment) = if quick { (200, 2 << 20) } else { (20_000, 256 << 20) };
    let (mapped, segments) = if quick { (2, 2 << 20) } else { (10, 64 << 20) };
    let lives = lives(scale);
    Suite {
        name: "ipc",
        programs: vec![
            Seat { kind: Kind::Ours, participants: &[OURS, FLOOR, ANNOUNCED, AT_ONCE, OPEN, STEPS] },
            Seat {
                kind: Kind::Python { script: "torch_queue.py", native: None, env: &[] },
                participants: &TORCH,
            },
            Seat {
                kind: Kind::Python { script: "cuda_core_shared.py", native: None, env: &[] },
                participants: &[CUDA_CORE],
            },
        ],
        cases: vec![
            case(SPINNING.to_owned(), &[OURS, FLOOR], warm(0), rounds(9)),
            case(
                SLEEPING.to_owned(),
                &[OURS, FLOOR, "torch-queue", "torch-simple-queue", CUDA_CORE],
                warm(1),
                rounds(9),
            ),
            case(
                many(scale),
                &[OURS],
                format!("many count={count} bytes={} segment={segment}", 64 << 10),
                rounds(9),
            ),
            case(
                first(scale),
                &[OURS, ANNOUNCED, AT_ONCE, OPEN, STEPS],
                format!("first times={mapped} bytes={segments}"),
                rounds(9),
            ),
            Case {
                // It begins with some that are not counted.
                warm_up: None,
                ..case(leaks(lives), &[OURS], format!("leaks rounds={lives}"), 1)
            },
        ],
        goals,
        plot: None,
        tables: None,
    }
}

fn many(scale: Scale) -> String {
    format!("{} buffers", if scale.quick { 200 } else { 20_000 })
}

fn first(scale: Scale) -> String {
    format!("first mapping, {}", size(if scale.quick { 2 << 20 } else { 64 << 20 }))
}

fn lives(scale: Scale) -> u64 {
    if scale.quick { 20 } else { 1000 }
}

fn leaks(lives: u64) -> String {
    format!("{lives} connections, pools and segments")
}

fn goals(figures: &Figures, scale: Scale) -> Vec<Verdict> {
    let ours = |case: &str, metric| figures.median(case, OURS, metric);
    let mut verdicts = Vec::new();
    for (case, aim, times_core) in [(SPINNING, 1500.0, 50.0), (SLEEPING, 5000.0, 20.0)] {
        // From the call, from its beginning less what recording the fence takes, and from its end: the fence is the last but one that
        // it does, and a cache line the last, so that the time from the fence enqueued lies between the latter two.
        let call = ours(case, "p50");
        let fenced = call.zip(ours(case, "fence")).map(|(call, fence)| call - fence);
        let behind = ours(case, "behind");
        let above = |time: Option<f64>| Some(time? - figures.median(case, FLOOR, "p50")?);
        let half = format!("{case}: half of all");
        for (from, time) in [
            ("from the return of the call", behind),
            ("from the call without its fence", fenced),
            ("from the call", call),
        ] {
            let goal = format!("{half}, {from}, above the floor");
            verdicts.push(Verdict::new(goal, AtMost(2000.0), "ns", above(time)));
        }
        for (from, time) in
            [("from the return of the call", behind), ("from the call without its fence", fenced)]
        {
            verdicts.push(Verdict::new(format!("{half}, {from}"), AtMost(aim), "ns", time));
        }
        // The peers sleep in any case.
        let faster = |who| Some(figures.median(SLEEPING, who, "p50")? / call?);
        for (than, bound, times) in [
            ("torch.multiprocessing, the faster queue", 100.0, least(TORCH.map(faster))),
            ("torch.multiprocessing's Queue", 100.0, faster("torch-queue")),
            ("a cuda.core import", times_core, faster(CUDA_CORE)),
        ] {
            verdicts.push(Verdict::new(format!("{case}: faster than {than}"), AtLeast(bound), "×", times));
        }
    }
    verdicts.push(Verdict::new(many(scale), AtMost(0.1), "s", ours(&many(scale), "total")));
    for (what, who, most) in [
        ("announced ahead", ANNOUNCED, 0.6),
        ("handed over at once", AT_ONCE, 0.6),
        ("not announced", OURS, 1.2),
    ] {
        let ratio = figures.ratio(&first(scale), "first", who, OPEN);
        let goal = format!("{}, {what}: of {OPEN}", first(scale));
        verdicts.push(Verdict::new(goal, AtMost(most), "×", ratio));
    }
    let case = leaks(lives(scale));
    for (what, metric, unit) in [
        ("descriptors left", "descriptors", "more"),
        ("mappings left", "mappings", "more"),
        ("device memory left", "device_memory", "MiB more"),
    ] {
        verdicts.push(Verdict::new(format!("{case}: {what}"), AtMost(0.0), unit, ours(&case, metric)));
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(quick: bool) -> Scale {
        Scale { quick, gib: 16, available: 0 }
    }

    #[test]
    fn every_participant_has_a_seat_and_every_goal_a_case() {
        crate::bench::suite::tests::fits(suite, 23);
    }

    #[test]
    fn a_hand_over_is_judged_by_its_own_floor() {
        let mut figures = Figures::default();
        for (case, who, metric, value) in [
            (SPINNING, OURS, "p50", 3200.0),
            (SPINNING, OURS, "fence", 1500.0),
            (SPINNING, OURS, "behind", 1400.0),
            (SPINNING, FLOOR, "p50", 200.0),
            (SLEEPING, OURS, "p50", 10_000.0),
            (SLEEPING, "torch-queue", "p50", 1_500_000.0),
            (SLEEPING, "torch-simple-queue", "p50", 900_000.0),
        ] {
            figures.add(case, who, metric, value);
        }
        let verdicts = goals(&figures, scale(false));
        let found = verdicts.iter().map(|verdict| (verdict.found, verdict.verdict)).collect::<Vec<_>>();
        assert_eq!(found[0], (Some(1200.0), "met"));
        assert_eq!(found[1], (Some(1500.0), "met"));
        assert_eq!(found[2], (Some(3000.0), "missed"));
        assert_eq!(found[3], (Some(1400.0), "met"));
        assert_eq!(found[4], (Some(1700.0), "missed"));
        assert_eq!(found[5], (Some(900_000.0 / 3200.0), "met"));
        assert_eq!(found[7], (None, "not measured"));
        assert_eq!(found[8], (None, "not measured"));
        assert_eq!(found[13], (Some(90.0), "missed"));
        assert_eq!(found[14], (Some(150.0), "met"));
    }
}
