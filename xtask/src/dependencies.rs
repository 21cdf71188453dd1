//! `ci/dependencies.tsv` against the manifests: every dependency is listed with its reason, and nothing else is.

use std::collections::BTreeSet;
use std::path::Path;

use crate::workspace::Workspace;

const FILE: &str = "ci/dependencies.tsv";

/// A crate, what it depends on, and how: `normal`, `build` or `dev`.
type Line = (String, String, String);

/// The rows of the file: crate, dependency, kind, reason, with tabs between them.
fn documented(text: &str) -> BTreeSet<Line> {
    let mut lines = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')).skip(1) {
        let cells = line.split('\t').collect::<Vec<_>>();
        let [package, dependency, kind, reason] = cells[..] else { panic!("{FILE}: no four cells: {line}") };
        assert!(!reason.is_empty(), "{FILE} gives no reason for {dependency} in {package}");
        let line = (package.to_owned(), dependency.to_owned(), kind.to_owned());
        assert!(!lines.contains(&line), "{FILE} lists {dependency} in {package} twice");
        lines.insert(line);
    }
    lines
}

#[test]
fn every_dependency_has_its_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let workspace = Workspace::read(root).unwrap();
    let mut declared = BTreeSet::new();
    for package in &workspace.packages {
        for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_none()) {
            let kind = dependency.kind.as_deref().unwrap_or("normal");
            declared.insert((package.name.clone(), dependency.name.clone(), kind.to_owned()));
        }
    }
    let documented = documented(&std::fs::read_to_string(root.join(FILE)).unwrap());
    let missing = declared.difference(&documented).collect::<Vec<_>>();
    let stale = documented.difference(&declared).collect::<Vec<_>>();
    assert!(missing.is_empty(), "{FILE} does not list {missing:?}");
    assert!(stale.is_empty(), "{FILE} lists what no manifest has: {stale:?}");
}
