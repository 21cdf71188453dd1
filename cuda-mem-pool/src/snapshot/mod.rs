//! What an allocator has at one moment, in the schema of PyTorch's memory snapshots.
//!
//! [`Snapshot::write_pickle`] writes the file that `torch.cuda.memory._dump_snapshot` would have written:
//! `python -m torch.cuda._memory_viz` and <https://pytorch.org/memory_viz> open it.

mod pickle;
mod segment;
mod settings;
mod trace;
mod write;

#[cfg(all(test, not(loom)))]
mod tests;

pub use segment::{BlockInfo, BlockState, SegmentInfo};
pub use settings::{AllocatorSettings, Annotation, AnnotationStage};
pub use trace::{Action, Frame, Frames, TraceEntry, UnknownAction};

/// All that PyTorch's `_snapshot()` tells of an allocator.
///
/// ```
/// use cuda_mem_pool::snapshot::{BlockInfo, BlockState, SegmentInfo, Snapshot};
/// use cuda_mem_pool::statistics::PoolSize;
///
/// let free = BlockInfo { address: 0x7f00_0000_0000, size: 2 << 20, ..BlockInfo::default() };
/// let used = BlockInfo { size: 512, requested_size: 500, state: BlockState::ActiveAllocated, ..free.clone() };
/// let rest = BlockInfo { address: used.address + 512, size: free.size - 512, ..free };
/// let segment = SegmentInfo::of(0, PoolSize::Small, vec![used, rest]);
/// let snapshot = Snapshot { segments: vec![segment], ..Snapshot::default() };
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
    /// What the program has marked.
    pub external_annotations: Vec<Annotation>,
}
