//! What can be set, and which bytes a request and its segment get by that.

use crate::error::SegmentError;

/// Blocks start at multiples of this many bytes, and are multiples of it.
pub(crate) const MIN_BLOCK_SIZE: u64 = 512;
/// Sizes up to this one come from small segments, in bytes.
pub const SMALL_SIZE: u64 = 1 << 20;
/// Sizes from this one on get a segment of their own, in bytes.
pub(crate) const MIN_LARGE_ALLOCATION: u64 = 10 << 20;
/// The bytes of a small segment; what the segments of single blocks are multiples of.
const SMALL_SEGMENT: u64 = 2 << 20;
/// The large segment that is the default, in bytes.
const LARGE_SEGMENT: u64 = 20 << 20;
const MIB: u64 = 1 << 20;

/// Requests and segments are smaller than this, in bytes; PyTorch says the same. Sums of a few of them do not overflow.
pub(crate) const MOST: u64 = 1 << 60;

/// The knobs of PyTorch's allocator that its layout depends on, in bytes. They are checked when they are built, and hold as a
/// whole or not at all.
///
/// ```
/// use cuda_mem_pool::segments::Options;
///
/// let options = Options::builder().max_split_size(Some(128 << 20)).build()?;
/// assert_eq!(options.max_non_split_rounding(), 20 << 20); // PyTorch's default
/// let error = Options::builder().max_split_size(Some(1 << 20)).build().unwrap_err();
/// assert!(error.to_string().contains("max_split_size is 1048576 bytes"));
/// # Ok::<(), cuda_mem_pool::segments::OptionsError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    large_segment_size: u64,
    max_split_size: Option<u64>,
    max_non_split_rounding: u64,
    roundup_power2_divisions: [u64; 16],
    garbage_collection_threshold: Option<f64>,
}

impl Options {
    /// PyTorch's defaults, to be changed.
    pub fn builder() -> OptionsBuilder {
        OptionsBuilder { options: Self::default(), max_non_split_rounding: None }
    }

    /// The segment that sizes above [`SMALL_SIZE`] and below 10 MiB share, in bytes.
    #[must_use]
    pub fn large_segment_size(&self) -> u64 {
        self.large_segment_size
    }

    /// Blocks of this many bytes and more are not split. None: all may be.
    #[must_use]
    pub fn max_split_size(&self) -> Option<u64> {
        self.max_split_size
    }

    /// How many bytes larger than its request a block may be that is not split.
    #[must_use]
    pub fn max_non_split_rounding(&self) -> u64 {
        self.max_non_split_rounding
    }

    /// Into how many steps a size is rounded between two powers of two. The first number is for sizes below 2 MiB, each
    /// next one for sizes up to twice as large, the last for all beyond; 0 and 1 round to multiples of 512 bytes alone.
    #[must_use]
    pub fn roundup_power2_divisions(&self) -> [u64; 16] {
        self.roundup_power2_divisions
    }

    /// Which part of the limit may be reserved before segments go that have long been free. None: they stay.
    #[must_use]
    pub fn garbage_collection_threshold(&self) -> Option<f64> {
        self.garbage_collection_threshold
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            large_segment_size: LARGE_SEGMENT,
            max_split_size: None,
            max_non_split_rounding: LARGE_SEGMENT,
            roundup_power2_divisions: [0; 16],
            garbage_collection_threshold: None,
        }
    }
}

/// [`Options`] that are not checked yet; [`Options`] has an example.
#[derive(Debug, Clone)]
#[must_use]
pub struct OptionsBuilder {
    options: Options,
    /// The large segment's size if none was set.
    max_non_split_rounding: Option<u64>,
}

impl OptionsBuilder {
    /// See [`Options::large_segment_size`]. Whole MiB, more than 10 of them; 20 MiB by default. A segment of the device's own memory
    /// takes whole pages of 2 MiB, and has all of them.
    pub fn large_segment_size(mut self, bytes: u64) -> Self {
        self.options.large_segment_size = bytes;
        self
    }

    /// See [`Options::max_split_size`]. At least the large segment's size; none by default.
    pub fn max_split_size(mut self, bytes: Option<u64>) -> Self {
        self.options.max_split_size = bytes;
        self
    }

    /// See [`Options::max_non_split_rounding`]. At least the large segment's size, which is the default.
    pub fn max_non_split_rounding(mut self, bytes: u64) -> Self {
        self.max_non_split_rounding = Some(bytes);
        self
    }

    /// See [`Options::roundup_power2_divisions`]. Each is 0 or a power of two; 0 by default.
    pub fn roundup_power2_divisions(mut self, divisions: [u64; 16]) -> Self {
        self.options.roundup_power2_divisions = divisions;
        self
    }

    /// See [`Options::garbage_collection_threshold`]. Above 0 and below 1; none by default.
    pub fn garbage_collection_threshold(mut self, threshold: Option<f64>) -> Self {
        self.options.garbage_collection_threshold = threshold;
        self
    }

    /// Checks all of them.
    ///
    /// # Errors
    ///
    /// [`OptionsError`] names the first bad value and what is accepted.
    pub fn build(self) -> Result<Options, OptionsError> {
        let options = self.options;
        let large = options.large_segment_size;
        if large <= MIN_LARGE_ALLOCATION || !large.is_multiple_of(MIB) || large >= MOST {
            return Err(OptionsError::LargeSegmentSize { bytes: large });
        }
        if let Some(bytes) = options.max_split_size.filter(|&bytes| bytes < large) {
            return Err(OptionsError::MaxSplitSize { bytes, least: large });
        }
        let rounding = self.max_non_split_rounding.unwrap_or(large);
        if rounding < large {
            return Err(OptionsError::MaxNonSplitRounding { bytes: rounding, least: large });
        }
        let bad = |&(_, &divisions): &(usize, &u64)| divisions != 0 && !u64::is_power_of_two(divisions);
        if let Some((place, &divisions)) = options.roundup_power2_divisions.iter().enumerate().find(bad) {
            return Err(OptionsError::RoundupPower2Divisions { place, divisions });
        }
        let outside = |threshold: &f64| !(*threshold > 0.0 && *threshold < 1.0);
        if let Some(threshold) = options.garbage_collection_threshold.filter(outside) {
            return Err(OptionsError::GarbageCollectionThreshold { threshold });
        }
        Ok(Options { max_non_split_rounding: rounding, ..options })
    }
}

impl Options {
    /// The bytes of the block for a request of `bytes` bytes; the smallest block for none.
    ///
    /// # Errors
    ///
    /// [`SegmentError::TooLarge`] from 1 EiB on.
    pub fn block_size(&self, bytes: u64) -> Result<u64, SegmentError> {
        if bytes >= MOST {
            return Err(SegmentError::TooLarge { requested: bytes, most: MOST - 1 });
        }
        Ok(in_steps(bytes, self.roundup_power2_divisions[size_class(bytes)]))
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

/// A value that an option does not take. [`Options`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// See [`Options::large_segment_size`].
    #[error(
        "large_segment_size is {bytes} bytes; it must be whole MiB, more than 10 of them, and below 1 EiB"
    )]
    LargeSegmentSize {
        /// What was passed.
        bytes: u64,
    },
    /// See [`Options::max_split_size`].
    #[error("max_split_size is {bytes} bytes; it must be None or at least the large segment's {least}")]
    MaxSplitSize {
        /// What was passed.
        bytes: u64,
        /// The least that is accepted.
        least: u64,
    },
    /// See [`Options::max_non_split_rounding`].
    #[error("max_non_split_rounding is {bytes} bytes; it must be at least the large segment's {least}")]
    MaxNonSplitRounding {
        /// What was passed.
        bytes: u64,
        /// The least that is accepted.
        least: u64,
    },
    /// See [`Options::roundup_power2_divisions`].
    #[error("roundup_power2_divisions[{place}] is {divisions}; it must be 0 or a power of two")]
    RoundupPower2Divisions {
        /// Which of the sixteen.
        place: usize,
        /// What was passed.
        divisions: u64,
    },
    /// See [`Options::garbage_collection_threshold`].
    #[error("garbage_collection_threshold is {threshold}; it must be None, or above 0 and below 1")]
    GarbageCollectionThreshold {
        /// What was passed.
        threshold: f64,
    },
}
