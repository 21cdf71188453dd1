//! Which ABIs of a function the headers know, and under which symbol the driver exports each.
//!
//! `cudaTypedefs.h` names one type per ABI, `PFN_<function>_v<CUDA version>`; `cuda.h` declares the exported symbols,
//! `<function>`, `<function>_v2`, and so on. Both grow in the same order, so the n-th ABI has the n-th symbol.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

/// What the two headers say about all functions.
pub(crate) struct Headers {
    /// Function to its ABIs, ascending, for the default-stream handling of old: null is the legacy stream.
    legacy: BTreeMap<String, BTreeSet<u32>>,
    /// The same for the variants in which null is the calling thread's stream.
    per_thread: BTreeMap<String, BTreeSet<u32>>,
    /// Function to its exported symbols' suffix numbers, 1 for none.
    exports: BTreeMap<String, BTreeSet<u32>>,
}

/// One ABI of one function.
pub(crate) struct Abi {
    /// The symbol that the driver exports it under.
    pub(crate) export: String,
    /// The version to ask for when null is to mean the calling thread's stream; none if the function has no such variant.
    pub(crate) per_thread: Option<u32>,
}

impl Headers {
    /// Reads the texts of `cuda.h` and `cudaTypedefs.h`.
    pub(crate) fn read(cuda: &str, typedefs: &str) -> Self {
        let mut headers =
            Self { legacy: BTreeMap::new(), per_thread: BTreeMap::new(), exports: BTreeMap::new() };
        for name in words(typedefs).filter_map(|word| word.strip_prefix("PFN_")) {
            let (base, table) = match name.strip_suffix("_ptds").or_else(|| name.strip_suffix("_ptsz")) {
                Some(base) => (base, &mut headers.per_thread),
                None => (name, &mut headers.legacy),
            };
            if let Some((function, version)) = split_version(base)
                && version >= 1000
            {
                table.entry(function.to_owned()).or_default().insert(version);
            }
        }
        // A symbol is declared, or a macro renames a declaration to it; most are both.
        let declared = cuda.lines().filter(|line| line.contains("CUresult CUDAAPI cu"));
        let renamed = cuda.lines().filter(|line| line.trim_start().starts_with("#define cu"));
        let declared = declared.filter_map(|line| words(line).find(|word| word.starts_with("cu")));
        let renamed =
            renamed.filter_map(|line| words(line).skip(1).filter(|word| word.starts_with("cu")).last());
        for symbol in declared.chain(renamed) {
            let (function, suffix) = split_version(symbol).unwrap_or((symbol, 1));
            headers.exports.entry(function.to_owned()).or_default().insert(suffix);
        }
        headers
    }

    /// The ABI of `function` that CUDA `version` brought.
    pub(crate) fn abi(&self, function: &str, version: u32) -> Result<Abi> {
        let versions =
            self.legacy.get(function).with_context(|| format!("cudaTypedefs.h has no {function}"))?;
        let rank = versions
            .iter()
            .position(|known| *known == version)
            .with_context(|| format!("{function} has the ABIs {versions:?}, not {version}"))?;
        let suffixes = self.exports.get(function).with_context(|| format!("cuda.h has no {function}"))?;
        ensure!(
            suffixes.len() == versions.len(),
            "{function} has ABIs {versions:?} but symbol suffixes {suffixes:?}: the n-th of one is not the n-th of the other"
        );
        let suffix = suffixes.iter().nth(rank).copied().unwrap_or(1);
        let export = if suffix == 1 { function.to_owned() } else { format!("{function}_v{suffix}") };
        // A variant keeps its ABI's version, or 7.0 where the ABI is older than per-thread default streams.
        let per_thread = self.per_thread.get(function).and_then(|variants| {
            let wanted = version.max(7000);
            variants.contains(&wanted).then_some(wanted)
        });
        Ok(Abi { export, per_thread })
    }
}

/// `("cuMemAlloc", 3020)` of `cuMemAlloc_v3020`.
fn split_version(name: &str) -> Option<(&str, u32)> {
    let (function, version) = name.rsplit_once("_v")?;
    Some((function, version.parse().ok()?))
}

/// The identifiers of a C text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUDA: &str = "CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *p);\nCUresult CUDAAPI cuMemAlloc(x);\n\
                        CUresult CUDAAPI cuMemcpyHtoD_v2(x);\nCUresult CUDAAPI cuMemcpyHtoD(x);\nCUresult CUDAAPI cuNew(x);\n\
                        #define cuOld __CUDA_API_PTSZ(cuOld_v2)\nCUresult CUDAAPI cuOld(x);";
    const TYPEDEFS: &str = "typedef CUresult (CUDAAPI *PFN_cuMemAlloc_v3020)(x); (CUDAAPI *PFN_cuMemAlloc_v2000)(x);\n\
                            PFN_cuMemcpyHtoD_v3020 PFN_cuMemcpyHtoD_v2000 PFN_cuMemcpyHtoD_v7000_ptds PFN_cuNew_v12000 PFN_cuNew_v13000 PFN_cuOld_v9020 PFN_cuOld_v11040";

    #[test]
    fn the_nth_abi_has_the_nth_symbol() {
        let headers = Headers::read(CUDA, TYPEDEFS);
        assert_eq!(headers.abi("cuMemAlloc", 3020).unwrap().export, "cuMemAlloc_v2");
        assert_eq!(headers.abi("cuMemAlloc", 2000).unwrap().export, "cuMemAlloc");
        assert_eq!(headers.abi("cuMemcpyHtoD", 3020).unwrap().per_thread, Some(7000));
        assert_eq!(headers.abi("cuOld", 11040).unwrap().export, "cuOld_v2");
    }

    #[test]
    fn what_the_headers_do_not_know_is_an_error() {
        let headers = Headers::read(CUDA, TYPEDEFS);
        for (function, version) in [("cuNone", 2000), ("cuMemAlloc", 4000), ("cuNew", 12000)] {
            assert!(headers.abi(function, version).is_err(), "{function} {version}");
        }
    }
}
