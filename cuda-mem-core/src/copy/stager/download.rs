//! From the device to the host: the caller has slots filled in order, threads empty them.
//!
//! # Safety
//!
//! Relies on the borrow of what a [`Host`] names lasting until [`Download::run`] returns or unwinds: loads that are posted then
//! are withdrawn, and the link itself knows the ring alone.

#![allow(unsafe_code, reason = "has threads copy to borrowed memory")]

use std::collections::VecDeque;
use std::ops::Range;
use std::slice;
use std::sync::Arc;

use super::CopyPlan;
use super::board::Posted;
use super::ring::{Backoff, Flight, Ring, Waited};
use super::task::{Host, Task};
use super::tuning::{chunk, part};
use crate::buffer::DeviceRange;
use crate::driver::lock;
use crate::error::{Error, Result};

/// A copy to the host.
pub(super) struct Download<'s> {
    pub(super) plan: CopyPlan<'s>,
    pub(super) source: DeviceRange<'s, u8>,
}

/// The slots that the link fills for this copy. Dropped, they are left to the ring.
struct Flights<'r> {
    ring: &'r Ring,
    flights: VecDeque<(Flight, Range<usize>)>,
}

impl Drop for Flights<'_> {
    fn drop(&mut self) {
        if !self.flights.is_empty() {
            lock(&self.ring.flights).extend(self.flights.drain(..).map(|(flight, _)| flight));
        }
    }
}

impl Download<'_> {
    /// Copies the sources to `host`'s bytes. Returns when they are there.
    ///
    /// # Safety
    ///
    /// `host` must be a target with as many bytes as the sources, which nobody else touches until this returns or unwinds.
    pub(super) unsafe fn run(&self, host: &Arc<Host>) -> Result<()> {
        let (CopyPlan { ring, stream, threads, .. }, total) = (self.plan, self.source.len());
        let mut place = ring.place();
        let mut posted = VecDeque::<(Posted<Task>, Range<usize>)>::new();
        let mut flying = Flights { ring, flights: VecDeque::new() };
        let (mut asked, mut done) = (0, 0);
        let mut backoff = Backoff::new();
        let fetch = |flying: &mut Flights<'_>, asked: &mut usize, slot| -> Result<()> {
            let len = chunk(*asked, total.saturating_sub(*asked), ring.slot_bytes());
            let range = *asked..asked.saturating_add(len);
            *asked = range.end;
            let flight = ring.fetch(slot, stream, &self.source, range.clone())?;
            flying.flights.push_back((flight, range));
            Ok(())
        };
        while done < total {
            if posted.front().is_some_and(|(first, _)| first.is_finished()) {
                done = posted.pop_front().map_or(done, |(_, range)| range.end);
                continue;
            }
            if asked < total
                && let Some(slot) = ring.take(&mut place, stream)?
            {
                fetch(&mut flying, &mut asked, slot)?;
                continue;
            }
            if let Some((flight, range)) = flying.flights.front_mut()
                && let Some(slot) = flight.land()?
            {
                let task = ring.task(&slot, host, range.start);
                let load = slot.post(task, range.len(), part(range.len(), threads));
                posted.push_back((load, range.clone()));
                flying.flights.pop_front();
                backoff = Backoff::new();
            } else if let Some(own) = posted.iter().find_map(|(load, _)| load.claim()) {
                // SAFETY: a part that this thread has claimed; the caller's promise.
                own.copy(|task, range| unsafe { task.run(range) });
            } else if let Some((first, _)) = posted.front() {
                first.wait();
            } else if !flying.flights.is_empty() {
                backoff.pause();
            } else {
                match ring.wait(&mut place, stream)? {
                    Waited::Slot(slot) => fetch(&mut flying, &mut asked, slot)?,
                    Waited::Stalled => {
                        let end = done.saturating_add(ring.slot_bytes()).min(total);
                        // SAFETY: the caller's promise.
                        unsafe { self.straight(host, done..end) }?;
                        (done, asked) = (end, end);
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies `range` without the ring, and waits for the stream.
    ///
    /// # Safety
    ///
    /// As [`Download::run`].
    unsafe fn straight(&self, host: &Host, range: Range<usize>) -> Result<()> {
        let Host::Target(bytes) = host else { return Err(Error::ReadOnly) };
        // SAFETY: initialised bytes of a target that nobody else touches, by the caller's promise.
        let target = unsafe { slice::from_raw_parts_mut(bytes.address(range.start), range.len()) };
        self.source.range(range)?.copy_to_slice(self.plan.stream, target)
    }
}
