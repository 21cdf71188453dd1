//! What a benchmark consists of: who takes part, what they are asked, what is hoped for.

use super::figures::Figures;
use super::goal::Verdict;

/// How large everything is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Tiny: it only has to run.
    pub(crate) quick: bool,
    /// GiB that are made ready at once.
    pub(crate) gib: u64,
    /// Bytes of memory that the machine has to give.
    pub(crate) available: u64,
}

/// A benchmark.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) programs: Vec<Seat>,
    pub(crate) cases: Vec<Case>,
    pub(crate) goals: fn(&Figures, Scale) -> Vec<Verdict>,
    pub(crate) plot: Option<fn(&Figures) -> String>,
    /// What people read in place of a list of all figures, where that would be too long.
    pub(crate) tables: Option<fn(&Figures) -> String>,
}

/// A program and the participants that it answers for.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) kind: Kind,
    pub(crate) participants: &'static [&'static str],
}

/// What is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The workspace's own executable.
    Ours,
    /// A script of `ci/peers`.
    Python {
        script: &'static str,
        /// A C++ source beside it, which becomes a shared library that the script is given.
        native: Option<&'static str>,
        env: &'static [(&'static str, &'static str)],
    },
    /// A C++ source of `ci/peers`, which becomes a program over PyTorch's libraries.
    Torch { source: &'static str },
    /// The program over RMM.
    Rmm,
}

/// One thing that is measured, the same for all who take part in it.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) participants: &'static [&'static str],
    /// What each of them is told in each round, behind its name.
    pub(crate) request: String,
    /// What each is told before the first round, where that is not counted.
    pub(crate) warm_up: Option<String>,
    pub(crate) rounds: u32,
    /// Bytes that it needs at once, which are touched before any clock runs.
    pub(crate) memory: u64,
}

impl Suite {
    /// What its largest case needs.
    pub(crate) fn memory(&self) -> u64 {
        self.cases.iter().map(|case| case.memory).max().unwrap_or(0)
    }
}

/// A size as people write it.
pub(crate) fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let whole = units.into_iter().find(|(_, shift)| bytes >= 1 << shift && bytes.trailing_zeros() >= *shift);
    whole.map_or_else(|| format!("{bytes} B"), |(unit, shift)| format!("{} {unit}", bytes >> shift))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Every participant has a seat; there are so many goals, each of a case, and none is met by nothing.
    pub(crate) fn fits(suite: fn(Scale) -> Suite, goals: usize) {
        for quick in [true, false] {
            let scale = Scale { quick, gib: 16, available: 0 };
            let suite = suite(scale);
            let seated = |name: &&str| suite.programs.iter().any(|seat| seat.participants.contains(name));
            assert!(suite.cases.iter().all(|case| case.participants.iter().all(seated)));
            let named = |goal: &str| suite.cases.iter().any(|case| goal.starts_with(&case.name));
            let verdicts = (suite.goals)(&Figures::default(), scale);
            assert_eq!(verdicts.len(), goals);
            assert!(verdicts.iter().all(|verdict| named(&verdict.goal)), "{verdicts:?}");
            assert!(verdicts.iter().all(|verdict| verdict.verdict == "not measured"), "{verdicts:?}");
        }
    }

    #[test]
    fn sizes_read_well() {
        let read = [1, 1024, 1025, 65_536, 1 << 20, 3 << 20, 2 << 30].map(size);
        assert_eq!(read, ["1 B", "1 KiB", "1025 B", "64 KiB", "1 MiB", "3 MiB", "2 GiB"]);
    }
}
