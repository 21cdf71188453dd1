//! What exporter and importer say to each other: the payloads of their messages.

mod place;

use crate::transport::FIRST_KIND;

pub use place::{MOST_HANDLES, Parts, Place, Segment};

/// The memory where fences are, and what the importer has those keep that it hands memory on to: two descriptors. Kind 16.
pub const OFFER: u16 = FIRST_KIND;
/// The importer has it. Kind 17.
pub const ACCEPT: u16 = FIRST_KIND + 1;
/// A segment, the descriptors of which travel with it. Kind 18.
pub const SEGMENT: u16 = FIRST_KIND + 2;
/// A buffer and the fence that orders it. Kind 19.
pub const HAND_OVER: u16 = FIRST_KIND + 3;
/// The importer is done with a buffer, behind a fence. Kind 20.
pub const RELEASE: u16 = FIRST_KIND + 4;
/// A segment is used no more. Kind 21.
pub const RETIRE: u16 = FIRST_KIND + 5;

/// There is something in the ring, of hand-overs or of releases, for a reader that sleeps. Kind 22.
pub const RING: u16 = FIRST_KIND + 6;

/// The importer has unmapped a segment that its exporter waits for, a block of a pool. Kind 23.
pub const LET_GO: u16 = FIRST_KIND + 7;

/// What the receiver keeps open as long as it may use what is handed over from here on: a descriptor, which travels with it. Kind 24.
pub const KEEP: u16 = FIRST_KIND + 8;

/// How many lines of fences each side writes. Those of the exporter come first.
pub const LINES: u32 = 32;

/// How many hand-overs the ring has room for, and as many releases the other one.
pub const RING_ENTRIES: u64 = 128;

/// The slot of 64 bytes where the ring begins, behind both sides' lines.
pub const FIRST_OF_RING: usize = 2 * LINES as usize;

/// The slot where the ring of releases begins: behind three slots of a ring's numbers are its entries.
pub const FIRST_OF_RELEASES: usize = FIRST_OF_RING + 3 + RING_ENTRIES as usize;

/// The slot whose first number is not 0 once the importer has handed on what it was handed.
pub const HANDED_ON: usize = FIRST_OF_RELEASES + 3 + RING_ENTRIES as usize;

/// How many slots there are.
pub const SLOTS: usize = HANDED_ON + 1;

/// A message of a shared pool, as its bytes say. Nothing of it is believed yet but that its numbers are in range.
///
/// All integers are little-endian; `docs/ipc.md` has the tables.
///
/// ```
/// use cuda_mem_ipc::shared::wire::{Fence, HandOver, Message};
///
/// let fence = Fence::Word { line: 3, generation: 17 };
/// let message = Message::HandOver(HandOver { sequence: 5, segment: 2, offset: 4096, len: 1000, fence });
/// let (kind, bytes) = message.encode();
/// assert_eq!(Message::parse(kind, &bytes), Ok(message));
/// assert!(Message::parse(kind, &bytes[1..]).is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "it is on the stack for as long as it is read")]
pub enum Message {
    /// [`OFFER`].
    Offer(Offer),
    /// [`ACCEPT`].
    Accept,
    /// [`SEGMENT`].
    Segment(Segment),
    /// [`HAND_OVER`].
    HandOver(HandOver),
    /// [`RELEASE`].
    Release(Release),
    /// [`RETIRE`].
    Retire {
        /// The segment.
        segment: u64,
    },
    /// [`RING`].
    Ring,
    /// [`LET_GO`].
    LetGo {
        /// The segment.
        segment: u64,
    },
    /// [`KEEP`].
    Keep,
}

/// The first message of an exporter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offer {
    /// The version of this protocol: [`Offer::VERSION`].
    pub version: u32,
}

impl Offer {
    /// The version that is spoken here.
    pub const VERSION: u32 = 4;
    /// What is offered here.
    pub const OURS: Self = Self { version: Self::VERSION };
}

/// A buffer that is handed over.
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
    /// What its first use comes after.
    pub fence: Fence,
}

/// What a receiver waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// The generation of a line.
    Word {
        /// Below [`LINES`].
        line: u32,
        /// From 1 on.
        generation: u64,
    },
    /// The last record of an interprocess event, by its handle.
    Event([u8; 64]),
}

/// A buffer that its receiver is done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// The buffer's number.
    pub sequence: u64,
    /// A line of the importer, below [`LINES`].
    pub line: u32,
    /// Its generation behind the last use; 0 if there was none.
    pub generation: u64,
}

/// Why a payload is none of a shared pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// No such kind.
    #[error("kind {0} is none of a shared pool's")]
    Kind(u16),
    /// Another length than the kind has.
    #[error("{found} bytes, the message has {expected}")]
    Length {
        /// How many came.
        found: usize,
        /// How many it takes.
        expected: usize,
    },
    /// A number that its field does not take.
    #[error("the {field} is {value}")]
    Value {
        /// The field.
        field: &'static str,
        /// What came.
        value: u64,
    },
}

impl Message {
    /// Reads a message of a kind. No unsafe code, no allocation, no panic.
    ///
    /// # Errors
    ///
    /// [`WireError`] for whatever is not exactly a message.
    pub fn parse(kind: u16, payload: &[u8]) -> Result<Self, WireError> {
        let mut fields = Fields { rest: payload, len: payload.len() };
        let message = match kind {
            OFFER => Self::Offer(fields.offer()?),
            ACCEPT => Self::Accept,
            SEGMENT => Self::Segment(fields.segment()?),
            HAND_OVER => Self::HandOver(fields.hand_over()?),
            RELEASE => Self::Release(fields.release()?),
            RETIRE => Self::Retire { segment: fields.number()? },
            RING => Self::Ring,
            LET_GO => Self::LetGo { segment: fields.number()? },
            KEEP => Self::Keep,
            kind => return Err(WireError::Kind(kind)),
        };
        fields.end()?;
        Ok(message)
    }

    /// Its kind and its payload.
    #[must_use]
    pub fn encode(&self) -> (u16, Vec<u8>) {
        let mut bytes = Vec::with_capacity(104);
        let mut put = |field: &[u8]| bytes.extend_from_slice(field);
        let kind = match self {
            Self::Offer(offer) => {
                put(&offer.version.to_le_bytes());
                put(&LINES.to_le_bytes());
                OFFER
            }
            Self::Accept => ACCEPT,
            Self::Segment(segment) => {
                segment.put(put);
                SEGMENT
            }
            Self::HandOver(HandOver { sequence, segment, offset, len, fence }) => {
                [*sequence, *segment, *offset, *len].iter().for_each(|number| put(&number.to_le_bytes()));
                match fence {
                    Fence::Word { line, generation } => {
                        put(&0u32.to_le_bytes());
                        put(&line.to_le_bytes());
                        put(&generation.to_le_bytes());
                    }
                    Fence::Event(handle) => {
                        put(&1u64.to_le_bytes());
                        put(handle);
                    }
                }
                HAND_OVER
            }
            Self::Release(Release { sequence, line, generation }) => {
                [*sequence, u64::from(*line), *generation]
                    .iter()
                    .for_each(|number| put(&number.to_le_bytes()));
                RELEASE
            }
            Self::Retire { segment } => {
                put(&segment.to_le_bytes());
                RETIRE
            }
            Self::Ring => RING,
            Self::LetGo { segment } => {
                put(&segment.to_le_bytes());
                LET_GO
            }
            Self::Keep => KEEP,
        };
        (kind, bytes)
    }
}

impl HandOver {
    /// As an entry of the ring: the words of its payload, which an event's handle is too long for, and how many frames have to
    /// be heard before it.
    pub(super) fn to_entry(self, messages: u64) -> Option<[u64; 7]> {
        let Fence::Word { line, generation } = self.fence else { return None };
        let line = u64::from(line) << 32;
        Some([self.sequence, self.segment, self.offset, self.len, line, generation, messages])
    }

    /// What an entry of the ring says, which is checked as a payload is.
    pub(super) fn of_entry(entry: [u64; 7]) -> Result<(Self, u64), WireError> {
        let [payload @ .., messages] = entry;
        let mut bytes = [0; 48];
        for (field, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(payload) {
            *field = word.to_le_bytes();
        }
        let mut fields = Fields { rest: &bytes, len: bytes.len() };
        let said = fields.hand_over()?;
        fields.end()?;
        Ok((said, messages))
    }
}

impl Release {
    /// As an entry of the ring: the words of its payload, and zeroes.
    pub(super) fn to_entry(self) -> [u64; 7] {
        [self.sequence, self.line.into(), self.generation, 0, 0, 0, 0]
    }

    /// What an entry of the ring says, which is checked as a payload is.
    pub(super) fn of_entry(entry: [u64; 7]) -> Result<Self, WireError> {
        let [payload @ .., _, _, _, _] = entry;
        let mut bytes = [0; 24];
        for (field, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(payload) {
            *field = word.to_le_bytes();
        }
        let mut fields = Fields { rest: &bytes, len: bytes.len() };
        fields.release()
    }
}

/// What is left of a payload.
struct Fields<'p> {
    rest: &'p [u8],
    len: usize,
}

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let Some((field, rest)) = self.rest.split_first_chunk::<N>() else {
            let expected = self.len.saturating_add(N.saturating_sub(self.rest.len()));
            return Err(WireError::Length { found: self.len, expected });
        };
        self.rest = rest;
        Ok(*field)
    }

    fn number(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn small(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn end(&self) -> Result<(), WireError> {
        let expected = self.len.saturating_sub(self.rest.len());
        if self.rest.is_empty() { Ok(()) } else { Err(WireError::Length { found: self.len, expected }) }
    }

    fn offer(&mut self) -> Result<Offer, WireError> {
        let (version, lines) = (self.small()?, self.small()?);
        check("version", version.into(), version == Offer::VERSION)?;
        check("number of lines", lines.into(), lines == LINES)?;
        Ok(Offer { version })
    }

    fn hand_over(&mut self) -> Result<HandOver, WireError> {
        let (sequence, segment, offset, len) =
            (self.number()?, self.number()?, self.number()?, self.number()?);
        check("length", len, len > 0)?;
        check("offset", offset, offset.checked_add(len).is_some_and(|end| end <= isize::MAX as u64))?;
        let (kind, line) = (self.small()?, self.small()?);
        let fence = match kind {
            0 => {
                let generation = self.number()?;
                check("line", line.into(), line < LINES)?;
                check("generation", generation, generation > 0 && generation <= LAST)?;
                Fence::Word { line, generation }
            }
            1 => {
                check("line", line.into(), line == 0)?;
                Fence::Event(self.take()?)
            }
            value => return Err(WireError::Value { field: "kind of fence", value: value.into() }),
        };
        Ok(HandOver { sequence, segment, offset, len, fence })
    }

    fn release(&mut self) -> Result<Release, WireError> {
        let (sequence, line, generation) = (self.number()?, self.number()?, self.number()?);
        check("line", line, line < u64::from(LINES))?;
        check("generation", generation, generation <= LAST)?;
        // Below 32.
        let line = u32::try_from(line).unwrap_or_default();
        Ok(Release { sequence, line, generation })
    }
}

/// The last generation that a line has: above it is poison.
const LAST: u64 = 1 << 62;

fn check(field: &'static str, value: u64, is_right: bool) -> Result<(), WireError> {
    if is_right { Ok(()) } else { Err(WireError::Value { field, value }) }
}

#[cfg(test)]
mod tests;
