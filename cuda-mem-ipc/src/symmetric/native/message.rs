//! What the ranks tell each other by messages. All numbers are little-endian words of eight bytes.
//!
//! | kind | payload | descriptors |
//! |---|---|---|
//! | 64, hello | version (4), rank, ranks, the group's name | none |
//! | 65, directory (of rank 0) | none | host memory: [`super::directory`] |
//! | 66, segment | its number, its bytes, UUID of its device | device memory |
//! | 67, broken: look at the directory | none | none |
//! | 68, said: the next of an exchange | anything | none |
//! | 69, words of signals | their number, for how many allocations they are | host memory: [`super::words`] |

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::transport::FIRST_KIND;

pub(super) const HELLO: u16 = FIRST_KIND + 48;
pub(super) const DIRECTORY: u16 = HELLO + 1;
pub(super) const SEGMENT: u16 = HELLO + 2;
pub(super) const BROKEN: u16 = HELLO + 3;
pub(super) const SAID: u16 = HELLO + 4;
pub(super) const WORDS: u16 = HELLO + 5;

pub(super) const VERSION: u16 = 7;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) rank: u64,
    pub(super) ranks: u64,
    pub(super) group: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct SegmentInfo {
    pub(super) number: U64,
    pub(super) bytes: U64,
    pub(super) device: [u8; 16],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct PieceInfo {
    pub(super) number: U64,
    pub(super) room: U64,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let numbers = [VERSION.into(), self.rank, self.ranks].map(U64::new);
        [numbers.as_bytes(), self.group.as_bytes()].concat()
    }

    /// None for what is no hello. Of one of another version that is known, and nothing else.
    pub(super) fn parse(bytes: &[u8]) -> Option<Result<Self, u16>> {
        let (numbers, name) = <[U64; 3]>::ref_from_prefix(bytes).ok()?;
        let [version, rank, ranks] = numbers.map(U64::get);
        match u16::try_from(version).unwrap_or(u16::MAX) {
            VERSION => Some(Ok(Self { rank, ranks, group: str::from_utf8(name).ok()?.to_owned() })),
            version => Some(Err(version)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_are_written() {
        let hello = Hello { rank: 3, ranks: 8, group: "a group".to_owned() };
        assert_eq!(Hello::parse(&hello.encode()), Some(Ok(hello.clone())));
        assert_eq!(Hello::parse(&hello.encode()[..23]), None);
        let mut other = hello.encode();
        other[0] = 1;
        assert_eq!(Hello::parse(&other), Some(Err(1)));
        other[3] = 1;
        assert_eq!(Hello::parse(&other), Some(Err(u16::MAX)));
        let [one, two] = [1, 2].map(U64::new);
        let info = SegmentInfo { number: one, bytes: two, device: [5; 16] };
        let words = [1, 2].map(u64::to_le_bytes).concat();
        assert_eq!(info.as_bytes(), [&words[..], &[5; 16]].concat());
        assert_eq!(SegmentInfo::read_from_bytes(info.as_bytes()).unwrap(), info);
        assert!(SegmentInfo::read_from_bytes(&info.as_bytes()[..31]).is_err());
        let info = PieceInfo { number: one, room: two };
        assert_eq!(info.as_bytes(), words);
        assert!(PieceInfo::read_from_bytes(&info.as_bytes()[..15]).is_err());
        assert!(PieceInfo::read_from_bytes(&[0; 17]).is_err());
    }
}
