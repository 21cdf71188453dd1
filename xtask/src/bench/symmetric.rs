//! `cargo xtask bench symmetric`.

use super::figures::Figures;
use super::goal::Verdict;
use super::goal::Wanted::{AtLeast, AtMost};
use super::suite::{Case, Kind, Scale, Seat, Suite, size};

const START: &str = "start";
const INSIDE: &str = "inside a mapped segment";

/// As large as a segment of ours, so that no two fit one.
const NEW: u64 = 64 << 20;

const OURS: &str = "ours";
const CUDA: &str = "torch-cuda";
const NCCL: &str = "torch-nccl";
const NVSHMEM: &str = "torch-nvshmem";

const ALL: &[&str] = &[OURS, CUDA, NCCL, NVSHMEM];

const fn torch(participants: &'static [&'static str]) -> Seat {
    // A process has one backend: each has processes of its own.
    Seat { kind: Kind::Python { script: "torch_symmetric.py", native: None, env: &[] }, participants }
}

pub(crate) fn suite(scale: Scale) -> Suite {
    let rounds = |full| if scale.quick { 2 } else { full };
    let case = |name: String, request: String, rounds| Case {
        name,
        participants: ALL,
        warm_up: Some(request.clone()),
        request,
        rounds,
        // Of the host.
        memory: 0,
    };
    let times = if scale.quick { 20 } else { 200 };
    // NVSHMEM takes memory for eight of them at a time.
    let news = rounds(16);
    let (copies, copied) = (rounds(10), read_bytes(scale));
    Suite {
        name: "symmetric",
        programs: vec![
            Seat { kind: Kind::Ours, participants: &[OURS] },
            torch(&[CUDA]),
            torch(&[NCCL]),
            torch(&[NVSHMEM]),
        ],
        cases: vec![
            // Before there are segments without room.
            case(INSIDE.to_owned(), format!("inside times={times} bytes=4096"), rounds(9)),
            case(fresh(), format!("fresh times={news} bytes={NEW}"), rounds(5)),
            case(read(scale), format!("read times={copies} bytes={copied}"), rounds(5)),
            Case {
                // Of fresh processes: there is nothing to warm up.
                warm_up: None,
                ..case(START.to_owned(), format!("start bytes={}", 1 << 20), rounds(3))
            },
        ],
        goals,
        plot: None,
        tables: None,
    }
}

fn read_bytes(scale: Scale) -> u64 {
    if scale.quick { 2 << 20 } else { 1 << 30 }
}

fn fresh() -> String {
    format!("a new segment of {}", size(NEW))
}

fn read(scale: Scale) -> String {
    format!("peer read, {}", size(read_bytes(scale)))
}

fn goals(figures: &Figures, scale: Scale) -> Vec<Verdict> {
    let (fresh, read) = (fresh(), read(scale));
    let mut verdicts = vec![
        Verdict::new(
            format!("{fresh}: faster than PyTorch's NCCL"),
            AtLeast(3.0),
            "×",
            figures.ratio(&fresh, "grown", NCCL, OURS),
        ),
        Verdict::new(
            format!("{fresh}: faster than PyTorch's NVSHMEM where that grows"),
            AtLeast(1.0),
            "×",
            figures.ratio(&fresh, "grown", NVSHMEM, OURS),
        ),
        Verdict::new(
            format!("{INSIDE}: allocation and handle, half of all"),
            AtMost(1000.0),
            "ns",
            figures.median(INSIDE, OURS, "p50"),
        ),
    ];
    for (who, name) in [(CUDA, "CUDA"), (NCCL, "NCCL"), (NVSHMEM, "NVSHMEM")] {
        verdicts.push(Verdict::new(
            format!("{read}: of PyTorch's {name}"),
            AtLeast(0.98),
            "×",
            figures.ratio(&read, "rate", OURS, who),
        ));
    }
    verdicts.push(Verdict::new(
        format!("{START}: faster than PyTorch's NVSHMEM"),
        AtLeast(5.0),
        "×",
        figures.ratio(START, "start", NVSHMEM, OURS),
    ));
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
        crate::bench::suite::tests::fits(suite, 7);
    }

    #[test]
    fn memory_that_was_there_already_is_not_compared_with_a_new_segment() {
        let (mut figures, scale) = (Figures::default(), scale(false));
        let case = fresh();
        for (who, metric, value) in [
            (OURS, "grown", 300.0),
            (NCCL, "grown", 6600.0),
            (NVSHMEM, "fresh", 80.0),
            (NVSHMEM, "grown", 600.0),
        ] {
            figures.add(&case, who, metric, value);
        }
        figures.add(&read(scale), OURS, "rate", 370.0);
        figures.add(&read(scale), CUDA, "rate", 374.0);
        let verdicts = goals(&figures, scale);
        let found = verdicts.iter().map(|verdict| (verdict.found, verdict.verdict)).collect::<Vec<_>>();
        assert_eq!(found[0], (Some(22.0), "met"));
        assert_eq!(found[1], (Some(2.0), "met"));
        assert_eq!(found[3], (Some(370.0 / 374.0), "met"));
        assert_eq!(found[4], (None, "not measured"));
    }
}
