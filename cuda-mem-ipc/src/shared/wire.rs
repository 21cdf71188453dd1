//! What exporter and importer say to each other: the payloads of their messages, and the entries of their rings.
//!
//! All integers are little-endian, and every payload has exactly the length of its structure. `docs/ipc.md` has the tables.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{MessageError, check};
use crate::transport::FIRST_KIND;

/// The memory where fences and rings are: one descriptor. Kind 16.
pub const OFFER: u16 = FIRST_KIND;
/// The importer has it, and says how much it maps ahead. Kind 17.
pub const ACCEPT: u16 = FIRST_KIND + 1;
/// A segment, the descriptors of which travel with it. Kind 18.
pub const SEGMENT: u16 = FIRST_KIND + 2;
/// A segment is used no more. Kind 19.
pub const RETIRE: u16 = FIRST_KIND + 3;
/// There is something in the ring of releases, for a thread that sleeps. Kind 20.
pub const RING: u16 = FIRST_KIND + 4;
/// The importer has unmapped a segment that its exporter waits for, a block of a pool. Kind 21.
pub const LET_GO: u16 = FIRST_KIND + 5;

/// Said of all segments by an importer that reads nothing more.
pub const ALL: u64 = u64::MAX;

/// The version of this protocol.
pub const VERSION: u32 = 10;

/// How many lines of fences each side writes. Those of the exporter come first.
pub const LINES: u32 = 32;

/// The last generation that a line has: above it is poison.
pub const LAST_GENERATION: u64 = 1 << 62;

/// How many hand-overs the ring has room for, and as many releases the other one.
pub const RING_ENTRIES: u64 = 512;

/// The slot of 64 bytes where the ring of hand-overs begins, behind both sides' lines.
pub const FIRST_OF_RING: usize = 2 * LINES as usize;

/// The slot where the ring of releases begins: behind three slots of a ring's numbers are its entries.
pub const FIRST_OF_RELEASES: usize = FIRST_OF_RING + 3 + RING_ENTRIES as usize;

/// How many slots there are.
pub const SLOTS: usize = FIRST_OF_RELEASES + 3 + RING_ENTRIES as usize;

/// How many handles a segment has at the most: each is a descriptor of one message, and a mapping in each importer.
pub const MOST_HANDLES: usize = 64;

/// A message of a shared pool, as its bytes say. Nothing of it is believed yet but that its numbers are in range.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message {
    Offer,
    /// How many segments that no buffer came of yet the importer maps, and how many bytes of them. It promises nothing.
    Accept {
        segments: u64,
        bytes: u64,
    },
    Segment(Segment),
    Retire {
        segment: u64,
    },
    Ring,
    LetGo {
        segment: u64,
    },
}

/// Memory that buffers are parts of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its number, which the exporter's process gives once.
    pub segment: u64,
    /// A number of the exporter's program, which tells a process from what it was before `exec`.
    pub generation: u64,
    pub bytes: u64,
    pub place: Place,
}

/// Where a segment lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// On the device with this UUID, one handle.
    Device([u8; 16]),
    /// On the host, a file in memory.
    Host,
    /// In a pool of the device with this UUID; what the driver exports the block as.
    DevicePool { uuid: [u8; 16], block: [u8; 64] },
    /// On a node of the host, one handle.
    Node(u32),
    /// On the device with this UUID, several handles side by side of these sizes: two at the least, [`MOST_HANDLES`] at the most.
    Parts { uuid: [u8; 16], sizes: Vec<u64> },
}

/// A buffer that is handed over: an entry of the first ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandOver {
    /// Its number, by which it is released.
    pub sequence: u64,
    /// The segment that it lies in.
    pub segment: u64,
    /// Where in it, in bytes.
    pub offset: u64,
    /// How many bytes, at least one.
    pub len: u64,
    /// Its fence, of a generation from 1 on.
    pub fence: Point,
}

/// A buffer that its receiver is done with: an entry of the second ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// The buffer's number.
    pub sequence: u64,
    /// The importer's fence behind the last use, of generation 0 if there was none.
    pub fence: Point,
}

/// A fence by its place: a line of one side, below [`LINES`], and a generation of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    pub line: u32,
    pub generation: u64,
}

/// What every segment begins with.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SegmentBytes {
    segment: U64,
    generation: U64,
    bytes: U64,
    place: U64,
    home: [u8; 16],
}

impl Message {
    /// Reads a message of a kind; an error for whatever is not exactly one. No allocation, no panic.
    pub fn parse(kind: u16, payload: &[u8]) -> Result<Self, MessageError> {
        Ok(match kind {
            OFFER => {
                let [version, lines] = whole::<[U32; 2]>(payload)?.map(u32::from);
                check("version", version.into(), version == VERSION)?;
                check("number of lines", lines.into(), lines == LINES)?;
                Self::Offer
            }
            ACCEPT => {
                let [segments, bytes] = whole::<[U64; 2]>(payload)?.map(u64::from);
                Self::Accept { segments, bytes }
            }
            SEGMENT => Self::Segment(Segment::parse(payload)?),
            RETIRE => Self::Retire { segment: whole::<U64>(payload)?.get() },
            RING => {
                whole::<[u8; 0]>(payload)?;
                Self::Ring
            }
            LET_GO => Self::LetGo { segment: whole::<U64>(payload)?.get() },
            kind => return Err(MessageError::Kind(kind)),
        })
    }

    /// Its kind and its payload.
    pub fn encode(&self) -> (u16, Vec<u8>) {
        match self {
            Self::Offer => (OFFER, [VERSION, LINES].map(U32::new).as_bytes().to_vec()),
            Self::Accept { segments, bytes } => {
                (ACCEPT, [*segments, *bytes].map(U64::new).as_bytes().to_vec())
            }
            Self::Segment(segment) => (SEGMENT, segment.encode()),
            Self::Retire { segment } => (RETIRE, segment.to_le_bytes().to_vec()),
            Self::Ring => (RING, Vec::new()),
            Self::LetGo { segment } => (LET_GO, segment.to_le_bytes().to_vec()),
        }
    }
}

impl Segment {
    /// How many descriptors come with it.
    pub fn descriptors(&self) -> usize {
        if let Place::Parts { sizes, .. } = &self.place { sizes.len() } else { 1 }
    }

    fn encode(&self) -> Vec<u8> {
        let none = [0; 16];
        let (place, home, block): (u64, _, &[u8]) = match &self.place {
            Place::Device(uuid) => (0, *uuid, &[]),
            Place::Host => (1, none, &[]),
            Place::DevicePool { uuid, block } => (2, *uuid, block),
            Place::Node(node) => (3, u128::from(*node).to_le_bytes(), &[]),
            Place::Parts { uuid, .. } => (4, *uuid, &[]),
        };
        let (segment, generation) = (self.segment.into(), self.generation.into());
        let head = SegmentBytes { segment, generation, bytes: self.bytes.into(), place: place.into(), home };
        let mut bytes = [head.as_bytes(), block].concat();
        if let Place::Parts { sizes, .. } = &self.place {
            bytes.extend(sizes.iter().flat_map(|size| size.to_le_bytes()));
        }
        bytes
    }

    fn parse(payload: &[u8]) -> Result<Self, MessageError> {
        let Ok((head, rest)) = SegmentBytes::ref_from_prefix(payload) else {
            return Err(MessageError::Length { found: payload.len(), expected: size_of::<SegmentBytes>() });
        };
        let (bytes, uuid) = (head.bytes.get(), head.home);
        check("size", bytes, bytes > 0 && bytes <= isize::MAX as u64)?;
        let place = match head.place.get() {
            0 => whole::<[u8; 0]>(rest).map(|_| Place::Device(uuid))?,
            1 if uuid == [0; 16] => whole::<[u8; 0]>(rest).map(|_| Place::Host)?,
            2 => Place::DevicePool { uuid, block: *whole::<[u8; 64]>(rest)? },
            3 => {
                let node = u128::from_le_bytes(uuid);
                let value = u64::try_from(node).unwrap_or(u64::MAX);
                let wrong = |_| MessageError::Value { field: "node", value };
                whole::<[u8; 0]>(rest)?;
                Place::Node(u32::try_from(node).map_err(wrong)?)
            }
            4 => {
                let wrong = MessageError::Length { found: rest.len(), expected: 8 * (rest.len() / 8) };
                let sizes = <[U64]>::ref_from_bytes(rest).map_err(|_| wrong)?;
                let sizes = sizes.iter().map(|size| size.get()).collect::<Vec<_>>();
                let (count, is_sound) = (sizes.len(), !sizes.contains(&0));
                check("number of handles", count as u64, (2..=MOST_HANDLES).contains(&count))?;
                let total = sizes.iter().try_fold(0u64, |sum, size| sum.checked_add(*size));
                check("size", bytes, is_sound && total == Some(bytes))?;
                Place::Parts { uuid, sizes }
            }
            value => return Err(MessageError::Value { field: "place", value }),
        };
        let (segment, generation) = (head.segment.get(), head.generation.get());
        Ok(Self { segment, generation, bytes, place })
    }
}

impl Place {
    /// Whether its exporter has to hear of its end.
    pub(in crate::shared) fn is_in_a_pool(&self) -> bool {
        matches!(self, Self::DevicePool { .. })
    }
}

impl HandOver {
    /// As an entry of the ring.
    pub fn to_entry(self) -> [u64; 7] {
        let Self { sequence, segment, offset, len, fence } = self;
        [sequence, segment, offset, len, fence.line.into(), fence.generation, 0]
    }

    /// What an entry of the ring says, if each number is in range.
    pub fn of_entry(entry: [u64; 7]) -> Result<Self, MessageError> {
        let [sequence, segment, offset, len, line, generation, _] = entry;
        check("length", len, len > 0)?;
        check("offset", offset, offset.checked_add(len).is_some_and(|end| end <= isize::MAX as u64))?;
        Ok(Self { sequence, segment, offset, len, fence: Point::of_words(line, generation, 1)? })
    }
}

impl Release {
    /// As an entry of the ring.
    pub fn to_entry(self) -> [u64; 7] {
        [self.sequence, self.fence.line.into(), self.fence.generation, 0, 0, 0, 0]
    }

    /// What an entry of the ring says, if each number is in range.
    pub fn of_entry(entry: [u64; 7]) -> Result<Self, MessageError> {
        let [sequence, line, generation, ..] = entry;
        Ok(Self { sequence, fence: Point::of_words(line, generation, 0)? })
    }
}

impl Point {
    /// Of a generation from `least` on.
    fn of_words(line: u64, generation: u64, least: u64) -> Result<Self, MessageError> {
        check("generation", generation, (least..=LAST_GENERATION).contains(&generation))?;
        check("line", line, line < LINES.into())?;
        Ok(Self { line: u32::try_from(line).unwrap_or(0), generation })
    }
}

fn whole<T: FromBytes + KnownLayout + Immutable + Unaligned>(bytes: &[u8]) -> Result<&T, MessageError> {
    let wrong = MessageError::Length { found: bytes.len(), expected: size_of::<T>() };
    T::ref_from_bytes(bytes).map_err(|_| wrong)
}

#[cfg(test)]
mod tests;
