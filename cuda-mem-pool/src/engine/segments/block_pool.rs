//! The free blocks of one sort, in the order that best fit looks for them.

use std::collections::BTreeMap;

use super::options::Options;

/// Stream, size, address.
type Key = (u64, u64, u64);

/// Free blocks, small or large ones.
#[derive(Debug, Default)]
pub(super) struct BlockPool {
    free: BTreeMap<Key, u32>,
    /// The clock by which blocks age.
    searches: u64,
}

impl BlockPool {
    pub(super) fn insert(&mut self, stream: u64, size: u64, address: u64, number: u32) {
        self.free.insert((stream, size, address), number);
    }

    pub(super) fn remove(&mut self, stream: u64, size: u64, address: u64) {
        self.free.remove(&(stream, size, address));
    }

    /// How many searches there were.
    pub(super) fn searches(&self) -> u64 {
        self.searches
    }

    /// The smallest block of the stream that `size` bytes fit in, the one with the lowest address of those. If the options
    /// forbid it, there is none: what is larger is not looked at, as in PyTorch.
    pub(super) fn find(&mut self, stream: u64, size: u64, options: &Options) -> Option<u32> {
        self.searches = self.searches.wrapping_add(1);
        self.fitting(stream, size, options)
    }

    /// As [`BlockPool::find`], without ageing.
    pub(super) fn fitting(&self, stream: u64, size: u64, options: &Options) -> Option<u32> {
        let (&(_, found, _), &number) = self.at_least(stream, size)?;
        let most_split = options.max_split_size().unwrap_or(u64::MAX);
        let allowed = if size < most_split {
            found < most_split
        } else {
            found - size < options.max_non_split_rounding()
        };
        allowed.then_some(number)
    }

    /// The stream's first block of at least `size` bytes.
    pub(super) fn at_least(&self, stream: u64, size: u64) -> Option<(&Key, &u32)> {
        self.free.range((stream, size, 0)..=(stream, u64::MAX, u64::MAX)).next()
    }

    /// The stream's blocks below `size` bytes and from `least` bytes on, the largest first.
    pub(super) fn below(&self, stream: u64, size: u64, least: u64) -> impl Iterator<Item = u32> {
        let least = least.min(size);
        self.free.range((stream, least, 0)..(stream, size, 0)).rev().map(|(_, &number)| number)
    }

    /// The sizes of the stream's blocks.
    pub(super) fn sizes(&self, stream: u64) -> impl Iterator<Item = u64> {
        self.free.range((stream, 0, 0)..=(stream, u64::MAX, u64::MAX)).map(|(&(_, size, _), _)| size)
    }

    /// All, by stream, size and address.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.free.values().copied()
    }
}
