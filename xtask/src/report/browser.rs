//! Pages as a browser shows them, for the tests and for `cargo xtask ci`.

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

/// The elements of a page after its scripts ran; an error if they said anything on the console.
#[cfg(test)]
pub(super) fn open(page: &std::path::Path) -> anyhow::Result<String> {
    use anyhow::{Context, ensure};

    let program = find().context("there is no Chromium; CHROMIUM may name one")?;
    let profile = page.with_extension("profile");
    let output = Command::new("timeout")
        .args(["--kill-after=5", "120"])
        .arg(program)
        // The page is ours, and containers refuse the sandbox to root.
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--enable-logging=stderr",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(["--virtual-time-budget=10000", "--window-size=1280,1600", "--dump-dom"])
        .arg(format!("file://{}", page.display()))
        .output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    let said = log.lines().filter(|line| line.contains("CONSOLE")).collect::<Vec<_>>().join("\n");
    ensure!(said.is_empty(), "the page wrote to the console: {said}");
    ensure!(output.status.success(), "the browser failed ({}): {log}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}
