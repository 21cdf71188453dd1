//! Programs that travel compressed: most of a bundle is tests, and a third of their bytes will do.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

/// Where the compressed form of a program lies.
fn packed(program: &Path) -> PathBuf {
    let mut name = program.as_os_str().to_owned();
    name.push(".gz");
    name.into()
}

/// Writes a program's compressed form; how many bytes it has.
pub(crate) fn pack(program: &Path, target: &Path) -> Result<u64> {
    let target = packed(target);
    let write = || {
        let mut encoder = GzEncoder::new(File::create(&target)?, Compression::best());
        io::copy(&mut File::open(program)?, &mut encoder)?;
        encoder.finish()?.metadata()
    };
    let written = write().with_context(|| format!("cannot write {}", target.display()))?;
    Ok(written.len())
}

/// Makes a program of its compressed form, unless it is there.
pub(crate) fn unpack(program: &Path) -> Result<()> {
    if program.is_file() {
        return Ok(());
    }
    // Whole or not at all, also when this is interrupted or another process does the same.
    let unfinished = program.with_extension(format!("unfinished-{}", std::process::id()));
    let write = || {
        let mut decoder = GzDecoder::new(File::open(packed(program))?);
        let mut file = File::create(&unfinished)?;
        io::copy(&mut decoder, &mut file)?;
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        // Linux starts no program that somebody may write.
        drop(file);
        fs::rename(&unfinished, program)
    };
    write().with_context(|| format!("cannot unpack {}", program.display()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_program_comes_back_and_runs() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path();
        let (source, target) = (folder.join("source"), folder.join("program"));
        fs::write(&source, format!("#!/bin/sh\nexit 7\n{}", "# much the same\n".repeat(1000))).unwrap();
        let bytes = pack(&source, &target).unwrap();
        assert!(bytes < 1000 && !target.exists(), "{bytes} bytes");
        unpack(&target).unwrap();
        assert_eq!(Command::new(&target).status().unwrap().code(), Some(7));
        // What is there stays.
        fs::write(&target, "other").unwrap();
        unpack(&target).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"other");
        assert!(unpack(&folder.join("none")).is_err());
    }
}
