//! Files for a test, which are gone when it ends.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A file that is removed when this is dropped.
pub(crate) struct TempFile {
    path: PathBuf,
}

impl TempFile {
    /// In memory.
    pub(crate) fn on_tmpfs(bytes: &[u8]) -> Self {
        Self::in_folder(Path::new("/dev/shm"), bytes)
    }

    /// Where the build writes, on whatever disk that is.
    pub(crate) fn on_disk(bytes: &[u8]) -> Self {
        Self::in_folder(Path::new(env!("CARGO_TARGET_TMPDIR")), bytes)
    }

    fn in_folder(folder: &Path, bytes: &[u8]) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        // A test program also runs where it was not built.
        let folder = if folder.is_dir() { folder.to_path_buf() } else { std::env::temp_dir() };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("cuda-mem-test-{}-{number}", std::process::id()));
        let mut file = File::create(&path).expect("a new file");
        file.write_all(bytes).expect("room for the file");
        Self { path }
    }

    /// The file, open for reading.
    pub(crate) fn open(&self) -> File {
        File::open(&self.path).expect("the file")
    }

    /// The file, open for reading and writing.
    pub(crate) fn open_for_writing(&self) -> File {
        File::options().read(true).write(true).open(&self.path).expect("the file")
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // Nothing is left to do if it is gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}
