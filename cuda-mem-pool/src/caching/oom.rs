//! Reports of requests that found no memory: collects the figures, and attaches those who hear of them.

use std::sync::Arc;

use cuda_mem_core::nvml;

use super::allocator::CachingAllocator;
use super::callbacks::CallbackId;
use super::grow::unless_lost;
use super::hot::Request;
use super::shared::Shared;
use super::slot::StreamSlot;
use crate::engine::paged::{SLAB, StreamHeap};
use crate::error::{CachePool, CachedMemory, Error, OutOfMemoryReport, Result, choose_advice};
use crate::mempool_id::MempoolId;
use crate::statistics::DeviceStatistics;

impl CachingAllocator {
    /// Has `reclaimer` be called when there is no memory for a request, of the default pool or a private one, after all that the
    /// allocator can do by itself. It gets the bytes that were asked for, frees what it can, in whichever allocator, and says
    /// whether it did; then everything is tried once more.
    ///
    /// Called by the thread that allocates, with no lock held: it may use this allocator. A request of its own that fails does
    /// not call it again. A panic of it is the request's. A handle of this allocator in it keeps that alive until
    /// [`CachingAllocator::detach`].
    ///
    /// ```
    /// use std::sync::Mutex;
    ///
    /// use cuda_mem_core::{Driver, Stream};
    /// use cuda_mem_pool::MemoryResource;
    /// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
    ///
    /// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
    /// let context = driver.device(0)?.primary_context()?;
    /// let stream = Stream::new(&context)?;
    /// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
    /// let most = driver.device(0)?.total_memory()? / 4 * 3;
    /// let cache = Mutex::new(Some(allocator.allocate(most, &stream)?));
    /// let id = allocator
    ///     .attach_oom_reclaimer(move |_bytes| cache.lock().is_ok_and(|mut cache| cache.take().is_some()));
    /// let block = allocator.allocate(most, &stream)?;
    /// # drop(block);
    /// # allocator.detach(id);
    /// # Ok::<(), cuda_mem_pool::Error>(())
    /// ```
    pub fn attach_oom_reclaimer(
        &self,
        reclaimer: impl Fn(usize) -> bool + Send + Sync + 'static,
    ) -> CallbackId {
        self.shared().callbacks.reclaimers.add(Arc::new(reclaimer))
    }

    /// Has `observer` be told of each request that fails for lack of memory, before its caller is.
    ///
    /// Called as what [`CachingAllocator::attach_oom_reclaimer`] attaches.
    pub fn attach_oom_observer(
        &self,
        observer: impl Fn(&OutOfMemoryReport) + Send + Sync + 'static,
    ) -> CallbackId {
        self.shared().callbacks.observers.add(Arc::new(observer))
    }
}

/// The free memory of all heaps, as a request of one of them sees it.
#[derive(Default)]
struct Free {
    cached: Vec<CachedMemory>,
    /// What can be put together to one block.
    movable: usize,
    /// The largest that the heap has in one piece.
    own: usize,
}

impl Shared {
    /// All that is known about a request that failed. Holds no lock when it asks the driver and the management library.
    pub(super) fn report(
        &self,
        slot: &StreamSlot,
        request: Request,
        pool: MempoolId,
    ) -> Result<OutOfMemoryReport> {
        self.count_all_frees();
        let mut live = DeviceStatistics::default();
        self.counter.read(&mut live);
        let bytes = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let (in_blocks, active) =
            (bytes(live.allocated_bytes.all.current), bytes(live.active_bytes.all.current));
        let (free, limit, reserved, pinned) = {
            let source = self.source()?;
            let free = self.free_memory(slot, |other, heap| source.movable(other.number, heap));
            let reserved = source.reserved().saturating_add(self.private.reserved());
            (free, self.private.limit(), reserved, source.pinned())
        };
        // Without the page source, which those wait for who have the private pools' books.
        let private = self.private.cached();
        // On a device that is lost nothing else tells of it.
        let device_free =
            unless_lost(self.context.memory_info().map_err(Error::from))?.map(|memory| memory.free);
        let room = device_free.unwrap_or(0).min(limit.saturating_sub(reserved)) / SLAB * SLAB;
        let movable = if self.moves { free.movable } else { 0 };
        let stream = slot.owner.stream().map(|stream| stream.id().as_raw());
        let of_private = stream.map_or(0, |stream| self.private.largest(pool, stream, room));
        let (together, largest) = match pool {
            MempoolId::NONE => {
                let together = free.own.max(movable.saturating_add(room));
                (together, together.max(of_private))
            }
            _ => (room, of_private),
        };
        let mut report = OutOfMemoryReport {
            device: self.context.device(),
            requested: request.requested,
            free: device_free,
            total: self.total,
            limit: (limit != usize::MAX).then_some(limit),
            reserved,
            live: in_blocks,
            pending: active.saturating_sub(in_blocks),
            cached: free.cached.into_iter().chain(private).collect(),
            pinned,
            largest,
            processes: nvml::processes(self.context.device()).ok(),
            advice: Vec::new(),
        };
        report.advice = choose_advice(&report, self.moves, together);
        Ok(report)
    }

    fn free_memory(&self, slot: &StreamSlot, movable: impl Fn(&StreamSlot, &StreamHeap) -> usize) -> Free {
        let mut free = Free::default();
        for other in self.slots.iter() {
            let (bytes, largest, moves) =
                other.heap.with(|heap, _| (heap.free_bytes(), heap.largest_free(), movable(other, heap)));
            free.movable = free.movable.saturating_add(moves);
            if other.number == slot.number {
                free.own = largest;
            }
            if let Some(stream) = other.stream_id().filter(|_| bytes > 0) {
                free.cached.push(CachedMemory { pool: CachePool::Stream(stream), bytes, largest });
            }
        }
        free
    }
}
