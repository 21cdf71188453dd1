//! How memory is recognised in another process: by the name of its file, where the data itself has no room for a mark.
//!
//! The name of a memory file can be read through `/proc/self/fd` by whoever holds a descriptor, and nobody can change it;
//! its size is sealed. So a descriptor from anywhere is either one of ours, with all that must be known of it, or it is not.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::os;
use super::vmm::Location;

/// What names of exported memory begin with.
const PREFIX: &str = "cuda-mem-sim:handle";

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
        let place = match self.location {
            Location::Device(device) => format!("device={device}"),
            Location::Host => "host=0".to_owned(),
            Location::Node(node) => format!("node={node}"),
        };
        format!("{PREFIX}:{place}:rdma={}", u8::from(self.rdma))
    }

    fn parse(name: &str) -> Option<Self> {
        let rest = name.strip_prefix(PREFIX)?.strip_prefix(':')?;
        let (place, rdma) = rest.split_once(":rdma=")?;
        let location = match place.split_once('=')? {
            ("device", device) => Location::Device(device.parse().ok()?),
            ("host", _) => Location::Host,
            ("node", node) => Location::Node(node.parse().ok()?),
            _ => return None,
        };
        Some(Self { location, rdma: rdma == "1" })
    }
}

/// A new file for memory that can be sent to other processes.
pub(super) fn create(label: Label, size: u64) -> io::Result<OwnedFd> {
    let name = CString::new(label.name())?;
    os::memory_file(&name, size)
}

/// What a descriptor from elsewhere holds, and how many bytes; none if it is not one of ours.
pub(super) fn recognise(file: BorrowedFd<'_>) -> Option<(Label, u64)> {
    if !os::is_sealed(file) {
        return None;
    }
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let target = std::fs::read_link(&link).ok()?;
    let name = target.to_str()?.strip_prefix(PROC_PREFIX)?.strip_suffix(PROC_SUFFIX)?;
    let size = std::fs::metadata(&link).ok()?.len();
    Some((Label::parse(name)?, size))
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
        }
        let other = os::memory_file(c"something else", 4096).unwrap();
        assert_eq!(recognise(other.as_fd()), None);
        let plain = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(recognise(plain.as_fd()), None);
    }
}
