//! `cargo xtask bench staging`.

use super::figures::Figures;
use super::goal::{Verdict, Wanted, least};
use super::plot::{Line, Panel, Plot, Rise, Ticks};
use super::suite::{Case, Kind, Scale, Seat, Suite, size};

const DIRECTIONS: [&str; 2] = ["H2D", "D2H"];

/// Copies up to this size must not lose by being staged.
const SMALL: u64 = 64 << 10;

const LARGEST: u64 = 2 << 30;

const PARTICIPANTS: &[&str] = &["staged", "direct", "pinned", "pytorch-pageable", "pytorch-pinned"];

pub(crate) fn suite(scale: Scale) -> Suite {
    let sizes = sizes(scale.quick);
    let largest = sizes.last().copied().unwrap_or(0);
    let case = |direction: &str, bytes: u64| {
        // About as many bytes in each round, between one copy and what shows the middle of many.
        let copies = if scale.quick { 2 } else { ((256 << 20) / bytes).clamp(1, 200) };
        let request = format!("{} bytes={bytes} copies={copies} room={largest}", direction.to_lowercase());
        Case {
            name: case_name(direction, bytes),
            participants: PARTICIPANTS,
            warm_up: Some(format!("{request} verify=1")),
            request,
            rounds: if scale.quick { 2 } else { 9 },
            // Pageable and pinned memory, ours and PyTorch's, and the copies that are verified.
            memory: 6 * largest,
        }
    };
    Suite {
        name: "staging",
        programs: vec![
            // One process, because staged and direct copies are of the same memory.
            Seat { kind: Kind::Ours, participants: &["staged", "direct", "pinned"] },
            Seat {
                kind: Kind::Python { script: "torch_copy.py", native: None, env: &[] },
                participants: &["pytorch-pageable", "pytorch-pinned"],
            },
        ],
        cases: DIRECTIONS
            .iter()
            .flat_map(|direction| sizes.iter().map(|bytes| case(direction, *bytes)))
            .collect(),
        goals,
        plot: Some(|figures| plot(figures).to_svg()),
        tables: None,
    }
}

/// 4 KiB to 2 GiB, by fours.
fn sizes(quick: bool) -> Vec<u64> {
    let largest = if quick { 16 << 20 } else { LARGEST };
    let mut sizes =
        (0..).map(|step| 4096 << (2 * step)).take_while(|bytes| *bytes < largest).collect::<Vec<_>>();
    sizes.push(largest);
    sizes
}

fn case_name(direction: &str, bytes: u64) -> String {
    format!("{direction}, {}", size(bytes))
}

fn goals(figures: &Figures, scale: Scale) -> Vec<Verdict> {
    use Wanted::AtLeast;
    let mut verdicts = Vec::new();
    for (direction, of_pinned, of_direct) in [("H2D", 0.92, 4.5), ("D2H", 0.88, 2.3)] {
        let case = case_name(direction, LARGEST);
        let against = |other| figures.ratio(&case, "rate", "staged", other);
        verdicts.push(Verdict::new(
            format!("{case}: of the pinned rate"),
            AtLeast(of_pinned),
            "×",
            against("pinned"),
        ));
        verdicts.push(Verdict::new(
            format!("{case}: of the direct copy"),
            AtLeast(of_direct),
            "×",
            against("direct"),
        ));
        let small = sizes(scale.quick).into_iter().filter(|bytes| *bytes <= SMALL);
        let worst =
            least(small.map(|bytes| figures.ratio(&case_name(direction, bytes), "rate", "staged", "direct")));
        let goal = format!("{direction}, {} and less, worst size: of the direct copy", size(SMALL));
        verdicts.push(Verdict::new(goal, AtLeast(0.9), "×", worst));
    }
    verdicts
}

fn plot(figures: &Figures) -> Plot {
    let all = sizes(false);
    let line =
        |direction: &'static str, participant: &'static str, label: &'static str, class: &'static str| {
            let point = |bytes: &u64| {
                Some((*bytes, figures.get(&case_name(direction, *bytes), participant, "rate")?))
            };
            Line { label, class, points: all.iter().filter_map(point).collect() }
        };
    let panel = |direction, title| Panel {
        title,
        lines: vec![
            line(direction, "pinned", "pinned", "limit"),
            line(direction, "staged", "staged", "ours"),
            line(direction, "direct", "pageable, direct", "rival"),
            line(direction, "pytorch-pinned", "PyTorch, pinned", "peer"),
            line(direction, "pytorch-pageable", "PyTorch, pageable", "peer"),
        ],
    };
    Plot {
        title: "Rate of one copy over its size",
        note: "medians; bars from the slowest to the fastest round",
        x: "bytes in one copy",
        ticks: Ticks::Sizes,
        y: "GB/s",
        rise: Rise::Linear,
        panels: vec![panel("H2D", "host to device"), panel("D2H", "device to host")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Scale = Scale { quick: false, gib: 16, available: 0 };

    #[test]
    fn sizes_go_by_fours_and_end_with_the_largest() {
        let sizes = sizes(false);
        assert_eq!(
            (sizes.len(), sizes[0], sizes[1], sizes[9], sizes[10]),
            (11, 4096, 16_384, 1 << 30, 2 << 30)
        );
        assert_eq!(suite(FULL).cases.len(), 22);
    }

    #[test]
    fn the_worst_small_size_counts() {
        let mut figures = Figures::default();
        for (bytes, staged) in [(4u64 << 10, 1.0), (16 << 10, 0.8), (64 << 10, 1.1), (2 << 30, 50.0)] {
            figures.add(&case_name("H2D", bytes), "staged", "rate", staged);
            figures.add(&case_name("H2D", bytes), "direct", "rate", if bytes > SMALL { 10.0 } else { 1.0 });
        }
        let verdicts = goals(&figures, FULL);
        let found = verdicts.iter().map(|verdict| (verdict.found, verdict.verdict)).collect::<Vec<_>>();
        let expected = [(None, "not measured"), (Some(5.0), "met"), (Some(0.8), "missed")];
        assert_eq!(found[..3], expected);
        assert_eq!(found[5], (None, "not measured"));
    }
}
