//! What a run leaves: the table for people, JUnit and JSON for machines.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::libtest::{Counts, Verdict};
use super::machine::Machine;
use super::run::{Done, Outcome};
use crate::table;

/// Rows by how they ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl Tally {
    pub(crate) fn of(rows: &[Done]) -> Self {
        let mut tally = Self::default();
        for row in rows {
            match row.outcome {
                Outcome::Passed => tally.passed += 1,
                Outcome::Failed(_) => tally.failed += 1,
                Outcome::Skipped(_) => tally.skipped += 1,
            }
        }
        tally
    }

    /// Nothing failed, and something passed: a run of skips shows nothing.
    pub(crate) fn is_success(self) -> bool {
        self.failed == 0 && self.passed > 0
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// The table that a run ends with.
pub(crate) fn summary(rows: &[Done]) -> String {
    let lines = rows
        .iter()
        .map(|row| {
            let result = match &row.outcome {
                Outcome::Passed => "passed".to_owned(),
                Outcome::Failed(reason) => format!("FAILED: {reason}"),
                Outcome::Skipped(reason) => format!("skipped: {reason}"),
            };
            let (tests, time) = match row.outcome {
                Outcome::Skipped(_) => ("-".to_owned(), "-".to_owned()),
                _ => (tests(row.counts), table::seconds(row.time)),
            };
            vec![row.name.clone(), row.backend.clone(), tests, time, result]
        })
        .collect::<Vec<_>>();
    table::render(&["row", "backend", "tests", "time", "result"], &lines, &[2, 3])
}

/// `12`, `11 of 12`, `12 and 1 ignored`.
fn tests(counts: Counts) -> String {
    let mut text = match counts.failed {
        0 => counts.passed.to_string(),
        _ => format!("{} of {}", counts.passed, counts.ran()),
    };
    if counts.ignored > 0 {
        let _ = write!(text, " and {} ignored", counts.ignored);
    }
    text
}

/// Writes `report.json` and `junit.xml`.
pub(crate) fn write(machine: &Machine, rows: &[Done], folder: &Path) -> Result<()> {
    #[derive(Serialize)]
    struct Report<'a> {
        machine: &'a Machine,
        tally: Tally,
        rows: &'a [Done],
    }
    let report = Report { machine, tally: Tally::of(rows), rows };
    let json = serde_json::to_string_pretty(&report)?;
    for (name, text) in [("report.json", json), ("junit.xml", junit(rows))] {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// One suite a row, one case a test.
fn junit(rows: &[Done]) -> String {
    let mut xml =
        String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"gpu-test\">\n");
    for row in rows {
        let name = escaped(&row.name);
        let skipped = usize::from(matches!(row.outcome, Outcome::Skipped(_)));
        let broken = usize::from(matches!(row.outcome, Outcome::Failed(_)) && row.counts.failed == 0);
        let _ = writeln!(
            xml,
            "  <testsuite name=\"{name}\" tests=\"{}\" failures=\"{}\" errors=\"{broken}\" skipped=\"{}\" time=\"{:.3}\">",
            row.counts.ran() + row.counts.ignored + skipped + broken,
            row.counts.failed,
            row.counts.ignored + skipped,
            row.time.as_secs_f64()
        );
        for case in &row.cases {
            let inner = match case.verdict {
                Verdict::Passed => "",
                Verdict::Failed => "<failure/>",
                Verdict::Ignored => "<skipped/>",
            };
            let case = escaped(&case.name);
            let _ = writeln!(xml, "    <testcase classname=\"{name}\" name=\"{case}\">{inner}</testcase>");
        }
        // What befell the row as a whole is a case of its own: readers of JUnit look at cases only.
        let whole = match &row.outcome {
            Outcome::Skipped(reason) => Some(format!("<skipped message=\"{}\"/>", escaped(reason))),
            Outcome::Failed(reason) if broken == 1 => {
                Some(format!("<error message=\"{}\"/>", escaped(reason)))
            }
            _ => None,
        };
        if let Some(whole) = whole {
            let _ = writeln!(xml, "    <testcase classname=\"{name}\" name=\"the row\">{whole}</testcase>");
        }
        xml.push_str("  </testsuite>\n");
    }
    xml.push_str("</testsuites>\n");
    xml
}

fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML has no way to write most control characters.
            control if control.is_control() => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::libtest::Case;
    use super::*;

    fn rows() -> Vec<Done> {
        let passed = Done {
            counts: Counts { passed: 2, failed: 0, ignored: 1 },
            cases: vec![Case { name: "a<b>".to_owned(), verdict: Verdict::Passed }],
            backend: "simulator".to_owned(),
            ..Done::unstarted("core/x".to_owned(), Outcome::Passed)
        };
        let failed = Done {
            counts: Counts { passed: 1, failed: 1, ignored: 0 },
            ..Done::unstarted("core/y".to_owned(), Outcome::Failed("1 test failed".to_owned()))
        };
        let skipped = Done::unstarted("core/z".to_owned(), Outcome::Skipped("needs \"2\" GPUs".to_owned()));
        let broken = Done::unstarted("core/w".to_owned(), Outcome::Failed("no test ran".to_owned()));
        vec![passed, failed, skipped, broken]
    }

    #[test]
    fn the_tally_is_the_last_line() {
        assert_eq!(Tally::of(&rows()).to_string(), "1 passed, 2 failed, 1 skipped");
    }

    #[test]
    fn a_skip_never_counts_as_passed() {
        let rows = rows();
        assert_eq!(Tally::of(&rows[2..3]), Tally { passed: 0, failed: 0, skipped: 1 });
        assert!(!Tally::of(&rows[2..3]).is_success(), "a run of skips shows nothing");
        assert!(Tally::of(&[rows[0].clone(), rows[2].clone()]).is_success());
        assert!(!Tally::of(&rows).is_success());
    }

    #[test]
    fn the_table_shows_tests_and_reasons() {
        let text = summary(&rows());
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(line("core/x").contains("2 and 1 ignored") && line("core/x").ends_with("passed"), "{text}");
        assert!(
            line("core/y").contains("1 of 2") && line("core/y").ends_with("FAILED: 1 test failed"),
            "{text}"
        );
        assert!(line("core/z").ends_with("skipped: needs \"2\" GPUs"), "{text}");
    }

    #[test]
    fn junit_counts_what_it_lists() {
        let xml = junit(&rows());
        assert!(
            xml.contains(r#"<testsuite name="core/x" tests="3" failures="0" errors="0" skipped="1""#),
            "{xml}"
        );
        assert!(xml.contains(r#"<testcase classname="core/x" name="a&lt;b&gt;"></testcase>"#), "{xml}");
        assert!(xml.contains(r#"<skipped message="needs &quot;2&quot; GPUs"/>"#), "{xml}");
        assert!(xml.contains(r#"<error message="no test ran"/>"#), "{xml}");
    }
}
