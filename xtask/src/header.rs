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
    expect_our_names(&String::from_utf8_lossy(&generated))?;
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

/// Whoever includes the header gets no name that could be another's.
fn expect_our_names(header: &str) -> Result<()> {
    let defined = header.lines().filter_map(|line| line.strip_prefix("#define ")?.split([' ', '(']).next());
    let types = header.lines().filter_map(|line| line.strip_prefix("} ")?.strip_suffix(';'));
    for name in defined.chain(types) {
        let is_ours = name.to_ascii_lowercase().starts_with("cuda_mem_torch_");
        ensure!(is_ours, "the header would define `{name}`; exclude it in cuda-mem-torch/cbindgen.toml");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_are_refused() {
        let ours =
            "#define CUDA_MEM_TORCH_OK 0\ntypedef struct cuda_mem_torch_block {\n} cuda_mem_torch_block;\n";
        assert!(expect_our_names(ours).is_ok());
        for other in ["#define VERSION 1\n", "#define MIN(a, b) a\n", "} DLPackVersion;\n"] {
            assert!(expect_our_names(&format!("{ours}{other}")).is_err(), "{other}");
        }
    }
}
