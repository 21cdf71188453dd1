//! `cargo xtask docs-check`: whether links of documents lead somewhere, and whether documents and sentences are as short as
//! `ci/documents.toml` says.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

/// `ci/documents.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    documents: usize,
    words: usize,
    words_of: BTreeMap<String, usize>,
    lines_of: BTreeMap<String, usize>,
    sentence_words: usize,
    long_sentences: BTreeMap<String, usize>,
    banned: Vec<String>,
}

/// Prints what is wrong, and a tally; whether nothing was.
pub(crate) fn run(root: &Path) -> Result<bool> {
    const RULES: &str = "ci/documents.toml";
    let rules: Rules = toml::from_str(&fs::read_to_string(root.join(RULES))?).context(RULES)?;
    let mut files = Vec::new();
    documents(root, root, &mut files)?;
    files.sort();
    let mut findings = Vec::new();
    let in_docs = files.iter().filter(|file| file.starts_with("docs")).count();
    if in_docs > rules.documents {
        findings.push(format!("docs/: {in_docs} documents; {RULES} allows {}", rules.documents));
    }
    for file in &files {
        let text = fs::read_to_string(root.join(file)).with_context(|| file.display().to_string())?;
        let name = file.display().to_string();
        let of_this = sizes(&name, &text, &rules).into_iter().chain(style(&name, &text, &rules));
        findings.extend(of_this.chain(links(root, file, &text)).map(|finding| format!("{name}: {finding}")));
    }
    for finding in &findings {
        println!("{finding}");
    }
    println!("{} documents, {} findings", files.len(), findings.len());
    Ok(findings.is_empty())
}

/// All documents under a folder, by their paths from the root.
fn documents(root: &Path, folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                documents(root, &path, found)?;
            }
        } else if name.ends_with(".md") {
            found.push(path.strip_prefix(root)?.to_path_buf());
        }
    }
    Ok(())
}

fn sizes(name: &str, text: &str, rules: &Rules) -> Vec<String> {
    let mut findings = Vec::new();
    let limit = rules.words_of.get(name).or(name.starts_with("docs/").then_some(&rules.words));
    let (words, lines) = (text.split_whitespace().count(), text.lines().count());
    if let Some(limit) = limit.filter(|limit| words > **limit) {
        findings.push(format!("{words} words, at most {limit}"));
    }
    if let Some(limit) = rules.lines_of.get(name).filter(|limit| lines > **limit) {
        findings.push(format!("{lines} lines, at most {limit}"));
    }
    findings
}

/// Long sentences, if there are more than are known, and words that are not used.
fn style(name: &str, text: &str, rules: &Rules) -> Vec<String> {
    let mut findings = Vec::new();
    let sentences = paragraphs(text).iter().flat_map(|paragraph| sentences(paragraph)).collect::<Vec<_>>();
    let too_long = |sentence: &&String| sentence.split(' ').count() > rules.sentence_words;
    let long = sentences.iter().filter(too_long).collect::<Vec<_>>();
    let known = rules.long_sentences.get(name).copied().unwrap_or(0);
    if long.len() > known {
        for sentence in &long {
            findings.push(format!("a sentence of {} words: {sentence}", sentence.split(' ').count()));
        }
    }
    for (number, line) in code_free_lines(text) {
        for word in line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-') {
            if rules.banned.iter().any(|banned| banned.eq_ignore_ascii_case(word)) {
                findings.push(format!("line {number}: {word:?} is not used here"));
            }
        }
    }
    findings
}

/// Lines outside of blocks of code, numbered from 1, with a word in place of each piece of code.
fn code_free_lines(text: &str) -> Vec<(usize, String)> {
    let mut in_code = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
            lines.push((index + 1, String::new()));
        } else if !in_code {
            let parts = line.split('`').enumerate();
            let parts = parts.map(|(part, text)| if part % 2 == 1 { "code" } else { text });
            lines.push((index + 1, parts.collect()));
        }
    }
    lines
}

/// The prose of a document: each paragraph and each item of a list; no table and no heading.
fn paragraphs(text: &str) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    for (_, line) in code_free_lines(text) {
        let line = line.trim();
        let numbered = line.split_once(". ").filter(|(number, _)| number.parse::<u32>().is_ok());
        let item = numbered.map(|(_, item)| item).or_else(|| line.strip_prefix("- "));
        if line.is_empty() || line.starts_with(['#', '|', '<']) {
            paragraphs.push(String::new());
        } else if let Some(item) = item {
            paragraphs.push(item.to_owned());
        } else if let Some(last) = paragraphs.last_mut() {
            last.push(' ');
            last.push_str(line);
        }
    }
    paragraphs
}

/// The sentences of a paragraph, one space between words, the targets of links left out.
fn sentences(paragraph: &str) -> Vec<String> {
    let mut parts = paragraph.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    let mut sentences = Vec::new();
    let mut words = Vec::new();
    for word in text.split_whitespace() {
        words.push(word);
        if word.trim_end_matches([')', '*', '"']).ends_with(['.', '!', '?']) {
            sentences.push(words.join(" "));
            words.clear();
        }
    }
    sentences.push(words.join(" "));
    sentences
}

/// Links to files that are not there, or to headings that their document does not have.
fn links(root: &Path, file: &Path, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in code_free_lines(text) {
        for target in line.split("](").skip(1).filter_map(|rest| rest.split_once(')')) {
            let target = target.0;
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let folder = root.join(file).parent().map(Path::to_path_buf).unwrap_or_default();
            let to = if path.is_empty() { root.join(file) } else { folder.join(path) };
            if !to.exists() {
                findings.push(format!("line {number}: there is no {path}"));
            } else if !heading.is_empty() && path.is_empty() | path.ends_with(".md") {
                let there = fs::read_to_string(&to).unwrap_or_default();
                let headings = there.lines().filter(|line| line.starts_with('#')).map(anchor);
                if !headings.into_iter().any(|anchor| anchor == heading) {
                    findings.push(format!("line {number}: {path} has no heading #{heading}"));
                }
            }
        }
    }
    findings
}

/// The name by which a link finds a heading.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules {
            documents: 1,
            words: 5,
            words_of: BTreeMap::new(),
            lines_of: [("README.md".to_owned(), 1)].into(),
            sentence_words: 3,
            long_sentences: [("old.md".to_owned(), 1)].into(),
            banned: vec!["nest".to_owned()],
        }
    }

    #[test]
    fn long_documents_and_sentences_are_found() {
        assert_eq!(sizes("docs/a.md", "1 2 3 4 5 6", &rules()), ["6 words, at most 5"]);
        assert_eq!(sizes("README.md", "1\n2", &rules()), ["2 lines, at most 1"]);
        let text = "One `two 2 2`\n[three](far away.md). One two three four (five).\n\n| a b c d e |\n```\na b c d\n```\n- a b\n- c d";
        let found = style("new.md", text, &rules());
        assert_eq!(found, ["a sentence of 5 words: One two three four (five)."]);
        assert!(style("old.md", text, &rules()).is_empty());
    }

    #[test]
    fn banned_words_count_outside_of_code() {
        let found = style("a.md", "A Nest.\n`nest`\n```\nnest\n```\nhonest nests", &rules());
        assert_eq!(found, ["line 1: \"Nest\" is not used here"]);
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = "[a](docs/README.md#the-documents) [b](https://no.example) `[c](no.rs)`\n[d](docs/README.md#no) [e](no.md)";
        let found = links(root, Path::new("README.md"), text);
        assert_eq!(found, ["line 2: docs/README.md has no heading #no", "line 2: there is no no.md"]);
        assert_eq!(anchor("# A `b`, c?"), "a-b-c");
    }
}
