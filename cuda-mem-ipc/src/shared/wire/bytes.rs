//! The messages as bytes: how they are written, and read by whoever believes nothing of them.

use super::{
    ACCEPT, Accept, FORGET, Fence, HAND_OVER, HandOver, KEEP, LAST, LET_GO, LINES, Message, OFFER, Offer,
    RELEASE, RETIRE, RING, Release, SEGMENT, WireError,
};

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
            ACCEPT => Self::Accept(Accept { segments: fields.number()?, bytes: fields.number()? }),
            SEGMENT => Self::Segment(fields.segment()?),
            HAND_OVER => Self::HandOver(fields.hand_over()?),
            RELEASE => Self::Release(fields.release()?),
            RETIRE => Self::Retire { segment: fields.number()? },
            RING => Self::Ring,
            LET_GO => Self::LetGo { segment: fields.number()? },
            KEEP => Self::Keep,
            FORGET => Self::Forget { keepsake: fields.number()? },
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
            Self::Accept(Accept { segments, bytes }) => {
                put(&segments.to_le_bytes());
                put(&bytes.to_le_bytes());
                ACCEPT
            }
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
            Self::Forget { keepsake } => {
                put(&keepsake.to_le_bytes());
                FORGET
            }
        };
        (kind, bytes)
    }
}

impl HandOver {
    /// As an entry of the ring: the words of its payload, which an event's handle is too long for, and how many frames have to
    /// be heard before it.
    pub(in crate::shared) fn to_entry(self, messages: u64) -> Option<[u64; 7]> {
        let Fence::Word { line, generation } = self.fence else { return None };
        let line = u64::from(line) << 32;
        Some([self.sequence, self.segment, self.offset, self.len, line, generation, messages])
    }

    /// What an entry of the ring says, which is checked as a payload is.
    pub(in crate::shared) fn of_entry(entry: [u64; 7]) -> Result<(Self, u64), WireError> {
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
    pub(in crate::shared) fn to_entry(self) -> [u64; 7] {
        [self.sequence, self.line.into(), self.generation, 0, 0, 0, 0]
    }

    /// What an entry of the ring says, which is checked as a payload is.
    pub(in crate::shared) fn of_entry(entry: [u64; 7]) -> Result<Self, WireError> {
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
pub(super) struct Fields<'p> {
    rest: &'p [u8],
    len: usize,
}

impl Fields<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let Some((field, rest)) = self.rest.split_first_chunk::<N>() else {
            let expected = self.len.saturating_add(N.saturating_sub(self.rest.len()));
            return Err(WireError::Length { found: self.len, expected });
        };
        self.rest = rest;
        Ok(*field)
    }

    pub(super) fn number(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    pub(super) fn small(&mut self) -> Result<u32, WireError> {
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

pub(super) fn check(field: &'static str, value: u64, is_right: bool) -> Result<(), WireError> {
    if is_right { Ok(()) } else { Err(WireError::Value { field, value }) }
}
