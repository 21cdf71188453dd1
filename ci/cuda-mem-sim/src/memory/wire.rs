//! How memory is recognised in another process: by the name of its file, where the data itself has no room for a mark.
//!
//! The name of a memory file can be read through `/proc/self/fd` by whoever holds a descriptor, and nobody can change it;
//! its size is sealed. So a descriptor from anywhere is either one of ours, with all that must be known of it, or it is not.

use std::ffi::CString;
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use super::os;
use super::vmm::Location;

/// What travels between processes as bytes.
pub(crate) fn to_bytes(words: [u64; 8]) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    bytes
}

/// The reverse of [`to_bytes`].
pub(crate) fn to_words(bytes: [u8; 64]) -> [u64; 8] {
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

/// What names of exported memory begin with.
const PREFIX: &str = "cuda-mem-sim:handle";

/// What names of the memory of pools begin with.
const POOL_PREFIX: &str = "cuda-mem-sim:pool:";

/// What `/proc` puts around the names of memory files.
const PROC_PREFIX: &str = "/memfd:";
const PROC_SUFFIX: &str = " (deleted)";

/// What travels with the memory of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) location: Location,
    pub(super) rdma: bool,
}

impl Label {
    fn name(self) -> String {
        format!("{PREFIX}:{}:rdma={}", place_name(self.location), u8::from(self.rdma))
    }

    fn parse(name: &str) -> Option<Self> {
        let rest = name.strip_prefix(PREFIX)?.strip_prefix(':')?;
        let (place, rdma) = rest.split_once(":rdma=")?;
        Some(Self { location: place_of(place)?, rdma: rdma == "1" })
    }
}

fn place_name(location: Location) -> String {
    match location {
        Location::Device(device) => format!("device={device}"),
        Location::Host => "host=0".to_owned(),
        Location::Node(node) => format!("node={node}"),
    }
}

fn place_of(name: &str) -> Option<Location> {
    match name.split_once('=')? {
        ("device", device) => Some(Location::Device(device.parse().ok()?)),
        ("host", _) => Some(Location::Host),
        ("node", node) => Some(Location::Node(node.parse().ok()?)),
        _ => None,
    }
}

/// A new file for memory that can be sent to other processes.
pub(super) fn create(label: Label, size: u64) -> io::Result<OwnedFd> {
    let name = CString::new(label.name())?;
    os::memory_file(&name, size)
}

/// A new file for the memory of a pool that other processes may use.
pub(super) fn create_pool(location: Location, size: u64) -> io::Result<OwnedFd> {
    let name = CString::new(format!("{POOL_PREFIX}{}", place_name(location)))?;
    os::memory_file(&name, size)
}

/// What a descriptor from elsewhere holds, and how many bytes; none if it is not one of ours.
pub(super) fn recognise(file: BorrowedFd<'_>) -> Option<(Label, u64)> {
    let (name, found) = look(file)?;
    Some((Label::parse(&name)?, found.len()))
}

/// Where a pool lies whose memory a descriptor from elsewhere is, and how long the file is.
pub(super) fn recognise_pool(file: BorrowedFd<'_>) -> Option<(Location, u64)> {
    let (name, found) = look(file)?;
    Some((place_of(name.strip_prefix(POOL_PREFIX)?)?, found.len()))
}

/// The number that a memory file has and no other file of its kind, in whatever process it is open.
pub(super) fn number(file: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(std::fs::metadata(link(file))?.ino())
}

fn link(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// The name and the properties of a memory file whose size is sealed.
fn look(file: BorrowedFd<'_>) -> Option<(String, Metadata)> {
    if !os::is_sealed(file) {
        return None;
    }
    let target = std::fs::read_link(link(file)).ok()?;
    let name = target.to_str()?.strip_prefix(PROC_PREFIX)?.strip_suffix(PROC_SUFFIX)?;
    Some((name.to_owned(), std::fs::metadata(link(file)).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn only_our_own_files_are_recognised() {
        for location in [Location::Device(3), Location::Node(1), Location::Host] {
            let label = Label { location, rdma: location == Location::Host };
            let file = create(label, 8192).unwrap();
            assert_eq!(recognise(file.as_fd()), Some((label, 8192)));
            assert_eq!(recognise_pool(file.as_fd()), None);
            let pool = create_pool(location, 8192).unwrap();
            assert_eq!(recognise_pool(pool.as_fd()), Some((location, 8192)));
            assert_eq!(recognise(pool.as_fd()), None);
            assert_ne!(number(file.as_fd()).unwrap(), number(pool.as_fd()).unwrap());
        }
        let other = os::memory_file(c"something else", 4096).unwrap();
        assert_eq!(recognise(other.as_fd()), None);
        let plain = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(recognise(plain.as_fd()), None);
    }
}
