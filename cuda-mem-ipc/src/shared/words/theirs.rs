//! The peer's lines: its fences, and its end.

use std::sync::Arc;

use cuda_mem_pool::cuda_mem_core::{self as core, Fence, Stream};

use super::{LAST, Point, Words, word};
use crate::error::{Error, Result};
use crate::shared::releases::bury;
use crate::shared::{lock, wire};

impl Words {
    /// Has `stream` wait for a fence of the peer. Without a call of the driver if it was reached.
    pub(in crate::shared) fn hold_up(&self, point: Point, stream: &Stream) -> Result<()> {
        let held_up = self.fence(point).and_then(|fence| {
            if fence.is_complete()? {
                return Ok(());
            }
            Ok(fence.hold_up(stream)?)
        });
        match held_up {
            Err(error) if is_poison(&error) => self.was_reached(point).map(drop),
            result => result,
        }
    }

    /// Whether a fence of the peer was reached.
    pub(in crate::shared) fn is_reached(&self, point: Point) -> Result<bool> {
        match self.fence(point).and_then(|fence| Ok(fence.is_complete()?)) {
            Err(error) if is_poison(&error) => self.was_reached(point),
            result => result,
        }
    }

    fn fence(&self, point: Point) -> Result<Fence> {
        Ok(self.page()?.line(self.slot(self.peer(), point.line))?.fence(point.generation)?)
    }

    /// Whether a fence whose line is poisoned was reached before.
    fn was_reached(&self, point: Point) -> Result<bool> {
        // The page goes before its lines are poisoned here: as long as it is there, the peer has done that, and lives.
        let Err(gone) = self.page() else { return Err(Error::FenceRefused { pid: self.pid }) };
        let reached = lock(&self.reached).get(point.line as usize).copied().unwrap_or_default();
        if reached >= point.generation { Ok(true) } else { Err(gone) }
    }

    /// A fence that the peer says it has recorded.
    pub(in crate::shared) fn expect(&self, point: Point) {
        if let Some(expected) = lock(&self.expected).get_mut(point.line as usize) {
            *expected = point.generation.max(*expected);
        }
    }

    /// Whether everything that the peer said it has recorded is done.
    pub(in crate::shared) fn expected_are_reached(&self) -> bool {
        let expected = *lock(&self.expected);
        self.have_come_to(self.peer(), expected)
    }

    /// The peer is gone: whoever waits for it is let go, and what it had reached is remembered.
    pub(in crate::shared) fn end(&self) {
        let Ok(page) = self.page() else { return };
        {
            let mut reached = lock(&self.reached);
            for (line, reached) in (0..wire::LINES).zip(reached.iter_mut()) {
                let seen = word(&page.words, self.slot(self.peer(), line));
                // Above the last generation it is poison.
                *reached = if seen > LAST { 0 } else { seen };
            }
        }
        // Before the poison: whoever finds a poisoned line in a page that is there takes it for the peer's doing.
        *lock(&self.page) = None;
        for line in 0..wire::LINES {
            if let Ok(line) = page.line(self.slot(self.peer(), line)) {
                line.poison();
            }
        }
        // Its release waits for streams, which may wait for another peer.
        bury(page);
    }
}

fn is_poison(error: &Error) -> bool {
    matches!(error, Error::Core(core::Error::Poisoned) | Error::PeerDied { .. })
}

/// A receiver's last use of memory that was handed to it: what its owner waits for.
#[derive(Debug, Clone)]
pub(in crate::shared) struct ReleaseFence {
    pub(in crate::shared) words: Arc<Words>,
    pub(in crate::shared) point: Point,
}

impl ReleaseFence {
    /// Whether both are generations of one line, of which the later one stands for both.
    pub(in crate::shared) fn is_of_the_line_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.words, &other.words) && self.point.line == other.point.line
    }

    /// Has `stream` wait for it. A receiver that is gone uses nothing any more, and one that poisons its own line says so.
    pub(in crate::shared) fn order(&self, stream: &Stream) -> Result<()> {
        match self.words.hold_up(self.point, stream) {
            Err(Error::PeerDied { .. } | Error::FenceRefused { .. }) => Ok(()),
            result => result,
        }
    }

    /// Whether it need not be waited for.
    pub(in crate::shared) fn is_over(&self) -> bool {
        !matches!(self.words.is_reached(self.point), Ok(false))
    }
}
