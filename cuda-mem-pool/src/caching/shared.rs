//! What all handles of an allocator, and all that it handed out, share.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use cuda_mem_core::{Context, Event, Stream, StreamId, Uses, forked};

use super::by_heap;
use super::callbacks::Callbacks;
use super::index::HeapIndex;
use super::observer::Observer;
use super::options::CachingOptions;
use super::owner::End;
use super::page_map::PageMap;
use super::pending::Pending;
use super::pins::Pins;
use super::private::{Private, can_map, set_limit};
use super::record::Record;
use super::rounding::Rounding;
use super::slot::{Slots, StreamSlot};
use super::source::SourceCell;
use super::thread_slots;
use super::vmm::{Told, Vmm};
use crate::engine::paged::{Heaps, PageSource, Policy, StreamHeap};
use crate::error::{Error, Result};
use crate::history::History;
use crate::primitive::{AtomicU64, Mutex, lock, lock_over_calls};
use crate::statistics::{DeviceStatistics, PeakCounter, Stat};

pub(super) struct Shared {
    id: u64,
    pub(super) context: Context,
    pub(super) total: usize,
    pub(super) map: PageMap,
    pub(super) slots: Arc<Slots>,
    numbers: Mutex<Numbers>,
    pub(super) source: SourceCell,
    pub(super) pending: Pending,
    pub(super) private: Private,
    pub(super) rounding: Rounding,
    pub(super) counter: PeakCounter,
    pub(super) counts: Arc<Mutex<DeviceStatistics>>,
    /// The bytes of slabs, as they were whenever somebody looked.
    pub(super) small: Mutex<Stat>,
    /// The most bytes that were held up to the last reset of the peaks.
    pub(super) most_reserved: AtomicU64,
    pub(super) history: History,
    pub(super) record: Record,
    pub(super) observer: Observer,
    pub(super) callbacks: Callbacks,
    pub(super) pins: Pins,
    pub(super) moves: bool,
    /// The bits of the share of the device's memory that may be held.
    pub(super) fraction: AtomicU64,
}

/// Which slot each stream has.
#[derive(Debug, Default)]
struct Numbers {
    /// Those of streams that have ended until another takes their slot over.
    by_stream: HashMap<StreamId, u32>,
    /// How many slots there are.
    made: u32,
}

/// On cache lines of its own: whoever grows writes to it all the time, and each block that comes and goes reads what would lie beside it.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Apart<T>(T);

impl<T> Apart<T> {
    pub(super) fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl Shared {
    pub(super) fn new(context: &Context, options: &CachingOptions, observer: Observer) -> Result<Self> {
        let total = context.device().total_memory()?;
        let slots = Arc::new(Slots::new());
        let limit = limit(options.memory_fraction, total)?;
        let (moves, reserve_bytes) = (options.moves, Policy::reserve_of(total));
        let policy = Policy { moves, reserve_bytes, ..Policy::for_memory(total.min(limit)) };
        let counts = Arc::<Mutex<DeviceStatistics>>::default();
        let callbacks = Callbacks::new();
        let told = Told {
            counts: Arc::clone(&counts),
            observer: observer.clone(),
            watchers: Arc::clone(&callbacks.watchers),
        };
        let vmm = Vmm::new(context, Arc::clone(&slots), told)?;
        let mut source = PageSource::new(vmm, policy, total as u64);
        source.record_moves();
        let counter = PeakCounter::default();
        let private = Private::new(context, counter.shard(), options.segments);
        if !can_map(context)? {
            private.serve_default();
        }
        let shared = Self {
            // 0 names none.
            id: by_heap::next_id() + 1,
            context: context.clone(),
            total,
            map: PageMap::new(),
            slots,
            numbers: Mutex::default(),
            source: SourceCell::new(source),
            pending: Pending::default(),
            private,
            rounding: Rounding::new(&options.segments),
            counter,
            counts,
            small: Mutex::default(),
            most_reserved: AtomicU64::new(0),
            history: History::new(),
            record: Record::default(),
            observer,
            callbacks,
            pins: Pins::default(),
            moves: options.moves,
            fraction: AtomicU64::new(options.memory_fraction.to_bits()),
        };
        set_limit(&shared, limit)?;
        Ok(shared)
    }

    /// The slot of a stream, which is made when the stream comes for the first time.
    #[inline]
    pub(super) fn slot(&self, stream: &Stream) -> Result<&StreamSlot> {
        match thread_slots::recall(self.id, stream.id()).and_then(|number| self.slots.get(number)) {
            Some(slot) if slot.owner.is(stream.id().as_raw()) => Ok(slot),
            _ => self.find_slot(stream),
        }
    }

    #[cold]
    fn find_slot(&self, stream: &Stream) -> Result<&StreamSlot> {
        if stream.context() != &self.context {
            return Err(cuda_mem_core::Error::ForeignContext { what: "the stream" }.into());
        }
        // The default stream of another thread may end meanwhile, and this one would go on with what is a third one's by then.
        stream.refuse_other_threads()?;
        let mut numbers = lock_over_calls(&self.numbers);
        let known = numbers.by_stream.get(&stream.id()).and_then(|number| self.slots.get(*number));
        let (slot, last) = match known.filter(|slot| slot.owner.is(stream.id().as_raw())) {
            Some(slot) => (slot, None),
            None => self.new_slot(&mut numbers, stream)?,
        };
        drop(numbers);
        drop(last);
        thread_slots::remember(self.id, stream.id(), slot.number);
        slot.note_taker();
        Ok(slot)
    }

    /// A slot whose stream has ended, and that stream; else one more.
    fn new_slot(&self, numbers: &mut Numbers, stream: &Stream) -> Result<(&StreamSlot, Option<Stream>)> {
        let id = stream.id();
        let left = self.slots.iter().find_map(|slot| {
            slot.owner.end_if_left(|own| self.private.streams.is_left_to(own, 1));
            let is_reached = |point: &Arc<Event>| point.is_complete().unwrap_or(false);
            Some((slot, slot.owner.take_over(id.as_raw(), stream, is_reached)?))
        });
        let (slot, last) = match left {
            Some((slot, last)) => {
                slot.forget_takers();
                // It may have come back since, to another slot.
                if numbers.by_stream.get(&last.id()) == Some(&slot.number) {
                    numbers.by_stream.remove(&last.id());
                }
                (slot, Some(last))
            }
            None => {
                let slot = StreamSlot::new(numbers.made, stream, self.counter.shard());
                let slot = self.slots.add(slot).ok_or(Error::TooManyStreams { most: super::slot::MOST })?;
                numbers.made += 1;
                (slot, None)
            }
        };
        numbers.by_stream.insert(id, slot.number);
        if stream.is_per_thread() {
            thread_slots::end_with_thread(&slot.owner, id);
        }
        Ok((slot, last))
    }

    /// The slot that a stream has, or had last if nobody took that over.
    pub(super) fn slot_of(&self, stream: StreamId) -> Option<&StreamSlot> {
        let number = lock(&self.numbers).by_stream.get(&stream).copied();
        self.slots.get(number?)
    }

    /// As [`CachingAllocator::forget_stream`](super::CachingAllocator::forget_stream).
    pub(super) fn forget_stream(&self, stream: &Stream) -> Result<()> {
        refuse_forked()?;
        stream.refuse_other_threads()?;
        let capturing = cuda_mem_core::Error::Capturing { call: "forgetting a stream" };
        // Also one that is known by its uses or to private pools alone, of which no end is looked for here.
        if stream.is_capturing()? {
            return Err(capturing.into());
        }
        let id = stream.id().as_raw();
        let slot = self.slot_of(stream.id());
        // Before its end is looked for: nobody has it do anything behind that.
        let Some(slot) = slot.filter(|slot| slot.owner.begin_to_end(id)) else { return Ok(()) };
        let end = self.end_of(stream, capturing);
        slot.owner.ended(id, end.as_ref().ok().cloned());
        end.map(drop)
    }

    /// Where all ends that a stream was given so far.
    fn end_of(&self, stream: &Stream, capturing: cuda_mem_core::Error) -> Result<End<Arc<Event>>> {
        let point = Event::new(&self.context)?;
        stream.record_unnoticed(&point)?;
        // A capture that began meanwhile would have it.
        if stream.is_capturing()? {
            return Err(capturing.into());
        }
        Ok(if point.is_complete()? { End::Done } else { End::At(Arc::new(point)) })
    }

    #[inline]
    pub(super) fn index(&self, heap: u32) -> HeapIndex<'_> {
        HeapIndex { map: &self.map, heap }
    }

    /// Host memory that the books take.
    pub(super) fn metadata_bytes(&self) -> usize {
        let heaps: usize = self
            .slots
            .iter()
            .map(|slot| {
                let heap = slot.heap.with(|heap, _| heap.metadata_bytes());
                // The heap counts itself.
                heap + slot.remote.metadata_bytes() + size_of::<StreamSlot>() - size_of::<StreamHeap>()
            })
            .sum();
        // The page source counts itself too.
        size_of::<Self>() - size_of::<PageSource<Vmm>>()
            + size_of::<Slots>()
            + self.map.metadata_bytes()
            + self.source.metadata_bytes()
            + heaps
            + self.private.metadata_bytes()
    }
}

impl Shared {
    /// Waits until nothing uses the memory. Not for the whole context if that can be helped, which would fail every capture.
    /// False if that cannot be known, as of a stream that captures.
    fn wait(&self) -> bool {
        let private = self.private.streams.all();
        let of_slots = self.slots.iter().map(|slot| slot.owner.wait().or_else(|_| slot.owner.wait()));
        let of_private = private.iter().map(|stream| wait_for(stream).or_else(|_| wait_for(stream)));
        let mut streams: Vec<_> = of_slots.chain(of_private).collect();
        streams.extend(self.pending.wait());
        let captures =
            |ended: &cuda_mem_core::Result<()>| matches!(ended, Err(cuda_mem_core::Error::Capturing { .. }));
        if streams.iter().any(captures) {
            return false;
        }
        let is_unnamed = |ended: &cuda_mem_core::Result<()>| {
            matches!(ended, Err(cuda_mem_core::Error::WrongThread | cuda_mem_core::Error::Disowned))
        };
        if streams.iter().any(is_unnamed) {
            // Another thread's default stream, which nobody else can name, or one that was disowned. Beside any capture the driver refuses to
            // wait for the context, and that stream runs on. Once more, because the driver reports older errors of others in any call.
            return self.context.synchronize().or_else(|_| self.context.synchronize()).is_ok();
        }
        true
    }
}

/// Waits for all that a stream was given: not by the stream, if a capture may begin there meanwhile, which the wait would end.
/// [`Capturing`](cuda_mem_core::Error::Capturing) if it captures.
pub(super) fn wait_for(stream: &Stream) -> cuda_mem_core::Result<()> {
    let uses = Uses::new();
    uses.record_stream(stream)?;
    uses.wait()
}

impl Drop for Shared {
    /// The last handle is gone, and so is all that was handed out by owner. Blocks that somebody only has the address of end
    /// here too.
    fn drop(&mut self) {
        if forked() {
            // All of it is the parent's.
            return;
        }
        if !self.wait() {
            // Work may use it yet: it stays mapped.
            return;
        }
        self.private.close();
        let mut source = self.source_unchecked();
        // What the driver refuses is counted there.
        let _ = source.close();
    }
}

/// In a forked child all of it is the parent's. To be asked before a lock, which a thread of the parent may have held: that one does not run
/// there.
pub(super) fn refuse_forked() -> Result<()> {
    if forked() { Err(cuda_mem_core::Error::Forked.into()) } else { Ok(()) }
}

/// The bytes that a share of a device's memory is.
pub(super) fn limit(fraction: f64, total: usize) -> Result<usize> {
    if !(0.0..=1.0).contains(&fraction) {
        return Err(Error::InvalidFraction { fraction });
    }
    // To the nearest byte: whoever says so many bytes by their share may have them.
    Ok(if fraction < 1.0 { (total as f64 * fraction).round() as usize } else { usize::MAX })
}

/// The heaps of all streams, each had for a moment by the holder of the page source.
pub(super) struct AllHeaps<'s>(pub(super) &'s Shared);

impl Heaps for AllHeaps<'_> {
    fn others(&self, but: u32) -> Vec<u32> {
        self.0.slots.iter().map(|slot| slot.number).filter(|number| *number != but).collect()
    }

    fn with<R>(&mut self, heap: u32, body: impl FnOnce(&mut StreamHeap) -> R) -> Option<R> {
        let slot = self.0.slots.get(heap)?;
        Some(slot.heap.with(|heap, guard| {
            if !slot.remote.is_empty() {
                self.0.drain(slot, heap, guard);
            }
            body(heap)
        }))
    }

    fn with_coalesced<R>(&mut self, heap: u32, body: impl FnOnce(&mut StreamHeap) -> R) -> Option<R> {
        let index = self.0.index(heap);
        self.with(heap, |heap| {
            heap.coalesce(&index);
            body(heap)
        })
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachingAllocator").field("device", &self.context.device()).finish_non_exhaustive()
    }
}
