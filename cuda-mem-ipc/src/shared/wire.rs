//! What exporter and importer say to each other: the payloads of their messages.

use crate::transport::FIRST_KIND;

/// The memory where fences are, a descriptor of which travels with it, and the exporter's device. Kind 16.
pub const OFFER: u16 = FIRST_KIND;
/// The importer has it. Kind 17.
pub const ACCEPT: u16 = FIRST_KIND + 1;
/// A segment, a descriptor of which travels with it. Kind 18.
pub const SEGMENT: u16 = FIRST_KIND + 2;
/// A buffer and the fence that orders it. Kind 19.
pub const HAND_OVER: u16 = FIRST_KIND + 3;
/// The importer is done with a buffer, behind a fence. Kind 20.
pub const RELEASE: u16 = FIRST_KIND + 4;
/// A segment is used no more. Kind 21.
pub const RETIRE: u16 = FIRST_KIND + 5;

/// There is something in the ring, for an importer that sleeps. Kind 22.
pub const RING: u16 = FIRST_KIND + 6;

/// How many lines of fences each side writes. Those of the exporter come first.
pub const LINES: u32 = 32;

/// How many hand-overs the ring has room for.
pub const RING_ENTRIES: u64 = 128;

/// The slot of 64 bytes where the ring begins, behind both sides' lines.
pub const FIRST_OF_RING: usize = 2 * LINES as usize;

/// How many slots there are: behind the ring's three numbers are its entries.
pub const SLOTS: usize = FIRST_OF_RING + 3 + RING_ENTRIES as usize;

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
    pub const VERSION: u32 = 1;
    /// What is offered here.
    pub const OURS: Self = Self { version: Self::VERSION };
}

/// Memory that buffers are parts of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its number, which the exporter's process gives once.
    pub segment: u64,
    /// A number of the exporter's program, which tells a process from what it was before `exec`.
    pub generation: u64,
    /// Its size.
    pub bytes: u64,
    /// Where it lies.
    pub place: Place,
}

/// Where a segment lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On the device with this UUID.
    Device([u8; 16]),
    /// On the host.
    Host,
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
            Self::Segment(Segment { segment, generation, bytes, place }) => {
                let (place, uuid) = match place {
                    Place::Device(uuid) => (0u64, *uuid),
                    Place::Host => (1, [0; 16]),
                };
                [*segment, *generation, *bytes, place].iter().for_each(|number| put(&number.to_le_bytes()));
                put(&uuid);
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

    fn segment(&mut self) -> Result<Segment, WireError> {
        let (segment, generation, bytes) = (self.number()?, self.number()?, self.number()?);
        let (place, uuid) = (self.number()?, self.take::<16>()?);
        check("size", bytes, bytes > 0 && bytes <= isize::MAX as u64)?;
        let place = match place {
            0 => Place::Device(uuid),
            1 if uuid == [0; 16] => Place::Host,
            value => return Err(WireError::Value { field: "place", value }),
        };
        Ok(Segment { segment, generation, bytes, place })
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
