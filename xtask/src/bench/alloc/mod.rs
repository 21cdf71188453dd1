//! `cargo xtask bench alloc`.

mod cases;
mod goals;
mod plot;
mod tables;

use super::suite::{Kind, Scale, Seat, Suite};

const OURS: &str = "ours";

const TORCH: &str = "pytorch";

/// RMM's resources that one would choose for speed.
const RMM: [&str; 3] = ["rmm-pool", "rmm-arena", "rmm-cuda_async"];

pub(crate) fn suite(scale: Scale) -> Suite {
    Suite {
        name: "alloc",
        programs: vec![
            Seat { kind: Kind::Ours, participants: &["ours", "floor", "loop"] },
            Seat {
                kind: Kind::Torch { source: "torch_device.cpp" },
                participants: &["pytorch", "cudaMallocAsync"],
            },
            Seat {
                kind: Kind::Rmm,
                participants: &["rmm-pool", "rmm-arena", "rmm-cuda_async", "rmm-binning", "rmm-cuda"],
            },
        ],
        cases: cases::all(scale.quick),
        goals: |figures, _| goals::verdicts(figures),
        plot: Some(|figures| plot::plot(figures).to_svg()),
        tables: Some(tables::render),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_participant_has_a_seat_and_every_case_a_name_of_its_own() {
        for quick in [true, false] {
            let suite = suite(Scale { quick, gib: 16, available: 0 });
            let seated = |name: &&str| suite.programs.iter().any(|seat| seat.participants.contains(name));
            assert!(suite.cases.iter().all(|case| case.participants.iter().all(seated)));
            let mut names = suite.cases.iter().map(|case| &case.name).collect::<Vec<_>>();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), suite.cases.len());
        }
    }
}
