//! A page of words that processes share: what an event for other processes is made of.
//!
//! # Safety
//!
//! The page is a mapped file of sealed size and holds nothing but atomic words, so whatever another process writes there,
//! or wherever it dies, every access is valid and every value is only a number.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::os::{self, Protection};

/// What the file of a page is called, before its number.
const PREFIX: &str = "cuda-mem-sim:event:";

/// What handles begin with: other bytes are no handle of ours.
const MAGIC: u64 = u64::from_le_bytes(*b"cudasime");

/// How many words there are.
const WORDS: usize = 2;

/// A mapped page.
#[derive(Debug)]
pub(crate) struct SharedPage {
    at: usize,
    file: OwnedFd,
    /// Tells the page from others that its process makes.
    number: u64,
}

impl SharedPage {
    /// A page of zeros.
    pub(crate) fn create() -> io::Result<Self> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let name = CString::new(format!("{PREFIX}{number}"))?;
        Self::map(os::memory_file(&name, os::page_size() as u64)?, number)
    }

    fn map(file: OwnedFd, number: u64) -> io::Result<Self> {
        let page = Self { at: os::reserve(os::page_size())?, file, number };
        // SAFETY: the reservation made one line above.
        unsafe { os::map_over(page.at, os::page_size(), page.file.as_fd(), 0, Protection::ReadWrite) }?;
        Ok(page)
    }

    /// What another process needs to know to open it, as it travels.
    pub(crate) fn ticket(&self) -> [u64; 8] {
        let process = std::process::id().into();
        [MAGIC, process, self.file.as_raw_fd() as u64, self.number, 0, 0, 0, !MAGIC]
    }

    /// Whether a ticket is one, and whether this process made it.
    pub(crate) fn is_own(ticket: [u64; 8]) -> Option<bool> {
        let [magic, process, .., end] = ticket;
        (magic == MAGIC && end == !MAGIC).then(|| process == u64::from(std::process::id()))
    }

    /// The page of another process, which must be alive and still have it.
    pub(crate) fn open(ticket: [u64; 8]) -> io::Result<Self> {
        let [_, process, descriptor, number, ..] = ticket;
        let path = format!("/proc/{process}/fd/{descriptor}");
        // The number of a descriptor may mean another file by now; the name of a memory file is its own.
        let name = std::fs::read_link(&path)?;
        if name.to_str() != Some(&format!("/memfd:{PREFIX}{number} (deleted)")) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let file: OwnedFd = File::options().read(true).write(true).open(&path)?.into();
        if !os::is_sealed(file.as_fd()) || os::len(file.as_fd())? != os::page_size() as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Self::map(file, number)
    }

    /// One of its words.
    fn word(&self, index: usize) -> &AtomicU64 {
        let at = std::ptr::with_exposed_provenance::<AtomicU64>(
            self.at + (index % WORDS) * size_of::<AtomicU64>(),
        );
        // SAFETY: within the mapping, aligned, and unmapped only with `self`; its bytes are only ever used as these atomic
        // words, by every process that has them.
        unsafe { &*at }
    }

    /// How often the event was recorded, by anybody.
    pub(crate) fn recorded(&self) -> u64 {
        self.word(0).load(Ordering::SeqCst)
    }

    /// Counts another record; gives its number.
    pub(crate) fn record(&self) -> u64 {
        self.word(0).fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Whether the record of a number is complete; 0 stands for none.
    pub(crate) fn is_reached(&self, number: u64) -> bool {
        self.word(1).load(Ordering::SeqCst) >= number
    }

    /// The record of a number, and all before it, are complete.
    pub(crate) fn reach(&self, number: u64) {
        self.word(1).fetch_max(number, Ordering::SeqCst);
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`; references to its words borrow from `self`.
        unsafe { os::unreserve(self.at, os::page_size()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_counted_and_completed_in_order() {
        let page = SharedPage::create().unwrap();
        assert!(page.is_reached(page.recorded()));
        let (one, two) = (page.record(), page.record());
        assert!(!page.is_reached(one));
        page.reach(two);
        page.reach(one);
        assert!(page.is_reached(two));
    }

    #[test]
    fn a_page_is_found_by_its_ticket_and_nothing_else_is() {
        let page = SharedPage::create().unwrap();
        let same = SharedPage::open(page.ticket()).unwrap();
        page.record();
        assert_eq!(same.recorded(), 1);
        assert_eq!(SharedPage::is_own(page.ticket()), Some(true));
        assert_eq!(SharedPage::is_own([0; 8]), None);
        let mut other = page.ticket();
        other[3] += 1;
        assert!(SharedPage::open(other).is_err());
    }
}
