//! Threads that come and go, each with work on its default stream.

use std::collections::HashSet;
use std::ffi::c_void;
use std::ptr::{with_exposed_provenance_mut, without_provenance_mut};
use std::thread;

use cuda_mem_torch::abi::*;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Stream;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::copy::memset_async;

use super::gate::Gate;
use super::support::*;

/// `CU_STREAM_PER_THREAD`.
fn own_handle() -> *mut c_void {
    without_provenance_mut(2)
}

fn own_stream() -> Stream {
    Stream::per_thread(&context()).unwrap()
}

/// Has the thread's default stream write a block.
fn fill(block: *mut c_void, stream: &Stream, bytes: usize) {
    // SAFETY: a block of so many bytes that was allocated for the stream.
    unsafe { memset_async(stream, block.expose_provenance() as u64, 1, bytes) }.unwrap();
}

/// A small and a large block come, are written, and go; what leaves the thread has nothing to do any more.
fn work() {
    for bytes in [1000, 3 * MIB] {
        let block = allocate(bytes, own_handle());
        fill(block, &own_stream(), bytes);
        delete(block);
    }
    own_stream().synchronize().unwrap();
}

fn in_a_thread<R: Send>(body: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| scope.spawn(body).join()).unwrap()
}

/// How often streams have memory, and how much all of them have.
fn held() -> (usize, u64) {
    unsafe extern "C" fn count(data: *mut c_void, _: *mut c_void, _: bool, bytes: u64) {
        // SAFETY: what is passed below.
        let (count, held) = unsafe { &mut *data.cast::<(usize, u64)>() };
        *count += 1;
        *held += bytes;
    }
    let mut held = (0usize, 0u64);
    // SAFETY: a function that may be called with this.
    succeed(unsafe { cuda_mem_torch_expandable_segment_sizes(0, (&raw mut held).cast(), Some(count)) });
    held
}

#[test]
fn what_a_thread_had_serves_the_next_one() {
    let _turn = turn();
    (0..10).for_each(|_| in_a_thread(work));
    let before = held();
    let ids: HashSet<_> = (0..1000)
        .map(|_| {
            in_a_thread(|| {
                work();
                own_stream().id()
            })
        })
        .collect();
    assert_eq!(ids.len(), 1000, "each thread has a stream of its own");
    assert_eq!(held(), before);
}

#[test]
fn threads_that_are_there_at_once_have_a_slot_each_and_no_more() {
    const AT_ONCE: usize = 8;
    let _turn = turn();
    let round = || {
        let barrier = std::sync::Barrier::new(AT_ONCE);
        thread::scope(|scope| {
            let threads = [(); AT_ONCE].map(|()| {
                scope.spawn(|| {
                    barrier.wait();
                    let block = allocate(1000, own_handle());
                    fill(block, &own_stream(), 1000);
                    delete(block);
                    own_stream().synchronize().unwrap();
                })
            });
            // Joined, they have ended, with what they had.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    };
    round();
    let (before, _) = held();
    (0..120).for_each(|_| round());
    let (after, _) = held();
    // The same heaps serve all rounds, with memory of two kinds each, which not all may have had in the first.
    assert!(after <= before + 2 * AT_ONCE, "{after} for {before}");
}

#[test]
fn a_block_outlives_its_thread() {
    let _turn = turn();
    let left = in_a_thread(|| {
        let block = allocate(3 * MIB, own_handle());
        fill(block, &own_stream(), 3 * MIB);
        own_stream().synchronize().unwrap();
        block.expose_provenance()
    });
    let block = with_exposed_provenance_mut::<c_void>(left);
    assert_eq!(cuda_mem_torch_device_of(block), 0);
    // Whoever has the heap now gets none of it.
    in_a_thread(|| {
        let other = allocate(3 * MIB, own_handle());
        assert_ne!(other.addr(), left);
        fill(other, &own_stream(), 3 * MIB);
        own_stream().synchronize().unwrap();
        delete(other);
    });
    let stream = new_stream();
    fill(block, stream, 3 * MIB);
    // SAFETY: a live stream.
    succeed(unsafe { cuda_mem_torch_record_stream(block, 0, stream.as_raw()) });
    in_a_thread(move || delete(with_exposed_provenance_mut(left)));
    assert_eq!(cuda_mem_torch_device_of(block), 0, "the other stream may use it yet");
    stream.synchronize().unwrap();
    in_a_thread(move || {
        let again = allocate(3 * MIB, own_handle());
        assert_eq!(again.addr(), left);
        delete(again);
    });
}

/// Leaves work in the thread's default stream, with a block that was freed there; where that was.
fn leave_work(gate: &Gate) -> usize {
    let (block, stream) = (allocate(3 * MIB, own_handle()), own_stream());
    gate.hold(&stream);
    fill(block, &stream, 3 * MIB);
    delete(block);
    block.addr()
}

/// Its stream runs on when the thread has ended, and nobody can ask about it.
#[test]
fn what_a_thread_leaves_with_work_in_it_stays_away_from_others() {
    let _turn = turn();
    let gate = Gate::new(&context());
    let left = in_a_thread(|| leave_work(&gate));
    let taken = in_a_thread(|| {
        let block = allocate(3 * MIB, own_handle());
        fill(block, &own_stream(), 3 * MIB);
        own_stream().synchronize().unwrap();
        delete(block);
        block.addr()
    });
    assert_ne!(taken, left);
    gate.open();
}

#[test]
fn a_thread_that_forgets_its_stream_leaves_all_to_the_next_one() {
    let _turn = turn();
    let forget = |gate: &Gate| {
        let left = leave_work(gate);
        // SAFETY: it is given no more work.
        succeed(unsafe { cuda_mem_torch_forget_stream(0, own_handle()) });
        left
    };
    let gate = Gate::new(&context());
    let left = in_a_thread(|| forget(&gate));
    let meanwhile = in_a_thread(|| {
        let block = allocate(3 * MIB, own_handle());
        fill(block, &own_stream(), 3 * MIB);
        own_stream().synchronize().unwrap();
        delete(block);
        block.addr()
    });
    assert_ne!(meanwhile, left, "it is written yet");
    gate.open();
    let round = || {
        let gate = Gate::new(&context());
        in_a_thread(|| forget(&gate));
        gate.open();
        context().synchronize().unwrap();
    };
    (0..10).for_each(|_| round());
    let before = held();
    (0..200).for_each(|_| round());
    assert_eq!(held(), before);
}

#[test]
fn what_a_forgotten_stream_had_serves_the_next_one() {
    let _turn = turn();
    let round = || {
        let stream = Stream::new(&context()).unwrap();
        let block = allocate(3 * MIB, stream.as_raw());
        fill(block, &stream, 3 * MIB);
        delete(block);
        stream.synchronize().unwrap();
        // SAFETY: it is not used any more.
        succeed(unsafe { cuda_mem_torch_forget_stream(0, stream.as_raw()) });
    };
    (0..10).for_each(|_| round());
    let before = held();
    (0..200).for_each(|_| round());
    assert_eq!(held(), before);
}

/// A destructor of another thread-local, which runs after those of this library, still finds memory for its stream.
#[test]
fn memory_is_there_until_the_last_destructor_of_a_thread() {
    struct Late;
    impl Drop for Late {
        fn drop(&mut self) {
            work();
        }
    }
    thread_local! {
        static LATE: Late = const { Late };
    }
    let _turn = turn();
    in_a_thread(|| {
        // Entered before anything here is, it goes after that.
        LATE.with(|_| {});
        work();
    });
    in_a_thread(work);
}
