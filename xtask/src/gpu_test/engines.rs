//! Libraries that a row on a GPU needs beside the driver, and where a machine has them.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::matrix::Engine;

/// What is known of one.
struct Known {
    file: &'static str,
    /// What tells programs of ours where it is, a file or a folder.
    variable: &'static str,
    /// The Python package that brings it, whose folder `lib` has it.
    package: &'static str,
    /// A function that the rows take, which older versions lack, and the version that brought it.
    function: &'static str,
    since: &'static str,
}

impl Engine {
    fn known(self) -> Known {
        match self {
            Self::Nvshmem => Known {
                file: "libnvshmem_host.so.3",
                variable: "CUDA_MEM_NVSHMEM",
                package: "nvidia.nvshmem",
                function: "nvshmemx_hostlib_init_attr",
                since: "3.3",
            },
            Self::Nccl => Known {
                file: "libnccl.so.2",
                variable: "CUDA_MEM_NCCL",
                package: "nvidia.nccl",
                function: "ncclGetPeerDevicePointer",
                since: "2.29",
            },
        }
    }
}

/// The variable that says where the library is, and what it says; or why there is none that serves.
pub(super) fn find(engine: Engine) -> Result<(&'static str, OsString), String> {
    let known = engine.known();
    let path = located(&known)?;
    let is_new = File::open(&path).and_then(|file| holds(file, known.function.as_bytes()));
    match is_new {
        Ok(true) => Ok((known.variable, path.into_os_string())),
        Ok(false) => Err(format!(
            "{} is too old: it has no {}, which version {} brought; {} may name another one",
            path.display(),
            known.function,
            known.since,
            known.variable
        )),
        Err(error) => Err(format!("{} cannot be read: {error}", path.display())),
    }
}

fn located(known: &Known) -> Result<PathBuf, String> {
    if let Some(value) = std::env::var_os(known.variable) {
        let missing =
            || format!("{} names {}, which is not there", known.variable, Path::new(&value).display());
        return there(Path::new(&value), known.file).ok_or_else(missing);
    }
    let paths = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = std::env::split_paths(&paths).chain(of_python(known.package));
    let folders = folders.chain(["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"].map(PathBuf::from));
    let found = folders.filter(|folder| folder.is_dir()).find_map(|folder| there(&folder, known.file));
    found.ok_or_else(|| {
        format!(
            "needs {}: not in LD_LIBRARY_PATH, the machine's python3 or the system; {} says where it is",
            known.file, known.variable
        )
    })
}

/// Whether a file has these bytes somewhere. What a library exports is near its beginning.
fn holds(mut file: impl Read, bytes: &[u8]) -> io::Result<bool> {
    let mut window = Vec::new();
    loop {
        // What may be the beginning of it stays.
        window.drain(..window.len().saturating_sub(bytes.len()));
        if file.by_ref().take(1 << 20).read_to_end(&mut window)? == 0 {
            return Ok(false);
        }
        if window.windows(bytes.len()).any(|found| found == bytes) {
            return Ok(true);
        }
    }
}

/// The file, by its path or its folder.
fn there(place: &Path, file: &str) -> Option<PathBuf> {
    let path = if place.is_dir() { place.join(file) } else { place.to_owned() };
    path.is_file().then_some(path)
}

/// The folders of a package's libraries, in the machine's Python.
fn of_python(package: &str) -> Vec<PathBuf> {
    let ask = format!("import {package} as p\nfor f in p.__path__: print(f)");
    let asked = Command::new("python3").args(["-c", &ask]).stdin(Stdio::null()).output();
    let said = asked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    said.lines().map(|folder| Path::new(folder).join("lib")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_there_by_its_path_or_its_folder() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path();
        let file = folder.join("libx.so.1");
        assert_eq!(there(folder, "libx.so.1"), None);
        assert_eq!(there(&file, "libx.so.1"), None);
        std::fs::write(&file, []).unwrap();
        assert_eq!(there(folder, "libx.so.1"), Some(file.clone()));
        assert_eq!(there(&file, "liby.so.1"), Some(file));
    }

    #[test]
    fn what_a_file_holds_is_found_across_pieces() {
        let mut file = vec![b'a'; 3 << 20];
        assert!(!holds(file.as_slice(), b"function").unwrap());
        assert!(!holds(&[][..], b"function").unwrap());
        for at in [0, (1 << 20) - 3, (3 << 20) - 8] {
            file.fill(b'a');
            file[at..at + 8].copy_from_slice(b"function");
            assert!(holds(file.as_slice(), b"function").unwrap(), "at {at}");
        }
    }
}
