//! Simulator against hardware: the results that the same tests recorded on both, line by line.
//!
//! A test appends `test<TAB>step<TAB>result` to the file in `CUDA_MEM_RECORD`: result codes, hashes of final bytes, nothing
//! that depends on time or on addresses. What differs is a bug of the simulator, or has its reason in
//! `ci/known-differences.tsv`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::plan;

/// The results of one row on one driver, by case: `crate/test/step`, and `#2` behind it where a step was recorded again.
type Record = BTreeMap<String, String>;

/// A difference that is documented: its case, which may hold `*`, and the reason.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Known {
    case: String,
    reason: String,
}

/// One case of one row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Compared {
    row: String,
    case: String,
    simulator: String,
    hardware: String,
    verdict: Verdict,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Same,
    Known(String),
    Different,
}

/// What stands in for a result that one side did not record.
const MISSING: &str = "(not recorded)";

/// Reads the documented differences: `case<TAB>reason` a line, `#` before a comment.
pub(crate) fn known(path: &Path) -> Result<Vec<Known>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse_known(&text).with_context(|| format!("{} is not a list of differences", path.display()))
}

fn parse_known(text: &str) -> Result<Vec<Known>> {
    let mut known = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let (case, reason) = line.split_once('\t').unwrap_or((line, ""));
        ensure!(!reason.trim().is_empty(), "line {}: no tab and reason behind `{case}`", number + 1);
        known.push(Known { case: case.to_owned(), reason: reason.trim().to_owned() });
    }
    Ok(known)
}

/// Reads what a row's tests of a crate recorded; a row without a file recorded nothing.
pub(crate) fn record(package: &str, path: &Path) -> Result<Record> {
    match fs::read_to_string(path) {
        Ok(text) => {
            parse_record(package, &text).with_context(|| format!("{} is not a record", path.display()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Record::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn parse_record(package: &str, text: &str) -> Result<Record> {
    let mut record = Record::new();
    for (number, line) in text.lines().enumerate() {
        let mut fields = line.splitn(3, '\t');
        let (test, step, result) = (fields.next(), fields.next(), fields.next());
        let (Some(test), Some(step), Some(result)) = (test, step, result) else {
            anyhow::bail!("line {}: `{line}` has no three fields", number + 1);
        };
        // Tests run at once, so lines of several are mixed; those of one test keep their order.
        let case = format!("{package}/{test}/{step}");
        let again = (2..).map(|count| format!("{case}#{count}"));
        let free = std::iter::once(case.clone()).chain(again).find(|case| !record.contains_key(case));
        record.insert(free.unwrap_or(case), result.to_owned());
    }
    Ok(record)
}

/// Compares one row's records.
pub(crate) fn compare(row: &str, simulator: &Record, hardware: &Record, known: &[Known]) -> Vec<Compared> {
    let mut cases = simulator.keys().chain(hardware.keys()).collect::<Vec<_>>();
    cases.sort_unstable();
    cases.dedup();
    let result =
        |record: &Record, case: &str| record.get(case).map_or_else(|| MISSING.to_owned(), Clone::clone);
    let compared = cases.into_iter().map(|case| {
        let (simulator, hardware) = (result(simulator, case), result(hardware, case));
        let verdict = if simulator == hardware {
            Verdict::Same
        } else {
            let known = known.iter().find(|known| known.case == *case || matches_whole(&known.case, case));
            known.map_or(Verdict::Different, |known| Verdict::Known(known.reason.clone()))
        };
        Compared { row: row.to_owned(), case: case.clone(), simulator, hardware, verdict }
    });
    compared.collect()
}

/// A documented case names the whole case: without a `*` there is nothing to match.
fn matches_whole(pattern: &str, case: &str) -> bool {
    pattern.contains('*') && plan::matches(pattern, case)
}

/// How many cases were compared, and those that differ without a reason.
pub(crate) fn judge(compared: &[Compared]) -> (usize, Vec<&Compared>) {
    (compared.len(), compared.iter().filter(|compared| compared.verdict == Verdict::Different).collect())
}

impl Compared {
    /// For the end of a failed run.
    pub(crate) fn describe(&self) -> String {
        format!("{} in {}: simulator {}, hardware {}", self.case, self.row, self.simulator, self.hardware)
    }
}

/// Writes `comparison.tsv`, every case of every row, and `comparison.md`, each case once.
pub(crate) fn write(compared: &[Compared], folder: &Path) -> Result<()> {
    fs::write(folder.join("comparison.tsv"), tsv(compared))?;
    fs::write(folder.join("comparison.md"), markdown(compared))?;
    Ok(())
}

fn tsv(compared: &[Compared]) -> String {
    let mut text = String::from("row\tcase\tsimulator\thardware\tsame\treason\n");
    for Compared { row, case, simulator, hardware, verdict } in compared {
        let (same, reason) = verdict.columns();
        let _ = writeln!(text, "{row}\t{case}\t{simulator}\t{hardware}\t{same}\t{reason}");
    }
    text
}

fn markdown(compared: &[Compared]) -> String {
    // Rows that agree on a case share its line.
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for Compared { case, simulator, hardware, verdict, .. } in compared {
        let (same, reason) = verdict.columns();
        let cells = [case, simulator, hardware, same, reason].map(|cell| cell.replace('|', "\\|"));
        *lines.entry(cells.join(" | ")).or_default() += 1;
    }
    let mut text =
        String::from("| case | simulator | hardware | same | reason | rows |\n|---|---|---|---|---|--:|\n");
    for (line, rows) in lines {
        let _ = writeln!(text, "| {line} | {rows} |");
    }
    text
}

impl Verdict {
    /// The last two columns of both tables.
    fn columns(&self) -> (&str, &str) {
        match self {
            Self::Same => ("yes", ""),
            Self::Known(reason) => ("no, documented", reason),
            Self::Different => ("no", ""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_keep_repeated_steps_apart() {
        let record = parse_record("c", "a\tcopy\t0\nb\tcopy\t1\na\tcopy\t712\n").unwrap();
        let expected = [("c/a/copy", "0"), ("c/a/copy#2", "712"), ("c/b/copy", "1")];
        assert_eq!(record, expected.map(|(case, result)| (case.to_owned(), result.to_owned())).into());
        assert_eq!(
            parse_record("c", "a\tb\n").unwrap_err().to_string(),
            "line 1: `a\tb` has no three fields"
        );
    }

    #[test]
    fn only_documented_differences_pass() {
        let simulator = parse_record("c", "t\ta\t0\nt\tb\t1\nt\tc\t1\nt\td\t5\n").unwrap();
        let hardware = parse_record("c", "t\ta\t0\nt\tb\t2\nt\tc\t2\n").unwrap();
        let known = parse_known("# why\nc/t/b\tno ECC\n").unwrap();
        let compared = compare("row", &simulator, &hardware, &known);
        let (count, different) = judge(&compared);
        assert_eq!(count, 4);
        let cases = different.iter().map(|compared| compared.case.as_str()).collect::<Vec<_>>();
        assert_eq!(cases, ["c/t/c", "c/t/d"]);
        assert_eq!(different[1].describe(), "c/t/d in row: simulator 5, hardware (not recorded)");
        assert!(tsv(&compared).contains("row\tc/t/b\t1\t2\tno, documented\tno ECC\n"));
        assert!(markdown(&compared).contains("| c/t/a | 0 | 0 | yes |  | 1 |\n"));
    }

    #[test]
    fn a_documented_case_matches_as_a_whole() {
        let record = |result: &str| parse_record("c", &format!("test\tstep\t{result}")).unwrap();
        let different = |known: &str| {
            let known = parse_known(&format!("{known}\treason")).unwrap();
            judge(&compare("row", &record("1"), &record("2"), &known)).1.len()
        };
        assert_eq!(different("c/test/step"), 0);
        assert_eq!(different("c/test/*"), 0);
        assert_eq!(different("test/step"), 1);
        assert_eq!(different("other/*"), 1);
    }

    #[test]
    fn a_difference_needs_a_reason() {
        let error = parse_known("\n# comment\nt/b\n").unwrap_err().to_string();
        assert_eq!(error, "line 3: no tab and reason behind `t/b`");
    }
}
