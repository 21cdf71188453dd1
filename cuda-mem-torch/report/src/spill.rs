//! Records of one size, in memory while they are few and in an unnamed file once they are many.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

/// Bytes that stay in memory.
const IN_MEMORY: usize = 32 << 20;

/// Records read at once on the way back.
const CHUNK: u64 = 32 << 10;

/// Records of `N` bytes, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Records<const N: usize> {
    /// The last of them: what is not in the file.
    tail: Vec<u8>,
    file: Option<File>,
    /// How many are in the file.
    stored: u64,
}

impl<const N: usize> Records<N> {
    pub(super) fn len(&self) -> u64 {
        self.stored + (self.tail.len() / N) as u64
    }

    pub(super) fn push(&mut self, record: &[u8; N]) -> Result<()> {
        if self.tail.len() + N > IN_MEMORY {
            let file = match &mut self.file {
                Some(file) => file,
                none => none.insert(unnamed()?),
            };
            // Half of them stay: the newest may still be changed.
            let old = self.tail.len() / N / 2 * N;
            let bytes = self.tail.get(..old).unwrap_or_default();
            file.write_all(bytes).context("cannot write to the folder for temporary files")?;
            self.stored += (old / N) as u64;
            self.tail.drain(..old);
        }
        self.tail.extend_from_slice(record);
        Ok(())
    }

    /// The record at a place that is below [`len`](Self::len).
    pub(super) fn get(&self, place: u64) -> Result<[u8; N]> {
        let mut record = [0; N];
        self.read(place, &mut record)?;
        Ok(record)
    }

    /// Changes a record, if it is still in memory.
    pub(super) fn set(&mut self, place: u64, record: &[u8; N]) {
        let at = place.checked_sub(self.stored).and_then(|place| usize::try_from(place).ok());
        let known = at.and_then(|at| self.tail.get_mut(at.checked_mul(N)?..)?.first_chunk_mut::<N>());
        if let Some(known) = known {
            *known = *record;
        }
    }

    /// Shows the records from `start` on, `count` of them, the last one first, with their places from `start`.
    pub(super) fn backwards(
        &self,
        start: u64,
        count: u64,
        mut show: impl FnMut(u64, &[u8; N]) -> Result<()>,
    ) -> Result<()> {
        let mut buffer = Vec::new();
        let mut left = count;
        while left > 0 {
            let some = left.min(CHUNK);
            left -= some;
            buffer.resize(usize::try_from(some)? * N, 0);
            self.read(start + left, &mut buffer)?;
            let (records, _) = buffer.as_chunks::<N>();
            for (place, record) in (left..left + some).rev().zip(records.iter().rev()) {
                show(place, record)?;
            }
        }
        Ok(())
    }

    /// Fills `buffer` with records from a place on.
    fn read(&self, place: u64, buffer: &mut [u8]) -> Result<()> {
        let in_file = self.stored.saturating_sub(place).saturating_mul(N as u64);
        let (first, second) = buffer.split_at_mut(buffer.len().min(usize::try_from(in_file)?));
        if let (Some(file), false) = (&self.file, first.is_empty()) {
            file.read_exact_at(first, place * N as u64).context("cannot read a temporary file")?;
        }
        let from = usize::try_from(place.saturating_sub(self.stored))? * N;
        let tail = self.tail.get(from..from + second.len()).context("a record is lost")?;
        second.copy_from_slice(tail);
        Ok(())
    }
}

/// A file that is gone when it is closed.
fn unnamed() -> Result<File> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("cuda-mem-report-{}-{number}", std::process::id()));
    let why = || format!("cannot make a temporary file in {}; TMPDIR names another folder", path.display());
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).with_context(why)?;
    std::fs::remove_file(&path).with_context(why)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_from_the_file_and_from_memory() {
        let mut records = Records::<1024>::default();
        let many = (IN_MEMORY / 1024 * 5 / 2) as u64;
        for number in 0..many {
            let mut record = [0; 1024];
            record[..8].copy_from_slice(&number.to_le_bytes());
            records.push(&record).unwrap();
        }
        assert!(records.stored > 0 && !records.tail.is_empty());
        assert_eq!(records.len(), many);
        let number = |record: &[u8; 1024]| u64::from_le_bytes(record[..8].try_into().unwrap());
        let mut expected = many - 10;
        records
            .backwards(7, many - 17, |place, record| {
                expected -= 1;
                assert_eq!((number(record), place + 7), (expected, expected));
                Ok(())
            })
            .unwrap();
        assert_eq!(expected, 7);
        assert_eq!(number(&records.get(many - 1).unwrap()), many - 1);
        assert!(records.get(many).is_err());
    }
}
