//! Private pools of `CachingAllocator` on small machines, and what they ask of the driver.

use std::alloc::Layout;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, MemorySource, Stream};
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::segments::{Filter, Options};
use cuda_mem_pool::snapshot::Action;
use cuda_mem_pool::{
    DeviceMemoryResource, Error, MemoryResource, MempoolId, PinnedMemoryResource, RawResource,
    TrackingAdaptor,
};
use cuda_mem_sim::Sim;

use crate::blocks::{allocator, free, routed};
use crate::caching_watchers::Bomb;
use crate::common::capture::{Capture, GLOBAL};
use crate::common::gate::Gate;
use crate::rig::{on, on_simulator};

const MIB: usize = 1 << 20;

fn small(test: impl FnOnce(&Sim, &Context, &Stream)) {
    on(Sim::builder().memory(256 << 20), |sim, context| {
        let stream = Stream::new(context).unwrap();
        test(sim, context, &stream);
    });
}

#[test]
fn what_a_released_pool_has_serves_others() {
    small(|_, context, stream| {
        let (allocator, id) = (allocator(context), MempoolId::for_user());
        let block = routed(&allocator, id, 200 * MIB, stream).unwrap();
        free(&allocator, block);
        let refused = allocator.allocate_by_address(200 * MIB, stream).unwrap_err();
        assert!(matches!(refused, Error::DeviceOutOfMemory(_)), "{refused}: the pool is in use");
        allocator.release_pool(id).unwrap();
        let block = allocator.allocate_by_address(200 * MIB, stream).unwrap();
        assert!(allocator.reserved_bytes() < 256 << 20);
        free(&allocator, block);
        // And the other way round, of memory whose stream still runs.
        let gate = Gate::new(context);
        gate.open();
        gate.hold(stream);
        let block = routed(&allocator, MempoolId::for_user(), 200 * MIB, stream).unwrap();
        free(&allocator, block);
    });
}

#[test]
fn a_pool_lends_in_need_if_it_may() {
    small(|_, context, stream| {
        let (allocator, id) = (allocator(context), MempoolId::for_user());
        let other = Stream::new(context).unwrap();
        let block = routed(&allocator, id, 200 * MIB, stream).unwrap();
        free(&allocator, block);
        allocator.set_use_on_oom(id, true).unwrap();
        let refused = allocator.allocate_by_address(100 * MIB, &other).unwrap_err();
        assert!(matches!(refused, Error::DeviceOutOfMemory(_)), "{refused}: another stream's");
        let lent = allocator.allocate_by_address(100 * MIB, stream).unwrap();
        assert_eq!(lent, block);
        allocator.set_use_on_oom(id, false).unwrap();
        assert!(allocator.allocate_by_address(90 * MIB, stream).is_err());
        free(&allocator, lent);
        assert_eq!(allocator.statistics().num_ooms, 2);
        allocator.release_pool(id).unwrap();
    });
}

#[test]
fn a_block_that_a_pool_lends_is_told_of_once_as_the_pools() {
    small(|_, context, stream| {
        let (allocator, id) = (allocator(context), MempoolId::for_user());
        free(&allocator, routed(&allocator, id, 200 * MIB, stream).unwrap());
        allocator.set_use_on_oom(id, true).unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&told);
        let tracker = allocator.history().attach(move |entry| {
            let is_alloc = entry.action == Action::Alloc;
            heard.lock().unwrap().extend(is_alloc.then_some((entry.address, entry.pool)));
        });
        let lent = allocator.allocate_by_address(100 * MIB, stream).unwrap();
        assert_eq!(*told.lock().unwrap(), [(lent, id)]);
        allocator.history().detach(tracker);
        free(&allocator, lent);
    });
}

#[test]
fn a_pool_does_not_lend_what_a_graph_may_use() {
    small(|_, context, stream| {
        let (allocator, id) = (allocator(context), MempoolId::for_graph());
        let capture = Capture::begin(stream, GLOBAL);
        let block = routed(&allocator, id, 200 * MIB, stream).unwrap();
        free(&allocator, block);
        drop(capture.end().unwrap());
        allocator.set_use_on_oom(id, true).unwrap();
        let refused = allocator.allocate_by_address(100 * MIB, stream).unwrap_err();
        assert!(matches!(refused, Error::DeviceOutOfMemory(_)), "{refused}");
        // Its own requests have it.
        let again = routed(&allocator, id, 200 * MIB, stream).unwrap();
        assert_eq!(again, block);
        free(&allocator, again);
    });
}

/// Memory of a pool's own source need not be the device's.
#[test]
fn what_a_pool_has_of_the_host_takes_no_room_on_the_device() {
    small(|_, context, stream| {
        let (allocator, id) = (allocator(context), MempoolId::for_user());
        let source = PinnedMemoryResource::new(context, None).unwrap();
        allocator.create_or_incref_pool(id, Some(source.raw())).unwrap();
        let of_host = routed(&allocator, id, 200 * MIB, stream).unwrap();
        let block = allocator.allocate_by_address(150 * MIB, stream).unwrap();
        assert_eq!(allocator.statistics().num_alloc_retries, 0);
        [block, of_host].into_iter().for_each(|block| free(&allocator, block));
        allocator.release_pool(id).unwrap();
    });
}

#[test]
fn the_fraction_is_of_all_memory_together() {
    small(|_, context, stream| {
        let options = CachingOptions::default().with_memory_fraction(0.5);
        let allocator = CachingAllocator::new(context, &options).unwrap();
        let id = MempoolId::for_user();
        let block = routed(&allocator, id, 100 * MIB, stream).unwrap();
        let refused = allocator.allocate_by_address(60 * MIB, stream).unwrap_err();
        assert!(
            matches!(&refused, Error::DeviceOutOfMemory(report) if report.limit == Some(128 << 20)),
            "{refused}"
        );
        let common = allocator.allocate_by_address(20 * MIB, stream).unwrap();
        let refused = routed(&allocator, MempoolId::for_user(), 20 * MIB, stream).unwrap_err();
        assert!(
            matches!(&refused, Error::DeviceOutOfMemory(report) if report.limit == Some(128 << 20) && report.requested == 20 * MIB),
            "{refused}"
        );
        [block, common].into_iter().for_each(|block| free(&allocator, block));
        allocator.release_pool(id).unwrap();
        allocator.allocate_by_address(120 * MIB, stream).map(|block| free(&allocator, block)).unwrap();
    });
}

#[test]
fn garbage_goes_at_the_threshold() {
    small(|_, context, stream| {
        let segments = Options::default().with_garbage_collection_threshold(Some(0.5));
        let options = CachingOptions::default().with_memory_fraction(0.8).with_segments(segments);
        let allocator = CachingAllocator::new(context, &options).unwrap();
        let id = MempoolId::for_user();
        let block = routed(&allocator, id, 110 * MIB, stream).unwrap();
        free(&allocator, block);
        allocator.release_pool(id).unwrap();
        assert_eq!(allocator.reserved_bytes(), 110 * MIB);
        let block = allocator.allocate_by_address(40 * MIB, stream).unwrap();
        assert!(allocator.reserved_bytes() < 60 * MIB, "{}", allocator.reserved_bytes());
        assert_eq!(allocator.statistics().num_alloc_retries, 0);
        free(&allocator, block);
    });
}

#[test]
fn segments_that_are_not_cut_make_room() {
    small(|_, context, stream| {
        let segments = Options::default().with_max_split_size(Some(20 << 20));
        let allocator =
            CachingAllocator::new(context, &CachingOptions::default().with_segments(segments)).unwrap();
        let id = MempoolId::for_user();
        let block = routed(&allocator, id, 200 * MIB, stream).unwrap();
        free(&allocator, block);
        stream.synchronize().unwrap();
        let block = routed(&allocator, id, 100 * MIB, stream).unwrap();
        assert_eq!(allocator.reserved_bytes(), 100 * MIB);
        free(&allocator, block);
    });
}

#[test]
fn a_segment_that_the_driver_refuses_to_take_ends_no_request_that_others_make_room_for() {
    small(|sim, context, stream| {
        let segments = Options::default().with_max_split_size(Some(20 << 20));
        let options = CachingOptions::default().with_segments(segments);
        let (allocator, id) = (CachingAllocator::new(context, &options).unwrap(), MempoolId::for_user());
        let blocks = [(); 4].map(|()| routed(&allocator, id, 60 * MIB, stream).unwrap());
        blocks[..3].iter().for_each(|block| free(&allocator, *block));
        stream.synchronize().unwrap();
        sim.fail_call("cuMemFree", 1, CUresult::CUDA_ERROR_UNKNOWN);
        let block = routed(&allocator, id, 70 * MIB, stream).unwrap();
        assert_eq!(sim.struck().len(), 1);
        [block, blocks[3]].into_iter().for_each(|block| free(&allocator, block));
    });
}

#[test]
fn a_full_pool_looks_again_after_it_has_waited() {
    small(|_, context, stream| {
        let (allocator, id) = (allocator(context), MempoolId::for_user());
        let other = Stream::new(context).unwrap();
        let block = routed(&allocator, id, 200 * MIB, stream).unwrap();
        let gate = Gate::before(&other);
        allocator.record_stream(block, &other).unwrap();
        free(&allocator, block);
        thread::scope(|scope| {
            scope.spawn(|| gate.open());
            let again = routed(&allocator, id, 200 * MIB, stream).unwrap();
            assert_eq!(again, block);
            free(&allocator, again);
        });
        assert_eq!(allocator.statistics().num_ooms, 0);
    });
}

#[test]
fn nothing_is_asked_of_a_stream_that_captures() {
    on_simulator(|sim, context| {
        let (allocator, id) = (allocator(context), MempoolId::for_graph());
        let (stream, other) = (Stream::new(context).unwrap(), Stream::new(context).unwrap());
        allocator.begin_allocate_to_pool(id, Filter::stream(stream.id().as_raw())).unwrap();
        let before = allocator.allocate_by_address(MIB, &stream).unwrap();
        allocator.record_stream(before, &other).unwrap();
        let capture = Capture::begin(&stream, GLOBAL);
        let from = sim.log().records().len();
        free(&allocator, before);
        for bytes in [1000, MIB, 30 * MIB, 1000] {
            let block = allocator.allocate_by_address(bytes, &stream).unwrap();
            allocator.record_stream(block, &other).unwrap();
            free(&allocator, block);
        }
        allocator.empty_cache().unwrap();
        let records = sim.log().records();
        for record in &records[from..] {
            let harmless = ["cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode"];
            let of_the_capture = record.stream == stream.id().as_raw();
            assert!(!of_the_capture || harmless.contains(&record.function), "{record}");
            let forbidden = ["cuEventQuery", "cuMemUnmap", "cuMemRelease", "cuMemFree", "cuCtxSynchronize"];
            assert!(!forbidden.contains(&record.function), "{record}");
        }
        drop(capture.end().expect("the capture survives"));
        allocator.end_allocate_to_pool(id).unwrap();
        allocator.empty_cache().unwrap();
        other.synchronize().unwrap();
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.statistics().active.all.current, 0);
        allocator.release_pool(id).unwrap();
        assert!(allocator.empty_cache().unwrap() > 0);
        assert_eq!(allocator.reserved_bytes(), 0);
    });
}

/// What a source gives and does not take back is held until the allocator ends.
#[test]
fn memory_of_a_segment_that_cannot_be_undone_stays_claimed() {
    on(Sim::builder().memory(64 << 20), |sim, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (stream, source) =
            (Stream::new(context).unwrap(), DeviceMemoryResource::new(context, None).unwrap());
        let id = MempoolId::for_graph();
        allocator.create_or_incref_pool(id, Some(source.raw())).unwrap();
        allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
        for function in ["cuStreamSynchronize", "cuMemFreeAsync"] {
            sim.fail_call(function, 1, CUresult::CUDA_ERROR_UNKNOWN);
        }
        allocator.allocate(MIB, &stream).unwrap_err();
        assert_eq!(sim.struck().len(), 2);
        assert_eq!(allocator.reserved_bytes(), 2 * MIB, "its memory is still there");
        drop(allocator.allocate(MIB, &stream).unwrap());
        assert_eq!(allocator.reserved_bytes(), 4 * MIB);
        allocator.end_allocate_to_pool(id).unwrap();
        [(), ()].into_iter().for_each(|()| allocator.release_pool(id).unwrap());
        stream.synchronize().unwrap();
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.reserved_bytes(), 2 * MIB);
    });
}

/// Of work in the context the driver waits when it frees a segment; it is not asked to while the pool's own stream runs.
#[test]
fn a_segment_that_is_refused_stays_and_is_freed_later() {
    small(|sim, context, stream| {
        let (allocator, id) = (allocator(context), MempoolId::for_user());
        free(&allocator, routed(&allocator, id, MIB, stream).unwrap());
        allocator.release_pool(id).unwrap();
        stream.synchronize().unwrap();
        sim.fail_call("cuMemFree", 1, CUresult::CUDA_ERROR_UNKNOWN);
        allocator.empty_cache().unwrap_err();
        assert_eq!(allocator.reserved_bytes(), 2 * MIB);
        assert_eq!(allocator.empty_cache().unwrap(), 2 * MIB);
        assert_eq!((allocator.reserved_bytes(), context.driver().release_failures()), (0, 0));
    });
}

#[test]
fn an_allocator_of_segments_is_no_source_of_its_own() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (id, stream) = (MempoolId::for_user(), Stream::new(context).unwrap());
        allocator.set_expandable_segments(false).unwrap();
        let hidden = TrackingAdaptor::new(allocator.clone(), false);
        let kept = allocator.allocate_by_address(3 << 20, &stream).unwrap();
        allocator.create_or_incref_pool(id, Some(hidden.raw())).unwrap();
        for bytes in [1000, 3 << 20, 30 << 20] {
            let refused = routed(&allocator, id, bytes, &stream).unwrap_err();
            assert!(matches!(refused, Error::OwnSource { id: of } if of == id), "{refused}");
            assert_eq!(hidden.bytes().current, 0);
            allocator.release_pool(id).unwrap();
        }
        free(&allocator, kept);
        allocator.release_pool(id).unwrap();
        allocator.empty_cache().unwrap();
    });
}

/// Memory of a pool that was released can be had once its stream is done, which somebody else has too, and which has no heap.
#[test]
fn streams_of_private_pools_alone_are_waited_for() {
    on(Sim::builder(), |_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let [stream, other] = [(); 2].map(|()| Stream::new(context).unwrap());
        let id = MempoolId::for_user();
        let block = routed(&allocator, id, 20 << 20, &stream).unwrap();
        let freed = routed(&allocator, id, 20 << 20, &stream).unwrap();
        let gates = [&stream, &other].map(Gate::before);
        allocator.record_stream(freed, &other).unwrap();
        [block, freed].into_iter().for_each(|block| free(&allocator, block));
        (0..2).for_each(|_| allocator.release_pool(id).unwrap());
        thread::scope(|threads| {
            threads.spawn(|| {
                for gate in &gates {
                    thread::sleep(Duration::from_millis(20));
                    gate.open();
                }
            });
            allocator.wait_for_streams().unwrap();
        });
        assert_eq!(allocator.empty_cache().unwrap(), 40 << 20);
    });
}

/// The route's use of the pool ends all the same.
#[test]
fn a_filter_that_panics_as_it_goes_keeps_no_pool_in_use() {
    small(|_, context, stream| {
        let allocator = allocator(context);
        let pool = allocator.private_pool(None).unwrap();
        let bomb = Bomb(Arc::default());
        let route = pool.route(Filter::new(move |_| Arc::strong_count(&bomb.0) > 0)).unwrap();
        free(&allocator, allocator.allocate_by_address(4 * MIB, stream).unwrap());
        drop(route);
        assert_eq!(allocator.pool_use_count(pool.id()), 1);
        drop(pool);
        stream.synchronize().unwrap();
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.reserved_bytes(), 0);
    });
}

/// Memory of another resource, which is dropped with a panic.
#[derive(Debug)]
struct Falls(Arc<dyn RawResource>);

// SAFETY: the other resource's memory, handed through.
unsafe impl MemorySource for Falls {
    unsafe fn deallocate(&self, address: u64, layout: Layout, stream: &Stream) -> cuda_mem_core::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.deallocate(address, layout, stream) }
    }
}

// SAFETY: as above.
unsafe impl RawResource for Falls {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem_pool::Result<u64> {
        self.0.allocate(layout, stream)
    }
}

impl Drop for Falls {
    fn drop(&mut self) {
        resume_unwind(Box::new("a source that panics as it goes"));
    }
}

/// What goes back with it was taken out of its pools already.
#[test]
fn a_source_that_panics_as_it_goes_takes_no_other_pool_s_memory_along() {
    small(|_, context, stream| {
        let allocator = allocator(context);
        let upstream = DeviceMemoryResource::new(context, None).unwrap();
        for source in [Some(Arc::new(Falls(upstream.raw())) as Arc<dyn RawResource>), None] {
            let id = MempoolId::for_user();
            allocator.create_or_incref_pool(id, source).unwrap();
            free(&allocator, routed(&allocator, id, 4 * MIB, stream).unwrap());
            allocator.release_pool(id).unwrap();
            allocator.release_pool(id).unwrap_or(());
        }
        stream.synchronize().unwrap();
        let _ = catch_unwind(AssertUnwindSafe(|| allocator.empty_cache()));
        allocator.empty_cache().unwrap();
        let reserved = allocator.statistics().reserved_bytes.all.current;
        assert_eq!((allocator.reserved_bytes(), reserved), (0, 0));
    });
}
