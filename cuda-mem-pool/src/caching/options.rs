//! How a caching allocator is made.

use crate::segments::Options;

/// How a [`CachingAllocator`](super::CachingAllocator) is made. The defaults are what the figures in `docs/allocator.md` were
/// measured with.
///
/// ```
/// use cuda_mem_core::Driver;
/// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let options = CachingOptions::default().with_memory_fraction(0.5);
/// let allocator = CachingAllocator::new(&context, &options)?;
/// assert_eq!(allocator.statistics().allocation.all.current, 0);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct CachingOptions {
    /// Whether free pages may be mapped elsewhere rather than new memory be made.
    pub moves: bool,
    /// The share of the device's memory that may be held, from 0 to 1; 1 is no limit.
    pub memory_fraction: f64,
    /// What private pools do; its rounding and its threshold of garbage collection count for the default pool too.
    pub segments: Options,
}

impl Default for CachingOptions {
    fn default() -> Self {
        Self { moves: true, memory_fraction: 1.0, segments: Options::default() }
    }
}

impl CachingOptions {
    /// Sets [`moves`](Self::moves).
    #[must_use]
    pub fn with_moves(self, moves: bool) -> Self {
        Self { moves, ..self }
    }

    /// Sets [`memory_fraction`](Self::memory_fraction).
    #[must_use]
    pub fn with_memory_fraction(self, memory_fraction: f64) -> Self {
        Self { memory_fraction, ..self }
    }

    /// Sets [`segments`](Self::segments).
    #[must_use]
    pub fn with_segments(self, segments: Options) -> Self {
        Self { segments, ..self }
    }
}
