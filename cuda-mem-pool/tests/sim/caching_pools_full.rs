//! What helps a private pool of `CachingAllocator` that has no memory left, on a small machine.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, DriverError, Stream};
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::history::{HistoryOptions, RecordContext, backtrace};
use cuda_mem_pool::{Error, MempoolId};
use cuda_mem_sim::Sim;

use crate::blocks::{free, routed};
use crate::common::gate::Gate;
use crate::rig::on;

const MIB: usize = 1 << 20;

fn small(test: impl FnOnce(&Sim, &CachingAllocator, &Context, &Stream)) {
    on(Sim::builder().memory(256 << 20), |sim, context| {
        let stream = Stream::new(context).unwrap();
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        test(sim, &allocator, context, &stream);
    });
}

/// A block of a pool that is released at once.
fn released(
    allocator: &CachingAllocator,
    id: MempoolId,
    bytes: usize,
    stream: &Stream,
) -> Result<u64, Error> {
    let block = routed(allocator, id, bytes, stream);
    allocator.release_pool(id).unwrap();
    block
}

#[test]
fn reclaimers_are_asked_for_private_pools_too() {
    small(|_, allocator, _, stream| {
        let spare = Mutex::new(Some(allocator.allocate_by_address(200 * MIB, stream).unwrap()));
        let (asked, told) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (requests, inside) = (Arc::clone(&asked), allocator.clone());
        let reclaimer = allocator.attach_oom_reclaimer(move |bytes| {
            requests.lock().unwrap().push(bytes);
            spare.lock().unwrap().take().is_some_and(|block| {
                free(&inside, block);
                true
            })
        });
        let oom = Arc::clone(&told);
        let observer = allocator.attach_oom_observer(move |_| {
            oom.fetch_add(1, Ordering::SeqCst);
        });
        let block = released(allocator, MempoolId::for_user(), 199 * MIB, stream).unwrap();
        assert_eq!((&*asked.lock().unwrap(), told.load(Ordering::SeqCst)), (&vec![199 * MIB], 0));
        let statistics = allocator.statistics();
        assert_eq!((statistics.num_alloc_retries, statistics.num_ooms), (1, 0));
        // Whoever frees nothing is asked once.
        let refused = released(allocator, MempoolId::for_user(), 100 * MIB, stream).unwrap_err();
        assert!(matches!(refused, Error::DeviceOutOfMemory(_)), "{refused}");
        assert_eq!((asked.lock().unwrap().len(), told.load(Ordering::SeqCst)), (2, 1));
        free(allocator, block);
        // The one has a handle of the allocator.
        assert!(allocator.detach(reclaimer) && allocator.detach(observer));
    });
}

#[test]
fn uses_of_the_default_pools_blocks_are_waited_for() {
    small(|_, allocator, context, stream| {
        // It has no heap.
        let user = Stream::new(context).unwrap();
        let used = allocator.allocate_by_address(200 * MIB, stream).unwrap();
        let gate = Gate::before(&user);
        allocator.record_stream(used, &user).unwrap();
        free(allocator, used);
        let block = thread::scope(|scope| {
            scope.spawn(|| {
                while allocator.statistics().num_sync_all_streams == 0 {
                    thread::yield_now();
                }
                // So that the wait has begun, if there is one.
                thread::sleep(Duration::from_millis(20));
                gate.open();
            });
            released(allocator, MempoolId::for_user(), 200 * MIB, stream)
        });
        free(allocator, block.unwrap());
        assert_eq!(allocator.statistics().num_ooms, 0);
    });
}

#[test]
fn the_default_pool_keeps_what_a_private_one_does_not_need() {
    small(|_, allocator, _, stream| {
        free(allocator, allocator.allocate_by_address(240 * MIB, stream).unwrap());
        stream.synchronize().unwrap();
        let block = released(allocator, MempoolId::for_user(), 20 * MIB, stream).unwrap();
        assert!(allocator.reserved_bytes() > 200 * MIB, "{} bytes", allocator.reserved_bytes());
        free(allocator, block);
    });
}

/// A segment that stays because the driver does not take it keeps what is known of it.
#[test]
fn a_segment_that_is_put_back_keeps_its_stack() {
    small(|sim, allocator, _, stream| {
        allocator.history().start(&HistoryOptions::default().with_frames(RecordContext::All, backtrace));
        let id = MempoolId::for_user();
        let block = released(allocator, id, MIB, stream).unwrap();
        free(allocator, block);
        stream.synchronize().unwrap();
        sim.fail_call("cuMemFree", 1, CUresult::CUDA_ERROR_UNKNOWN);
        allocator.empty_pool_cache(id).unwrap_err();
        let snapshot = allocator.snapshot();
        let segment = snapshot.segments.iter().find(|segment| segment.segment_pool_id == id).unwrap();
        assert!(segment.frames.as_ref().is_some_and(|frames| !frames.is_empty()));
        assert_eq!(allocator.empty_pool_cache(id).unwrap(), 2 * MIB);
    });
}

/// A driver that fails says nothing of whether the block is in use: it is asked again, and if that is in vain it is its error that is told.
#[test]
fn a_wait_before_a_checkpoint_that_fails_says_why() {
    let transient = [&["cuEventQuery"][..], &["cuThreadExchangeStreamCaptureMode"]];
    let transient = transient.map(|functions| (functions, 1, None));
    let lasting = (&["cuEventQuery", "cuEventRecord"][..], 100, Some(CUresult::CUDA_ERROR_UNKNOWN));
    for (functions, times, expected) in transient.into_iter().chain([lasting]) {
        for restores in [false, true] {
            small(|sim, allocator, context, stream| {
                let (id, other) = (MempoolId::for_user(), Stream::new(context).unwrap());
                allocator.create_or_incref_pool(id, None).unwrap();
                let [kept, used] = [(); 2].map(|()| released(allocator, id, MIB, stream).unwrap());
                let checkpoint = allocator.checkpoint_pool(id).unwrap();
                allocator.record_stream(used, &other).unwrap();
                free(allocator, used);
                let fail = |function| {
                    (1..=times).for_each(|nth| sim.fail_call(function, nth, CUresult::CUDA_ERROR_UNKNOWN));
                };
                functions.iter().copied().for_each(fail);
                let done = if restores {
                    // SAFETY: nothing uses any of the blocks, and nobody frees those that are freed here.
                    unsafe { allocator.restore_pool(id, &checkpoint) }.map(drop)
                } else {
                    allocator.checkpoint_pool(id).map(drop)
                };
                assert!(!sim.struck().is_empty(), "{functions:?}");
                sim.clear_faults();
                let code = done.as_ref().err().map(|error| error.driver_error().map(DriverError::code));
                assert_eq!(code, expected.map(Some), "{functions:?}: {done:?}");
                allocator.checkpoint_pool(id).unwrap();
                free(allocator, kept);
            });
        }
    }
}

/// Not at the limit either, where nothing is asked of the driver for memory.
#[test]
fn a_lost_device_is_not_told_of_as_a_full_pool() {
    on(Sim::builder().memory(256 << 20), |sim, context| {
        let options = CachingOptions::default().with_memory_fraction(0.5);
        let allocator = CachingAllocator::new(context, &options).unwrap();
        let (stream, id) = (Stream::new(context).unwrap(), MempoolId::for_user());
        let kept = released(&allocator, id, 80 * MIB, &stream).unwrap();
        free(&allocator, allocator.allocate_by_address(40 * MIB, &stream).unwrap());
        stream.synchronize().unwrap();
        let lost = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
        for call in ["cuEventRecord", "cuEventQuery", "cuStreamQuery", "cuMemUnmap", "cuMemRelease"] {
            (1..=100).for_each(|nth| sim.fail_call(call, nth, lost));
        }
        let refused = released(&allocator, MempoolId::for_user(), 60 * MIB, &stream).unwrap_err();
        sim.clear_faults();
        assert_eq!(refused.driver_error().map(DriverError::code), Some(lost), "{refused}");
        assert_eq!(allocator.statistics().num_ooms, 0);
        free(&allocator, kept);
    });
}
