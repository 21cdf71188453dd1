//! Errors: which rank, what was asked for, what is accepted.

use std::sync::Arc;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core as core;

use super::DeviceType;

/// The result of whatever can fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call about symmetric memory failed.
///
/// ```
/// use cuda_mem_ipc::symmetric::{Backends, DeviceType, Error};
///
/// let unknown = Backends::new().set_backend(DeviceType::CUDA, "MPI");
/// assert!(matches!(unknown, Err(Error::UnknownBackend { .. })));
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver, or the layer that calls it.
    #[error(transparent)]
    Core(#[from] core::Error),
    /// A socket of the group cannot be made.
    #[error("joining group {group:?}: {source}")]
    Join {
        /// The group.
        group: String,
        /// The transport's reason.
        source: crate::Error,
    },
    /// A rank could not be talked to while the group came together.
    #[error("rank {rank}: {source}")]
    Transport {
        /// The rank.
        rank: usize,
        /// The transport's reason.
        source: crate::Error,
    },
    /// Ranks did not come in time.
    #[error("ranks {ranks:?} did not {what} within {} ms", waited.as_millis())]
    Missing {
        /// All that are missing.
        ranks: Vec<usize>,
        /// What is missing of them.
        what: &'static str,
        /// How long was waited.
        waited: Duration,
    },
    /// A rank ended, went or was too late. The group is of no use any more, on any rank: make a new one.
    #[error(
        "group {group:?} is broken: rank {rank} {why}; what waited for it was let go, its results are not to be used"
    )]
    Broken {
        /// The group.
        group: String,
        /// The first rank that was found so.
        rank: usize,
        /// What is wrong with it.
        why: Why,
    },
    /// A rank has left the group in good order, and nothing more can be had of it.
    #[error("rank {rank} has left the group")]
    Left {
        /// The rank.
        rank: usize,
    },
    /// Ranks have allocated in different order.
    #[error(
        "allocation {sequence} has {theirs} bytes on rank {rank} and {ours} here: ranks must allocate in the same order"
    )]
    OrderDiffers {
        /// The rank that differs.
        rank: usize,
        /// The number of the allocation, from 0.
        sequence: u64,
        /// Its bytes here.
        ours: u64,
        /// Its bytes there.
        theirs: u64,
    },
    /// A rank has allocated so often since that what it said of this allocation is not kept any more.
    #[error(
        "rank {rank} is more than {kept} allocations ahead of allocation {sequence}; call rendezvous earlier"
    )]
    Overtaken {
        /// The rank.
        rank: usize,
        /// The number of the allocation, from 0.
        sequence: u64,
        /// How many are kept.
        kept: usize,
    },
    /// What a rank says of an allocation or a segment cannot be.
    #[error("rank {rank} says that {what} is {value}; accepted are 0 to {most}")]
    Invalid {
        /// The rank.
        rank: usize,
        /// What it says something of.
        what: &'static str,
        /// What it says.
        value: u64,
        /// The most that can be.
        most: u64,
    },
    /// A rank's memory is on a device that this process does not see.
    #[error(
        "the memory of rank {rank} is on device {uuid:02x?}, which this process does not see (CUDA_VISIBLE_DEVICES)"
    )]
    DeviceNotVisible {
        /// The rank.
        rank: usize,
        /// Its device.
        uuid: [u8; 16],
    },
    /// Two processes say that they are the same rank, or one says a rank that there is not.
    #[error("a process joins as rank {rank} of {world_size}, which is taken or does not exist")]
    RankTaken {
        /// The rank.
        rank: usize,
        /// How many ranks there are.
        world_size: usize,
    },
    /// A rank of another group, or with another idea of this one.
    #[error(
        "rank {rank} is of group {theirs:?} with {their_size} ranks; this is group {ours:?} with {our_size}"
    )]
    OtherGroup {
        /// The rank.
        rank: usize,
        /// Its group's name.
        theirs: String,
        /// Its group's size.
        their_size: u64,
        /// This group's name.
        ours: String,
        /// This group's size.
        our_size: usize,
    },
    /// A number of a rank, or of ranks, that cannot be.
    #[error("{what} is {value}; accepted are {} to {}", accepted.start(), accepted.end())]
    NotAccepted {
        /// Which number.
        what: &'static str,
        /// What was passed.
        value: usize,
        /// What is accepted.
        accepted: std::ops::RangeInclusive<usize>,
    },
    /// Beyond the end of a buffer.
    #[error("bytes {start}..{end} of the buffer of rank {rank} were asked for; it has {bytes}")]
    BeyondBuffer {
        /// Whose buffer.
        rank: usize,
        /// The first byte.
        start: usize,
        /// The byte behind the last.
        end: usize,
        /// How many there are, from the rendezvous' own address on.
        bytes: usize,
    },
    /// The address is in no allocation of the backend.
    #[error("{address:#x} is in no symmetric allocation of {backend}")]
    UnknownAddress {
        /// The address.
        address: u64,
        /// The backend.
        backend: &'static str,
    },
    /// The memory was freed, with its group or by its address, which another allocation has now.
    #[error("the memory at {address:#x} was freed; the address is another allocation's now")]
    Freed {
        /// The address.
        address: u64,
    },
    /// No group of this name was added.
    #[error("no group is called {name:?}; there are {known:?}")]
    UnknownGroup {
        /// What was passed.
        name: String,
        /// The groups that there are.
        known: Vec<String>,
    },
    /// A group of this name is there.
    #[error("there is a group {name:?} already")]
    GroupExists {
        /// Its name.
        name: String,
    },
    /// A group has no more of something that is made when it is short of memory.
    #[error(
        "group {group:?} has {most} {what} of this rank, which is all that it may: make larger ones (segment_bytes, segment_allocations)"
    )]
    GroupFull {
        /// The group.
        group: String,
        /// What there is no more of.
        what: &'static str,
        /// How many there are.
        most: u64,
    },
    /// The allocation belongs to another group.
    #[error("the memory was allocated for group {allocated:?}, and not for {asked:?}")]
    WrongGroup {
        /// Whose it is.
        allocated: String,
        /// What was passed.
        asked: String,
    },
    /// The group is on another device.
    #[error("group {group:?} is on device {accepted}, and not on device {device}")]
    WrongDevice {
        /// The group.
        group: String,
        /// What was passed.
        device: i32,
        /// The group's.
        accepted: i32,
    },
    /// The backend allocates for a group only.
    #[error("{backend} allocates for a group only: pass its name")]
    GroupNeeded {
        /// The backend.
        backend: String,
    },
    /// The backend allocates for all of its ranks and knows no groups.
    #[error("{backend} allocates for all of its ranks: group {group:?} was passed, accepted is none")]
    GroupRefused {
        /// The backend.
        backend: String,
        /// What was passed.
        group: String,
    },
    /// A library, or a function of it, is not there, or not in this version.
    #[error("{backend} is not available: {source}")]
    NotAvailable {
        /// The backend.
        backend: &'static str,
        /// What is missing: of `cuda_mem_sys`, `engine::LoadError` or `engine::MissingFunction`, which names the versions.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The backend cannot do that, in whatever version.
    #[error("{backend} has no {what}")]
    NotSupported {
        /// The backend.
        backend: &'static str,
        /// What it does not have.
        what: &'static str,
    },
    /// A library's function failed.
    #[error("{backend}: {call} gave {code} {text}")]
    Engine {
        /// The backend.
        backend: &'static str,
        /// The function.
        call: &'static str,
        /// Its result.
        code: i32,
        /// What the library says of it.
        text: String,
    },
    /// A call of all ranks worked here and failed on another one: it was undone here.
    #[error("{backend}: {call} failed on rank {rank}, and was undone on all ranks")]
    FailedElsewhere {
        /// The backend.
        backend: &'static str,
        /// The call.
        call: &'static str,
        /// The first rank that it failed on.
        rank: usize,
    },
    /// A call of all ranks failed on some and left something on others, which takes all to undo. The backend is of no use any more, on any
    /// rank.
    #[error(
        "{backend}: {call} failed on rank {rank} and not on all, which cannot be undone: make a new backend"
    )]
    Uneven {
        /// The backend.
        backend: &'static str,
        /// The call.
        call: &'static str,
        /// The first rank that it failed on.
        rank: usize,
    },
    /// Ranks are about to make different calls, none of which was made.
    #[error(
        "rank {rank} is at: {theirs}; this one is at: {ours}. All ranks must make the same calls in the same order"
    )]
    Disagrees {
        /// The rank that differs.
        rank: usize,
        /// What this rank is about to do.
        ours: String,
        /// What that one is about to do.
        theirs: String,
    },
    /// What a rank said in an exchange is none of the messages that are expected there.
    #[error("rank {rank} said something in an exchange that is no message of {backend}")]
    NoMessage {
        /// The rank.
        rank: usize,
        /// The backend.
        backend: &'static str,
    },
    /// The process has a backend over the library, of which there is one instance.
    #[error("this process has a backend over {backend} already; close it first")]
    EngineInUse {
        /// The backend.
        backend: &'static str,
    },
    /// The library was initialised by somebody else, with other ranks.
    #[error(
        "{backend} is initialised in this process as rank {found} of {found_size}; this is rank {rank} of {world_size}"
    )]
    OtherInstance {
        /// The backend.
        backend: &'static str,
        /// The instance's rank.
        found: i32,
        /// How many ranks it has.
        found_size: i32,
        /// The rank that was passed.
        rank: usize,
        /// How many ranks there are.
        world_size: usize,
    },
    /// A rank has memory that is not freed, or still used.
    #[error(
        "rank {rank} has {allocations} allocations that are in use: free them, and drop what rendezvous gave"
    )]
    StillUsed {
        /// The rank.
        rank: usize,
        /// How many.
        allocations: u64,
    },
    /// The backend was closed.
    #[error("{backend} was closed")]
    EngineClosed {
        /// The backend.
        backend: &'static str,
    },
    /// No load or store of this rank's device reaches the memory.
    #[error("the memory of rank {rank} cannot be reached from this rank's device by an address")]
    NotReachable {
        /// The rank.
        rank: usize,
    },
    /// No backend of this name is registered.
    #[error("no backend for {device_type} is called {name:?}; there are {known:?}")]
    UnknownBackend {
        /// The device type.
        device_type: DeviceType,
        /// What was passed.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// A backend of this name is registered.
    #[error("there is a backend {name:?} for {device_type} already")]
    BackendExists {
        /// The device type.
        device_type: DeviceType,
        /// Its name.
        name: String,
    },
    /// No backend is registered for the device type.
    #[error("no backend is registered for {device_type}")]
    NoBackend {
        /// The device type.
        device_type: DeviceType,
    },
    /// The backend was used, and cannot be another one from then on.
    #[error("the backend for {device_type} is {used:?} and was used: it cannot be changed any more")]
    BackendInUse {
        /// The device type.
        device_type: DeviceType,
        /// The backend.
        used: String,
    },
    /// The backend does not serve a memory pool.
    #[error("{backend} allocates for a group, which a memory pool does not name; accepted are {accepted:?}")]
    NotForMempools {
        /// The backend.
        backend: String,
        /// Those that do.
        accepted: &'static [&'static str],
    },
    /// No allocator of memory pools is registered for the device type.
    #[error("no allocator for memory pools is registered for {device_type}; there are those for {known:?}")]
    NoMempoolAllocator {
        /// The device type.
        device_type: DeviceType,
        /// Those that have one.
        known: Vec<DeviceType>,
    },
    /// One is registered.
    #[error("an allocator for memory pools is registered for {device_type} already")]
    MempoolAllocatorExists {
        /// The device type.
        device_type: DeviceType,
    },
    /// The persistent allocation is alive.
    #[error("persistent allocation {id} is alive; drop it before it is asked for again")]
    PersistentAlive {
        /// Its id.
        id: u64,
    },
    /// The persistent allocation is another one.
    #[error("persistent allocation {id} is {was}, and was asked for as {asked}")]
    PersistentDiffers {
        /// Its id.
        id: u64,
        /// What it is.
        was: String,
        /// What was passed.
        asked: String,
    },
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// Its process ended without leaving the group.
    Died,
    /// It left the group while others waited for it.
    Left,
    /// It did not signal before a deadline.
    TimedOut,
    /// It said what is not of the protocol, or takes no messages.
    Unreachable,
    /// It could put only a part of an operation into its stream.
    Failed,
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Died => "has died",
            Self::Left => "has left while others waited for it",
            Self::TimedOut => "did not signal before the deadline",
            Self::Unreachable => "cannot be talked to",
            Self::Failed => "could not put an operation into its stream",
        })
    }
}
