//! The browser that opens what `cargo xtask report` draws.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::steps::succeeds;

/// Names that Chromium goes by, the one that is made for this first.
const NAMES: [&str; 5] =
    ["chromium-headless-shell", "chrome-headless-shell", "chromium", "google-chrome", "google-chrome-stable"];

/// The program: the one that `CHROMIUM` names, else the first that is there.
pub(crate) fn find() -> Option<PathBuf> {
    let named = std::env::var_os("CHROMIUM").map(PathBuf::from);
    let programs = named.into_iter().chain(NAMES.map(PathBuf::from));
    programs
        .into_iter()
        .find(|program| succeeds(Command::new(program).arg("--version"), Duration::from_secs(60)))
}
