//! Blocks for other processes, of which this one plays both.

use std::ptr::null_mut;

use cuda_mem_torch::abi::*;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUresult;

use super::support::*;

pub(crate) fn share(block: *mut std::ffi::c_void) -> (Vec<u8>, usize) {
    let (mut length, mut offset) = (0, 0);
    // SAFETY: two places.
    succeed(unsafe { cuda_mem_torch_ipc_share(block, null_mut(), 0, &mut length, &mut offset) });
    let mut bytes = vec![0; length];
    // SAFETY: room for all of it, and two places.
    succeed(unsafe {
        cuda_mem_torch_ipc_share(block, bytes.as_mut_ptr(), bytes.len(), &mut length, &mut offset)
    });
    (bytes, offset)
}

fn is_mapped(address: *mut std::ffi::c_void) -> bool {
    let ask = driver().table().cuMemGetAddressRange().unwrap();
    let (mut base, mut bytes) = (0, 0);
    let asked = context().with_current(|| {
        // SAFETY: two values to write.
        unsafe { ask(&mut base, &mut bytes, address.addr() as u64) }
    });
    asked.unwrap() == CUresult::CUDA_SUCCESS
}

#[test]
fn a_shared_block_is_seen_by_who_opens_it() {
    let _turn = turn();
    let stream = new_stream();
    let pool = user_pool();
    for private in [false, true] {
        if private {
            // SAFETY: no filter.
            succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
        }
        let block = allocate(3 * MIB, stream.as_raw());
        let host = [if private { 5u8 } else { 4 }; 64];
        // SAFETY: 64 bytes each, which live until the stream is done.
        succeed(unsafe {
            cuda_mem_torch_memcpy_async(block, 0, host.as_ptr().cast(), 0, 64, 0, stream.as_raw(), true)
        });
        stream.synchronize().unwrap();
        let (bytes, offset) = share(block);
        assert_eq!(bytes[0], 2, "PyTorch's version");
        let mut base = null_mut();
        // SAFETY: the bytes and a place.
        succeed(unsafe { cuda_mem_torch_ipc_open(0, bytes.as_ptr(), bytes.len(), &mut base) });
        let mut again = null_mut();
        // SAFETY: as above.
        succeed(unsafe { cuda_mem_torch_ipc_open(0, bytes.as_ptr(), bytes.len(), &mut again) });
        assert_eq!(base, again);
        let mut seen = [0u8; 64];
        // SAFETY: 64 bytes each, which live until the stream is done.
        succeed(unsafe {
            let there = base.cast::<u8>().wrapping_add(offset).cast();
            cuda_mem_torch_memcpy_async(seen.as_mut_ptr().cast(), 0, there, 0, 64, 0, stream.as_raw(), true)
        });
        stream.synchronize().unwrap();
        assert_eq!(seen, host);
        for _ in 0..2 {
            // SAFETY: nothing uses it.
            succeed(unsafe { cuda_mem_torch_ipc_close(base) });
        }
        // SAFETY: closed, which is found out.
        assert_eq!(unsafe { cuda_mem_torch_ipc_close(base) }, CUDA_MEM_TORCH_NOT_OURS);
        delete(block);
        // SAFETY: its descriptors are closed, which is found out.
        let code = unsafe { cuda_mem_torch_ipc_open(0, bytes.as_ptr(), bytes.len(), &mut base) };
        assert_ne!(code, CUDA_MEM_TORCH_OK);
    }
    succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
    succeed(cuda_mem_torch_release_pool(0, pool));
}

#[test]
fn what_is_closed_beside_a_capture_is_not_opened_again() {
    let _turn = turn();
    let (stream, captured) = (new_stream(), new_stream());
    // SAFETY: a live stream.
    succeed(unsafe { cuda_mem_torch_see_stream(0, captured.as_raw()) });
    let block = allocate(3 * MIB, stream.as_raw());
    let (bytes, _) = share(block);
    let open = || {
        let mut base = null_mut();
        // SAFETY: the bytes and a place.
        succeed(unsafe { cuda_mem_torch_ipc_open(0, bytes.as_ptr(), bytes.len(), &mut base) });
        base
    };
    let first = open();
    begin_capture(captured);
    // SAFETY: nothing uses it.
    let closed = unsafe { cuda_mem_torch_ipc_close(first) };
    end_capture(captured);
    succeed(closed);
    // SAFETY: closed, which is found out.
    assert_eq!(unsafe { cuda_mem_torch_ipc_close(first) }, CUDA_MEM_TORCH_NOT_OURS);

    let second = open();
    begin_capture(captured);
    // SAFETY: nothing uses it.
    succeed(unsafe { cuda_mem_torch_ipc_close(second) });
    assert!(is_mapped(second));
    let third = open();
    assert_ne!(second, third, "the same bytes may name other memory by now");
    end_capture(captured);
    empty_cache(NO_POOL);
    assert!(!is_mapped(second) && is_mapped(third));
    // SAFETY: nothing uses it.
    succeed(unsafe { cuda_mem_torch_ipc_close(third) });
    assert!(!is_mapped(third));
    delete(block);
}

#[test]
fn what_is_no_handle_is_refused() {
    let _turn = turn();
    let mut address = null_mut();
    for bytes in [&[2u8, b'c', 0][..], &[3, b'e'], &[], &[2, b'e', 1]] {
        // SAFETY: the bytes and a place.
        let code = unsafe { cuda_mem_torch_ipc_open(0, bytes.as_ptr(), bytes.len(), &mut address) };
        assert!(
            matches!(code, CUDA_MEM_TORCH_UNSUPPORTED | CUDA_MEM_TORCH_INVALID_ARGUMENT),
            "{bytes:?}: {code}"
        );
    }
}

#[test]
fn a_handle_says_what_is_wrong_with_it() {
    let _turn = turn();
    let mut address = null_mut();
    let mut open = |bytes: &[u8]| {
        // SAFETY: the bytes and a place.
        let code = unsafe { cuda_mem_torch_ipc_open(0, bytes.as_ptr(), bytes.len(), &mut address) };
        (code, message())
    };
    let (code, text) = open(&[3, b'e']);
    assert!(code == CUDA_MEM_TORCH_UNSUPPORTED && text.contains("version 3"), "{code}: {text}");
    let (code, text) = open(&[&[2, b'c'][..], &[7; 64]].concat());
    assert!(code == CUDA_MEM_TORCH_UNSUPPORTED && text.contains("cuMemAlloc"), "{code}: {text}");
    let (code, text) = open(&[2, b'e', 1]);
    assert!(code == CUDA_MEM_TORCH_INVALID_ARGUMENT && text.contains("not 3"), "{code}: {text}");
}

#[test]
fn a_wait_for_a_device_leaves_a_capture_alone() {
    let _turn = turn();
    let stream = new_stream();
    // SAFETY: a stream of the device.
    succeed(unsafe { cuda_mem_torch_see_stream(0, stream.as_raw()) });
    assert_eq!(waits(|| succeed(cuda_mem_torch_synchronize(0))), 1);
    begin_capture(stream);
    assert_eq!(waits(|| assert_eq!(cuda_mem_torch_synchronize(0), CUDA_MEM_TORCH_CAPTURING)), 0);
    end_capture(stream);
    assert_eq!(waits(|| succeed(cuda_mem_torch_synchronize(0))), 1);
    assert_eq!(cuda_mem_torch_synchronize(99), CUDA_MEM_TORCH_INVALID_ARGUMENT);
}
