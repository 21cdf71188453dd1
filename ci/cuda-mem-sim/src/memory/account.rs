//! The account of memory: what all processes of one simulation have in use, by place.
//!
//! A file of rows that every process changes under a lock. A driver has a row for what it alone has at a place, and one for each memory
//! that it shares with others; memory that several rows name counts once, for as long as any of them is there. Rows stay where they are and
//! are written one by one, so a process that is killed in the middle of a change leaves those of others whole.
//!
//! A driver's rows are good for as long as a byte of the file is locked for it. The system ends that lock with the process, or when
//! another program takes its place, and whoever looks next clears the rows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cuda_mem_sys::CUresult;

use super::{os, wire};
use crate::runtime::op::Outcome;

/// What rows begin with: other files are no accounts.
const MAGIC: u64 = u64::from_le_bytes(*b"cudasima");

/// The byte that is locked during a change; those behind it are the drivers'.
const CHANGE: u64 = 0;

/// More drivers than an account ever has.
const DRIVERS: u64 = 1 << 16;

/// The bytes of a row, of which six words are used. No row lies in two pages.
const ROW_BYTES: usize = 64;

const OPERATING_SYSTEM: CUresult = CUresult::CUDA_ERROR_OPERATING_SYSTEM;

/// What a memory is called that several processes may have, the same in all of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    /// The number of the file that it lies in; 0 for what one driver alone has.
    file: u64,
    /// Its number among those in the file.
    block: u64,
}

impl Name {
    pub(super) fn of(file: BorrowedFd<'_>, block: u64) -> Outcome<Self> {
        Ok(Self { file: wire::number(file).map_err(|_| OPERATING_SYSTEM)?, block })
    }
}

/// A row; one without an owner is free.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Row {
    owner: u64,
    name: Name,
    place: u64,
    bytes: u64,
}

impl Row {
    fn from_bytes(bytes: &[u8; ROW_BYTES]) -> io::Result<Self> {
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut next = || words.next().unwrap_or_default();
        if next() != MAGIC {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { owner: next(), name: Name { file: next(), block: next() }, place: next(), bytes: next() })
    }

    fn to_bytes(self) -> [u8; ROW_BYTES] {
        let Self { owner, name: Name { file, block }, place, bytes } = self;
        let mut row = [0; ROW_BYTES];
        for (to, word) in row.as_chunks_mut::<8>().0.iter_mut().zip([MAGIC, owner, file, block, place, bytes])
        {
            *to = word.to_le_bytes();
        }
        row
    }
}

fn read(file: &File) -> io::Result<Vec<Row>> {
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut bytes, 0)?;
    bytes.as_chunks().0.iter().map(Row::from_bytes).collect()
}

/// The bytes in use at a place.
fn used(rows: &[Row], place: u64) -> u64 {
    let mut counted = BTreeSet::new();
    let there = rows.iter().filter(|row| row.place == place);
    let once = there.filter(|row| row.name == Name::default() || counted.insert(row.name));
    once.fold(0, |sum, row| sum.saturating_add(row.bytes))
}

/// Puts a row where one is free.
fn put(rows: &mut Vec<Row>, row: Row) -> usize {
    let index = rows.iter().position(|row| row.owner == 0).unwrap_or(rows.len());
    rows.resize(rows.len().max(index + 1), Row::default());
    rows[index] = row;
    index
}

/// One driver's access to an account.
#[derive(Debug)]
pub(crate) struct Account {
    /// None if there could be no file; everything is refused then.
    file: Option<File>,
    /// The driver's number, and the byte that is locked for it.
    owner: u64,
    /// A forked child has the file too, and no say in it.
    process: u32,
}

impl Account {
    /// That of a file, which is made if it is not there; a new one without a path.
    pub(super) fn open(path: Option<&Path>) -> Arc<Self> {
        let file = match path {
            Some(path) => File::options().read(true).write(true).create(true).truncate(false).open(path),
            None => os::new_file(c"cuda-mem-sim:account").map(File::from),
        };
        let file = file.ok();
        let lock = |file: &File| {
            (CHANGE + 1..DRIVERS).find(|&owner| os::lock_byte(file.as_fd(), owner, false).is_ok())
        };
        let owner = file.as_ref().and_then(lock);
        let account = Self {
            file: file.filter(|_| owner.is_some()),
            owner: owner.unwrap_or(0),
            process: std::process::id(),
        };
        // Rows of a driver that is gone and had the same number.
        let _ = account.change(|rows| {
            rows.iter_mut().filter(|row| row.owner == account.owner).for_each(|row| *row = Row::default());
            Ok(())
        });
        Arc::new(account)
    }

    /// This account if it is that of a path, else that one.
    pub(super) fn or_open(self: &Arc<Self>, path: &Path) -> Arc<Self> {
        let number = |found: Metadata| (found.dev(), found.ino());
        let own = self.file.as_ref().and_then(|file| file.metadata().ok()).map(number);
        let is_own = std::fs::metadata(path).is_ok_and(|found| Some(number(found)) == own);
        if is_own { Arc::clone(self) } else { Self::open(Some(path)) }
    }

    /// Makes a forked child a driver of its own, whose parent has never begun to be one.
    pub(crate) fn enter(self: &mut Arc<Self>) {
        if self.process != std::process::id() {
            *self = Self::open(Some(Path::new(&format!("/proc/self/fd/{}", self.descriptor()))));
        }
    }

    /// Where other processes find it, for as long as this driver is there.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", self.process, self.descriptor()).into()
    }

    pub(super) fn descriptor(&self) -> u64 {
        self.file.as_ref().map_or(0, |file| file.as_raw_fd() as u64)
    }

    pub(super) fn owner(&self) -> u64 {
        self.owner
    }

    /// Changes the rows, once those of drivers that are gone have been cleared.
    fn change<T>(&self, change: impl FnOnce(&mut Vec<Row>) -> Outcome<T>) -> Outcome<T> {
        let file = self.file.as_ref().filter(|_| self.process == std::process::id());
        let file = file.ok_or(OPERATING_SYSTEM)?;
        let _turn = os::Turn::wait(file.as_fd(), CHANGE).map_err(|_| OPERATING_SYSTEM)?;
        let before = read(file).map_err(|_| OPERATING_SYSTEM)?;
        let mut rows = before.clone();
        let mut lives = BTreeMap::from([(0, true), (self.owner, true)]);
        for row in &mut rows {
            if !*lives.entry(row.owner).or_insert_with(|| os::is_byte_locked(file.as_fd(), row.owner)) {
                *row = Row::default();
            }
        }
        let done = change(&mut rows);
        for (index, row) in rows.iter().enumerate().filter(|(index, row)| before.get(*index) != Some(row)) {
            let at = (index * ROW_BYTES) as u64;
            file.write_all_at(&row.to_bytes(), at).map_err(|_| OPERATING_SYSTEM)?;
        }
        done
    }

    /// The bytes in use at a place, by anybody.
    pub(crate) fn used(&self, place: u64) -> Outcome<u64> {
        self.change(|rows| Ok(used(rows, place)))
    }

    /// Counts memory that this driver alone has, if that stays within a limit.
    pub(super) fn charge(&self, place: u64, bytes: u64, limit: u64) -> Outcome<()> {
        self.change(|rows| {
            let sum = used(rows, place).checked_add(bytes).filter(|&sum| sum <= limit);
            sum.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
            self.alone(rows, place).bytes += bytes;
            Ok(())
        })
    }

    /// The reverse of [`charge`](Self::charge).
    pub(super) fn refund(&self, place: u64, bytes: u64) {
        // It was written before, so it can be written again; a forked child must not.
        let _ = self.change(|rows| {
            self.alone(rows, place).bytes -= bytes;
            Ok(())
        });
    }

    /// The row of what this driver alone has at a place.
    fn alone<'a>(&self, rows: &'a mut Vec<Row>, place: u64) -> &'a mut Row {
        let row = Row { owner: self.owner, place, ..Row::default() };
        let same = |found: &Row| Row { bytes: 0, ..*found } == row;
        let index = rows.iter().position(same).unwrap_or_else(|| put(rows, row));
        &mut rows[index]
    }

    /// Counts memory that was [charged](Self::charge) by its name from now on.
    pub(super) fn share(self: &Arc<Self>, name: Name, place: u64, bytes: u64) -> Outcome<Share> {
        self.change(|rows| {
            self.alone(rows, place).bytes -= bytes;
            Ok(self.add(rows, name, place, bytes))
        })
    }

    /// Counts memory of another driver's, once with all who have it.
    pub(super) fn join(self: &Arc<Self>, name: Name, place: u64, bytes: u64) -> Outcome<Share> {
        self.change(|rows| Ok(self.add(rows, name, place, bytes)))
    }

    /// As [`join`](Self::join), where a driver has not let go of what it shared.
    pub(super) fn join_owner(self: &Arc<Self>, name: Name, owner: u64) -> Outcome<Share> {
        self.change(|rows| {
            let found = rows.iter().find(|row| row.owner == owner && row.name == name);
            let &Row { place, bytes, .. } = found.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
            Ok(self.add(rows, name, place, bytes))
        })
    }

    fn add(self: &Arc<Self>, rows: &mut Vec<Row>, name: Name, place: u64, bytes: u64) -> Share {
        let index = put(rows, Row { owner: self.owner, name, place, bytes });
        Share { account: Arc::clone(self), name, index }
    }

    /// Whether anybody has a memory.
    pub(super) fn has(&self, name: Name) -> bool {
        self.change(|rows| Ok(rows.iter().any(|row| row.name == name))).unwrap_or(true)
    }
}

/// A row of memory that others may have too, which goes when this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    account: Arc<Account>,
    pub(super) name: Name,
    index: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        // What cannot be written goes with the process; a forked child must not.
        let _ = self.account.change(|rows| {
            rows[self.index] = Row::default();
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT_OF_MEMORY: Outcome<()> = Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);

    fn name(block: u64) -> Name {
        Name { file: 7, block }
    }

    #[test]
    fn drivers_of_one_account_have_one_limit() {
        let one = Account::open(None);
        let two = Account::open(Some(&one.path()));
        assert_ne!(one.owner(), two.owner());
        one.charge(0, 60, 100).unwrap();
        assert_eq!(two.charge(0, 41, 100), OUT_OF_MEMORY);
        two.charge(0, 40, 100).unwrap();
        two.charge(1, 100, 100).unwrap();
        assert_eq!([one.used(0), one.used(1), two.used(0)], [Ok(100), Ok(100), Ok(100)]);
        one.refund(0, 60);
        assert_eq!(one.charge(0, u64::MAX, u64::MAX), OUT_OF_MEMORY);
        assert_eq!(two.used(0), Ok(40));
        // Another one is none of theirs; and a path that cannot be is refused everything.
        assert_eq!(Account::open(None).used(0), Ok(0));
        assert_eq!(Account::open(Some(Path::new("/nowhere/at/all"))).used(0), Err(OPERATING_SYSTEM));
        assert!(Arc::ptr_eq(&one.or_open(&two.path()), &one));
        drop(two);
        assert_eq!([one.used(0), one.used(1)], [Ok(0), Ok(0)]);
    }

    #[test]
    fn shared_memory_counts_once_until_the_last_has_let_go() {
        let one = Account::open(None);
        let two = Account::open(Some(&one.path()));
        one.charge(0, 100, 100).unwrap();
        let shared = one.share(name(1), 0, 60).unwrap();
        let joined = [two.join(name(1), 0, 60).unwrap(), two.join_owner(name(1), one.owner()).unwrap()];
        assert_eq!((one.used(0), two.used(0)), (Ok(100), Ok(100)));
        drop(shared);
        assert!(one.has(name(1)) && !one.has(name(2)));
        assert_eq!(one.used(0), Ok(100));
        assert!(two.join_owner(name(1), one.owner()).is_err(), "it has none to give");
        drop(joined);
        assert!(!one.has(name(1)));
        assert_eq!(two.used(0), Ok(40));
    }

    #[test]
    fn other_files_are_no_accounts_and_stay_what_they_are() {
        let file = os::memory_file(c"other", 128).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let account = Account::open(Some(Path::new(&path)));
        assert_eq!(account.charge(0, 1, 1), Err(OPERATING_SYSTEM));
        assert_eq!(std::fs::read(path).unwrap(), [0; 128]);
    }
}
