//! Segments that go back to where they came from. Only wholly free ones can.

use super::block::SegmentKind;
use super::heap::SegmentHeap;
use super::segment::{FreeSegment, SegmentRequest};

impl SegmentHeap {
    /// Takes every wholly free segment out, large ones first.
    #[must_use = "the memory is to be given back"]
    pub fn release_cached(&mut self) -> Vec<FreeSegment> {
        let whole: Vec<u32> =
            self.large.iter().chain(self.small.iter()).filter(|&number| self.is_whole(number)).collect();
        whole.into_iter().filter_map(|number| self.take_out(number)).collect()
    }

    /// Takes segments out that are too large to be split, as few as make room for a request that missed: one that would hold
    /// it, else its stream's largest ones. None without [`max_split_size`](super::Options::max_split_size).
    pub fn release_available(&mut self, wanted: &SegmentRequest) -> Available {
        let mut available = Available { segments: Vec::new(), enough: false };
        let Some(most_split) = self.options.max_split_size() else { return available };
        let (stream, room) = (wanted.stream, wanted.size.max(most_split));
        let pool = match SegmentKind::of(wanted.size) {
            SegmentKind::Small => &self.small,
            SegmentKind::Large => &self.large,
        };
        let one = pool.at_least(stream, room).map(|(_, &number)| number);
        let candidates: Vec<u32> = match one.filter(|&number| self.is_whole(number)) {
            Some(number) => vec![number],
            None => pool.below(stream, room, most_split).filter(|&number| self.is_whole(number)).collect(),
        };
        let mut bytes = 0u64;
        for number in candidates {
            let Some(segment) = self.take_out(number) else { continue };
            bytes = bytes.saturating_add(segment.bytes);
            available.segments.push(segment);
            if bytes >= room {
                available.enough = true;
                break;
            }
        }
        available
    }

    /// Takes large segments out that have been free for longest, at least `excess` bytes if there are as many: again and
    /// again all those whose age is no less than the average. An age is how often a large block was searched for since.
    #[must_use = "the memory is to be given back"]
    pub fn collect_garbage(&mut self, excess: u64) -> Vec<FreeSegment> {
        let now = self.large.searches();
        let mut aged: Vec<(u64, u32)> = self
            .large
            .iter()
            .filter(|&number| self.is_whole(number))
            .filter_map(|number| Some((now.wrapping_sub(self.blocks.get(number)?.free_since), number)))
            .collect();
        let mut taken: Vec<FreeSegment> = Vec::new();
        let mut bytes = 0u64;
        while bytes < excess && !aged.is_empty() {
            let sum: u128 = aged.iter().map(|&(age, _)| u128::from(age)).sum();
            // The oldest is never below the average, so each round takes one at least.
            let count = aged.len() as u128;
            let (old, young): (Vec<_>, Vec<_>) =
                aged.into_iter().partition(|&(age, _)| u128::from(age) * count >= sum);
            for (_, number) in old {
                let Some(segment) = self.take_out(number) else { continue };
                bytes = bytes.saturating_add(segment.bytes);
                taken.push(segment);
            }
            aged = young;
        }
        taken
    }

    /// How many bytes are too many for the threshold of garbage collection, when `reserved` bytes are reserved of a `limit`.
    #[must_use]
    pub fn excess(&self, reserved: u64, limit: u64) -> u64 {
        let threshold = self.options.garbage_collection_threshold();
        threshold.map_or(0, |part| reserved.saturating_sub((part * limit as f64) as u64))
    }

    /// Takes the segment out that a free block is the whole of.
    fn take_out(&mut self, number: u32) -> Option<FreeSegment> {
        self.leave_pool(number);
        let block = self.blocks.remove(number)?.block;
        let segment = self.segments.remove(&block.address)?;
        self.totals_mut(segment.kind).segment_went(segment.bytes);
        let (bytes, stream, kind) = (segment.bytes, segment.stream, segment.kind);
        Some(FreeSegment { address: block.address, bytes, stream, kind })
    }

    fn is_whole(&self, number: u32) -> bool {
        self.blocks.get(number).is_some_and(|record| !record.is_split())
    }
}

/// What [`SegmentHeap::release_available`] took. [`SegmentHeap`](super::SegmentHeap) has an example.
#[derive(Debug)]
#[must_use = "the memory is to be given back"]
pub struct Available {
    /// The segments.
    pub segments: Vec<FreeSegment>,
    /// Whether they make room for the request.
    pub enough: bool,
}
