//! How all ranks give the memory of a group's segments back, and get it again at the same addresses.
//!
//! Of the first step of either the directory says how it ended, which is written once: all ranks came, or one did not, or had failed before,
//! and then nothing has changed on any rank. Who fails before the second, or does not come to it, breaks the group.
//!
//! # Safety
//!
//! Relies on the promise of whoever puts a group to sleep. What a rank unmaps it has mapped for itself: the others have mappings of their own,
//! which keep the memory.

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

/// What a rank says in place of how many segments it has, if it cannot go on.
const FAILED: u64 = (1 << 32) - 1;

impl Group {
    /// Gives the device memory of the group back to the driver on all ranks, without a copy of what is in it. Its allocations keep their
    /// addresses on each rank, and signals their counts. Every rank calls it, and it returns when all have done it, with how many bytes were this
    /// rank's own. Until [`wake`](Self::wake) memory may be dropped, and allocating is an error; sleeping again does nothing.
    ///
    /// It waits for all work of the context, which ends a capture that is under way. The [module](crate::symmetric) has an example.
    ///
    /// # Errors
    ///
    /// Nothing has changed on any rank, and all may try again: [`Error::Missing`], which names a rank that did not come within the group's
    /// timeout; [`Error::FailedElsewhere`]; [`Error::Core`]. [`Error::Broken`] and [`Error::Left`]: the group, and what it has, is of no use
    /// any more.
    ///
    /// # Safety
    ///
    /// From the call until [`wake`](Self::wake) has returned nothing is queued on any rank that uses memory of the group, no graph either. What
    /// was queued before in other contexts than the group's is done.
    pub unsafe fn sleep(&self) -> Result<usize> {
        refuse_forked()?;
        let (inner, making) = (&*self.inner, lock(&self.inner.making));
        let (state, own) = (&inner.state, &making.segments);
        if state.expect_awake().is_err() {
            return Ok(0);
        }
        let ready = state.check().and_then(|()| Ok(inner.context.synchronize()?));
        let counts = inner.meet("sleep", ready.map(|()| own.len()), true)?;
        state.is_asleep.store(true, Ordering::Release);
        let slept = inner.map_all(&counts).and_then(|()| {
            // SAFETY: the context was waited for, and the caller promises the rest.
            own.iter().try_for_each(|own| unsafe { own.sleep() })?;
            state.others().try_for_each(|(rank, peer)| {
                let mapped = lock(&peer.segments.mapped);
                // SAFETY: as above.
                mapped.iter().try_for_each(|segment| unsafe { segment.mapping.sleep() })?;
                state.directory.mapped(state.rank, rank, Segment::PLACE)?.store(0, ORDER);
                Ok(())
            })
        });
        inner.settle("sleep", slept)?;
        Ok(own.iter().map(|own| own.segment.mapping.bytes()).sum())
    }

    /// Makes new memory for the allocations of a group that sleeps, at their addresses on each rank. What is in it is undefined, but for signal
    /// pads, which are zero. Every rank calls it, and it returns when all have done it; awake it does nothing.
    ///
    /// # Errors
    ///
    /// As [`sleep`](Self::sleep): where a rank has too little memory, all sleep on. Who cannot map another rank's memory breaks the group.
    pub fn wake(&self) -> Result<()> {
        refuse_forked()?;
        let (inner, making) = (&*self.inner, lock(&self.inner.making));
        let own = &making.segments;
        if inner.state.expect_awake().is_ok() {
            return Ok(());
        }
        let make = |()| own.iter().map(|own| Ok(own.wake()?)).collect::<Result<Vec<_>>>();
        let made = inner.state.check().and_then(make);
        let ready = made.as_ref().map(Vec::len).map_err(Clone::clone);
        let counts = inner.meet("wake", ready, true).inspect_err(|_| {
            // SAFETY: nobody was told of the new memory. What the driver refuses now is there for the next try.
            own.iter().for_each(|own| drop(unsafe { own.sleep() }));
        })?;
        let woken = (0..).zip(made?).try_for_each(|(number, (info, memory))| {
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
        self.state.others().try_for_each(|(rank, peer)| match counts.get(rank) {
            None | Some(0) => Ok(()),
            Some(count) => peer.segments.get(self, rank, count - 1, &patience).map(drop),
        })
    }

    /// The second step of all ranks, behind what this one has done.
    pub(super) fn settle(&self, what: &'static str, done: Result<()>) -> Result<()> {
        done.inspect_err(|error| {
            let (rank, why) = match error {
                Error::Missing { ranks, .. } => (ranks.first(), Why::TimedOut),
                Error::Invalid { rank, .. } => (Some(rank), Why::Unreachable),
                _ => (None, Why::Failed),
            };
            self.state.break_by(*rank.unwrap_or(&self.state.rank), why);
        })?;
        self.meet(what, Ok(0), false).map(drop)
    }

    /// Returns when all ranks have come to this step, with how many segments each has. `before` is what this one has done before.
    pub(super) fn meet(&self, what: &'static str, before: Result<usize>, may_fail: bool) -> Result<Vec<u64>> {
        let (state, patience) = (&*self.state, Patience::new(self.options.timeout));
        let (directory, ended) = (&state.directory, state.directory.word(ENDED)?);
        let begun = ended.load(ORDER);
        let step = (begun >> 32) + 1;
        let said = before.as_ref().map_or(FAILED, |segments| *segments as u64);
        directory.come(state.rank)?.store(step << 32 | said, ORDER);
        before?;
        loop {
            // Before what the ranks say, who go on when the step has ended. What may not fail has ended well, and what may is behind such a step.
            let now = ended.load(ORDER);
            let come = |rank| Ok(directory.come(rank)?.load(ORDER));
            let come = (0..state.ranks()).map(come).collect::<Result<Vec<_>>>()?;
            if now == step << 32 || (now != begun && !may_fail) {
                return Ok(come.into_iter().map(|said| said & FAILED).collect());
            }
            let has_failed = |said: &u64| *said == (step << 32 | FAILED);
            if now != begun {
                // Who has failed may have done so because of another rank.
                state.check()?;
                let rank = usize::try_from(now & 0xffff).unwrap_or(0);
                let missing = Error::Missing { ranks: vec![rank], what, waited: self.options.timeout };
                let failed = Error::FailedElsewhere { backend: NAME, call: what, rank };
                return Err(if come.get(rank).is_some_and(has_failed) { failed } else { missing });
            }
            let late = come.iter().position(|said| said >> 32 != step);
            let culprit = match (come.iter().position(has_failed), late) {
                (None, Some(rank)) => match self.wait_for(rank, what, &patience) {
                    Err(Error::Missing { .. }) if may_fail => Some(rank),
                    Err(Error::Missing { .. }) => return Err(state.break_by(rank, Why::TimedOut)),
                    Ok(()) if directory.has_left(rank) => return Err(Error::Left { rank }),
                    waited => {
                        waited.and_then(|()| self.map_ahead())?;
                        patience.pause();
                        continue;
                    }
                },
                (failed, _) => failed,
            };
            // The first word counts, for all ranks: 2 to the 16th and who is at fault.
            let how = culprit.map_or(0, |rank| 1 << 16 | rank as u64);
            let _ = ended.compare_exchange(begun, step << 32 | how, ORDER, ORDER);
        }
    }
}
