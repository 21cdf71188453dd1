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

use crate::error::FrameError;

/// The first bytes of each frame.
pub const MAGIC: [u8; 4] = *b"CMIP";

/// The least version of the protocol that is spoken here.
pub const MIN_VERSION: u16 = 1;

/// The highest version of the protocol that is spoken here.
pub const MAX_VERSION: u16 = 1;

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
    pub version: u16,
    pub kind: u16,
    pub payload: &'a [u8],
    pub descriptors: u16,
}

impl<'a> Frame<'a> {
    /// A message without descriptors, of the highest version.
    pub fn new(kind: u16, payload: &'a [u8]) -> Result<Self, FrameError> {
        if payload.len() > MAX_PAYLOAD {
            return Err(FrameError::Payload { bytes: payload.len() });
        }
        Ok(Self { version: MAX_VERSION, kind, payload, descriptors: 0 })
    }

    /// The same with this many descriptors, which travel beside it.
    pub fn with_descriptors(self, count: usize) -> Result<Self, FrameError> {
        let descriptors = u16::try_from(count).ok().filter(|_| count <= MAX_DESCRIPTORS);
        Ok(Self { descriptors: descriptors.ok_or(FrameError::Descriptors { count })?, ..self })
    }

    /// The frame that the bytes are, as a whole, or what is wrong first. It allocates nothing and believes nothing.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        if bytes.len() > MAX_FRAME {
            return Err(FrameError::TooLong { bytes: bytes.len() });
        }
        let Ok((header, payload)) = Header::ref_from_prefix(bytes) else {
            return Err(FrameError::TooShort { bytes: bytes.len() });
        };
        if header.magic != MAGIC {
            return Err(FrameError::Magic { found: header.magic });
        }
        let version = header.version.get();
        if !(MIN_VERSION..=MAX_VERSION).contains(&version) {
            return Err(FrameError::Version { found: version });
        }
        if header.zero.get() != 0 {
            return Err(FrameError::NotZero { found: header.zero.get() });
        }
        let declared = usize::try_from(header.length.get()).unwrap_or(usize::MAX);
        if declared > MAX_PAYLOAD {
            return Err(FrameError::Payload { bytes: declared });
        }
        if declared != payload.len() {
            return Err(FrameError::Length { declared: HEADER + declared, bytes: bytes.len() });
        }
        Self { version, kind: header.kind.get(), payload, descriptors: 0 }
            .with_descriptors(header.descriptors.get().into())
    }

    /// Writes the frame in place of what is in `bytes`.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let header = Header {
            magic: MAGIC,
            version: self.version.into(),
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
