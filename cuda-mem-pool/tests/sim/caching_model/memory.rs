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

/// How much is read at either end and at the beginning of each page.
const PART: usize = 256;
const PAGE: usize = 2 << 20;

impl Live {
    pub(super) fn fill(&mut self, stream: &Stream, value: u8) {
        match &mut self.memory {
            Memory::Owned(block) => block.as_device_range().fill_bytes(stream, value).unwrap(),
            Memory::Raw(address) => {
                let fill = stream.context().driver().table().cuMemsetD8Async().unwrap();
                let run = || {
                    // SAFETY: a block that is out, filled behind the work that used it last.
                    unsafe { fill(*address, value, self.bytes, raw(stream)) }
                };
                assert_eq!(stream.context().with_current(run).unwrap(), CUresult::CUDA_SUCCESS);
            }
        }
        self.last = stream.clone();
        self.value = Some(value);
    }

    /// Has the stream that used it last read parts of it.
    pub(super) fn sample(&self) -> Option<Sample> {
        let value = self.value?;
        let part = PART.min(self.bytes);
        let mut places: Vec<usize> = (0..self.bytes - part).step_by(PAGE).collect();
        places.push(self.bytes - part);
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
