//! Blocks, their streams and their figures; the names that PyTorch loads as they are.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use cuda_mem_torch::abi::*;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUresult;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{DeviceBuffer, Event, Stream};

use super::gate::Gate;
use super::support::*;

#[test]
fn an_emptied_cache_counts_its_wait_for_streams_and_ends_no_capture() {
    let _turn = turn();
    let stream = new_stream();
    let waited = || {
        let mut stats = cuda_mem_torch_device_stats::default();
        // SAFETY: a place.
        succeed(unsafe { cuda_mem_torch_stats(0, &mut stats) });
        stats.num_sync_all_streams
    };
    delete(allocate(MIB, stream.as_raw()));
    succeed(cuda_mem_torch_reset_accumulated_stats(0));
    assert_eq!(waited(), 0);
    empty_cache(NO_POOL);
    // A capture that begins meanwhile, in whichever thread, goes on.
    let asked = calls(|| _ = empty_cache(NO_POOL));
    assert!(!asked.iter().any(|call| call.starts_with("cuCtxSynchronize")), "{asked:?}");
    assert_eq!(waited(), 2);
    begin_capture(stream);
    empty_cache(NO_POOL);
    end_capture(stream);
    assert_eq!(waited(), 3, "for the other streams");
    empty_cache(user_pool());
    assert_eq!(waited(), 3, "nothing was waited for");
    succeed(cuda_mem_torch_reset_accumulated_stats(0));
    assert_eq!(waited(), 0);
}

#[test]
fn a_block_comes_back_to_its_stream() {
    let _turn = turn();
    let stream = new_stream().as_raw();
    let before = stats();
    let block = allocate(3 * MIB, stream);
    assert_eq!(block.addr() % 512, 0);
    assert_eq!(cuda_mem_torch_device_of(block), 0);
    let now = stats();
    let held = now.allocated_bytes.all.current - before.allocated_bytes.all.current;
    assert_eq!(held, 3 << 20);
    assert_eq!(now.allocation.large_pool.current - before.allocation.large_pool.current, 1);
    assert!(now.reserved_bytes.all.current >= 3 << 20);

    let (mut base, mut bytes) = (null_mut(), 0);
    // SAFETY: two places.
    succeed(unsafe { cuda_mem_torch_base_allocation(block, &mut base, &mut bytes) });
    assert!(base <= block && base.addr() + bytes >= block.addr() + 3 * MIB);

    delete(block);
    assert_eq!(allocate(3 * MIB, stream), block);
    delete(block);
    assert_eq!(stats().allocated_bytes.all.current, before.allocated_bytes.all.current);
    assert!(allocate(0, stream).is_null());
    delete(null_mut());
}

#[test]
fn a_recorded_stream_keeps_a_block_away() {
    let _turn = turn();
    let (stream, other) = (new_stream(), new_stream());
    let block = allocate(5 * MIB, stream.as_raw());
    // SAFETY: a live stream.
    succeed(unsafe { cuda_mem_torch_record_stream(block, 0, other.as_raw()) });
    let before = stats();
    delete(block);
    let freed = stats();
    assert_eq!(before.allocated_bytes.all.current - freed.allocated_bytes.all.current, 5 << 20);
    assert_eq!(before.active_bytes.all.current, freed.active_bytes.all.current);
    other.synchronize().unwrap();
    empty_cache(NO_POOL);
    assert_eq!(before.active_bytes.all.current - stats().active_bytes.all.current, 5 << 20);
}

#[test]
fn what_is_not_ours_is_said_to_be() {
    let _turn = turn();
    let mut host = 0u64;
    let address = (&raw mut host).cast::<c_void>();
    assert_eq!(cuda_mem_torch_device_of(address), -1);
    // SAFETY: not a block.
    assert_eq!(unsafe { cuda_mem_torch_delete(address) }, CUDA_MEM_TORCH_NOT_OURS);
    let block = allocate(MIB, null_mut());
    delete(block);
    // SAFETY: not a block any more.
    assert_eq!(unsafe { cuda_mem_torch_delete(block) }, CUDA_MEM_TORCH_NOT_OURS);
    let before = stats();
    // SAFETY: no place, which is found out.
    let code = unsafe { cuda_mem_torch_malloc(0, MIB, null_mut(), null_mut()) };
    assert_eq!(stats(), before, "nothing was allocated");
    assert_eq!((code, message().as_str()), (CUDA_MEM_TORCH_INVALID_ARGUMENT, "address is null"));
    let mut block = null_mut();
    // SAFETY: a place.
    let code = unsafe { cuda_mem_torch_malloc(63, MIB, null_mut(), &mut block) };
    assert_eq!(code, CUDA_MEM_TORCH_INVALID_ARGUMENT);
    assert!(message().contains("the device is 63"), "{}", message());
}

#[test]
fn a_lack_of_memory_is_told_in_pytorchs_words() {
    static OBSERVED: AtomicUsize = AtomicUsize::new(0);
    static RECLAIMED: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn observe(_: *mut c_void, device: i64, requested: usize, total: usize, free: usize) {
        assert!(device == 0 && total.max(free) > 0);
        OBSERVED.store(requested, Ordering::Relaxed);
    }
    unsafe extern "C" fn reclaim(_: *mut c_void, requested: usize) -> bool {
        RECLAIMED.store(requested, Ordering::Relaxed);
        false
    }
    let _turn = turn();
    // SAFETY: functions that may be called at any time.
    succeed(unsafe { cuda_mem_torch_attach_oom_observer(Some(observe), null_mut()) });
    // SAFETY: as above.
    succeed(unsafe { cuda_mem_torch_attach_oom_reclaimer(Some(reclaim), null_mut()) });
    let mut block = null_mut();
    // SAFETY: a place.
    let code = unsafe { cuda_mem_torch_malloc(0, 32 << 40, null_mut(), &mut block) };
    assert_eq!(code, CUDA_MEM_TORCH_OUT_OF_MEMORY);
    let text = message();
    assert!(
        text.starts_with(
            "CUDA out of memory. Tried to allocate 32768.00 GiB. GPU 0 has a total capacity of "
        ),
        "{text}"
    );
    assert_eq!(OBSERVED.load(Ordering::Relaxed), 32 << 40);
    // Nothing helps with more than there is; with as much as there is, something might.
    let total = driver().device(0).unwrap().total_memory().unwrap();
    let held = allocate(MIB, null_mut());
    // SAFETY: a place.
    let code = unsafe { cuda_mem_torch_malloc(0, total, null_mut(), &mut block) };
    assert_eq!((code, RECLAIMED.load(Ordering::Relaxed)), (CUDA_MEM_TORCH_OUT_OF_MEMORY, total));
    delete(held);
    assert!(stats().num_ooms >= 1);
    // Plain memory of other tests comes from an allocator of its own.
    empty_cache(NO_POOL);
}

#[test]
fn caching_can_be_switched_off() {
    let _turn = turn();
    cuda_mem_torch_enable(false);
    let before = stats();
    let block = allocate(MIB, null_mut());
    assert_eq!(stats(), before);
    assert_eq!((cuda_mem_torch_device_of(block), cuda_mem_torch_uncached_blocks()), (0, 1));
    cuda_mem_torch_enable(true);
    delete(block);
    assert_eq!((cuda_mem_torch_device_of(block), cuda_mem_torch_uncached_blocks()), (-1, 0));
}

#[test]
fn what_another_thread_changes_ends_what_a_thread_remembers() {
    let _turn = turn();
    let stream = new_stream();
    let asked = || calls(|| delete(allocate(MIB, stream.as_raw())));
    asked();
    assert!(asked().is_empty(), "the block is kept, and the stream is known");
    thread::scope(|scope| scope.spawn(|| cuda_mem_torch_enable(false)).join()).unwrap();
    let uncached = asked();
    assert!(uncached.iter().any(|call| call.starts_with("cuMemAlloc")), "{uncached:?}");
    thread::scope(|scope| scope.spawn(|| cuda_mem_torch_enable(true)).join()).unwrap();
    assert!(asked().is_empty(), "as before");
    // SAFETY: no work is given to it any more.
    let forget = || unsafe { cuda_mem_torch_forget_stream(0, stream.as_raw()) };
    thread::scope(|scope| scope.spawn(move || succeed(forget())).join()).unwrap();
    let looked_up = asked();
    assert!(looked_up.contains(&"cuStreamGetId"), "{looked_up:?}");
    assert!(asked().is_empty());
}

#[test]
fn a_block_counts_with_its_bytes() {
    let _turn = turn();
    let (stream, pool) = (new_stream().as_raw(), user_pool());
    let bytes_of = |block: *mut c_void| {
        let mut bytes = 0;
        // SAFETY: a place.
        succeed(unsafe { cuda_mem_torch_block_bytes(block, &mut bytes) });
        i64::try_from(bytes).unwrap()
    };
    let counted = || {
        let blocks = [1000, 3 * MIB + 1].map(|bytes| {
            let before = stats().allocated_bytes.all.current;
            let block = allocate(bytes, stream);
            let more = stats().allocated_bytes.all.current - before;
            assert_eq!(bytes_of(block), more);
            (block, more)
        });
        blocks.into_iter().for_each(|(block, _)| delete(block));
        blocks.map(|(_, more)| more)
    };
    let rounded = [1024, (3 << 20) + 512];
    assert_eq!(counted(), rounded);
    // SAFETY: no filter.
    succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
    assert_eq!(counted(), rounded);
    succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
    succeed(cuda_mem_torch_release_pool(0, pool));
    cuda_mem_torch_enable(false);
    assert_eq!(counted(), [0, 0]);
    cuda_mem_torch_enable(true);
    let mut bytes = 0;
    // SAFETY: a place.
    let code = unsafe { cuda_mem_torch_block_bytes((&raw const bytes).cast(), &mut bytes) };
    assert_eq!(code, CUDA_MEM_TORCH_NOT_OURS);
}

#[test]
fn a_stream_that_was_forgotten_may_be_destroyed() {
    let _turn = turn();
    let (stream, other) = (Stream::new(&context()).unwrap(), new_stream());
    // SAFETY: no work is given to it any more.
    let forget = || unsafe { cuda_mem_torch_forget_stream(0, stream.as_raw()) };
    for stream in [&stream, other] {
        delete(allocate(3 * MIB, stream.as_raw()));
    }
    begin_capture(&stream);
    assert_eq!(forget(), CUDA_MEM_TORCH_CAPTURING);
    assert_eq!(cuda_mem_torch_synchronize(0), CUDA_MEM_TORCH_CAPTURING, "it is still asked");
    end_capture(&stream);
    succeed(forget());
    succeed(forget());
    let id = stream.id().as_raw();
    drop(stream);
    let asked = calls(|| {
        delete(allocate(5 * MIB, other.as_raw()));
        empty_cache(NO_POOL);
        succeed(cuda_mem_torch_synchronize(0));
    });
    assert!(asked.contains(&"cuStreamIsCapturing"), "of the other stream: {asked:?}");
    let of_it: Vec<_> = sim()
        .log()
        .records()
        .into_iter()
        .filter(|record| record.stream == id || record.result != CUresult::CUDA_SUCCESS)
        .collect();
    assert!(of_it.is_empty(), "{of_it:?}");
}

#[test]
fn a_block_comes_back_behind_the_work_of_a_stream_that_was_forgotten() {
    let _turn = turn();
    let (stream, held, own) = (Stream::new(&context()).unwrap(), new_stream(), new_stream());
    let block = allocate(3 * MIB, own.as_raw());
    // SAFETY: a live stream.
    succeed(unsafe { cuda_mem_torch_record_stream(block, 0, stream.as_raw()) });
    let (gate, behind) = (Gate::before(held), Event::new(&context()).unwrap());
    held.record(&behind).unwrap();
    stream.wait(&behind).unwrap();
    // SAFETY: no work is given to it any more.
    succeed(unsafe { cuda_mem_torch_forget_stream(0, stream.as_raw()) });
    drop(stream);
    delete(block);
    let meanwhile = allocate(3 * MIB, own.as_raw());
    assert_ne!(meanwhile, block, "it is in use");
    gate.open();
    context().synchronize().unwrap();
    let again = allocate(3 * MIB, own.as_raw());
    assert_eq!(again, block);
    [meanwhile, again].into_iter().for_each(delete);
}

#[test]
fn blocks_are_found_on_whichever_device_they_are() {
    let _turn = turn();
    let here = allocate(MIB, null_mut());
    let mut there = null_mut();
    // SAFETY: the default stream and a place.
    succeed(unsafe { cuda_mem_torch_malloc(1, MIB, null_mut(), &mut there) });
    assert_eq!([here, there].map(|block| cuda_mem_torch_device_of(block)), [0, 1]);
    let told = [here.expose_provenance(), there.expose_provenance()];
    thread::spawn(move || told.map(|block| delete(std::ptr::with_exposed_provenance_mut(block))))
        .join()
        .unwrap();
    assert_eq!([here, there].map(|block| cuda_mem_torch_device_of(block)), [-1, -1]);
    assert_eq!(allocate(MIB, null_mut()), here);
    delete(here);
}

#[test]
fn the_fraction_limits() {
    let _turn = turn();
    empty_cache(NO_POOL);
    succeed(cuda_mem_torch_set_memory_fraction(0, 0.0));
    let mut block = null_mut();
    // SAFETY: a place.
    let code = unsafe { cuda_mem_torch_malloc(0, 64 * MIB, new_stream().as_raw(), &mut block) };
    succeed(cuda_mem_torch_set_memory_fraction(0, 1.0));
    assert_eq!(code, CUDA_MEM_TORCH_OUT_OF_MEMORY);
    let mut fraction = 0.0;
    // SAFETY: a place.
    succeed(unsafe { cuda_mem_torch_memory_fraction(0, &mut fraction) });
    assert_eq!(fraction, 1.0);
    assert_eq!(cuda_mem_torch_set_memory_fraction(0, 1.5), CUDA_MEM_TORCH_INVALID_ARGUMENT);
    let mut largest = 0;
    // SAFETY: a place.
    succeed(unsafe { cuda_mem_torch_cache_info(0, &mut largest) });
    assert!(largest > 0);
}

#[test]
fn plain_memory_is_used_again_behind_a_wait() {
    let _turn = turn();
    // SAFETY: a size.
    let block = unsafe { cuda_mem_torch_alloc(20 * MIB, 0, null_mut()) };
    assert!(!block.is_null());
    let mut size = 0;
    // SAFETY: a place.
    let base = unsafe { cuda_mem_torch_plain_base_alloc(block, &mut size) };
    assert!(base <= block && size >= 20 * MIB);
    // SAFETY: a live stream.
    unsafe { cuda_mem_torch_plain_record_stream(block, new_stream().as_raw()) };
    // SAFETY: nothing uses it.
    unsafe { cuda_mem_torch_free(block, 20 * MIB, 0, null_mut()) };
    // SAFETY: a size.
    let again = unsafe { cuda_mem_torch_alloc(20 * MIB, 0, null_mut()) };
    assert_eq!(again, block, "what was parked serves, once the context was waited for");
    // SAFETY: nothing uses it.
    unsafe { cuda_mem_torch_free(again, 20 * MIB, 0, null_mut()) };
    cuda_mem_torch_plain_reset();
    // SAFETY: a size; there is not as much.
    assert!(unsafe { cuda_mem_torch_alloc(32 << 40, 0, null_mut()) }.is_null());
    // SAFETY: no block, which is found out.
    assert_eq!(unsafe { cuda_mem_torch_plain_base_alloc(null_mut(), null_mut()) }, null_mut());
}

#[test]
fn plain_memory_is_waited_for_when_as_much_is_asked_for_or_there_is_no_other() {
    let _turn = turn();
    let allocate = |bytes| {
        let mut block = null_mut();
        // SAFETY: a size.
        let waited = waits(|| block = unsafe { cuda_mem_torch_alloc(bytes, 0, null_mut()) });
        assert!(!block.is_null());
        (waited, block)
    };
    let free = |(_, block), bytes| {
        // SAFETY: nothing uses it.
        unsafe { cuda_mem_torch_free(block, bytes, 0, null_mut()) };
    };
    free(allocate(20 * MIB), 20 * MIB);
    let larger = allocate(30 * MIB);
    assert_eq!(larger.0, 0, "less is parked");
    let smaller = allocate(16 * MIB);
    assert_eq!(smaller.0, 1);
    free(larger, 30 * MIB);
    free(smaller, 16 * MIB);
    cuda_mem_torch_plain_reset();
    let total = context_of(0).memory_info().unwrap().total;
    cuda_mem_torch_plain_memory_fraction((64 * MIB) as f64 / total as f64, 0);
    free(allocate(40 * MIB), 40 * MIB);
    let next = allocate(50 * MIB);
    assert_eq!(next.0, 1, "no more may be held");
    free(next, 50 * MIB);
    cuda_mem_torch_plain_memory_fraction(1.0, 0);
    cuda_mem_torch_plain_reset();
}

/// The hook that hears of releases which fail asks for plain memory, too.
#[test]
fn who_hears_of_a_failed_wait_may_ask_for_plain_memory() {
    const LIMIT: Duration = Duration::from_secs(20);
    let _turn = turn();
    let (done, ended) = mpsc::channel();
    let asks = thread::spawn(move || {
        let take_and_give_back = || {
            // SAFETY: a size.
            let block = unsafe { cuda_mem_torch_alloc(MIB, 0, null_mut()) };
            // SAFETY: nothing uses it.
            unsafe { cuda_mem_torch_free(block, MIB, 0, null_mut()) };
            block.is_null()
        };
        assert!(!take_and_give_back(), "what is parked is waited for below");
        let told = mpsc::channel();
        let tell = Mutex::new(told.0);
        driver().on_release_failure(move |_| tell.lock().unwrap().send(take_and_give_back()).unwrap());
        // The byte by which the device is waited for stays, as often as the driver is asked to take it.
        (0..4).for_each(|_| sim().fail_call("cuMemFreeHost", 1, CUresult::CUDA_ERROR_UNKNOWN));
        take_and_give_back();
        sim().clear_faults();
        driver().on_release_failure(|_| {});
        assert!(!told.1.recv().unwrap(), "there was memory");
        done.send(()).unwrap();
    });
    assert_ne!(ended.recv_timeout(LIMIT), Err(mpsc::RecvTimeoutError::Timeout), "it waits for ever");
    asks.join().unwrap();
    cuda_mem_torch_plain_reset();
}

/// As with every allocation: in a process that has only these, nothing else releases it.
#[test]
fn plain_functions_release_what_was_put_off() {
    let _turn = turn();
    let allocates = || {
        // SAFETY: a size.
        let block = unsafe { cuda_mem_torch_alloc(MIB, 0, null_mut()) };
        // SAFETY: nothing uses it.
        unsafe { cuda_mem_torch_free(block, MIB, 0, null_mut()) };
    };
    let functions: [fn(); 2] = [allocates, || cuda_mem_torch_plain_reset()];
    let stream = new_stream();
    for function in functions {
        let buffer = DeviceBuffer::<u8>::uninit(stream, 100).unwrap();
        begin_capture(stream);
        // The driver takes it when the capture has ended.
        drop(buffer);
        end_capture(stream);
        let asked = calls(function);
        assert!(asked.iter().any(|call| call.starts_with("cuMemFreeAsync")), "{asked:?}");
    }
}

/// Another thread allocates on another device while one waits for its own.
#[test]
fn plain_memory_of_one_device_waits_for_no_other() {
    let _turn = turn();
    // SAFETY: a size.
    let block = unsafe { cuda_mem_torch_alloc(20 * MIB, 0, null_mut()) };
    // SAFETY: nothing uses it.
    unsafe { cuda_mem_torch_free(block, 20 * MIB, 0, null_mut()) };
    let gate = Gate::before(new_stream());
    sim().log().clear();
    sim().record(true);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| cuda_mem_torch_plain_reset());
        // A call is logged as it returns, and the one that waits does not: behind the event that it waits for it is on its way.
        while sim().log().count("cuEventRecord") == 0 {
            thread::yield_now();
        }
        let (tell, told) = mpsc::channel();
        scope.spawn(move || {
            // SAFETY: a size, and the default stream.
            let block = unsafe { cuda_mem_torch_alloc(MIB, 1, null_mut()) };
            let address = block.addr();
            // SAFETY: nothing uses it.
            unsafe { cuda_mem_torch_free(block, MIB, 1, null_mut()) };
            let _ = tell.send(address);
        });
        // It comes when the gate is open, if that waits for the other.
        let had = told.recv_timeout(Duration::from_secs(60));
        assert!(!waiting.is_finished());
        gate.open();
        assert_ne!(had, Ok(0));
        had.unwrap();
    });
    sim().record(false);
    cuda_mem_torch_plain_reset();
}

#[test]
fn plain_memory_leaves_the_asking_streams_capture_alone() {
    let _turn = turn();
    let stream = new_stream();
    // SAFETY: a live stream.
    let block = unsafe { cuda_mem_torch_alloc(24 * MIB, 0, stream.as_raw()) };
    // SAFETY: nothing uses it.
    unsafe { cuda_mem_torch_free(block, 24 * MIB, 0, stream.as_raw()) };
    begin_capture(stream);
    // SAFETY: a live stream.
    let during = unsafe { cuda_mem_torch_alloc(24 * MIB, 0, stream.as_raw()) };
    end_capture(stream);
    assert!(!during.is_null());
    assert_ne!(during, block, "it is parked yet");
    // SAFETY: a live stream.
    let after = unsafe { cuda_mem_torch_alloc(24 * MIB, 0, stream.as_raw()) };
    assert_eq!(after, block);
    for block in [during, after] {
        // SAFETY: nothing uses it.
        unsafe { cuda_mem_torch_free(block, 24 * MIB, 0, stream.as_raw()) };
    }
    cuda_mem_torch_plain_reset();
}

#[test]
fn a_known_stream_that_captures_is_not_disturbed() {
    let _turn = turn();
    let stream = new_stream();
    // SAFETY: a live stream.
    succeed(unsafe { cuda_mem_torch_see_stream(0, stream.as_raw()) });
    cuda_mem_torch_enable(false);
    let uncached = allocate(MIB, null_mut());
    cuda_mem_torch_enable(true);
    // SAFETY: the default stream.
    let plain = unsafe { cuda_mem_torch_alloc(MIB, 0, null_mut()) };
    // SAFETY: nothing uses it.
    unsafe { cuda_mem_torch_free(plain, MIB, 0, null_mut()) };
    begin_capture(stream);
    let during = calls(|| delete(uncached));
    assert_eq!(cuda_mem_torch_uncached_blocks(), 1);
    // SAFETY: freed above, and not anybody else's since.
    let again = unsafe { cuda_mem_torch_delete(uncached) };
    empty_cache(NO_POOL);
    cuda_mem_torch_plain_reset();
    end_capture(stream);
    assert!(during.iter().all(|call| !call.starts_with("cuMemFree")), "{during:?}");
    assert_eq!((again, cuda_mem_torch_device_of(uncached)), (CUDA_MEM_TORCH_NOT_OURS, -1));
    let after = calls(|| {
        empty_cache(NO_POOL);
    });
    assert!(after.iter().any(|call| call.starts_with("cuMemFree")), "the capture is over: {after:?}");
    cuda_mem_torch_plain_reset();
}

#[test]
fn uncached_memory_that_a_capture_kept_goes_with_the_next_call() {
    let _turn = turn();
    let stream = new_stream();
    // SAFETY: a live stream.
    succeed(unsafe { cuda_mem_torch_see_stream(0, stream.as_raw()) });
    cuda_mem_torch_enable(false);
    let freed = |what: &dyn Fn()| {
        let block = allocate(MIB, null_mut());
        begin_capture(stream);
        delete(block);
        end_capture(stream);
        calls(what).iter().filter(|call| **call == "cuMemFree").count()
    };
    let other = allocate(MIB, null_mut());
    assert_eq!(freed(&|| delete(other)), 2);
    let next = std::cell::Cell::new(null_mut());
    assert_eq!(freed(&|| next.set(allocate(MIB, null_mut()))), 1);
    delete(next.get());
    cuda_mem_torch_enable(true);
}

#[test]
fn without_caching_a_stream_that_captures_gets_no_memory() {
    let _turn = turn();
    let stream = new_stream();
    // SAFETY: a live stream.
    succeed(unsafe { cuda_mem_torch_see_stream(0, stream.as_raw()) });
    cuda_mem_torch_enable(false);
    begin_capture(stream);
    let mut block = null_mut();
    // SAFETY: a live stream and a place.
    let code = unsafe { cuda_mem_torch_malloc(0, MIB, stream.as_raw(), &mut block) };
    end_capture(stream);
    assert_eq!(code, CUDA_MEM_TORCH_CAPTURING);
    assert!(message().contains("the graph would outlive the memory"), "{}", message());
    delete(allocate(MIB, stream.as_raw()));
    cuda_mem_torch_enable(true);
}

#[test]
fn streams_of_other_devices_are_waited_for() {
    let _turn = turn();
    let other = Stream::new(&context_of(1)).unwrap();
    // SAFETY: a size.
    let block = unsafe { cuda_mem_torch_alloc(28 * MIB, 0, null_mut()) };
    // SAFETY: a live stream.
    unsafe { cuda_mem_torch_plain_record_stream(block, other.as_raw()) };
    // SAFETY: nothing uses it.
    unsafe { cuda_mem_torch_free(block, 28 * MIB, 0, null_mut()) };
    assert_eq!(waits(|| cuda_mem_torch_plain_reset()), 2, "one for each device");

    cuda_mem_torch_enable(false);
    let (near, far) = (allocate(MIB, null_mut()), allocate(MIB, null_mut()));
    cuda_mem_torch_enable(true);
    // SAFETY: a live stream.
    succeed(unsafe { cuda_mem_torch_record_stream(far, 1, other.as_raw()) });
    assert_eq!(waits(|| delete(near)), 1);
    assert_eq!(waits(|| delete(far)), 2);
}

#[test]
fn a_stream_that_captures_must_have_been_seen() {
    let _turn = turn();
    let (seen, unseen) = (new_stream(), new_stream());
    // SAFETY: a live stream.
    succeed(unsafe { cuda_mem_torch_see_stream(0, seen.as_raw()) });
    let before = stats();
    let pool = user_pool();
    // SAFETY: no filter.
    succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
    for stream in [seen, unseen] {
        begin_capture(stream);
    }
    let block = allocate(MIB, seen.as_raw());
    let mut none = null_mut();
    // SAFETY: a live stream and a place.
    let code = unsafe { cuda_mem_torch_malloc(0, MIB, unseen.as_raw(), &mut none) };
    for stream in [seen, unseen] {
        end_capture(stream);
    }
    assert_eq!(code, CUDA_MEM_TORCH_CAPTURING);
    assert!(message().contains("allocate on it once before the capture begins"), "{}", message());
    delete(block);
    succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
    succeed(cuda_mem_torch_release_pool(0, pool));
    assert_eq!(stats().allocated_bytes.all.current, before.allocated_bytes.all.current);
}

#[test]
fn a_forked_child_is_told_so() {
    static RELEASED: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn count(_: *mut c_void) {
        RELEASED.fetch_add(1, Ordering::Relaxed);
    }
    let _turn = turn();
    let block = allocate(MIB, null_mut());
    // Everything is there already, and a child would get at it.
    let before = stats();
    // SAFETY: no place, which is found out; the child does not take this message for its own.
    assert_ne!(unsafe { cuda_mem_torch_malloc(0, MIB, null_mut(), null_mut()) }, CUDA_MEM_TORCH_OK);
    // SAFETY: the child calls what follows, none of which may take a lock, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut stats = cuda_mem_torch_device_stats::default();
        let source =
            cuda_mem_torch_source { data: null_mut(), alloc: None, free: None, release: Some(count) };
        let told = [
            // SAFETY: a source, and a function that may be called.
            unsafe { cuda_mem_torch_create_or_incref_pool(0, NO_POOL, &source) },
            // SAFETY: a function that may be called.
            unsafe { cuda_mem_torch_begin_allocate_to_pool(0, NO_POOL, None, null_mut(), Some(count)) },
            // SAFETY: a place.
            unsafe { cuda_mem_torch_stats(0, &mut stats) },
            // SAFETY: the default stream.
            unsafe { cuda_mem_torch_see_stream(0, null_mut()) },
            // SAFETY: nothing uses it.
            unsafe { cuda_mem_torch_delete(block) },
            cuda_mem_torch_reset_peak_stats(0),
            cuda_mem_torch_pop_compile_context(),
        ];
        let is_told = told == [CUDA_MEM_TORCH_FORKED; 7] && cuda_mem_torch_device_of(block) == -1;
        // SAFETY: text that stays.
        let text = unsafe { std::ffi::CStr::from_ptr(cuda_mem_torch_last_error()) };
        let is_told = is_told && text.to_bytes().starts_with(b"the process was forked");
        // What was handed over is not lost.
        let well = is_told && cuda_mem_torch_last_driver_code() == 0 && RELEASED.load(Ordering::Relaxed) == 2;
        // SAFETY: the end of the child.
        unsafe { libc::_exit(i32::from(!well)) };
    }
    let mut status = 0;
    // SAFETY: a place for the status of a child that was made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(stats(), before);
    delete(block);
}

#[test]
fn a_block_comes_to_the_address_that_is_named() {
    let _turn = turn();
    let (stream, other) = (new_stream().as_raw(), new_stream().as_raw());
    // SAFETY: streams of the device.
    let at = |bytes: usize, stream: *mut c_void, address: *mut c_void| unsafe {
        cuda_mem_torch_malloc_at(0, bytes, stream, address)
    };
    let block = allocate(8 * MIB, stream);
    assert_eq!(at(8 * MIB, stream, block), CUDA_MEM_TORCH_NOT_OURS);
    delete(block);
    let before = stats();
    let middle = block.wrapping_byte_add(3 * MIB);
    assert_eq!(at(2 * MIB, other, middle), CUDA_MEM_TORCH_NOT_OURS);
    assert_eq!(at(2 * MIB, stream, middle.wrapping_byte_add(1)), CUDA_MEM_TORCH_NOT_OURS);
    assert_eq!(at(2 * MIB, stream, null_mut()), CUDA_MEM_TORCH_NOT_OURS);
    cuda_mem_torch_enable(false);
    assert_eq!(at(2 * MIB, stream, middle), CUDA_MEM_TORCH_NOT_OURS);
    cuda_mem_torch_enable(true);
    assert_eq!(stats(), before);
    succeed(at(0, stream, middle));
    assert_eq!(stats(), before);
    let asked = calls(|| succeed(at(2 * MIB, stream, middle)));
    assert!(!asked.iter().any(|call| call.starts_with("cuMem")), "{asked:?}");
    assert_eq!(cuda_mem_torch_device_of(middle), 0);
    assert_eq!(stats().allocated_bytes.all.current - before.allocated_bytes.all.current, 2 << 20);
    delete(middle);
    // SAFETY: a stream of the device.
    let code = unsafe { cuda_mem_torch_malloc_at(99, MIB, stream, middle) };
    assert_eq!(code, CUDA_MEM_TORCH_INVALID_ARGUMENT);
}

#[test]
fn the_versions_are_told() {
    assert_eq!(cuda_mem_torch_abi_version(), CUDA_MEM_TORCH_ABI_VERSION);
    assert_ne!(cuda_mem_torch_version(), null());
}

/// As after `cudaMalloc`: what asks the driver for the current context right after an allocation found none.
#[test]
fn a_context_is_current_after_an_allocation() {
    let _turn = turn();
    let stream = new_stream().as_raw().addr();
    let current = || {
        let ask = driver().table().cuCtxGetCurrent().unwrap();
        let mut current = null_mut();
        // SAFETY: one handle to write.
        assert_eq!(unsafe { ask(&mut current) }, CUresult::CUDA_SUCCESS);
        current.cast::<c_void>()
    };
    let (before, after) = thread::spawn(move || {
        let before = current().addr();
        let block = allocate(MIB, std::ptr::with_exposed_provenance_mut(stream));
        delete(block);
        (before, current().addr())
    })
    .join()
    .unwrap();
    assert_eq!((before, after), (0, context().as_raw().addr()));
}

#[test]
fn memory_that_is_held_still_stays_behind_its_addresses() {
    let _turn = turn();
    let stream = new_stream().as_raw();
    empty_cache(NO_POOL);
    let hold = |block: *mut c_void, bytes| {
        let mut still = null_mut();
        // SAFETY: a place.
        let code = unsafe { cuda_mem_torch_hold_still(block, bytes, &mut still) };
        (code, still)
    };
    let let_move = |still| {
        // SAFETY: it is let go once.
        succeed(unsafe { cuda_mem_torch_let_move(still) });
    };
    let before = stats().reserved_bytes.all.current;
    let block = allocate(40 * MIB, stream);
    let (code, still) = hold(block, 40 * MIB);
    succeed(code);
    assert!(!still.is_null());
    delete(block);
    empty_cache(NO_POOL);
    let held = stats().reserved_bytes.all.current - before;
    assert!(held >= 40 << 20, "{held} bytes are held of what is registered");
    let_move(still);
    empty_cache(NO_POOL);
    assert!(stats().reserved_bytes.all.current <= before);

    // A part of a block, as a storage of another library's tensor has it.
    let block = allocate(8 * MIB, stream);
    assert_eq!(hold(block, 1 << 40), (CUDA_MEM_TORCH_NOT_OURS, null_mut()), "there is less behind it");
    let (code, still) = hold(block.wrapping_byte_add(4096), 8 * MIB - 4096);
    succeed(code);
    assert!(!still.is_null());
    delete(block);
    empty_cache(NO_POOL);
    let held = stats().reserved_bytes.all.current - before;
    assert!(held >= 8 << 20, "{held} bytes are held of what is registered");
    let_move(still);
    empty_cache(NO_POOL);
    assert!(stats().reserved_bytes.all.current <= before);

    // What never moves needs nothing; what is nobody's is refused.
    let pool = user_pool();
    // SAFETY: no filter.
    succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
    let block = allocate(2 * MIB, stream);
    succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
    assert_eq!(hold(block, 2 * MIB), (CUDA_MEM_TORCH_OK, null_mut()));
    assert_eq!(hold(block, 1 << 40), (CUDA_MEM_TORCH_NOT_OURS, null_mut()));
    let_move(null_mut());
    delete(block);
    succeed(cuda_mem_torch_release_pool(0, pool));
    assert_eq!(hold(null_mut(), 1).0, CUDA_MEM_TORCH_NOT_OURS);
    // SAFETY: no place is an error.
    assert_eq!(unsafe { cuda_mem_torch_hold_still(null(), 1, null_mut()) }, CUDA_MEM_TORCH_INVALID_ARGUMENT);
}
