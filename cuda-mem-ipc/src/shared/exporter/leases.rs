//! What receivers have: a buffer each, kept until its release has come.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cuda_mem_pool::cuda_mem_core::ipc::InterprocessEvent;

use super::ExportLink;
use crate::error::{Error, Result};
use crate::shared::importer::ENDED;
use crate::shared::releases;
use crate::shared::segment::SegmentRef;
use crate::shared::share::{Holder, Share};
use crate::shared::{lock, reaper};

#[derive(Default)]
pub(super) struct Leases {
    next: u64,
    pub(super) open: HashMap<u64, Lease>,
    /// The peer is gone.
    pub(super) are_over: bool,
}

/// A buffer that a receiver has.
pub(super) struct Lease {
    pub(super) holder: Arc<dyn Holder>,
    _segment: SegmentRef,
    /// What the receiver waits for, if it is an event.
    _event: Option<InterprocessEvent>,
    /// Last: who sees that it has ended finds the buffer back.
    _count: Counted,
}

impl Lease {
    pub(super) fn new(share: Share, event: Option<InterprocessEvent>, out: &Arc<Out>) -> Self {
        let Share { segment, holder, .. } = share;
        Self { holder, _segment: segment, _event: event, _count: Counted::new(out) }
    }
}

/// What is out.
pub(super) struct Out {
    pub(super) leases: AtomicUsize,
    /// Whether there may be more.
    pub(super) is_open: AtomicBool,
}

/// One of so many.
struct Counted(Arc<Out>);

impl Counted {
    fn new(out: &Arc<Out>) -> Self {
        out.leases.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(out))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let was_last = self.0.leases.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && !self.0.is_open.load(Ordering::SeqCst) {
            reaper::wake();
        }
    }
}

impl ExportLink {
    pub(super) fn lease(&self, lease: Lease) -> Result<u64> {
        let mut leases = lock(&self.leases);
        if leases.are_over {
            drop(leases);
            return Err(Error::PeerDied { pid: self.connection.peer().pid() });
        }
        let sequence = leases.next;
        leases.next = sequence.wrapping_add(1);
        leases.open.insert(sequence, lease);
        Ok(sequence)
    }

    /// The caller drops it outside the lock: a buffer may end with it.
    pub(super) fn end_lease(&self, sequence: u64) -> Option<Lease> {
        lock(&self.leases).open.remove(&sequence)
    }

    /// Ends the leases that nobody hears the end of. Who has something of a receiver that is gone keeps it for the memory's owners by
    /// itself, and leases on what had gone back and forth between this process and the receiver would wait for each other.
    pub(super) fn let_orphans_go(&self) {
        let ended = ENDED.load(Ordering::SeqCst);
        if self.ended.swap(ended, Ordering::SeqCst) != ended {
            let mut leases = lock(&self.leases);
            let orphans = leases.open.extract_if(|_, lease| lease.holder.is_orphan()).map(|(_, lease)| lease);
            let orphans = orphans.collect();
            drop(leases);
            let_go(orphans);
            // Those of a receiver that is gone are mapped no more, and its heirs have others.
            let slabs = lock(&self.slabs).extract_if(|_, slab| slab.is_orphan()).collect::<Vec<_>>();
            releases::queue([move || drop(slabs)]);
        }
    }

    /// Whether no lease is out any more, nor will be.
    pub(super) fn is_let_go(&self) -> bool {
        !self.out.is_open.load(Ordering::SeqCst) && self.out.leases.load(Ordering::SeqCst) == 0
    }
}

/// Ends leases one by one: one that waits holds up no other.
pub(super) fn let_go(leases: Vec<Lease>) {
    if !leases.is_empty() {
        releases::queue(leases.into_iter().map(|lease| move || drop(lease)));
    }
}
