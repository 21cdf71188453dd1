//! Private pools, their sources and their checkpoints.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null, null_mut, with_exposed_provenance_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_mem_torch::abi::*;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Event, Stream};

use super::support::*;

unsafe extern "C" fn of_stream(data: *mut c_void, stream: *mut c_void) -> bool {
    data == stream
}

#[test]
fn a_filter_sees_the_handle_of_the_stream() {
    let _turn = turn();
    let (wanted, other) = (new_stream().as_raw(), new_stream().as_raw());
    let pool = user_pool();
    // SAFETY: no source.
    succeed(unsafe { cuda_mem_torch_create_or_incref_pool(0, pool, null()) });
    // SAFETY: the function may be called with the handle.
    succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, Some(of_stream), wanted, None) });
    let (inside, outside) = (allocate(3 * MIB, wanted), allocate(3 * MIB, other));
    succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
    let mut count = 0;
    // SAFETY: a place.
    succeed(unsafe { cuda_mem_torch_pool_use_count(0, pool, &mut count) });
    assert_eq!(count, 2);

    let seen = snapshot(pool);
    assert_eq!(seen.segments.len(), 1);
    let segment = seen.segments[0];
    assert_eq!((segment.address, segment.total_size, segment.stream), (inside, 20 << 20, wanted));
    assert!(!segment.is_expandable && segment.pool == pool);
    let sizes: Vec<_> = seen.blocks.iter().map(|block| (block.size, block.allocated)).collect();
    assert_eq!(sizes, [(3 << 20, true), (17 << 20, false)]);

    let live = [inside.cast_const()];
    let mut are = false;
    // SAFETY: one address and a place.
    succeed(unsafe { cuda_mem_torch_check_pool_live_allocations(0, pool, live.as_ptr(), 1, &mut are) });
    assert!(are);
    delete(inside);
    delete(outside);
    succeed(cuda_mem_torch_release_pool(0, pool));
    succeed(cuda_mem_torch_release_pool(0, pool));
    assert_eq!(empty_cache(pool), 20 << 20);
    assert_eq!(cuda_mem_torch_release_pool(0, pool), CUDA_MEM_TORCH_POOL_UNKNOWN);
}

#[test]
fn what_a_pool_reserved_is_told() {
    type Told = Vec<(cuda_mem_torch_pool_id, cuda_mem_torch_stat_array)>;
    unsafe extern "C" fn note(
        data: *mut c_void,
        pool: cuda_mem_torch_pool_id,
        bytes: cuda_mem_torch_stat_array,
    ) {
        // SAFETY: the list that is passed below.
        unsafe { &mut *data.cast::<Told>() }.push((pool, bytes));
    }
    let told = |device| {
        let mut told = Told::new();
        // SAFETY: a list, and a function that may be called with it.
        succeed(unsafe {
            cuda_mem_torch_reserved_by_private_pools(device, (&raw mut told).cast(), Some(note))
        });
        told
    };
    let _turn = turn();
    let (pool, stream) = (user_pool(), new_stream().as_raw());
    // SAFETY: no filter.
    succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
    let block = allocate(3 * MIB, stream);
    succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
    let of = |pool| told(0).into_iter().find(|(id, _)| *id == pool).map(|(_, bytes)| bytes).unwrap();
    assert_eq!((of(pool).all.current, of(pool).large_pool.peak), (20 << 20, 20 << 20));
    delete(block);
    succeed(cuda_mem_torch_release_pool(0, pool));
    assert_eq!(empty_cache(pool), 20 << 20);
    assert_eq!((of(pool).all.current, of(pool).all.freed), (0, 20 << 20));
    // The last device is used by none.
    assert!(told(2).is_empty());
    // SAFETY: nothing is called.
    let refused = unsafe { cuda_mem_torch_reserved_by_private_pools(0, null_mut(), None) };
    assert_eq!(refused, CUDA_MEM_TORCH_INVALID_ARGUMENT);
}

#[test]
fn entries_of_the_history_name_their_pool() {
    static SEEN: Mutex<Vec<(c_int, u64, cuda_mem_torch_pool_id)>> = Mutex::new(Vec::new());
    unsafe extern "C" fn track(_: *mut c_void, entry: *const cuda_mem_torch_trace_entry) {
        // SAFETY: an entry.
        let entry = unsafe { *entry };
        SEEN.lock().unwrap().push((entry.action, entry.address, entry.pool));
    }
    let _turn = turn();
    // SAFETY: a function that may be called.
    succeed(unsafe { cuda_mem_torch_attach_trace_tracker(Some(track), null_mut()) });
    let (stream, pool) = (new_stream().as_raw(), user_pool());
    // SAFETY: no source.
    succeed(unsafe { cuda_mem_torch_create_or_incref_pool(0, pool, null()) });
    // SAFETY: the function may be called with the handle.
    succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, Some(of_stream), stream, None) });
    let inside = allocate(3 * MIB, stream);
    let mut nothing = null_mut();
    // SAFETY: a stream of the device, and a place for an address.
    let code = unsafe { cuda_mem_torch_malloc(0, 1 << 40, stream, &raw mut nothing) };
    assert_eq!(code, CUDA_MEM_TORCH_OUT_OF_MEMORY);
    succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
    let outside = allocate(3 * MIB, stream);
    delete(inside);
    delete(outside);
    succeed(cuda_mem_torch_release_pool(0, pool));
    succeed(cuda_mem_torch_release_pool(0, pool));
    let waited = stats().num_sync_all_streams;
    assert_eq!((empty_cache(pool), stats().num_sync_all_streams), (20 << 20, waited + 1));
    let seen = SEEN.lock().unwrap();
    let actions = |address: *mut c_void, pool| {
        let of = seen.iter().filter(|entry| (entry.1, entry.2) == (address.addr() as u64, pool));
        of.map(|entry| entry.0).collect::<Vec<_>>()
    };
    let (alloc, requested, completed, segment_alloc, segment_free, oom) = (0, 1, 2, 3, 4, 8);
    assert_eq!(seen.iter().filter(|entry| entry.0 == oom).map(|entry| entry.2).collect::<Vec<_>>(), [pool]);
    assert_eq!(actions(inside, pool), [segment_alloc, alloc, requested, completed, segment_free]);
    assert!(actions(inside, NO_POOL).is_empty() && actions(outside, pool).is_empty());
    assert_eq!(
        actions(outside, NO_POOL).into_iter().filter(|action| *action < 3).collect::<Vec<_>>(),
        [0, 1, 2]
    );
}

#[test]
fn what_was_freed_while_a_graph_was_captured_is_there_for_the_next_one() {
    let _turn = turn();
    let (stream, side, pool) = (new_stream(), new_stream().as_raw(), user_pool());
    // SAFETY: streams of the device.
    succeed(unsafe { cuda_mem_torch_see_stream(0, stream.as_raw()) });
    // SAFETY: no source.
    succeed(unsafe { cuda_mem_torch_create_or_incref_pool(0, pool, null()) });
    let mut blocks = Vec::new();
    for _ in 0..2 {
        let wanted = stream.as_raw();
        // SAFETY: the function may be called with the handle.
        succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, Some(of_stream), wanted, None) });
        begin_capture(stream);
        let (block, other) = (allocate(30 * MIB, wanted), allocate(30 * MIB, wanted));
        assert_ne!(block, other);
        // SAFETY: a stream of the device.
        succeed(unsafe { cuda_mem_torch_record_stream(block, 0, side) });
        delete(block);
        let third = allocate(30 * MIB, wanted);
        assert_ne!(third, block, "its use may be of the graph");
        end_capture(stream);
        succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
        delete(other);
        delete(third);
        blocks.push(block);
    }
    let reserved: u64 = snapshot(pool).segments.iter().map(|segment| segment.total_size).sum();
    assert_eq!(reserved, 90 << 20, "the second capture needed nothing new: {blocks:?}");
    for _ in 0..3 {
        succeed(cuda_mem_torch_release_pool(0, pool));
    }
}

#[test]
fn a_block_serves_its_capture_again_if_that_is_asked_for() {
    let _turn = turn();
    let (stream, side) = (new_stream(), new_stream());
    for seen in [stream, side] {
        // SAFETY: streams of the device.
        succeed(unsafe { cuda_mem_torch_see_stream(0, seen.as_raw()) });
    }
    let join = |from: &Stream, to: &Stream| {
        let event = Event::new(from.context()).unwrap();
        from.record(&event).unwrap();
        // SAFETY: nobody else works at the captures of this test, and its graphs are not launched.
        unsafe { to.join_capture(&event) }.unwrap();
    };
    let wanted = stream.as_raw();
    let comes_back = || {
        let pool = user_pool();
        // SAFETY: the function may be called with the handle.
        succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, Some(of_stream), wanted, None) });
        begin_capture(stream);
        let block = allocate(MIB, wanted);
        join(stream, side);
        // SAFETY: a stream of the device.
        succeed(unsafe { cuda_mem_torch_record_stream(block, 0, side.as_raw()) });
        delete(block);
        join(side, stream);
        let next = allocate(MIB, wanted);
        end_capture(stream);
        succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
        delete(next);
        succeed(cuda_mem_torch_release_pool(0, pool));
        next == block
    };
    let set = |text: &CStr| {
        // SAFETY: text; the captures are this thread's.
        succeed(unsafe { cuda_mem_torch_set_settings(text.as_ptr(), null_mut(), None) });
    };
    assert!(!comes_back());
    // SAFETY: the captures are this thread's.
    succeed(unsafe { cuda_mem_torch_set_graph_capture_record_stream_reuse(true) });
    assert!(comes_back());
    set(c"");
    assert!(!comes_back(), "what the text does not name has its default");
    set(c"graph_capture_record_stream_reuse:True");
    assert!(comes_back());
    set(c"graph_capture_record_stream_reuse:False");
    assert!(!comes_back());
}

#[test]
fn a_source_gives_the_segments_and_gets_them_back() {
    static OUT: AtomicUsize = AtomicUsize::new(0);
    static RELEASED: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn alloc(_: *mut c_void, bytes: usize) -> *mut c_void {
        OUT.fetch_add(bytes, Ordering::Relaxed);
        // SAFETY: a size.
        unsafe { cuda_mem_torch_alloc(bytes, 0, null_mut()) }
    }
    unsafe extern "C" fn free(_: *mut c_void, address: *mut c_void, bytes: usize) {
        OUT.fetch_sub(bytes, Ordering::Relaxed);
        // SAFETY: nothing uses it.
        unsafe { cuda_mem_torch_free(address, bytes, 0, null_mut()) };
    }
    unsafe extern "C" fn release(_: *mut c_void) {
        RELEASED.fetch_add(1, Ordering::Relaxed);
    }
    let _turn = turn();
    let stream = new_stream();
    let pool = user_pool();
    let source = cuda_mem_torch_source {
        data: null_mut(),
        alloc: Some(alloc),
        free: Some(free),
        release: Some(release),
    };
    // SAFETY: functions that may be called.
    succeed(unsafe { cuda_mem_torch_create_or_incref_pool(0, pool, &source) });
    // SAFETY: no filter.
    succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
    let block = allocate(MIB, stream.as_raw());
    succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
    assert_eq!(OUT.load(Ordering::Relaxed), 2 * MIB);
    delete(block);
    succeed(cuda_mem_torch_release_pool(0, pool));
    succeed(cuda_mem_torch_release_pool(0, pool));
    stream.synchronize().unwrap();
    assert_eq!(empty_cache(pool), 2 * MIB);
    assert_eq!((OUT.load(Ordering::Relaxed), RELEASED.load(Ordering::Relaxed)), (0, 1));

    let lacking = cuda_mem_torch_source { free: None, ..source };
    // SAFETY: refused before it is called.
    let code = unsafe { cuda_mem_torch_create_or_incref_pool(0, user_pool(), &lacking) };
    assert_eq!(code, CUDA_MEM_TORCH_INVALID_ARGUMENT);
}

#[test]
fn a_source_that_fails_is_asked_once_and_its_words_are_told() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn fail(data: *mut c_void, _: usize) -> *mut c_void {
        ASKED.fetch_add(1, Ordering::Relaxed);
        if !data.is_null() {
            // SAFETY: text.
            unsafe { cuda_mem_torch_source_failed(c"the network is down".as_ptr()) };
        }
        null_mut()
    }
    unsafe extern "C" fn free(_: *mut c_void, _: *mut c_void, _: usize) {}
    let _turn = turn();
    let stream = new_stream().as_raw();
    let ask = |data| {
        let pool = user_pool();
        let source = cuda_mem_torch_source { data, alloc: Some(fail), free: Some(free), release: None };
        // SAFETY: functions that may be called.
        succeed(unsafe { cuda_mem_torch_create_or_incref_pool(0, pool, &source) });
        // SAFETY: no filter.
        succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
        let (mut block, asked) = (null_mut(), ASKED.load(Ordering::Relaxed));
        // SAFETY: a stream of the device and a place.
        let code = unsafe { cuda_mem_torch_malloc(0, MIB, stream, &mut block) };
        succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
        succeed(cuda_mem_torch_release_pool(0, pool));
        succeed(cuda_mem_torch_release_pool(0, pool));
        (code, ASKED.load(Ordering::Relaxed) - asked)
    };
    // Said outside of a source it is about none.
    // SAFETY: text.
    unsafe { cuda_mem_torch_source_failed(c"nobody asked".as_ptr()) };
    let (code, asked) = ask(null_mut());
    assert!(code == CUDA_MEM_TORCH_OUT_OF_MEMORY && asked > 1, "{code}, {asked}");
    // The device has enough, so that nobody is told to free nothing.
    let told = message();
    let [_, helps] = told.split("What would help: ").collect::<Vec<_>>()[..] else { panic!("once: {told}") };
    assert!(helps.contains("outside of the private pool") && !helps.contains(" 0 bytes"), "{helps}");
    let failed = ask(std::ptr::without_provenance_mut(1));
    assert_eq!(failed, (CUDA_MEM_TORCH_SOURCE_FAILED, 1));
    assert!(message().contains("the network is down"), "{}", message());
}

#[test]
fn segments_are_numbered_as_they_came() {
    unsafe extern "C" fn from_above(data: *mut c_void, bytes: usize) -> *mut c_void {
        // SAFETY: what is passed below.
        let top = unsafe { &*data.cast::<AtomicUsize>() };
        with_exposed_provenance_mut(top.fetch_sub(bytes, Ordering::Relaxed) - bytes)
    }
    unsafe extern "C" fn keep(_: *mut c_void, _: *mut c_void, _: usize) {}
    let _turn = turn();
    let (stream, pool) = (new_stream().as_raw(), user_pool());
    // SAFETY: a size.
    let arena = unsafe { cuda_mem_torch_alloc(60 * MIB, 0, null_mut()) };
    let top = AtomicUsize::new(arena.expose_provenance() + 60 * MIB);
    let source = cuda_mem_torch_source {
        data: (&raw const top).cast_mut().cast(),
        alloc: Some(from_above),
        free: Some(keep),
        release: None,
    };
    // SAFETY: functions that may be called until the pool is gone.
    succeed(unsafe { cuda_mem_torch_create_or_incref_pool(0, pool, &source) });
    // SAFETY: no filter.
    succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
    let blocks = [20 * MIB, 1000, 20 * MIB].map(|bytes| allocate(bytes, stream));
    succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
    let in_default = allocate(MIB, stream);
    let serials: Vec<_> = snapshot(pool).segments.iter().map(|segment| segment.serial).collect();
    assert_eq!(serials, [2, 1, 0], "by their addresses the last came first");
    let others: Vec<_> =
        snapshot(NO_POOL).segments.into_iter().filter(|found| found.pool == NO_POOL).collect();
    assert!(!others.is_empty() && others.iter().all(|segment| segment.serial == -1), "{others:?}");
    blocks.into_iter().chain([in_default]).for_each(delete);
    succeed(cuda_mem_torch_release_pool(0, pool));
    succeed(cuda_mem_torch_release_pool(0, pool));
    succeed(cuda_mem_torch_synchronize(0));
    empty_cache(pool);
    // SAFETY: nothing uses it.
    unsafe { cuda_mem_torch_free(arena, 60 * MIB, 0, null_mut()) };
}

#[test]
fn a_filter_is_released_also_when_it_is_refused() {
    static RELEASED: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn release(_: *mut c_void) {
        RELEASED.fetch_add(1, Ordering::Relaxed);
    }
    let _turn = turn();
    // SAFETY: the function may be called.
    let code = unsafe { cuda_mem_torch_begin_allocate_to_pool(0, NO_POOL, None, null_mut(), Some(release)) };
    assert_eq!((code, RELEASED.load(Ordering::Relaxed)), (CUDA_MEM_TORCH_POOL, 1));
}

#[test]
fn a_refusal_says_how_the_pool_is() {
    let _turn = turn();
    let (capturing, pool) = (new_stream(), user_pool());
    // SAFETY: a stream of the device.
    succeed(unsafe { cuda_mem_torch_see_stream(0, capturing.as_raw()) });
    // SAFETY: no filter.
    let begin = || unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) };
    let checkpoint = || {
        let mut checkpoint = null_mut();
        // SAFETY: a place.
        unsafe { cuda_mem_torch_checkpoint_pool(0, pool, &mut checkpoint) }
    };
    assert_eq!(checkpoint(), CUDA_MEM_TORCH_POOL_UNKNOWN);
    succeed(begin());
    assert_eq!(begin(), CUDA_MEM_TORCH_POOL_BEGUN);
    let block = allocate(MIB, new_stream().as_raw());
    succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
    assert_eq!(cuda_mem_torch_end_allocate_to_pool(0, pool), CUDA_MEM_TORCH_POOL_NOT_BEGUN);
    begin_capture(capturing);
    // SAFETY: a stream of the device.
    succeed(unsafe { cuda_mem_torch_record_stream(block, 0, capturing.as_raw()) });
    delete(block);
    assert_eq!(checkpoint(), CUDA_MEM_TORCH_POOL_PENDING);
    end_capture(capturing);
    succeed(cuda_mem_torch_release_pool(0, pool));
    assert_eq!(cuda_mem_torch_release_pool(0, pool), CUDA_MEM_TORCH_POOL_RELEASED);
    succeed(cuda_mem_torch_synchronize(0));
    empty_cache(pool);
}

#[test]
fn a_checkpoint_brings_the_layout_back() {
    unsafe extern "C" fn note(data: *mut c_void, address: *mut c_void) {
        // SAFETY: the list that is passed below.
        unsafe { (*data.cast::<Vec<usize>>()).push(address.addr()) };
    }
    unsafe extern "C" fn ignore(_: *mut c_void, _: *mut c_void) {}
    let _turn = turn();
    let stream = new_stream().as_raw();
    let pool = user_pool();
    // SAFETY: no filter.
    succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
    let first = allocate(2 * MIB, stream);
    let mut checkpoint = null_mut();
    // SAFETY: a place.
    succeed(unsafe { cuda_mem_torch_checkpoint_pool(0, pool, &mut checkpoint) });
    let second = allocate(2 * MIB, stream);
    assert_ne!(first, second);
    let mut allocated: Vec<usize> = Vec::new();
    let data = (&raw mut allocated).cast();
    // SAFETY: nothing uses the blocks; functions that may be called.
    succeed(unsafe { cuda_mem_torch_restore_pool(0, checkpoint, data, Some(ignore), Some(note)) });
    assert_eq!(allocated, [first.addr()]);
    // SAFETY: made above.
    unsafe { cuda_mem_torch_free_checkpoint(checkpoint) };
    // SAFETY: freed by the restoring.
    assert_eq!(unsafe { cuda_mem_torch_delete(second) }, CUDA_MEM_TORCH_NOT_OURS);
    delete(first);
    succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
    succeed(cuda_mem_torch_release_pool(0, pool));
}
