//! How a caching allocator is made.

use crate::engine::paged::{Hold, MAX};
use crate::engine::segments::{in_steps, size_class};
use crate::error::{Error, Result};
use crate::primitive::{AtomicBool, AtomicU64, Ordering, setters};
use crate::segments::Options;

/// How a [`CachingAllocator`](super::CachingAllocator) is made, which has an example. The defaults are what the figures in
/// `docs/allocator.md` were measured with.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct CachingOptions {
    /// Whether free handles may be mapped elsewhere when there is no headroom for new ones.
    pub moves: bool,
    /// How much free memory is kept while others could use it.
    pub hold: Hold,
    /// The most bytes that may be held; `usize::MAX` for no limit.
    pub max_bytes: usize,
    /// The share of the device's memory that may be held, from 0 to 1; 1 is no limit.
    pub memory_fraction: f64,
    /// The bytes of the device that are left to other libraries as long as something else helps; None for a hundredth, from 256 MiB to 1 GiB.
    pub reserve_bytes: Option<usize>,
    /// How private pools size and cut their segments; its rounding and its threshold of garbage collection count for the default pool too.
    pub segments: Options,
}

impl Default for CachingOptions {
    fn default() -> Self {
        Self {
            moves: true,
            hold: Hold::Ample,
            max_bytes: usize::MAX,
            memory_fraction: 1.0,
            reserve_bytes: None,
            segments: Options::default(),
        }
    }
}

impl CachingOptions {
    setters! {
        with_moves(moves: bool) => moves;
        with_hold(hold: Hold) => hold;
        with_max_bytes(max_bytes: usize) => max_bytes;
        with_memory_fraction(memory_fraction: f64) => memory_fraction;
        with_reserve_bytes(reserve_bytes: usize) => Some(reserve_bytes);
        with_segments(segments: Options) => segments;
    }

    /// The most bytes that may be held of so many; `usize::MAX` for no limit.
    pub(super) fn limit(&self, total: usize) -> Result<usize> {
        let fraction = self.memory_fraction;
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::InvalidFraction { fraction });
        }
        // To the nearest byte: a number of bytes that was divided by the total comes back as it was.
        let share = if fraction < 1.0 { (total as f64 * fraction).round() as usize } else { usize::MAX };
        Ok(share.min(self.max_bytes))
    }
}

/// [`Options::roundup_power2_divisions`], to be read without a lock: each allocation needs one of them.
#[derive(Debug, Default)]
pub(super) struct Rounding {
    /// Whether any is set, so that the usual allocation costs one load.
    is_on: AtomicBool,
    divisions: [AtomicU64; 16],
}

impl Rounding {
    pub(super) fn new(options: &Options) -> Self {
        let rounding = Self::default();
        rounding.set(options);
        rounding
    }

    /// For one at a time.
    pub(super) fn set(&self, options: &Options) {
        let divisions = options.roundup_power2_divisions;
        for (place, steps) in self.divisions.iter().zip(divisions) {
            place.store(steps, Ordering::Relaxed);
        }
        self.is_on.store(divisions.iter().any(|steps| *steps > 1), Ordering::Relaxed);
    }

    /// The bytes of the block for a request, before those of a granule.
    #[inline]
    pub(super) fn round(&self, bytes: usize) -> usize {
        if self.is_on.load(Ordering::Relaxed) { self.in_steps(bytes) } else { bytes }
    }

    #[cold]
    fn in_steps(&self, bytes: usize) -> usize {
        // What is larger is refused.
        if bytes > MAX {
            return bytes;
        }
        let steps = self.divisions[size_class(bytes as u64)].load(Ordering::Relaxed);
        in_steps(bytes as u64, steps) as usize
    }
}
