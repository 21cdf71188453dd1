//! Every figure that was chosen, in one place.
//!
//! They are for a link of 55 GB/s (docs/measurements.md) and host threads that copy 11 GB/s each. The ring is small
//! enough for the last-level cache of a server, from which the device then reads; a slot is large enough that the three
//! microseconds that each copy costs the link are 4 % of it.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Bytes up to which one slice goes straight, as [`DeviceRange::copy_from_slice`](crate::DeviceRange::copy_from_slice) does:
/// the driver's own way is as short then.
pub(super) const STRAIGHT: usize = 64 << 10;

/// Downloads of so many bytes and more are written past the cache: most of them would not be there any more when they are looked
/// at, and reading each line before it is overwritten takes a third of what the memory can do.
pub(super) const PAST_CACHE: usize = 32 << 20;

/// Threads that copy, if the machine has as many: eight, from which on more were seen to gain nothing, and the caller, who puts
/// the copies of the link into the stream.
pub(super) const THREADS: usize = 9;
pub(super) const SLOTS: usize = 8;
pub(super) const SLOT_BYTES: usize = 4 << 20;

pub(super) const THREADS_ACCEPTED: RangeInclusive<usize> = 1..=256;
pub(super) const SLOTS_ACCEPTED: RangeInclusive<usize> = 1..=1024;
pub(super) const SLOT_BYTES_ACCEPTED: RangeInclusive<usize> = PAGE..=1 << 30;

/// Slots are whole pages.
pub(super) const PAGE: usize = 4096;

/// The smallest piece that is worth a copy of the link of its own.
const LEAST_CHUNK: usize = 256 << 10;

/// The part of a chunk that one thread copies at a time: small, so that all end together, but worth taking a lock for.
const PART: RangeInclusive<usize> = 32 << 10..=256 << 10;

/// How long a thread looks for work before it sleeps: longer than the link takes for a slot, so that threads that are ahead of it
/// are there when the next one is free. Waking them costs about as long.
#[cfg(not(all(loom, test)))]
pub(super) const LOOK: Duration = Duration::from_micros(100);

/// How long a wait for the device is busy before it sleeps.
pub(super) const BUSY: Duration = Duration::from_micros(300);

/// The shortest and the longest sleep of such a wait.
pub(super) const SLEEP: RangeInclusive<Duration> = Duration::from_micros(20)..=Duration::from_micros(200);

/// How long a ring may give out no slot before whoever waits for one goes straight: its slots are with streams that are held up,
/// perhaps by what the one who waits would do next.
pub(super) const STALLED: Duration = Duration::from_millis(5);

/// The bytes of the next chunk, after `done` bytes and with `left` to come: small at both ends of a copy, where the link waits
/// for the host or the host for the link, and as large as a slot between them.
pub(super) fn chunk(done: usize, left: usize, slot_bytes: usize) -> usize {
    let grown = done.saturating_add(LEAST_CHUNK).min(left / 2).max(LEAST_CHUNK);
    // Whole pages, so that parts are cut at multiples of a cache line.
    grown.next_multiple_of(PAGE).min(slot_bytes).min(left)
}

/// The bytes of each part of a chunk of `len` bytes.
pub(super) fn part(len: usize, threads: usize) -> usize {
    let even = len.div_ceil(threads.max(1)).clamp(*PART.start(), *PART.end());
    even.next_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn chunks_fit_their_slot_and_end(total in 0usize..1 << 30, pages in 1usize..1024, threads in 1usize..20) {
            let slot_bytes = pages * PAGE;
            let total = total % (slot_bytes * 20);
            let (mut done, mut chunks) = (0, 0);
            while done < total {
                let len = chunk(done, total - done, slot_bytes);
                prop_assert!(0 < len && len <= slot_bytes && len <= total - done);
                prop_assert!(part(len, threads) > 0 && part(len, threads).is_multiple_of(PAGE));
                (done, chunks) = (done + len, chunks + 1);
            }
            prop_assert!(chunks <= total / slot_bytes.min(LEAST_CHUNK) + 2, "{chunks} chunks");
        }
    }

    #[test]
    fn chunks_grow_and_shrink() {
        let (mut done, mut sizes) = (0, Vec::new());
        let total = 32 << 20;
        while done < total {
            let len = chunk(done, total - done, SLOT_BYTES);
            sizes.push(len);
            done += len;
        }
        assert_eq!(sizes[..5], [256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20]);
        assert!(*sizes.last().unwrap() <= LEAST_CHUNK, "{sizes:?}");
    }
}
