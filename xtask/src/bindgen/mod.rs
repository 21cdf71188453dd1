//! `cargo xtask bindgen [--check]`: writes `cuda-mem-sys`'s generated files from NVIDIA's headers, or proves that the
//! committed ones are what the headers give.

mod headers;
mod layout;
mod render;
mod spec;
mod wheel;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use headers::Headers;
use spec::Spec;

/// Generates and writes, or with `check` compares.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    let spec = Spec::read(&root.join("xtask/bindings.toml"))?;
    let cache = root.join("target/xtask/wheels");
    fs::create_dir_all(&cache)?;
    let include = wheel::unpacked(&spec.header.wheel, &cache)?.join(&spec.header.include);
    let libclang = wheel::unpacked(&spec.libclang, &cache)?
        .join("clang/native")
        .canonicalize()
        .context("the libclang package holds no clang/native")?;
    let headers = Headers::read(
        &fs::read_to_string(include.join("cuda.h")).context("cannot read cuda.h")?,
        &fs::read_to_string(include.join("cudaTypedefs.h")).context("cannot read cudaTypedefs.h")?,
    );
    let generated = [
        ("types.rs", render::types(&spec, &include, &libclang)?),
        ("functions.rs", render::functions(&spec, &headers)?),
    ];

    let folder = root.join("cuda-mem-sys/src/generated");
    let mut differing = Vec::new();
    for (name, text) in &generated {
        let path = folder.join(name);
        if check {
            let committed = fs::read_to_string(&path).unwrap_or_default();
            if committed != *text {
                differing.push(first_difference(name, &committed, text));
            }
        } else {
            fs::create_dir_all(&folder)?;
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    if !differing.is_empty() {
        bail!(
            "the committed bindings are not what the headers give; run `cargo xtask bindgen`\n{}",
            differing.join("\n")
        );
    }
    let asserted =
        layout::check(&fs::read_to_string(folder.join("types.rs"))?, &include, &root.join("target/xtask"))?;
    println!(
        "bindings of {} {}: {} functions; {asserted} sizes and offsets agree with the C compiler",
        spec.header.wheel.package,
        spec.header.wheel.version,
        spec.functions().count(),
    );
    Ok(())
}

/// The first line in which two texts differ, for the error.
fn first_difference(name: &str, committed: &str, generated: &str) -> String {
    let differs = committed.lines().zip(generated.lines()).enumerate().find(|(_, (old, new))| old != new);
    match differs {
        Some((index, (old, new))) => format!("{name}:{}: committed `{old}`, generated `{new}`", index + 1),
        None => {
            format!(
                "{name}: committed {} lines, generated {}",
                committed.lines().count(),
                generated.lines().count()
            )
        }
    }
}
