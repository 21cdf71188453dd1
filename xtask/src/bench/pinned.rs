//! `cargo xtask bench pinned`.

use anyhow::{Result, ensure};

use super::figures::Figures;
use super::goal::{Verdict, Wanted, least, most};
use super::suite::{Case, Kind, Scale, Seat, Suite, size};

/// Blocks of the cached pairs, in bytes.
const PAIRS: [u64; 4] = [1 << 10, 64 << 10, 1 << 20, 16 << 20];

/// Threads that each make pairs at the same time.
const THREADS: [u64; 2] = [1, 4];

/// Bytes of the mix of sizes.
const MIX: u64 = 24 << 30;

const TORCH: Kind = Kind::Python { script: "torch_host.py", native: Some("torch_host.cpp"), env: &[] };

/// PyTorch's fastest way to pinned memory: pages touched by eight threads, then registered.
const TORCH_REGISTERED: Kind = Kind::Python {
    script: "torch_host.py",
    native: None,
    env: &[("PYTORCH_CUDA_ALLOC_CONF", "pinned_use_cuda_host_register:True,pinned_num_register_threads:8")],
};

const CUDA_CORE: Kind = Kind::Python { script: "cuda_core_host.py", native: None, env: &[] };

pub(crate) fn suite(scale: Scale) -> Result<Suite> {
    let ready = ready_bytes(scale);
    let sizes = mix(mix_bytes(scale))?;
    let rounds = |full| if scale.quick { 2 } else { full };
    let mut cases = vec![Case {
        name: ready_case(scale),
        participants: &["ours", "cuMemHostAlloc", "pytorch", "pytorch-registered", "cuda.core"],
        request: format!("ready bytes={ready}"),
        // Contexts, modules and code pages come with the first block, however small.
        warm_up: Some(format!("ready bytes={}", ready.min(64 << 20))),
        rounds: rounds(5),
        memory: ready,
    }];
    for threads in THREADS {
        for bytes in PAIRS {
            let pairs = if scale.quick { 100 } else { 20_000 };
            let request = format!("pair bytes={bytes} threads={threads} pairs={pairs}");
            cases.push(Case {
                name: pair_case(bytes, threads),
                // Python runs one thread at a time: more of them measure its lock.
                participants: match threads {
                    1 => &["ours", "floor", "pytorch-cpp", "pytorch", "cuda.core"],
                    _ => &["ours", "floor", "pytorch-cpp"],
                },
                warm_up: Some(request.clone()),
                request,
                rounds: rounds(15),
                memory: threads * bytes,
            });
        }
    }
    let list = sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    cases.push(Case {
        name: mix_case(scale),
        participants: &["ours", "pytorch"],
        request: format!("mix sizes={list}"),
        warm_up: None,
        // What is held is the same in every round.
        rounds: 1,
        // Rounded up by who rounds, at most to twice its bytes.
        memory: 2 * sizes.iter().sum::<u64>(),
    });
    let again = if scale.quick { 4 << 20 } else { 1 << 30 };
    cases.push(Case {
        name: again_case(),
        participants: &["ours", "cuda.core"],
        request: format!("again bytes={again} times=10"),
        warm_up: Some(format!("again bytes={again} times=1")),
        rounds: rounds(9),
        // A pool of each.
        memory: 2 * again,
    });
    Ok(Suite {
        name: "pinned",
        programs: vec![
            Seat { kind: Kind::Ours, participants: &["ours", "floor", "cuMemHostAlloc"] },
            Seat { kind: TORCH, participants: &["pytorch", "pytorch-cpp"] },
            Seat { kind: TORCH_REGISTERED, participants: &["pytorch-registered"] },
            Seat { kind: CUDA_CORE, participants: &["cuda.core"] },
        ],
        cases,
        goals,
        plot: None,
        tables: None,
    })
}

fn ready_bytes(scale: Scale) -> u64 {
    if scale.quick { 4 << 20 } else { scale.gib << 30 }
}

fn ready_case(scale: Scale) -> String {
    format!("ready, {}", size(ready_bytes(scale)))
}

fn pair_case(bytes: u64, threads: u64) -> String {
    format!("cached pair, {}, {threads} thread{}", size(bytes), if threads == 1 { "" } else { "s" })
}

/// Twice as much must fit into the machine, in whole GiB.
fn mix_bytes(scale: Scale) -> u64 {
    if scale.quick { 8 << 20 } else { MIX.min(((scale.available / 5 * 2) >> 30).max(1) << 30) }
}

fn mix_case(scale: Scale) -> String {
    format!("mix of sizes, {}", size(mix_bytes(scale)))
}

fn again_case() -> String {
    "pool freed and allocated again".to_owned()
}

/// Sizes from 1 KiB to 2 GiB, evenly spread over their logarithms, no power of two among them, `total` bytes or a little less
/// in all. The same list in every run.
fn mix(total: u64) -> Result<Vec<u64>> {
    let largest = (2u64 << 30).min(total / 4);
    ensure!(largest > 4 << 10, "a mix of {total} bytes is too small");
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    // Both ends are in it.
    let mut sizes = vec![(1 << 10) + 24, largest - 4104];
    let mut sum = sizes.iter().sum::<u64>();
    loop {
        // xorshift64*: a list that is the same everywhere needs no more.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let random = state.wrapping_mul(0x2545_f491_4f6c_dd1d);
        let octaves = u64::from(largest.ilog2() - 10);
        let floor = 1u64 << (10 + (random >> 32) % octaves);
        // Between one power of two and the next, and neither of them.
        let bytes = floor + 1 + random % (floor - 1);
        if sum + bytes > total {
            return Ok(sizes);
        }
        sum += bytes;
        sizes.push(bytes);
    }
}

fn goals(figures: &Figures, scale: Scale) -> Vec<Verdict> {
    use Wanted::{AtLeast, AtMost};
    let (ready, mix) = (ready_case(scale), mix_case(scale));
    let seconds = |who| figures.median(&ready, who, "ready");
    let faster = |than: Option<f64>| Some(than? / seconds("ours")?);
    let torch = least([seconds("pytorch"), seconds("pytorch-registered")]);
    let worst = |threads, compare: &dyn Fn(&str) -> Option<f64>| {
        most(PAIRS.map(|bytes| compare(&pair_case(bytes, threads))))
    };
    let share = |threads, of| worst(threads, &|case| figures.ratio(case, "pair", "ours", of));
    let above_floor = worst(1, &|case| {
        Some(figures.median(case, "ours", "pair")? - figures.median(case, "floor", "pair")?)
    });
    vec![
        Verdict::new(
            format!("{ready}: faster than cuMemHostAlloc"),
            AtLeast(5.0),
            "×",
            faster(seconds("cuMemHostAlloc")),
        ),
        Verdict::new(
            format!("{ready}: the aim beyond that"),
            AtLeast(8.0),
            "×",
            faster(seconds("cuMemHostAlloc")),
        ),
        Verdict::new(
            format!("{ready}: faster than PyTorch's best setting"),
            AtLeast(1.5),
            "×",
            faster(torch),
        ),
        Verdict::new(
            format!("{ready}: resident"),
            AtMost(1.001),
            "× requested",
            figures.median(&ready, "ours", "resident"),
        ),
        Verdict::new(
            "cached pair, worst size: of PyTorch's from Python",
            AtMost(0.1),
            "×",
            share(1, "pytorch"),
        ),
        Verdict::new(
            "cached pair, worst size: of PyTorch's from C++",
            AtMost(0.1),
            "×",
            share(1, "pytorch-cpp"),
        ),
        Verdict::new(
            "cached pair, worst size, 4 threads: of PyTorch's from C++",
            AtMost(0.1),
            "×",
            share(4, "pytorch-cpp"),
        ),
        Verdict::new("cached pair, worst size: above the floor", AtMost(40.0), "ns", above_floor),
        Verdict::new(
            format!("{mix}: held, as counted"),
            AtMost(1.03),
            "× requested",
            figures.median(&mix, "ours", "held"),
        ),
        Verdict::new(
            format!("{mix}: held, as the kernel counts"),
            AtMost(1.03),
            "× requested",
            figures.median(&mix, "ours", "resident"),
        ),
        Verdict::new(
            "pool freed and allocated again",
            AtMost(20.0),
            "µs/GiB",
            figures.median(&again_case(), "ours", "again"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_is_what_it_says() {
        let sizes = mix(MIX).unwrap();
        let sum = sizes.iter().sum::<u64>();
        assert!(sum <= MIX && sum > MIX / 10 * 9, "{sum}");
        assert!(sizes.iter().all(|bytes| !bytes.is_power_of_two() && (1 << 10..2 << 30).contains(bytes)));
        assert!(sizes.iter().any(|bytes| *bytes < 2 << 10) && sizes.iter().any(|bytes| *bytes > 1 << 30));
        assert_eq!(sizes, mix(MIX).unwrap());
        assert!(mix(16 << 10).is_err());
        let bytes = |available| mix_bytes(Scale { quick: false, gib: 16, available });
        assert_eq!([bytes(120 << 30), bytes(22 << 30), bytes(0)], [24 << 30, 8 << 30, 1 << 30]);
    }

    #[test]
    fn goals_compare_what_was_measured() {
        let scale = Scale { quick: false, gib: 16, available: 120 << 30 };
        let mut figures = Figures::default();
        for (who, seconds) in
            [("ours", 1.0), ("cuMemHostAlloc", 6.0), ("pytorch", 6.5), ("pytorch-registered", 3.0)]
        {
            figures.add("ready, 16 GiB", who, "ready", seconds);
        }
        let verdicts = goals(&figures, scale);
        let found = verdicts.iter().map(|verdict| (verdict.found, verdict.verdict)).collect::<Vec<_>>();
        assert_eq!(found[0], (Some(6.0), "met"));
        assert_eq!(found[1], (Some(6.0), "missed"));
        assert_eq!(found[2], (Some(3.0), "met"));
        assert_eq!(found[3], (None, "not measured"));
    }

    #[test]
    fn every_participant_has_a_seat() {
        for quick in [true, false] {
            let suite = suite(Scale { quick, gib: 16, available: 0 }).unwrap();
            let seated = |name: &&str| suite.programs.iter().any(|seat| seat.participants.contains(name));
            assert!(suite.cases.iter().all(|case| case.participants.iter().all(seated)));
        }
    }
}
