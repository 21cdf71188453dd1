//! Messages as bytes: a header of fixed size and a payload.
//!
//! All integers are little-endian.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | magic, `CMIP` |
//! | 4 | 2 | version of the protocol |
//! | 6 | 2 | kind |
//! | 8 | 4 | length of the payload |
//! | 12 | 2 | how many descriptors belong to the message |
//! | 14 | 2 | zero |
//! | 16 | length | payload |
//!
//! The system neither loses nor reorders packets of a local socket, so there is no sequence number and no checksum.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{MessageError, check};

/// The first bytes of each frame.
pub const MAGIC: [u8; 4] = *b"CMIP";

/// The version of the protocol that is spoken here.
pub const VERSION: u16 = 1;

/// The longest payload, in bytes.
pub const MAX_PAYLOAD: usize = 16 * 1024;

/// The most descriptors of a message: the system's own limit, `SCM_MAX_FD`.
pub const MAX_DESCRIPTORS: usize = 253;

/// The length of a header, in bytes.
pub const HEADER: usize = size_of::<Header>();

/// The longest frame, in bytes.
pub const MAX_FRAME: usize = HEADER + MAX_PAYLOAD;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 4],
    version: U16,
    kind: U16,
    length: U32,
    descriptors: U16,
    zero: U16,
}

/// One message, borrowed from its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "what is hidden is named by the table above")]
pub struct Frame<'a> {
    pub kind: u16,
    pub payload: &'a [u8],
    pub descriptors: u16,
}

impl<'a> Frame<'a> {
    /// The frame that the bytes are, as a whole, or what is wrong first. It allocates nothing and believes nothing.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MessageError> {
        check("length", bytes.len() as u64, bytes.len() <= MAX_FRAME)?;
        let Ok((header, payload)) = Header::ref_from_prefix(bytes) else {
            return Err(MessageError::Length { found: bytes.len(), expected: HEADER });
        };
        check("magic", u32::from_le_bytes(header.magic).into(), header.magic == MAGIC)?;
        let version = header.version.get();
        check("version", version.into(), version == VERSION)?;
        check("last field", header.zero.get().into(), header.zero.get() == 0)?;
        let declared = usize::try_from(header.length.get()).unwrap_or(usize::MAX);
        if declared != payload.len() {
            return Err(MessageError::Length {
                found: bytes.len(),
                expected: HEADER.saturating_add(declared),
            });
        }
        let descriptors = header.descriptors.get();
        check("number of descriptors", descriptors.into(), usize::from(descriptors) <= MAX_DESCRIPTORS)?;
        Ok(Self { kind: header.kind.get(), payload, descriptors })
    }

    /// Writes the frame in place of what is in `bytes`.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let header = Header {
            magic: MAGIC,
            version: VERSION.into(),
            kind: self.kind.into(),
            // At most MAX_PAYLOAD.
            length: u32::try_from(self.payload.len()).unwrap_or(u32::MAX).into(),
            descriptors: self.descriptors.into(),
            zero: U16::ZERO,
        };
        bytes.clear();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(self.payload);
    }
}

#[cfg(test)]
mod tests;
