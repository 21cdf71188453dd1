//! `bindings.toml`: the header that is read and the functions that are bound.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spec {
    /// Where `cuda.h` and `cudaTypedefs.h` come from.
    pub(crate) header: Header,
    /// The parser that bindgen reads them with; pinned, so that the output does not depend on the machine.
    pub(crate) libclang: Wheel,
    /// The bound functions, by section of the driver's manual.
    pub(crate) group: Vec<Group>,
}

/// A Python wheel, known by its checksum.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wheel {
    pub(crate) package: String,
    pub(crate) version: String,
    pub(crate) sha256: String,
}

/// The wheel that holds the headers, and the folder in it.
#[derive(Debug, Deserialize)]
pub(crate) struct Header {
    #[serde(flatten)]
    pub(crate) wheel: Wheel,
    pub(crate) include: String,
}

/// One section of the driver's manual.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    /// Its title.
    pub(crate) title: String,
    /// Its page.
    pub(crate) page: String,
    /// Function name to the CUDA version of the bound ABI.
    pub(crate) functions: BTreeMap<String, u32>,
}

impl Spec {
    /// Reads and checks the file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} is not a bindings file", path.display()))
    }

    /// Every bound function with its version, in the order of the file.
    pub(crate) fn functions(&self) -> impl Iterator<Item = (&str, u32)> {
        self.group
            .iter()
            .flat_map(|group| group.functions.iter().map(|(name, version)| (name.as_str(), *version)))
    }
}
