//! The allocator's handle.
//!
//! # Safety
//!
//! Is a resource: relies on the heaps handing each block to one receiver until it is given back.

#![allow(unsafe_code, reason = "is a resource, and takes memory back by address")]

use std::alloc::Layout;
use std::marker::PhantomData;
use std::sync::Arc;

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{Context, MemorySource, Stream, StreamId, forked};

use super::callbacks::{CallObserver, CallWatch, CallbackId, refuse_watchers};
use super::hot::Request;
use super::options::CachingOptions;
use super::shared::{DeviceCache, number_of};
use super::sleep::BackingEvent;
use super::slot::StreamSlot;
use crate::engine::paged::Segment;
use crate::error::{Error, OutOfMemoryReport, Result, refuse_forked};
use crate::mempool_id::MempoolId;
use crate::primitive::Ordering;
use crate::resource::{DEFAULT_ALIGNMENT, DeviceAccessible, MemoryResource, RawResource, ResourceContext};

/// Allocates device memory, keeps what is freed, and moves it to where it is needed.
///
/// Clones are handles to the same allocator. See `docs/allocator.md` for how it works.
///
/// In a forked child all of it is the parent's: what can fail is `Forked` in [`Error::Core`], and what cannot does nothing.
///
/// ```
/// use cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
/// use cuda_mem_pool::MemoryResource;
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let options = CachingOptions::default().with_max_bytes(120 << 20);
/// let allocator = CachingAllocator::new(&context, &options)?;
/// let reclaimer = allocator.attach_oom_reclaimer(|bytes| bytes == 0); // frees what it can, and says so
/// let watcher = allocator.attach_backing_watcher(|change| println!("{change:?}"));
/// assert!(allocator.allocate(121 << 20, &stream).is_err());
/// assert!(allocator.detach(reclaimer) && allocator.detach(watcher));
/// let block = allocator.allocate(100_000_000, &stream)?;
/// drop(block);
/// let again = allocator.of_stream(&stream)?.allocate_by_address(90_000_000)?; // the same memory, without a driver call
/// assert_eq!(allocator.statistics().allocated_bytes.all.current, 90_000_384);
/// allocator.set_memory_fraction(0.5)?; // may be called while streams capture
/// // SAFETY: nothing uses it.
/// unsafe { allocator.free_by_address(again) }?;
/// allocator.set_limit(80_000_000)?; // below what is held, too
/// allocator.trim_to(50_000_000)?;
/// assert!(allocator.reserved_bytes() <= 50_000_000 && allocator.memory_fraction() == 0.5);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct CachingAllocator {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) shared: DeviceCache,
    home: ResourceContext,
}

impl CachingAllocator {
    /// Makes an allocator of the memory of the context's device. It holds nothing before the first request.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidFraction`], [`Error::InvalidOverPeak`], [`Error::Options`].
    pub fn new(context: &Context, options: &CachingOptions) -> Result<Self> {
        Self::with(context, options, CallWatch::default())
    }

    /// Makes an allocator as [`CachingAllocator::new`], with an observer of the calls of the driver.
    pub fn observed(
        context: &Context,
        options: &CachingOptions,
        observer: Arc<dyn CallObserver>,
    ) -> Result<Self> {
        Self::with(context, options, CallWatch { observer: Some(observer), ..Default::default() })
    }

    fn with(context: &Context, options: &CachingOptions, observer: CallWatch) -> Result<Self> {
        let shared = DeviceCache::new(context, options, observer)?;
        Ok(Self { inner: Arc::new(Inner { shared, home: ResourceContext::new(context) }) })
    }

    #[inline]
    pub(super) fn shared(&self) -> &DeviceCache {
        &self.inner.shared
    }

    /// Allocates memory for work of a stream; its address, a multiple of 512, or of 256 where a pool's source gives such. No bytes take the
    /// smallest block, other than with [`MemoryResource::allocate`](crate::MemoryResource::allocate). It is leaked unless
    /// [`CachingAllocator::free_by_address`] gets it. Makes no call of the driver while memory is cached. Allowed while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceOutOfMemory`], [`Error::TooLarge`] from 1 EiB on; [`Error::Sleep`]: `Asleep` for a tag that sleeps;
    /// [`Error::TooManyStreams`], [`Error::TooManyBlocks`]; [`Error::InUse`], which is a fault of the allocator.
    #[inline]
    pub fn allocate_by_address(&self, bytes: usize, stream: &Stream) -> Result<CUdeviceptr> {
        self.shared().allocate(bytes, stream)
    }

    /// This allocator for work of a stream.
    ///
    /// # Errors
    ///
    /// [`Error::TooManyStreams`].
    pub fn of_stream(&self, stream: &Stream) -> Result<StreamAllocator<'_>> {
        refuse_forked()?;
        let shared = self.shared();
        let slot = shared.streams.slot(stream)?;
        Ok(StreamAllocator { shared, slot, stream: stream.id(), _here: PhantomData })
    }

    /// Takes memory back, ordered on the stream that it was allocated for: work of that stream may have it again at once.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAddress`] if no block begins there. That a block was freed before is noticed in most cases, not in all.
    ///
    /// # Safety
    ///
    /// The block is not used any more: what uses it is ordered before this point of its stream, or on streams that
    /// [`CachingAllocator::record_stream`] was told. Of a default stream that has ended with its thread, it is before the destructors of the
    /// thread's thread-locals ran. A graph may use a block until the last [`CachingAllocator::release_pool`] of a private pool if it was
    /// allocated from that while its stream captured. By then all launches were made, each on a stream that memory of the default pool was
    /// allocated for, or of a private one while this pool was there. A block that was allocated before is freed behind the last launch.
    #[inline(always)]
    pub unsafe fn free_by_address(&self, address: CUdeviceptr) -> Result<()> {
        self.shared().free(address, None)
    }

    /// Enters a stream as a user of a block, for the work that it is given until the block is freed, or this value of the stream is
    /// [disowned](Stream::disown). After the free the block is reused only once that work is done, or its own stream waits for it. If another thread frees it, of a thread's default stream only work given before this call counts.
    /// Once a block has 256 such streams, entering one more forgets those that have no work at that moment.
    ///
    /// The block's own stream waits, on the device, when the pool needs memory. So work that `stream` is given before the free must not wait, by
    /// a word in memory, a host function or another process, for work that the own stream is given after it: both would wait for ever.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAddress`] if no block begins there.
    pub fn record_stream(&self, address: CUdeviceptr, stream: &Stream) -> Result<()> {
        refuse_forked()?;
        let shared = self.shared();
        shared.context.driver().expect_same(stream.context().driver(), "the stream")?;
        let Some(found) = shared.map.find(address) else {
            return shared.pools().record_stream(address, stream);
        };
        let slot = shared.slots.get(found.owner).ok_or(Error::UnknownAddress { address })?;
        // A block that is kept for the next one of its size is still found by its address.
        if shared.with_drained(slot, |heap, _| heap.sizes(number_of(found)).is_none()) {
            return Err(Error::UnknownAddress { address });
        }
        if slot.owner.is(stream.id().as_raw()) {
            return Ok(());
        }
        let is_freed = shared.pending.has_freed(|freed| freed == address);
        if is_freed {
            Err(Error::UnknownAddress { address })
        } else {
            shared.pending.record_stream(address, stream, None)
        }
    }

    /// Has free memory of a stream serve other streams from now on, behind all work that the stream was given: its owner is about to destroy it.
    /// Blocks in use stay as they are, and so does what a graph may use. A borrowed stream is disowned too before it is destroyed
    /// ([`Stream::disown`]): others may have recorded it.
    ///
    /// Streams of [`Stream::new`] and its like need not be forgotten: once no other handle to one exists and its work is done, the next new stream takes
    /// its memory. So does what a thread's default stream had, when the thread ends; if that had work then, once there is no other memory and
    /// no stream captures: the host then waits for all work of the context.
    ///
    /// # Errors
    ///
    /// [`Error::Core`]: `Capturing`, also if there is nothing to forget, and for a disowned stream if any other captures; `WrongThread` for
    /// another thread's default stream, and those of the driver. The stream is not forgotten then.
    ///
    /// # Safety
    ///
    /// No thread allocates for the stream meanwhile, and work that it is given from now on uses no memory that was allocated for it before.
    pub unsafe fn forget_stream(&self, stream: &Stream) -> Result<()> {
        self.shared().streams.forget(stream)
    }

    /// Gives free memory that no work uses any more back to the driver, of tags too; returns its bytes. The host does not wait for that work:
    /// memory that the device still uses stays. Where segments of released private pools go, the driver waits for the work of all other streams.
    pub fn empty_cache(&self) -> Result<usize> {
        self.shared().trim_to(0)
    }

    /// Waits on the host for the work of all streams that memory was allocated for, and for what others do with blocks that were freed, but
    /// for streams that capture and the default streams of other threads. No capture ends, not even one that begins meanwhile.
    pub fn wait_for_streams(&self) -> Result<()> {
        refuse_watchers()?;
        self.shared().pools().wait_for_streams()
    }

    /// Gives memory back as [`CachingAllocator::empty_cache`], until no more than `bytes` bytes are held: whole handles, and segments of
    /// released private pools last. The bytes that went.
    pub fn trim_to(&self, bytes: usize) -> Result<usize> {
        self.shared().trim_to(bytes)
    }

    /// Sets the share of the device's memory that this allocator may hold, from 0 to 1; 1 is no limit but
    /// [`CachingOptions::max_bytes`]. What it holds already stays. Makes no driver call.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidFraction`].
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<()> {
        self.shared().set_limits(|options| options.memory_fraction = fraction)
    }

    /// Sets the most bytes that this allocator may hold, beside its [share](Self::set_memory_fraction); `usize::MAX` is no limit. What is free
    /// above that goes back now, as by [`CachingAllocator::trim_to`]; what is in use stays, and serves others once it is freed. The bytes that
    /// went.
    ///
    /// # Errors
    ///
    /// [`Error::Core`] of the driver, with the limit set.
    pub fn set_limit(&self, bytes: usize) -> Result<usize> {
        let shared = self.shared();
        shared.set_limits(|options| options.max_bytes = bytes)?;
        shared.trim_to(shared.limit())
    }

    /// The share of the device's memory that this allocator may hold.
    #[must_use]
    pub fn memory_fraction(&self) -> f64 {
        if forked() { 0.0 } else { self.shared().options().memory_fraction }
    }

    /// The physical memory that is held now, in bytes, that of private pools included.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        if forked() { 0 } else { self.shared().figures.reserved() }
    }

    /// Host memory that the allocator's books take, in bytes; in a watcher without those of handles and mappings.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        if forked() { 0 } else { self.shared().metadata_bytes() }
    }

    /// How many calls of the driver were made for memory and mappings of the default pool, and for the order of its handles; and queries of
    /// what other streams used.
    #[must_use]
    pub fn driver_calls(&self) -> u64 {
        if forked() { 0 } else { self.shared().observer.calls.load(Ordering::Relaxed) }
    }

    /// Has `reclaimer` be called when there is no memory for a request, of the default pool or a private one, after all that the allocator can
    /// do by itself. It gets the bytes that were asked for, frees what it can, and says whether it did; then all is tried once more.
    ///
    /// Called by the thread that allocates, with no lock held: it may use this allocator, and is not called again for that. A panic of it is
    /// the request's. A handle of this allocator in it keeps that alive until [`CachingAllocator::detach`].
    /// [`CachingAllocator`] has an example.
    pub fn attach_oom_reclaimer(
        &self,
        reclaimer: impl Fn(usize) -> bool + Send + Sync + 'static,
    ) -> CallbackId {
        self.shared().callbacks.reclaimers.add(Arc::new(reclaimer))
    }

    /// Has `observer` be called for each request that fails for lack of memory, before the request returns.
    ///
    /// Called as [`attach_oom_reclaimer`](Self::attach_oom_reclaimer) says, with the report.
    pub fn attach_oom_observer(
        &self,
        observer: impl Fn(&OutOfMemoryReport) + Send + Sync + 'static,
    ) -> CallbackId {
        self.shared().callbacks.observers.add(Arc::new(observer))
    }

    /// Has `watcher` be called before free memory leaves its addresses, by the thread that moves it or gives it back: afterwards there is none
    /// there, or other memory. It may happen that it does not leave after all, because a driver call fails.
    ///
    /// The allocator's page source is locked meanwhile. The watcher may hand out and free what is cached, and ask for sizes, statistics and a
    /// snapshot; what needs the page source, such as to grow, is [`Error::InCallback`], in all allocators. It must not wait for threads that
    /// allocate. The history is told once it has returned. A panic ends in it, and the change goes on. A handle of this allocator in it keeps
    /// that alive until [`CachingAllocator::detach`].
    pub fn attach_backing_watcher(&self, watcher: impl Fn(&Segment) + Send + Sync + 'static) -> CallbackId {
        self.shared().callbacks.watchers.add(Arc::new(watcher))
    }

    /// Has `registrant` be told before memory of a tag leaves its addresses, and after memory has come to them. All are told one after the
    /// other, in the order in which they came, by the thread that puts the tag to sleep or wakes it, without a lock. What one fails with, a
    /// panic too, is in [`Slept::notices`](super::Slept::notices) and stops nothing. [`CachingAllocator::detach`] ends it;
    /// until then a tag in it keeps the allocator alive. [`Tag`](super::Tag) has an example.
    pub fn on_backing_change(
        &self,
        registrant: impl Fn(&BackingEvent<'_>) -> Result<(), String> + Send + Sync + 'static,
    ) -> CallbackId {
        self.shared().callbacks.registrants.add(Arc::new(registrant))
    }

    /// Detaches a callback of any kind; false if it is not one of this allocator. Another thread may still be in it.
    pub fn detach(&self, id: CallbackId) -> bool {
        self.shared().callbacks.remove(id)
    }
}

/// An allocator for work of one stream, which saves the look-up of the stream: for code that allocates on the same few streams.
///
/// It stays in its thread: the default stream of a thread ends with it, and what belonged to that serves another stream then.
/// [`CachingAllocator`] has an example.
#[derive(Clone, Copy)]
pub struct StreamAllocator<'a> {
    shared: &'a DeviceCache,
    slot: &'a StreamSlot,
    stream: StreamId,
    /// Another thread could use it while the stream ends.
    _here: PhantomData<*const ()>,
}

impl<'a> StreamAllocator<'a> {
    /// As [`CachingAllocator::allocate_by_address`] for the stream.
    ///
    /// # Errors
    ///
    /// As there; [`Error::StreamEnded`].
    #[inline(always)]
    pub fn allocate_by_address(&self, bytes: usize) -> Result<CUdeviceptr> {
        self.shared.allocate_in(self.slot, self.stream, bytes)
    }

    /// Allocates as [`StreamAllocator::allocate_by_address`] exactly the memory from `address` on, a multiple of 512, which is cached for this
    /// stream. A block up to 1 MiB has to lie in one page of 2 MiB, which is wholly free or has blocks of its size class: up to 16 KiB, or above
    /// that. Makes no call of the driver for memory.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAddress`] if not all of it is free there, and while the stream's requests go to a private pool;
    /// [`Error::StreamEnded`].
    pub fn allocate_at(&self, bytes: usize, address: CUdeviceptr) -> Result<CUdeviceptr> {
        refuse_forked()?;
        let Self { shared, slot, stream, .. } = *self;
        if !slot.owner.is(stream.as_raw()) {
            return Err(Error::StreamEnded);
        }
        // Blocks there whose other streams are done with them are free too.
        shared.poll();
        let is_routed = shared.pools().route(stream.as_raw()).is_some();
        match shared.request(bytes).filter(|_| address.is_multiple_of(512) && !is_routed) {
            Some(request) => shared.allocate_recorded(slot, Request { at: Some(address), ..request }),
            None => Err(Error::UnknownAddress { address }),
        }
    }

    /// The stream.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.stream
    }
}

crate::impl_debug!(['a] StreamAllocator<'a>, |it| stream: it.stream);

// SAFETY: the heaps' memory is the device's, mapped for it to read and write.
unsafe impl MemoryResource for CachingAllocator {
    type Access = DeviceAccessible;

    fn raw(&self) -> Arc<dyn RawResource> {
        Arc::clone(&self.inner) as Arc<dyn RawResource>
    }

    fn resource_context(&self) -> &ResourceContext {
        &self.inner.home
    }
}

// SAFETY: a block stays its receiver's until it is put back into its heap, which `free` does alone.
unsafe impl MemorySource for Inner {
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        _layout: Layout,
        stream: &Stream,
    ) -> cuda_mem_core::Result<()> {
        self.shared.free(address, Some(stream)).map_err(|error| match error {
            Error::Core(error) => error,
            _ => cuda_mem_core::Error::NotAllocated { address },
        })
    }
}

// SAFETY: a heap hands out addresses that no other block has, of mapped memory, aligned as was asked.
unsafe impl RawResource for Inner {
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        const MOST: usize = 512;
        if layout.align() > MOST {
            return Err(Error::Alignment { asked: layout.align(), most: MOST });
        }
        if layout.size() == 0 {
            return Ok(0);
        }
        let address = self.shared.allocate(layout.size(), stream)?;
        if !address.is_multiple_of(layout.align() as u64) {
            // A private pool whose source gives no more: the request's own, or one that lends where there is no other memory.
            self.shared.free(address, None)?;
            let route = self.shared.pools().route(stream.id().as_raw());
            if route.is_none_or(|pool| pool == MempoolId::NONE) {
                let slot = self.shared.streams.slot(stream)?;
                return self.shared.refuse_too_large(slot, layout.size(), MempoolId::NONE);
            }
            return Err(Error::Alignment { asked: layout.align(), most: DEFAULT_ALIGNMENT });
        }
        Ok(address)
    }
}
