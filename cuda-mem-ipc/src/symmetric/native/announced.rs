//! What ranks have announced, and what of it is mapped. What is not mapped yet takes a descriptor each in the process that was told of it.
//!
//! A program may allocate a lot before its first rendezvous. So a rank that makes something itself, or waits for others, maps what has
//! come of them but for the last few, and says in the directory how much it has mapped. It announces no more than that and so many
//! behind it, and waits for the others before.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use cuda_mem_pool::cuda_mem_core::LateReports;
use zerocopy::FromBytes;

use super::group::Inner;
use super::lookup::Patience;
use super::state::SLICE;
use crate::primitive::{lock, lock_over_calls, try_lock};
use crate::symmetric::{Error, Result, Why};
use crate::transport::Descriptors;

/// How many segments of a rank may be announced and not mapped elsewhere yet, and how many pieces of words.
pub(super) const ANNOUNCED: usize = 256;

/// So many a rank leaves unmapped when it maps ahead: they may never be asked for.
pub(super) const LEFT_ALONE: usize = 16;

/// The most segments of a rank that are believed in, and the most pieces of words.
pub(super) const MAX_NUMBER: u64 = 1 << 16;

/// Something of another rank, which is announced before it is mapped.
pub(super) trait Announced: Sized {
    type Info: FromBytes;
    /// Where in the directory ranks say how many they have mapped, in bytes behind the others.
    const PLACE: usize;
    /// What an error says of many, of a number, and of what a rank did not do.
    const TEXTS: [&'static str; 3];

    fn number(info: &Self::Info) -> u64;

    /// Maps it, where it was before the group slept.
    fn open(own: &Inner, rank: usize, came: Came<Self>, slept: Option<Arc<Self>>) -> Result<Arc<Self>>;

    fn is_awake(&self) -> bool {
        true
    }
}

/// What a rank says of something, and by what it is mapped.
pub(super) type Came<T> = (<T as Announced>::Info, Descriptors);

/// What of one kind a rank has announced and is not mapped here, and what is, by number.
pub(super) struct Row<T: Announced> {
    announced: Queue<Came<T>>,
    /// Those that sleep, and were not announced anew, come last.
    pub(super) mapped: Mutex<Vec<Arc<T>>>,
}

crate::impl_debug!([T: Announced] Row<T>, |it| announced: it.len());

impl<T: Announced> Row<T> {
    pub(super) fn new() -> Self {
        Self { announced: Queue::new(ANNOUNCED), mapped: Mutex::default() }
    }

    /// Keeps an announcement; false if it is none, or one too many.
    pub(super) fn announce(&self, info: &[u8], memory: Descriptors) -> bool {
        let info = T::Info::read_from_bytes(info);
        info.is_ok_and(|info| memory.len() == 1 && self.announced.push((info, memory)))
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.announced.kept).len()
    }

    pub(super) fn clear(&self) {
        let mapped = std::mem::take(&mut *lock(&self.mapped));
        drop(mapped);
    }

    /// One by its number, mapped now if it was not yet.
    pub(super) fn get(&self, own: &Inner, rank: usize, number: u64, patience: &Patience) -> Result<Arc<T>> {
        let [_, what, call] = T::TEXTS;
        Error::expect(rank, what, number, 0..=MAX_NUMBER - 1)?;
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        let (_reports, mut mapped) = lock_over_calls(&self.mapped);
        loop {
            if let Some(found) = mapped.get(index).filter(|found| found.is_awake()) {
                return Ok(Arc::clone(found));
            }
            match self.announced.next() {
                Some(announced) => Self::map_next(own, rank, &mut mapped, announced)?,
                None => own.wait_for(rank, call, patience)?,
            }
        }
    }

    /// Maps all but the last few of what has come. What comes meanwhile is for the next call: a rank may go on without end.
    pub(super) fn map_ahead(&self, own: &Inner, rank: usize) -> Result<()> {
        let _reports = LateReports::new();
        // The thread that has the lock maps what comes, and may wait for that.
        let Some(mut mapped) = try_lock(&self.mapped) else { return Ok(()) };
        for _ in LEFT_ALONE..self.len() {
            let Some(next) = self.announced.next() else { break };
            Self::map_next(own, rank, &mut mapped, next)?;
        }
        Ok(())
    }

    pub(super) fn map_next(own: &Inner, rank: usize, mapped: &mut Vec<Arc<T>>, came: Came<T>) -> Result<()> {
        let (number, next) = (T::number(&came.0), mapped.partition_point(|known| known.is_awake()));
        let expect = |accepted| Error::expect(rank, T::TEXTS[1], number, accepted);
        let is_next = expect(0..=MAX_NUMBER - 1).and_then(|()| expect(next as u64..=next as u64));
        // It cannot be asked for once more, and those behind it are of no use without it.
        let opened = is_next.and_then(|()| T::open(own, rank, came, mapped.get(next).cloned()));
        let opened = opened.inspect_err(|error| {
            match error {
                Error::Invalid { .. } => own.state.break_by(rank, Why::Unreachable),
                _ => own.state.break_by(own.state.rank, Why::Failed),
            };
        })?;
        if next == mapped.len() {
            mapped.push(opened);
        }
        own.state.directory.mapped(own.state.rank, rank, T::PLACE)?.store(number + 1, ORDER);
        Ok(())
    }
}

pub(super) const ORDER: std::sync::atomic::Ordering = std::sync::atomic::Ordering::SeqCst;

impl Inner {
    /// Maps what other ranks may wait for, before this rank waits for them and while it does.
    pub(super) fn map_ahead(&self) -> Result<()> {
        self.state.others().try_for_each(|(rank, peer)| {
            peer.segments.map_ahead(self, rank)?;
            peer.pieces.map_ahead(self, rank)
        })
    }

    /// Returns when all ranks have room for one more announcement, of this number; so nothing was announced if they have not.
    pub(super) fn make_room<T: Announced>(&self, number: u64) -> Result<()> {
        if number >= MAX_NUMBER {
            let (group, what) = (self.state.group.clone(), T::TEXTS[0]);
            return Err(Error::GroupFull { group, what, most: MAX_NUMBER });
        }
        let patience = Patience::new(self.options.timeout);
        for (rank, _) in self.state.others() {
            loop {
                self.map_ahead()?;
                let mapped = self.state.directory.mapped(rank, self.state.rank, T::PLACE)?.load(ORDER);
                if number.saturating_sub(mapped) < ANNOUNCED as u64 || self.state.directory.has_left(rank) {
                    break;
                }
                self.wait_for(rank, "map what was announced", &patience)?;
                patience.pause();
            }
        }
        Ok(())
    }
}

/// What another rank has sent and this one has not used yet.
#[derive(Debug)]
pub(super) struct Queue<T> {
    most: usize,
    kept: Mutex<VecDeque<T>>,
    came: Condvar,
}

impl<T> Queue<T> {
    pub(super) fn new(most: usize) -> Self {
        Self { most, kept: Mutex::default(), came: Condvar::new() }
    }

    /// Keeps one more; `false` when there are too many.
    pub(super) fn push(&self, one: T) -> bool {
        let mut kept = lock(&self.kept);
        let has_room = kept.len() < self.most;
        if has_room {
            kept.push_back(one);
            self.came.notify_all();
        }
        has_room
    }

    /// The next, if there is one within a moment.
    pub(super) fn next(&self) -> Option<T> {
        let kept = lock(&self.kept);
        let waited = self.came.wait_timeout_while(kept, SLICE, |kept| kept.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }
}
