//! How all ranks give the memory of a group's segments back, and get it again at the same addresses.
//!
//! Of the first step of either the directory says how it ended, which is written once: all ranks came, or one did not, or had failed before,
//! and then nothing has changed on any rank. A rank that fails before the second step, or does not come to it, breaks the group.
//!
//! # Safety
//!
//! Relies on the promise of the caller of [`Group::sleep`]. What a rank unmaps it has mapped for itself: the other ranks have mappings of their
//! own, which keep the memory.

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
use crate::primitive::{lock, lock_over_calls, refuse_forked};
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
    /// timeout; [`Error::FailedElsewhere`]; [`Error::Core`]. [`Error::Broken`] and [`Error::Left`]: the group is of no use any more.
    ///
    /// # Safety
    ///
    /// From the call until [`wake`](Self::wake) has returned nothing is queued on any rank that uses memory of the group, no graph either. What
    /// was queued before in other contexts than the group's is done.
    pub unsafe fn sleep(&self) -> Result<usize> {
        refuse_forked()?;
        let (inner, (_reports, making)) = (&*self.inner, lock_over_calls(&self.inner.making));
        let (state, own) = (&inner.state, &*making);
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
        inner.settle("sleep", own.len(), slept)?;
        Ok(own.iter().map(|own| own.segment.mapping.bytes()).sum())
    }

    /// Makes new memory for the allocations of a group that sleeps, at their addresses on each rank. What is in it is undefined, but for signal
    /// pads, which are zero. Every rank calls it, and it returns when all have done it; awake it does nothing.
    ///
    /// # Errors
    ///
    /// As [`sleep`](Self::sleep): where a rank has too little memory, all sleep on. A rank that cannot map another rank's memory breaks the group.
    pub fn wake(&self) -> Result<()> {
        refuse_forked()?;
        let (inner, (_reports, making)) = (&*self.inner, lock_over_calls(&self.inner.making));
        let own = &*making;
        if inner.state.expect_awake().is_ok() {
            return Ok(());
        }
        let make = |()| own.iter().map(|own| Ok(own.wake()?)).collect::<Result<Vec<_>>>();
        let made = inner.state.check().and_then(make);
        let ready = made.as_ref().map(Vec::len).map_err(Clone::clone);
        let counts = inner.meet("wake", ready, true).inspect_err(|_| {
            // SAFETY: no rank was told of the new memory. What the driver refuses now is there for the next try.
            own.iter().for_each(|own| drop(unsafe { own.sleep() }));
        })?;
        let woken = (0..).zip(made?).try_for_each(|(number, (info, memory))| {
            inner.make_room::<Segment>(number)?;
            inner.announce(message::SEGMENT, info.as_bytes(), memory.as_fd())
        });
        inner.settle("wake", own.len(), woken.and_then(|()| inner.map_all(&counts)))?;
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

    /// The second step of all ranks, behind what this one has done. A rank that sees the end of the first one late reads the segments here.
    pub(super) fn settle(&self, what: &'static str, segments: usize, done: Result<()>) -> Result<()> {
        done.inspect_err(|error| {
            let (rank, why) = match error {
                Error::Missing { ranks, .. } => (ranks.first(), Why::TimedOut),
                Error::Invalid { rank, .. } => (Some(rank), Why::Unreachable),
                _ => (None, Why::Failed),
            };
            self.state.break_by(*rank.unwrap_or(&self.state.rank), why);
        })?;
        self.meet(what, Ok(segments), false).map(drop)
    }

    /// Returns when all ranks have come to this step, with how many segments each has. `before` is what this one has done before.
    pub(super) fn meet(&self, what: &'static str, before: Result<usize>, may_fail: bool) -> Result<Vec<u64>> {
        let (state, patience) = (&*self.state, Patience::new(self.options.timeout));
        let (directory, ended) = (&state.directory, state.directory.word(ENDED)?);
        let begun = ended.load(ORDER);
        let said = before.as_ref().map_or(FAILED, |segments| *segments as u64);
        directory.come(state.rank)?.store(step_behind(begun) << 32 | said, ORDER);
        before?;
        loop {
            // Read before what the ranks say: they go on when the step has ended.
            let now = ended.load(ORDER);
            let come = |rank| Ok(directory.come(rank)?.load(ORDER));
            let come = (0..state.ranks()).map(come).collect::<Result<Vec<_>>>()?;
            let culprit = match Progress::of(begun, now, &come, may_fail) {
                Progress::Passed => return Ok(come.into_iter().map(|said| said & FAILED).collect()),
                Progress::Ended { rank, has_failed } => {
                    // The rank may have failed because of another rank, which broke the group.
                    state.check()?;
                    return Err(if has_failed {
                        Error::FailedElsewhere { backend: NAME, call: what, rank }
                    } else {
                        Error::Missing { ranks: vec![rank], what, waited: self.options.timeout }
                    });
                }
                Progress::Decided { culprit } => culprit.map(|rank| (rank, true)),
                Progress::Waiting { rank } if self.is_too_late(rank, what, may_fail, &patience)? => {
                    Some((rank, false))
                }
                Progress::Waiting { .. } => continue,
            };
            // The rank that writes this first decides, for all ranks.
            let _ = ended.compare_exchange(begun, word_of(begun, culprit), ORDER, ORDER);
        }
    }

    /// Waits a moment for a rank. True once the time is over and the step ends by that; if it may not, the group is broken.
    fn is_too_late(
        &self,
        rank: usize,
        what: &'static str,
        may_fail: bool,
        patience: &Patience,
    ) -> Result<bool> {
        match self.wait_for(rank, what, patience) {
            Err(Error::Missing { .. }) if may_fail => return Ok(true),
            Err(Error::Missing { .. }) => return Err(self.state.break_by(rank, Why::TimedOut)),
            Ok(()) if self.state.directory.has_left(rank) => return Err(self.state.left(rank)),
            waited => waited?,
        }
        self.map_ahead()?;
        patience.pause();
        Ok(false)
    }
}

/// The number of the step behind the one that a word is of. In words it begins at bit 32; below it is what is said of the step.
fn step_behind(word: u64) -> u64 {
    (word >> 32) + 1
}

/// How a step behind another one has ended. Below its number: 0 if all came, else the rank at fault, with bit 17 if it had failed, else bit 16.
fn word_of(begun: u64, culprit: Option<(usize, bool)>) -> u64 {
    step_behind(begun) << 32 | culprit.map_or(0, |(rank, failed)| (1 + u64::from(failed)) << 16 | rank as u64)
}

/// How far a step has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// It has ended, and all had come.
    Passed,
    /// It has ended because of a rank that had failed, or had not come.
    Ended { rank: usize, has_failed: bool },
    /// No rank has written yet how it ends: with all ranks, or because of one that has failed.
    Decided { culprit: Option<usize> },
    /// No rank has failed, and this one has not come.
    Waiting { rank: usize },
}

impl Progress {
    /// By what the directory said of the last step when this one `begun`, what it says `now`, and what each rank says.
    fn of(begun: u64, now: u64, come: &[u64], may_fail: bool) -> Self {
        let step = step_behind(begun);
        let has_failed = |said: &u64| *said == (step << 32 | FAILED);
        // Others may have ended the next step too, but for one that may fail: the step behind that takes all ranks.
        if now == step << 32 || (now != begun && !may_fail) {
            Self::Passed
        } else if now != begun {
            let rank = usize::try_from(now & 0xffff).unwrap_or(0);
            Self::Ended { rank, has_failed: now >> 17 & 1 == 1 }
        } else if let Some(rank) = come.iter().position(has_failed) {
            Self::Decided { culprit: Some(rank) }
        } else if let Some(rank) = come.iter().position(|said| said >> 32 != step) {
            Self::Waiting { rank }
        } else {
            Self::Decided { culprit: None }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fourth step has ended, and the fifth is looked at by ranks with two segments each.
    const BEGUN: u64 = 4 << 32;
    const STEP: u64 = 5 << 32;
    const CAME: u64 = STEP | 2;

    #[test]
    fn a_step_is_waited_for_until_all_have_come_or_one_has_failed() {
        let open = |come: &[u64]| Progress::of(BEGUN, BEGUN, come, true);
        assert_eq!(open(&[CAME, BEGUN | 2, 0]), Progress::Waiting { rank: 1 });
        assert_eq!(open(&[CAME, CAME, 0]), Progress::Waiting { rank: 2 });
        assert_eq!(open(&[CAME, CAME, STEP | FAILED]), Progress::Decided { culprit: Some(2) });
        // A rank that has failed counts before one that has not come, and a failure of an earlier step is over.
        assert_eq!(open(&[CAME, 0, STEP | FAILED]), Progress::Decided { culprit: Some(2) });
        assert_eq!(open(&[CAME, BEGUN | FAILED]), Progress::Waiting { rank: 1 });
        assert_eq!(open(&[CAME, CAME, CAME]), Progress::Decided { culprit: None });
    }

    #[test]
    fn what_was_said_first_of_a_step_is_how_it_has_ended() {
        let ended = |culprit: Option<usize>, may_fail| {
            // The one that had failed may have called again since, or not.
            let [one, other] = [[CAME, STEP | FAILED, BEGUN], [CAME, (6 << 32) | 2, BEGUN]].map(|come| {
                let word = word_of(BEGUN, culprit.map(|rank| (rank, rank == 1)));
                Progress::of(BEGUN, word, &come, may_fail)
            });
            assert_eq!(one, other);
            one
        };
        assert_eq!(ended(None, true), Progress::Passed);
        assert_eq!(ended(Some(0), true), Progress::Ended { rank: 0, has_failed: false });
        assert_eq!(ended(Some(1), true), Progress::Ended { rank: 1, has_failed: true });
        assert_eq!(ended(Some(2), true), Progress::Ended { rank: 2, has_failed: false });
        // One that there is not, as a rank that lies may say.
        assert_eq!(ended(Some(7), true), Progress::Ended { rank: 7, has_failed: false });
        // The next step has ended too, because of this rank, which was slow.
        assert_eq!(Progress::of(BEGUN, word_of(STEP, Some((0, false))), &[CAME], false), Progress::Passed);
    }

    proptest::proptest! {
        #[test]
        fn all_who_see_one_word_see_one_end(now: u64, begun in 0..1_u64 << 62, one: [u64; 3], other: [u64; 3]) {
            let kind = |come: [u64; 3]| match Progress::of(begun, now, &come, true) {
                Progress::Passed => None,
                Progress::Ended { rank, .. } => Some(rank),
                open => panic!("{open:?} after the end"),
            };
            if now != begun {
                proptest::prop_assert_eq!(kind(one), kind(other));
            }
        }
    }
}
