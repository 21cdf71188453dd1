//! What peers are told of a segment: before it is mapped here, and that it is gone.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use cuda_mem_pool::Uuid;
use cuda_mem_pool::cuda_mem_core as core;

use super::exporter::ExportLink;
use super::lock;
use super::slab::Slab;
use super::wire::{self, Place};

/// Segments are numbered once in a process, whatever pool or connection they belong to.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Tells what runs in a process from what ran in it before `exec`.
static PROGRAM: OnceLock<u64> = OnceLock::new();

/// What peers know of a segment. Whoever was told is told of its end.
#[derive(Debug)]
pub(super) struct Face {
    id: u64,
    bytes: usize,
    place: Place,
    /// Who was told.
    known_by: Mutex<Vec<Weak<ExportLink>>>,
}

/// What peers map a segment by, and what they have to let go of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Means<'m> {
    pub(super) descriptors: &'m [BorrowedFd<'m>],
    pub(super) slab: Option<&'m Arc<Slab>>,
}

impl Face {
    pub(super) fn new(bytes: usize, place: Place) -> Self {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, bytes, place, known_by: Mutex::default() }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it is what a peer says of it.
    pub(super) fn is_as(&self, said: &wire::Segment) -> bool {
        (self.bytes as u64, self.place) == (said.bytes, said.place)
    }

    /// What a peer is told of it.
    pub(super) fn said(&self) -> wire::Segment {
        let generation = *PROGRAM.get_or_init(|| Uuid::new_v4().as_u64_pair().0);
        wire::Segment { segment: self.id, generation, bytes: self.bytes as u64, place: self.place }
    }

    pub(super) fn is_known_by(&self, link: Weak<ExportLink>) {
        let mut known_by = lock(&self.known_by);
        known_by.retain(|link| link.strong_count() > 0);
        known_by.push(link);
    }
}

impl Drop for Face {
    fn drop(&mut self) {
        if core::forked() {
            return;
        }
        for link in lock(&self.known_by).drain(..).filter_map(|link| link.upgrade()) {
            link.retire(self.id);
        }
    }
}
