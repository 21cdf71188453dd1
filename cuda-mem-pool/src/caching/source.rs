//! The page source of an allocator: whoever has it, and what everybody else sees of it.

use std::ops::{Deref, DerefMut};

use super::callbacks::{is_watching, refuse_watchers};
use super::shared::{Apart, Shared, refuse_forked};
use super::vmm::{Calls, Vmm};
use crate::engine::paged::PageSource;
use crate::error::Result;
use crate::primitive::{AtomicUsize, Mutex, Ordering, OverCalls, lock, lock_over_calls};

/// The page source, and its figures as of the last time that somebody had it: those answer in watchers too, whose thread has it.
#[derive(Debug)]
pub(super) struct SourceCell {
    source: Mutex<PageSource<Vmm>>,
    held: Apart<AtomicUsize>,
    metadata: AtomicUsize,
    calls: Mutex<Calls>,
}

impl SourceCell {
    pub(super) fn new(source: PageSource<Vmm>) -> Self {
        Self {
            source: Mutex::new(source),
            held: Apart::new(AtomicUsize::new(0)),
            metadata: AtomicUsize::new(0),
            calls: Mutex::default(),
        }
    }

    /// The physical memory of the default pool, in bytes.
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Host memory that its books take, in bytes.
    pub(super) fn metadata_bytes(&self) -> usize {
        self.metadata.load(Ordering::Relaxed)
    }

    /// What the driver was asked so far, by call.
    pub(super) fn calls(&self) -> Calls {
        *lock(&self.calls)
    }
}

/// The page source, for the one who has it. What changed is published when it goes.
#[derive(Debug)]
pub(super) struct Source<'s> {
    shared: &'s Shared,
    source: OverCalls<'s, PageSource<Vmm>>,
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
        let cell = &self.shared.source;
        cell.held.store(self.source.reserved(), Ordering::Relaxed);
        cell.metadata.store(self.source.metadata_bytes(), Ordering::Relaxed);
        *lock(&cell.calls) = self.source.backend().calls();
        self.shared.note_moves(&mut self.source);
    }
}

impl Shared {
    /// The page source, which knows of all pins; not for watchers, who have it, nor in a forked child.
    pub(super) fn source(&self) -> Result<Source<'_>> {
        refuse_forked()?;
        refuse_watchers()?;
        let mut source = self.source_unchecked();
        source.unpin(&self.pins.take_dropped());
        Ok(source)
    }

    /// The page source while everything is looked at: no memory comes, goes or moves meanwhile. None in a watcher, whose thread may have it.
    pub(super) fn source_to_look(&self) -> Option<Source<'_>> {
        (!is_watching()).then(|| self.source_unchecked())
    }

    /// The page source for who is in no watcher.
    pub(super) fn source_unchecked(&self) -> Source<'_> {
        Source { shared: self, source: lock_over_calls(&self.source.source) }
    }
}
