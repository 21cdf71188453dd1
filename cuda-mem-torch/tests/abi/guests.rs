//! Streams of other libraries, which destroy them without a word.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_mem_torch::abi::*;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUresult;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Event, Stream};

use crate::gate::Gate;
use crate::support::*;

static GUEST: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn lasts(_device: c_int, stream: *mut c_void) -> bool {
    stream.addr() != GUEST.load(Ordering::Relaxed)
}

fn guest() -> Stream {
    let stream = Stream::new(&context()).unwrap();
    GUEST.store(stream.as_raw().addr(), Ordering::Relaxed);
    // SAFETY: it may be called at any time.
    succeed(unsafe { cuda_mem_torch_ask_for_lasting(Some(lasts)) });
    stream
}

/// Nobody names a stream that is no more.
fn no_call_failed() {
    let refused: Vec<_> = sim().log().filter(|record| record.result == CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert!(refused.is_empty(), "{refused:?}");
}

/// A driver would follow it.
#[test]
fn a_small_number_is_no_stream() {
    let _turn = turn();
    sim().log().clear();
    sim().record(true);
    let mut block = null_mut();
    for number in [3, 963, 4095] {
        // SAFETY: refused, whatever it is; a place.
        let code =
            unsafe { cuda_mem_torch_malloc(0, MIB, std::ptr::without_provenance_mut(number), &mut block) };
        assert_eq!(code, CUDA_MEM_TORCH_INVALID_ARGUMENT);
        assert!(
            message().starts_with(&format!("{number} is no stream; accepted: its handle")),
            "{}",
            message()
        );
    }
    no_call_failed();
    sim().record(false);
}

/// What was its stays away from others until its work is done, and then serves them.
#[test]
fn a_stream_of_others_is_destroyed_while_it_is_busy() {
    let _turn = turn();
    sim().log().clear();
    sim().record(true);
    let reserved = stats().reserved_bytes.all.current;
    let (stream, held, own) = (guest(), new_stream(), new_stream());
    let recorded = allocate(3 * MIB, own.as_raw());
    let (kept, free) = (allocate(40 * MIB, stream.as_raw()), allocate(80 * MIB, stream.as_raw()));
    let (gate, behind) = (Gate::before(held), Event::new(&context()).unwrap());
    held.record(&behind).unwrap();
    // SAFETY: a live stream.
    succeed(unsafe { cuda_mem_torch_record_stream(recorded, 0, stream.as_raw()) });
    stream.wait(&behind).unwrap();
    delete(free);
    drop(stream);
    delete(recorded);
    let of_others: Vec<_> = (0..4).map(|_| allocate(3 * MIB, own.as_raw())).collect();
    assert!(!of_others.contains(&recorded), "it is in use");
    delete(kept);
    gate.open();
    context().synchronize().unwrap();
    of_others.into_iter().for_each(delete);
    empty_cache(NO_POOL);
    assert_eq!(stats().reserved_bytes.all.current, reserved);
    assert_eq!(cuda_mem_torch_synchronize(0), CUDA_MEM_TORCH_OK);
    sim().record(false);
    no_call_failed();
}

#[test]
fn a_stream_of_others_may_capture_once_it_was_seen() {
    let _turn = turn();
    let stream = guest();
    let block = allocate(3 * MIB, stream.as_raw());
    begin_capture(&stream);
    delete(allocate(3 * MIB, stream.as_raw()));
    end_capture(&stream);
    delete(block);
    // SAFETY: no work is given to it any more.
    succeed(unsafe { cuda_mem_torch_forget_stream(0, stream.as_raw()) });
    sim().log().clear();
    sim().record(true);
    drop(stream);
    empty_cache(NO_POOL);
    sim().record(false);
    no_call_failed();
    // SAFETY: null ends it.
    succeed(unsafe { cuda_mem_torch_ask_for_lasting(None) });
}

/// PyTorch makes a stream for each branch of a graph, which captures at once.
#[test]
fn a_stream_of_others_may_capture_before_it_was_seen() {
    let _turn = turn();
    sim().log().clear();
    sim().record(true);
    for _ in 0..2 {
        let (stream, pool) = (guest(), user_pool());
        // SAFETY: it accepts all.
        succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
        begin_capture(&stream);
        let block = allocate(3 * MIB, stream.as_raw());
        delete(allocate(MIB, stream.as_raw()));
        delete(block);
        end_capture(&stream);
        // What captures no more can be asked for its name.
        std::thread::scope(|scope| {
            scope.spawn(|| delete(allocate(3 * MIB, stream.as_raw())));
        });
        succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
        drop(stream);
        succeed(cuda_mem_torch_release_pool(0, pool));
    }
    empty_cache(NO_POOL);
    sim().record(false);
    no_call_failed();
    assert_eq!(cuda_mem_torch_synchronize(0), CUDA_MEM_TORCH_OK, "{}", message());
    // SAFETY: null ends it.
    succeed(unsafe { cuda_mem_torch_ask_for_lasting(None) });
}

/// What it was given under its first name is in use for as long as the stream has work.
#[test]
fn a_stream_that_captured_before_it_was_seen_keeps_its_memory_under_its_next_name() {
    let _turn = turn();
    let (stream, pool, other) = (guest(), user_pool(), new_stream());
    // SAFETY: it accepts all.
    succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
    begin_capture(&stream);
    let recorded = allocate(3 * MIB, stream.as_raw());
    // SAFETY: a live stream, which the wait for everything leaves alone.
    succeed(unsafe { cuda_mem_torch_record_stream(recorded, 0, stream.as_raw()) });
    delete(recorded);
    assert_eq!(cuda_mem_torch_synchronize(0), CUDA_MEM_TORCH_CAPTURING);
    end_capture(&stream);
    succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
    let (kept, of_other) = (allocate(3 * MIB, stream.as_raw()), allocate(3 * MIB, other.as_raw()));
    // The stream is looked at anew.
    let gate = Gate::before(&stream);
    // SAFETY: a live stream.
    succeed(unsafe { cuda_mem_torch_record_stream(of_other, 0, stream.as_raw()) });
    gate.open();
    context().synchronize().unwrap();
    let gate = Gate::before(&stream);
    delete(kept);
    delete(of_other);
    let next: Vec<_> = (0..16).map(|_| allocate(3 * MIB, new_stream().as_raw())).collect();
    assert!(!next.contains(&kept), "the stream uses it");
    gate.open();
    context().synchronize().unwrap();
    next.into_iter().for_each(delete);
    succeed(cuda_mem_torch_release_pool(0, pool));
    drop(stream);
    empty_cache(NO_POOL);
    // SAFETY: null ends it.
    succeed(unsafe { cuda_mem_torch_ask_for_lasting(None) });
}

/// The library ends the route behind the capture, and its owner destroys the stream. Nobody passes it again.
#[test]
fn a_stream_of_others_that_captured_and_is_gone_holds_up_nobody() {
    let _turn = turn();
    captures_and_is_gone(None);
}

/// A scope captures nothing.
#[test]
fn a_stream_of_others_that_captured_and_is_gone_holds_up_nobody_in_a_tag_s_scope() {
    let _turn = turn();
    let tag = c"scope";
    captures_and_is_gone(Some(tag));
    let names = [tag.as_ptr()];
    let (backup, restore) = (CUDA_MEM_TORCH_BACKUP_DISCARD, CUDA_MEM_TORCH_RESTORE_NOTHING);
    // SAFETY: one text, and no place or function; nothing uses what sleeps.
    succeed(unsafe { cuda_mem_torch_sleep(0, names.as_ptr(), 1, backup, null_mut(), null()) });
    // SAFETY: as above.
    succeed(unsafe { cuda_mem_torch_wake(0, names.as_ptr(), 1, restore, null()) });
}

/// A capture that failed has no end of its route, only one of its pool.
#[test]
fn a_stream_of_others_that_captured_and_is_gone_holds_up_nobody_once_its_pool_is_released() {
    let _turn = turn();
    let stream = guest();
    delete(allocate(3 * MIB, stream.as_raw()));
    let pool = user_pool();
    // SAFETY: it accepts all.
    succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
    begin_capture(&stream);
    delete(allocate(3 * MIB, stream.as_raw()));
    end_capture(&stream);
    drop(stream);
    assert_eq!(cuda_mem_torch_synchronize(0), CUDA_MEM_TORCH_CAPTURING);
    succeed(cuda_mem_torch_release_pool(0, pool));
    assert_eq!(cuda_mem_torch_synchronize(0), CUDA_MEM_TORCH_OK, "{}", message());
    empty_cache(NO_POOL);
    // SAFETY: null ends it.
    succeed(unsafe { cuda_mem_torch_ask_for_lasting(None) });
}

/// In a scope of the tag, if there is one.
#[track_caller]
fn captures_and_is_gone(tag: Option<&CStr>) {
    let own = new_stream();
    let recorded = allocate(3 * MIB, own.as_raw());
    let other = guest();
    // SAFETY: a live stream.
    succeed(unsafe { cuda_mem_torch_record_stream(recorded, 0, other.as_raw()) });
    let stream = guest();
    delete(allocate(3 * MIB, stream.as_raw()));
    let [graph, inner] = [(); 2].map(|()| user_pool());
    let begin = |pool| {
        // SAFETY: it accepts all.
        succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
    };
    // SAFETY: text.
    tag.into_iter().for_each(|tag| succeed(unsafe { cuda_mem_torch_enter_tag(0, tag.as_ptr()) }));
    begin(graph);
    begin_capture(&stream);
    begin(inner);
    delete(allocate(3 * MIB, stream.as_raw()));
    succeed(cuda_mem_torch_end_allocate_to_pool(0, inner));
    assert_eq!(cuda_mem_torch_synchronize(0), CUDA_MEM_TORCH_CAPTURING);
    delete(allocate(3 * MIB, stream.as_raw()));
    end_capture(&stream);
    succeed(cuda_mem_torch_end_allocate_to_pool(0, graph));
    drop((stream, other));
    assert_eq!(cuda_mem_torch_synchronize(0), CUDA_MEM_TORCH_OK, "{}", message());
    // SAFETY: text.
    tag.into_iter().for_each(|tag| succeed(unsafe { cuda_mem_torch_leave_tag(0, tag.as_ptr()) }));
    delete(recorded);
    context().synchronize().unwrap();
    assert_eq!(allocate(3 * MIB, own.as_raw()), recorded);
    delete(recorded);
    for pool in [graph, inner] {
        succeed(cuda_mem_torch_release_pool(0, pool));
    }
    empty_cache(NO_POOL);
    // SAFETY: null ends it.
    succeed(unsafe { cuda_mem_torch_ask_for_lasting(None) });
}
