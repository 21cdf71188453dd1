//! What exporter and importer say to each other: the payloads of their messages.

mod bytes;
mod place;

use crate::transport::FIRST_KIND;

pub use place::{MOST_HANDLES, Parts, Place, Segment};

/// The memory where fences are, and what the importer has those keep that it hands memory on to: two descriptors. Kind 16.
pub const OFFER: u16 = FIRST_KIND;
/// The importer has it, and sends what it hears by of segments ahead of their first buffer: a descriptor. Kind 17.
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

/// What was to be kept need not be any more. It comes where segments are announced ahead. Kind 25.
pub const FORGET: u16 = FIRST_KIND + 9;

/// How many lines of fences each side writes. Those of the exporter come first.
pub const LINES: u32 = 32;

/// The last generation that a line has: above it is poison.
const LAST: u64 = 1 << 62;

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
    Accept(Accept),
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
    /// [`FORGET`].
    Forget {
        /// How many [`KEEP`] messages came before that which it came with.
        keepsake: u64,
    },
}

/// The first message of an exporter. [`Message`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offer {
    /// The version of this protocol: [`Offer::VERSION`].
    pub version: u32,
}

impl Offer {
    /// The version that is spoken here.
    pub const VERSION: u32 = 6;
    /// What is offered here.
    pub const OURS: Self = Self { version: Self::VERSION };
}

/// The answer of an importer: how much it imports ahead. Nothing of it is promised. [`Message`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accept {
    /// So many segments that no buffer of came yet.
    pub segments: u64,
    /// So many bytes of them.
    pub bytes: u64,
}

/// A buffer that is handed over. [`Message`] has an example.
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

/// What a receiver waits for. [`Message`] has an example.
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

/// A buffer that its receiver is done with. [`Message`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// The buffer's number.
    pub sequence: u64,
    /// A line of the importer, below [`LINES`].
    pub line: u32,
    /// Its generation behind the last use; 0 if there was none.
    pub generation: u64,
}

/// Why a payload is none of a shared pool. [`Message`] has an example.
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

#[cfg(test)]
mod tests;
