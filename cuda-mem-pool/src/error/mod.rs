//! Errors: name what was asked for, what is accepted, and what to do instead.

mod oom;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Device, DriverError, forked};
use uuid::Uuid;

pub use self::oom::{Advice, CachedMemory, OutOfMemoryReport};
pub(crate) use self::oom::{Bytes, choose_advice};
use crate::mempool_id::MempoolId;

/// The result of calls of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Refuses a call in a forked child, before a lock that a thread of the parent may have held: what is behind it is the parent's.
#[inline(always)]
pub(crate) fn refuse_forked() -> Result<()> {
    if forked() { Err(cuda_mem_core::Error::Forked.into()) } else { Ok(()) }
}

/// Why a call failed. The fields are what the text names, sizes in bytes.
///
/// ```
/// use cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
/// use cuda_mem_pool::{Error, MemoryResource};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
/// match allocator.allocate(1 << 45, &Stream::new(&context)?) {
///     Err(Error::DeviceOutOfMemory(report)) => {
///         assert_eq!((report.requested, report.live), (1 << 45, 0)); // 32 TiB
///         println!("{report}"); // all its figures, and what would help
///     }
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each text names its fields")]
pub enum Error {
    /// The layer below refused.
    #[error(transparent)]
    Core(#[from] cuda_mem_core::Error),
    /// The driver is too old.
    #[error("{what} needs a driver of CUDA {}, this one is of {}: {instead}", version(*.needs), version(*.has))]
    NeedsDriver { what: &'static str, needs: i32, has: i32, instead: &'static str },
    /// The driver has no pools of this kind.
    #[error("this driver has no memory pools {place}: {source}")]
    NoSuchPool { place: &'static str, source: DriverError },
    /// A NUMA node's number is below zero.
    #[error("numa_id is {numa_id}; it must be 0 or more, or None for placement by the system")]
    NegativeNumaId { numa_id: i32 },
    /// There is no such NUMA node.
    #[error("there is no NUMA node {numa_id}; the nodes that pools can be on: {}", list(.nodes))]
    NoSuchNumaNode { numa_id: i32, nodes: Vec<i32> },
    /// The device does not say which NUMA node is next to it.
    #[error("{device:?} has no NUMA node of its own (the system may not support NUMA); set numa_id")]
    NoNumaNode { device: Device },
    /// No context is current in the calling thread.
    #[error(
        "no CUDA context is current in this thread, which {what} takes the device from; make one current, pass a context, or set numa_id"
    )]
    NoCurrentContext { what: &'static str },
    /// The stream captures a graph.
    #[error(
        "the stream is capturing a graph, and this memory would end with the graph or before it: allocate before the capture, from a \
         private pool if the resource has them, or by a node of the graph (cuGraphAddMemAllocNode)"
    )]
    Capturing,
    /// There is no more memory, or the resource's own limit is reached.
    #[error(
        "out of memory: {requested} bytes were asked for, {used} are in use{}{}", and_limit(*.limit), and_cause(.source.as_ref())
    )]
    OutOfMemory { requested: usize, used: u64, limit: u64, source: Option<cuda_mem_core::Error> },
    /// There is no more memory on the device for a caching allocator, after all that it can do.
    #[error("{0}")]
    DeviceOutOfMemory(Box<OutOfMemoryReport>),
    /// A backing watcher made a call that needs the allocator's lock, which is held while the watcher runs.
    #[error(
        "called from a backing watcher, while the allocator is locked: there only cached memory can be allocated, and memory \
         freed"
    )]
    InCallback,
    /// The stream has ended, and its memory may serve another one.
    #[error("the stream was forgotten, or its thread is at its end; get an allocator for the stream anew")]
    StreamEnded,
    /// More streams than an allocator can tell apart.
    #[error(
        "an allocator serves {most} streams at the most, counting those that ended and were not forgotten"
    )]
    TooManyStreams { most: u32 },
    /// An allocator has as many blocks as it can tell apart.
    #[error("the allocator cannot tell more blocks apart: free blocks, or use fewer and larger ones")]
    TooManyBlocks,
    /// The allocator would have mapped memory over memory that it holds. Nothing was changed.
    #[error(
        "the allocator would have mapped memory over what it holds at {address:#x}: this is a fault of the allocator; \
         nothing was changed"
    )]
    InUse { address: u64 },
    /// A tag was not put to sleep, or did not wake.
    #[error(transparent)]
    Sleep(#[from] SleepError),
    /// A memory fraction is not from 0 to 1.
    #[error("the memory fraction is {fraction}; it must be from 0 to 1")]
    InvalidFraction { fraction: f64 },
    /// A factor of the peak that may be held is below 1.
    #[error("over_peak is {over_peak}; it must be a finite number from 1.0 on")]
    InvalidOverPeak { over_peak: f64 },
    /// An alignment that the resource does not give.
    #[error("an alignment of {asked} bytes was asked for; this resource aligns to {most} at the most")]
    Alignment { asked: usize, most: usize },
    /// A size that does not fit the address space.
    #[error("{bytes} bytes do not fit the address space")]
    TooLarge { bytes: usize },
    /// The pool is another process's.
    #[error(
        "this is a mapping of another process's pool: only that process can allocate from it, trim it or ask for its attributes"
    )]
    Mapped,
    /// The resource is not for other processes.
    #[error("this memory resource is not IPC-enabled: create it with ipc_enabled")]
    NotIpcEnabled,
    /// No block begins at an address, or no memory is there.
    #[error(
        "no block of this resource begins at {address:#x}, or no memory of it is there: freed already, another's, or of a private pool where memory of the default pool is wanted"
    )]
    UnknownAddress { address: u64 },
    /// No resource is registered under the UUID.
    #[error("no memory resource is registered under {uuid}")]
    NotRegistered { uuid: Uuid },
    /// The pool has a UUID, and was to be registered under another one.
    #[error("the pool's UUID is {own}; it cannot be registered under {asked}")]
    OtherUuid { own: Uuid, asked: Uuid },
    /// The resource under the UUID is of another kind.
    #[error("the memory resource under {uuid} is a {found}, not a {asked}")]
    OtherKind { uuid: Uuid, found: &'static str, asked: &'static str },
    /// A device cannot reach the memory of another.
    #[error("{device:?} cannot reach the memory of {owner:?}")]
    NoPeerAccess { device: Device, owner: Device },
    /// The device cannot do this.
    #[error("{device:?} does not support {what}")]
    Unsupported { device: Device, what: &'static str },
    /// A private pool of the caching allocator, or the layout of one, is not as the call needs it.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// An option of private pools has a value that it does not take.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// A private pool would get its memory from the allocator that it belongs to.
    #[error(
        "the private pool {id} cannot have its own allocator as the source of its segments; name no source for memory of the device"
    )]
    OwnSource { id: MempoolId },
    /// A pool's own source panicked when it was given memory back, which stays in the pool.
    #[error(
        "the source of a private pool panicked as it took back the segment at {address:#x}; the pool keeps the segment"
    )]
    SourcePanicked { address: u64 },
    /// Mapped memory has no handle of `cuIpcGetMemHandle`.
    #[error(
        "the block at {address:#x} is of the default pool, whose memory is mapped and has no legacy IPC handle: allocate it in a \
         private pool, or export descriptors (Pinned::export_posix_fds)"
    )]
    NoLegacyHandle { address: u64 },
}

impl Error {
    /// Whether there was not enough memory, of the driver or of a limit: a smaller request, or a retry after a free, may succeed.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory { .. } | Self::DeviceOutOfMemory(_) => true,
            Self::Sleep(SleepError::NoMemory { .. }) => true,
            _ => self.driver_error().is_some_and(|error| error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY),
        }
    }

    /// The driver's refusal, if that is what it was.
    #[must_use]
    pub fn driver_error(&self) -> Option<&DriverError> {
        match self {
            Self::Core(cuda_mem_core::Error::Driver(error))
            | Self::OutOfMemory { source: Some(cuda_mem_core::Error::Driver(error)), .. }
            | Self::Sleep(SleepError::NoBackup { source: cuda_mem_core::Error::Driver(error), .. }) => {
                Some(error)
            }
            Self::NoSuchPool { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Why private pools refused. Nothing was changed. The fields are what the text names, sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each text names its fields")]
pub enum PoolError {
    /// The name that stands for no pool.
    #[error(
        "{} names no pool; take a name from MempoolId::for_user or MempoolId::for_graph",
        MempoolId::NONE
    )]
    NoPool,
    /// There is no such private pool.
    #[error("there is no private pool {id}: it was never made, or was released and its memory given back")]
    Unknown { id: MempoolId },
    /// The pool's last use has ended.
    #[error("the private pool {id} was released as often as it was taken; it can only give its memory back")]
    Released { id: MempoolId },
    /// A pool's memory comes from where it came from first.
    #[error("the private pool {id} exists already; the source of its segments is named when it is made")]
    SourceIsSet { id: MempoolId },
    /// A pool gets another source while it has memory.
    #[error(
        "the private pool {id} has memory, a source of its own or a tag: give it to one tag, before anything is allocated in it"
    )]
    HasMemory { id: MempoolId },
    /// Allocations go to this private pool already.
    #[error("allocations go to the private pool {id} already; drop that route, or call end_allocate_to_pool")]
    AlreadyRouted { id: MempoolId },
    /// No allocations go to this private pool.
    #[error(
        "no allocations go to the private pool {id}; begin_allocate_to_pool has not been called, or was ended"
    )]
    NotRouted { id: MempoolId },
    /// A tag's own pool is the tag's as long as there is an allocator.
    #[error(
        "the private pool {id} is a tag's own: it lives as long as the allocator, and the tag's scopes alone begin and end there"
    )]
    OfTag { id: MempoolId },
    /// A segment that is none.
    #[error(
        "a segment of {bytes} bytes cannot be at {address:#x}: the address must be a multiple of 256, the bytes of 512, neither 0, and fit the address space"
    )]
    BadSegment { address: u64, bytes: u64 },
    /// Two segments share bytes.
    #[error("the segment of {bytes} bytes at {address:#x} overlaps the one at {other:#x}")]
    Overlap { address: u64, bytes: u64, other: u64 },
    /// A checkpoint cannot be taken or restored while streams still use freed blocks.
    #[error("the block at {address:#x} was freed and is still in use on other streams: wait for them first")]
    Pending { address: u64 },
    /// A checkpoint's segment is not in the pool.
    #[error("the checkpoint has a segment of {bytes} bytes at {address:#x} that the pool has no longer")]
    MissingSegment { address: u64, bytes: u64 },
}

/// A value that an option of private pools does not take. [`Options`](crate::segments::Options) has an example, and says what each is.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each text names its fields")]
pub enum OptionsError {
    #[error(
        "large_segment_size is {bytes} bytes; it must be whole MiB, more than 10 of them, and below 1 EiB"
    )]
    LargeSegmentSize { bytes: u64 },
    #[error("max_split_size is {bytes} bytes; it must be None or at least the large segment's {least}")]
    MaxSplitSize { bytes: u64, least: u64 },
    #[error("max_non_split_rounding is {bytes} bytes; it must be at least the large segment's {least}")]
    MaxNonSplitRounding { bytes: u64, least: u64 },
    /// Of `roundup_power2_divisions`, and which of the sixteen.
    #[error("roundup_power2_divisions[{place}] is {divisions}; it must be 0 or a power of two")]
    RoundupPower2Divisions { place: usize, divisions: u64 },
    #[error("garbage_collection_threshold is {threshold}; it must be None, or above 0 and below 1")]
    GarbageCollectionThreshold { threshold: f64 },
}

/// Why a tag was not put to sleep, did not wake, or cannot be used now. Nothing was changed.
/// [`Tag`](crate::caching::Tag) has an example.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum SleepError {
    /// An allocation in a tag that sleeps, or what else needs one that is awake.
    #[error("the tag {tag:?} sleeps: wake it before anything is allocated in it or kept")]
    Asleep { tag: String },
    /// There is no backup of a tag that is awake.
    #[error("the tag {tag:?} is awake, and has no backup to be read")]
    Awake { tag: String },
    /// Another call, of another thread or around a registrant, puts the tag to sleep, wakes it or looks at it, or gives memory of it back.
    #[error("another call is at work with the tag {tag:?}: try again when it is done")]
    Busy { tag: String },
    /// A tag of another allocator.
    #[error("the tag {tag:?} is another allocator's")]
    OtherAllocator { tag: String },
    /// An address is no memory of the tag, or of any tag.
    #[error("{address:#x} is no memory of {}", tag_name(.tag.as_ref()))]
    NotOfTag { tag: Option<String>, address: u64 },
    /// A tag has a block that its caller does not own ([`Asleep`](crate::caching::Asleep)).
    #[error(
        "the tag has a block at {address:#x} that is not among those to be put to sleep, or that a graph may use until its pool is released"
    )]
    NotOwned { address: u64 },
    /// There is no host memory for the backup.
    #[error("no pinned host memory of {bytes} bytes for the backup, so nothing was put to sleep: {source}")]
    NoBackup { bytes: usize, source: cuda_mem_core::Error },
    /// There is not enough memory to wake tags. All of them sleep on.
    #[error(
        "waking takes {needed} bytes, of which {missing} are missing; the allocator holds {held} for what is awake: free \
         some of it, or other processes' memory, and try again"
    )]
    NoMemory { needed: usize, missing: usize, held: usize },
}

fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

fn list(numbers: &[i32]) -> String {
    let names: Vec<String> = numbers.iter().map(i32::to_string).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn and_limit(limit: u64) -> String {
    if limit == 0 { String::new() } else { format!(", and the limit is {limit}") }
}

fn and_cause(cause: Option<&cuda_mem_core::Error>) -> String {
    cause.map_or_else(String::new, |cause| format!(": {cause}"))
}

fn tag_name(tag: Option<&String>) -> String {
    tag.map_or_else(|| "any tag of this allocator".to_owned(), |tag| format!("the tag {tag:?}"))
}
