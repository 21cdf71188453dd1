//! Messages as bytes: a header of fixed size, a payload, the numbers of descriptors.
//!
//! All integers are little-endian.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | magic, `CMIP` |
//! | 4 | 2 | version of the protocol |
//! | 6 | 2 | kind |
//! | 8 | 8 | sequence number, of its direction |
//! | 16 | 4 | length of the payload |
//! | 20 | 2 | how many descriptors belong to the message |
//! | 22 | 2 | flags: 1, the descriptors are named by number; all others zero |
//! | 24 | 4 | CRC-32 (IEEE 802.3) of bytes 0 to 23 and of all that follows the header |
//! | 28 | length | payload |
//! | | 4 each | with flag 1: the descriptors' numbers in the sender |

use crc32fast::Hasher;

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
pub const HEADER: usize = 28;

/// The longest frame, in bytes.
pub const MAX_FRAME: usize = HEADER + MAX_PAYLOAD + 4 * MAX_DESCRIPTORS;

const CHECKSUM_AT: usize = 24;
const BY_NUMBER: u16 = 1;

/// One message, borrowed from its bytes.
///
/// ```
/// use cuda_mem_ipc::transport::{Frame, FrameError};
///
/// let mut bytes = Vec::new();
/// Frame::new(7, 0, b"hello")?.encode(&mut bytes);
/// let frame = Frame::parse(&bytes)?;
/// assert_eq!((frame.kind(), frame.sequence(), frame.payload()), (7, 0, &b"hello"[..]));
///
/// bytes[30] ^= 1;
/// assert!(matches!(Frame::parse(&bytes), Err(FrameError::Checksum { .. })));
/// # Ok::<(), FrameError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    version: u16,
    kind: u16,
    sequence: u64,
    payload: &'a [u8],
    descriptors: u16,
    numbers: Option<&'a [u8]>,
}

/// Why bytes are no frame. [`Frame`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Fewer bytes than a header.
    #[error("{bytes} bytes are fewer than the {HEADER} of a header")]
    TooShort {
        /// What came.
        bytes: usize,
    },
    /// More bytes than a frame has.
    #[error("{bytes} bytes are more than the {MAX_FRAME} of the longest frame")]
    TooLong {
        /// What came.
        bytes: usize,
    },
    /// It does not begin as a frame does.
    #[error("it begins with {found:02x?}, not with {MAGIC:02x?}")]
    Magic {
        /// What came.
        found: [u8; 4],
    },
    /// Of a version that is not spoken.
    #[error("it is of version {found}; accepted are {MIN_VERSION} to {MAX_VERSION}, as agreed")]
    Version {
        /// What came.
        found: u16,
    },
    /// Flags that the version does not have.
    #[error("it has flags {found:#06x}; accepted are 0 and {BY_NUMBER}")]
    Flags {
        /// What came.
        found: u16,
    },
    /// A payload that is too long.
    #[error("its payload is {bytes} bytes; at most {MAX_PAYLOAD} are accepted")]
    Payload {
        /// What it declares.
        bytes: usize,
    },
    /// Too many descriptors.
    #[error("it has {count} descriptors; at most {MAX_DESCRIPTORS} are accepted")]
    Descriptors {
        /// What it declares.
        count: usize,
    },
    /// The parts do not add up to the whole.
    #[error("it declares {declared} bytes and has {bytes}")]
    Length {
        /// What its parts add up to.
        declared: usize,
        /// What came.
        bytes: usize,
    },
    /// Bytes were changed.
    #[error("its checksum is {found:#010x}, of its bytes it would be {computed:#010x}")]
    Checksum {
        /// What it declares.
        found: u32,
        /// What its bytes give.
        computed: u32,
    },
    /// A number that no descriptor has.
    #[error("it names a descriptor {number}; numbers of descriptors are from 0 on")]
    Number {
        /// What came.
        number: i32,
    },
}

impl<'a> Frame<'a> {
    /// A message without descriptors, of the highest version.
    ///
    /// # Errors
    ///
    /// [`FrameError::Payload`] when it is too long.
    pub fn new(kind: u16, sequence: u64, payload: &'a [u8]) -> Result<Self, FrameError> {
        if payload.len() > MAX_PAYLOAD {
            return Err(FrameError::Payload { bytes: payload.len() });
        }
        Ok(Self { version: MAX_VERSION, kind, sequence, payload, descriptors: 0, numbers: None })
    }

    /// The same with this many descriptors, which travel beside it.
    ///
    /// # Errors
    ///
    /// [`FrameError::Descriptors`] when there are too many.
    pub fn with_descriptors(self, count: usize) -> Result<Self, FrameError> {
        let descriptors = u16::try_from(count).ok().filter(|_| count <= MAX_DESCRIPTORS);
        let descriptors = descriptors.ok_or(FrameError::Descriptors { count })?;
        Ok(Self { descriptors, numbers: None, ..self })
    }

    /// The same with descriptors by their numbers in the sender, four little-endian bytes each.
    pub(super) fn with_numbers(self, numbers: &'a [u8]) -> Result<Self, FrameError> {
        Ok(Self { numbers: Some(numbers), ..self.with_descriptors(numbers.len() / 4)? })
    }

    /// The same, of another version.
    pub(super) fn with_version(self, version: u16) -> Self {
        Self { version, ..self }
    }

    /// The same, with another number.
    pub(super) fn with_sequence(self, sequence: u64) -> Self {
        Self { sequence, ..self }
    }

    /// The frame that the bytes are, as a whole. It allocates nothing and believes nothing.
    ///
    /// # Errors
    ///
    /// [`FrameError`] says what is wrong first.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        if bytes.len() > MAX_FRAME {
            return Err(FrameError::TooLong { bytes: bytes.len() });
        }
        let Some((header, body)) = bytes.split_first_chunk::<HEADER>() else {
            return Err(FrameError::TooShort { bytes: bytes.len() });
        };
        let two = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let four =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        if header[..4] != MAGIC {
            return Err(FrameError::Magic { found: [header[0], header[1], header[2], header[3]] });
        }
        let version = two(4);
        if !(MIN_VERSION..=MAX_VERSION).contains(&version) {
            return Err(FrameError::Version { found: version });
        }
        let (descriptors, flags) = (two(20), two(22));
        if flags & !BY_NUMBER != 0 {
            return Err(FrameError::Flags { found: flags });
        }
        let length = usize::try_from(four(16)).unwrap_or(usize::MAX);
        if length > MAX_PAYLOAD {
            return Err(FrameError::Payload { bytes: length });
        }
        let count = usize::from(descriptors);
        if count > MAX_DESCRIPTORS {
            return Err(FrameError::Descriptors { count });
        }
        let by_number = flags == BY_NUMBER;
        let declared = length + if by_number { 4 * count } else { 0 };
        let Some((payload, numbers)) = body.split_at_checked(length).filter(|_| declared == body.len())
        else {
            return Err(FrameError::Length { declared: HEADER + declared, bytes: bytes.len() });
        };
        let (found, computed) = (four(CHECKSUM_AT), checksum(&header[..CHECKSUM_AT], &[body]));
        if found != computed {
            return Err(FrameError::Checksum { found, computed });
        }
        let sequence = u64::from(four(8)) | u64::from(four(12)) << 32;
        let numbers = by_number.then_some(numbers);
        let frame = Self { version, kind: two(6), sequence, payload, descriptors, numbers };
        match frame.numbers().find(|&number| number < 0) {
            Some(number) => Err(FrameError::Number { number }),
            None => Ok(frame),
        }
    }

    /// Writes the frame in place of what is in `bytes`.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let numbers = self.numbers.unwrap_or_default();
        let length = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        bytes.clear();
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes.extend_from_slice(&self.kind.to_le_bytes());
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&self.descriptors.to_le_bytes());
        bytes.extend_from_slice(&u16::from(self.is_by_number()).to_le_bytes());
        let sum = checksum(bytes, &[self.payload, numbers]);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes.extend_from_slice(self.payload);
        bytes.extend_from_slice(numbers);
    }

    /// The version of the protocol.
    #[must_use]
    pub fn version(&self) -> u16 {
        self.version
    }

    /// What the message is about; the users of the transport say what a kind means.
    #[must_use]
    pub fn kind(&self) -> u16 {
        self.kind
    }

    /// The message's number, counted from 0 in each direction.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The payload.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// How many descriptors belong to the message.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        usize::from(self.descriptors)
    }

    /// Whether the descriptors are named by number, and do not travel with the message.
    #[must_use]
    pub fn is_by_number(&self) -> bool {
        self.numbers.is_some()
    }

    /// The descriptors' numbers in the sender, if it names them.
    pub fn numbers(&self) -> impl Iterator<Item = i32> + use<'a> {
        let (numbers, _) = self.numbers.unwrap_or_default().as_chunks::<4>();
        numbers.iter().map(|&number| i32::from_le_bytes(number))
    }
}

/// Of all but the checksum itself.
fn checksum(start: &[u8], parts: &[&[u8]]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(start);
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

#[cfg(test)]
mod tests;
