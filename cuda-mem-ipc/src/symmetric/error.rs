//! Errors: which rank, what was asked for, what is accepted.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core as core;

/// The result of whatever can fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call about symmetric memory failed.
///
/// ```
/// use cuda_mem_ipc::symmetric::{Error, NativeBackend, SymmetricBackend};
///
/// let unknown = NativeBackend::new().find(0x1000);
/// assert!(matches!(unknown, Err(Error::UnknownAddress { address: 0x1000, .. })));
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant names its fields")]
pub enum Error {
    /// The driver, or the layer that calls it.
    #[error(transparent)]
    Core(#[from] core::Error),
    /// A socket of the group cannot be made.
    #[error("joining group {group:?}: {source}")]
    Join { group: String, source: crate::Error },
    /// A rank could not be talked to while the group came together.
    #[error("rank {rank}: {source}")]
    Transport { rank: usize, source: crate::Error },
    /// Ranks did not come in time.
    #[error("ranks {ranks:?} did not {what} within {} ms", waited.as_millis())]
    Missing { ranks: Vec<usize>, what: &'static str, waited: Duration },
    /// A rank ended, went or was too late. The group is of no use any more, on any rank: make a new one.
    #[error("group {group:?} is broken: rank {rank} {why}; do not use results of work that waited for it")]
    Broken { group: String, rank: usize, why: Why },
    /// The group [sleeps](super::Group::sleep).
    #[error("group {group:?} sleeps: wake it on all ranks first")]
    Asleep { group: String },
    /// A rank has left the group in good order, and nothing more can be had of it.
    #[error("rank {rank} has left the group")]
    Left { rank: usize },
    /// Ranks have allocated in different order.
    #[error("allocation {sequence} has {theirs} bytes on rank {rank}, {ours} here: allocate in one order")]
    OrderDiffers { rank: usize, sequence: u64, ours: u64, theirs: u64 },
    /// A rank has allocated so often since that what it said of this allocation is not kept any more.
    #[error("rank {rank} is over {kept} allocations ahead of allocation {sequence}: call rendezvous earlier")]
    Overtaken { rank: usize, sequence: u64, kept: usize },
    /// What a rank says of an allocation or a segment cannot be.
    #[error("rank {rank} says that {what} is {value}; accepted are {} to {}", accepted.start(), accepted.end())]
    Invalid { rank: usize, what: &'static str, value: u64, accepted: RangeInclusive<u64> },
    /// A rank's memory is on a device that this process does not see.
    #[error("the device {uuid:02x?} of rank {rank} is not visible here (CUDA_VISIBLE_DEVICES)")]
    DeviceNotVisible { rank: usize, uuid: [u8; 16] },
    /// Two processes say that they are the same rank, or one says a rank that there is not.
    #[error("a process joins as rank {rank} of {world_size}, which is taken or does not exist")]
    RankTaken { rank: usize, world_size: usize },
    /// A rank of another group, or with another idea of this one.
    #[error(
        "rank {rank} is of group {theirs:?} with {their_size} ranks; this is group {ours:?} with {our_size}"
    )]
    OtherGroup { rank: usize, theirs: String, their_size: u64, ours: String, our_size: usize },
    /// A number of a rank, or of ranks, that cannot be.
    #[error("{what} is {value}; accepted are {} to {}", accepted.start(), accepted.end())]
    NotAccepted { what: &'static str, value: usize, accepted: RangeInclusive<usize> },
    /// Beyond the end of a buffer.
    #[error("bytes {start}..{end} of the buffer of rank {rank} were asked for; it has {bytes}")]
    BeyondBuffer { rank: usize, start: usize, end: usize, bytes: usize },
    /// The address is in no allocation of the backend.
    #[error("{address:#x} is in no symmetric allocation of {backend}")]
    UnknownAddress { address: u64, backend: &'static str },
    /// The memory was freed, with its group or by its address, which another allocation has now.
    #[error("the memory at {address:#x} was freed; the address is another allocation's now")]
    Freed { address: u64 },
    /// No group of this name was added.
    #[error("no group is called {name:?}; there are {known:?}")]
    UnknownGroup { name: String, known: Vec<String> },
    /// A group of this name is there.
    #[error("there is a group {name:?} already")]
    GroupExists { name: String },
    /// A group has no more of something that is made when it is short of memory.
    #[error(
        "group {group:?} has {most} {what} of this rank, which is all that it may: make larger ones (segment_bytes, segment_allocations)"
    )]
    GroupFull { group: String, what: &'static str, most: u64 },
    /// The allocation belongs to another group.
    #[error("the memory was allocated for group {allocated:?}, and not for {asked:?}")]
    WrongGroup { allocated: String, asked: String },
    /// The group is on another device.
    #[error("group {group:?} is on device {accepted}, and not on device {device}")]
    WrongDevice { group: String, device: i32, accepted: i32 },
    /// The backend allocates for a group only.
    #[error("{backend} allocates for a group only: pass its name")]
    GroupNeeded { backend: String },
    /// The backend allocates for all of its ranks and knows no groups.
    #[error("{backend} allocates for all of its ranks: group {group:?} was passed, accepted is none")]
    GroupRefused { backend: String, group: String },
    /// A library, or a function of it, is not there, or not in this version.
    #[error("{backend} is not available: {source}")]
    NotAvailable { backend: &'static str, source: Arc<dyn std::error::Error + Send + Sync> },
    /// The backend cannot do that, in whatever version.
    #[error("{backend} has no {what}")]
    NotSupported { backend: &'static str, what: &'static str },
    /// A library's function failed.
    #[error("{backend}: {call} gave {code} {text}")]
    Engine { backend: &'static str, call: &'static str, code: i32, text: String },
    /// A call of all ranks worked here and failed on another one: it was undone here.
    #[error("{backend}: {call} failed on rank {rank}, and was undone on all ranks")]
    FailedElsewhere { backend: &'static str, call: &'static str, rank: usize },
    /// A call of all ranks failed on some and left something on others, which takes all to undo. The backend is of no use on any rank.
    #[error("{backend}: {call} failed on rank {rank} and not on all ranks: make a new backend")]
    Uneven { backend: &'static str, call: &'static str, rank: usize },
    /// Ranks are about to make different calls, none of which was made.
    #[error("rank {rank} is at {theirs}; this rank is at {ours}: all must make the same calls in order")]
    Disagrees { rank: usize, ours: String, theirs: String },
    /// A rank sent bytes in an exchange that are no message expected there.
    #[error("rank {rank} sent bytes in an exchange that are no message of {backend}")]
    NoMessage { rank: usize, backend: &'static str },
    /// The process has a backend over the library, of which there is one instance.
    #[error("this process has a backend over {backend} already; close it first")]
    EngineInUse { backend: &'static str },
    /// Other code of the process initialised the library, with other ranks.
    #[error(
        "{backend} is initialised in this process as rank {found} of {found_size}; this is rank {rank} of {world_size}"
    )]
    OtherInstance { backend: &'static str, found: i32, found_size: i32, rank: usize, world_size: usize },
    /// A rank has memory that is not freed, or still used.
    #[error("rank {rank} has {allocations} allocations in use: free them, and drop what rendezvous gave")]
    StillUsed { rank: usize, allocations: u64 },
    /// The backend was closed.
    #[error("{backend} was closed")]
    EngineClosed { backend: &'static str },
    /// No load or store of this rank's device reaches the memory.
    #[error("the memory of rank {rank} cannot be reached from this rank's device by an address")]
    NotReachable { rank: usize },
}

impl Error {
    /// Refuses a number that is not accepted.
    pub(super) fn check(what: &'static str, value: usize, accepted: RangeInclusive<usize>) -> Result<()> {
        if accepted.contains(&value) { Ok(()) } else { Err(Self::NotAccepted { what, value, accepted }) }
    }

    /// Refuses a number that a rank says and that cannot be.
    pub(super) fn expect(
        rank: usize,
        what: &'static str,
        value: u64,
        accepted: RangeInclusive<u64>,
    ) -> Result<()> {
        if accepted.contains(&value) { Ok(()) } else { Err(Self::Invalid { rank, what, value, accepted }) }
    }
}

/// What is wrong with a rank.
///
/// ```
/// use cuda_mem_ipc::symmetric::{Error, Why};
///
/// /// Whether the others may go on without a rank: it said that it goes.
/// fn is_leaving(error: &Error) -> bool {
///     matches!(error, Error::Broken { why: Why::Left, .. })
/// }
/// # let _ = is_leaving;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Why {
    /// Its process ended without leaving the group.
    #[error("has died")]
    Died,
    /// It left the group while others waited for it.
    #[error("has left while others waited for it")]
    Left,
    /// It did not signal before a deadline.
    #[error("did not signal before the deadline")]
    TimedOut,
    /// It sent a message that breaks the protocol, or takes none.
    #[error("broke the protocol, or takes no messages")]
    Unreachable,
    /// It could not do its part of an operation of the group, or only some of that.
    #[error("could not do its part of an operation")]
    Failed,
}
