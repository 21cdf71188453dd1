//! Reads what a script of `ci/cuda-core` printed.

use super::libtest::{Case, Counts, Report, Verdict};

/// Reads one line a step, `name.... ok`, and the last line, `3 passed, 0 failed`.
pub(crate) fn parse(output: &str) -> Report {
    let mut report = Report::default();
    for line in output.lines() {
        if let Some((passed, failed)) = summary(line) {
            report.counts.add(Counts { passed, failed, ignored: 0 });
            report.summaries += 1;
        } else if let Some(case) = case(line) {
            report.counts.ignored += usize::from(case.verdict == Verdict::Ignored);
            report.cases.push(case);
        }
    }
    report
}

fn summary(line: &str) -> Option<(usize, usize)> {
    let (passed, failed) = line.strip_suffix(" failed")?.split_once(" passed, ")?;
    Some((passed.parse().ok()?, failed.parse().ok()?))
}

fn case(line: &str) -> Option<Case> {
    let (name, result) = line.split_once("... ")?;
    let verdict = match result.split_whitespace().next()? {
        "ok" => Verdict::Passed,
        "FAILED" => Verdict::Failed,
        "skipped" => Verdict::Ignored,
        _ => return None,
    };
    Some(Case { name: name.trim_end_matches('.').to_owned(), verdict })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_their_sum() {
        let output = "cuda.core 1.2.0\n\
            a pool............. ok      0 gives back\n\
            a pool of a node... skipped the host has no nodes\n\
            two processes...... FAILED  RuntimeError: no\n\
            1 passed, 1 failed\n";
        let report = parse(output);
        assert_eq!(report.counts, Counts { passed: 1, failed: 1, ignored: 1 });
        let cases = report.cases.iter().map(|case| (&*case.name, case.verdict)).collect::<Vec<_>>();
        let expected = [
            ("a pool", Verdict::Passed),
            ("a pool of a node", Verdict::Ignored),
            ("two processes", Verdict::Failed),
        ];
        assert_eq!((cases, report.summaries), (expected.to_vec(), 1));
    }

    #[test]
    fn a_script_that_broke_off_has_no_sum() {
        assert_eq!(parse("a pool... ok\nTraceback (most recent call last):\n").summaries, 0);
    }
}
