//! `cargo xtask header [--check]`: writes `cuda-mem-torch/include/cuda_mem_torch.h` from the functions for C, or proves that the
//! committed one is what they give.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};

/// Generates and writes, or with `check` compares.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    let package = root.join("cuda-mem-torch");
    let config = cbindgen::Config::from_file(package.join("cbindgen.toml"))
        .map_err(|error| anyhow!("cannot read cuda-mem-torch/cbindgen.toml: {error}"))?;
    let bindings = cbindgen::Builder::new().with_crate(&package).with_config(config).generate()?;
    let mut generated = Vec::new();
    bindings.write(&mut generated);
    let path = package.join("include/cuda_mem_torch.h");
    if check {
        let committed = fs::read(&path).unwrap_or_default();
        ensure!(
            committed == generated,
            "the committed header is not what the functions give; run `cargo xtask header`"
        );
    } else {
        fs::create_dir_all(package.join("include"))?;
        fs::write(&path, &generated).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let lines = generated.iter().filter(|byte| **byte == b'\n').count();
    println!("{}: {lines} lines", path.display());
    Ok(())
}
