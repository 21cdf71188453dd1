//! What can be set, and which bytes a request and its segment get by that.

use crate::error::OptionsError;
use crate::primitive::setters;

/// Blocks start at multiples of this many bytes, and are multiples of it.
pub(crate) const MIN_BLOCK_SIZE: u64 = 512;
/// Sizes up to this one come from small segments, in bytes.
pub const SMALL_SIZE: u64 = 1 << 20;
/// Sizes from this one on get a segment of their own, in bytes.
pub(crate) const MIN_LARGE_ALLOCATION: u64 = 10 << 20;
/// The bytes of a small segment; what the segments of single blocks are multiples of.
pub(super) const SMALL_SEGMENT: u64 = 2 << 20;
/// The large segment that is the default, in bytes.
const LARGE_SEGMENT: u64 = 20 << 20;
const MIB: u64 = 1 << 20;

/// Requests and segments are smaller than this, in bytes; PyTorch says the same. Sums of a few of them do not overflow.
pub(crate) const MOST: u64 = 1 << 60;

/// The knobs of PyTorch's allocator that its layout depends on, [checked](Options::check) where they are set: all of them hold, or none.
///
/// ```
/// use cuda_mem_pool::segments::Options;
///
/// let options = Options::default().with_max_split_size(Some(128 << 20));
/// options.check()?;
/// let error = options.with_max_split_size(Some(1 << 20)).check().unwrap_err();
/// assert!(error.to_string().contains("max_split_size is 1048576 bytes"));
/// # Ok::<(), cuda_mem_pool::segments::OptionsError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// The segment that sizes above [`SMALL_SIZE`] and below 10 MiB share, in bytes: whole MiB, more than 10 of them; 20 MiB by default. A
    /// segment of the device's own memory takes whole pages of 2 MiB, and has all of them.
    pub large_segment_size: u64,
    /// Blocks of this many bytes and more are not split: at least the large segment's size. None, the default: all may be.
    pub max_split_size: Option<u64>,
    /// How many bytes larger than its request a block may be that is not split: at least the large segment's size, which None stands for.
    pub max_non_split_rounding: Option<u64>,
    /// Into how many steps a size is rounded between two powers of two. The first number is for sizes below 2 MiB, each next one for sizes
    /// up to twice as large, the last for all beyond. Each is 0 or a power of two; 0 and 1 round to multiples of 512 bytes alone.
    pub roundup_power2_divisions: [u64; 16],
    /// Which part of the limit may be held before all that is free goes back when more memory is needed, above 0 and below 1. With None, the
    /// default, or without a limit it stays.
    pub garbage_collection_threshold: Option<f64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            large_segment_size: LARGE_SEGMENT,
            max_split_size: None,
            max_non_split_rounding: None,
            roundup_power2_divisions: [0; 16],
            garbage_collection_threshold: None,
        }
    }
}

impl Options {
    setters! {
        with_large_segment_size(large_segment_size: u64) => large_segment_size;
        with_max_split_size(max_split_size: Option<u64>) => max_split_size;
        with_max_non_split_rounding(max_non_split_rounding: Option<u64>) => max_non_split_rounding;
        with_roundup_power2_divisions(roundup_power2_divisions: [u64; 16]) => roundup_power2_divisions;
        with_garbage_collection_threshold(garbage_collection_threshold: Option<f64>) => garbage_collection_threshold;
    }

    /// Checks all of them.
    ///
    /// # Errors
    ///
    /// [`OptionsError`] names the first bad value and what is accepted.
    pub fn check(&self) -> Result<(), OptionsError> {
        let large = self.large_segment_size;
        if large <= MIN_LARGE_ALLOCATION || !large.is_multiple_of(MIB) || large >= MOST {
            return Err(OptionsError::LargeSegmentSize { bytes: large });
        }
        if let Some(bytes) = self.max_split_size.filter(|&bytes| bytes < large) {
            return Err(OptionsError::MaxSplitSize { bytes, least: large });
        }
        if let Some(bytes) = self.max_non_split_rounding.filter(|&bytes| bytes < large) {
            return Err(OptionsError::MaxNonSplitRounding { bytes, least: large });
        }
        let bad = |&(_, &divisions): &(usize, &u64)| divisions != 0 && !u64::is_power_of_two(divisions);
        if let Some((place, &divisions)) = self.roundup_power2_divisions.iter().enumerate().find(bad) {
            return Err(OptionsError::RoundupPower2Divisions { place, divisions });
        }
        let outside = |threshold: &f64| !(*threshold > 0.0 && *threshold < 1.0);
        match self.garbage_collection_threshold.filter(outside) {
            Some(threshold) => Err(OptionsError::GarbageCollectionThreshold { threshold }),
            None => Ok(()),
        }
    }

    /// [`max_non_split_rounding`](Self::max_non_split_rounding), with its default.
    pub(super) fn non_split_rounding(&self) -> u64 {
        self.max_non_split_rounding.unwrap_or(self.large_segment_size)
    }

    /// The bytes of the block for a request of `bytes` bytes; the smallest block for none. None from 1 EiB on.
    #[must_use]
    pub fn block_size(&self, bytes: u64) -> Option<u64> {
        (bytes < MOST).then(|| in_steps(bytes, self.roundup_power2_divisions[size_class(bytes)]))
    }

    /// The largest block that has no more than so many bytes.
    pub(super) fn largest_block(&self, bytes: u64) -> u64 {
        let step = step(bytes, self.roundup_power2_divisions[size_class(bytes)]);
        bytes / step * step
    }

    /// The bytes of the segment that a block of `block` bytes needs when nothing free fits.
    pub(crate) fn segment_size(&self, block: u64) -> u64 {
        if block <= SMALL_SIZE {
            SMALL_SEGMENT
        } else if block < MIN_LARGE_ALLOCATION {
            self.large_segment_size
        } else {
            block.next_multiple_of(SMALL_SEGMENT)
        }
    }
}

/// Which of [`Options::roundup_power2_divisions`] a request of `bytes` bytes goes by.
pub(crate) fn size_class(bytes: u64) -> usize {
    const LAST: usize = 15;
    (bytes.max(1).ilog2().saturating_sub(20) as usize).min(LAST)
}

/// The bytes of the block for a request below 1 EiB, in so many steps between two powers of two.
pub(crate) fn in_steps(bytes: u64, divisions: u64) -> u64 {
    bytes.max(1).next_multiple_of(step(bytes, divisions))
}

/// What a size of about `bytes` bytes is a multiple of, in so many steps between two powers of two.
fn step(bytes: u64, divisions: u64) -> u64 {
    if divisions > 1 && bytes > divisions.saturating_mul(MIN_BLOCK_SIZE) {
        // More than 512 bytes for each step, so a step is a power of two of at least 512.
        (1 << bytes.ilog2()) / divisions
    } else {
        MIN_BLOCK_SIZE
    }
}
