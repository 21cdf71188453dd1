//! One allocation, of this rank and as it lies on the others.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::{Uses, forked};

use super::directory::{Entry, Found, KEPT};
use super::group::Inner;
use super::segment::{Block, OwnSegment, Segment};
use super::state::SLICE;
use super::words::{MOST_BASE, Piece, Words};
use crate::symmetric::{Allocated, Error, Result};

/// How long a rank that is about to allocate is waited for awake.
const AWAKE: Duration = Duration::from_micros(100);

/// When it is too late, counted from the first rank that was not there.
pub(super) struct Patience {
    timeout: Duration,
    began: OnceCell<Instant>,
}

impl Patience {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, began: OnceCell::new() }
    }

    pub(super) fn pause(&self) {
        let waited = self.waited();
        if waited < AWAKE {
            std::thread::yield_now();
        } else {
            // So that a rank is not noticed much later than it comes.
            std::thread::sleep((waited / 8).min(SLICE));
        }
    }

    fn waited(&self) -> Duration {
        self.began.get_or_init(Instant::now).elapsed()
    }
}

impl Inner {
    /// The same allocation on every rank, all of which must have made it.
    pub(super) fn look(&self, allocation: &Allocation) -> Result<Vec<Option<Remote>>> {
        let patience = Patience::new(self.options.timeout);
        let mut remotes = (0..self.state.ranks()).map(|_| None).collect::<Vec<_>>();
        for (rank, peer) in self.state.others() {
            let entry = self.entry(rank, allocation, &patience)?;
            let segment = peer.segments.get(self, rank, entry.segment, &patience)?;
            let (offset, pad) = place(rank, &entry, &segment)?;
            let (number, index) = Words::of_place(entry.words);
            let piece = peer.pieces.get(self, rank, number, &patience)?;
            Error::expect(rank, "the place of an allocation's words", index, 0..=piece.room as u64 - 1)?;
            // Below the room, which is a `usize`.
            let words = usize::try_from(index).unwrap_or(0);
            let base = entry.base;
            piece.bases.get(words).inspect(|last| _ = last.fetch_max(base, Ordering::SeqCst));
            remotes[rank] = Some(Remote { segment, offset, pad, piece, words, base, uses: Uses::new() });
        }
        Ok(remotes)
    }

    /// What a rank says of an allocation, compared with what this rank has.
    fn entry(&self, rank: usize, allocation: &Allocation, patience: &Patience) -> Result<Entry> {
        let (directory, sequence) = (&self.state.directory, allocation.sequence);
        let ours = allocation.size as u64;
        loop {
            // Before the entry: a rank that has left has said all that it had to say.
            let has_left = directory.has_left(rank);
            match directory.entry(rank, sequence)? {
                Found::There(theirs) if theirs.sequence != sequence => {
                    let (what, accepted) = ("the number of an allocation", sequence..=sequence);
                    return Err(Error::Invalid { rank, what, value: theirs.sequence, accepted });
                }
                Found::There(theirs) if theirs.size != ours => {
                    let theirs = theirs.size;
                    return Err(Error::OrderDiffers { rank, sequence, ours, theirs });
                }
                Found::There(theirs) => return Ok(theirs),
                Found::Overtaken => return Err(Error::Overtaken { rank, sequence, kept: KEPT }),
                Found::NotYet if has_left => return Err(self.state.left(rank)),
                // The other rank may wait until this one maps what it announced.
                Found::NotYet => self.wait_for(rank, "allocate", patience).and_then(|()| self.map_ahead())?,
            }
            patience.pause();
        }
    }

    /// Whether waiting for a rank makes sense.
    pub(super) fn wait_for(&self, rank: usize, what: &'static str, patience: &Patience) -> Result<()> {
        self.state.check()?;
        if patience.waited() > patience.timeout {
            return Err(Error::Missing { ranks: vec![rank], what, waited: self.options.timeout });
        }
        Ok(())
    }
}

/// Memory of this rank. Its piece goes back to the segment with the last handle.
#[derive(Debug)]
pub(super) struct Allocation {
    pub(super) segment: Arc<OwnSegment>,
    pub(super) block: Block,
    pub(super) words: Words,
    pub(super) size: usize,
    pub(super) sequence: u64,
    /// No other allocation of the process has it, of whatever group.
    serial: u64,
    pub(super) uses: Uses,
    /// The same allocation on each rank, once all have been looked at; none for this rank.
    pub(super) remotes: OnceLock<Vec<Option<Remote>>>,
}

#[derive(Debug)]
pub(super) struct Remote {
    pub(super) segment: Arc<Segment>,
    pub(super) offset: usize,
    pub(super) pad: usize,
    pub(super) piece: Arc<Piece>,
    pub(super) words: usize,
    /// The number before the first signal's there.
    pub(super) base: u64,
    pub(super) uses: Uses,
}

impl Drop for Remote {
    fn drop(&mut self) {
        if !forked() {
            // The mapping outlives the work.
            self.segment.mapping.absorb_uses(std::mem::take(&mut self.uses));
        }
    }
}

/// What a rank publishes of a size is checked against this before an offset is believed.
pub(super) fn place(rank: usize, entry: &Entry, segment: &Segment) -> Result<(usize, usize)> {
    // There are pads, and data behind them.
    let [bytes, data, pads] =
        [segment.mapping.bytes(), segment.data(), segment.pads].map(|number| number as u64);
    Error::expect(rank, "the number of a signal pad", entry.pad, 0..=pads - 1)?;
    Error::expect(rank, "the size of an allocation in its segment", entry.size, 0..=bytes - data)?;
    Error::expect(rank, "the offset of an allocation", entry.offset, data..=bytes - entry.size)?;
    Error::expect(rank, "the number that signals begin behind", entry.base, 0..=MOST_BASE)?;
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
            base: self.words.base,
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if !forked() {
            let uses = std::mem::take(&mut self.uses);
            let is_over = uses.wait().is_ok();
            self.segment.give_back(self.block, uses, is_over);
        }
    }
}

#[cfg(test)]
#[path = "../../../tests/players/ranks.rs"]
mod hostile;
