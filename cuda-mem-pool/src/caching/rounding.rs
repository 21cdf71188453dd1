//! How much larger than its request a block of the default pool is, where somebody asked for steps between powers of two.

use crate::engine::paged::MAX;
use crate::primitive::{AtomicBool, AtomicU64, Ordering};
use crate::segments::{Options, in_steps, size_class};

/// [`Options::roundup_power2_divisions`], to be read without a lock: each allocation needs one of them.
#[derive(Debug)]
pub(super) struct Rounding {
    /// Whether any is set, so that the usual allocation costs one load.
    is_on: AtomicBool,
    divisions: [AtomicU64; 16],
}

impl Rounding {
    pub(super) fn new(options: &Options) -> Self {
        let rounding =
            Self { is_on: AtomicBool::new(false), divisions: std::array::from_fn(|_| AtomicU64::new(0)) };
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
        let steps =
            self.divisions.get(size_class(bytes as u64)).map_or(0, |steps| steps.load(Ordering::Relaxed));
        in_steps(bytes as u64, steps) as usize
    }
}
