//! Blocks for other processes, of which this one plays both.

use std::ptr::null_mut;

use cuda_mem_torch::abi::*;

use super::support::*;

fn share(block: *mut std::ffi::c_void) -> (Vec<u8>, usize) {
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
