//! What an importer hears, in its order.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cuda_mem_pool::cuda_mem_core::ipc::{EventHandle, OpenedEvent};

use super::{ImportLink, Turn};
use crate::error::{Error, Result};
use crate::shared::arrival::Arrival;
use crate::shared::received::ReceivedBuffer;
use crate::shared::returned::Returned;
use crate::shared::wire::{self, Fence, HandOver, Release};
use crate::shared::words::Point;
use crate::shared::{Heard, MOST_AT_A_TIME, heard, lock, ring, say};
use crate::transport::Deadline;

/// How long the ring is looked at before the thread sleeps: less than it takes to be woken.
const SPIN: Duration = Duration::from_micros(20);

/// The same for a thread that was called: longer than who called it takes to put something there. Not much longer, for where processors are
/// few it may have taken the caller's.
const CALLED: Duration = Duration::from_micros(5);

/// How often between two looks at the clock, which takes as long as several looks at the ring.
const LOOKS: u32 = 16;

/// How often somebody who waits for a moment only, again and again, listens for messages that the peer does not say it has sent, and for
/// its end.
const LISTEN: Duration = Duration::from_millis(1);

impl ImportLink {
    /// Looks for a while whether there is something to take, without a system call. False if nobody need try: the deadline has passed,
    /// and it is not long ago that a message was listened for.
    pub(super) fn look(&self, deadline: Deadline, was_asleep: bool) -> bool {
        let (position, heard, listened) = {
            let turn = lock(&self.turn);
            if turn.held.is_some() {
                return true;
            }
            (turn.ring.position(), turn.heard, turn.listened)
        };
        let end = deadline.min(Deadline::after(if was_asleep { CALLED } else { SPIN }));
        loop {
            for _ in 0..LOOKS {
                if ring::has_more(&self.ring, position) || ring::has_unheard(&self.ring, heard) {
                    return true;
                }
                std::hint::spin_loop();
            }
            if end.has_passed() {
                let is_lately = listened.is_some_and(|at| at.elapsed() < LISTEN);
                return !(is_lately && deadline.has_passed());
            }
        }
    }

    /// Waits until there is something to receive, or the peer has ended.
    pub(super) fn sleep(&self, deadline: Deadline) -> Result<()> {
        let slept = if self.lies_down() { self.connection.wait_readable(deadline) } else { Ok(()) };
        ring::awake(&self.ring);
        slept
    }

    /// Says that somebody is about to sleep. If it is false, there is something to take.
    pub(super) fn lies_down(&self) -> bool {
        let position = lock(&self.turn).ring.position();
        ring::may_sleep(&self.ring, position)
    }

    /// The next buffer, if it is there.
    pub(super) fn take(self: &Arc<Self>) -> Result<ReceivedBuffer> {
        // Messages are believed in their order, whoever receives them.
        let mut turn = lock(&self.turn);
        let taken = self.take_next(&mut turn);
        if self.is_over() {
            // It may have been the last.
            self.look_for_the_last_in(&mut turn);
        }
        taken
    }

    fn take_next(self: &Arc<Self>, turn: &mut Turn) -> Result<ReceivedBuffer> {
        let mut turns = 0;
        // A buffer that has come is given at once: nobody would be woken for it.
        while turns < MOST_AT_A_TIME || turn.held.is_some() {
            turns += 1;
            if self.connection.is_broken() {
                // What is in the ring is believed no more than messages are.
                self.forget_all();
                return Err(Error::Broken);
            }
            if let Some(segment) = turn.retired.take() {
                self.retire(turn, segment)?;
            }
            let corrupt = |_| self.breaks("it has put more into the ring than there is room for");
            let entry = turn.ring.peek().map_err(corrupt)?;
            if let Some(entry) = entry {
                let pid = self.connection.peer().pid();
                let wrong = |source| self.connection.breaks(Error::Wire { pid, source });
                let (said, messages) = HandOver::of_entry(entry).map_err(wrong)?;
                let is_next = turn.held.is_none_or(|held| said.sequence < held.sequence);
                if messages <= turn.heard && is_next {
                    turn.ring.advance();
                    return self.receive(said);
                }
            }
            if let Some(said) = turn.held.take() {
                return self.receive(said);
            }
            turn.listened = Some(Instant::now());
            let said = match heard(&self.connection, Duration::ZERO) {
                Err(error) if error.is_gone() || matches!(error, Error::Broken) => {
                    self.forget_all();
                    return Err(error);
                }
                // What an entry comes behind was sent before it was there. Who waited for that would find the entry again and again, and
                // never sleep.
                Err(error) if error.is_timeout() && entry.is_some() => {
                    return Err(self.breaks(
                        "it has put into the ring what comes behind a message that it did not send",
                    ));
                }
                result => result?,
            };
            self.heed(turn, said, |said, descriptors| self.learn(said, descriptors))?;
        }
        Err(nothing_came())
    }

    /// Does what a message says, and learns of a segment in this way. A buffer is held.
    pub(super) fn heed(
        self: &Arc<Self>,
        turn: &mut Turn,
        said: Heard,
        learn: impl FnOnce(&wire::Segment, Vec<OwnedFd>) -> Result<()>,
    ) -> Result<()> {
        let Heard { message, descriptors, number } = said;
        turn.heard = number.saturating_add(1);
        // Before the next look at the ring: if this was a call, what is put there later may take another one.
        ring::say_heard(&self.ring, turn.heard);
        let no_descriptor = descriptors.is_empty();
        match message {
            wire::Message::Segment(said) if descriptors.len() == said.descriptors() => {
                learn(&said, descriptors)?;
            }
            // Behind what was put into the ring before.
            wire::Message::HandOver(said) if no_descriptor => turn.held = Some(said),
            wire::Message::Retire { segment } if no_descriptor => self.retire(turn, segment)?,
            wire::Message::Ring if no_descriptor => {}
            wire::Message::Keep => match <[OwnedFd; 1]>::try_from(descriptors) {
                Ok([descriptor]) => self.keep(descriptor)?,
                Err(_) => return Err(self.breaks("it has this process keep something else")),
            },
            _ => return Err(self.breaks("an exporter does not say that")),
        }
        Ok(())
    }

    fn receive(self: &Arc<Self>, said: HandOver) -> Result<ReceivedBuffer> {
        let segment = self.memory(said.segment);
        let range = (usize::try_from(said.offset), usize::try_from(said.len));
        let (Ok(offset), Ok(len)) = range else {
            return Err(self.breaks("it hands over what lies outside of its segment"));
        };
        let arrival = segment.and_then(|segment| {
            if offset.checked_add(len).is_none_or(|end| end > segment.bytes()) {
                return Err(self.breaks("it hands over what lies outside of its segment"));
            }
            Ok((segment, self.arrival(said.fence)?))
        });
        match arrival {
            Ok((segment, arrival)) => {
                self.live.fetch_add(1, Ordering::SeqCst);
                Ok(ReceivedBuffer::new(self, segment, offset..offset.saturating_add(len), said, arrival))
            }
            Err(error) => {
                let release = Release { sequence: said.sequence, line: 0, generation: 0 };
                if say(&self.connection, &wire::Message::Release(release), &[], Duration::ZERO).is_err() {
                    // Nobody is there to be told, or its queue is full: then it hears of it later.
                    self.live.fetch_add(1, Ordering::SeqCst);
                    self.give_back(Returned::refused(release));
                }
                Err(error)
            }
        }
    }

    fn arrival(&self, fence: Fence) -> Result<Arrival> {
        Ok(match fence {
            Fence::Word { line, generation } => Arrival::Word(Point { line, generation }),
            Fence::Event(handle) => {
                Arrival::Event(OpenedEvent::open(&self.context, &EventHandle::from_bytes(handle))?)
            }
        })
    }
}

pub(super) fn nothing_came() -> Error {
    Error::Timeout { what: "a buffer came" }
}
