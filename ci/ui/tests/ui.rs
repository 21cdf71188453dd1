//! What must not compile: each file in the folders beside this one says which hole or rule it proves, and has a list of the errors beside
//! it. `CUDA_MEM_UI_WRITE=1` writes the lists.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use serde_json::Value;

fn output(command: &mut Command) -> Output {
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn lines(text: &[u8]) -> impl Iterator<Item = Value> {
    // Beside cargo's and the compiler's JSON may stand words for people.
    str::from_utf8(text).unwrap().lines().filter_map(|line| serde_json::from_str(line).ok())
}

/// The libraries of this workspace that this test was built with, by their names: cargo is asked for the same build again.
fn libraries() -> BTreeMap<String, PathBuf> {
    let words = env::var("CUDA_MEM_BUILD").unwrap_or_else(|_| "--package cuda-mem-ui".to_owned());
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--no-run", "--test", "ui", "--message-format=json"]).args(words.split(' '));
    let built = output(&mut cargo);
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let library = |artifact: Value| {
        let name = artifact["target"]["name"].as_str()?.to_owned();
        let files = artifact["filenames"].as_array()?.iter().filter_map(Value::as_str);
        let mut libraries = files.filter(|file| file.ends_with(".rlib"));
        Some((name, libraries.next().filter(|_| artifact["profile"]["test"] == false)?.into()))
    };
    let libraries = lines(&built.stdout).filter_map(library);
    libraries.filter(|(name, _)| name.starts_with("cuda_mem_")).collect()
}

/// What a message is about: a place in the program, a file elsewhere.
fn place(span: &Value) -> String {
    let file = span["file_name"].as_str().unwrap();
    let at = format!("{file}:{}:{}", span["line_start"], span["column_start"]);
    let label = span["label"].as_str().map(|label| format!(" {label}")).unwrap_or_default();
    match file.split_once("/library/") {
        _ if file.starts_with("tests/") => format!("{at}{label}"),
        Some((_, standard)) => format!("{standard}{label}"),
        None => format!("{file}{label}"),
    }
}

/// An error with its places, and all that the compiler adds to it.
fn describe(message: &Value, indent: &str, text: &mut String) {
    let code = message["code"]["code"].as_str().map(|code| format!("[{code}]")).unwrap_or_default();
    let [level, words] = ["level", "message"].map(|key| message[key].as_str().unwrap());
    let words = words.replace('\n', &format!("\n{indent}    "));
    *text += &format!("{indent}{level}{code}: {words}\n");
    for span in message["spans"].as_array().unwrap() {
        *text += &format!("{indent}  {}\n", place(span));
    }
    for child in message["children"].as_array().unwrap() {
        describe(child, &format!("{indent}  "), text);
    }
}

/// What the compiler says of a program, without its count at the end.
fn errors(program: &Path, libraries: &BTreeMap<String, PathBuf>) -> String {
    let mut compiler = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    compiler.args(["--edition=2024", "--emit=metadata", "--error-format=json", "--out-dir"]);
    compiler.arg(env!("CARGO_TARGET_TMPDIR")).arg(program);
    for (name, path) in libraries {
        compiler.arg("--extern").arg(format!("{name}={}", path.display()));
        compiler.arg("-L").arg(format!("dependency={}", path.parent().unwrap().display()));
    }
    let said = output(&mut compiler);
    assert!(!said.status.success(), "{} compiles", program.display());
    let mut text = String::new();
    let is_error = |message: &Value| !message["spans"].as_array().unwrap().is_empty();
    lines(&said.stderr).filter(is_error).for_each(|message| describe(&message, "", &mut text));
    text
}

#[test]
fn what_must_not_compile() {
    let libraries = libraries();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let programs =
        ["core", "pool", "torch"].map(|part| fs::read_dir(folder.join("tests").join(part)).unwrap());
    let programs = programs.into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut different = Vec::new();
    for program in programs.filter(|path| path.extension().is_some_and(|ending| ending == "rs")) {
        let program = program.strip_prefix(folder).unwrap();
        let (said, list) = (errors(program, &libraries), program.with_extension("stderr"));
        if env::var_os("CUDA_MEM_UI_WRITE").is_some() {
            fs::write(folder.join(list), said).unwrap();
        } else if fs::read_to_string(folder.join(list)).ok().as_ref() != Some(&said) {
            different.push(format!("{}:\n{said}", program.display()));
        }
    }
    assert!(different.is_empty(), "other errors than those listed:\n{}", different.join("\n"));
}
