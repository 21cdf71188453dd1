//! What a snapshot tells beside memory.

/// How an allocator is set up, under PyTorch's names.
///
/// ```
/// use cuda_mem_pool::snapshot::AllocatorSettings;
///
/// let settings = AllocatorSettings { expandable_segments: true, ..AllocatorSettings::default() };
/// assert_eq!(settings.max_split_size, None);
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AllocatorSettings {
    /// The text they come from, `PYTORCH_CUDA_ALLOC_CONF`; empty without one.
    pub conf: String,
    /// Blocks larger than this are not cut up, in bytes.
    pub max_split_size: Option<u64>,
    /// The share of the device's memory above which cached memory is given back; 0 is never.
    pub garbage_collection_threshold: f64,
    /// Whether segments grow by pages.
    pub expandable_segments: bool,
    /// Threads that register pinned memory.
    pub pinned_num_register_threads: u64,
    /// Whether other threads may allocate while the driver is asked for memory.
    pub release_lock_on_cudamalloc: bool,
    /// Whether pinned memory is the system's, registered.
    pub pinned_use_cuda_host_register: bool,
    /// Whether blocks that other streams used are used again within a capture.
    pub graph_capture_record_stream_reuse: bool,
    /// Into how many steps sizes between two powers of two are rounded, from 1 MiB on; 0 for none.
    pub roundup_power2_divisions: Vec<u64>,
}

/// A mark that the program has set. [`Snapshot`](super::Snapshot) holds them.
/// [`Snapshot`](super::Snapshot) has an example of what they stand beside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotation {
    /// Its name.
    pub name: String,
    /// Which end of it this is.
    pub stage: AnnotationStage,
    /// The device's number.
    pub device: u32,
    /// When, in microseconds since 1970.
    pub time_us: u64,
}

/// Which end of a marked time. [`Snapshot`](super::Snapshot) has an example of what they stand beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AnnotationStage {
    /// Its begin.
    Start,
    /// Its end.
    End,
}

impl AnnotationStage {
    /// As PyTorch calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "START",
            Self::End => "END",
        }
    }
}
