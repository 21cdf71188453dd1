//! Which slot each stream has, as the allocator knows it and as each thread remembers it, and how streams end.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use cuda_mem_core::{Context, Error as CoreError, Event, Stream, StreamId, forked};

use super::owner::{End, Owner};
use super::slot::{Slots, StreamSlot};
use crate::error::{Error, Result, refuse_forked};
// In models the checker's, which owners are behind.
use crate::primitive::{Arc as OwnerArc, Mutex, lock, lock_over_calls, unique};
use crate::shelves;
use crate::statistics::PeakCounter;

#[derive(Debug)]
pub(super) struct Streams {
    /// Names the allocator where threads remember slots.
    id: u64,
    context: Context,
    /// Has a shard for each slot.
    counter: PeakCounter,
    slots: Arc<Slots>,
    /// The slot of each stream by its id, also of one that has memory of private pools alone; of one that has ended until another has it.
    numbers: Mutex<HashMap<u64, u32>>,
}

impl Streams {
    pub(super) fn new(context: &Context, counter: &PeakCounter, slots: Arc<Slots>) -> Self {
        // 0 names none.
        let (id, context, counter) = (unique(), context.clone(), counter.clone());
        Self { id, context, counter, slots, numbers: Mutex::default() }
    }

    /// The slot of a stream, which is made when the stream comes for the first time.
    #[inline]
    pub(super) fn slot(&self, stream: &Stream) -> Result<&StreamSlot> {
        match recall(self.id, stream.id()).and_then(|number| self.slots.get(number)) {
            Some(slot) if slot.owner.is(stream.id().as_raw()) => Ok(slot),
            _ => self.find_slot(stream),
        }
    }

    #[cold]
    fn find_slot(&self, stream: &Stream) -> Result<&StreamSlot> {
        if stream.context() != &self.context {
            return Err(CoreError::ForeignContext { what: "the stream" }.into());
        }
        // The default stream of another thread may end meanwhile, and this one would go on with what is a third one's by then.
        stream.refuse_other_threads()?;
        // Destroyed without the lock, for which all private pools may wait.
        let mut ended = Vec::new();
        let mut numbers = lock_over_calls(&self.numbers);
        let known = numbers.get(&stream.id().as_raw()).and_then(|number| self.slots.get(*number));
        let slot = match known.filter(|slot| slot.owner.is(stream.id().as_raw())) {
            Some(slot) => slot,
            None => self.new_slot(&mut numbers, stream, &mut ended)?,
        };
        drop(numbers);
        remember(self.id, stream.id(), slot.number);
        slot.note_taker();
        Ok(slot)
    }

    /// A slot whose stream has ended; else one more. Streams whose end is seen here are put among `ended`.
    fn new_slot(
        &self,
        numbers: &mut HashMap<u64, u32>,
        stream: &Stream,
        ended: &mut Vec<Stream>,
    ) -> Result<&StreamSlot> {
        let mut slots = self.slots.iter();
        let left = slots.find_map(|slot| Some((slot, slot.take_over(stream, ended)?.as_raw())));
        let slot = match left {
            Some((slot, last)) => {
                // It may have come back since, to another slot.
                if numbers.get(&last) == Some(&slot.number) {
                    numbers.remove(&last);
                }
                slot
            }
            None => {
                let slot = StreamSlot::new(self.slots.iter().count() as u32, stream, self.counter.shard());
                self.slots.add(slot.number, slot).ok_or(Error::TooManyStreams { most: shelves::MOST })?
            }
        };
        numbers.insert(stream.id().as_raw(), slot.number);
        if stream.is_per_thread() {
            end_with_thread(&slot.owner, stream.id());
        }
        Ok(slot)
    }

    /// The slot that the stream of an id has, or had last if no other stream has it now. None of one that is over.
    pub(super) fn slot_of(&self, id: u64) -> Option<&StreamSlot> {
        let number = lock(&self.numbers).get(&id).copied();
        self.slots.get(number?)
    }

    /// The handle of a stream as it is shown; 0 of one whose slot another has taken over.
    pub(super) fn handle_of(&self, id: u64) -> u64 {
        self.slot_of(id).map_or(0, StreamSlot::handle)
    }

    /// Whether a stream has ended, and is done. Makes no call: one that was left has to be [looked for](Owner::look_for_end) before.
    pub(super) fn is_over(&self, id: u64) -> bool {
        self.slot_of(id).is_none_or(|slot| matches!(slot.owner.served(), Err(End::Done)))
    }

    /// Refuses a point of the whole context while a stream captures, which that would end. Of lent streams and guests the context knows itself.
    pub(super) fn refuse_captures(&self, call: &'static str) -> Result<()> {
        for stream in self.slots.iter().filter_map(|slot| slot.owner.stream()) {
            match stream.is_capturing() {
                Ok(true) => return Err(CoreError::Capturing { call }.into()),
                // Default streams of other threads, and disowned streams, cannot be asked.
                Ok(false) | Err(CoreError::WrongThread | CoreError::Disowned) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// As [`CachingAllocator::forget_stream`](super::CachingAllocator::forget_stream).
    pub(super) fn forget(&self, stream: &Stream) -> Result<()> {
        refuse_forked()?;
        stream.refuse_other_threads()?;
        // Also one that is known by its uses alone, of which no end is looked for here. That of a disowned one is a point of the context.
        match stream.is_capturing() {
            Ok(false) => {}
            Err(CoreError::Disowned) => self.refuse_captures(FORGETTING)?,
            Ok(true) => return Err(CoreError::Capturing { call: FORGETTING }.into()),
            Err(error) => return Err(error.into()),
        }
        let mut outcome = Ok(());
        // Another driver's stream may have the number of one that is known here.
        if let Some(slot) = self.slot_of(stream.id().as_raw()).filter(|_| *stream.context() == self.context) {
            let look = |stream: &Stream| end_of(stream).map_err(|error| outcome = Err(error)).ok();
            drop(slot.owner.end(stream.id().as_raw(), look));
        }
        outcome
    }
}

const FORGETTING: &str = "forgetting a stream";

/// Where all ends that a stream was given so far.
fn end_of(stream: &Stream) -> Result<End<Arc<Event>>> {
    let point = match stream.point(FORGETTING) {
        // No thread can name it any more: behind all that the context was given.
        Err(CoreError::Disowned) => stream.context().point()?,
        point => point?,
    };
    Ok(if point.is_complete()? { End::Done } else { End::At(Arc::new(point)) })
}

/// How many streams a thread remembers. Programs use a few at a time.
const REMEMBERED: usize = 32;

#[derive(Debug, Clone, Copy)]
struct Known {
    allocator: u64,
    stream: Option<StreamId>,
    slot: u32,
}

thread_local! {
    static KNOWN: [Cell<Known>; REMEMBERED] =
        const { [const { Cell::new(Known { allocator: 0, stream: None, slot: 0 }) }; REMEMBERED] };
    static OWN: RefCell<Own> = const { RefCell::new(Own(Vec::new())) };
}

/// The slots of the thread's default streams, of each context and in each allocator.
#[derive(Debug)]
struct Own(Vec<(OwnerArc<Owner>, StreamId)>);

impl Drop for Own {
    /// The thread ends. Destructors of other thread-locals may run yet, and use these streams: for those they are new then.
    fn drop(&mut self) {
        if forked() {
            // A thread of the parent may have held a lock.
            return;
        }
        for (owner, stream) in &self.0 {
            owner.end_with_thread(stream.as_raw());
        }
    }
}

#[inline]
fn place(allocator: u64, stream: StreamId) -> usize {
    (allocator.wrapping_add(stream.as_raw()) as usize) % REMEMBERED
}

/// Names the calling thread among those that run, with the address of something of its own.
#[inline]
pub(super) fn token() -> usize {
    // A thread at its end has none of its own: no thread has this token.
    KNOWN.try_with(|known| known.as_ptr().addr()).unwrap_or(usize::MAX)
}

/// The slot that a stream had in an allocator, if this thread remembers it.
#[inline]
fn recall(allocator: u64, stream: StreamId) -> Option<u32> {
    let known = KNOWN.try_with(|known| known[place(allocator, stream)].get()).ok()?;
    (known.allocator == allocator && known.stream == Some(stream)).then_some(known.slot)
}

fn remember(allocator: u64, stream: StreamId, slot: u32) {
    let known = Known { allocator, stream: Some(stream), slot };
    // A thread at its end remembers nothing.
    let _ = KNOWN.try_with(|all| all[place(allocator, stream)].set(known));
}

/// Has the slot of this thread's default stream given back when the thread ends. One that is made while it ends stays.
fn end_with_thread(owner: &OwnerArc<Owner>, stream: StreamId) {
    let _ = OWN.try_with(|own| {
        if let Ok(mut own) = own.try_borrow_mut() {
            // Those of allocators that are no more, and those that were given back before.
            own.0.retain(|(owner, stream)| owner.is(stream.as_raw()));
            own.0.push((OwnerArc::clone(owner), stream));
        }
    });
}
