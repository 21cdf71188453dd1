//! The words of signals: host memory of the rank that waits, in pieces with room for so many allocations each.
//!
//! They are apart from the segments, so that a new one takes no host memory: to register some takes far longer than device memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cuda_mem_pool::cuda_mem_core::ipc::SharedWords;
use cuda_mem_pool::cuda_mem_core::{Context, Error as CoreError, FenceLine, Result, forked};
use zerocopy::little_endian::U64;

use super::announced::{ANNOUNCED, Announced, Came};
use super::directory::KEPT;
use super::group;
use crate::LARGEST_PAGE;
use crate::memory_file::{self, bytes_there};
use crate::primitive::lock;
use crate::symmetric::Error;
use crate::symmetric::memory::Operation;

/// Bytes of a word's place, as `SharedWords` has them.
const PLACE: usize = 64;

/// The most allocations that a piece has room for.
pub(super) const MOST: usize = 1 << 16;

/// How far behind the last signal that was waited for the next allocation begins to count. Signals that nobody waited for may come later,
/// and have numbers in between.
const AHEAD: u64 = 1 << 24;

/// The last number that an allocation begins to count behind, far below the last that there is. Words that have come further are not used again.
pub(super) const MOST_BASE: u64 = 1 << 61;

#[derive(Debug)]
pub(super) struct Piece {
    words: SharedWords,
    pub(super) room: usize,
    ranks: usize,
    /// Of another rank's: behind which number the last allocation counts that had these words and is known here.
    pub(super) bases: Box<[AtomicU64]>,
}

impl Piece {
    pub(super) fn create(context: &Context, room: usize, ranks: usize) -> Result<Self> {
        let size = Operation::words(ranks);
        let count = room.checked_mul(size).ok_or(CoreError::TooLarge { count: room, size })?;
        Ok(Self { words: SharedWords::create(context, count)?, room, ranks, bases: Box::default() })
    }

    pub(super) fn line(&self, allocation: usize, word: usize) -> Result<FenceLine> {
        self.words.line(allocation * Operation::words(self.ranks) + word)
    }

    /// Whether a signal has come. One that cannot be asked for has not.
    fn has_come(&self, allocation: usize, word: usize, generation: u64) -> bool {
        let fence = self.line(allocation, word).and_then(|line| line.fence(generation));
        fence.and_then(|fence| fence.is_complete()).unwrap_or(false)
    }
}

impl Announced for Piece {
    type Info = U64;
    const PLACE: usize = 8;
    const TEXTS: [&'static str; 3] =
        ["pieces of words for signals", "the number of words for signals", "announce words for signals"];

    fn number(number: &U64) -> u64 {
        number.get()
    }

    fn open(
        own: &group::Inner,
        rank: usize,
        (number, memory): Came<Self>,
        _: Option<Arc<Self>>,
    ) -> Result<Arc<Self>, Error> {
        let (ranks, room) = (own.state.ranks(), own.options.segment_allocations);
        // A piece is made when allocations have all that were before. A rank is ahead by as many as are kept, and by what it has announced.
        let most = (own.made.load(Ordering::SeqCst) + KEPT as u64) / room as u64 + ANNOUNCED as u64;
        Error::expect(rank, Self::TEXTS[1], number.get(), 0..=most)?;
        let failed = |source| Error::Transport { rank, source };
        let mapping = memory_file::open(memory).map_err(failed)?;
        let there = bytes_there(&mapping).map_err(failed)?;
        let (needed, bytes) = (room * Operation::words(ranks) * PLACE, mapping.bytes());
        let accepted = needed as u64..=needed.next_multiple_of(LARGEST_PAGE) as u64;
        // Before they are pinned: a rank cannot have more pinned here than it needs itself.
        Error::expect(rank, "the bytes of words", bytes as u64, accepted)?;
        // And what is pinned is made: it has to be the rank's own.
        let missing = bytes.saturating_sub(there) as u64;
        Error::expect(rank, "the bytes of words that have no memory", missing, 0..=0)?;
        let bases = (0..room).map(|_| AtomicU64::default()).collect();
        Ok(Arc::new(Self { words: SharedWords::of(&own.context, mapping)?, room, ranks, bases }))
    }
}

impl AsFd for Piece {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.words.as_fd()
    }
}

/// This rank's own.
#[derive(Debug, Default)]
pub(super) struct OwnWords {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    pieces: Vec<Arc<Piece>>,
    /// What allocations gave back, by the piece and the index in it.
    free: BTreeMap<(usize, usize), Returned>,
    /// Of the last piece, those that no allocation has had.
    fresh: Range<usize>,
}

/// Words that an allocation gave back.
#[derive(Debug)]
struct Returned {
    /// The number that the next allocation begins to count behind.
    base: u64,
    /// The last signals that were waited for, by word.
    waits: Vec<(usize, u64)>,
}

/// The words of one allocation. They go back with it.
#[derive(Debug)]
pub(super) struct Words {
    pub(super) piece: Arc<Piece>,
    number: usize,
    pub(super) index: usize,
    /// The number before the first signal's. It is above all that were in use before.
    pub(super) base: u64,
    /// The last signal that was waited for, by word; the base beyond its end.
    pub(super) waited: Mutex<Vec<u64>>,
    of: Arc<OwnWords>,
}

impl OwnWords {
    /// Words that no allocation has; none if there are none.
    pub(super) fn take(self: &Arc<Self>) -> Option<Words> {
        let Inner { pieces, free, fresh } = &mut *lock(&self.inner);
        // Signals of the next one would end waits that are not over.
        let over = free.iter().find(|((number, index), Returned { waits, .. })| {
            let piece = pieces.get(*number);
            piece.is_some_and(|it| waits.iter().all(|(word, last)| it.has_come(*index, *word, *last)))
        });
        let over = over.map(|(place, _)| *place);
        let ((number, index), base) = match over.and_then(|place| free.remove_entry(&place)) {
            Some((place, returned)) => (place, returned.base),
            None => ((pieces.len().wrapping_sub(1), fresh.next()?), 0),
        };
        let piece = Arc::clone(pieces.get(number)?);
        Some(Words { piece, number, index, base, waited: Mutex::default(), of: Arc::clone(self) })
    }

    pub(super) fn pieces(&self) -> u64 {
        lock(&self.inner).pieces.len() as u64
    }

    pub(super) fn add(&self, piece: Piece) {
        let mut inner = lock(&self.inner);
        inner.fresh = 0..piece.room;
        inner.pieces.push(Arc::new(piece));
    }

    /// Lets go of all of them, behind the streams that wait.
    pub(super) fn clear(&self) {
        let pieces = std::mem::take(&mut *lock(&self.inner));
        drop(pieces);
    }
}

impl Words {
    /// Where they are, as one number for the directory.
    pub(super) fn place(&self) -> u64 {
        (self.number as u64) << 32 | self.index as u64
    }

    /// The number of the piece and the index in it that a rank says by such a number.
    pub(super) fn of_place(place: u64) -> (u64, u64) {
        (place >> 32, place & 0xffff_ffff)
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        if !forked() {
            let waited = std::mem::take(&mut *lock(&self.waited)).into_iter().enumerate();
            let waits: Vec<_> = waited.filter(|(_, last)| *last > self.base).collect();
            let base = waits.iter().fold(self.base, |highest, (_, last)| highest.max(*last)) + AHEAD;
            if base <= MOST_BASE {
                lock(&self.of.inner).free.insert((self.number, self.index), Returned { base, waits });
            }
        }
    }
}
