//! Host memory that has the bytes of a tag while it sleeps.
//!
//! # Safety
//!
//! Relies on the callers' word that the addresses have memory which nobody else uses until the stream has passed the copies. The host's
//! side is pinned memory that its owner keeps until it has waited for its uses.

#![allow(unsafe_code, reason = "copies from and to bare addresses")]

use std::fs;
use std::ops::Range;
use std::path::Path;

use cuda_mem_core::copy::memcpy_async;
use cuda_mem_core::host::{HostMapping, MappingOptions, Pages, RegisterFlags, RegisterOptions, Registered};
use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{Context, Error as CoreError, Stream};

use crate::error::{Error, Result, SleepError};

/// Live ranges with no more bytes than this between them are copied at once: at a link's rate that takes less time than a call.
const BRIDGED: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct BackupMemory {
    memory: Registered<HostMapping>,
    bytes: usize,
    /// The ranges that it has, in the order of their addresses, each with its place.
    pub(super) ranges: Vec<(Range<CUdeviceptr>, usize)>,
}

impl BackupMemory {
    /// Pinned memory of `bytes` bytes, all of whose pages are there. [`SleepError::NoBackup`] if the system has not as much.
    pub(super) fn new(context: &Context, bytes: usize) -> Result<Self> {
        if let Some(available) = room_in_group().filter(|available| *available < bytes) {
            let source = CoreError::OutOfHostMemory { bytes, available };
            return Err(SleepError::NoBackup { bytes, source }.into());
        }
        let mapping = HostMapping::new(bytes, &MappingOptions::new().pages(Pages::Transparent))?;
        let options = RegisterOptions::new().flags(RegisterFlags::PORTABLE);
        let memory = Registered::with_options(context, mapping, &options)
            .map_err(|refused| SleepError::NoBackup { bytes, source: refused.error })?;
        Ok(Self { memory, bytes, ranges: Vec::new() })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The same memory, for the next time.
    pub(super) fn emptied(self) -> Self {
        Self { ranges: Vec::new(), ..self }
    }

    /// Puts copies of these ranges into a stream, in the order of their addresses.
    ///
    /// # Safety
    ///
    /// The ranges have memory, which stays until the stream has passed the copies, after an error too.
    pub(super) unsafe fn save(&mut self, ranges: &[Range<CUdeviceptr>], stream: &Stream) -> Result<()> {
        self.ranges.clear();
        let mut at = 0;
        for range in ranges {
            self.ranges.push((range.clone(), at));
            at += len(range);
        }
        if at > self.bytes {
            return Err(Error::TooLarge { bytes: at });
        }
        let user = self.memory.on(stream)?;
        let host = user.address();
        for (range, at) in &self.ranges {
            // SAFETY: the caller's promise; a part of this memory, in which no two ranges have the same place.
            unsafe { memcpy_async(stream, host + *at as u64, range.start, len(range)) }?;
        }
        Ok(())
    }

    /// Puts copies into a stream that bring back what lies in `of`.
    ///
    /// # Safety
    ///
    /// These addresses have memory, which nobody else uses until the stream has passed the copies.
    pub(super) unsafe fn restore(&self, of: &Range<CUdeviceptr>, stream: &Stream) -> Result<()> {
        let user = self.memory.on(stream)?;
        let host = user.address();
        for (part, at) in self.parts(of) {
            // SAFETY: the caller's promise; a part of this memory, which has the copy of just these bytes.
            unsafe { memcpy_async(stream, part.start, host + at as u64, len(&part)) }?;
        }
        Ok(())
    }

    /// Copies what it has of the bytes from an address on to their places in `target`. The ranges that it has.
    pub(super) fn read(&self, address: CUdeviceptr, target: &mut [u8]) -> Result<Vec<Range<CUdeviceptr>>> {
        let bytes = self.memory.memory()?.as_slice();
        let mut had = Vec::new();
        for (part, at) in self.parts(&(address..address.saturating_add(target.len() as u64))) {
            let (to, size) = ((part.start - address) as usize, len(&part));
            if let (Some(target), Some(from)) = (target.get_mut(to..to + size), bytes.get(at..at + size)) {
                target.copy_from_slice(from);
                had.push(part);
            }
        }
        Ok(had)
    }

    /// The parts of a range that it has, each with its place.
    fn parts(&self, of: &Range<CUdeviceptr>) -> impl Iterator<Item = (Range<CUdeviceptr>, usize)> {
        let first = self.ranges.partition_point(|(range, _)| range.end <= of.start);
        let (start, end) = (of.start, of.end);
        let inside = self.ranges.iter().skip(first).take_while(move |(range, _)| range.start < end);
        inside.map(move |(range, at)| {
            let part = range.start.max(start)..range.end.min(end);
            let skipped = (part.start - range.start) as usize;
            (part, at + skipped)
        })
    }
}

/// How many bytes the control groups of the process may still take; None without a known limit. Who takes more is killed.
fn room_in_group() -> Option<usize> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    let folders = Path::new(own).ancestors().map(|folder| root.join(folder));
    let read = |folder: &Path, file: &str| fs::read_to_string(folder.join(file)).ok();
    let room = folders.filter_map(|folder| {
        let [most, used] = ["memory.max", "memory.current"].map(|file| read(&folder, file));
        room_of(&most?, &used?, &read(&folder, "memory.stat").unwrap_or_default())
    });
    room.min()
}

/// What is left of a group's limit. Its pages of files that nobody used lately make room.
fn room_of(most: &str, used: &str, statistics: &str) -> Option<usize> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let inactive = statistics.lines().find_map(|line| number(line.strip_prefix("inactive_file ")?));
    let used = number(used)?.saturating_sub(inactive.unwrap_or(0));
    Some(number(most)?.saturating_sub(used))
}

pub(super) fn len(range: &Range<CUdeviceptr>) -> usize {
    (range.end - range.start) as usize
}

/// The live ranges of these segments, without what is short between two of one segment: that costs less to copy than to leave out. Both lie in
/// the order of their addresses, and each live range in one segment.
pub(super) fn joined(
    live: &[Range<CUdeviceptr>],
    segments: impl Iterator<Item = Range<CUdeviceptr>>,
) -> Vec<Range<CUdeviceptr>> {
    let mut joined: Vec<Range<CUdeviceptr>> = Vec::new();
    for segment in segments {
        let first = joined.len();
        let behind = live.partition_point(|range| range.start < segment.start);
        for range in live.iter().skip(behind).take_while(|range| range.start < segment.end) {
            match joined.get_mut(first..).and_then(<[_]>::last_mut) {
                Some(last) if range.start - last.end <= BRIDGED => last.end = range.end,
                _ => joined.push(range.clone()),
            }
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_room_up_to_its_limit() {
        assert_eq!(room_of("max\n", "10\n", ""), None);
        assert_eq!(room_of("1000\n", "400\n", "anon 7\ninactive_file 100\n"), Some(700));
        assert_eq!(room_of("1000\n", "1200\n", "inactive_anon 5\n"), Some(0));
    }

    #[test]
    fn live_ranges_are_joined_over_short_gaps_and_never_over_what_has_no_memory() {
        let live = [10..20, 30..40, 99_000..100_000, 100_000..100_010, 200_000..200_010];
        let joined = |segments: &[Range<u64>]| joined(&live, segments.iter().cloned());
        assert_eq!(
            joined(&[0..100_000, 100_000..300_000]),
            [10..40, 99_000..100_000, 100_000..100_010, 200_000..200_010]
        );
        assert_eq!(joined(&[0..25, 100_000..150_000]), [10..20, 100_000..100_010]);
        assert_eq!(joined(&[50..90_000, 100_010..150_000]), []);
    }
}
