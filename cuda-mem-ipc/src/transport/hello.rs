//! The first message in each direction: which versions a side speaks, and which process it is.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 2 | least version |
//! | 2 | 2 | highest version |
//! | 4 | 4 | process number |
//! | 8 | 8 | start of the process, in clock ticks after the system's |
//!
//! Its frame is always of the least version, [`MIN_VERSION`] of the first release, so that any two releases understand it; later
//! ones may put more behind it, which is not read.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::frame::{MAX_VERSION, MIN_VERSION};
use super::peer::{Peer, own_start_time};
use crate::error::{Error, Result};

/// The kind of the message.
pub(super) const KIND: u16 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    versions: (u16, u16),
    pid: u32,
    start_time: u64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Bytes {
    least: U16,
    highest: U16,
    pid: U32,
    start_time: U64,
}

impl Hello {
    /// Of this process.
    pub(super) fn own() -> Result<Self> {
        let versions = (MIN_VERSION, MAX_VERSION);
        Ok(Self { versions, pid: std::process::id(), start_time: own_start_time()? })
    }

    pub(super) fn encode(self) -> Vec<u8> {
        let (least, highest) = self.versions;
        let (pid, start_time) = (self.pid.into(), self.start_time.into());
        Bytes { least: least.into(), highest: highest.into(), pid, start_time }.as_bytes().to_vec()
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (bytes, _later) = Bytes::ref_from_prefix(bytes).ok()?;
        let versions = (bytes.least.get(), bytes.highest.get());
        Some(Self { versions, pid: bytes.pid.get(), start_time: bytes.start_time.get() })
    }

    /// The version to speak, if the hello is that of the peer.
    pub(super) fn agree(self, peer: &Peer) -> Result<u16> {
        if (self.pid, self.start_time) != (peer.pid(), peer.start_time()) {
            return Err(Error::PeerMismatch {
                pid: peer.pid(),
                start_time: peer.start_time(),
                told_pid: self.pid,
                told_start_time: self.start_time,
            });
        }
        let (least, highest) = self.versions;
        let version = highest.min(MAX_VERSION);
        if version < least.max(MIN_VERSION) {
            return Err(Error::NoCommonVersion { theirs: self.versions, ours: (MIN_VERSION, MAX_VERSION) });
        }
        Ok(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::system::Credentials;

    #[test]
    fn a_hello_is_read_as_it_is_written() {
        let hello = Hello { versions: (1, 0x0203), pid: 0x0405_0607, start_time: 0x0809_0a0b_0c0d_0e0f };
        let bytes = hello.encode();
        assert_eq!(bytes, [1, 0, 3, 2, 7, 6, 5, 4, 15, 14, 13, 12, 11, 10, 9, 8]);
        assert_eq!(Hello::parse(&bytes), Some(hello));
        assert_eq!(Hello::parse(&[&bytes[..], b"later"].concat()), Some(hello));
        assert_eq!(Hello::parse(&bytes[..15]), None);
    }

    #[test]
    fn the_highest_common_version_is_spoken_with_the_right_process() {
        let pid = std::process::id();
        let peer = Peer::of_credentials(Credentials { pid: pid.cast_signed(), uid: 0, gid: 0 }).unwrap();
        let own = Hello::own().unwrap();
        assert_eq!(own.agree(&peer).unwrap(), MAX_VERSION);
        assert_eq!(Hello { versions: (1, 900), ..own }.agree(&peer).unwrap(), MAX_VERSION);
        for versions in [(MAX_VERSION + 1, 900), (0, 0), (5, 1)] {
            let refused = Hello { versions, ..own }.agree(&peer);
            assert!(matches!(refused, Err(Error::NoCommonVersion { theirs, .. }) if theirs == versions));
        }
        let other = Hello { pid: pid + 1, ..own }.agree(&peer);
        assert!(matches!(other, Err(Error::PeerMismatch { told_pid, .. }) if told_pid == pid + 1));
        let later = Hello { start_time: own.start_time + 1, ..own }.agree(&peer);
        assert!(matches!(later, Err(Error::PeerMismatch { .. })));
    }
}
