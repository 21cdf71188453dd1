//! What happened in an allocator.

use std::str::FromStr;
use std::sync::Arc;

use crate::mempool_id::MempoolId;

/// Something that happened. `History` has an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEntry {
    /// What.
    pub action: Action,
    /// Where it begins; of [`Action::Oom`] how many bytes of the device were free, of [`Action::Snapshot`] 0.
    pub address: u64,
    /// Bytes: what was asked for of a block, the whole of a segment, what was asked for rounded up of [`Action::Oom`], what was
    /// active of [`Action::Snapshot`].
    pub size: u64,
    /// The stream, by its handle; 0 is the default one.
    pub stream: u64,
    /// The private pool that it is of; [`MempoolId::NONE`] of the default one. Files in PyTorch's format do not have it.
    pub pool: MempoolId,
    /// When, in microseconds since 1970.
    pub time_us: u64,
    /// Who asked.
    pub frames: Option<Frames>,
    /// What PyTorch was compiling; without, `N/A`.
    pub compile_context: Option<Arc<str>>,
    /// What the program says of it.
    pub user_metadata: Option<Arc<str>>,
}

/// A stack, innermost call first. Entries and blocks of one call share it.
pub type Frames = Arc<[Frame]>;

/// A call.
///
/// ```
/// use cuda_mem_pool::snapshot::Frame;
///
/// let frame = Frame { filename: "train.py".into(), line: 42, name: "forward".into() };
/// assert_eq!(frame.line, 42);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The source file; empty if it is not known.
    pub filename: Arc<str>,
    /// The line in it; 0 if it is not known.
    pub line: u32,
    /// The function.
    pub name: Arc<str>,
}

/// What happened, as PyTorch tells it.
///
/// ```
/// use cuda_mem_pool::snapshot::Action;
///
/// assert_eq!(Action::SegmentMap.name(), "segment_map");
/// assert_eq!("oom".parse(), Ok(Action::Oom));
/// assert!("free".parse::<Action>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// A block was handed out.
    Alloc,
    /// A block was given back. Streams may still use it.
    FreeRequested,
    /// No stream uses a block any more.
    FreeCompleted,
    /// The driver gave a segment.
    SegmentAlloc,
    /// A segment went back to the driver.
    SegmentFree,
    /// Memory was mapped at an address.
    SegmentMap,
    /// Memory was unmapped from an address.
    SegmentUnmap,
    /// Somebody took a snapshot.
    Snapshot,
    /// There was not enough memory.
    Oom,
}

impl Action {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Alloc,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::SegmentAlloc,
        Self::SegmentFree,
        Self::SegmentMap,
        Self::SegmentUnmap,
        Self::Snapshot,
        Self::Oom,
    ];

    /// As PyTorch calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Snapshot => "snapshot",
            Self::Oom => "oom",
        }
    }
}

/// There is no such action. [`Action`] has an example.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no trace action {name:?}; the actions are {}", Action::ALL.map(Action::name).join(", "))]
pub struct UnknownAction {
    /// What was named.
    pub name: String,
}

impl FromStr for Action {
    type Err = UnknownAction;

    fn from_str(name: &str) -> Result<Self, UnknownAction> {
        let known = Self::ALL.into_iter().find(|action| action.name() == name);
        known.ok_or_else(|| UnknownAction { name: name.to_owned() })
    }
}
