//! What the ranks tell each other by messages. All numbers are little-endian words of eight bytes.
//!
//! | kind | payload | descriptors |
//! |---|---|---|
//! | 64, hello | version, rank, ranks, how many allocations a segment has room for, the group's name | none |
//! | 65, directory (of rank 0) | none | host memory: [`super::directory`] |
//! | 66, segment | its number, its bytes, UUID of its device | device memory |
//! | 67, broken: look at the directory | none | none |
//! | 68, said: the next of an exchange | anything | none |
//! | 69, words of signals | their number | host memory: [`super::words`] |

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::transport::FIRST_KIND;

pub(super) const HELLO: u16 = FIRST_KIND + 48;
pub(super) const DIRECTORY: u16 = HELLO + 1;
pub(super) const SEGMENT: u16 = HELLO + 2;
pub(super) const BROKEN: u16 = HELLO + 3;
pub(super) const SAID: u16 = HELLO + 4;
pub(super) const WORDS: u16 = HELLO + 5;

pub(super) const VERSION: u16 = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) rank: u64,
    pub(super) ranks: u64,
    pub(super) allocations: u64,
    pub(super) group: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct SegmentInfo {
    pub(super) number: U64,
    pub(super) bytes: U64,
    pub(super) device: [u8; 16],
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let numbers = [VERSION.into(), self.rank, self.ranks, self.allocations].map(U64::new);
        [numbers.as_bytes(), self.group.as_bytes()].concat()
    }

    /// None for what is no hello. Of one of another version that is known, and nothing else.
    pub(super) fn parse(bytes: &[u8]) -> Option<Result<Self, u16>> {
        let (version, behind) = U64::ref_from_prefix(bytes).ok()?;
        let version = u16::try_from(version.get()).unwrap_or(u16::MAX);
        if version != VERSION {
            return Some(Err(version));
        }
        let (numbers, name) = <[U64; 3]>::ref_from_prefix(behind).ok()?;
        let [rank, ranks, allocations] = numbers.map(U64::get);
        Some(Ok(Self { rank, ranks, allocations, group: str::from_utf8(name).ok()?.to_owned() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_are_written() {
        let hello = Hello { rank: 3, ranks: 8, allocations: 256, group: "a group".to_owned() };
        assert_eq!(Hello::parse(&hello.encode()), Some(Ok(hello.clone())));
        assert_eq!(Hello::parse(&hello.encode()[..31]), None);
        let mut other = hello.encode();
        other[0] = 1;
        assert_eq!(Hello::parse(&other), Some(Err(1)));
        other[3] = 1;
        assert_eq!(Hello::parse(&other), Some(Err(u16::MAX)));
        let [one, two] = [1, 2].map(U64::new);
        let info = SegmentInfo { number: one, bytes: two, device: [5; 16] };
        let numbers = [1, 2].map(u64::to_le_bytes).concat();
        assert_eq!(info.as_bytes(), [&numbers[..], &[5; 16]].concat());
        assert_eq!(SegmentInfo::read_from_bytes(info.as_bytes()).unwrap(), info);
        assert!(SegmentInfo::read_from_bytes(&info.as_bytes()[..31]).is_err());
    }
}
