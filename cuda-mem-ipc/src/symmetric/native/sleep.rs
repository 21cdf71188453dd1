//! How all ranks of a group give the memory of its segments back, and get it again at the same addresses.
//!
//! All ranks come to a step together. Of the first one of a sleep or a wake a word of the directory says how it ended, which is written once:
//! all ranks were there, or which one was not, or had failed before. Then nothing has changed, on any rank. The second one says that all
//! ranks have done it; a rank that fails between the two, or does not come to the second, breaks the group.
//!
//! # Safety
//!
//! Relies on the promise of whoever puts a group to sleep that nothing that uses its memory is queued before it wakes, on any rank, and on all
//! ranks having waited for what was queued before.

#![allow(unsafe_code, reason = "unmaps memory that others may use")]

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use zerocopy::IntoBytes;

use super::announced::{Announced, ORDER};
use super::directory::ENDED;
use super::group::Inner;
use super::lookup::Patience;
use super::segment::Segment;
use super::{Group, NAME, message};
use crate::primitive::{lock, refuse_forked};
use crate::symmetric::{Error, Result, Why};

/// Of what a rank says that it has come: it has failed before. Below are its segments.
const FAILED: u64 = 1 << 24;
/// Of how a step ended: without a rank.
const LATE: u64 = 1 << 25;

impl Group {
    /// Gives the device memory of the group back to the driver, on all ranks, with what is in it: its allocations keep their addresses, and the
    /// ranks theirs of each other. Every rank has to call it; it returns when all have done it, with the bytes that were this rank's own.
    /// What signals are counted by stays. Of a group that sleeps it does nothing.
    ///
    /// First it waits for all work of the context, which ends captures that are under way. Until [`wake`](Self::wake) memory of the group may be
    /// dropped, and allocating is an error. The [module](crate::symmetric) has an example.
    ///
    /// # Errors
    ///
    /// Nothing has changed, on any rank, and it can be tried again: [`Error::Missing`], which names a rank that did not come within the group's
    /// timeout, [`Error::FailedElsewhere`], [`Error::Core`]. Otherwise the group is of no use any more, and what it still has goes with it:
    /// [`Error::Broken`], [`Error::Left`].
    ///
    /// # Safety
    ///
    /// From the call until [`wake`](Self::wake) has returned nothing is queued that uses memory of the group, on any rank: no kernel, no copy, no
    /// graph. What was queued before in other contexts than the group's is done.
    pub unsafe fn sleep(&self) -> Result<usize> {
        refuse_forked()?;
        let (inner, making) = (&*self.inner, lock(&self.inner.making));
        let is_asleep = &inner.state.is_asleep;
        if is_asleep.load(Ordering::Acquire) {
            return Ok(0);
        }
        let ready = inner.state.check().and_then(|()| Ok(inner.context.synchronize()?));
        let counts = inner.meet("sleep", making.segments.len(), ready, true)?;
        is_asleep.store(true, Ordering::Release);
        let slept = inner.map_all(&counts).and_then(|()| {
            // SAFETY: the caller's promise; all ranks have waited for what was queued before.
            making.segments.iter().try_for_each(|own| unsafe { own.sleep() })?;
            for (rank, peer) in inner.state.others() {
                let mut mapped = lock(&peer.segments.mapped);
                // SAFETY: as above.
                mapped.iter().try_for_each(|segment| unsafe { segment.mapping.sleep() })?;
                lock(&peer.segments.asleep).extend(mapped.drain(..));
                inner.state.directory.mapped(inner.state.rank, rank, Segment::PLACE)?.store(0, ORDER);
            }
            Ok(())
        });
        inner.settle("sleep", slept)?;
        Ok(making.segments.iter().map(|own| own.segment.mapping.bytes()).sum())
    }

    /// Makes new memory for the allocations of a group that sleeps, at the addresses that they had on each rank. What is in it is undefined,
    /// but for signal pads, which are zero. Every rank has to call it; it returns when all have done it. Of a group that is awake it does nothing.
    ///
    /// # Errors
    ///
    /// As [`sleep`](Self::sleep): also when a rank has too little memory the group sleeps on, on all ranks. A rank that cannot map another
    /// one's memory breaks the group.
    pub fn wake(&self) -> Result<()> {
        refuse_forked()?;
        let (inner, making) = (&*self.inner, lock(&self.inner.making));
        if !inner.state.is_asleep.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut made = Vec::with_capacity(making.segments.len());
        let ready = inner
            .state
            .check()
            .and_then(|()| making.segments.iter().try_for_each(|own| Ok(made.push(own.wake()?))));
        let counts = inner.meet("wake", making.segments.len(), ready, true).inspect_err(|_| {
            // SAFETY: nobody was told of the new memory. What fails here is there for the next try.
            let _ = making.segments.iter().try_for_each(|own| unsafe { own.sleep() });
        })?;
        let mut made = (0..).zip(made);
        let woken = made.try_for_each(|(number, (info, memory))| {
            inner.make_room::<Segment>(number)?;
            inner.announce(message::SEGMENT, info.as_bytes(), memory.as_fd())
        });
        inner.settle("wake", woken.and_then(|()| inner.map_all(&counts)))?;
        inner.state.is_asleep.store(false, Ordering::Release);
        Ok(())
    }
}

impl Inner {
    /// Maps all segments of the other ranks, as many as each has.
    fn map_all(&self, counts: &[u64]) -> Result<()> {
        let patience = Patience::new(self.options.timeout);
        self.state.others().zip(counts).try_for_each(|((rank, peer), count)| match count.checked_sub(1) {
            Some(last) => peer.segments.get(self, rank, last, &patience).map(drop),
            None => Ok(()),
        })
    }

    /// The second step of all ranks, behind what this one has done.
    pub(super) fn settle(&self, what: &'static str, done: Result<()>) -> Result<()> {
        done.inspect_err(|error| {
            let (rank, why) = match error {
                Error::Missing { ranks, .. } => (ranks.first(), Why::TimedOut),
                _ => (None, Why::Failed),
            };
            self.state.break_by(rank.copied().unwrap_or(self.state.rank), why);
        })?;
        self.meet(what, 0, Ok(()), false).map(drop)
    }

    /// Returns when all ranks have come to this step, with how many segments each other one has. `before` is what this rank has done before.
    pub(super) fn meet(
        &self,
        what: &'static str,
        segments: usize,
        before: Result<()>,
        may_fail: bool,
    ) -> Result<Vec<u64>> {
        let (state, patience) = (&*self.state, Patience::new(self.options.timeout));
        let ended = state.directory.word(ENDED)?;
        let begun = ended.load(ORDER);
        let step = (begun >> 32) + 1;
        let failed = if before.is_err() { FAILED } else { 0 };
        state.directory.come(state.rank)?.store(step << 32 | failed | segments as u64, ORDER);
        before?;
        loop {
            // Before what the ranks say: they go on when the step has ended.
            let now = ended.load(ORDER);
            let come = |rank| Ok(state.directory.come(rank)?.load(ORDER));
            let come = (0..state.ranks()).map(come).collect::<Result<Vec<_>>>()?;
            if now != begun {
                let rank = usize::try_from(now & 0xffff).unwrap_or(0);
                return match now {
                    // Behind a first step that has ended well there is the second one, and that cannot end otherwise.
                    now if now == step << 32 || !may_fail => {
                        Ok(state.others().filter_map(|(rank, _)| Some(come.get(rank)? % FAILED)).collect())
                    }
                    now if now & FAILED != 0 => {
                        Err(Error::FailedElsewhere { backend: NAME, call: what, rank })
                    }
                    _ => Err(Error::Missing { ranks: vec![rank], what, waited: self.options.timeout }),
                };
            }
            let failed = come.iter().position(|said| said >> 24 == (step << 32 | FAILED) >> 24);
            let late = come.iter().position(|said| said >> 32 != step);
            let waited = late.map_or(Ok(()), |rank| self.wait_for(rank, what, &patience));
            let verdict = match (failed, late, waited) {
                (Some(rank), ..) => FAILED | rank as u64,
                (_, None, _) => 0,
                (_, Some(rank), Ok(())) if state.directory.has_left(rank) => {
                    return Err(Error::Left { rank });
                }
                (_, Some(_), Ok(())) => {
                    self.map_ahead()?;
                    patience.pause();
                    continue;
                }
                (_, Some(rank), Err(Error::Missing { .. })) if may_fail => LATE | rank as u64,
                (_, Some(rank), Err(Error::Missing { .. })) => {
                    return Err(state.break_by(rank, Why::TimedOut));
                }
                (_, _, Err(broken)) => return Err(broken),
            };
            // The first word counts, for all ranks.
            let _ = ended.compare_exchange(begun, step << 32 | verdict, ORDER, ORDER);
        }
    }
}
