//! `cargo xtask house`: how large each crate is and which of its modules import each other in a loop, against `ci/house.toml`.
//!
//! Lines are those of `src` without tests. A module is a file or folder right under `src`; an arrow between two is a path `crate::module`,
//! or a `super::` path that leads there. Text is read, not meaning.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::table;
use crate::workspace::Workspace;

const LIMITS: &str = "ci/house.toml";

/// What a crate comes to, or may come to, in this order: lines, files, lines of the largest file, public types, types with methods in
/// more than four files, modules in the longest loop.
type Figures = BTreeMap<String, usize>;
const NAMES: [&str; 6] = ["lines", "files", "largest", "public_types", "spread_types", "longest_loop"];

/// Prints the figures, and what is above its limit; whether nothing is. With `write` today's figures become the limits.
pub(crate) fn run(root: &Path, write: bool) -> Result<bool> {
    let mut crates = BTreeMap::new();
    let mut rows = Vec::new();
    for package in Workspace::read(root)?.packages {
        let folder = package.manifest_path.parent().context("a manifest lies in a folder")?.join("src");
        let (figures, notes) = measure(&folder)?;
        let numbers = NAMES.iter().map(|name| figures[*name].to_string());
        rows.push(std::iter::once(package.name.clone()).chain(numbers).collect());
        crates.insert(package.name, (figures, notes));
    }
    let heading = ["crate", "lines", "files", "largest", "types", "spread", "loop"];
    print!("{}", table::render(&heading, &rows, &[1, 2, 3, 4, 5, 6]));
    if write {
        let limits = crates.iter().map(|(name, (figures, _))| (name, rounded(figures)));
        let text = toml::to_string(&limits.collect::<BTreeMap<_, _>>())?;
        let head = "# The most that each crate may come to (`cargo xtask house`); lines are without tests. These numbers only go down:\n\
                    # `cargo xtask house --write` makes today's figures the limits.\n\n";
        fs::write(root.join(LIMITS), format!("{head}{text}"))?;
        return Ok(true);
    }
    let limits = fs::read_to_string(root.join(LIMITS)).context(LIMITS)?;
    let limits: BTreeMap<String, Figures> = toml::from_str(&limits).context(LIMITS)?;
    let mut findings = 0;
    for (name, (figures, notes)) in &crates {
        let above = above(figures, limits.get(name).unwrap_or(&Figures::new()));
        for line in above.iter().chain(notes.iter().filter(|_| !above.is_empty())) {
            println!("{name}: {line}");
        }
        findings += above.len();
    }
    println!("{} crates, {findings} findings", crates.len());
    Ok(findings == 0)
}

/// Which figures are above their limits; one without a limit has to be 0.
fn above(figures: &Figures, limits: &Figures) -> Vec<String> {
    let limit = |name| limits.get(name).copied().unwrap_or(0);
    let above = figures.iter().filter(|(name, is)| **is > limit(*name));
    above.map(|(name, is)| format!("{name} {is}, at most {} ({LIMITS})", limit(name))).collect()
}

/// Figures as limits: a line more or less is no matter.
fn rounded(figures: &Figures) -> Figures {
    let hundreds = |name: &str| name == "lines" || name == "largest";
    let round = |(name, is): (&String, &usize)| {
        (name.clone(), if hundreds(name) { is.div_ceil(100) * 100 } else { *is })
    };
    figures.iter().map(round).collect()
}

/// A crate's figures, and what explains them.
fn measure(src: &Path) -> Result<(Figures, Vec<String>)> {
    let mut files = Vec::new();
    sources(src, src, &mut files)?;
    let modules = files.iter().filter_map(|(path, _)| module_of(path)).collect::<BTreeSet<_>>();
    let (mut lines, mut largest, mut public) = (0, 0, 0);
    let mut arrows = BTreeMap::<String, BTreeSet<String>>::new();
    let mut methods = BTreeMap::<String, BTreeSet<&Path>>::new();
    for (path, text) in &files {
        let of_this = text.lines().count();
        lines += of_this;
        largest = largest.max(of_this);
        public += text.lines().filter(|line| is_public_type(line)).count();
        for name in inherent_impls(text) {
            methods.entry(name).or_default().insert(path);
        }
        if let Some(module) = module_of(path) {
            let mut targets = imports(text, depth(src, path));
            targets.retain(|target| *target != module && modules.contains(target));
            arrows.entry(module).or_default().extend(targets);
        }
    }
    methods.retain(|_, files| files.len() > 4);
    let longest = longest_loop(&arrows);
    let figures = [lines, files.len(), largest, public, methods.len(), longest.len()];
    let spread = methods.iter().map(|(name, files)| format!("{name} has methods in {} files", files.len()));
    let notes =
        spread.chain([format!("loop: {}", longest.into_iter().collect::<Vec<_>>().join(" "))]).collect();
    Ok((NAMES.map(str::to_owned).into_iter().zip(figures).collect(), notes))
}

/// The sources under a folder, by their paths from `src`, without tests and without what is generated.
fn sources(src: &Path, folder: &Path, found: &mut Vec<(PathBuf, String)>) -> Result<()> {
    let mut entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if ["tests", "models", "loom", "tests.rs", "models.rs", "generated"].contains(&&*name) {
            continue;
        }
        if path.is_dir() {
            sources(src, &path, found)?;
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(&path)?;
            found.push((path.strip_prefix(src)?.to_path_buf(), without_tests(&text)));
        }
    }
    Ok(())
}

/// The text without modules of tests; their `#[cfg(test)]` stays.
fn without_tests(text: &str) -> String {
    const TESTS: [&str; 4] = ["#[cfg(test", "#[cfg(loom", "#[cfg(all(test", "#[cfg(all(loom"];
    let mut kept = String::new();
    let (mut depth, mut is_test) = (0_usize, false);
    for line in text.lines() {
        let code = line.trim();
        if depth > 0 {
            depth = (depth + code.matches('{').count()).saturating_sub(code.matches('}').count());
        } else if is_test && code.ends_with('{') && (code.starts_with("mod ") || code.contains(" mod ")) {
            depth = 1;
        } else {
            kept.extend([line, "\n"]);
        }
        is_test = TESTS.iter().any(|start| code.starts_with(start)) || is_test && code.starts_with("#[");
    }
    kept
}

/// The module right under `src` that a file belongs to; the crate's root belongs to none.
fn module_of(path: &Path) -> Option<String> {
    let first = Path::new(path.iter().next()?).file_stem()?.to_string_lossy().into_owned();
    (first != "lib" && first != "main").then_some(first)
}

/// How many `super` lead from a file's module to the crate's root.
fn depth(src: &Path, path: &Path) -> usize {
    let (stem, folder) = (path.file_stem(), path.parent().and_then(Path::file_name));
    let names_folder =
        stem == folder && folder.is_some() && !src.join(path).with_file_name("mod.rs").exists();
    path.iter().count() - usize::from(stem.is_some_and(|stem| stem == "mod") || names_folder)
}

fn is_public_type(line: &str) -> bool {
    let kinds = ["struct ", "enum ", "trait ", "type ", "union "];
    let rest = line.trim_start().strip_prefix("pub ");
    rest.is_some_and(|rest| kinds.iter().any(|kind| rest.starts_with(kind)))
}

/// The name at the beginning of a text.
fn word(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// What follows generics at the beginning of a text.
fn behind_generics(text: &str) -> &str {
    let mut depth = 0_usize;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return if c == '>' { &text[at + 1..] } else { text };
        }
        before = c;
    }
    text
}

/// The types that have methods of their own here.
fn inherent_impls(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for rest in format!("\n{text}").split("\nimpl").skip(1) {
        let head = behind_generics(rest.split(['{', ';']).next().unwrap_or_default()).trim_start();
        let name = word(head);
        let behind = behind_generics(&head[name.len()..]).trim();
        if behind.is_empty() || behind.starts_with("where") {
            names.insert(name.to_owned());
        }
    }
    names
}

/// The modules that a file's paths begin with.
fn imports(text: &str, depth: usize) -> BTreeSet<String> {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let code = code.collect::<Vec<_>>().join("\n");
    let mut names = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            Some((list, _)) => names.extend(list.split(',').map(|name| word(name.trim()).to_owned())),
            None => _ = names.insert(word(rest).to_owned()),
        }
    }
    let mut ups = 0;
    for rest in code.split("super::").skip(1) {
        ups += 1;
        if !rest.is_empty() {
            if ups >= depth {
                names.insert(word(rest).to_owned());
            }
            ups = 0;
        }
    }
    names
}

/// The largest set of modules each of which leads to all others.
fn longest_loop(arrows: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let reached = |from: &String| {
        let mut reached = BTreeSet::new();
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            open.extend(arrows.get(at).into_iter().flatten().filter(|next| reached.insert((*next).clone())));
        }
        reached
    };
    let all = arrows.keys().map(|from| (from, reached(from))).collect::<BTreeMap<_, _>>();
    let mut longest = BTreeSet::new();
    for (name, leads_to) in &all {
        let around = leads_to.iter().filter(|to| all.get(to).is_some_and(|back| back.contains(*name)));
        let around = around.cloned().collect::<BTreeSet<_>>();
        if around.len() > longest.len().max(1) {
            longest = around;
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_not_counted() {
        let text = "a\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n    fn f() {}\n}\nb\n#[cfg(test)]\nuse c;\n";
        assert_eq!(without_tests(text), "a\n#[cfg(test)]\n#[allow(x)]\nb\n#[cfg(test)]\nuse c;\n");
    }

    #[test]
    fn methods_are_of_a_type_and_not_of_a_trait() {
        let text = "impl A {\nimpl<T: Fn() -> U> B<T>\nwhere\n    T: C,\n{\nimpl D for E {\nimpl fmt::F for G {\nunsafe impl H for I {";
        assert_eq!(inherent_impls(text), ["A".to_owned(), "B".to_owned()].into());
    }

    #[test]
    fn loops_are_found_by_paths() {
        assert_eq!(
            imports("use crate::{a::X, b};\nuse crate::c; // crate::d", 1),
            ["a", "b", "c"].map(str::to_owned).into()
        );
        assert_eq!(imports("use super::super::e; use super::f;", 2), ["e".to_owned()].into());
        let arrows = [("a", vec!["b"]), ("b", vec!["c"]), ("c", vec!["a", "d"]), ("d", vec![])];
        let arrows = arrows.map(|(from, to)| (from.to_owned(), to.into_iter().map(str::to_owned).collect()));
        assert_eq!(longest_loop(&arrows.into()), ["a", "b", "c"].map(str::to_owned).into());
    }

    #[test]
    fn what_is_above_its_limit_is_named() {
        let figures = |lines, files| [("lines".to_owned(), lines), ("files".to_owned(), files)].into();
        assert_eq!(above(&figures(101, 2), &figures(100, 2)), ["lines 101, at most 100 (ci/house.toml)"]);
        assert_eq!(above(&figures(0, 1), &Figures::new()), ["files 1, at most 0 (ci/house.toml)"]);
        assert_eq!(rounded(&figures(101, 2)), figures(200, 2));
    }
}
