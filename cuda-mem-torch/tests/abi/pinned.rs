//! Pinned host memory.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use cuda_mem_torch::abi::*;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Stream;

use super::gate::Gate;
use super::support::*;

#[track_caller]
fn pinned(bytes: usize) -> *mut c_void {
    succeed(cuda_mem_torch_pinned_open(0));
    let mut block = null_mut();
    // SAFETY: a place.
    succeed(unsafe { cuda_mem_torch_pinned_malloc(bytes, &mut block) });
    block
}

#[track_caller]
fn free(block: *mut c_void) {
    // SAFETY: used by nothing but the streams that were recorded.
    succeed(unsafe { cuda_mem_torch_pinned_free(block) });
}

#[track_caller]
fn record(block: *mut c_void, stream: &Stream) {
    // SAFETY: a live stream.
    succeed(unsafe { cuda_mem_torch_pinned_record(block, 0, stream.as_raw()) });
}

fn figures() -> cuda_mem_torch_pinned_stats {
    let mut stats = cuda_mem_torch_pinned_stats::default();
    // SAFETY: a place.
    succeed(unsafe { cuda_mem_torch_pinned_statistics(&mut stats) });
    stats
}

#[test]
fn sizes_are_exact_and_a_block_serves_again() {
    let _turn = turn();
    let before = figures().active_bytes.current;
    let first = pinned(5 * MIB);
    assert_eq!(figures().active_bytes.current - before, 5 << 20);
    let mut bytes = 0;
    // SAFETY: a place.
    succeed(unsafe { cuda_mem_torch_pinned_block_bytes(first, &mut bytes) });
    assert_eq!(bytes, 5 * MIB);
    // SAFETY: nothing begins there.
    let inside = unsafe { cuda_mem_torch_pinned_free(first.wrapping_byte_add(256)) };
    assert_eq!(inside, CUDA_MEM_TORCH_NOT_OURS);
    free(first);
    // SAFETY: as above.
    assert_eq!(unsafe { cuda_mem_torch_pinned_free(first) }, CUDA_MEM_TORCH_NOT_OURS);
    let again = pinned(5 * MIB);
    assert_eq!(again, first);
    free(again);
    succeed(cuda_mem_torch_pinned_empty_cache());
    assert_eq!(figures().active_bytes.current, before);
    let mut none = null_mut();
    // SAFETY: a place.
    let refused = unsafe { cuda_mem_torch_pinned_malloc(usize::MAX, &mut none) };
    assert_eq!((refused, cuda_mem_torch_last_driver_code()), (CUDA_MEM_TORCH_DRIVER, 2), "{}", message());
}

#[test]
fn a_block_serves_again_once_its_streams_are_done() {
    let _turn = turn();
    let stream = new_stream();
    let first = pinned(6 * MIB);
    let gate = Gate::before(stream);
    record(first, stream);
    free(first);
    let second = pinned(6 * MIB);
    assert_ne!(second, first);
    gate.open();
    stream.synchronize().unwrap();
    let third = pinned(6 * MIB);
    assert_eq!(third, first);
    free(second);
    free(third);
    let unknown = 0u64;
    // SAFETY: nothing begins there, and the stream lives.
    let code =
        unsafe { cuda_mem_torch_pinned_record((&raw const unknown).cast_mut().cast(), 0, stream.as_raw()) };
    assert_eq!(code, CUDA_MEM_TORCH_NOT_OURS);
}

#[test]
fn a_stream_may_capture_while_it_is_recorded() {
    let _turn = turn();
    let stream = new_stream();
    // SAFETY: a live stream.
    succeed(unsafe { cuda_mem_torch_see_stream(0, stream.as_raw()) });
    let before = figures().active_bytes.current;
    let first = pinned(7 * MIB);
    begin_capture(stream);
    record(first, stream);
    free(first);
    assert_eq!(figures().active_bytes.current - before, 7 << 20, "it is used until the capture ends");
    let second = pinned(7 * MIB);
    assert_ne!(second, first, "it is behind the capture");
    end_capture(stream);
    assert_eq!(figures().active_bytes.current - before, 7 << 20, "nobody has the first");
    let third = pinned(7 * MIB);
    assert_eq!(third, first);
    free(second);
    free(third);
}

static ASKED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn all(_data: *mut c_void, _stream: *mut c_void) -> bool {
    ASKED.fetch_add(1, Ordering::Relaxed);
    true
}

#[test]
fn a_pool_has_memory_of_its_own() {
    let _turn = turn();
    let pool = user_pool();
    free(pinned(4 * MIB));
    // SAFETY: the function may be called with nothing.
    succeed(unsafe { cuda_mem_torch_pinned_begin_allocate_to_pool(pool, Some(all), null_mut(), None) });
    let within = pinned(4 * MIB);
    succeed(cuda_mem_torch_pinned_end_allocate_to_pool(pool));
    assert!(ASKED.load(Ordering::Relaxed) > 0);
    free(within);
    let outside = pinned(4 * MIB);
    assert_ne!(outside, within);
    free(outside);
    succeed(cuda_mem_torch_pinned_release_pool(pool));
    assert_eq!(cuda_mem_torch_pinned_release_pool(pool), CUDA_MEM_TORCH_POOL_UNKNOWN);
}

#[test]
fn large_blocks_are_not_kept_where_that_is_limited() {
    let _turn = turn();
    free(pinned(MIB));
    succeed(cuda_mem_torch_pinned_empty_cache());
    let before = figures().allocated_bytes.current;
    cuda_mem_torch_pinned_set_max_cached_size(8 * MIB);
    free(pinned(9 * MIB));
    assert_eq!(figures().allocated_bytes.current, before);
    free(pinned(8 * MIB));
    assert_eq!(figures().allocated_bytes.current, before + (8 << 20));
    // A stream that is done uses it no more.
    let (stream, large) = (new_stream(), pinned(9 * MIB));
    let held = figures().allocated_bytes.current;
    record(large, stream);
    stream.synchronize().unwrap();
    free(large);
    assert_eq!(figures().allocated_bytes.current, held - (9 << 20));
    // What a graph may use stays, or a stream, and nothing goes in its place.
    let pool = user_pool();
    // SAFETY: the function may be called with nothing.
    succeed(unsafe { cuda_mem_torch_pinned_begin_allocate_to_pool(pool, Some(all), null_mut(), None) });
    let captured = pinned(9 * MIB);
    succeed(cuda_mem_torch_pinned_end_allocate_to_pool(pool));
    begin_capture(stream);
    record(captured, stream);
    end_capture(stream);
    free(captured);
    assert_eq!(figures().allocated_bytes.current, held);
    succeed(cuda_mem_torch_pinned_release_pool(pool));
    stream.synchronize().unwrap();
    let large = pinned(9 * MIB);
    assert_eq!(figures().allocated_bytes.current, held);
    let gate = Gate::before(stream);
    record(large, stream);
    free(large);
    assert_eq!(figures().allocated_bytes.current, held);
    gate.open();
    stream.synchronize().unwrap();
    cuda_mem_torch_pinned_set_max_cached_size(usize::MAX);
}

static LOOKED_AT: AtomicUsize = AtomicUsize::new(0);

/// Looks at the block that is being recorded.
unsafe extern "C" fn looks(_device: c_int, _stream: *mut c_void) -> bool {
    let (block, mut bytes) = (std::ptr::without_provenance_mut(LOOKED_AT.load(Ordering::Relaxed)), 0);
    // SAFETY: a place.
    succeed(unsafe { cuda_mem_torch_pinned_block_bytes(block, &mut bytes) });
    LOOKED_AT.store(bytes, Ordering::Relaxed);
    true
}

/// Whoever is asked whether the stream lasts may name the block.
#[test]
fn who_is_asked_about_a_recorded_stream_waits_for_nobody() {
    let _turn = turn();
    let (block, stream) = (pinned(3 * MIB), new_stream());
    LOOKED_AT.store(block.addr(), Ordering::Relaxed);
    // SAFETY: it may be called at any time.
    succeed(unsafe { cuda_mem_torch_ask_for_lasting(Some(looks)) });
    let (done, is_done) = channel();
    let address = block.addr();
    std::thread::spawn(move || {
        record(std::ptr::without_provenance_mut(address), stream);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(60)).expect("it waits for itself");
    assert_eq!(LOOKED_AT.load(Ordering::Relaxed), 3 * MIB);
    // SAFETY: null ends it.
    succeed(unsafe { cuda_mem_torch_ask_for_lasting(None) });
    free(block);
}
