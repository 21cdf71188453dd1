//! Reports at the end of a process that was never asked for them in Rust: those of the shared library.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

/// Where reports go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Stderr,
    /// Appended to a file: the processes of one test share it.
    File(PathBuf),
}

impl Target {
    /// Writes a text there. There is nobody left to tell that it failed.
    pub(crate) fn write(&self, text: &str) {
        match self {
            Self::Stderr => say(text),
            Self::File(path) => {
                if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path) {
                    let _ = writeln!(file, "{text}");
                }
            }
        }
    }
}

/// Writes a line to the standard error stream; what cannot be written there cannot be told anywhere.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
