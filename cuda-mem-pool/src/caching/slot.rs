//! What the allocator has for each stream.

use cuda_mem_core::sys::CU_STREAM_LEGACY;
use cuda_mem_core::{Stream, StreamId, forked};

use super::owner::Owner;
use super::pending::SizeSet;
use super::remote::RemoteFrees;
use super::streams;
use crate::engine::paged::StreamHeap;
use crate::primitive::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering, lock};
use crate::shelves::Shelves;
use crate::statistics::{CountedCell, Shard};

/// A value on cache lines of its own: it is written often, and its neighbours are read often.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Apart<T>(pub(super) T);

/// A heap, the stream that it serves, and the frees that other threads left for it.
#[derive(Debug)]
pub(super) struct StreamSlot {
    /// The heap's number: its place among the slots.
    pub(super) number: u32,
    /// Shared with the thread whose default stream it is.
    pub(super) owner: Arc<Owner>,
    /// The number and the [shown handle](shown_handle) of its stream, or of the last one.
    name: Mutex<(StreamId, u64)>,
    /// Behind the lock in which its blocks are counted.
    pub(super) heap: CountedCell<StreamHeap>,
    pub(super) remote: RemoteFrees,
    /// The sizes of its blocks that wait for other streams.
    pub(super) waiting: SizeSet,
    /// The bytes of its slabs, as they were when they were last counted.
    pub(super) slab_bytes: AtomicU64,
    /// The thread that allocates here, if it is one alone: others leave their frees in rings. Read by each free, hardly ever written.
    taker: Apart<AtomicUsize>,
}

/// Several threads allocate: frees go to the heap.
const MANY: usize = 0;
/// No thread has allocated yet. No thread's token has this value.
const NO_THREAD: usize = 1;

/// A stream's handle as snapshots and histories show it: 0 for the legacy default stream, also if it was named by `CU_STREAM_LEGACY`.
pub(in crate::caching) fn shown_handle(stream: &Stream) -> u64 {
    let handle = stream.as_raw();
    if handle == CU_STREAM_LEGACY.cast() { 0 } else { handle as usize as u64 }
}

fn name_of(stream: &Stream) -> (StreamId, u64) {
    (stream.id(), shown_handle(stream))
}

impl StreamSlot {
    pub(super) fn new(number: u32, stream: &Stream, shard: Shard) -> Self {
        Self {
            number,
            owner: Arc::new(Owner::new(stream.id().as_raw(), stream.clone())),
            name: Mutex::new(name_of(stream)),
            heap: CountedCell::new(shard, StreamHeap::new()),
            remote: RemoteFrees::new(),
            waiting: SizeSet::default(),
            slab_bytes: AtomicU64::new(0),
            taker: Apart(AtomicUsize::new(NO_THREAD)),
        }
    }

    /// The handle of its stream, or of the last one, as it was: [`shown_handle`].
    pub(super) fn handle(&self) -> u64 {
        lock(&self.name).1
    }

    /// The number of its stream, or of the last one.
    pub(super) fn stream_id(&self) -> StreamId {
        lock(&self.name).0
    }

    /// Serves another stream, if the last one has ended and all its work is done; the number of that. One that ends only now goes to `ended`.
    pub(super) fn take_over(&self, stream: &Stream, ended: &mut Vec<Stream>) -> Option<StreamId> {
        ended.extend(self.owner.look_for_end());
        if !self.owner.take_over(stream.id().as_raw(), stream) {
            return None;
        }
        // Each thread that allocates for the new stream enters itself.
        self.taker.0.store(NO_THREAD, Ordering::Relaxed);
        Some(std::mem::replace(&mut *lock(&self.name), name_of(stream)).0)
    }

    /// Enters the calling thread as one that allocates here.
    pub(super) fn note_taker(&self) {
        let token = streams::token();
        let _ = self.taker.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taker| match taker {
            NO_THREAD => Some(token),
            taker if taker == token => None,
            _ => Some(MANY),
        });
    }

    /// Whether only one thread allocates here, not the calling one, or none has yet: a hint.
    #[inline]
    pub(super) fn only_another_thread_allocates(&self) -> bool {
        let taker = self.taker.0.load(Ordering::Relaxed);
        taker != MANY && taker != streams::token()
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        // In a forked child a thread that does not run there may hold the lock.
        if !forked() {
            self.owner.close();
        }
    }
}

/// The slots by number.
pub(super) type Slots = Shelves<StreamSlot>;

#[cfg(all(loom, test))]
mod models;
