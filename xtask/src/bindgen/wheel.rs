//! Python wheels as a source of headers and tools: fetched by name and version, accepted by checksum, unpacked once.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use super::spec::Wheel;

/// The folder that holds the unpacked wheel, fetched if it is not there yet.
pub(crate) fn unpacked(wheel: &Wheel, cache: &Path) -> Result<PathBuf> {
    let folder = cache.join(format!("{}-{}-{}", wheel.package, wheel.version, &wheel.sha256[..12]));
    if folder.is_dir() {
        return Ok(folder);
    }
    let download = cache.join(format!("{}-download", wheel.package));
    std::fs::create_dir_all(&download).with_context(|| format!("cannot create {}", download.display()))?;
    let requirement = format!("{}=={}", wheel.package, wheel.version);
    let status = Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"])
        .arg(&download)
        .arg(&requirement)
        .status()
        .context("cannot start python3, which fetches the pinned headers")?;
    ensure!(status.success(), "pip could not download {requirement}");
    let file = matching_file(&download, wheel)?;
    // Unpacked beside and renamed, so that an interrupted run leaves nothing that looks complete.
    let partial = cache.join(format!("{}-partial-{}", wheel.package, std::process::id()));
    let status = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--target"])
        // A folder of our own is written, nobody's Python: pip's warning about root does not apply.
        .env("PIP_ROOT_USER_ACTION", "ignore")
        .arg(&partial)
        .arg(&file)
        .status()
        .context("cannot start python3, which unpacks the pinned headers")?;
    ensure!(status.success(), "{} could not be unpacked", file.display());
    std::fs::rename(&partial, &folder).with_context(|| format!("cannot rename {}", partial.display()))?;
    Ok(folder)
}

/// The downloaded file whose checksum is the recorded one.
fn matching_file(download: &Path, wheel: &Wheel) -> Result<PathBuf> {
    let mut seen = Vec::new();
    for entry in std::fs::read_dir(download)? {
        let path = entry?.path();
        let digest = Sha256::digest(std::fs::read(&path)?);
        let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        if digest == wheel.sha256 {
            return Ok(path);
        }
        seen.push(format!("{} is {digest}", path.display()));
    }
    bail!(
        "no downloaded {} {} has sha256 {}: {}",
        wheel.package,
        wheel.version,
        wheel.sha256,
        seen.join(", ")
    )
}
