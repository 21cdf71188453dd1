//! Device memory that all ranks map, cut into allocations.
//!
//! # Safety
//!
//! Relies on `ImportedMapping` staying mapped while it lives and does not sleep, and on its release waiting for the uses that it knows of: what
//! is set here lies in one that lives, and the stream that sets it is such a use.

#![allow(unsafe_code, reason = "sets memory at addresses")]

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use cuda_mem_pool::cuda_mem_core::ipc::ImportedMapping;
use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::vmm::{self, CreateOptions, ShareableMemory};
use cuda_mem_pool::cuda_mem_core::{Context, Error as CoreError, Result, Stream, Uses, copy, forked};

use super::SIGNAL_PAD_BYTES;
use super::announced::{Announced, Came};
use super::group;
use super::message::SegmentInfo;
use crate::free_list::FreeList;
use crate::memory_file::device_of;
use crate::primitive::{lock, lock_over_calls};
use crate::symmetric::Error;

/// What offsets and sizes are multiples of, in bytes: a signal pad is one too.
pub(super) const GRANULE: usize = 512;

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) mapping: ImportedMapping,
    pub(super) pads: usize,
}

/// This rank's own, which it allocates from. The pads come first, then the data.
#[derive(Debug)]
pub(super) struct OwnSegment {
    pub(super) number: u64,
    pub(super) segment: Segment,
    inner: Mutex<Inner>,
    stream: Stream,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) offset: usize,
    /// With what was rounded up.
    len: usize,
    pub(super) pad: usize,
}

#[derive(Debug)]
struct Inner {
    /// Of the bytes behind the pads.
    free: FreeList<()>,
    /// The last is taken next.
    pads: Vec<usize>,
    /// Given back while a stream that used them captures, or there is no memory.
    parked: Vec<(Block, Uses)>,
    /// Pads that the stream has yet to zero, for all that is known. They are waited for together, when no other is left.
    clearing: Vec<usize>,
}

impl Segment {
    pub(super) fn data(&self) -> usize {
        self.pads.saturating_mul(SIGNAL_PAD_BYTES)
    }

    pub(super) fn pad_address(&self, pad: usize) -> CUdeviceptr {
        self.mapping.as_raw() + (pad * SIGNAL_PAD_BYTES) as u64
    }
}

impl Announced for Segment {
    type Info = SegmentInfo;
    const PLACE: usize = 0;
    const TEXTS: [&'static str; 3] = ["segments", "the number of a segment", "announce a segment"];

    fn number(info: &SegmentInfo) -> u64 {
        info.number.get()
    }

    fn is_awake(&self) -> bool {
        self.mapping.is_awake()
    }

    fn open(
        own: &group::Inner,
        rank: usize,
        (info, memory): Came<Self>,
        slept: Option<Arc<Self>>,
    ) -> Result<Arc<Self>, Error> {
        let (context, pads) = (&own.context, own.options.segment_allocations);
        let (bytes, pad_bytes) = (info.bytes.get(), (pads * SIGNAL_PAD_BYTES) as u64);
        let there = slept.as_ref().map(|slept| slept.mapping.bytes() as u64);
        let accepted = there.map_or(pad_bytes + 1..=u64::MAX, |there| there..=there);
        Error::expect(rank, "the size of a segment", bytes, accepted)?;
        let segment = match slept {
            Some(slept) => slept,
            None => {
                let unseen = Error::DeviceNotVisible { rank, uuid: info.device };
                let (theirs, bytes) = (device_of(context, info.device)?, usize::try_from(bytes));
                let bytes = bytes.unwrap_or(usize::MAX);
                // SAFETY: only this function has the addresses until they have memory, below.
                let mapping = unsafe { ImportedMapping::reserve(theirs.ok_or(unseen)?, bytes) }?;
                Arc::new(Self { mapping, pads })
            }
        };
        memory
            .iter()
            .try_for_each(|handle| segment.mapping.wake_posix_fd(handle.as_fd(), &[context.device()]))?;
        Ok(segment)
    }
}

impl OwnSegment {
    /// New memory with room for `bytes` bytes at least, and for so many allocations; and what the other ranks map it by.
    pub(super) fn create(
        context: &Context,
        stream: &Stream,
        number: u64,
        bytes: usize,
        pads: usize,
    ) -> Result<(Self, SegmentInfo, OwnedFd)> {
        let (device, data) = (context.device(), pads * SIGNAL_PAD_BYTES);
        let granularity = vmm::granularity(device)?;
        let whole = data.checked_add(bytes).and_then(|bytes| bytes.checked_next_multiple_of(granularity));
        let whole = whole.ok_or(CoreError::TooLarge { count: bytes, size: 1 })?;
        // SAFETY: only this function has the addresses until they have memory, below.
        let segment = Segment { mapping: unsafe { ImportedMapping::reserve(device, whole) }?, pads };
        let (free, pads) = (FreeList::new(whole - data, ()), (0..pads).rev().collect());
        let inner = Inner { free, pads, parked: Vec::new(), clearing: Vec::new() };
        let made = Self { number, segment, inner: Mutex::new(inner), stream: stream.clone() };
        let (info, descriptor) = made.wake()?;
        Ok((made, info, descriptor))
    }

    /// Makes new memory, whose pads are zero, at the addresses; and what the other ranks map it by.
    pub(super) fn wake(&self) -> Result<(SegmentInfo, OwnedFd)> {
        let (_inner, Segment { mapping, pads }) = (lock(&self.inner), &self.segment);
        // SAFETY: the mapping of an earlier try that failed, whose memory no rank was told of.
        unsafe { mapping.sleep() }?;
        let (device, bytes) = (mapping.device(), mapping.bytes());
        let memory = ShareableMemory::create(device, bytes, &CreateOptions::supported_by(device)?)?;
        let descriptor = memory.export_posix_fd()?;
        mapping.wake(memory.into_memory(), &[device])?;
        let cleared = self.clear(0..*pads);
        self.stream.synchronize()?;
        cleared?;
        let (number, bytes) = (self.number.into(), (bytes as u64).into());
        Ok((SegmentInfo { number, bytes, device: device.uuid()? }, descriptor))
    }

    /// Gives the memory back.
    ///
    /// # Safety
    ///
    /// Nothing uses it, but for the clearing of pads.
    pub(super) unsafe fn sleep(&self) -> Result<()> {
        let _inner = lock(&self.inner);
        // SAFETY: the caller's promise; the clearing of pads is one of its uses, and none begins while this has the lock, nor while it sleeps.
        unsafe { self.segment.mapping.sleep() }
    }

    fn clear(&self, pads: Range<usize>) -> Result<()> {
        let (first, bytes) = (self.segment.pad_address(pads.start), pads.len() * SIGNAL_PAD_BYTES);
        let _use = self.segment.mapping.on(&self.stream)?;
        // SAFETY: pads of the mapping, which lives as long as `self` and knows of the stream, and which no allocation has.
        unsafe { copy::memset_async(&self.stream, first, 0, bytes) }
    }

    pub(super) fn take(&self, len: usize) -> Option<Block> {
        let mut inner = lock(&self.inner);
        let parked = std::mem::take(&mut inner.parked);
        if !parked.is_empty() {
            drop(inner);
            for (block, mut uses) in parked {
                // Not waited for: the stream may wait for another rank, and that one for this allocation.
                let is_over = matches!(uses.have_passed(), Ok(true));
                self.give_back(block, uses, is_over);
            }
            inner = lock(&self.inner);
        }
        if inner.pads.is_empty() && !inner.clearing.is_empty() && self.stream.synchronize().is_ok() {
            inner.pads = std::mem::take(&mut inner.clearing);
        }
        let pad = inner.pads.last().copied()?;
        let (offset, ()) = inner.free.take(len, |()| true)?;
        inner.pads.pop();
        Some(Block { offset: self.segment.data() + offset, len, pad })
    }

    /// Takes a piece back, at once if its uses are over. Its pad is zeroed meanwhile.
    pub(super) fn give_back(&self, block: Block, uses: Uses, is_over: bool) {
        // A stream that captures, a driver that fails, or the sleep leaves the piece for later.
        let (_reports, mut inner) = lock_over_calls(&self.inner);
        if is_over && self.segment.is_awake() && self.clear(block.pad..block.pad + 1).is_ok() {
            inner.free.give(block.offset - self.segment.data(), block.len, ());
            inner.clearing.push(block.pad);
        } else {
            inner.parked.push((block, uses));
        }
    }
}

impl Drop for OwnSegment {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        // Their captures cannot be waited for, but what the streams were given before can.
        for (_, uses) in lock(&self.inner).parked.drain(..) {
            self.segment.mapping.absorb_uses(uses);
        }
    }
}
