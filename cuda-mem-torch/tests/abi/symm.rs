//! Symmetric memory of a group of one rank; PyTorch's own calls on two are in `ci/torch`.

use std::ffi::{CString, c_int, c_void};
use std::ptr::{null, null_mut};

use cuda_mem_torch::abi::*;

use super::support::*;

fn directory() -> CString {
    let name = format!("{}/symm-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    CString::new(name).unwrap()
}

fn join(name: &std::ffi::CStr) -> c_int {
    // SAFETY: texts.
    unsafe { cuda_mem_torch_symm_join(0, name.as_ptr(), 0, 1, directory().as_ptr(), 5000) }
}

fn malloc(bytes: usize) -> Result<*mut c_void, c_int> {
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
    let mut info =
        cuda_mem_torch_symm_info { rank: 9, world_size: 9, buffer_size: 0, signal_pad_size: 0, offset: 0 };
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
    // SAFETY: a handle.
    succeed(unsafe { cuda_mem_torch_symm_check(handle) });

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
