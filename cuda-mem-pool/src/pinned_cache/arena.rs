//! The segments of one pool on one NUMA node, and the blocks that are cut out of them.
//!
//! # Safety
//!
//! Relies on a [`Memory`] being zeroed memory that stays where it is until it is dropped, and on its owner not being touched between the moment its address is taken and its drop, but to be told of uses.

#![allow(unsafe_code, reason = "shares the address of memory that it owns")]

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use cuda_mem_core::host::{
    HostElements, HostMapping, MappingOptions, Pages, PinnedFlags, RegisterOptions, Registered,
};
use cuda_mem_core::sys::{CUdeviceptr, CUresult};
use cuda_mem_core::{
    Context, Driver, Error as CoreError, PinnedBuffer, Result, StreamId, Uses, forked, pointer,
};

use super::block::{Body, FreeBlock};
use super::heap::Heap;
use super::shared::Shared;
use super::thread_cache;
use crate::engine::classes;
use crate::mempool_id::MempoolId;
use crate::primitive::{AtomicBool, Mutex, Ordering, lock, lock_over_calls};

/// One piece of pinned memory of one arena.
#[derive(Debug)]
pub(super) struct Segment {
    /// Taken out by the drop.
    memory: Option<Memory>,
    start: NonNull<u8>,
    pub(super) bytes: usize,
    pub(super) arena: Arc<Arena>,
}

impl Segment {
    /// Pins `bytes` bytes on the arena's node. Calls the driver.
    pub(super) fn new(arena: &Arc<Arena>, bytes: usize) -> Result<Self> {
        let shared = &arena.shared;
        let began = Instant::now();
        let mut memory = Memory::new(&shared.context, bytes, arena.numa_id, &shared.is_registration_refused)?;
        let start = memory.start();
        shared.figures.pinned(bytes, began.elapsed());
        Ok(Self { memory: Some(memory), start, bytes, arena: Arc::clone(arena) })
    }

    #[inline]
    pub(super) fn address(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.bytes);
        // SAFETY: the heap hands out offsets of blocks that lie in the segment.
        unsafe { self.start.add(offset) }
    }

    /// The address by which the device of `context` reaches the byte at `offset`.
    pub(super) fn device_address(&self, context: &Context, offset: usize) -> Result<CUdeviceptr> {
        Ok(pointer::device_address(context, self.start.as_ptr())?.wrapping_add(offset as CUdeviceptr))
    }

    pub(super) fn absorb(&self, uses: Uses) {
        if let Some(memory) = &self.memory {
            memory.absorb(uses);
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let began = Instant::now();
        if self.memory.take().is_some_and(|memory| memory.goes_back(self.arena.shared.context.driver())) {
            self.arena.shared.figures.unpinned(self.bytes, began.elapsed());
        }
    }
}

// SAFETY: the address is that of memory which the value owns; the blocks that are cut out of it share no byte.
unsafe impl Send for Segment {}
// SAFETY: as above; a shared segment only tells the address.
unsafe impl Sync for Segment {}

#[derive(Debug)]
enum Memory {
    Registered(Registered<HostMapping>),
    Allocated(PinnedBuffer<u8>),
}

impl Memory {
    /// Pins `bytes` zeroed bytes on a NUMA node. Calls the driver.
    ///
    /// Under confidential computing registration is `CUDA_ERROR_NOT_SUPPORTED` for every size, and allocation by the driver is not; that is
    /// what `refused` says from then on. Memory of the driver lies on a node of its choice.
    fn new(context: &Context, bytes: usize, numa_id: Option<u32>, refused: &AtomicBool) -> Result<Self> {
        if !refused.load(Ordering::Relaxed) {
            let options = MappingOptions::new().pages(Pages::Transparent);
            let options = numa_id.map_or(options, |node| options.numa_node(node));
            let memory = HostMapping::new(bytes, &options)?;
            match Registered::with_options(context, memory, &RegisterOptions::new()) {
                Ok(registered) => return Ok(Self::Registered(registered)),
                Err(refusal) if refusal.error.code() == Some(CUresult::CUDA_ERROR_NOT_SUPPORTED) => {
                    refused.store(true, Ordering::Relaxed)
                }
                Err(refusal) => return Err(refusal.error),
            }
        }
        PinnedBuffer::zeroed(context, bytes, PinnedFlags::default()).map(Self::Allocated)
    }

    /// False if the driver refuses it twice: it stays pinned until the process ends.
    fn goes_back(self, driver: Driver) -> bool {
        let again = |(error, kept): (CoreError, Self)| match error {
            // In a host function. Its drop puts it off, as below.
            error if error.code() == Some(CUresult::CUDA_ERROR_NOT_PERMITTED) => Ok(()),
            CoreError::Driver(_) => kept.close(),
            CoreError::Capturing { .. } | CoreError::WrongThread | CoreError::Disowned => Ok(()),
            error => Err((error, kept)),
        };
        let Err((error, kept)) = self.close().or_else(again) else { return true };
        let _ = ManuallyDrop::new(kept);
        driver.report_release_failure(&error);
        false
    }

    fn close(self) -> std::result::Result<(), (CoreError, Self)> {
        match self {
            Self::Registered(memory) => {
                memory.close().map(drop).map_err(|refused| (refused.error, Self::Registered(refused.owner)))
            }
            Self::Allocated(memory) => {
                memory.close().map_err(|refused| (refused.error, Self::Allocated(refused.owner)))
            }
        }
    }

    fn start(&mut self) -> NonNull<u8> {
        let start = match self {
            Self::Registered(memory) => memory.as_mut_ptr(),
            Self::Allocated(memory) => memory.as_mut_ptr(),
        };
        NonNull::new(start).unwrap_or(NonNull::dangling())
    }

    fn absorb(&self, uses: Uses) {
        match self {
            Self::Registered(memory) => memory.absorb_uses(uses),
            Self::Allocated(memory) => memory.absorb_uses(uses),
        }
    }
}

/// Memory that is never used for another pool or on another node.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) shared: Arc<Shared>,
    pub(super) numa_id: Option<u32>,
    /// The private pool that it is of, whose blocks graphs may capture.
    pub(super) pool: Option<MempoolId>,
    /// Whether its blocks may stay with the threads that free them: that of the default pool on the allocator's own node.
    pub(super) is_home: bool,
    /// Small and large blocks lie in segments of their own, so that a small block keeps no large segment from going back.
    small: Mutex<Heap<Arc<Segment>>>,
    large: Mutex<Heap<Arc<Segment>>>,
    /// Nobody will ask for blocks any more: what is wholly free goes back at once.
    closed: AtomicBool,
    /// Blocks that a graph may use whenever it runs: they stay until the pool is released.
    parked: Mutex<Vec<FreeBlock>>,
}

impl Arena {
    pub(super) fn new(shared: &Arc<Shared>, pool: Option<MempoolId>, numa_id: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            numa_id,
            pool,
            is_home: pool.is_none() && numa_id == shared.options.numa_id,
            small: Mutex::new(Heap::new()),
            large: Mutex::new(Heap::new()),
            closed: AtomicBool::new(false),
            parked: Mutex::default(),
        })
    }

    /// Takes back a block that no stream has used since it was handed out.
    #[inline]
    pub(super) fn free_unused(block: FreeBlock) {
        let refused = match block.kept_by {
            Some(allocator) => thread_cache::push(allocator, block),
            None => Some(block),
        };
        if let Some(block) = refused {
            Self::free_past_cache(block);
        }
    }

    #[cold]
    fn free_past_cache(mut block: FreeBlock) {
        let arena = Arc::clone(block.arena());
        if let Some(allocator) = block.kept_by
            && let Some(spilled) = thread_cache::make_room(&arena.shared, block.capacity)
        {
            let refused = thread_cache::push(allocator, block);
            arena.shared.put_all(spilled);
            match refused {
                Some(refused) => block = refused,
                None => return,
            }
        }
        arena.shared.figures.count(block.capacity, false);
        arena.shared.put_all([block]);
    }

    /// Takes back a block that streams may still use, or a graph.
    pub(super) fn free_used(mut block: FreeBlock) {
        let captured = std::mem::take(block.captured.get_mut());
        let arena = Arc::clone(block.arena());
        arena.shared.figures.count(block.capacity, false);
        if !captured {
            return arena.shared.await_uses(block);
        }
        lock(&arena.parked).push(block);
        if arena.is_closed() {
            arena.unpark();
        }
    }

    /// A block of `size` bytes, which are rounded already, if one is free.
    pub(super) fn take(&self, size: usize) -> Option<FreeBlock> {
        lock(self.heap(size)).allocate(size).map(|grant| Body::new(grant, size))
    }

    /// Adds a segment and takes a block out of it before anybody else can.
    pub(super) fn add_and_take(&self, segment: Segment, size: usize) -> Option<FreeBlock> {
        let mut heap = lock(self.heap(size));
        if let Err(refused) = heap.add_segment(segment.bytes, Arc::new(segment)) {
            // It calls the driver as it goes.
            drop(heap);
            drop(refused);
            return None;
        }
        heap.allocate(size).map(|grant| Body::new(grant, size))
    }

    /// Takes back a block that nothing uses any more. Whether its segment is wholly free then, and still here.
    pub(super) fn put(&self, block: Body) -> bool {
        let Body { id, capacity, segment, .. } = block;
        // Before, as long as the heap has it too: behind, another thread may have taken that, and it would go here.
        drop(segment);
        let whole = lock(self.heap(capacity)).free(id);
        if whole && self.is_closed() {
            self.trim(|_| false);
            return false;
        }
        whole
    }

    /// Gives wholly free segments back, large ones first, until `enough`, which is told the bytes given back. Calls the driver.
    pub(super) fn trim(&self, mut enough: impl FnMut(usize) -> bool) {
        let _turn = lock_over_calls(&self.shared.unpinning);
        let mut bytes = 0usize;
        for heap in [&self.large, &self.small] {
            let taken = lock(heap).take_free(|taken| enough(bytes.saturating_add(taken)));
            bytes = taken.iter().fold(bytes, |sum, (size, _)| sum.saturating_add(*size));
            // Dropped here, without the lock.
            drop(taken);
        }
    }

    /// Whether far more is held for large blocks than was ever in use at once.
    pub(super) fn has_surplus(&self) -> bool {
        lock(&self.large).surplus() > 0
    }

    /// Gives wholly free segments of that back, for which the driver waits for all work of the context.
    pub(super) fn return_surplus(&self) {
        let _turn = lock_over_calls(&self.shared.unpinning);
        let taken = lock(&self.large).take_surplus();
        // Without the lock.
        drop(taken);
    }

    /// Nobody asks for blocks any more: gives back what is free, and later each segment as it becomes free.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.unpark();
        self.trim(|_| false);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn unpark(&self) {
        let parked = std::mem::take(&mut *lock(&self.parked));
        parked.into_iter().for_each(|block| self.shared.await_uses(block));
    }

    fn heap(&self, size: usize) -> &Mutex<Heap<Arc<Segment>>> {
        if size >= classes::LARGE { &self.large } else { &self.small }
    }
}

type Filter = dyn Fn(Option<StreamId>) -> bool + Send + Sync;

/// The arenas of an allocator, and the routes to its private pools: those of graphs and of `MemPool`s.
#[derive(Default)]
pub(super) struct Pools {
    /// By pool, where `None` is the default one, and by node.
    pub(super) arenas: HashMap<(Option<MempoolId>, Option<u32>), Arc<Arena>>,
    /// How often each private pool was begun and not released.
    pub(super) uses: HashMap<MempoolId, u64>,
    pub(super) routes: Vec<(MempoolId, Arc<Filter>)>,
}

impl Pools {
    pub(super) fn position(&self, id: MempoolId) -> Option<usize> {
        self.routes.iter().position(|(routed, _)| *routed == id)
    }
}

crate::impl_debug!(Pools, |it| routes: it.routes.len());
