//! What an allocator has at one moment, in the schema of PyTorch's memory snapshots.
//!
//! [`Snapshot::write_pickle`] writes the file that `torch.cuda.memory._dump_snapshot` would have written:
//! `python -m torch.cuda._memory_viz` and <https://pytorch.org/memory_viz> open it.

mod pickle;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;

use crate::mempool_id::MempoolId;
use crate::statistics::PoolSize;

/// All that PyTorch's `_snapshot()` tells of an allocator.
///
/// ```
/// use cuda_mem_pool::snapshot::{AllocatorSettings, BlockInfo, BlockState, Frame, SegmentInfo, Snapshot};
/// use cuda_mem_pool::statistics::PoolSize;
///
/// let frame = Frame { filename: "train.py".into(), line: 42, name: "forward".into() };
/// let free = BlockInfo { address: 0x7f00_0000_0000, size: 2 << 20, ..BlockInfo::default() };
/// let state = BlockState::ActiveAllocated;
/// let used = BlockInfo { size: 512, requested_size: 500, state, frames: Some([frame].into()), ..free.clone() };
/// let rest = BlockInfo { address: used.address + 512, size: free.size - 512, ..free };
/// let segments = vec![SegmentInfo::of(0, PoolSize::Small, vec![used, rest])];
/// let allocator_settings = AllocatorSettings { expandable_segments: true, ..AllocatorSettings::default() };
/// let snapshot = Snapshot { segments, allocator_settings, ..Snapshot::default() };
///
/// let mut file = Vec::new();
/// snapshot.write_pickle(&mut file)?;
/// # assert!(file.starts_with(b"\x80\x02") && file.ends_with(b"."));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// All segments of all devices. They are written in the order of their addresses.
    pub segments: Vec<SegmentInfo>,
    /// The history of each device, by its number; empty without one.
    pub device_traces: Vec<Vec<TraceEntry>>,
    /// How the allocator is set up.
    pub allocator_settings: AllocatorSettings,
    /// Names of tags, each with a device and a private pool whose memory is the tag's. PyTorch's schema knows none: they are written
    /// among its annotations, in the stage `TAG`.
    pub tags: Vec<(u32, MempoolId, String)>,
}

/// A segment: memory that lies in one piece. Of a segment that grows by pages, each part without a gap is one.
///
/// [`Snapshot`] has an example.
#[derive(Debug, Clone)]
pub struct SegmentInfo {
    /// The device's number.
    pub device: u32,
    /// Where it begins.
    pub address: u64,
    /// Bytes.
    pub total_size: u64,
    /// Bytes of allocated blocks.
    pub allocated_size: u64,
    /// Bytes of allocated blocks, and of freed ones that a stream still uses.
    pub active_size: u64,
    /// As `active_size`, in bytes that were asked for.
    pub requested_size: u64,
    /// The stream it is for, by its handle; 0 is the default one.
    pub stream: u64,
    /// Which blocks are cut from it.
    pub segment_type: PoolSize,
    /// The pool it belongs to; [`MempoolId::NONE`] is the default one.
    pub segment_pool_id: MempoolId,
    /// How many segments of its private pool, on its device, came before it; none in the default pool, whose ranges grow and change.
    pub serial: Option<u64>,
    /// Whether its memory is mapped page by page.
    pub is_expandable: bool,
    /// Who asked, when the segment was made; none in the default pool, whose ranges grow and change.
    pub frames: Option<Frames>,
    /// All of it, in the order of the addresses and without a gap.
    pub blocks: Vec<BlockInfo>,
}

impl SegmentInfo {
    /// A segment of the default stream and pool that consists of `blocks`. Its sizes are theirs.
    #[must_use]
    pub fn of(device: u32, segment_type: PoolSize, blocks: Vec<BlockInfo>) -> Self {
        let sum = |of: fn(&BlockInfo) -> u64, is_counted: fn(BlockState) -> bool| {
            let counted = blocks.iter().filter(|block| is_counted(block.state));
            counted.map(of).fold(0, u64::saturating_add)
        };
        let is_active = |state| state != BlockState::Inactive;
        Self {
            device,
            address: blocks.first().map_or(0, |block| block.address),
            total_size: sum(|block| block.size, |_| true),
            allocated_size: sum(|block| block.size, |state| state == BlockState::ActiveAllocated),
            active_size: sum(|block| block.size, is_active),
            requested_size: sum(|block| block.requested_size, is_active),
            stream: 0,
            segment_type,
            segment_pool_id: MempoolId::NONE,
            serial: None,
            is_expandable: false,
            frames: None,
            blocks,
        }
    }
}

/// A block, in use or free. [`Snapshot`] has an example.
#[derive(Debug, Clone, Default)]
pub struct BlockInfo {
    /// Where it begins.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes that were asked for; 0 of a block that is free.
    pub requested_size: u64,
    /// Who has it.
    pub state: BlockState,
    /// Who asked for it.
    pub frames: Option<Frames>,
}

/// Who has a block. [`Snapshot`] has an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// Somebody.
    ActiveAllocated,
    /// It was given back, and a stream still uses it.
    ActivePendingFree,
    /// It is free.
    #[default]
    Inactive,
}

impl BlockState {
    /// As PyTorch calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ActiveAllocated => "active_allocated",
            Self::ActivePendingFree => "active_pending_free",
            Self::Inactive => "inactive",
        }
    }
}

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
pub(crate) type Frames = Arc<[Frame]>;

/// A call in a stack. [`Snapshot`] has an example.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The source file; empty if it is not known.
    pub filename: Arc<str>,
    /// The line in it; 0 if it is not known.
    pub line: u32,
    /// The function.
    pub name: Arc<str>,
}

/// What happened, as PyTorch records it. [`History`](crate::history::History) has an example.
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

/// How an allocator is set up, under PyTorch's names. [`Snapshot`] has an example.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AllocatorSettings {
    /// Blocks of this many bytes and more are not cut up.
    pub max_split_size: Option<u64>,
    /// The share of the device's memory above which cached memory is given back; 0 is never.
    pub garbage_collection_threshold: f64,
    /// Whether segments grow by pages.
    pub expandable_segments: bool,
    /// Whether blocks that other streams used are used again within a capture.
    pub graph_capture_record_stream_reuse: bool,
    /// Into how many steps sizes between two powers of two are rounded, from 1 MiB on; 0 for none.
    pub roundup_power2_divisions: Vec<u64>,
}
