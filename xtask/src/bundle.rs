//! `cargo xtask bundle`: a folder that runs `gpu-test` on a GPU host without Rust, cargo or sources.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::bench;
use crate::gpu_test::{Builder, Kind, MANIFEST, Matrix, OUTSIDE, Programs, SCRIPTS, portable};
use crate::workspace::Workspace;
use crate::{packed, table};

/// What a bundle may weigh: it travels to every GPU host, some of them over slow links.
const LIMIT: u64 = 60 << 20;

/// The command that the host's user types; the program finds the manifest beside itself and does the rest.
const LAUNCHER: &str = "#!/bin/sh\nexec \"$(dirname \"$0\")/xtask\" gpu-test \"$@\"\n";

/// Builds everything with the profile `bundle`, tests with `bundle-tests`, and copies it to `folder`, replacing an older bundle there.
pub(crate) fn run(root: &Path, folder: &Path, with_rmm: bool) -> Result<()> {
    let workspace = Workspace::read(root)?;
    let matrix = Matrix::read(&root.join("ci/gpu-matrix.toml"))?;
    let rows = portable(&matrix.rows);
    ensure!(!rows.is_empty(), "no row of the matrix runs on a GPU: the bundle would be empty");
    let builder = Builder { workspace: &workspace, profile: "bundle" };
    // Most of what is carried are tests, of which nobody takes the time.
    let small = Builder { workspace: &workspace, profile: "bundle-tests" };

    let (mut tests, broken) = small.tests(rows.iter());
    if let Some(((package, features), error)) = broken.first_key_value() {
        bail!("{package} with features {features}: {error}");
    }
    tests.extend(builder.outside_projects(rows.iter())?);
    for row in rows.iter().filter(|row| row.kind != Kind::Python) {
        let outside = (row.kind == Kind::OutsideProject).then(|| OUTSIDE.to_owned());
        for target in row.targets.iter().chain(&outside) {
            let built = tests.iter().any(|test| test.is_for(row, target));
            ensure!(built, "{}: there is no `{target}`, or it does not build", row.name());
        }
    }
    let mut programs = Programs {
        simulator: builder.simulator()?,
        probe: builder.extra("example", "cuda-mem-sys", "probe")?,
        ..Programs::default()
    };
    let tool = builder.tool()?;
    let mut extras = Vec::new();
    for (kind, wanted) in [("example", &matrix.extras.examples), ("bench", &matrix.extras.benches)] {
        for extra in wanted {
            extras.push((extra.name.clone(), builder.extra(kind, &extra.package, &extra.name)?));
        }
    }

    let mut bundle = Bundle::create(folder)?;
    bundle.add(&tool, "xtask")?;
    programs.simulator = bundle.add(&programs.simulator, "libcuda_mem_sim.so")?;
    programs.probe = bundle.add(&programs.probe, "probe")?;
    for (name, path) in &extras {
        programs.extras.push(bundle.add(path, name)?);
    }
    for test in &mut tests {
        let name = format!("tests/{}-{}-{}", test.package, test.features, test.target);
        test.path = bundle.add_packed(&test.path, &name)?;
    }
    programs.tests = tests;
    bundle.add_folder(&root.join("ci/peers"), "peers")?;
    if with_rmm {
        let peer = bench::build_rmm(&root.join("ci/peers"), &workspace.target_directory)?;
        bundle.add_folder(&peer, "peers/rmm")?;
    }
    bundle.add_folder(&root.join("ci/traces"), "traces")?;
    for name in ["gpu-matrix.toml", "known-differences.tsv"] {
        bundle.add(&root.join("ci").join(name), name)?;
    }
    bundle.add_folder(&root.join("ci").join(SCRIPTS), SCRIPTS)?;
    bundle.write(MANIFEST, &serde_json::to_string_pretty(&programs)?)?;
    let launcher = bundle.write("gpu-test", LAUNCHER)?;
    fs::set_permissions(launcher, fs::Permissions::from_mode(0o755))?;

    bundle.show();
    ensure!(
        bundle.size() <= LIMIT,
        "the bundle has {}, more than the {} it may have",
        mebibytes(bundle.size()),
        mebibytes(LIMIT)
    );
    println!("{} in {}; on a GPU host: ./gpu-test --backend gpu", mebibytes(bundle.size()), folder.display());
    Ok(())
}

/// A folder that is being filled.
struct Bundle<'a> {
    folder: &'a Path,
    files: Vec<(String, u64)>,
}

impl<'a> Bundle<'a> {
    /// Makes an empty folder; what lies there is removed if it is a bundle, and left alone otherwise.
    fn create(folder: &'a Path) -> Result<Self> {
        if let Ok(mut entries) = fs::read_dir(folder) {
            let ours = folder.join(MANIFEST).is_file() || entries.next().is_none();
            ensure!(ours, "{} holds something else than a bundle", folder.display());
            fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        fs::create_dir_all(folder.join("tests"))
            .with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self { folder, files: Vec::new() })
    }

    /// Copies a file; returns its path relative to the bundle.
    fn add(&mut self, file: &Path, name: &str) -> Result<PathBuf> {
        let size = fs::copy(file, self.folder.join(name))
            .with_context(|| format!("cannot copy {} to the bundle", file.display()))?;
        self.files.push((name.to_owned(), size));
        Ok(PathBuf::from(name))
    }

    /// Adds a program that the bundle unpacks when it is used; returns its path relative to the bundle then.
    fn add_packed(&mut self, file: &Path, name: &str) -> Result<PathBuf> {
        let size = packed::pack(file, &self.folder.join(name))?;
        self.files.push((format!("{name}.gz"), size));
        Ok(PathBuf::from(name))
    }

    /// Copies the files of a folder that has no folders.
    fn add_folder(&mut self, folder: &Path, name: &str) -> Result<()> {
        let target = self.folder.join(name);
        fs::create_dir(&target).with_context(|| format!("cannot create {}", target.display()))?;
        let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        files.sort();
        for file in files.iter().filter(|file| file.is_file()) {
            let own = file.file_name().context("a file without a name")?.to_string_lossy();
            self.add(file, &format!("{name}/{own}"))?;
        }
        Ok(())
    }

    fn write(&mut self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        self.files.push((name.to_owned(), text.len() as u64));
        Ok(path)
    }

    fn size(&self) -> u64 {
        self.files.iter().map(|(_, size)| size).sum()
    }

    fn show(&self) {
        let rows = self.files.iter().map(|(name, size)| vec![name.clone(), mebibytes(*size)]);
        println!("{}", table::render(&["file", "size"], &rows.collect::<Vec<_>>(), &[1]));
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
fn mebibytes(bytes: u64) -> String {
    format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_carried_with_its_files() {
        let scratch = tempfile::tempdir().unwrap();
        let source = scratch.path().join("source");
        fs::create_dir_all(source.join("__pycache__")).unwrap();
        fs::write(source.join("b.py"), "bb").unwrap();
        fs::write(source.join("a.cpp"), "a").unwrap();
        let target = scratch.path().join("bundle");
        let mut bundle = Bundle::create(&target).unwrap();
        bundle.add_folder(&source, "peers").unwrap();
        assert_eq!(bundle.files, [("peers/a.cpp".to_owned(), 1), ("peers/b.py".to_owned(), 2)]);
        assert_eq!(fs::read_to_string(target.join("peers/b.py")).unwrap(), "bb");
    }
}
