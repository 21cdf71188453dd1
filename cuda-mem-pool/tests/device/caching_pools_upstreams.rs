//! Sources of private pools of `CachingAllocator` that call the driver as CUDA's runtime does, and what their segments count.

use std::alloc::Layout;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cuda_mem_core::sys::{CUdeviceptr, CUresult};
use cuda_mem_core::{Context, MemorySource, Stream};
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::segments::{Filter, Options};
use cuda_mem_pool::snapshot::{Action, TraceEntry};
use cuda_mem_pool::{Error, MemoryResource, MempoolId, RawResource, TrackingAdaptor};

use crate::common::World;
use crate::common::capture::{Capture, GLOBAL, RELAXED, THREAD_LOCAL, exchange_mode, thread_mode};
use crate::support::{device, free};

const MIB: usize = 1 << 20;

/// Memory by calls that end captures, in the capture mode that the thread is in.
#[derive(Debug)]
struct Plain {
    context: Context,
    panics: AtomicBool,
    blocks: AtomicUsize,
}

// SAFETY: the memory is the driver's, which gives each to one.
unsafe impl MemorySource for Plain {
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        _layout: Layout,
        _stream: &Stream,
    ) -> cuda_mem_core::Result<()> {
        let free = self.context.driver().table().cuMemFree().unwrap();
        // SAFETY: given below, and given back once.
        let freed = self.context.with_current(|| unsafe { free(address) })?;
        assert_eq!(freed, CUresult::CUDA_SUCCESS);
        self.blocks.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }
}

// SAFETY: as above.
unsafe impl RawResource for Plain {
    fn allocate(&self, layout: Layout, _stream: &Stream) -> cuda_mem_pool::Result<CUdeviceptr> {
        assert!(!self.panics.load(Ordering::SeqCst), "a source that fails");
        let allocate = self.context.driver().table().cuMemAlloc().unwrap();
        let mut address = 0;
        // SAFETY: one address to write.
        let made = self.context.with_current(|| unsafe { allocate(&mut address, layout.size()) })?;
        assert_eq!(made, CUresult::CUDA_SUCCESS);
        self.blocks.fetch_add(1, Ordering::SeqCst);
        Ok(address)
    }
}

#[test]
fn a_source_may_make_calls_that_captures_forbid() {
    let world = World::new();
    let table = world.driver.table();
    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        let allocator = CachingAllocator::new(&world.context, &CachingOptions::default()).unwrap();
        let (stream, other) = (world.new_stream(), world.new_stream());
        let plain = Arc::new(Plain {
            context: world.context.clone(),
            panics: AtomicBool::new(false),
            blocks: AtomicUsize::new(0),
        });
        let pool = || {
            let id = MempoolId::for_user();
            allocator.create_or_incref_pool(id, Some(plain.clone())).unwrap();
            id
        };
        let routed = |id: MempoolId, on: &Stream| {
            allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
            let block = allocator.allocate_by_address(MIB, on).unwrap();
            allocator.end_allocate_to_pool(id).unwrap();
            allocator.release_pool(id).unwrap();
            block
        };
        let (loose, captured) = (pool(), pool());
        let block = routed(loose, &other);
        free(&allocator, block);
        allocator.release_pool(loose).unwrap();

        let before = exchange_mode(table, THREAD_LOCAL);
        let capture = Capture::begin(&stream, mode);
        let block = routed(captured, &stream);
        assert_eq!(plain.blocks.load(Ordering::SeqCst), 2);
        assert_eq!(allocator.empty_pool_cache(loose).unwrap(), 2 * MIB);
        assert_eq!(plain.blocks.load(Ordering::SeqCst), 1);
        plain.panics.store(true, Ordering::SeqCst);
        catch_unwind(AssertUnwindSafe(|| routed(pool(), &other))).unwrap_err();
        assert_eq!(thread_mode(table), THREAD_LOCAL);
        exchange_mode(table, before);
        drop(capture.end().expect("the capture survives"));

        free(&allocator, block);
        allocator.release_pool(captured).unwrap();
        assert_eq!(allocator.empty_pool_cache(captured).unwrap(), 2 * MIB);
        assert_eq!(plain.blocks.load(Ordering::SeqCst), 0);
    }
}

/// The device's memory comes in pages of 2 MiB; what a source gives is what it is asked for.
#[test]
fn segments_of_the_device_are_whole_pages() {
    let world = World::new();
    let segments = Options::default().with_large_segment_size(21 << 20);
    let allocator =
        CachingAllocator::new(&world.context, &CachingOptions::default().with_segments(segments)).unwrap();
    let (stream, upstream) = (world.stream.clone(), TrackingAdaptor::new(device(&world), false));
    let [own, others] = [MempoolId::for_user(), MempoolId::for_user()];
    allocator.create_or_incref_pool(own, None).unwrap();
    allocator.create_or_incref_pool(others, Some(upstream.raw())).unwrap();
    let mut held = 0;
    for (id, bytes) in [(own, 22 * MIB), (others, 21 * MIB)] {
        allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
        let block = allocator.allocate_by_address(3 * MIB, &stream).unwrap();
        allocator.end_allocate_to_pool(id).unwrap();
        held += bytes;
        assert_eq!(allocator.base_allocation(block).unwrap(), (block, bytes));
        assert_eq!(allocator.reserved_bytes(), held);
        assert_eq!(allocator.statistics().reserved_bytes.large_pool.current, held as u64);
        let shown: u64 = allocator.snapshot().segments.iter().map(|segment| segment.total_size).sum();
        assert_eq!(shown, held as u64);
        free(&allocator, block);
    }
    assert_eq!(upstream.bytes().current, 21 << 20);
    stream.synchronize().unwrap();
    for (id, bytes) in [(own, 22 * MIB), (others, 21 * MIB)] {
        [(), ()].into_iter().for_each(|()| allocator.release_pool(id).unwrap());
        assert_eq!(allocator.empty_pool_cache(id).unwrap(), bytes);
        held -= bytes;
        assert_eq!(allocator.reserved_bytes(), held);
        assert_eq!(allocator.statistics().reserved_bytes.all.current, held as u64);
    }
}

/// What a pool's source and a tracker hear, in order.
#[derive(Debug, Default)]
struct Heard(Mutex<Vec<&'static str>>);

impl Heard {
    fn add(&self, what: &'static str) {
        self.0.lock().unwrap().push(what);
    }

    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Heard {
    fn track(&self, entry: &TraceEntry) {
        match entry.action {
            Action::SegmentFree => self.add("segment ends"),
            Action::SegmentAlloc => self.add("segment begins"),
            _ => {}
        }
    }
}

/// A source that does as it is told when it gets memory back.
#[derive(Debug)]
struct Told {
    below: Arc<dyn RawResource>,
    heard: Arc<Heard>,
    returns: Mutex<VecDeque<Return>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Return {
    Takes,
    Refuses,
    Panics,
}

// SAFETY: the memory is that of the resource below.
unsafe impl MemorySource for Told {
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem_core::Result<()> {
        let next = self.returns.lock().unwrap().pop_front();
        match next.unwrap_or(Return::Takes) {
            Return::Takes => {}
            Return::Refuses => return Err(cuda_mem_core::Error::NotAllocated { address }),
            Return::Panics => resume_unwind(Box::new("a source that panics")),
        }
        self.heard.add("source takes");
        // SAFETY: the caller's promise.
        unsafe { self.below.deallocate(address, layout, stream) }
    }
}

// SAFETY: as above.
unsafe impl RawResource for Told {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem_pool::Result<CUdeviceptr> {
        self.heard.add("source gives");
        self.below.allocate(layout, stream)
    }
}

/// Gives memory that begins 256 bytes behind what it has, as pools that cut blocks do.
#[derive(Debug)]
struct Shifted(Arc<dyn RawResource>);

// SAFETY: the memory below, from a place inside of it on, which is found again.
unsafe impl MemorySource for Shifted {
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem_core::Result<()> {
        let whole = Layout::from_size_align(layout.size() + 512, 256).unwrap();
        // SAFETY: what was given, as it was asked for.
        unsafe { self.0.deallocate(address - 256, whole, stream) }
    }
}

// SAFETY: as above.
unsafe impl RawResource for Shifted {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem_pool::Result<CUdeviceptr> {
        let whole = Layout::from_size_align(layout.size() + 512, 256).unwrap();
        Ok(self.0.allocate(whole, stream)? + 256)
    }
}

#[test]
fn what_a_source_aligns_less_is_not_passed_for_more() {
    let world = World::new();
    let allocator = CachingAllocator::new(&world.context, &CachingOptions::default()).unwrap();
    let pool = allocator.private_pool(Some(Arc::new(Shifted(device(&world).raw())))).unwrap();
    let route = pool.route_this_thread().unwrap();
    let asked = |align| allocator.raw().allocate(Layout::from_size_align(MIB, align).unwrap(), &world.stream);
    let refused = asked(512).unwrap_err();
    assert!(matches!(refused, Error::Alignment { asked: 512, most: 256 }), "{refused}");
    assert_eq!(allocator.statistics().active.all.current, 0);
    let block = asked(256).unwrap();
    assert_eq!(block % 512, 256);
    drop(route);
    free(&allocator, block);
}

/// What a pool lends comes last: that it is aligned less does not mean that there is other memory.
#[test]
fn where_only_a_pool_that_aligns_less_would_lend_it_is_out_of_memory() {
    let world = World::new();
    let options = CachingOptions::default().with_max_bytes(64 * MIB);
    let (allocator, id) = (CachingAllocator::new(&world.context, &options).unwrap(), MempoolId::for_user());
    allocator.create_or_incref_pool(id, Some(Arc::new(Shifted(device(&world).raw())))).unwrap();
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    free(&allocator, allocator.allocate_by_address(60 * MIB, &world.stream).unwrap());
    allocator.end_allocate_to_pool(id).unwrap();
    allocator.set_use_on_oom(id, true).unwrap();
    let layout = |align| Layout::from_size_align(30 * MIB, align).unwrap();
    let asked = |align| allocator.raw().allocate(layout(align), &world.stream);
    let refused = asked(512).unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    assert_eq!(allocator.statistics().active.all.current, 0);
    let block = asked(256).unwrap();
    assert_eq!(block % 512, 256);
    free(&allocator, block);
    allocator.release_pool(id).unwrap();
}

/// A pool over [`Told`] with so many free segments of 2 MiB, released.
fn released_pool(
    allocator: &CachingAllocator,
    world: &World,
    segments: usize,
    returns: &[Return],
) -> (MempoolId, Arc<Heard>) {
    let (id, heard) = (MempoolId::for_user(), Arc::<Heard>::default());
    let returns = Mutex::new(returns.iter().copied().collect());
    let source = Arc::new(Told { below: device(world).raw(), heard: Arc::clone(&heard), returns });
    allocator.create_or_incref_pool(id, Some(source)).unwrap();
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    let streams: Vec<Stream> = (0..segments).map(|_| world.new_stream()).collect();
    let blocks: Vec<_> =
        streams.iter().map(|stream| allocator.allocate_by_address(MIB, stream).unwrap()).collect();
    allocator.end_allocate_to_pool(id).unwrap();
    blocks.into_iter().for_each(|block| free(allocator, block));
    [(), ()].into_iter().for_each(|()| allocator.release_pool(id).unwrap());
    heard.take();
    (id, heard)
}

/// NCCL ends its registration of a segment when it hears of the segment's end: the memory must not be another's by then.
#[test]
fn trackers_hear_of_a_segments_end_before_its_source_has_it() {
    let world = World::new();
    let allocator = CachingAllocator::new(&world.context, &CachingOptions::default()).unwrap();
    let returns = [Return::Refuses, Return::Takes];
    let (id, heard) = released_pool(&allocator, &world, 1, &returns);
    let tracking = heard.clone();
    let tracker = allocator.history().attach(move |entry| tracking.track(entry));
    allocator.empty_pool_cache(id).unwrap_err();
    assert_eq!(heard.take(), ["segment ends", "segment begins"], "it was refused");
    assert_eq!(allocator.reserved_bytes(), 2 * MIB);
    assert_eq!(allocator.empty_pool_cache(id).unwrap(), 2 * MIB);
    assert_eq!(heard.take(), ["segment ends", "source takes"]);
    allocator.history().detach(tracker);
}

#[test]
fn a_source_that_panics_when_it_gets_memory_back_loses_nothing() {
    let world = World::new();
    let allocator = CachingAllocator::new(&world.context, &CachingOptions::default()).unwrap();
    let returns = [Return::Panics, Return::Takes, Return::Refuses];
    let (id, heard) = released_pool(&allocator, &world, 4, &returns);
    let error = allocator.empty_pool_cache(id).unwrap_err();
    assert!(matches!(error, Error::SourcePanicked { .. }), "the first that went wrong: {error}");
    assert_eq!(heard.take(), ["source takes"; 2]);
    let statistics = allocator.statistics();
    assert_eq!((allocator.reserved_bytes(), statistics.reserved_bytes.all.current), (4 * MIB, 4 << 20));
    assert_eq!(statistics.segment.all.current, 2);
    assert_eq!(allocator.snapshot().segments.len(), 2);
    // Both are the pool's again, which is forgotten with them.
    assert_eq!(allocator.empty_pool_cache(id).unwrap(), 4 * MIB);
    assert_eq!((heard.take(), allocator.reserved_bytes()), (vec!["source takes"; 2], 0));
    allocator.create_or_incref_pool(id, None).unwrap();
}
