//! Errors: what was asked for, what is accepted, and what to do instead.

use std::fmt;
use std::sync::Arc;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Device, DriverError};
use uuid::Uuid;

use crate::caching::OutOfMemoryReport;
use crate::mempool_id::MempoolId;
use crate::pinned_cache::PinnedCacheError;
use crate::segments::PoolError;

/// The result of whatever can fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
/// use cuda_mem_pool::{Error, MemoryResource};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
/// let error = allocator.allocate(1 << 45, &Stream::new(&context)?).unwrap_err(); // 32 TiB
/// assert!(error.is_out_of_memory() && matches!(error, Error::DeviceOutOfMemory(_)));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The layer below refused.
    #[error(transparent)]
    Core(#[from] cuda_mem_core::Error),
    /// The driver is too old.
    #[error("{what} needs a driver of CUDA {}, this one is of {}: {instead}", Version(*.needs), Version(*.has))]
    NeedsDriver {
        /// What was asked for.
        what: &'static str,
        /// The first driver that has it: 1000 × major + 10 × minor.
        needs: i32,
        /// The driver that is here.
        has: i32,
        /// What this driver does have.
        instead: &'static str,
    },
    /// The driver has no pools of this kind.
    #[error("this driver has no memory pools {place}: {source}")]
    NoSuchPool {
        /// Which.
        place: &'static str,
        /// What it said.
        source: DriverError,
    },
    /// A NUMA node's number is below zero.
    #[error("numa_id is {numa_id}; it must be 0 or more, or None for placement by the system")]
    NegativeNumaId {
        /// What was passed.
        numa_id: i32,
    },
    /// There is no such NUMA node.
    #[error("there is no NUMA node {numa_id}; the nodes that pools can be on: {}", List(.nodes))]
    NoSuchNumaNode {
        /// What was passed.
        numa_id: i32,
        /// The nodes that the driver takes.
        nodes: Vec<i32>,
    },
    /// The device does not say which NUMA node is next to it.
    #[error("{device:?} has no NUMA node of its own (the system may not support NUMA); set numa_id")]
    NoNumaNode {
        /// The device.
        device: Device,
    },
    /// No context is current in the calling thread.
    #[error(
        "no CUDA context is current in this thread, which {what} takes the device from; make one current, pass a context, or set numa_id"
    )]
    NoCurrentContext {
        /// What needs it.
        what: &'static str,
    },
    /// The stream captures a graph.
    #[error(
        "the stream is capturing a graph, in which memory of a pool would end with the graph: allocate before the capture, \
         or add an allocation node to the graph (cuGraphAddMemAllocNode)"
    )]
    Capturing,
    /// There is no more memory, or the resource's own limit is reached.
    #[error("out of memory: {requested} bytes were asked for, {used} are in use{}", Limit(*.limit))]
    OutOfMemory {
        /// What was asked for, in bytes.
        requested: usize,
        /// What is in use of the resource, in bytes.
        used: u64,
        /// The most that the resource may have, in bytes; 0 for no limit of its own.
        limit: u64,
        /// What the driver or the system said, if it was asked.
        source: Option<cuda_mem_core::Error>,
    },
    /// There is no more memory on the device for a caching allocator, after all that it can do.
    #[error("{0}")]
    DeviceOutOfMemory(Box<OutOfMemoryReport>),
    /// A callback about memory that is about to leave addresses asked for what has to wait until it has returned.
    #[error(
        "called from a callback about changing memory, while the allocator is locked: there only cached memory can be handed \
         out, and memory freed"
    )]
    InCallback,
    /// What belonged to the stream may serve another by now.
    #[error("the stream was forgotten, or its thread is at its end; get an allocator for the stream anew")]
    StreamEnded,
    /// More streams came than an allocator can tell apart.
    #[error(
        "an allocator serves {most} streams at the most, counting those that ended and were not forgotten"
    )]
    TooManyStreams {
        /// How many that is.
        most: u32,
    },
    /// More blocks than an allocator's books hold.
    #[error("the allocator's books are full: free blocks, or use fewer and larger ones")]
    TooManyBlocks,
    /// The allocator's books would have put two blocks on the same addresses. Nothing was changed.
    #[error(
        "the allocator would have mapped memory over what it holds at {address:#x}: this is a fault of the allocator; \
         nothing was changed"
    )]
    InUse {
        /// Where what it holds begins.
        address: u64,
    },
    /// A share of memory that is none.
    #[error("the memory fraction is {fraction}; it must be from 0 to 1")]
    InvalidFraction {
        /// What was passed.
        fraction: f64,
    },
    /// An alignment that the resource does not give.
    #[error("an alignment of {asked} bytes was asked for; this resource aligns to {most} at the most")]
    Alignment {
        /// What was asked for.
        asked: usize,
        /// What there is.
        most: usize,
    },
    /// A number that is no alignment.
    #[error("an alignment of {asked} bytes was asked for; it must be a power of two, from {least} on")]
    InvalidAlignment {
        /// What was asked for.
        asked: usize,
        /// The least that is accepted.
        least: usize,
    },
    /// A size that does not fit the address space.
    #[error("{bytes} bytes do not fit the address space")]
    TooLarge {
        /// What was asked for.
        bytes: usize,
    },
    /// The pool is another process's.
    #[error(
        "this is a mapping of another process's pool: only that process can allocate from it, trim it or ask for its attributes"
    )]
    Mapped,
    /// The resource is not for other processes.
    #[error("this memory resource is not IPC-enabled: create it with ipc_enabled")]
    NotIpcEnabled,
    /// An address that this resource did not hand out without a stream.
    #[error(
        "{address:#x} was not allocated by its address here, or is freed already: its stream is not known"
    )]
    UnknownAddress {
        /// What was passed.
        address: u64,
    },
    /// No resource is registered under the UUID.
    #[error("no memory resource is registered under {uuid}")]
    NotRegistered {
        /// What was passed.
        uuid: Uuid,
    },
    /// The pool has a UUID, and was to be registered under another one.
    #[error("the pool's UUID is {own}; it cannot be registered under {asked}")]
    OtherUuid {
        /// The pool's.
        own: Uuid,
        /// What was passed.
        asked: Uuid,
    },
    /// The resource under the UUID is of another kind.
    #[error("the memory resource under {uuid} is a {found}, not a {asked}")]
    OtherKind {
        /// What was passed.
        uuid: Uuid,
        /// What is registered.
        found: &'static str,
        /// What was asked for.
        asked: &'static str,
    },
    /// A number is no open descriptor.
    #[error("{descriptor} is no open file descriptor of a memory pool: {source}")]
    BadDescriptor {
        /// What was passed.
        descriptor: i32,
        /// The system's reason.
        source: Arc<std::io::Error>,
    },
    /// A device cannot reach the memory of another.
    #[error("{device:?} cannot reach the memory of {owner:?}")]
    NoPeerAccess {
        /// The device that was to be let in.
        device: Device,
        /// The device that the memory lies on.
        owner: Device,
    },
    /// The device cannot do this.
    #[error("{device:?} does not support {what}")]
    Unsupported {
        /// The device.
        device: Device,
        /// What was asked for.
        what: &'static str,
    },
    /// A private pool of the caching allocator, or the layout of one, is not as the call needs it.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A private pool would get its memory from the allocator that it belongs to.
    #[error(
        "the private pool {id} cannot have its own allocator as the source of its segments; name no source for memory of the device"
    )]
    OwnSource {
        /// The pool.
        id: MempoolId,
    },
    /// The pinned cache refused something about its private pools.
    #[error(transparent)]
    PinnedCache(PinnedCacheError),
}

impl From<PinnedCacheError> for Error {
    fn from(error: PinnedCacheError) -> Self {
        match error {
            PinnedCacheError::Core(cuda_mem_core::Error::Capturing { .. }) => Self::Capturing,
            PinnedCacheError::Core(error) => Self::Core(error),
            PinnedCacheError::OutOfHostMemory { requested, in_use, source, .. } => {
                Self::OutOfMemory { requested, used: in_use, limit: 0, source: Some(source) }
            }
            PinnedCacheError::LimitReached { requested, held, limit, .. } => {
                Self::OutOfMemory { requested, used: held, limit, source: None }
            }
            PinnedCacheError::TooLarge { requested, .. } => Self::TooLarge { bytes: requested },
            pools => Self::PinnedCache(pools),
        }
    }
}

impl Error {
    /// Whether there was not enough memory, whoever says so: less of it, or another try after a free, may succeed.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        let by_driver = |error: &DriverError| error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        matches!(self, Self::OutOfMemory { .. } | Self::DeviceOutOfMemory(_))
            || self.driver_error().is_some_and(by_driver)
    }

    /// The driver's refusal, if that is what it was.
    #[must_use]
    pub fn driver_error(&self) -> Option<&DriverError> {
        match self {
            Self::Core(cuda_mem_core::Error::Driver(error))
            | Self::OutOfMemory { source: Some(cuda_mem_core::Error::Driver(error)), .. } => Some(error),
            Self::NoSuchPool { source, .. } => Some(source),
            _ => None,
        }
    }
}

struct Version(i32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

struct List<'a>(&'a [i32]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().map(i32::to_string).collect::<Vec<_>>();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(", "))
    }
}

struct Limit(u64);

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, ", and the limit is {}", self.0) }
    }
}
