//! Calls that name a stream of somebody else, who destroys it when none does any more.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The owner has said that it ends. The rest counts calls.
const DISOWNED: usize = 1;
const CALL: usize = 2;

/// Who names a stream right now.
#[derive(Debug, Default)]
pub(super) struct Naming(AtomicUsize);

/// A call that names it.
#[derive(Debug)]
pub(crate) struct Named<'n>(&'n Naming);

impl Naming {
    /// None once the stream was disowned.
    #[inline]
    pub(super) fn begin(&self) -> Option<Named<'_>> {
        let before = self.0.fetch_add(CALL, Ordering::Acquire);
        let named = Named(self);
        (before & DISOWNED == 0).then_some(named)
    }

    /// No call begins from here on. Waits for those that have begun, which may themselves wait for what the stream was given.
    pub(super) fn end(&self) {
        self.0.fetch_or(DISOWNED, Ordering::AcqRel);
        let mut pause = Duration::from_micros(1);
        // Acquire: the calls come before whatever their stream's owner does next.
        while self.0.load(Ordering::Acquire) != DISOWNED {
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }
}

impl Drop for Named<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.fetch_sub(CALL, Ordering::Release);
    }
}
