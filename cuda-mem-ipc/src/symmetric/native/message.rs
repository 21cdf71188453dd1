//! What the ranks tell each other by messages. All numbers are little-endian words of eight bytes.
//!
//! | kind | payload | descriptors |
//! |---|---|---|
//! | 64, hello | version (3), rank, ranks, the group's name | none |
//! | 65, directory (of rank 0) | none | host memory: [`super::directory`] |
//! | 66, segment | its number, its bytes, pads, bytes of a pad, UUID of its device | device memory |
//! | 67, broken: look at the directory | none | none |
//! | 68, said: the next of an exchange | anything | none |
//! | 69, words of signals | their number, for how many allocations they are | host memory: [`super::words`] |

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use crate::transport::FIRST_KIND;

pub(super) const HELLO: u16 = FIRST_KIND + 48;
pub(super) const DIRECTORY: u16 = HELLO + 1;
pub(super) const SEGMENT: u16 = HELLO + 2;
pub(super) const BROKEN: u16 = HELLO + 3;
pub(super) const SAID: u16 = HELLO + 4;
pub(super) const WORDS: u16 = HELLO + 5;

const VERSION: u64 = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) rank: u64,
    pub(super) ranks: u64,
    pub(super) group: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentInfo {
    pub(super) number: u64,
    pub(super) bytes: u64,
    pub(super) pads: u64,
    pub(super) pad_bytes: u64,
    pub(super) device: [u8; 16],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PieceInfo {
    pub(super) number: u64,
    pub(super) room: u64,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = words([VERSION, self.rank, self.ranks]);
        bytes.extend(self.group.as_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let ([version, rank, ranks], name) = split(bytes)?;
        let group = str::from_utf8(name).ok()?.to_owned();
        Some(Self { rank, ranks, group }).filter(|_| version == VERSION)
    }
}

impl SegmentInfo {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = words([self.number, self.bytes, self.pads, self.pad_bytes]);
        bytes.extend(self.device);
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let ([number, bytes, pads, pad_bytes], device) = split(bytes)?;
        Some(Self { number, bytes, pads, pad_bytes, device: device.try_into().ok()? })
    }
}

impl PieceInfo {
    pub(super) fn encode(&self) -> Vec<u8> {
        words([self.number, self.room])
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let ([number, room], rest) = split(bytes)?;
        Some(Self { number, room }).filter(|_| rest.is_empty())
    }
}

fn words<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.map(U64::new).as_bytes().to_vec()
}

fn split<const N: usize>(bytes: &[u8]) -> Option<([u64; N], &[u8])> {
    let (words, tail) = <[U64; N]>::ref_from_prefix(bytes).ok()?;
    Some((words.map(|word| word.get()), tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_are_written() {
        let hello = Hello { rank: 3, ranks: 8, group: "a group".to_owned() };
        assert_eq!(Hello::parse(&hello.encode()), Some(hello.clone()));
        assert_eq!(Hello::parse(&hello.encode()[..23]), None);
        let mut other = hello.encode();
        other[0] = 1;
        assert_eq!(Hello::parse(&other), None);
        let info = SegmentInfo { number: 1, bytes: 2, pads: 3, pad_bytes: 4, device: [5; 16] };
        assert_eq!(SegmentInfo::parse(&info.encode()), Some(info));
        assert_eq!(SegmentInfo::parse(&info.encode()[..47]), None);
        let info = PieceInfo { number: 1, room: 2 };
        assert_eq!(PieceInfo::parse(&info.encode()), Some(info));
        assert_eq!(PieceInfo::parse(&info.encode()[..15]), None);
        assert_eq!(PieceInfo::parse(&[0; 17]), None);
    }
}
