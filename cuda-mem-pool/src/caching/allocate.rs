//! How a block is handed out.

use cuda_mem_core::{Stream, StreamId, forked};

use super::callbacks::refuse_watchers;
use super::shared::{OtherHeaps, Shared};
use super::slot::StreamSlot;
use crate::engine::paged::{BlockNumber, GrowError, Load, MEDIUM, Policy, StreamHeap, Wanted, block_size};
use crate::error::{Error, Result};
use crate::mempool_id::MempoolId;
use crate::primitive::Ordering;
use crate::statistics::{PoolSize, ShardGuard};

/// What was asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    /// The bytes that were asked for, and those that the block has.
    pub(super) requested: usize,
    pub(super) size: usize,
}

impl Request {
    /// The request once it has a block of so many bytes.
    #[inline]
    pub(super) fn of(self, size: usize) -> Self {
        Self { size, ..self }
    }

    /// How many bytes of the block were not asked for.
    #[inline]
    pub(super) fn unused(self) -> usize {
        self.size - self.requested
    }
}

/// What the page source's error is for the caller; out of memory has a ladder of its own before it is one.
pub(super) fn grow_error(error: GrowError<cuda_mem_core::Error>) -> Error {
    match error {
        GrowError::Backend(error) => error.into(),
        GrowError::OutOfMemory | GrowError::NoNumbers => Error::TooManyBlocks,
        GrowError::InUse { address } => Error::InUse { address },
    }
}

/// Which of the statistics' pools a block counts in.
#[inline]
pub(super) fn pool_of(size: usize) -> PoolSize {
    if size <= MEDIUM { PoolSize::Small } else { PoolSize::Large }
}

impl Shared {
    /// None if no block is as large.
    #[inline]
    pub(super) fn request(&self, requested: usize) -> Option<Request> {
        let size = block_size(self.rounding.round(requested))?;
        Some(Request { requested, size })
    }

    /// A block for work of a stream; its address.
    #[inline]
    pub(super) fn allocate(&self, requested: usize, stream: &Stream) -> Result<u64> {
        self.allocate_by(requested, || self.allocate_routed(requested, stream), || self.slot(stream))
    }

    /// As [`Shared::allocate`], for the stream that a slot had.
    #[inline]
    pub(super) fn allocate_in(&self, slot: &StreamSlot, stream: StreamId, requested: usize) -> Result<u64> {
        if !slot.owner.is(stream.as_raw()) {
            return Err(Error::StreamEnded);
        }
        let routed = || match slot.owner.stream() {
            Some(stream) => self.allocate_routed(requested, &stream),
            None => Err(Error::StreamEnded),
        };
        self.allocate_by(requested, routed, || Ok(slot))
    }

    /// The slot is asked for only if the block is not a private pool's.
    #[inline(always)]
    fn allocate_by<'a>(
        &self,
        requested: usize,
        routed: impl FnOnce() -> Result<Option<u64>>,
        slot: impl FnOnce() -> Result<&'a StreamSlot>,
    ) -> Result<u64> {
        if forked() {
            return Err(cuda_mem_core::Error::Forked.into());
        }
        if self.private.is_routed()
            && let Some(address) = routed()?
        {
            return Ok(address);
        }
        let Some(request) = self.request(requested) else {
            return self.refuse_too_large(slot, requested, MempoolId::NONE);
        };
        let slot = slot()?;
        if self.history.is_listening() {
            self.allocate_and_tell(slot, request)
        } else {
            self.obtain(slot, request)
        }
    }

    #[inline(always)]
    pub(super) fn obtain(&self, slot: &StreamSlot, request: Request) -> Result<u64> {
        // A block that has waited goes before others of its size.
        if slot.waiting.may_have(request.size) {
            self.poll_for(slot, request.size);
        }
        let block = match slot.heap.try_with(|heap, guard| self.take_free(slot, heap, guard, request)) {
            Some(block) => block,
            None => self.wait_and_take_free(slot, request)?,
        };
        match block {
            Some(address) => Ok(address),
            None => self.grow(slot, request),
        }
    }

    /// A block out of what the heap has free; its address.
    // Inlined but for what a kept block does not need: calls and registers that are saved for them are a good part of the time.
    #[inline(always)]
    fn take_free(
        &self,
        slot: &StreamSlot,
        heap: &mut StreamHeap,
        guard: &mut ShardGuard<'_>,
        request: Request,
    ) -> Option<u64> {
        if !slot.remote.is_empty() {
            self.drain(slot, heap, guard);
        }
        let Request { requested, size } = request;
        if let Some(address) = heap.take_kept(size, request.unused()) {
            self.count(slot, heap, guard, Request { requested, size });
            return Some(address);
        }
        self.cut_free(slot, heap, guard, request)
    }

    #[cold]
    fn wait_and_take_free(&self, slot: &StreamSlot, request: Request) -> Result<Option<u64>> {
        // It may be this thread that has it, in a watcher. Whoever else has it is through in a moment: nobody calls the driver with
        // it but to get more for it.
        refuse_watchers()?;
        Ok(slot.heap.with(|heap, guard| self.take_free(slot, heap, guard, request)))
    }

    #[inline(never)]
    fn cut_free(
        &self,
        slot: &StreamSlot,
        heap: &mut StreamHeap,
        guard: &mut ShardGuard<'_>,
        request: Request,
    ) -> Option<u64> {
        let block = heap.cut(request.size, request.unused(), &self.index(slot.number))?;
        self.count(slot, heap, guard, request.of(block.size));
        Some(block.address)
    }

    /// Takes the frees in that other threads left.
    #[cold]
    pub(super) fn drain(&self, slot: &StreamSlot, heap: &mut StreamHeap, guard: &mut ShardGuard<'_>) {
        slot.remote.drain(|number| {
            let number = BlockNumber(number);
            self.note_left(slot, heap, number);
            let (tier, record) = number.parts();
            self.put_back(slot, heap, guard, tier, record);
        });
    }

    /// A block after more memory was got, or memory that was free elsewhere.
    #[cold]
    fn grow(&self, slot: &StreamSlot, request: Request) -> Result<u64> {
        refuse_watchers()?;
        if request.size > self.total {
            return self.give_up(slot, request, MempoolId::NONE);
        }
        self.poll();
        self.take_in();
        let active = self.catch_up(slot);
        self.collect_garbage();
        let held = self.held.load(Ordering::Relaxed);
        match self.try_grow(slot, request, active)? {
            Some(address) => Ok(address),
            None => self.climb(slot, request, held),
        }
    }

    /// One attempt: None if there is no memory for it. Whoever has just looked at what is active says so.
    pub(super) fn try_grow(
        &self,
        slot: &StreamSlot,
        request: Request,
        active: Option<u64>,
    ) -> Result<Option<u64>> {
        if let Some(address) = self.take_of_kept(slot, request) {
            return Ok(Some(address));
        }
        let now = active.unwrap_or_else(|| self.counter.active_bytes());
        let peak = self.counter.peak_active_bytes();
        let bytes = |count: u64| usize::try_from(count).unwrap_or(0);
        // The page source knows nothing of private blocks.
        let others = self.private.active();
        let load =
            Load { active: bytes(now).saturating_sub(others), peak: bytes(peak).saturating_sub(others) };
        // Whoever has the page source may call the driver: a page out of what is here is sooner there.
        if request.size <= MEDIUM
            && self.source.try_lock().is_err()
            && let Some(address) = self.take_in_any_page(slot, request)
        {
            return Ok(Some(address));
        }
        let mut source = self.source_to_grow()?;
        slot.heap.with(|heap, guard| {
            // Another thread may have freed or grown meanwhile.
            if let Some(address) = self.take_free(slot, heap, guard, request) {
                return Ok(Some(address));
            }
            guard.disarm();
            // However what is not in use lies: others on the device would miss what is made for it meanwhile.
            let room = self.total.saturating_sub(self.private.reserved()).min(source.limit());
            if request.size > room.max(source.reserved()).saturating_sub(load.active) {
                return Ok(None);
            }
            let mut others = OtherHeaps { shared: self, but: slot.number };
            let (number, index) = (slot.number, self.index(slot.number));
            let (size, unused) = (request.size, request.unused());
            source.backend_mut().create_for(pool_of(size));
            let grown = source.grow(number, heap, &mut others, Wanted { size, unused, load }, &index);
            self.held.store(source.reserved(), Ordering::Relaxed);
            self.note_moves(slot, heap);
            match grown {
                Ok(block) => {
                    self.count(slot, heap, guard, request.of(block.size));
                    Ok(Some(block.address))
                }
                Err(GrowError::OutOfMemory) => Ok(None),
                Err(error) => Err(grow_error(error)),
            }
        })
    }

    /// A block after what the heap keeps is joined, if all heaps have filled their room and it has more than its part of that. The page
    /// source sees to that too, but others wait for it. Streams that have done their work leave their part to the others.
    fn take_of_kept(&self, slot: &StreamSlot, request: Request) -> Option<u64> {
        let heaps = self.slots.iter().count();
        if self.held.load(Ordering::Relaxed) < Policy::DEFAULT.room_of_all(heaps) {
            return None;
        }
        let part = Policy::DEFAULT.room_of_each(heaps);
        slot.heap.with(|heap, guard| {
            if heap.held_bytes() < part {
                return None;
            }
            let index = self.index(slot.number);
            let block = heap.allocate_of_kept(request.size, request.unused(), &index)?;
            self.count(slot, heap, guard, request.of(block.size));
            Some(block.address)
        })
    }

    /// A block in a page out of what the heap keeps, once that is joined, wherever it is.
    fn take_in_any_page(&self, slot: &StreamSlot, request: Request) -> Option<u64> {
        slot.heap.with(|heap, guard| {
            let index = self.index(slot.number);
            let block = heap.allocate_of_kept(request.size, request.unused(), &index)?;
            self.count(slot, heap, guard, request.of(block.size));
            Some(block.address)
        })
    }
}
