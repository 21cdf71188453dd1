//! Errors of the pinned cache.

use crate::error::{Error, PoolError};

/// Why the pinned cache refused. [`PinnedCachingAllocator`](super::PinnedCachingAllocator) has an example.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PinnedCacheError {
    /// The driver, or a rule of the layer below.
    #[error(transparent)]
    Core(#[from] cuda_mem_core::Error),
    /// No more memory could be pinned, after everything that was cached had been given back.
    #[error(
        "no pinned memory for {requested} bytes: a segment of {segment} bytes was refused while {held} bytes are held, {in_use} of them in use: {source}"
    )]
    OutOfHostMemory {
        /// The bytes that were asked for.
        requested: usize,
        /// The bytes of the segment that they needed.
        segment: usize,
        /// The bytes that the allocator holds.
        held: u64,
        /// The bytes of those that are in blocks.
        in_use: u64,
        /// What the driver said.
        source: cuda_mem_core::Error,
    },
    /// More than [`max_bytes`](super::PinnedCacheOptions::max_bytes) would be pinned, after everything that was cached had been
    /// given back.
    #[error(
        "no pinned memory for {requested} bytes: with a segment of {segment} bytes, {held} bytes that are held would be more than max_bytes, {limit}; drop blocks, or set a higher limit"
    )]
    LimitReached {
        /// The bytes that were asked for.
        requested: usize,
        /// The bytes of the segment that they needed.
        segment: usize,
        /// The bytes that the allocator holds.
        held: u64,
        /// The most that it may hold.
        limit: u64,
    },
    /// More bytes than any machine has.
    #[error("{requested} bytes are more than a block can have; the most is {most}")]
    TooLarge {
        /// The bytes that were asked for.
        requested: usize,
        /// The bytes that are possible.
        most: usize,
    },
    /// A private pool refused. Nothing was changed.
    #[error(transparent)]
    Pool(#[from] PoolError),
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
            PinnedCacheError::Pool(error) => Self::Pool(error),
        }
    }
}
