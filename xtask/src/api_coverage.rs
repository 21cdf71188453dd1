//! `ci/api-coverage.tsv` against the tests: a row that names no test, or one that is gone, fails here.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const FILE: &str = "ci/api-coverage.tsv";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The names of all test functions under a folder.
fn tests_in(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target" && name != ".git") {
                tests_in(&path, found);
            }
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            for part in text.split("#[test]").skip(1) {
                let name = part.split_once("fn ").and_then(|(_, rest)| rest.split_once('('));
                found.extend(name.map(|(name, _)| name.to_owned()));
            }
        }
    }
}

#[test]
fn every_row_says_where_a_thing_is_and_which_test_shows_it() {
    let mut tests = BTreeSet::new();
    tests_in(root(), &mut tests);
    let text = fs::read_to_string(root().join(FILE)).unwrap();
    let mut rows = 0;
    for line in text.lines().filter(|line| !line.starts_with('#')).skip(1) {
        let cells = line.split('\t').collect::<Vec<_>>();
        assert_eq!(cells.len(), 4, "{line}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "{line}");
        for test in cells[3].split(", ") {
            assert!(tests.contains(test), "no such test: {test}\n{line}");
        }
        rows += 1;
    }
    assert!(rows > 240, "only {rows} rows were found in {FILE}");
}
