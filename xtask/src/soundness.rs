//! `docs/soundness.md` against the sources: every module that lifts the ban on unsafe code is listed, and says what it relies on.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Whether there is unsafe code in it, and not only the word. What a macro writes counts where it is used.
fn is_unsafe(text: &str) -> bool {
    let marks = ["unsafe {", "unsafe impl", "unsafe fn", "unsafe trait"];
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//") && !line.contains('$'));
    code.into_iter().any(|line| marks.iter().any(|mark| line.contains(mark)))
}

#[test]
fn every_unsafe_module_is_listed_and_says_what_it_relies_on() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let document = fs::read_to_string(root.join("docs/soundness.md")).unwrap();
    for package in ["cuda-mem-core", "cuda-mem-pool", "cuda-mem-ipc", "cuda-mem-torch"] {
        let start = document.find(&format!("## The unsafe modules of {package}\n")).unwrap();
        let rows = document[start..].lines().skip(2).take_while(|line| !line.starts_with('#'));
        let cells = rows.filter_map(|row| row.strip_prefix("| `")?.split('|').next());
        let listed: BTreeSet<_> = cells
            .flat_map(|cell| cell.split(','))
            .map(|name| name.trim().trim_matches('`').to_owned())
            .collect();
        let folder = root.join(package).join("src");
        let mut files = Vec::new();
        sources(&folder, &mut files);
        let mut found = BTreeSet::new();
        for file in files.iter().filter(|file| !file.ends_with("tests.rs")) {
            let text = fs::read_to_string(file).unwrap();
            let lifts = text.contains("#![allow(unsafe_code");
            assert!(lifts || !is_unsafe(&text), "{} lifts the ban by another's word", file.display());
            if lifts {
                assert!(text.contains("//! # Safety\n"), "{} does not say what it relies on", file.display());
                found.insert(file.strip_prefix(&folder).unwrap().to_str().unwrap().to_owned());
            }
        }
        let missing = found.difference(&listed).collect::<Vec<_>>();
        assert!(missing.is_empty(), "docs/soundness.md does not list {missing:?} of {package}");
        let stale = listed.difference(&found).collect::<Vec<_>>();
        assert!(stale.is_empty(), "docs/soundness.md lists {stale:?} of {package}, without unsafe code");
    }
}
