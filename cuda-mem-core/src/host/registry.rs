//! What host memory is registered through this crate, so that one range can have several holders.
//!
//! The driver refuses to register a byte twice. A range that lies in one of ours, with the same flags, is therefore counted
//! and not registered again; the driver hears of the first holder and of the last.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Condvar, Mutex, PoisonError};

use cuda_mem_sys::CUresult;

use crate::driver::{Context, LateReports, Service, lock};
use crate::error::{Error, RegisteredBy, Result};
use crate::host::RegisterFlags;

/// The registered ranges of one driver, by start address.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    ranges: Mutex<BTreeMap<usize, Entry>>,
    /// Told when a range leaves [`State::Busy`].
    settled: Condvar,
}

#[derive(Debug)]
struct Entry {
    end: usize,
    flags: RegisterFlags,
    state: State,
    /// Whether one of the holders is [`raw::pin_memory`](super::raw::pin_memory), which knows the range by its start alone.
    is_pinned: bool,
    /// The context it is registered in, which holders of another must not outlive.
    _context: Context,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A thread is registering or unregistering it right now.
    Busy,
    /// Registered, with so many holders.
    Held(usize),
    /// Registered still, because the driver would not let go of it, but without a holder that keeps the memory in place.
    Lost,
}

/// One holder's claim on a registered range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The start of the range that the driver knows.
    pub(crate) start: usize,
}

impl Service for Registry {
    const SLOT: usize = 1;
}

impl Registry {
    /// Whether a claim on `range` would be refused, as it looks now.
    pub(crate) fn refuses(&self, range: &Range<usize>, flags: RegisterFlags) -> bool {
        overlapping(&mut lock(&self.ranges), range)
            .is_some_and(|(start, entry)| !entry.shares(start, range, flags))
    }

    /// A claim on `range`; `register` is called if the driver does not know it yet. A pin has no byte in common with other holders', and is
    /// given up by [`Registry::unpin`].
    pub(crate) fn claim(
        &self,
        range: Range<usize>,
        flags: RegisterFlags,
        context: &Context,
        is_pinned: bool,
        register: impl FnOnce() -> Result<()>,
    ) -> Result<Claim> {
        // Whoever hears of what `register` fails to leave may want the range, and would wait until it is not busy.
        let _reports = LateReports::new();
        let context = context.clone();
        let mut ranges = lock(&self.ranges);
        while let Some((start, entry)) = overlapping(&mut ranges, &range) {
            let shares = !is_pinned && entry.shares(start, &range, flags);
            match &mut entry.state {
                State::Busy => ranges = self.settled.wait(ranges).unwrap_or_else(PoisonError::into_inner),
                State::Held(holders) if shares => {
                    *holders = holders.saturating_add(1);
                    return Ok(Claim { start });
                }
                State::Held(_) | State::Lost => {
                    let by = RegisteredBy::Ours { range: start..entry.end };
                    return Err(Error::AlreadyRegistered { range, by });
                }
            }
        }
        let claim = Claim { start: range.start };
        ranges.insert(
            range.start,
            Entry { end: range.end, flags, state: State::Busy, is_pinned, _context: context },
        );
        drop(ranges);
        // Not under the lock: registering takes a second for every few tens of gigabytes.
        let mut busy = Busy { registry: self, claim, outcome: None };
        register()?;
        busy.outcome = Some(State::Held(1));
        Ok(claim)
    }

    /// Gives a claim up; `unregister` is called for the last holder. After an error the claim still stands.
    pub(crate) fn release(&self, claim: Claim, unregister: impl FnOnce() -> Result<()>) -> Result<()> {
        // As in `claim`.
        let _reports = LateReports::new();
        let mut ranges = lock(&self.ranges);
        match ranges.get_mut(&claim.start).map(|entry| &mut entry.state) {
            Some(State::Held(holders)) if *holders > 1 => {
                *holders = holders.saturating_sub(1);
                return Ok(());
            }
            Some(state) => *state = State::Busy,
            None => return Ok(()),
        }
        drop(ranges);
        let mut busy = Busy { registry: self, claim, outcome: Some(State::Held(1)) };
        unregister()?;
        busy.outcome = None;
        Ok(())
    }

    /// Gives up what was pinned from `start` on; `unregister` is called for the last holder. None if
    /// nothing of ours starts there. After an error it is still pinned, unless the driver says that it is not.
    pub(crate) fn unpin(&self, start: usize, unregister: impl FnOnce() -> Result<()>) -> Option<Result<()>> {
        let mut ranges = lock(&self.ranges);
        loop {
            let entry = ranges.get_mut(&start)?;
            match entry.state {
                State::Busy => ranges = self.settled.wait(ranges).unwrap_or_else(PoisonError::into_inner),
                State::Held(_) if entry.is_pinned => {
                    entry.is_pinned = false;
                    break;
                }
                State::Held(_) | State::Lost => {
                    return Some(Err(Error::HeldByOwner { range: start..entry.end }));
                }
            }
        }
        drop(ranges);
        let mut gone = Ok(());
        let released = self.release(Claim { start }, || match unregister() {
            // Somebody unregistered it behind our back: there is nothing left to hold.
            Err(error) if error.code() == Some(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) => {
                gone = Err(error);
                Ok(())
            }
            unregistered => unregistered,
        });
        if released.is_err() {
            // Nobody else can have taken its place: it is registered still.
            if let Some(entry) = lock(&self.ranges).get_mut(&start) {
                entry.is_pinned = true;
            }
        }
        Some(released.and(gone))
    }

    /// Gives a claim up whose memory the driver would not unregister.
    pub(crate) fn abandon(&self, claim: Claim) {
        if let Some(entry) = lock(&self.ranges).get_mut(&claim.start) {
            entry.state = match entry.state {
                State::Held(holders) if holders > 1 => State::Held(holders.saturating_sub(1)),
                _ => State::Lost,
            };
        }
    }
}

impl Entry {
    /// Whether what is registered from `start` on is also what a claim asks for.
    fn shares(&self, start: usize, range: &Range<usize>, flags: RegisterFlags) -> bool {
        start <= range.start && range.end <= self.end && flags == self.flags
    }
}

/// A range that a thread registers or unregisters. Ends with what became of it, also when the call unwinds.
struct Busy<'r> {
    registry: &'r Registry,
    claim: Claim,
    /// None: the range is not registered.
    outcome: Option<State>,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut ranges = lock(&self.registry.ranges);
        let removed = match self.outcome {
            None => ranges.remove(&self.claim.start),
            Some(state) => {
                if let Some(entry) = ranges.get_mut(&self.claim.start) {
                    entry.state = state;
                }
                None
            }
        };
        drop(ranges);
        self.registry.settled.notify_all();
        // Outside the lock: it may hold the last handle to a context.
        drop(removed);
    }
}

/// Some range that has a byte in common with `range`. The last one that starts before its end has, or none does.
fn overlapping<'r>(
    ranges: &'r mut BTreeMap<usize, Entry>,
    range: &Range<usize>,
) -> Option<(usize, &'r mut Entry)> {
    let (start, entry) = ranges.range_mut(..range.end).next_back()?;
    (entry.end > range.start).then_some((*start, entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Driver;
    use std::cell::Cell;

    const FLAGS: RegisterFlags = RegisterFlags::PORTABLE;

    fn context() -> Context {
        Driver::over(cuda_mem_sim::table()).unwrap().device(0).unwrap().primary_context().unwrap()
    }

    fn never() -> Result<()> {
        panic!("the driver must not be called")
    }

    #[test]
    fn an_inner_range_is_counted_and_the_driver_hears_once() {
        let (registry, context) = (Registry::default(), context());
        let outer = registry.claim(100..200, FLAGS, &context, false, || Ok(())).unwrap();
        let inner = registry.claim(150..200, FLAGS, &context, false, never).unwrap();
        assert_eq!(outer, inner);
        registry.release(outer, never).unwrap();
        let unregistered = Cell::new(false);
        registry
            .release(inner, || {
                unregistered.set(true);
                Ok(())
            })
            .unwrap();
        assert!(unregistered.get());
        registry.claim(150..250, FLAGS, &context, false, || Ok(())).unwrap();
    }

    #[test]
    fn other_flags_and_partial_overlaps_name_the_range_in_the_way() {
        let (registry, context) = (Registry::default(), context());
        registry.claim(100..200, FLAGS, &context, false, || Ok(())).unwrap();
        for (range, flags) in
            [(150..200, RegisterFlags::empty()), (50..101, FLAGS), (199..300, FLAGS), (0..400, FLAGS)]
        {
            let error = registry.claim(range, flags, &context, false, never).unwrap_err();
            let ours = RegisteredBy::Ours { range: 100..200 };
            assert!(matches!(error, Error::AlreadyRegistered { by, .. } if by == ours));
        }
        registry.claim(200..300, FLAGS, &context, false, || Ok(())).unwrap();
        registry.claim(0..100, FLAGS, &context, false, || Ok(())).unwrap();
    }

    #[test]
    fn a_pinned_range_has_one_pin_and_is_not_taken_from_other_holders() {
        let (registry, context) = (Registry::default(), context());
        let held = registry.claim(0..50, FLAGS, &context, false, || Ok(())).unwrap();
        registry.claim(100..200, FLAGS, &context, true, || Ok(())).unwrap();
        for range in [100..200, 150..160, 199..300, 0..50] {
            assert!(matches!(
                registry.claim(range, FLAGS, &context, true, never),
                Err(Error::AlreadyRegistered { .. })
            ));
        }
        assert!(registry.unpin(150, never).is_none(), "the driver knows it by its start alone");
        assert!(matches!(registry.unpin(0, never), Some(Err(Error::HeldByOwner { .. }))));
        registry.unpin(100, || Err(Error::Forked)).unwrap().unwrap_err();
        let shared = registry.claim(150..160, FLAGS, &context, false, never).unwrap();
        registry.unpin(100, never).unwrap().unwrap();
        assert!(matches!(registry.unpin(100, never), Some(Err(Error::HeldByOwner { .. }))));
        registry.release(shared, || Ok(())).unwrap();
        registry.release(held, || Ok(())).unwrap();
        assert!(registry.unpin(100, never).is_none());
    }

    #[test]
    fn a_failed_registration_leaves_nothing_and_a_failed_release_leaves_the_claim() {
        let (registry, context) = (Registry::default(), context());
        registry.claim(100..200, FLAGS, &context, false, || Err(Error::Forked)).unwrap_err();
        let claim = registry.claim(100..200, FLAGS, &context, false, || Ok(())).unwrap();
        registry.release(claim, || Err(Error::Forked)).unwrap_err();
        registry.claim(100..200, FLAGS, &context, false, never).unwrap();
    }
}
