//! From the host to the device: threads fill slots, the caller sends them off in their order.
//!
//! # Safety
//!
//! Relies on the borrow of what a [`Host`] names lasting until [`Upload::run`] returns or unwinds: loads that are posted then are
//! withdrawn.

#![allow(unsafe_code, reason = "has threads copy borrowed memory")]

use std::collections::VecDeque;
use std::io::{self, Read};
use std::ops::Range;
use std::slice;
use std::sync::Arc;

use super::CopyPlan;
use super::board::{Failure, Posted, Slot};
use super::ring::Waited;
use super::task::{Host, Task, read};
use super::tuning::{STRAIGHT, chunk, part};
use crate::buffer::DeviceRange;
use crate::error::{Error, Result};

/// A copy to the device.
pub(super) struct Upload<'s> {
    pub(super) plan: CopyPlan<'s>,
    pub(super) target: DeviceRange<'s, u8>,
}

impl Upload<'_> {
    /// Copies `host`'s bytes to the target. Returns when the host's side is not needed any more.
    ///
    /// # Safety
    ///
    /// `host` must have as many bytes as the target, and what it names must be readable until this returns or unwinds.
    pub(super) unsafe fn run(&self, host: &Arc<Host>) -> Result<()> {
        let (CopyPlan { ring, stream, .. }, total) = (self.plan, self.target.len());
        let mut place = ring.place();
        let mut posted = VecDeque::<(Posted<Task>, Range<usize>)>::new();
        let (mut cut, mut sent) = (0, 0);
        while sent < total {
            if posted.front().is_some_and(|(first, _)| first.is_finished()) {
                let Some((first, range)) = posted.pop_front() else { continue };
                let slot = first.into_slot().map_err(|failure| self.source_error(failure))?;
                sent = range.end;
                ring.send(slot, stream, &self.target, range)?;
                continue;
            }
            if cut < total
                && let Some(slot) = ring.take(&mut place, stream)?
            {
                posted.push_back(self.post(host, slot, &mut cut));
            } else if let Some(own) = posted.iter().find_map(|(load, _)| load.claim()) {
                // SAFETY: a part that this thread has claimed; the caller's promise.
                own.copy(|task, range| unsafe { task.run(range) });
            } else if let Some((first, _)) = posted.front() {
                first.wait();
            } else {
                match ring.wait(&mut place, stream)? {
                    Waited::Slot(slot) => posted.push_back(self.post(host, slot, &mut cut)),
                    Waited::Stalled => {
                        let end = sent.saturating_add(ring.slot_bytes()).min(total);
                        // SAFETY: the caller's promise.
                        unsafe { self.straight(host, sent..end) }?;
                        (sent, cut) = (end, end);
                    }
                }
            }
        }
        Ok(())
    }

    /// Has the threads fill `slot` with the bytes from `cut` on, and moves that to behind them.
    fn post(&self, host: &Arc<Host>, slot: Slot<Task>, cut: &mut usize) -> (Posted<Task>, Range<usize>) {
        let CopyPlan { ring, threads, .. } = self.plan;
        let range = *cut..self.chunk_end(*cut);
        *cut = range.end;
        let task = ring.task(&slot, host, range.start);
        (slot.post(task, range.len(), part(range.len(), threads)), range)
    }

    /// Where the chunk ends that begins at `start`.
    fn chunk_end(&self, start: usize) -> usize {
        let left = self.target.len().saturating_sub(start);
        start.saturating_add(chunk(start, left, self.plan.ring.slot_bytes()))
    }

    /// Copies `range` without the ring, and waits for the stream.
    ///
    /// # Safety
    ///
    /// As [`Upload::run`].
    unsafe fn straight(&self, host: &Host, range: Range<usize>) -> Result<()> {
        let stream = self.plan.stream;
        match host {
            Host::Source(bytes) | Host::Target(bytes) => {
                // SAFETY: initialised bytes that stay borrowed, by the caller's promise.
                let source = unsafe { slice::from_raw_parts(bytes.address(range.start), range.len()) };
                self.target.range(range)?.copy_from_slice(stream, source)
            }
            Host::File { descriptor, offset } => {
                for start in range.clone().step_by(STRAIGHT) {
                    let len = STRAIGHT.min(range.end.saturating_sub(start));
                    let mut bytes = vec![0; len];
                    let offset = offset.saturating_add(start as u64);
                    // SAFETY: `len` writable bytes.
                    let read = unsafe { read(*descriptor, offset, bytes.as_mut_ptr(), len) };
                    read.map_err(|(done, source)| {
                        self.source_error(Failure { at: start.saturating_add(done), source })
                    })?;
                    self.target.range(start..start.saturating_add(len))?.copy_from_slice(stream, &bytes)?;
                }
                Ok(())
            }
        }
    }

    /// Copies what `source` yields to the target.
    pub(super) fn read(&self, source: &mut (impl Read + ?Sized)) -> Result<()> {
        let (CopyPlan { ring, stream, .. }, total) = (self.plan, self.target.len());
        let mut place = ring.place();
        let mut done = 0;
        while done < total {
            let end = self.chunk_end(done);
            match ring.wait(&mut place, stream)? {
                Waited::Slot(mut slot) => {
                    self.fill(source, ring.bytes(&mut slot, end.saturating_sub(done)), done)?;
                    ring.send(slot, stream, &self.target, done..end)?;
                    done = end;
                }
                Waited::Stalled => {
                    let mut bytes = vec![0; end.saturating_sub(done).min(STRAIGHT)];
                    self.fill(source, &mut bytes, done)?;
                    let end = done.saturating_add(bytes.len());
                    self.target.range(done..end)?.copy_from_slice(stream, &bytes)?;
                    done = end;
                }
            }
        }
        Ok(())
    }

    /// Reads bytes until `target` is full.
    fn fill(&self, source: &mut (impl Read + ?Sized), target: &mut [u8], done: usize) -> Result<()> {
        let mut filled = 0;
        while let Some(rest) = target.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let at = done.saturating_add(filled);
            let failure = match source.read(rest) {
                Ok(0) => io::ErrorKind::UnexpectedEof.into(),
                // More than there was room for is a mistake of the source.
                Ok(read) if read > rest.len() => io::ErrorKind::InvalidData.into(),
                Ok(read) => {
                    filled = filled.saturating_add(read);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            return Err(self.source_error(Failure { at, source: failure }));
        }
        Ok(())
    }

    fn source_error(&self, failure: Failure) -> Error {
        let Failure { at, source } = failure;
        Error::Source { at: at as u64, total: self.target.len() as u64, source: source.into() }
    }
}
