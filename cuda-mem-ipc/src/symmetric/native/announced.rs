//! What ranks have announced and not mapped yet: each of it is a descriptor of whoever has it before it.
//!
//! A program may allocate a lot before its first rendezvous. So a rank that makes something itself maps what has come of the others
//! but for the last few, and says in the directory how much it has mapped. It announces no more than that and so many behind it, and
//! waits for the others before.

use std::sync::{Arc, Mutex, TryLockError};

use super::group::Inner;
use super::lookup::Patience;
use super::queue::Queue;
use super::segment::Segment;
use super::state::{AnnouncedPiece, AnnouncedSegment};
use super::words::Piece;
use crate::symmetric::{Error, Result, Why};

/// How many segments of a rank may be announced and not mapped elsewhere yet, and how many pieces of words.
pub(super) const ANNOUNCED: usize = 256;

/// So many are left alone by who maps nothing of his own: they may never be asked for.
pub(super) const LEFT_ALONE: usize = 16;

/// The most segments of a rank that are believed in, and the most pieces of words.
pub(super) const MAX_NUMBER: u64 = 1 << 16;

/// What can be announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Segment,
    Piece,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Segment => "segments",
            Self::Piece => "pieces of words for signals",
        }
    }
}

/// Something of another rank, which is announced before it is mapped.
pub(super) trait Announced: Sized {
    type Announcement;
    const KIND: Kind;
    /// What an error says of its number.
    const NUMBER: &'static str;

    fn number(announcement: &Self::Announcement) -> u64;

    fn open(own: &Inner, announcement: Self::Announcement, rank: usize) -> Result<Self>;
}

impl Announced for Segment {
    type Announcement = AnnouncedSegment;
    const KIND: Kind = Kind::Segment;
    const NUMBER: &'static str = "the number of a segment";

    fn number(announcement: &AnnouncedSegment) -> u64 {
        announcement.info.number
    }

    fn open(own: &Inner, announcement: AnnouncedSegment, rank: usize) -> Result<Self> {
        Self::import(&own.context, announcement, rank)
    }
}

impl Announced for Piece {
    type Announcement = AnnouncedPiece;
    const KIND: Kind = Kind::Piece;
    const NUMBER: &'static str = "the number of words for signals";

    fn number(announcement: &AnnouncedPiece) -> u64 {
        announcement.info.number
    }

    fn open(own: &Inner, announcement: AnnouncedPiece, rank: usize) -> Result<Self> {
        let room = own.options.segment_allocations;
        Self::open(&own.context, announcement, rank, own.state.ranks(), room)
    }
}

impl Inner {
    /// Returns when all ranks have room for one more announcement, of this number; so nothing was announced if they have not.
    pub(super) fn make_room(&self, kind: Kind, number: u64) -> Result<()> {
        if number >= MAX_NUMBER {
            let (group, what) = (self.state.group.clone(), kind.name());
            return Err(Error::GroupFull { group, what, most: MAX_NUMBER });
        }
        let patience = Patience::new(self.options.timeout);
        for (rank, _) in self.state.others() {
            loop {
                // Others may wait for this rank likewise.
                self.map_ahead()?;
                let mapped = self.state.directory.mapped(rank, self.state.rank, kind)?;
                if number.saturating_sub(mapped) < ANNOUNCED as u64 || self.state.directory.has_left(rank) {
                    break;
                }
                self.wait_for(rank, "map what was announced", &patience)?;
                patience.pause();
            }
        }
        Ok(())
    }

    /// Maps what the others have announced, but for the last few.
    fn map_ahead(&self) -> Result<()> {
        for ((rank, peer), mapped) in self.state.others().filter_map(|of| Some((of, self.mapped.get(of.0)?)))
        {
            self.map_all_but_some(rank, &mapped.segments, &peer.segments)?;
            self.map_all_but_some(rank, &mapped.pieces, &peer.pieces)?;
        }
        Ok(())
    }

    fn map_all_but_some<T: Announced>(
        &self,
        rank: usize,
        mapped: &Mutex<Vec<Arc<T>>>,
        announced: &Queue<T::Announcement>,
    ) -> Result<()> {
        let mut mapped = match mapped.try_lock() {
            Ok(mapped) => mapped,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Who has it maps what comes, and may wait for that.
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        while announced.len() > LEFT_ALONE
            && let Some(next) = announced.next()
        {
            self.map_next(rank, &mut mapped, next)?;
        }
        Ok(())
    }

    /// Maps what a rank has announced next.
    pub(super) fn map_next<T: Announced>(
        &self,
        rank: usize,
        mapped: &mut Vec<Arc<T>>,
        announced: T::Announcement,
    ) -> Result<()> {
        let (number, expected) = (T::number(&announced), mapped.len() as u64);
        if number != expected || number >= MAX_NUMBER {
            self.state.break_by(rank, Why::Unreachable);
            return Err(Error::Invalid { rank, what: T::NUMBER, value: number, most: MAX_NUMBER });
        }
        // It cannot be asked for once more, and those behind it are of no use without it.
        mapped.push(Arc::new(T::open(self, announced, rank).inspect_err(|error| {
            match error {
                Error::Invalid { .. } => self.state.break_by(rank, Why::Unreachable),
                _ => self.state.break_by(self.state.rank, Why::Failed),
            };
        })?));
        self.state.directory.set_mapped(self.state.rank, rank, T::KIND, expected + 1)?;
        Ok(())
    }
}
