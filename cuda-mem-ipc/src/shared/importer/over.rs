//! How an importer learns that nothing more comes of an exporter that is gone, whether or not anybody receives.

use std::sync::{Arc, MutexGuard, TryLockError};
use std::time::Duration;

use super::{ImportLink, Turn};
use crate::error::Error;
use crate::shared::releases::{Resting, rest};
use crate::shared::{MOST_AT_A_TIME, heard};

impl ImportLink {
    /// Buffers that the exporter had sent are received all the same. If there are none, nobody need come for it to be known.
    pub(super) fn look_for_the_last(self: &Arc<Self>) {
        match self.try_turn() {
            Some(mut turn) => self.look_for_the_last_in(&mut turn),
            // Who has it may be mapping a segment, or have looked before the end.
            None => rest(Look(Arc::clone(self))),
        }
    }

    pub(super) fn look_for_the_last_in(self: &Arc<Self>, turn: &mut Turn) {
        if !self.has_seen_the_last(turn) {
            rest(Look(Arc::clone(self)));
        }
    }

    /// False if it has to be looked again though nobody receives anything.
    fn has_seen_the_last(self: &Arc<Self>, turn: &mut Turn) -> bool {
        for _ in 0..MOST_AT_A_TIME {
            if self.connection.is_broken() {
                self.forget_all();
                return true;
            }
            match turn.ring.peek() {
                Ok(None) if turn.held.is_none() => {}
                Ok(_) => return true,
                Err(_) => {
                    let _ = self.breaks("it has put more into the ring than there is room for");
                    continue;
                }
            }
            if !self.may_learn_late() {
                // Whoever receives what comes behind it imports it.
                return true;
            }
            match heard(&self.connection, Duration::ZERO) {
                // What is wrong with it breaks the connection. Nothing is mapped here, which may wait.
                Ok(said) => {
                    _ = self.heed(turn, said, |said, descriptors| self.learn_late(said, descriptors));
                }
                Err(error) if error.is_gone() || error.is_timeout() || matches!(error, Error::Broken) => {
                    self.forget_all();
                    return true;
                }
                Err(_) => {}
            }
        }
        false
    }

    fn try_turn(&self) -> Option<MutexGuard<'_, Turn>> {
        match self.turn.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// What is looked at again, by a thread that may not wait either.
struct Look(Arc<ImportLink>);

impl Resting for Look {
    fn has_passed(&mut self) -> bool {
        self.0.try_turn().is_some_and(|mut turn| self.0.has_seen_the_last(&mut turn))
    }
}
