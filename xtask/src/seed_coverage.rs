//! `docs/seed-coverage.md` and `docs/pytorch-coverage.md` against the tests: a row that names no test, or one that is gone, fails here.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

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
    for (document, least) in [("docs/seed-coverage.md", 50), ("docs/pytorch-coverage.md", 110)] {
        check(document, least, &tests);
    }
}

fn check(document: &str, least: usize, tests: &BTreeSet<String>) {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let mut rows = 0;
    for line in text.lines().filter(|line| line.starts_with('|') && !line.starts_with("|---")) {
        let cells = line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>();
        assert_eq!(cells.len(), 3, "{line}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "{line}");
        if cells[2] == "test" {
            continue;
        }
        for test in cells[2].split(", ") {
            assert!(tests.contains(test.trim_matches('`')), "no such test: {test}\n{line}");
        }
        rows += 1;
    }
    assert!(rows > least, "only {rows} rows were found in {document}");
}
