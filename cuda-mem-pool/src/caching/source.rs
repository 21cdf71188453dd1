//! The page source of an allocator with its lock, and the limit that private pools share with it.

use std::ops::{Deref, DerefMut};

use super::callbacks::refuse_watchers;
use super::sharing::Pins;
use super::slot::Apart;
use super::vmm::Vmm;
use crate::engine::paged::PageSource;
use crate::error::Result;
use crate::primitive::{AtomicUsize, Mutex, Ordering, OverCalls, lock_over_calls};

/// The page source, and its figures as of the last time that somebody had it: those answer in watchers too, whose thread has it.
#[derive(Debug)]
pub(super) struct SourceCell {
    source: Mutex<PageSource<Vmm>>,
    pub(super) pins: Pins,
    held: Apart<AtomicUsize>,
    metadata: AtomicUsize,
    segments: AtomicUsize,
    /// The most bytes that may be held, those of private pools included.
    limit: AtomicUsize,
}

impl SourceCell {
    pub(super) fn new(source: PageSource<Vmm>) -> Self {
        Self {
            source: Mutex::new(source),
            pins: Pins::default(),
            held: Apart(AtomicUsize::new(0)),
            metadata: AtomicUsize::new(0),
            segments: AtomicUsize::new(0),
            limit: AtomicUsize::new(usize::MAX),
        }
    }

    /// Locks the page source, which knows of all pins then. [`Error::InCallback`](crate::Error::InCallback) in watchers, whose thread has
    /// it; `Forked` in a forked child.
    pub(super) fn lock(&self) -> Result<Source<'_>> {
        refuse_watchers()?;
        let mut source = self.lock_unchecked();
        source.unpin(&self.pins.take_dropped());
        Ok(source)
    }

    /// Locks the page source for who is in no watcher.
    pub(super) fn lock_unchecked(&self) -> Source<'_> {
        Source { cell: self, source: lock_over_calls(&self.source) }
    }

    /// The physical memory of the default pool, in bytes.
    pub(super) fn held(&self) -> usize {
        self.held.0.load(Ordering::Relaxed)
    }

    pub(super) fn segments(&self) -> usize {
        self.segments.load(Ordering::Relaxed)
    }

    pub(super) fn reserved(&self) -> usize {
        self.held().saturating_add(self.segments())
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        self.metadata.load(Ordering::Relaxed)
    }

    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit that is found while nobody else sets one.
    pub(super) fn set_limit(&self, limit: impl FnOnce() -> Result<usize>) -> Result<()> {
        let mut source = self.lock()?;
        self.limit.store(limit()?, Ordering::Relaxed);
        source.set_segments(self.segments());
        Ok(())
    }

    /// Sets bytes of the limit aside for a segment of a private pool. None if it has not as many left.
    pub(super) fn claim(&self, bytes: usize) -> Result<Option<Claim<'_>>> {
        let mut source = self.lock()?;
        let segments = self.segments().saturating_add(bytes);
        if bytes > 0 && source.reserved().saturating_add(segments) > self.limit() {
            return Ok(None);
        }
        source.set_segments(segments);
        Ok(Some(Claim { cell: self, bytes }))
    }

    pub(super) fn unclaim(&self, bytes: usize) {
        let mut source = self.lock_unchecked();
        source.set_segments(self.segments().saturating_sub(bytes));
    }
}

/// The page source, for the one who has it. What changed is published when it goes.
#[derive(Debug)]
pub(super) struct Source<'s> {
    cell: &'s SourceCell,
    source: OverCalls<'s, PageSource<Vmm>>,
}

impl Source<'_> {
    /// Sets the bytes of all segments of private pools, which the default pool may not hold.
    fn set_segments(&mut self, segments: usize) {
        let before = self.cell.segments.swap(segments, Ordering::Relaxed);
        self.source.changed_elsewhere(before.saturating_sub(segments), segments.saturating_sub(before));
        let limit = match self.cell.limit() {
            usize::MAX => usize::MAX,
            limit => limit.saturating_sub(segments),
        };
        self.source.set_limit(limit);
    }
}

impl Deref for Source<'_> {
    type Target = PageSource<Vmm>;

    fn deref(&self) -> &PageSource<Vmm> {
        &self.source
    }
}

impl DerefMut for Source<'_> {
    fn deref_mut(&mut self) -> &mut PageSource<Vmm> {
        &mut self.source
    }
}

impl Drop for Source<'_> {
    fn drop(&mut self) {
        self.cell.held.0.store(self.source.reserved(), Ordering::Relaxed);
        self.cell.metadata.store(self.source.metadata_bytes(), Ordering::Relaxed);
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
        self.bytes = 0;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.cell.unclaim(self.bytes);
        }
    }
}
