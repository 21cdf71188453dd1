//! Blocks that are out, and what the device puts into them.

use cuda_mem_core::copy::memcpy_async;
use cuda_mem_core::host::{HostMemory, PinnedFlags};
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{PinnedBuffer, Stream};
use cuda_mem_pool::{Allocation, DeviceAccessible};

use crate::common::capture::raw;

pub(super) enum Memory {
    Owned(Allocation<DeviceAccessible>),
    Raw(u64),
}

pub(super) struct Live {
    pub(super) memory: Memory,
    pub(super) address: u64,
    pub(super) bytes: usize,
    /// The bytes that the allocator counts.
    pub(super) size: u64,
    /// The stream that it was allocated for.
    pub(super) home: Stream,
    /// The stream that used it last, behind all others that did.
    pub(super) last: Stream,
    /// What is in it; none before it was written.
    pub(super) value: Option<u8>,
}

/// Bytes on their way to the host, and what they must be.
pub(super) struct Sample {
    bytes: PinnedBuffer<u8>,
    value: u8,
}

/// How much is read at a place.
const PART: usize = 256;

/// Places are the multiples of this, whatever block they are in, so that two that have the same memory write to the same place; and a block's
/// two ends.
const APART: u64 = 256 << 10;

/// A larger block is written at its places alone: to make all of its pages takes the system most of the test's time.
const WHOLE: usize = 2 << 20;

impl Live {
    fn part(&self) -> usize {
        PART.min(self.bytes)
    }

    /// Where in it something is read, and of a large one written.
    fn places(&self) -> Vec<usize> {
        let (first, last) = (self.address, self.address + (self.bytes - self.part()) as u64);
        let multiples = (first.next_multiple_of(APART)..last).step_by(APART as usize);
        [first].into_iter().chain(multiples).chain([last]).map(|at| (at - first) as usize).collect()
    }

    pub(super) fn fill(&mut self, stream: &Stream, value: u8) {
        // Where there is time all of it.
        let is_whole = self.bytes <= WHOLE || std::env::var_os("PROPTEST_CASES").is_some();
        let (places, len) = if is_whole { (vec![0], self.bytes) } else { (self.places(), self.part()) };
        for place in places {
            self.fill_part(stream, place, len, value);
        }
        self.last = stream.clone();
        self.value = Some(value);
    }

    fn fill_part(&mut self, stream: &Stream, place: usize, len: usize, value: u8) {
        match &mut self.memory {
            Memory::Owned(block) => {
                let part = block.as_device_range().range(place..place + len).unwrap();
                part.fill_bytes(stream, value).unwrap();
            }
            Memory::Raw(address) => {
                let fill = stream.context().driver().table().cuMemsetD8Async().unwrap();
                let run = || {
                    // SAFETY: bytes of a block that is out, filled behind the work that used it last.
                    unsafe { fill(*address + place as u64, value, len, raw(stream)) }
                };
                assert_eq!(stream.context().with_current(run).unwrap(), CUresult::CUDA_SUCCESS);
            }
        }
    }

    /// Has the stream that used it last read parts of it.
    pub(super) fn sample(&self) -> Option<Sample> {
        let value = self.value?;
        let (part, places) = (self.part(), self.places());
        let len = places.len() * part;
        let bytes = PinnedBuffer::zeroed(self.last.context(), len, PinnedFlags::PORTABLE).unwrap();
        for (at, place) in places.into_iter().enumerate() {
            let to = bytes.as_ptr().expose_provenance() as u64 + (at * part) as u64;
            // SAFETY: both are as long, the one is out and the other kept until it was waited for.
            unsafe { memcpy_async(&self.last, to, self.address + place as u64, part) }.unwrap();
        }
        Some(Sample { bytes, value })
    }
}

impl Sample {
    /// The copies are done.
    pub(super) fn check(&self) {
        let bytes = self.bytes.as_slice().unwrap();
        assert!(
            bytes.iter().all(|byte| *byte == self.value),
            "other bytes than were written: {:?}",
            &bytes[..8]
        );
    }
}
