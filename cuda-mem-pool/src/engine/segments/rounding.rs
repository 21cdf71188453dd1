//! Which bytes a request gets, and which bytes the segment that is made for it.

use super::options::{MIN_LARGE_ALLOCATION, MOST, Options, ROUND_LARGE, SMALL_SEGMENT, SMALL_SIZE};
use crate::error::SegmentError;

/// Blocks start at multiples of this many bytes, and are multiples of it.
pub const MIN_BLOCK_SIZE: u64 = 512;

impl Options {
    /// The bytes of the block for a request of `bytes` bytes; the smallest block for none.
    ///
    /// ```
    /// use cuda_mem_pool::segments::Options;
    ///
    /// assert_eq!(Options::default().block_size(513)?, 1024);
    /// let quarters = Options::builder().roundup_power2_divisions([4; 16]).build()?;
    /// assert_eq!(quarters.block_size(1100 << 20)?, 1280 << 20); // 1, 1.25, 1.5, 1.75, 2 GiB
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SegmentError::TooLarge`] from 1 EiB on.
    pub fn block_size(&self, bytes: u64) -> Result<u64, SegmentError> {
        if bytes >= MOST {
            return Err(SegmentError::TooLarge { requested: bytes, most: MOST - 1 });
        }
        Ok(in_steps(bytes, self.roundup_power2_divisions()[size_class(bytes)]))
    }

    /// The largest block that has no more than so many bytes.
    pub(super) fn largest_block(&self, bytes: u64) -> u64 {
        in_whole_steps(bytes, self.roundup_power2_divisions()[size_class(bytes)])
    }

    /// The bytes of the segment that a block of `block` bytes needs when nothing free fits.
    #[must_use]
    pub fn segment_size(&self, block: u64) -> u64 {
        if block <= SMALL_SIZE {
            SMALL_SEGMENT
        } else if block < MIN_LARGE_ALLOCATION {
            self.large_segment_size()
        } else {
            block.next_multiple_of(ROUND_LARGE)
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
    if divisions > 1 && bytes > divisions.saturating_mul(MIN_BLOCK_SIZE) {
        // More than 512 bytes for each step, so a step is a power of two of at least 512.
        let step = (1 << bytes.ilog2()) / divisions;
        return bytes.next_multiple_of(step);
    }
    bytes.max(1).next_multiple_of(MIN_BLOCK_SIZE)
}

/// The largest size of [`in_steps`] up to this.
fn in_whole_steps(bytes: u64, divisions: u64) -> u64 {
    let step = if divisions > 1 && bytes > divisions.saturating_mul(MIN_BLOCK_SIZE) {
        (1 << bytes.ilog2()) / divisions
    } else {
        MIN_BLOCK_SIZE
    };
    bytes / step * step
}
