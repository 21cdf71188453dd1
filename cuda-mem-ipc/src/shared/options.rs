//! What a pool is made of, and how much is mapped ahead.

/// How a [`SharedPool`](super::SharedPool) gets its memory.
///
/// ```
/// use cuda_mem_ipc::shared::{MemoryKind, SharedPoolOptions};
///
/// let options = SharedPoolOptions { kind: MemoryKind::Host, ..SharedPoolOptions::default() };
/// assert_eq!(options.segment_bytes, 64 << 20);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedPoolOptions {
    /// Where the memory lies.
    pub kind: MemoryKind,
    /// How many bytes a segment has, unless one buffer needs more; rounded up to whole pages. Each segment takes a descriptor here
    /// and in each importer, and one mapping there.
    pub segment_bytes: usize,
}

impl Default for SharedPoolOptions {
    /// Segments of 64 MiB on the device.
    fn default() -> Self {
        Self { kind: MemoryKind::Device, segment_bytes: 64 << 20 }
    }
}

/// Where the memory of a [`SharedPool`](super::SharedPool) lies. [`SharedPoolOptions`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// On the device of the pool's context.
    Device,
    /// On that device, in blocks of a driver pool, as `cuMemAllocFromPoolAsync` gives them. A trimmed segment is given back to the pool
    /// when every importer has unmapped it.
    DevicePool,
    /// On a node of the host's memory, mapped for devices.
    HostNuma(i32),
    /// On the host, in memory files that are registered with the driver.
    Host,
}

/// How much of one exporter's memory an [`Importer`](super::Importer) maps ahead, before a buffer of it comes.
///
/// Mapping takes no memory of this process, but calls of the driver, addresses and a descriptor for each segment, and the exporter's
/// memory does not go back to its driver before the importer has unmapped it. What is beyond the limit is mapped with its first buffer.
///
/// ```
/// use cuda_mem_ipc::shared::AheadLimit;
///
/// let limit = AheadLimit { segments: 4, ..AheadLimit::default() };
/// assert_eq!((limit.segments, limit.bytes), (4, 4 << 30));
/// assert_eq!(AheadLimit::NONE, AheadLimit { segments: 0, bytes: 0 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AheadLimit {
    /// So many segments that no buffer of came yet, at most 4096.
    pub segments: usize,
    /// So many bytes of them.
    pub bytes: u64,
}

impl AheadLimit {
    /// Every segment is mapped when its first buffer comes.
    pub const NONE: Self = Self { segments: 0, bytes: 0 };

    /// Whether a segment of so many bytes may be added to those that are ahead.
    pub(super) fn has_room(self, bytes: u64, ahead: impl Iterator<Item = u64>) -> bool {
        let (count, all) =
            ahead.fold((0, bytes), |(count, all), bytes| (count + 1, bytes.saturating_add(all)));
        count < self.segments && all <= self.bytes
    }
}

impl Default for AheadLimit {
    /// 64 segments of 4 GiB together: as many as a pool has of its default size. They take about 10 ms of a thread at the most.
    fn default() -> Self {
        Self { segments: 64, bytes: 4 << 30 }
    }
}
