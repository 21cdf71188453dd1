//! What the allocator has for each stream.

use std::sync::OnceLock;

use cuda_mem_core::sys::CU_STREAM_LEGACY;
use cuda_mem_core::{Stream, StreamId, forked};

use super::owner::Owner;
use super::pending::SizeSet;
use super::remote::RemoteFrees;
use super::streams;
use crate::engine::paged::StreamHeap;
use crate::primitive::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering, lock};
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

/// The slots by number. Slots are only added, so a number is looked up without a lock.
#[derive(Debug)]
pub(super) struct Slots {
    /// Hardly any program has more.
    first: [Place; FIRST],
    shelves: [OnceLock<Box<[Place]>>; SHELVES],
}

type Place = OnceLock<Box<StreamSlot>>;

const FIRST: usize = 16;
const SHELVES: usize = 19;

pub(super) const MOST: u32 = ((FIRST << (SHELVES + 1)) - FIRST) as u32;

impl Slots {
    pub(super) fn new() -> Self {
        Self { first: [const { OnceLock::new() }; FIRST], shelves: [const { OnceLock::new() }; SHELVES] }
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&StreamSlot> {
        let place = match self.first.get(number as usize) {
            Some(place) => place,
            None => self.further(number)?,
        };
        place.get().map(|slot| &**slot)
    }

    fn further(&self, number: u32) -> Option<&Place> {
        let (shelf, place) = place_of(number);
        self.shelves.get(shelf)?.get()?.get(place)
    }

    /// Enters the slot of the next number. None if it has one or there are no more.
    pub(super) fn add(&self, slot: StreamSlot) -> Option<&StreamSlot> {
        let number = slot.number;
        let place = match self.first.get(number as usize) {
            Some(place) => place,
            None => {
                let (shelf, place) = place_of(number);
                let places = || (0..FIRST << (shelf + 1)).map(|_| OnceLock::new()).collect();
                self.shelves.get(shelf)?.get_or_init(places).get(place)?
            }
        };
        place.set(Box::new(slot)).ok()?;
        self.get(number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &StreamSlot> {
        let shelves = self.shelves.iter().map_while(OnceLock::get);
        let further = shelves.flat_map(|shelf| shelf.iter());
        self.first.iter().chain(further).map_while(OnceLock::get).map(|slot| &**slot)
    }
}

/// The shelf of a number from [`FIRST`] on, and its place there.
const fn place_of(number: u32) -> (usize, usize) {
    let place = number as usize + FIRST;
    let shelf = (place / FIRST).ilog2() as usize;
    (shelf - 1, place - (FIRST << shelf))
}

#[cfg(all(loom, test))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_a_place_of_its_own() {
        let mut next = (0, 0);
        for number in FIRST as u32..10_000 {
            assert_eq!(place_of(number), next);
            next = if next.1 + 1 == FIRST << (next.0 + 1) { (next.0 + 1, 0) } else { (next.0, next.1 + 1) };
        }
        assert_eq!(place_of(MOST - 1).0, SHELVES - 1);
    }
}
