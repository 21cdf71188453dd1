//! Size classes: steps of 256 bytes up to 8 KiB, then 32 steps per doubling, so that rounding a size up adds at most one part in 32.

/// Blocks are multiples of this many bytes and start at multiples of it.
pub(crate) const GRANULE: usize = 256;

/// What large blocks are rounded up to: segments of their own are made of pages.
pub(crate) const PAGE: usize = 4096;

pub(crate) const LARGE: usize = 1 << 20;

/// The largest block. No machine has as much memory; sums of a few of them do not overflow.
pub(crate) const MAX: usize = 1 << 46;

const STEPS_LOG2: u32 = 5;
pub(crate) const STEPS: usize = 1 << STEPS_LOG2;

/// How many groups of [`STEPS`] classes there are.
pub(crate) const GROUPS: usize = group_of(MAX / GRANULE) + 1;

#[cfg(test)]
pub(crate) const COUNT: usize = GROUPS * STEPS;

/// The group of sizes of this many granules, at least one step's worth.
#[inline]
const fn group_of(granules: usize) -> usize {
    if granules < STEPS { 0 } else { (granules.ilog2() - STEPS_LOG2 + 1) as usize }
}

/// The largest class that is not larger than `size`, which is from [`GRANULE`] to [`MAX`].
#[inline]
pub(crate) const fn floor(size: usize) -> usize {
    let granules = size / GRANULE;
    let group = group_of(granules);
    if group == 0 { granules } else { group * STEPS + ((granules >> (group - 1)) & (STEPS - 1)) }
}

#[inline]
pub(crate) const fn size_of(class: usize) -> usize {
    let (group, step) = (class / STEPS, class % STEPS);
    if group == 0 { step * GRANULE } else { ((STEPS + step) << (group - 1)) * GRANULE }
}

#[inline]
pub(crate) const fn ceil(size: usize) -> usize {
    let class = floor(size);
    if size_of(class) < size { class + 1 } else { class }
}

/// The bytes of a block for `size` bytes, whole pages if it is large. None beyond [`MAX`].
#[inline]
pub(crate) const fn block_size(size: usize) -> Option<usize> {
    if size > MAX {
        None
    } else if size >= LARGE {
        Some(size.next_multiple_of(PAGE))
    } else if size <= GRANULE {
        Some(GRANULE)
    } else {
        Some(size_of(ceil(size)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_ordered_and_their_own_floor() {
        for class in 1..COUNT - STEPS {
            assert!(size_of(class) < size_of(class + 1));
            assert_eq!(floor(size_of(class)), class);
            assert_eq!(ceil(size_of(class)), class);
            assert_eq!(ceil(size_of(class) + 1), class + 1);
            assert_eq!(floor(size_of(class + 1) - 1), class);
        }
        assert_eq!(floor(MAX) + STEPS, COUNT);
    }

    #[test]
    fn rounding_adds_at_most_one_part_in_32() {
        for size in (8 << 10..1 << 20).step_by(37).chain([MAX - 1, MAX]) {
            let block = block_size(size).unwrap();
            assert!(block >= size && (block - size) * 32 <= size, "{size} became {block}");
        }
        assert_eq!(block_size(1), Some(256));
        assert_eq!(block_size(LARGE + 1), Some(LARGE + PAGE));
        assert_eq!(block_size(MAX + 1), None);
        assert_eq!(block_size(usize::MAX), None);
    }
}
