//! The file: opened, or written first.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::Result;

/// The size of the file that is written when none is given.
const WRITTEN: usize = 256 << 20;

/// A file to work on.
pub(crate) struct Input {
    path: PathBuf,
    file: File,
    len: usize,
    /// Written here, and removed at the end.
    temporary: bool,
}

impl Input {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let name = path.display();
        // Before opening: a pipe would block.
        let metadata = fs::metadata(path).map_err(|error| format!("cannot read {name}: {error}"))?;
        if !metadata.is_file() {
            let kind = if metadata.is_dir() { "a directory" } else { "not a regular file" };
            return Err(format!("cannot read {name}: it is {kind}").into());
        }
        let file = File::open(path).map_err(|error| format!("cannot open {name}: {error}"))?;
        let len = usize::try_from(metadata.len())?;
        Ok(Self { path: path.to_path_buf(), file, len, temporary: false })
    }

    /// A new file of [`WRITTEN`] bytes without a pattern that a wrong copy could repeat.
    pub(crate) fn written() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("cuda-mem-tour-{}", std::process::id()));
        let file =
            File::create_new(&path).map_err(|error| format!("cannot create {}: {error}", path.display()))?;
        let write = || -> std::io::Result<File> {
            let mut writer = BufWriter::with_capacity(1 << 20, file);
            let mut state = 0x9e37_79b9_7f4a_7c15_u64;
            for _ in 0..WRITTEN / 8 {
                // xorshift: cheap, and every 8 bytes differ.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                writer.write_all(&state.to_le_bytes())?;
            }
            writer.flush()?;
            drop(writer);
            File::open(&path)
        };
        match write() {
            Ok(file) => Ok(Self { path, file, len: WRITTEN, temporary: true }),
            Err(error) => {
                let reason = format!("cannot write {}: {error}", path.display());
                // Best effort: the error above is the one to tell.
                let _ = fs::remove_file(&path);
                Err(reason.into())
            }
        }
    }

    pub(crate) fn name(&self) -> String {
        self.path.display().to_string()
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Reads the bytes at `offset` through the kernel, which answers for a file that has become shorter.
    pub(crate) fn read(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(target, offset as u64).map_err(|error| {
            let (name, end) = (self.name(), offset.saturating_add(target.len()));
            match error.kind() {
                std::io::ErrorKind::UnexpectedEof => {
                    format!(
                        "{name} changed while it was read: it had {} bytes, and {offset}..{end} are gone",
                        self.len
                    )
                }
                _ => format!("cannot read {name}: {error}"),
            }
            .into()
        })
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        if self.temporary {
            // Best effort: the file lies in the folder for temporary files.
            let _ = fs::remove_file(&self.path);
        }
    }
}
