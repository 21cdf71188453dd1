//! The page source of an allocator with its lock, and the limit that private pools share with it.

use super::callbacks::refuse_watchers;
use super::sharing::Pins;
use super::vmm::Vmm;
use crate::engine::paged::PageSource;
use crate::error::Result;
use crate::primitive::{Mutex, OverCalls, lock, lock_over_calls};

/// The page source, and the pins whose end it does not know of yet.
#[derive(Debug)]
pub(super) struct SourceCell {
    source: Mutex<PageSource<Vmm>>,
    pub(super) pins: Mutex<Pins>,
}

/// The page source, locked.
pub(super) type Source<'s> = OverCalls<'s, PageSource<Vmm>>;

impl SourceCell {
    pub(super) fn new(source: PageSource<Vmm>) -> Self {
        Self { source: Mutex::new(source), pins: Mutex::default() }
    }

    /// Locks the page source, which knows of all pins then. [`Error::InCallback`](crate::Error::InCallback) in watchers, whose thread has
    /// it; `Forked` in a forked child.
    pub(super) fn lock(&self) -> Result<Source<'_>> {
        refuse_watchers()?;
        let mut source = self.lock_unchecked();
        source.unpin(&std::mem::take(&mut lock(&self.pins).dropped));
        Ok(source)
    }

    /// Locks the page source. The calling thread must not be in a watcher.
    pub(super) fn lock_unchecked(&self) -> Source<'_> {
        lock_over_calls(&self.source)
    }

    /// Sets bytes of the limit aside for a segment of a private pool; how many are missing, if it has not as many left.
    pub(super) fn claim(&self, bytes: usize) -> Result<Result<Claim<'_>, usize>> {
        let mut source = self.lock()?;
        let missing = source.reserved().saturating_add(bytes).saturating_sub(source.limit());
        if bytes > 0 && missing > 0 {
            return Ok(Err(missing));
        }
        source.claimed = source.claimed.saturating_add(bytes);
        Ok(Ok(Claim { cell: self, bytes }))
    }

    pub(super) fn unclaim(&self, bytes: usize) {
        let mut source = self.lock_unchecked();
        source.elsewhere = source.elsewhere.saturating_sub(bytes);
    }
}

/// Bytes of the limit that are set aside for a segment, until they are kept.
#[derive(Debug)]
#[must_use]
pub(super) struct Claim<'s> {
    cell: &'s SourceCell,
    bytes: usize,
}

impl Claim<'_> {
    /// There is a segment of them now, or memory that cannot be given back.
    pub(super) fn keep(mut self) {
        let (mut source, bytes) = (self.cell.lock_unchecked(), std::mem::take(&mut self.bytes));
        source.claimed = source.claimed.saturating_sub(bytes);
        source.elsewhere = source.elsewhere.saturating_add(bytes);
        // Whoever asked the device meanwhile was told of it already.
        source.begin();
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut source = self.cell.lock_unchecked();
        source.claimed = source.claimed.saturating_sub(self.bytes);
    }
}
