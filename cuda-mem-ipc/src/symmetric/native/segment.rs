//! Device memory that all ranks map, cut into allocations, with the words of its signals.
//!
//! # Safety
//!
//! Relies on `ImportedMapping` staying mapped while it lives: what is copied here lies in one that does, and is waited for.

#![allow(unsafe_code, reason = "copies zeroes to addresses")]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

use cuda_mem_pool::cuda_mem_core::ipc::{ImportedMapping, SharedWords};
use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::vmm::{self, CreateOptions, ShareableMemory};
use cuda_mem_pool::cuda_mem_core::{Context, DeviceBuffer, Error as CoreError, Result, Stream, Uses, copy};

use super::message::SegmentInfo;
use super::space::{Block, GRANULE, Space};
use super::state::{Announced, lock};
use super::{CHANNELS, SIGNAL_PAD_BYTES};
use crate::symmetric::Error;

/// Memory of one rank, mapped here.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) mapping: ImportedMapping,
    pub(super) words: SharedWords,
    pub(super) pads: usize,
    pub(super) pad_bytes: usize,
}

/// This rank's own, which it allocates from. The pads come first, then the data.
#[derive(Debug)]
pub(super) struct OwnSegment {
    pub(super) number: u64,
    pub(super) segment: Segment,
    inner: Mutex<Inner>,
    zeroes: DeviceBuffer<u8>,
    stream: Stream,
}

#[derive(Debug)]
struct Inner {
    space: Space,
    /// Given back while a stream that used them captures.
    parked: Vec<(Block, Uses)>,
}

/// What the other ranks need to map it.
pub(super) struct Export {
    pub(super) info: SegmentInfo,
    pub(super) memory: OwnedFd,
    pub(super) words: OwnedFd,
}

/// How many words a pad has beside it, in a group of so many ranks.
pub(super) fn slots_of_a_pad(ranks: usize) -> usize {
    2 * CHANNELS * ranks
}

impl Segment {
    /// Where the data begins.
    pub(super) fn data(&self) -> usize {
        self.pads.saturating_mul(self.pad_bytes)
    }

    pub(super) fn pad_address(&self, pad: usize) -> CUdeviceptr {
        self.mapping.as_raw() + (pad * self.pad_bytes) as u64
    }

    /// Maps what rank `rank` announced, for the context's device to reach.
    pub(super) fn import(
        context: &Context,
        announced: Announced,
        rank: usize,
        ranks: usize,
    ) -> Result<Self, Error> {
        let Announced { info, memory, words } = announced;
        let (device, driver) = (context.device(), context.driver());
        let invalid = |what, value, most| Error::Invalid { rank, what, value, most };
        let pad_bytes = SIGNAL_PAD_BYTES as u64;
        if info.pad_bytes != pad_bytes {
            return Err(invalid("the size of a signal pad", info.pad_bytes, pad_bytes));
        }
        if info.pads.checked_mul(pad_bytes).is_none_or(|pads| pads >= info.bytes) {
            return Err(invalid("the number of signal pads", info.pads, info.bytes / pad_bytes));
        }
        let words = SharedWords::open(context, words)?;
        let pads = usize::try_from(info.pads).unwrap_or(usize::MAX);
        if pads.checked_mul(slots_of_a_pad(ranks)).is_none_or(|slots| slots > words.slots()) {
            let most = words.slots() / slots_of_a_pad(ranks);
            return Err(invalid("the number of signal pads", info.pads, most as u64));
        }
        let mut devices = driver.devices()?.into_iter();
        let theirs = loop {
            match devices.next() {
                Some(device) if device.uuid()? == info.device => break device,
                Some(_) => {}
                None => return Err(Error::DeviceNotVisible { rank, uuid: info.device }),
            }
        };
        let bytes = usize::try_from(info.bytes).unwrap_or(usize::MAX);
        let mapping = ImportedMapping::import_posix_fd(theirs, memory.as_fd(), bytes, &[device])?;
        Ok(Self { mapping, words, pads, pad_bytes: SIGNAL_PAD_BYTES })
    }
}

impl OwnSegment {
    /// New memory with room for `bytes` bytes at least, and for so many allocations.
    pub(super) fn create(
        context: &Context,
        stream: &Stream,
        number: u64,
        bytes: usize,
        pads: usize,
        ranks: usize,
    ) -> Result<(Self, Export)> {
        let device = context.device();
        let too_large = CoreError::TooLarge { count: bytes, size: 1 };
        let data = (pads * SIGNAL_PAD_BYTES).next_multiple_of(GRANULE);
        let whole = data.checked_add(bytes).and_then(|bytes| {
            let granularity = vmm::granularity(device).ok()?;
            bytes.checked_next_multiple_of(granularity)
        });
        let whole = whole.ok_or(too_large)?;
        let memory = ShareableMemory::create(device, whole, &CreateOptions::supported_by(device)?)?;
        let descriptor = memory.export_posix_fd()?;
        // As another rank maps it: one way for all.
        let mapping = ImportedMapping::import_posix_fd(device, descriptor.as_fd(), whole, &[device])?;
        memory.into_memory().close()?;
        let zeroes = DeviceBuffer::zeroed(stream, SIGNAL_PAD_BYTES)?;
        let words = SharedWords::create(context, pads * slots_of_a_pad(ranks))?;
        let segment = Segment { mapping, words, pads, pad_bytes: SIGNAL_PAD_BYTES };
        let inner = Inner { space: Space::new(data, whole, pads), parked: Vec::new() };
        let made = Self { number, segment, inner: Mutex::new(inner), zeroes, stream: stream.clone() };
        made.clear(0, pads)?;
        let info = SegmentInfo {
            number,
            bytes: whole as u64,
            pads: pads as u64,
            pad_bytes: SIGNAL_PAD_BYTES as u64,
            device: device.uuid()?,
        };
        let words = made.segment.words.as_fd().try_clone_to_owned();
        let words = words.map_err(|source| CoreError::Io { call: "dup", source: source.into() })?;
        Ok((made, Export { info, memory: descriptor, words }))
    }

    /// Zeroes pads, and waits until they are.
    fn clear(&self, from: usize, to: usize) -> Result<()> {
        let result = self.enqueue_clear(from, to);
        self.stream.synchronize()?;
        result
    }

    /// The first pad is cleared, and what is clear is copied behind itself until all are: a call for each doubling, not for each pad.
    fn enqueue_clear(&self, from: usize, to: usize) -> Result<()> {
        let (first, bytes) = (self.segment.pad_address(from), (to - from) * SIGNAL_PAD_BYTES);
        let zeroes = self.zeroes.on_read(&self.stream)?;
        // SAFETY: a pad of the mapping, which lives as long as `self`, and a buffer of as many bytes; the caller waits.
        unsafe { copy::memcpy_async(&self.stream, first, zeroes.address(), SIGNAL_PAD_BYTES) }?;
        let mut clear = SIGNAL_PAD_BYTES;
        while clear < bytes {
            let more = clear.min(bytes - clear);
            // SAFETY: pads `from..to` of the mapping, those that are clear and as many bytes behind them, which do not overlap; the
            // caller waits.
            unsafe { copy::memcpy_async(&self.stream, first + clear as u64, first, more) }?;
            clear += more;
        }
        Ok(())
    }

    /// A piece of so many bytes, if there is one.
    pub(super) fn take(&self, len: usize) -> Option<Block> {
        let mut inner = lock(&self.inner);
        let parked = std::mem::take(&mut inner.parked);
        if !parked.is_empty() {
            drop(inner);
            parked.into_iter().for_each(|(block, uses)| self.give_back(block, uses));
            inner = lock(&self.inner);
        }
        inner.space.take(len)
    }

    /// Takes a piece back when its uses are over, for which it waits.
    pub(super) fn give_back(&self, block: Block, uses: Uses) {
        // Before both: a stream that captures, or a driver that fails, leaves the piece for later.
        let is_quiet = uses.wait().is_ok() && self.clear(block.pad, block.pad + 1).is_ok();
        let mut inner = lock(&self.inner);
        if is_quiet {
            inner.space.give_back(block);
        } else {
            inner.parked.push((block, uses));
        }
    }
}
