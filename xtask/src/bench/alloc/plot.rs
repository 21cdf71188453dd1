//! Time over threads.

use super::super::figures::Figures;
use super::super::plot::{Line, Panel, Plot, Rise, Ticks};
use super::OURS;
use super::cases::{PATTERNS, Pattern, THREADS, churn};

/// Who is drawn, with label and style.
const LINES: [(&str, &str, &str); 6] = [
    (OURS, "ours", "ours"),
    ("floor", "floor", "limit"),
    ("pytorch", "PyTorch", "rival"),
    ("rmm-arena", "RMM arena", "peer"),
    ("rmm-pool", "RMM pool", "peer"),
    ("cudaMallocAsync", "cudaMallocAsync", "peer"),
];

pub(super) fn plot(figures: &Figures) -> Plot {
    let line = |pattern: Pattern, (participant, label, class)| {
        let point = |threads| Some((threads, figures.get(&churn(pattern, threads), participant, "op")?));
        Line { label, class, points: THREADS.into_iter().filter_map(point).collect() }
    };
    let panel = |pattern: Pattern| Panel {
        title: pattern.name,
        lines: LINES.into_iter().map(|who| line(pattern, who)).collect(),
    };
    Plot {
        title: "One free and one allocation of device memory over threads",
        note: "medians; bars from the slowest to the fastest round",
        x: "threads, each with a stream of its own",
        ticks: Ticks::Numbers,
        y: "ns",
        rise: Rise::Logarithmic,
        panels: PATTERNS.map(panel).into(),
    }
}
