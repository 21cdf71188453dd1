//! `docs/dependencies.md` against the manifests: every dependency is listed with its reason, and nothing else is.

use std::collections::BTreeSet;
use std::path::Path;

use crate::workspace::Workspace;

/// A crate, what it depends on, and how: `normal`, `build` or `dev`.
type Line = (String, String, String);

/// The lines of the document's tables: `| crate | dependency | kind | reason |`.
fn documented(text: &str) -> BTreeSet<Line> {
    let mut lines = BTreeSet::new();
    for line in text.lines() {
        let cells =
            line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect::<Vec<_>>();
        let [package, dependency, kind, reason] = cells[..] else { continue };
        if package == "crate" || package.starts_with("--") {
            continue;
        }
        assert!(!reason.is_empty(), "docs/dependencies.md gives no reason for {dependency} in {package}");
        let line = (package.to_owned(), dependency.to_owned(), kind.to_owned());
        assert!(!lines.contains(&line), "docs/dependencies.md lists {dependency} in {package} twice");
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
    let documented = documented(&std::fs::read_to_string(root.join("docs/dependencies.md")).unwrap());
    let missing = declared.difference(&documented).collect::<Vec<_>>();
    let stale = documented.difference(&declared).collect::<Vec<_>>();
    assert!(missing.is_empty(), "docs/dependencies.md does not list {missing:?}");
    assert!(stale.is_empty(), "docs/dependencies.md lists what no manifest has: {stale:?}");
}
