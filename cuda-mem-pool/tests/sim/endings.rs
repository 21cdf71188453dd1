//! Allocators that end while work uses their memory.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, DeviceBuffer, Driver, Stream, copy};
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::{MemoryResource, PinnedMemoryResource, PinnedMemoryResourceOptions};
use cuda_mem_sim::Sim;

use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::rig::expect_clean;

const MIB: usize = 1 << 20;

fn machine() -> (Sim, Context) {
    let sim = Sim::builder().record(true).build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    (sim, context)
}

/// What streams do that were recorded for a block of a private pool is waited for, as with any other block.
#[test]
fn an_allocator_that_ends_waits_for_streams_that_used_freed_blocks_of_tags() {
    let (sim, context) = machine();
    let [stream, other] = [(); 2].map(|()| Stream::new(&context).unwrap());
    for is_freed in [false, true] {
        let allocator = CachingAllocator::new(&context, &CachingOptions::default()).unwrap();
        let scope = allocator.tag("tag").unwrap().enter().unwrap();
        let address = allocator.allocate_by_address(4 * MIB, &stream).unwrap();
        drop(scope);
        let gate = Gate::before(&other);
        // SAFETY: the block's bytes; the stream is recorded.
        unsafe { copy::memset_async(&other, address, 1, 4 * MIB) }.unwrap();
        allocator.record_stream(address, &other).unwrap();
        if is_freed {
            // SAFETY: who uses it was recorded.
            unsafe { allocator.free_by_address(address) }.unwrap();
        }
        thread::scope(|threads| {
            threads.spawn(move || drop(allocator));
            thread::sleep(Duration::from_millis(50));
            gate.open();
        });
        other.synchronize().unwrap();
    }
    drop((stream, other, context));
    expect_clean(&sim);
}

/// The memory of a pool's source stays with what could not be waited for, which is counted.
#[test]
fn an_allocator_that_ends_beside_a_capture_keeps_its_sources() {
    let (sim, context) = machine();
    let [source, allocator] =
        [(); 2].map(|()| CachingAllocator::new(&context, &CachingOptions::default()).unwrap());
    let [stream, home] = [(); 2].map(|()| Stream::new(&context).unwrap());
    let target = DeviceBuffer::<u8>::zeroed(&home, 4 * MIB).unwrap();
    home.synchronize().unwrap();
    let pool = allocator.private_pool(Some(source.raw())).unwrap();
    let route = pool.route_this_thread().unwrap();
    let block = allocator.allocate(4 * MIB, &stream).unwrap();
    drop((route, source));
    block.whole().fill_bytes(&stream, 5).unwrap();
    let gate = Gate::before(&stream);
    target.whole().copy_from(&stream, &block.whole()).unwrap();
    drop(block);
    let capture = Capture::begin(&stream, RELAXED);
    drop((pool, allocator));
    assert_eq!(context.driver().release_failures(), 1);
    capture.end().unwrap();
    gate.open();
    assert_eq!(target.to_vec(&stream).unwrap(), [5; 4 * MIB]);
    assert!(sim.misuse().is_empty(), "{:?}", sim.misuse());
}

/// Its last handle is in a block that a capture keeps from going back. Who comes upon that has no lock that the end takes.
#[test]
fn an_allocator_ends_in_the_call_of_another_one() {
    let (sim, context) = machine();
    let [ends, other] =
        [(); 2].map(|()| CachingAllocator::new(&context, &CachingOptions::default()).unwrap());
    let [stream, user] = [(); 2].map(|()| Stream::new(&context).unwrap());
    let block = ends.allocate(4 * MIB, &stream).unwrap();
    block.whole().fill_bytes(&user, 1).unwrap();
    let capture = Capture::begin(&stream, RELAXED);
    drop((block, ends));
    assert_eq!(context.driver().reclaim(), 1);
    drop(capture.end().unwrap());
    let unmapped = sim.log().count("cuMemUnmap");
    drop(other.allocate(4 * MIB, &stream).unwrap());
    assert!(sim.log().count("cuMemUnmap") > unmapped, "its memory went back");
    assert_eq!(context.driver().reclaim(), 0);
    drop((other, stream, user, context));
    expect_clean(&sim);
}

/// The default stream of another thread cannot be waited for by its name, and a wait for all of the context would end the capture.
#[test]
fn an_allocator_that_ends_leaves_the_captures_of_others_alone() {
    let (sim, context) = machine();
    let allocator = CachingAllocator::new(&context, &CachingOptions::default()).unwrap();
    let other = Stream::new(&context).unwrap();
    let ((tell, told), (end, ended)) = (channel(), channel::<()>());
    thread::scope(|threads| {
        let within = allocator.clone();
        let context = &context;
        threads.spawn(move || {
            let own = Stream::per_thread(context).unwrap();
            drop(within.allocate(4 * MIB, &own).unwrap());
            drop(within);
            tell.send(()).unwrap();
            let _ = ended.recv();
        });
        told.recv().unwrap();
        let capture = Capture::begin(&other, RELAXED);
        drop(allocator);
        assert_ne!(context.driver().release_failures(), 0, "its memory stays");
        let graph = capture.end();
        drop(end);
        assert!(graph.is_ok(), "{:?}", graph.err());
    });
    assert!(sim.misuse().is_empty(), "{:?}", sim.misuse());
}

/// What a minute of waits has not shown to be over is leaked, as by any owner.
#[test]
fn an_allocator_that_ends_while_the_driver_refuses_to_wait_keeps_its_memory() {
    for is_tagged in [false, true] {
        let (sim, context) = machine();
        context.driver().set_patience(Duration::from_millis(5));
        let stream = Stream::new(&context).unwrap();
        let allocator = CachingAllocator::new(&context, &CachingOptions::default()).unwrap();
        let scope = is_tagged.then(|| allocator.tag("tag").unwrap().enter().unwrap());
        let block = allocator.allocate(4 * MIB, &stream).unwrap();
        drop(scope);
        let gate = Gate::before(&stream);
        block.whole().fill_bytes(&stream, 1).unwrap();
        drop(block);
        for call in ["cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"] {
            (0..10_000).for_each(|_| sim.fail_call(call, 1, CUresult::CUDA_ERROR_UNKNOWN));
        }
        drop(allocator);
        sim.clear_faults();
        let misuse = sim.misuse();
        gate.open();
        stream.synchronize().unwrap();
        assert!(misuse.is_empty(), "{misuse:?}");
        assert!(context.driver().release_failures() > 0, "it is counted");
    }
}

#[test]
fn an_owned_pool_is_destroyed_with_the_last_of_its_memory_and_the_drivers_own_never() {
    let (sim, context) = machine();
    let destroyed = || sim.log().count("cuMemPoolDestroy");
    let own = || PinnedMemoryResource::new(&context, &PinnedMemoryResourceOptions::default()).unwrap();
    own().close();
    assert_eq!(destroyed(), 1);
    drop(own());
    assert_eq!(destroyed(), 2);
    let resource = own();
    let block = resource.allocate(4096, None).unwrap();
    resource.close();
    assert_eq!(destroyed(), 2, "a block is left");
    block.close().unwrap();
    assert_eq!(destroyed(), 3);
    PinnedMemoryResource::new(&context, None).unwrap().close();
    assert_eq!(destroyed(), 3);
    drop(context);
    expect_clean(&sim);
}
