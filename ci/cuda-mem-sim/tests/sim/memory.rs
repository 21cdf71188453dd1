//! Device memory, host memory and copies on the simulated driver.

use std::ffi::c_void;
use std::ptr;

use cuda_mem_sim::{MisuseKind, Sim};
use cuda_mem_sys::{
    CU_MEMHOSTREGISTER_READ_ONLY, CUDA_MEMCPY2D_v2 as Copy2d, CUmemorytype, CUpointer_attribute, CUresult,
};

use crate::gpu::{Gpu, INVALID_VALUE, Mapping, OK, OUT_OF_MEMORY, cu, pattern};

#[test]
fn bytes_come_back_from_the_device() {
    let gpu = Gpu::new();
    let (from, mut to) = (pattern(1 << 20), vec![0_u8; 1 << 20]);
    let device = gpu.alloc(from.len());
    assert_eq!(gpu.h2d(device, &from), OK);
    assert_eq!(gpu.d2h(&mut to, device), OK);
    assert!(from == to);
    assert_eq!(gpu.free(device), OK);
    gpu.assert_quiet();
}

#[test]
fn new_memory_holds_nothing_a_program_could_take_for_its_own() {
    let gpu = Gpu::new();
    let device = gpu.alloc(4096);
    let mut bytes = vec![0_u8; 4096];
    assert_eq!(gpu.d2h(&mut bytes, device), OK);
    assert!(bytes.iter().all(|&byte| byte == 0xCB));
    gpu.free(device);
}

#[test]
fn asynchronous_copies_run_in_order_through_pinned_memory() {
    let gpu = Gpu::new();
    let stream = gpu.stream();
    let len = 1 << 20;
    let (one, two) = (gpu.pinned(len), gpu.pinned(len));
    let device = gpu.alloc(len);
    // SAFETY: pinned memory of `len` bytes that no reference covers.
    unsafe { ptr::copy_nonoverlapping(pattern(len).as_ptr(), one, len) };
    assert_eq!(cu!(gpu, cuMemcpyHtoDAsync(device, one.cast(), len, stream)), OK);
    assert_eq!(cu!(gpu, cuMemcpyDtoHAsync(two.cast(), device, len, stream)), OK);
    gpu.synchronize(stream);
    // SAFETY: as above, and the copies are complete.
    assert!(unsafe { std::slice::from_raw_parts(two, len) } == pattern(len));
    gpu.free(device);
    gpu.free_pinned(one);
    gpu.free_pinned(two);
    gpu.destroy_stream(stream);
    gpu.assert_quiet();
}

#[test]
fn a_pageable_source_may_change_when_the_call_returns() {
    let gpu = Gpu::new();
    let stream = gpu.stream();
    let mut from = pattern(64 << 10);
    let device = gpu.alloc(from.len());
    let len = from.len();
    assert_eq!(cu!(gpu, cuMemcpyHtoDAsync(device, from.as_ptr().cast(), len, stream)), OK);
    from.fill(0);
    let mut to = vec![0_u8; from.len()];
    assert_eq!(cu!(gpu, cuMemcpyDtoHAsync(to.as_mut_ptr().cast(), device, len, stream)), OK);
    assert!(to == pattern(64 << 10), "and a pageable destination is written");
    gpu.free(device);
    gpu.destroy_stream(stream);
}

#[test]
fn registered_memory_is_checked_page_by_page() {
    let gpu = Gpu::new();
    let page = 4096;
    let map = Mapping::anonymous(4 * page);
    assert_eq!(gpu.register(map.at(0), 2 * page, 0), OK);
    assert_eq!(gpu.register(map.at(page), 2 * page, 0), CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    assert_eq!(gpu.unregister(map.at(page)), INVALID_VALUE);
    assert_eq!(gpu.unregister(map.at(0)), OK);
    assert_eq!(gpu.unregister(map.at(0)), CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    map.protect(page, page, libc::PROT_NONE);
    assert_eq!(gpu.register(map.at(0), 2 * page, 0), INVALID_VALUE, "a page without access");
    map.protect(page, page, libc::PROT_READ);
    assert_eq!(gpu.register(map.at(0), 2 * page, 0), INVALID_VALUE, "a page that cannot be written");
    assert_eq!(gpu.register(map.at(0), 2 * page, CU_MEMHOSTREGISTER_READ_ONLY), OK);
    let device = gpu.alloc(page);
    let copy = cu!(gpu, cuMemcpyDtoH(map.at(0), device, page));
    assert_eq!(copy, INVALID_VALUE, "read-only registrations are not written");
    assert_eq!(gpu.unregister(map.at(0)), OK);
    gpu.free(device);
    gpu.assert_quiet();
}

#[test]
fn a_file_that_shrinks_is_an_error_and_no_signal() {
    let gpu = Gpu::new();
    let (file, map) = Mapping::file(1 << 20, libc::PROT_READ);
    assert_eq!(gpu.register(map.at(0), 1 << 20, 0), INVALID_VALUE, "a read-only mapping");
    assert_eq!(gpu.register(map.at(0), 1 << 20, CU_MEMHOSTREGISTER_READ_ONLY), OK);
    file.set_len(4096).unwrap();
    let device = gpu.alloc(1 << 20);
    let copy = cu!(gpu, cuMemcpyHtoD(device, map.at(0), 1 << 20));
    assert_eq!(copy, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let gpu = Gpu::new();
    assert_eq!(
        gpu.register(map.at(0), 1 << 20, CU_MEMHOSTREGISTER_READ_ONLY),
        INVALID_VALUE,
        "beyond the end"
    );
    let device = gpu.alloc(1 << 20);
    let copy = cu!(gpu, cuMemcpyHtoD(device, map.at(0), 1 << 20));
    assert_eq!(copy, INVALID_VALUE, "pageable");
    gpu.free(device);
}

#[test]
fn a_shared_mapping_of_a_file_on_disk_cannot_be_pinned_for_writing() {
    let gpu = Gpu::new();
    let (_file, map) = Mapping::file(1 << 20, libc::PROT_READ | libc::PROT_WRITE);
    assert_eq!(gpu.register(map.at(0), 1 << 20, 0), INVALID_VALUE);
    assert_eq!(gpu.register(map.at(0), 1 << 20, CU_MEMHOSTREGISTER_READ_ONLY), OK);
    assert_eq!(gpu.unregister(map.at(0)), OK);
    gpu.assert_quiet();
}

#[test]
fn memory_runs_out_at_the_configured_size() {
    let gpu = Gpu::with(Sim::builder().memory(64 << 20));
    let one = gpu.alloc(48 << 20);
    let (mut free, mut total) = (0, 0);
    assert_eq!(cu!(gpu, cuMemGetInfo(&mut free, &mut total)), OK);
    assert_eq!((free, total), (16 << 20, 64 << 20));
    let mut two = 0;
    assert_eq!(cu!(gpu, cuMemAlloc(&mut two, 32 << 20)), OUT_OF_MEMORY);
    gpu.free(one);
    let two = gpu.alloc(64 << 20);
    gpu.free(two);
}

#[test]
fn without_data_any_size_can_be_had() {
    let gpu = Gpu::with(Sim::builder().memory(1 << 50).no_data());
    let device = gpu.alloc(1 << 45);
    assert_eq!(gpu.h2d(device + (1 << 44), &[1, 2, 3]), OK);
    assert_eq!(gpu.h2d(device + (1 << 45) - 2, &[1, 2, 3]), INVALID_VALUE);
    assert_eq!(gpu.free(device), OK);
    gpu.assert_quiet();
}

#[test]
fn rows_are_copied_between_pitches() {
    let gpu = Gpu::new();
    let (mut device, mut pitch) = (0, 0);
    assert_eq!(cu!(gpu, cuMemAllocPitch(&mut device, &mut pitch, 100, 8, 4)), OK);
    assert_eq!(pitch, 512);
    let from = pattern(800);
    let up = Copy2d {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: from.as_ptr().cast(),
        srcPitch: 100,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstDevice: device,
        dstPitch: pitch,
        WidthInBytes: 100,
        Height: 8,
        ..Copy2d::default()
    };
    assert_eq!(cu!(gpu, cuMemcpy2D(&up)), OK);
    let mut row = [0_u8; 100];
    assert_eq!(gpu.d2h(&mut row, device + 3 * 512), OK);
    assert_eq!(row[..], from[300..400]);
    gpu.free(device);
}

#[test]
fn a_free_that_is_not_ordered_after_a_use_is_reported_with_both_calls() {
    let gpu = Gpu::new();
    let stream = gpu.stream();
    let device = gpu.alloc(1024);
    assert_eq!(cu!(gpu, cuMemsetD8Async(device, 7, 1024, stream)), OK);
    assert_eq!(gpu.free(device), OK);
    let misuse = gpu.sim.misuse();
    assert_eq!(misuse.len(), 1, "{misuse:?}");
    assert_eq!(misuse[0].kind, MisuseKind::UseUnorderedWithFree);
    assert_eq!((misuse[0].earlier.function, misuse[0].later.function), ("cuMemsetD8Async", "cuMemFree"));
}

#[test]
fn a_use_after_the_free_is_refused_and_reported() {
    let gpu = Gpu::new();
    let device = gpu.alloc(1024);
    gpu.free(device);
    assert_eq!(gpu.h2d(device, &[1]), INVALID_VALUE);
    assert_eq!(gpu.free(device), INVALID_VALUE);
    let kinds: Vec<_> = gpu.sim.misuse().iter().map(|misuse| misuse.kind).collect();
    assert_eq!(kinds, [MisuseKind::UseAfterFree, MisuseKind::DoubleFree]);
}

#[test]
fn leaks_name_the_call_that_made_them() {
    let gpu = Gpu::new();
    let device = gpu.alloc(1024);
    let leaks = gpu.sim.leaks();
    let leak = leaks.iter().find(|leak| leak.what == "device memory").unwrap();
    assert_eq!(
        (leak.range.clone(), leak.made.as_ref().unwrap().function),
        (device..device + 1024, "cuMemAlloc")
    );
    gpu.free(device);
}

#[test]
fn the_host_cannot_follow_a_device_pointer() {
    let gpu = Gpu::new();
    let device = gpu.alloc(4096);
    let mut byte = 0_u8;
    let near = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let far = libc::iovec { iov_base: ptr::without_provenance_mut::<c_void>(device as usize), iov_len: 1 };
    let own = std::process::id() as libc::pid_t;
    // SAFETY: the kernel checks the address that is read; one byte is written to a local variable.
    let read = unsafe { libc::process_vm_readv(own, &near, 1, &far, 1, 0) };
    assert_eq!(read, -1);
    gpu.free(device);
}

#[test]
fn attributes_tell_kinds_of_memory_apart() {
    let gpu = Gpu::new();
    let device = gpu.alloc(1000);
    let kind = |at: u64| {
        let mut kind = 0_u32;
        let which = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        let result = cu!(gpu, cuPointerGetAttribute((&raw mut kind).cast(), which, at));
        (result, kind)
    };
    assert_eq!(kind(device), (OK, 2));
    assert_eq!(kind(device + 999), (OK, 2));
    assert_eq!(kind(device + 1000), (INVALID_VALUE, 0));
    let pinned = gpu.pinned(100);
    assert_eq!(kind(pinned.addr() as u64), (OK, 1));
    gpu.free_pinned(pinned);
    gpu.free(device);
}
