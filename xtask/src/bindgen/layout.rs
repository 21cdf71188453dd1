//! The second witness for struct layouts: the committed sizes and offsets, asserted by a C compiler over the real header.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Compiles one static assertion for every size and offset that the bindings state; returns how many there were.
pub(crate) fn check(types: &str, include: &Path, scratch: &Path) -> Result<usize> {
    let (program, asserted) = program(types)?;
    fs::create_dir_all(scratch)?;
    let file = scratch.join("layout_check.c");
    fs::write(&file, program).with_context(|| format!("cannot write {}", file.display()))?;
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    cc::Build::new()
        .file(&file)
        .include(include)
        .out_dir(scratch)
        .target(&target)
        .host(&target)
        .opt_level(0)
        .cargo_metadata(false)
        .try_compile("layout_check")
        .context("the C compiler disagrees with the committed layouts")?;
    Ok(asserted)
}

/// The C program, from the compile-time assertions that bindgen wrote into the bindings.
fn program(types: &str) -> Result<(String, usize)> {
    let mut program = String::from("#include <stddef.h>\n#include <cuda.h>\n");
    let mut asserted = 0;
    // Each assertion is a quoted sentence and, after it, `- <bytes>usize`; how the lines break does not matter.
    let pieces = types.split('"').collect::<Vec<_>>();
    for pair in pieces[1..].chunks_exact(2) {
        let (what, rest) = (pair[0], pair[1]);
        let value = rest.split(" - ").nth(1).and_then(|tail| tail.split("usize").next()).map(str::trim);
        let Some(value) = value.and_then(|digits| digits.parse::<usize>().ok()) else { continue };
        let c = if let Some(name) = what.strip_prefix("Size of ") {
            if name.contains("__bindgen") {
                continue;
            }
            format!("sizeof({})", c_type(types, name))
        } else if let Some(field) = what.strip_prefix("Offset of field: ") {
            let Some((name, field)) = field.split_once("::") else { continue };
            if name.contains("__bindgen") || field.contains("__bindgen") {
                continue;
            }
            format!("offsetof({}, {})", c_type(types, name), field.trim_end_matches('_'))
        } else {
            continue;
        };
        writeln!(program, "_Static_assert({c} == {value}, \"{what}\");")?;
        asserted += 1;
    }
    ensure!(asserted > 50, "only {asserted} layout assertions were found in the bindings");
    Ok((program, asserted))
}

/// C names a struct or union by its keyword where the header gives it no typedef of the same name.
fn c_type(types: &str, name: &str) -> String {
    // A struct declared inside a union: bindgen joins both names, C puts it in the outer scope.
    let name = name.split_once("_union_").map_or(name, |(_, inner)| inner);
    if types.contains(&format!("pub union {name} ")) {
        format!("union {name}")
    } else if name.ends_with("_st") {
        format!("struct {name}")
    } else {
        name.to_owned()
    }
}
