//! What failed, in few lines: where only the end of an output is kept, they are all that anybody has.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::libtest::Verdict;
use super::run::{Done, Outcome};

/// The most lines of one row's log, and of all rows'.
const LINES: usize = 25;
const ALL_LINES: usize = 75;

/// The most characters of a line.
const WIDTH: usize = 200;

/// Each failed row with its reason, the names of its failed tests and the end of its log. Empty if no row failed.
pub(crate) fn text(rows: &[Done]) -> String {
    let mut text = String::new();
    let mut left = ALL_LINES;
    for row in rows {
        let Outcome::Failed(reason) = &row.outcome else { continue };
        let _ = writeln!(text, "FAILED {}: {}", row.name, cut(reason));
        for case in row.cases.iter().filter(|case| case.verdict == Verdict::Failed) {
            let _ = writeln!(text, "    failed: {}", case.name);
        }
        let Some(log) = &row.log else { continue };
        let lines = end_of(log, left.min(LINES));
        left -= lines.len();
        for line in lines {
            let _ = writeln!(text, "    | {line}");
        }
    }
    text
}

/// The last lines of a log that say what went wrong.
fn end_of(log: &Path, count: usize) -> Vec<String> {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines = text.lines().filter(|line| tells(line)).collect::<Vec<_>>();
    lines[lines.len().saturating_sub(count)..].iter().map(|line| cut(line)).collect()
}

/// Whether a line is more than a test that passed, or a call of a backtrace.
fn tells(line: &str) -> bool {
    let text = line.trim();
    let passed = text.starts_with("test ") && (text.ends_with(" ... ok") || text.contains(" ... ignored"));
    let is_call = text.split_once(": ").is_some_and(|(number, _)| {
        line.starts_with(' ') && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    let is_place = line.starts_with("    ") && text.starts_with("at ");
    let is_about_backtraces = text == "stack backtrace:" || text.starts_with("note: ");
    !(text.is_empty() || passed || is_call || is_place || is_about_backtraces)
}

fn cut(line: &str) -> String {
    let mut characters = line.chars();
    let mut text = characters.by_ref().take(WIDTH).collect::<String>();
    if characters.next().is_some() {
        text.push_str(" ...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::libtest::Case;
    use super::*;

    const LOG: &str = "
running 3 tests
test a ... ok
test b ... FAILED
test c ... ignored, needs an hour

failures:

---- b stdout ----

thread 'b' (17) panicked at tests/b.rs:1:2:
left is not right
stack backtrace:
   0: __rustc::rust_begin_unwind
             at /rustc/library/std/src/panicking.rs:689:5
note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.

failures:
    b

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    fn failed(name: &str, log: &Path) -> Done {
        let case = |name: &str, verdict| Case { name: name.to_owned(), verdict };
        Done {
            cases: vec![case("a", Verdict::Passed), case("b", Verdict::Failed)],
            log: Some(log.to_owned()),
            ..Done::unstarted(name.to_owned(), Outcome::Failed("1 test failed".to_owned()))
        }
    }

    #[test]
    fn a_failed_row_is_told_with_its_tests_and_their_panics() {
        let log = std::env::temp_dir().join(format!("xtask-failures-{}", std::process::id()));
        fs::write(&log, LOG).unwrap();
        let passed = Done::unstarted("core/x".to_owned(), Outcome::Passed);
        let told = text(&[passed, failed("core/y", &log)]);
        let expected = "FAILED core/y: 1 test failed
    failed: b
    | running 3 tests
    | test b ... FAILED
    | failures:
    | ---- b stdout ----
    | thread 'b' (17) panicked at tests/b.rs:1:2:
    | left is not right
    | failures:
    |     b
    | test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
";
        assert_eq!(told, expected);

        fs::write(&log, "x".repeat(1000) + "\n" + &"said\n".repeat(1000)).unwrap();
        let rows = (0..20).map(|row| failed(&format!("core/{row}"), &log)).collect::<Vec<_>>();
        let told = text(&rows);
        fs::remove_file(&log).unwrap();
        assert_eq!(told.matches("    | said\n").count(), ALL_LINES);
        assert_eq!(
            told.matches("    failed: b\n").count(),
            rows.len(),
            "each row is told, however many failed"
        );
    }

    #[test]
    fn nothing_is_told_of_rows_that_passed_or_were_skipped() {
        let skipped = Done::unstarted("core/z".to_owned(), Outcome::Skipped("needs a GPU".to_owned()));
        assert_eq!(text(&[Done::unstarted("core/x".to_owned(), Outcome::Passed), skipped]), "");
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        assert_eq!(cut("é"), "é");
        assert_eq!(cut(&"é".repeat(WIDTH + 1)), "é".repeat(WIDTH) + " ...");
    }
}
