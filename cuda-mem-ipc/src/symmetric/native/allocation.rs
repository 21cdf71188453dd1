//! One allocation, of this rank and as it lies on the others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::{Uses, forked};

use super::directory::Entry;
use super::segment::{OwnSegment, Segment};
use super::space::Block;
use super::words::{Piece, Words};
use crate::symmetric::Allocated;

/// Memory of this rank. Its piece goes back to the segment with the last handle.
#[derive(Debug)]
pub(super) struct Allocation {
    pub(super) segment: Arc<OwnSegment>,
    pub(super) block: Block,
    pub(super) words: Words,
    pub(super) size: usize,
    pub(super) sequence: u64,
    /// No other one of the process has it, of whatever group.
    serial: u64,
    pub(super) uses: Uses,
    /// The same allocation on each rank, once all have been looked at; none for this one.
    pub(super) remotes: OnceLock<Vec<Option<Remote>>>,
}

/// Where another rank has it.
#[derive(Debug, Clone)]
pub(super) struct Remote {
    pub(super) segment: Arc<Segment>,
    pub(super) offset: usize,
    pub(super) pad: usize,
    pub(super) piece: Arc<Piece>,
    /// Which words of the piece.
    pub(super) words: usize,
}

/// What a rank publishes of a size is checked against this before an offset is believed.
pub(super) fn place(entry: &Entry, segment: &Segment) -> Result<(usize, usize), (&'static str, u64, u64)> {
    let bytes = segment.mapping.bytes() as u64;
    let data = segment.data() as u64;
    if entry.pad >= segment.pads as u64 {
        return Err(("the number of a signal pad", entry.pad, (segment.pads as u64).saturating_sub(1)));
    }
    let last = bytes.saturating_sub(entry.size);
    if entry.size > bytes || entry.offset < data || entry.offset > last {
        return Err(("the offset of an allocation", entry.offset, last));
    }
    // Both are below the segment's bytes, which are a `usize`.
    Ok((usize::try_from(entry.offset).unwrap_or(0), usize::try_from(entry.pad).unwrap_or(0)))
}

impl Allocation {
    pub(super) fn new(
        segment: Arc<OwnSegment>,
        block: Block,
        words: Words,
        size: usize,
        sequence: u64,
    ) -> Self {
        static SERIALS: AtomicU64 = AtomicU64::new(0);
        let serial = SERIALS.fetch_add(1, Ordering::Relaxed);
        Self { segment, block, words, size, sequence, serial, uses: Uses::new(), remotes: OnceLock::new() }
    }

    pub(super) fn address(&self) -> CUdeviceptr {
        self.segment.segment.mapping.as_raw() + self.block.offset as u64
    }

    pub(super) fn allocated(&self) -> Allocated {
        Allocated { address: self.address(), serial: self.serial }
    }

    /// Whether an address lies in it. One without bytes has its own.
    pub(super) fn has(&self, address: CUdeviceptr) -> bool {
        address.checked_sub(self.address()).is_some_and(|offset| offset < self.size.max(1) as u64)
    }

    pub(super) fn entry(&self) -> Entry {
        Entry {
            sequence: self.sequence,
            size: self.size as u64,
            segment: self.segment.number,
            offset: self.block.offset as u64,
            pad: self.block.pad as u64,
            words: self.words.place(),
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if !forked() {
            self.segment.give_back(self.block, std::mem::take(&mut self.uses));
        }
    }
}
