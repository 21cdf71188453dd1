//! What driver calls take, where no driver is there to be measured: figures of an H200 with a driver of CUDA 13.0.

/// Nanoseconds.
type Time = u64;

/// `cuMemAddressReserve`. Assumed: it makes no page table and is called a few times a run.
pub(crate) const RESERVE: Time = 5_000;
/// `cuMemCreate`, whatever the size.
pub(crate) const CREATE: Time = 7_000;
/// `cuMemMap`.
pub(crate) const MAP: Time = 1_000;
/// `cuMemSetAccess`, for each handle in the range.
pub(crate) const ACCESS: Time = 20_000;
/// `cuMemUnmap`, for each handle in the range.
pub(crate) const UNMAP: Time = 13_000;
/// `cuMemRelease`.
pub(crate) const RELEASE: Time = 8_000;
/// `cuEventRecord` with something new on the stream.
pub(crate) const RECORD: Time = 110;
/// `cuEventQuery`.
pub(crate) const QUERY: Time = 100;
/// `cuStreamWaitEvent`: a record and a wait take 330 together.
pub(crate) const STREAM_WAIT: Time = 220;

const MIB: u64 = 1 << 20;

/// `cuMemAlloc` by size: flat up to 20 MiB, then by what was measured at 256 MiB and 1 GiB.
pub(crate) fn malloc(bytes: u64) -> Time {
    between(&[(20 * MIB, 26_000), (256 * MIB, 46_000), (1024 * MIB, 95_000)], bytes)
}

/// `cuMemFree` by size, without its wait for the device.
pub(crate) fn malloc_free(bytes: u64) -> Time {
    between(&[(20 * MIB, 22_000), (1024 * MIB, 236_000)], bytes)
}

/// Linear between the points, flat beyond the ends.
fn between(points: &[(u64, Time)], bytes: u64) -> Time {
    let mut before: Option<(u64, Time)> = None;
    for &(size, time) in points {
        if bytes <= size {
            return before.map_or(time, |(least, from)| {
                let share = u128::from(bytes - least) * u128::from(time - from) / u128::from(size - least);
                from + u64::try_from(share).unwrap_or(0)
            });
        }
        before = Some((size, time));
    }
    before.map_or(0, |(_, time)| time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_go_through_the_measured_points() {
        assert_eq!([malloc(1), malloc(20 * MIB), malloc(256 * MIB)], [26_000, 26_000, 46_000]);
        assert_eq!([malloc(1024 * MIB), malloc(1 << 40)], [95_000, 95_000]);
        assert_eq!(malloc(138 * MIB), 36_000, "half way");
        assert_eq!([malloc_free(1), malloc_free(1 << 40)], [22_000, 236_000]);
        assert_eq!(malloc_free(522 * MIB), 129_000, "half way");
    }
}
