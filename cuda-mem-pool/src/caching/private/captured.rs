//! Freed blocks that serve the capture again in which streams used them.
//!
//! # Safety
//!
//! Relies on the promise of whoever called `set_graph_capture_record_stream_reuse`: nobody else works at a capture while the
//! allocator looks at it.

#![allow(unsafe_code, reason = "looks at the graphs of captures")]

use std::collections::HashMap;
use std::iter;

use cuda_mem_core::{CaptureId, CapturePast, Error as CoreError, Stream, forked};

use crate::caching::CachingAllocator;
use crate::caching::pending::{Captured, Used};
use crate::caching::shared::Shared;
use crate::error::Result;
use crate::mempool_id::MempoolId;
use crate::primitive::{AtomicBool, Mutex, Ordering, lock, lock_over_calls};

/// What is known of captures.
#[derive(Debug, Default)]
pub(super) struct Captures {
    /// Whether blocks may serve the capture again.
    reused: AtomicBool,
    /// What comes before where streams stand, by their ids.
    pasts: Mutex<HashMap<u64, CapturePast>>,
}

impl Captures {
    pub(super) fn reused(&self) -> bool {
        self.reused.load(Ordering::Relaxed)
    }

    /// Forgets what is known, which is found out again where it is needed.
    pub(super) fn forget(&self) {
        lock(&self.pasts).clear();
    }
}

impl CachingAllocator {
    /// Whether blocks of private pools that other streams used during a capture may serve that capture again before it has ended.
    /// They may not at first. PyTorch's `graph_capture_record_stream_reuse`.
    ///
    /// A block may if each stream that used it was [recorded](Self::record_stream) while it took part in the capture that the
    /// block's own stream is part of when the block is freed. It is free again for its own stream once that stream comes, by the
    /// edges of the graph, after all that those streams had been given by then: the next allocation looks. Where that cannot be
    /// told, and where this is off, it waits until the capture has ended.
    ///
    /// Wraps [`cuStreamGetCaptureInfo`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html) when streams are recorded,
    /// such blocks are freed, and while they wait when their streams allocate; and
    /// [`cuGraphNodeGetDependencies`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html) once for each node.
    ///
    /// # Errors
    ///
    /// `Forked` in [`Error::Core`](crate::Error::Core).
    ///
    /// # Safety
    ///
    /// While it is on, memory is not allocated for a stream that captures, nor a block freed that such a stream used, beside
    /// another thread that gives a stream of the same capture anything, changes its graph, or ends it. Who changes the graph, or
    /// what a stream's next node comes after, leaves what came before a node before it.
    pub unsafe fn set_graph_capture_record_stream_reuse(&self, reuse: bool) -> Result<()> {
        if forked() {
            return Err(CoreError::Forked.into());
        }
        self.shared().private.captures.reused.store(reuse, Ordering::Relaxed);
        Ok(())
    }
}

impl Shared {
    /// The capture that a use of a block is part of, if blocks may serve captures again.
    pub(super) fn capture_of(&self, stream: &Stream) -> Option<CaptureId> {
        if !self.private.captures.reused() {
            return None;
        }
        // Where it cannot be told, the block waits.
        stream.capture_id().ok().flatten()
    }

    /// Where the streams of a block stand that is freed now, if all its uses are part of the capture that its own stream is.
    pub(super) fn captured(&self, owner: &Stream, used: &mut Used) -> Option<Captured> {
        let capture = used.capture.filter(|_| self.private.captures.reused())?;
        let streams = used.uses.streams();
        let points = iter::once(owner).chain(&streams).map(|stream| {
            // SAFETY: the promise of who switched this on.
            let point = unsafe { stream.capture_point() }.ok().flatten();
            point.filter(|point| point.capture() == capture)
        });
        Some(Captured { owner: owner.id().as_raw(), points: points.collect::<Option<_>>()? })
    }

    /// Gives the blocks of a stream back whose uses come before where it stands now in its capture.
    pub(super) fn reuse_captured(&self, id: MempoolId, stream: &Stream) {
        let (private, owner) = (&self.private, stream.id().as_raw());
        if !private.captures.reused() || private.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let pending = lock(&private.state).notes.get(&id).map(|notes| notes.pending.clone());
        let Some(pending) = pending.filter(|pending| pending.has_captured(owner)) else { return };
        // SAFETY: the promise of who switched this on.
        let Ok(Some(place)) = (unsafe { stream.capture_point() }) else { return };
        let mut pasts = lock_over_calls(&private.captures.pasts);
        let past = pasts.entry(owner).or_default();
        // SAFETY: as above; the place was taken just now. What cannot be told waits.
        let known = unsafe { past.advance(&place) };
        let passed = if known.is_ok() { pending.take_passed(owner, past) } else { Vec::new() };
        drop(pasts);
        passed.iter().for_each(|waiting| self.complete_private(waiting.block.address));
    }
}
