//! Files that several names lead to.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Result, ensure};

/// Refuses to write to a file that was read: a recording may have taken a GPU and hours.
pub(crate) fn refuse(read: &Path, written: &Path, option: &str) -> Result<()> {
    let place = |path: &Path| fs::metadata(path).ok().map(|there| (there.dev(), there.ino()));
    let is_same = place(read).is_some_and(|there| place(written) == Some(there));
    ensure!(!is_same, "{option} {} would overwrite {}", written.display(), read.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_read_is_not_written_to_by_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let [read, other, soft, hard] =
            ["read", "other", "soft", "hard"].map(|name| folder.path().join(name));
        fs::write(&read, "recorded").unwrap();
        refuse(&read, &other, "--out").unwrap();
        fs::write(&other, "").unwrap();
        refuse(&read, &other, "--out").unwrap();
        symlink(&read, &soft).unwrap();
        fs::hard_link(&read, &hard).unwrap();
        for same in [&read, &soft, &hard] {
            let refused = refuse(&read, same, "--out").unwrap_err().to_string();
            assert!(refused.starts_with("--out ") && refused.contains(" would overwrite "), "{refused}");
        }
    }
}
