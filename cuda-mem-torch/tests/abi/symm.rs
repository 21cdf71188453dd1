//! Symmetric memory of a group of one rank; PyTorch's own calls on two are in `ci/torch`.

use std::ffi::{CString, c_int, c_void};
use std::ptr::{null, null_mut};
use std::time::Duration;

use cuda_mem_torch::abi::*;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Stream;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUresult;

use super::support::*;

const INFO: cuda_mem_torch_symm_info =
    cuda_mem_torch_symm_info { rank: 9, world_size: 9, buffer_size: 0, signal_pad_size: 0, offset: 0 };

fn directory() -> CString {
    let name = format!("{}/symm-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    CString::new(name).unwrap()
}

pub(crate) fn join(name: &std::ffi::CStr) -> c_int {
    // SAFETY: texts.
    unsafe { cuda_mem_torch_symm_join(0, name.as_ptr(), 0, 1, directory().as_ptr(), 5000) }
}

pub(crate) fn leave(name: &std::ffi::CStr) -> c_int {
    // SAFETY: text.
    unsafe { cuda_mem_torch_symm_leave(name.as_ptr()) }
}

pub(crate) fn free(block: *mut c_void) -> c_int {
    // SAFETY: nothing uses it.
    unsafe { cuda_mem_torch_symm_delete(0, block) }
}

fn close(handle: *mut cuda_mem_torch_symm_handle) {
    // SAFETY: a handle, closed once.
    succeed(unsafe { cuda_mem_torch_symm_close(handle) });
}

/// A stream that the library knows, and that captures.
fn capturing() -> &'static Stream {
    let stream = new_stream();
    // SAFETY: a stream of the device.
    succeed(unsafe { cuda_mem_torch_see_stream(0, stream.as_raw()) });
    begin_capture(stream);
    stream
}

pub(crate) fn malloc(bytes: usize) -> Result<*mut c_void, c_int> {
    let mut found = null_mut();
    // SAFETY: no name, a place.
    match unsafe { cuda_mem_torch_symm_malloc(0, bytes, null(), &mut found) } {
        CUDA_MEM_TORCH_OK => Ok(found),
        code => Err(code),
    }
}

fn rendezvous(
    address: *mut c_void,
    name: Option<&std::ffi::CStr>,
) -> Result<*mut cuda_mem_torch_symm_handle, c_int> {
    let mut handle = null_mut();
    let name = name.map_or(null(), std::ffi::CStr::as_ptr);
    // SAFETY: no name or text, a place.
    match unsafe { cuda_mem_torch_symm_rendezvous(0, address, name, &mut handle) } {
        CUDA_MEM_TORCH_OK => Ok(handle),
        code => Err(code),
    }
}

#[test]
fn a_failure_says_each_cause_once() {
    let _turn = turn();
    // SAFETY: texts.
    let code =
        unsafe { cuda_mem_torch_symm_join(0, c"lost".as_ptr(), 0, 1, c"/nowhere/else".as_ptr(), 5000) };
    assert_eq!(code, CUDA_MEM_TORCH_SYSTEM);
    let said = message();
    for words in ["joining group \"lost\"", "/nowhere/else", "No such file"] {
        assert_eq!(said.matches(words).count(), 1, "{said}");
    }
}

#[test]
fn a_group_has_memory_handles_and_signals() {
    let _turn = turn();
    assert_eq!(malloc(MIB), Err(CUDA_MEM_TORCH_INVALID_ARGUMENT));
    assert!(message().contains("no group has been joined with device 0"), "{}", message());
    succeed(join(c"alone"));
    assert_eq!(join(c"alone"), CUDA_MEM_TORCH_INVALID_ARGUMENT);
    let block = malloc(MIB).unwrap();
    let inside = block.wrapping_byte_add(4096);
    assert_eq!(rendezvous(block, Some(c"others")), Err(CUDA_MEM_TORCH_INVALID_ARGUMENT));
    let handle = rendezvous(inside, Some(c"alone")).unwrap();
    let mut info = INFO;
    let (mut buffer, mut pad) = (null_mut(), null_mut());
    // SAFETY: a handle, and places for one rank.
    succeed(unsafe { cuda_mem_torch_symm_describe(handle, &mut info, &mut buffer, &mut pad) });
    assert_eq!((info.rank, info.world_size, info.buffer_size), (0, 1, MIB));
    assert_eq!((info.signal_pad_size, info.offset, buffer), (9216, 4096, block));
    assert!(!pad.is_null() && pad != buffer);
    let stream = new_stream();
    // SAFETY: a handle and a stream of its device.
    succeed(unsafe { cuda_mem_torch_symm_barrier(handle, stream.as_raw(), 0, 1000) });
    // SAFETY: as above.
    succeed(unsafe { cuda_mem_torch_symm_put_signal(handle, stream.as_raw(), 0, 1) });
    // SAFETY: as above.
    succeed(unsafe { cuda_mem_torch_symm_wait_signal(handle, stream.as_raw(), 0, 1, 1000) });
    // SAFETY: as above; there is no such channel.
    let refused = unsafe { cuda_mem_torch_symm_barrier(handle, stream.as_raw(), 1 << 20, 0) };
    assert_eq!(refused, CUDA_MEM_TORCH_INVALID_ARGUMENT);
    stream.synchronize().unwrap();

    // Freed with a handle, it stays; then it is used again.
    // SAFETY: nothing uses it.
    succeed(unsafe { cuda_mem_torch_symm_delete(0, block) });
    let other = malloc(MIB).unwrap();
    assert_ne!(other, block);
    // SAFETY: nothing uses it.
    succeed(unsafe { cuda_mem_torch_symm_close(handle) });
    assert_eq!(malloc(MIB).unwrap(), block);
    for block in [block, other] {
        // SAFETY: nothing uses it.
        succeed(unsafe { cuda_mem_torch_symm_delete(0, block) });
    }
    // SAFETY: text.
    succeed(unsafe { cuda_mem_torch_symm_leave(c"alone".as_ptr()) });
    assert_eq!(rendezvous(block, None), Err(CUDA_MEM_TORCH_NOT_OURS));
    // SAFETY: text.
    assert_eq!(unsafe { cuda_mem_torch_symm_leave(c"alone".as_ptr()) }, CUDA_MEM_TORCH_INVALID_ARGUMENT);
}

#[test]
fn what_a_capture_stands_in_the_way_of_is_used_again_later() {
    let _turn = turn();
    succeed(join(c"captured"));
    // SAFETY: the stream is not used.
    let block = unsafe { cuda_mem_torch_symm_alloc(MIB, 0, null_mut()) };
    assert!(!block.is_null());
    let stream = new_stream();
    // SAFETY: a stream of the device.
    succeed(unsafe { cuda_mem_torch_see_stream(0, stream.as_raw()) });
    begin_capture(stream);
    let waited = waits(|| {
        // SAFETY: nothing uses it.
        unsafe { cuda_mem_torch_symm_free(block, MIB, 0, null_mut()) };
    });
    assert_eq!(waited, 0, "it would have ended the capture");
    assert_ne!(malloc(MIB).unwrap(), block);
    end_capture(stream);
    assert_eq!(malloc(MIB).unwrap(), block);
    // SAFETY: text.
    succeed(unsafe { cuda_mem_torch_symm_leave(c"captured".as_ptr()) });
}

#[test]
fn the_memory_of_a_group_that_is_left_stays_until_it_comes_back_and_its_work_is_done() {
    let _turn = turn();
    succeed(join(c"busy"));
    let (block, other) = (malloc(MIB).unwrap(), malloc(MIB).unwrap());
    assert_eq!(waits(|| succeed(leave(c"busy"))), 0);
    // A kernel may use it, on a stream that was not seen; but the group serves nobody any more.
    close(rendezvous(block, Some(c"busy")).unwrap());
    assert_eq!(malloc(MIB), Err(CUDA_MEM_TORCH_INVALID_ARGUMENT));
    assert_eq!(leave(c"busy"), CUDA_MEM_TORCH_INVALID_ARGUMENT);
    succeed(free(other));
    assert_eq!(join(c"busy"), CUDA_MEM_TORCH_INVALID_ARGUMENT);
    assert!(message().contains("was left with 1 allocation"), "{}", message());
    let called = calls(|| succeed(free(block)));
    let first = |name| called.iter().position(|call| *call == name);
    assert!(first("cuMemFreeHost").unwrap() < first("cuMemUnmap").unwrap(), "{called:?}");
    succeed(join(c"busy"));
    succeed(leave(c"busy"));
}

#[test]
fn a_group_that_is_left_beside_a_capture_goes_after_it() {
    let _turn = turn();
    succeed(join(c"first"));
    let block = malloc(MIB).unwrap();
    let stream = capturing();
    let called = calls(|| {
        succeed(free(block));
        succeed(leave(c"first"));
    });
    assert!(!called.contains(&"cuCtxSynchronize"), "it would have ended the capture");
    assert!(!called.contains(&"cuMemUnmap"), "a kernel may use the memory");
    assert_eq!(malloc(MIB), Err(CUDA_MEM_TORCH_INVALID_ARGUMENT));
    assert_eq!(leave(c"first"), CUDA_MEM_TORCH_INVALID_ARGUMENT);
    assert_eq!(join(c"first"), CUDA_MEM_TORCH_CAPTURING);
    assert!(message().contains("\"first\" has not left yet"), "{}", message());
    end_capture(stream);
    assert!(calls(|| succeed(join(c"first"))).contains(&"cuMemUnmap"));
    succeed(leave(c"first"));
}

/// The simulator keeps addresses back that were freed a while ago, as far as there is room; a GPU's driver gives them out again.
fn recycle_addresses() {
    const BYTES: usize = 1 << 30;
    let table = driver().table();
    let (reserve, free) = (table.cuMemAddressReserve().unwrap(), table.cuMemAddressFree().unwrap());
    for _ in 0..16 {
        let mut start = 0;
        // SAFETY: one address to write.
        assert_eq!(unsafe { reserve(&mut start, BYTES, 0, 0, 0) }, CUresult::CUDA_SUCCESS);
        // SAFETY: reserved above, and nothing is mapped there.
        assert_eq!(unsafe { free(start, BYTES) }, CUresult::CUDA_SUCCESS);
    }
}

#[test]
fn what_was_freed_beside_a_capture_is_not_another_allocation_at_its_address() {
    let _turn = turn();
    succeed(join(c"before"));
    let freed = malloc(MIB).unwrap();
    let stream = capturing();
    succeed(free(freed));
    succeed(leave(c"before"));
    recycle_addresses();
    succeed(join(c"after"));
    let blocks: Vec<_> = (0..4).map(|_| malloc(MIB).unwrap()).collect();
    end_capture(stream);
    // Settles what was given back.
    let last = malloc(MIB).unwrap();
    for block in blocks {
        assert_ne!(block, last, "its memory was given to somebody else");
        close(rendezvous(block, Some(c"after")).unwrap());
        succeed(free(block));
    }
    succeed(free(last));
    succeed(leave(c"after"));
}

#[test]
fn only_what_is_in_somebodys_hands_can_be_freed() {
    let _turn = turn();
    succeed(join(c"strict"));
    let (block, other) = (malloc(MIB).unwrap(), malloc(MIB).unwrap());
    assert_eq!(free(block.wrapping_byte_add(512)), CUDA_MEM_TORCH_NOT_OURS);
    succeed(free(block));
    assert_eq!(free(block), CUDA_MEM_TORCH_NOT_OURS);
    assert!(message().contains(&format!("{:#x}", block.addr())), "{}", message());
    assert_eq!(free(null_mut()), CUDA_MEM_TORCH_NOT_OURS);
    // The neighbour is untouched.
    close(rendezvous(other, None).unwrap());
    // Twice beside a capture too, where the first has to wait.
    let stream = capturing();
    succeed(free(other));
    assert_eq!(free(other), CUDA_MEM_TORCH_NOT_OURS);
    end_capture(stream);
    succeed(leave(c"strict"));
    assert_eq!(free(other), CUDA_MEM_TORCH_NOT_OURS);
}

#[test]
fn the_memorys_own_device_counts_whichever_is_named() {
    let _turn = turn();
    succeed(join(c"elsewhere"));
    let block = malloc(MIB).unwrap();
    let mut handle = null_mut();
    // SAFETY: no name, a place.
    let refused = unsafe { cuda_mem_torch_symm_rendezvous(1, block, null(), &mut handle) };
    assert_eq!((refused, handle), (CUDA_MEM_TORCH_INVALID_ARGUMENT, null_mut()));
    assert!(message().contains("is on device 0, and not on device 1"), "{}", message());
    let stream = capturing();
    // SAFETY: nothing uses it.
    assert_eq!(waits(|| succeed(unsafe { cuda_mem_torch_symm_delete(1, block) })), 0);
    let other = malloc(MIB).unwrap();
    assert_ne!(other, block, "a stream of its device may use it");
    end_capture(stream);
    assert_eq!(malloc(MIB).unwrap(), block);
    succeed(free(block));
    succeed(free(other));
    succeed(leave(c"elsewhere"));
}

#[test]
fn a_capture_on_a_stream_that_was_never_seen_goes_on() {
    let _turn = turn();
    succeed(join(c"unseen"));
    let block = malloc(MIB).unwrap();
    let (create, mut raw) = (driver().table().cuStreamCreate().unwrap(), null_mut());
    // SAFETY: one handle to write; a context is current.
    let created = context().with_current(|| unsafe { create(&mut raw, 1) }).unwrap();
    assert_eq!(created, CUresult::CUDA_SUCCESS);
    begin_capture_of(raw.cast());
    assert_eq!(waits(|| succeed(free(block))), 1);
    assert_eq!(malloc(MIB).unwrap(), block, "all is done that the device was given");
    end_capture_of(raw.cast());
    succeed(free(block));
    succeed(leave(c"unseen"));
}

#[test]
fn a_group_that_is_about_to_go_keeps_its_name_until_it_has_gone() {
    let _turn = turn();
    succeed(join(c"once"));
    // So long it is on its way out, where another thread may join as well.
    sim().delay("cuMemFreeHost", Duration::from_secs(1));
    std::thread::scope(|scope| {
        scope.spawn(|| succeed(leave(c"once")));
        std::thread::sleep(Duration::from_millis(50));
        while join(c"once") == CUDA_MEM_TORCH_INVALID_ARGUMENT {}
        assert!(message().contains("\"once\" has not left yet"), "{}", message());
    });
    sim().clear_faults();
    succeed(join(c"once"));
    succeed(leave(c"once"));
}

/// Threads that allocate beside one that joins and leaves: whoever has memory has the group, and the group goes with the last of it.
#[test]
fn memory_is_allocated_beside_a_group_that_is_left() {
    const ROUNDS: usize = 100;
    let _turn = turn();
    succeed(join(c"passing"));
    std::thread::scope(|scope| {
        let allocate = || {
            for _ in 0..ROUNDS {
                match malloc(MIB) {
                    Ok(block) => {
                        close(rendezvous(block, None).unwrap());
                        succeed(free(block));
                    }
                    Err(code) => assert_eq!(code, CUDA_MEM_TORCH_INVALID_ARGUMENT, "{}", message()),
                }
            }
        };
        let others = [scope.spawn(allocate), scope.spawn(allocate)];
        while !others.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            succeed(leave(c"passing"));
            loop {
                match join(c"passing") {
                    CUDA_MEM_TORCH_OK => break,
                    // What is live, or on its way out.
                    CUDA_MEM_TORCH_CAPTURING => {}
                    code => assert!(message().contains("was left with"), "{code}: {}", message()),
                }
            }
        }
    });
    succeed(leave(c"passing"));
    succeed(join(c"passing"));
    succeed(leave(c"passing"));
}

#[test]
fn addresses_on_the_device_stay_as_long_as_work_may_read_them() {
    let _turn = turn();
    succeed(join(c"table"));
    let block = malloc(MIB).unwrap();
    let handle = rendezvous(block, None).unwrap();
    let (mut buffers, mut pads) = (null_mut(), null_mut());
    // SAFETY: a handle and two places.
    succeed(unsafe { cuda_mem_torch_symm_device_addresses(handle, &mut buffers, &mut pads) });
    let (mut again, mut info) = (null_mut(), INFO);
    // SAFETY: a handle and two places.
    succeed(unsafe { cuda_mem_torch_symm_device_addresses(handle, &mut again, &mut pads) });
    assert_eq!(again, buffers);
    let (mut buffer, mut pad) = (null_mut(), null_mut());
    // SAFETY: a handle, and places for one rank.
    succeed(unsafe { cuda_mem_torch_symm_describe(handle, &mut info, &mut buffer, &mut pad) });
    let stored = |at: *mut c_void| {
        let mut found = 0u64;
        let copy = driver().table().cuMemcpyDtoH().unwrap();
        let target = (&raw mut found).cast();
        // SAFETY: eight bytes of the table, which is there while the handle is.
        let code = context().with_current(|| unsafe { copy(target, at.addr() as u64, 8) }).unwrap();
        assert_eq!(code, CUresult::CUDA_SUCCESS);
        found
    };
    assert_eq!((stored(buffers), stored(pads)), (buffer.addr() as u64, pad.addr() as u64));
    let frees = |called: &[&str]| called.iter().filter(|call| **call == "cuMemFreeAsync").count();
    let stream = capturing();
    assert_eq!(frees(&calls(|| close(handle))), 0, "a kernel may read it yet");
    end_capture(stream);
    let called = calls(|| succeed(free(block)));
    let first = |name| called.iter().position(|call| *call == name);
    assert!(first("cuMemFreeHost").unwrap() < first("cuMemFreeAsync").unwrap(), "{called:?}");
    succeed(leave(c"table"));
}
