//! The page that shows a run's memory, which the workspace's own tool draws.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

use cuda_mem_pool::snapshot::Snapshot;

use crate::Result;
use crate::memory::Replayed;

/// Writes the snapshot beside the program, and draws the page if it is to. What hinders that is told, and no failure of the
/// tour.
pub(crate) fn show(replayed: &Replayed, draw: bool) {
    let path = match write(&replayed.snapshot) {
        Ok(path) => path,
        Err(reason) => return println!("snapshot  not written: {reason}"),
    };
    println!("snapshot  {}", path.display());
    if draw {
        println!("page      being drawn; for the first one the tool is built, which takes a minute or two");
        match page(&path, &replayed.references) {
            Ok(page) => return println!("page      {}: open it in a browser", page.display()),
            Err(reason) => println!("page      not drawn: {reason}"),
        }
    }
    println!("page      cargo xtask report {} -o page.html", path.display());
}

fn write(snapshot: &Snapshot) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("tour.pickle");
    snapshot.write_pickle(BufWriter::new(File::create(&path)?))?;
    Ok(path)
}

/// Needs cargo, to run the tool. What PyTorch reserved is lines of the page.
fn page(snapshot: &Path, references: &[(&str, u64)]) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").ok_or("the tour was not started by cargo")?;
    let page = snapshot.with_extension("html");
    let mut tool = Command::new(cargo);
    tool.args(["xtask", "report"]).arg(snapshot).arg("-o").arg(&page);
    for (name, bytes) in references {
        tool.arg("--reference").arg(format!("{name}={bytes}"));
    }
    let output = tool.current_dir(env!("CARGO_MANIFEST_DIR")).output()?;
    if output.status.success() {
        return Ok(page);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.lines().last().unwrap_or("it failed without a word").into())
}
