//! Reads what a test executable printed.

use serde::Serialize;

/// Tests of one row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// Those that ran; an ignored test did not.
    pub(crate) fn ran(self) -> usize {
        self.passed + self.failed
    }
}

/// How one test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Passed,
    Failed,
    Ignored,
}

/// One test by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) verdict: Verdict,
}

/// What an output says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) counts: Counts,
    pub(crate) cases: Vec<Case>,
    /// Test executables that finished: each prints one summary. One that crashes prints none.
    pub(crate) summaries: usize,
}

impl Report {
    /// A program without a harness is one test: passed if it says so by its exit code.
    pub(crate) fn of_program(name: String, passed: bool) -> Self {
        let counts = Counts { passed: usize::from(passed), failed: usize::from(!passed), ignored: 0 };
        let verdict = if passed { Verdict::Passed } else { Verdict::Failed };
        Self { counts, cases: vec![Case { name, verdict }], summaries: 1 }
    }
}

/// Reads the output of one or several test executables.
///
/// The counts come from the summaries. The names serve the reports only: a test that prints past libtest's capture can
/// break the line that names it.
pub(crate) fn parse(output: &str) -> Report {
    let mut report = Report::default();
    for line in output.lines() {
        if let Some(counts) = summary(line) {
            report.counts.add(counts);
            report.summaries += 1;
        } else if let Some(case) = case(line) {
            report.cases.push(case);
        }
    }
    report
}

/// The tests that libtest said were slow and that had not ended when the output did.
pub(crate) fn unfinished(output: &str) -> Vec<&str> {
    let slow = output.lines().filter_map(|line| {
        let (name, _) = line.strip_prefix("test ")?.split_once(" has been running for over ")?;
        Some(name)
    });
    let ended = |name: &str| output.lines().filter_map(case).any(|case| case.name == name);
    slow.filter(|name| !ended(name)).collect()
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s`
fn summary(line: &str) -> Option<Counts> {
    let (_, rest) = line.split_once("test result: ")?;
    let (_, rest) = rest.split_once(". ")?;
    let count = |word: &str| {
        let part = rest.split(';').map(str::trim).find_map(|part| part.strip_suffix(word))?;
        part.trim().parse().ok()
    };
    Some(Counts { passed: count("passed")?, failed: count("failed")?, ignored: count("ignored")? })
}

/// `test name ... ok`, also `FAILED` and `ignored, reason`.
fn case(line: &str) -> Option<Case> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let verdict = match result.trim() {
        "ok" => Verdict::Passed,
        "FAILED" => Verdict::Failed,
        ignored if ignored.starts_with("ignored") => Verdict::Ignored,
        _ => return None,
    };
    Some(Case { name: name.to_owned(), verdict })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_hang_are_told() {
        let output = "
test a ... ok
test b::slow has been running for over 60 seconds
test c::hangs has been running for over 60 seconds
test b::slow ... ok
";
        assert_eq!(unfinished(output), ["c::hangs"]);
        assert!(unfinished("test a ... ok").is_empty());
    }

    #[test]
    fn several_executables_add_up() {
        let output = "
running 3 tests
test a::b ... ok
test a::c ... ignored, needs an hour
test d - should panic ... ok

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

running 2 tests
test src/lib.rs - (line 12) - compile fail ... ok
test e ... FAILED

failures:
    e

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 4 filtered out; finished in 1.25s
";
        let report = parse(output);
        assert_eq!(report.counts, Counts { passed: 3, failed: 1, ignored: 1 });
        assert_eq!(report.counts.ran(), 4);
        assert_eq!(report.summaries, 2);
        let names = report.cases.iter().map(|case| (case.name.as_str(), case.verdict)).collect::<Vec<_>>();
        assert_eq!(
            names,
            [
                ("a::b", Verdict::Passed),
                ("a::c", Verdict::Ignored),
                ("d - should panic", Verdict::Passed),
                ("src/lib.rs - (line 12) - compile fail", Verdict::Passed),
                ("e", Verdict::Failed),
            ]
        );
    }

    #[test]
    fn a_crash_leaves_no_summary() {
        let report = parse("running 2 tests\ntest a ... ok\n");
        assert_eq!((report.summaries, report.counts), (0, Counts::default()));
    }

    #[test]
    fn a_summary_behind_other_text_counts() {
        let report =
            parse("noise test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
        assert_eq!(report.counts.passed, 1);
    }

    #[test]
    fn ignored_tests_did_not_run() {
        let report = parse("test result: ok. 0 passed; 0 failed; 5 ignored; 0 measured; 0 filtered out");
        assert_eq!(report.counts.ran(), 0);
    }
}
