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
const OPEN: &str = "cuIpcOpenMemHandle";
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
            Seat { kind: Kind::Ours, participants: &[OURS, FLOOR, OPEN] },
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
            case(first(scale), &[OURS, OPEN], format!("first times={mapped} bytes={segments}"), rounds(9)),
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
    for (case, aim) in [(SPINNING, 1500.0), (SLEEPING, 5000.0)] {
        // From the call, and from the fence that it enqueues first.
        let call = ours(case, "p50");
        let fenced = || Some(call? - ours(case, "fence")?);
        let above = |time: Option<f64>| Some(time? - figures.median(case, FLOOR, "p50")?);
        let half = format!("{case}: half of all");
        verdicts.push(Verdict::new(
            format!("{half}, from the fence enqueued, above the floor"),
            AtMost(2000.0),
            "ns",
            above(fenced()),
        ));
        verdicts.push(Verdict::new(
            format!("{half}, from the call, above the floor"),
            AtMost(2000.0),
            "ns",
            above(call),
        ));
        verdicts.push(Verdict::new(format!("{half}, from the fence enqueued"), AtMost(aim), "ns", fenced()));
    }
    let faster = |who| figures.ratio(SLEEPING, "p50", who, OURS);
    verdicts.extend([
        Verdict::new(
            format!("{SLEEPING}: faster than torch.multiprocessing, the faster queue"),
            AtLeast(100.0),
            "×",
            least(TORCH.map(faster)),
        ),
        Verdict::new(
            format!("{SLEEPING}: faster than torch.multiprocessing's Queue"),
            AtLeast(100.0),
            "×",
            faster("torch-queue"),
        ),
        Verdict::new(
            format!("{SLEEPING}: faster than a cuda.core import"),
            AtLeast(20.0),
            "×",
            faster(CUDA_CORE),
        ),
        Verdict::new(many(scale), AtMost(0.1), "s", ours(&many(scale), "total")),
        Verdict::new(
            format!("{}: of {OPEN}", first(scale)),
            AtMost(1.2),
            "×",
            figures.ratio(&first(scale), "first", OURS, OPEN),
        ),
    ]);
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
        for quick in [true, false] {
            let suite = suite(scale(quick));
            let seated = |name: &&str| suite.programs.iter().any(|seat| seat.participants.contains(name));
            assert!(suite.cases.iter().all(|case| case.participants.iter().all(seated)));
            let named = |goal: &str| suite.cases.iter().any(|case| goal.starts_with(&case.name));
            let verdicts = goals(&Figures::default(), scale(quick));
            assert_eq!(verdicts.len(), 14);
            assert!(verdicts.iter().all(|verdict| named(&verdict.goal)), "{verdicts:?}");
            assert!(verdicts.iter().all(|verdict| verdict.verdict == "not measured"), "{verdicts:?}");
        }
    }

    #[test]
    fn a_hand_over_is_judged_by_its_own_floor() {
        let mut figures = Figures::default();
        for (case, who, metric, value) in [
            (SPINNING, OURS, "p50", 3200.0),
            (SPINNING, OURS, "fence", 1500.0),
            (SPINNING, FLOOR, "p50", 200.0),
            (SLEEPING, OURS, "p50", 10_000.0),
            (SLEEPING, "torch-queue", "p50", 1_500_000.0),
            (SLEEPING, "torch-simple-queue", "p50", 900_000.0),
        ] {
            figures.add(case, who, metric, value);
        }
        let verdicts = goals(&figures, scale(false));
        let found = verdicts.iter().map(|verdict| (verdict.found, verdict.verdict)).collect::<Vec<_>>();
        assert_eq!(found[0], (Some(1500.0), "met"));
        assert_eq!(found[1], (Some(3000.0), "missed"));
        assert_eq!(found[2], (Some(1700.0), "missed"));
        assert_eq!(found[3], (None, "not measured"));
        assert_eq!(found[6], (Some(90.0), "missed"));
        assert_eq!(found[7], (Some(150.0), "met"));
    }
}
