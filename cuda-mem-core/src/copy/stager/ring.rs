//! The pinned memory, its slots, and the copies of the link that still use some of them.
//!
//! # Safety
//!
//! Relies on [`super::board`]: whoever has a [`Slot`] has its bytes alone, and on a slot being held by its [`Flight`] until the
//! stream has passed the copy.

#![allow(unsafe_code, reason = "puts copies of slots into streams, and lends slots as slices")]

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::board::{Board, Shared, Slot, Turn};
use super::task::{Host, Task};
use super::tuning::{BUSY, SLEEP, STALLED};
use crate::buffer::{DeviceRange, Enqueued};
use crate::driver::{Context, Driver, Handle, LateReports, fork, lock, try_lock};
use crate::error::{Error, Result};
use crate::host::{HostElements, PinnedBuffer, PinnedFlags};
use crate::stream::{Marker, Quiet, Stream};

/// One pinned allocation, cut into slots of one size.
pub(super) struct Ring {
    board: Shared<Task>,
    /// What the link still reads or writes though its caller has gone on. Dropped before the memory.
    pub(super) flights: Mutex<VecDeque<Flight>>,
    base: Handle<u8>,
    slot_bytes: usize,
    memory: ManuallyDrop<PinnedBuffer<u8>>,
    /// Whether the link may use a slot for ever, because the driver refused to wait for a copy. The memory is leaked then.
    is_in_use: Arc<AtomicBool>,
}

/// A slot that the link reads or writes. Dropped, it waits.
pub(super) struct Flight {
    marker: Marker,
    /// None when the link is done with it.
    slot: Option<Slot<Task>>,
    /// The ring's.
    is_in_use: Arc<AtomicBool>,
}

impl Flight {
    /// The slot, once the link is done with it. After an error of the stream's work it is done, and the slot is free.
    pub(super) fn land(&mut self) -> Result<Option<Slot<Task>>> {
        match self.marker.is_reached() {
            Ok(false) => Ok(None),
            answer => self.end(answer),
        }
    }

    /// The slot, after the marker was asked and did not say that the copy runs.
    fn end(&mut self, answer: Result<bool>) -> Result<Option<Slot<Task>>> {
        // A question that fails is no answer.
        let landed = answer.map_or_else(|_| self.marker.wait(), |_| Quiet::Yes(Ok(())));
        self.ended(landed)
    }

    fn ended(&mut self, landed: Quiet) -> Result<Option<Slot<Task>>> {
        let slot = self.slot.take();
        match landed {
            Quiet::Yes(landed) => landed.map(|()| slot),
            Quiet::Unknown(error) => {
                // Nobody gets the slot again, nor the ring's memory.
                self.is_in_use.store(true, Ordering::Release);
                let _ = ManuallyDrop::new(slot);
                Err(error)
            }
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.slot.is_some()
            && !fork::forked()
            && let landed = self.marker.wait()
            && let Err(error) = self.ended(landed)
        {
            self.marker.stream().driver().report_release_failure(&error);
        }
    }
}

/// A caller's place among those who want slots.
pub(super) struct Place {
    turn: Turn<Task>,
    /// How many slots had been given out when the ring was found to be stalled: while it stays so, that is known.
    stalled: Option<u64>,
}

/// What became of a wait for a slot.
pub(super) enum Waited {
    Slot(Slot<Task>),
    /// All slots are with streams that do not get on, and none of them is the caller's.
    Stalled,
}

impl Ring {
    pub(super) fn new(context: &Context, slots: usize, slot_bytes: usize) -> Result<Self> {
        let bytes =
            slots.checked_mul(slot_bytes).ok_or(Error::TooLarge { count: slots, size: slot_bytes })?;
        let mut memory = PinnedBuffer::zeroed(context, bytes, PinnedFlags::PORTABLE)?;
        let base = Handle::new(memory.as_mut_ptr());
        let (memory, is_in_use) = (ManuallyDrop::new(memory), Arc::default());
        Ok(Self { board: Board::new(slots), flights: Mutex::default(), base, slot_bytes, memory, is_in_use })
    }

    pub(super) fn board(&self) -> &Shared<Task> {
        &self.board
    }

    pub(super) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    pub(super) fn len(&self) -> usize {
        self.memory.len().checked_div(self.slot_bytes).unwrap_or(0)
    }

    pub(super) fn driver(&self) -> Driver {
        self.memory.context().driver()
    }

    /// A place among those who want slots.
    pub(super) fn place(&self) -> Place {
        Place { turn: Turn::new(&self.board), stalled: None }
    }

    /// A slot for a copy on `stream`, if it is this caller's turn and one is free or has landed.
    pub(super) fn take(&self, place: &mut Place, stream: &Stream) -> Result<Option<Slot<Task>>> {
        if let Some(slot) = place.turn.take() {
            return Ok(Some(slot));
        }
        self.recycle(stream)?;
        Ok(place.turn.take())
    }

    /// Waits for a slot, for a caller that has none and whose copy is on `stream`.
    pub(super) fn wait(&self, place: &mut Place, stream: &Stream) -> Result<Waited> {
        let (mut backoff, mut granted) = (Backoff::new(), self.board.granted());
        loop {
            if let Some(slot) = self.take(place, stream)? {
                return Ok(Waited::Slot(slot));
            }
            let now = self.board.granted();
            let stalled = place.stalled == Some(now) || backoff.lasted() >= STALLED;
            if now != granted {
                (backoff, granted) = (Backoff::new(), now);
            } else if stalled && !lock(&self.flights).iter().any(|flight| flight.marker.stream() == stream) {
                // Not in the others' way while it copies straight.
                place.turn.leave();
                place.stalled = Some(now);
                return Ok(Waited::Stalled);
            }
            backoff.pause();
        }
    }

    /// Frees the slots that the link is done with. What the work of a stream failed with is an error for copies on `stream` alone.
    fn recycle(&self, stream: &Stream) -> Result<()> {
        // The program's hook hears of what a question fails to leave behind the lock: it may copy by this ring.
        let _reports = LateReports::new();
        // If there is none, somebody else asks already.
        let Some(mut flights) = try_lock(&self.flights) else { return Ok(()) };
        let (mut ended, mut busy) = (Vec::new(), Vec::new());
        let mut index = 0;
        while let Some(flight) = flights.get(index) {
            let of = flight.marker.stream();
            // Streams run in order: behind a copy that runs, none of the same stream is done.
            let answer = if busy.contains(&of.id()) { Ok(false) } else { flight.marker.is_reached() };
            let is_over = match &answer {
                Ok(is_reached) => *is_reached,
                Err(Error::Driver(error)) if error.context_is_lost() => true,
                // It takes a wait, which for another stream may be one for what this caller does next: that is asked again.
                Err(_) => of == stream,
            };
            if is_over {
                ended.extend(flights.remove(index).map(|flight| (flight, answer)));
            } else {
                busy.push(of.id());
                index = index.saturating_add(1);
            }
        }
        drop(flights);
        // Outside the lock: it may take a wait, and the last handle to a stream may go here.
        let mut result = Ok(());
        for (mut flight, answer) in ended {
            let landed = flight.end(answer).map(drop);
            if flight.marker.stream() == stream {
                result = result.and(landed);
            }
        }
        result
    }

    fn address(&self, slot: &Slot<Task>) -> *mut u8 {
        // Inside the allocation: the board numbers as many slots as there are.
        self.base.raw().wrapping_add(slot.index().wrapping_mul(self.slot_bytes))
    }

    /// What a thread needs to move `host`'s bytes from the place `start` on into or out of `slot`.
    pub(super) fn task(&self, slot: &Slot<Task>, host: &Arc<Host>, start: usize) -> Task {
        Task { host: Arc::clone(host), slot: Handle::new(self.address(slot)), start }
    }

    /// The slot's first bytes.
    pub(super) fn bytes<'s>(&self, slot: &'s mut Slot<Task>, len: usize) -> &'s mut [u8] {
        let (address, len) = (self.address(slot), len.min(self.slot_bytes));
        // SAFETY: initialised bytes of the slot, which is borrowed mutably and has one holder: neither a thread nor the link
        // touches it.
        unsafe { std::slice::from_raw_parts_mut(address, len) }
    }

    /// Puts copies of the slot's bytes to what lies in `range` of `targets` into the stream.
    pub(super) fn send(
        &self,
        slot: Slot<Task>,
        stream: &Stream,
        target: &DeviceRange<'_, u8>,
        range: Range<usize>,
    ) -> Result<()> {
        let (from, part) = (self.address(&slot), target.range(range)?);
        let flight = self.take_off(slot, stream, "copying from a staging ring", || {
            // SAFETY: the slot is long enough for the range, and nobody touches it while its flight lives, which ends when
            // the stream has passed the copy.
            unsafe { part.upload(stream, from, part.len()) }
        })?;
        lock(&self.flights).push_back(flight);
        Ok(())
    }

    /// Puts copies of what lies in `range` of `sources` to the slot into the stream.
    pub(super) fn fetch(
        &self,
        slot: Slot<Task>,
        stream: &Stream,
        source: &DeviceRange<'_, u8>,
        range: Range<usize>,
    ) -> Result<Flight> {
        let (to, part) = (self.address(&slot), source.range(range)?);
        self.take_off(slot, stream, "copying to a staging ring", || {
            // SAFETY: as in `send`.
            unsafe { part.download(stream, to, part.len()) }
        })
    }

    /// Puts a copy between a slot and the device into the stream, and a point behind it.
    fn take_off(
        &self,
        slot: Slot<Task>,
        stream: &Stream,
        call: &'static str,
        enqueue: impl FnOnce() -> Enqueued,
    ) -> Result<Flight> {
        stream.refuse_capturing(call)?;
        let marker = Marker::new(stream)?;
        let marked = enqueue().mark(&marker);
        let mut flight = Flight { marker, slot: Some(slot), is_in_use: Arc::clone(&self.is_in_use) };
        if !matches!(marked, Quiet::Yes(Ok(()))) {
            // After an error nothing of it runs any more, and the slot is free.
            flight.ended(marked)?;
        }
        Ok(flight)
    }
}

/// A wait for a device that tells nobody: busy at first, so that short waits stay short.
pub(super) struct Backoff {
    since: Instant,
    sleep: Duration,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), sleep: *SLEEP.start() }
    }

    /// How long it has lasted.
    pub(super) fn lasted(&self) -> Duration {
        self.since.elapsed()
    }

    /// Lets a moment pass.
    pub(super) fn pause(&mut self) {
        if self.lasted() < BUSY {
            (0..32).for_each(|_| std::hint::spin_loop());
            thread::yield_now();
        } else {
            thread::sleep(self.sleep);
            self.sleep = self.sleep.saturating_mul(2).min(*SLEEP.end());
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Copies that are under way are waited for before it is known whether the memory can go.
        self.flights.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        if !self.is_in_use.load(Ordering::Acquire) {
            // SAFETY: dropped once, and not used after its owner's drop; no copy uses it any more.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}
