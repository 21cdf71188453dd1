//! Virtual memory management on the simulated driver.

use std::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

use cuda_mem_sim::{MisuseKind, Sim};
use cuda_mem_sys::{
    CUmemAccess_flags, CUmemAccessDesc_v1, CUmemAllocationHandleType, CUmemAllocationProp_v1,
    CUmemAllocationType, CUmemLocation, CUmemLocationType, CUresult,
};

use crate::gpu::{Gpu, INVALID_VALUE, OK, OUT_OF_MEMORY, cu, pattern};

const PAGE: usize = 2 << 20;
const FD: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

fn properties(type_: CUmemLocationType) -> CUmemAllocationProp_v1 {
    CUmemAllocationProp_v1 {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: CUmemLocation { type_, id: 0 },
        ..CUmemAllocationProp_v1::default()
    }
}

fn device() -> CUmemAllocationProp_v1 {
    properties(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE)
}

fn create(gpu: &Gpu, size: usize, properties: &CUmemAllocationProp_v1) -> u64 {
    let mut handle = 0;
    assert_eq!(cu!(gpu, cuMemCreate(&mut handle, size, properties, 0)), OK);
    handle
}

fn reserve(gpu: &Gpu, size: usize) -> u64 {
    let mut at = 0;
    assert_eq!(cu!(gpu, cuMemAddressReserve(&mut at, size, 0, 0, 0)), OK);
    at
}

fn allow(gpu: &Gpu, at: u64, size: usize, type_: CUmemLocationType, flags: CUmemAccess_flags) -> CUresult {
    let access = CUmemAccessDesc_v1 { location: CUmemLocation { type_, id: 0 }, flags };
    cu!(gpu, cuMemSetAccess(at, size, &access, 1))
}

fn allow_device(gpu: &Gpu, at: u64, size: usize) {
    let write = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    assert_eq!(allow(gpu, at, size, CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, write), OK);
}

#[test]
fn one_handle_at_two_addresses_is_one_memory() {
    let gpu = Gpu::new();
    let handle = create(&gpu, PAGE, &device());
    let (one, two) = (reserve(&gpu, PAGE), reserve(&gpu, PAGE));
    for at in [one, two] {
        assert_eq!(cu!(gpu, cuMemMap(at, PAGE, 0, handle, 0)), OK);
        assert_eq!(gpu.h2d(at, &[1]), INVALID_VALUE, "nobody may use it yet");
        allow_device(&gpu, at, PAGE);
    }
    assert_eq!(cu!(gpu, cuMemRelease(handle)), OK);
    assert_eq!(cu!(gpu, cuMemRelease(handle)), INVALID_VALUE);
    assert_eq!(gpu.h2d(one + 100, &[1, 2, 3]), OK);
    let mut bytes = [0_u8; 3];
    assert_eq!(gpu.d2h(&mut bytes, two + 100), OK);
    assert_eq!(bytes, [1, 2, 3]);
    assert_eq!(cu!(gpu, cuMemUnmap(one, PAGE)), OK);
    assert_eq!(gpu.d2h(&mut bytes, one + 100), INVALID_VALUE);
    assert_eq!(gpu.d2h(&mut bytes, two + 100), OK, "the other mapping keeps the memory");
    assert_eq!(cu!(gpu, cuMemUnmap(two, PAGE)), OK);
    for at in [one, two] {
        assert_eq!(cu!(gpu, cuMemAddressFree(at, PAGE)), OK);
    }
    let (mut free, mut total) = (0, 0);
    assert_eq!(cu!(gpu, cuMemGetInfo(&mut free, &mut total)), OK);
    assert_eq!(free, total);
}

#[test]
fn a_copy_may_span_mappings_but_not_a_hole() {
    let gpu = Gpu::new();
    let base = reserve(&gpu, 3 * PAGE);
    let handles = [create(&gpu, PAGE, &device()), create(&gpu, PAGE, &device())];
    assert_eq!(cu!(gpu, cuMemMap(base + PAGE as u64, PAGE, 0, handles[0], 0)), OK);
    assert_eq!(cu!(gpu, cuMemMap(base, PAGE, 0, handles[1], 0)), OK);
    allow_device(&gpu, base, 2 * PAGE);
    let bytes = pattern(PAGE);
    assert_eq!(gpu.h2d(base + PAGE as u64 / 2, &bytes), OK);
    let mut back = vec![0; PAGE];
    assert_eq!(gpu.d2h(&mut back, base + PAGE as u64 / 2), OK);
    assert!(back == bytes);
    assert_eq!(gpu.h2d(base + 3 * PAGE as u64 / 2, &bytes), INVALID_VALUE);
    assert_eq!(cu!(gpu, cuMemUnmap(base, 3 * PAGE)), OK, "holes do not matter");
    assert_eq!(cu!(gpu, cuMemAddressFree(base, 3 * PAGE)), OK);
    for handle in handles {
        assert_eq!(cu!(gpu, cuMemRelease(handle)), OK);
    }
}

#[test]
fn host_memory_is_the_hosts_once_it_may_have_it() {
    let gpu = Gpu::new();
    let node = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;
    let handle = create(&gpu, PAGE, &properties(node));
    let at = reserve(&gpu, PAGE);
    assert_eq!(cu!(gpu, cuMemMap(at, PAGE, 0, handle, 0)), OK);
    allow_device(&gpu, at, PAGE);
    assert_eq!(allow(&gpu, at, PAGE, node, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE), OK);
    assert_eq!(gpu.h2d(at, &[9]), OK);
    // SAFETY: mapped for the host, and nothing else uses it now.
    let seen = unsafe { ptr::with_exposed_provenance::<u8>(at as usize).read() };
    assert_eq!(seen, 9);
    assert_eq!(cu!(gpu, cuMemUnmap(at, PAGE)), OK);
    assert_eq!(cu!(gpu, cuMemAddressFree(at, PAGE)), OK);
    assert_eq!(cu!(gpu, cuMemRelease(handle)), OK);
    gpu.assert_quiet();
}

#[test]
fn an_unmapping_in_use_is_reported() {
    let gpu = Gpu::new();
    let stream = gpu.stream();
    let handle = create(&gpu, PAGE, &device());
    let at = reserve(&gpu, PAGE);
    assert_eq!(cu!(gpu, cuMemMap(at, PAGE, 0, handle, 0)), OK);
    allow_device(&gpu, at, PAGE);
    assert_eq!(cu!(gpu, cuMemsetD8Async(at, 1, 100, stream)), OK);
    assert_eq!(cu!(gpu, cuMemUnmap(at, PAGE)), OK);
    assert_eq!(gpu.sim.misuse()[0].kind, MisuseKind::UnmappedInUse);
}

#[test]
fn whoever_waits_for_a_context_has_waited_for_streams_that_are_gone() {
    let gpu = Gpu::new();
    let handle = create(&gpu, PAGE, &device());
    let at = reserve(&gpu, PAGE);
    assert_eq!(cu!(gpu, cuMemMap(at, PAGE, 0, handle, 0)), OK);
    allow_device(&gpu, at, PAGE);
    // The first have done their work long before the last are there.
    for place in 0..200 {
        let stream = gpu.stream();
        assert_eq!(cu!(gpu, cuMemsetD8Async(at + place, 1, 1, stream)), OK);
        assert_eq!(cu!(gpu, cuStreamDestroy(stream)), OK);
    }
    assert_eq!(cu!(gpu, cuCtxSynchronize()), OK);
    assert_eq!(cu!(gpu, cuMemUnmap(at, PAGE)), OK);
    gpu.assert_no_misuse();
}

#[test]
fn a_copy_into_where_the_next_mapping_was_is_reported() {
    let gpu = Gpu::new();
    let (handle, at) = (create(&gpu, PAGE, &device()), reserve(&gpu, 2 * PAGE));
    for at in [at, at + PAGE as u64] {
        assert_eq!(cu!(gpu, cuMemMap(at, PAGE, 0, handle, 0)), OK);
    }
    allow_device(&gpu, at, 2 * PAGE);
    assert_eq!(cu!(gpu, cuMemUnmap(at + PAGE as u64, PAGE)), OK);
    gpu.assert_no_misuse();
    assert_eq!(gpu.h2d(at + PAGE as u64 - 1, &[1, 2]), INVALID_VALUE);
    let misuse = gpu.sim.misuse();
    assert_eq!(misuse[0].kind, MisuseKind::UseAfterFree);
    assert_eq!(misuse[0].range, at + PAGE as u64..at + 2 * PAGE as u64);
    assert_eq!(cu!(gpu, cuMemMap(at + PAGE as u64, PAGE, 0, handle, 0)), OK);
    allow_device(&gpu, at, 2 * PAGE);
    assert_eq!(gpu.h2d(at + PAGE as u64 - 1, &[1, 2]), OK);
    assert_eq!(gpu.sim.misuse().len(), 1, "the addresses have memory again");
}

#[test]
fn work_through_one_mapping_does_not_keep_another_of_the_same_memory() {
    let gpu = Gpu::new();
    let stream = gpu.stream();
    let (handle, at) = (create(&gpu, PAGE, &device()), reserve(&gpu, 2 * PAGE));
    for at in [at, at + PAGE as u64] {
        assert_eq!(cu!(gpu, cuMemMap(at, PAGE, 0, handle, 0)), OK);
    }
    allow_device(&gpu, at, 2 * PAGE);
    assert_eq!(cu!(gpu, cuMemsetD8Async(at, 1, 100, stream)), OK);
    assert_eq!(cu!(gpu, cuMemUnmap(at + PAGE as u64, PAGE)), OK);
    gpu.assert_no_misuse();
    gpu.synchronize(stream);
    assert_eq!(cu!(gpu, cuMemUnmap(at, PAGE)), OK);
    gpu.assert_no_misuse();
}

#[test]
fn there_are_at_most_as_many_mappings_as_on_hardware() {
    const MAPPINGS: usize = 524_072;
    const HANDLES: usize = 100_000;
    let gpu = Gpu::with(Sim::builder().no_data().memory(256 << 30));
    let handles: Vec<u64> = (0..HANDLES).map(|_| create(&gpu, PAGE, &device())).collect();
    let at = reserve(&gpu, 16 << 40);
    let place = |index: usize| at + (index * PAGE) as u64;
    let map = |index: usize| cu!(gpu, cuMemMap(place(index), PAGE, 0, handles[index % HANDLES], 0));
    for index in 0..MAPPINGS {
        assert_eq!(map(index), OK, "{index}");
    }
    assert_eq!(map(MAPPINGS), OUT_OF_MEMORY);
    allow_device(&gpu, place(1000), 300_000 * PAGE);
    assert_eq!(cu!(gpu, cuMemsetD8(place(1000), 1, 300_000 * PAGE)), OK);
    // A memset of device memory may return before it is done.
    assert_eq!(cu!(gpu, cuCtxSynchronize()), OK);
    assert_eq!(cu!(gpu, cuMemUnmap(place(7), PAGE)), OK);
    assert_eq!(map(MAPPINGS), OK);
    assert_eq!(map(7), OUT_OF_MEMORY);
    assert_eq!(cu!(gpu, cuMemUnmap(at, 2 * MAPPINGS * PAGE)), OK);
    for handle in handles {
        assert_eq!(cu!(gpu, cuMemRelease(handle)), OK);
    }
    assert_eq!(cu!(gpu, cuMemAddressFree(at, 16 << 40)), OK);
    gpu.assert_quiet();
}

#[test]
fn mappings_with_data_run_out_before_the_process_can_map_no_more() {
    let gpu = Gpu::new();
    let (handle, at) = (create(&gpu, PAGE, &device()), reserve(&gpu, 1 << 40));
    // Every other page, so that none lies beside another.
    let map = |index: u64| cu!(gpu, cuMemMap(at + 2 * index * PAGE as u64, PAGE, 0, handle, 0));
    let refused = (0..).map(map).find(|&result| result != OK);
    assert_eq!(refused, Some(OUT_OF_MEMORY));
    assert_eq!(vec![1_u8; 256 << 20].last(), Some(&1), "the program still gets memory");
    assert_eq!(cu!(gpu, cuMemUnmap(at, 1 << 40)), OK);
    assert_eq!(cu!(gpu, cuMemAddressFree(at, 1 << 40)), OK);
    assert_eq!(cu!(gpu, cuMemRelease(handle)), OK);
    gpu.assert_quiet();
}

/// Another simulator stands for another process here: it shares nothing with the first but the descriptor.
#[test]
fn exported_memory_is_the_same_memory_elsewhere() {
    let exporter = Gpu::new();
    let handle = create(&exporter, PAGE, &CUmemAllocationProp_v1 { requestedHandleTypes: FD, ..device() });
    let at = reserve(&exporter, PAGE);
    assert_eq!(cu!(exporter, cuMemMap(at, PAGE, 0, handle, 0)), OK);
    allow_device(&exporter, at, PAGE);
    assert_eq!(exporter.h2d(at, b"hello"), OK);
    let mut fd = -1_i32;
    let result = cu!(exporter, cuMemExportToShareableHandle((&raw mut fd).cast::<c_void>(), handle, FD, 0));
    assert_eq!(result, OK);
    // SAFETY: a descriptor that the call made for its caller.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    drop(exporter);

    let importer = Gpu::new();
    let shareable = ptr::without_provenance_mut::<c_void>(fd as usize);
    let mut handle = 0;
    assert_eq!(cu!(importer, cuMemImportFromShareableHandle(&mut handle, shareable, FD)), OK);
    drop(file);
    let mut found = CUmemAllocationProp_v1::default();
    assert_eq!(cu!(importer, cuMemGetAllocationPropertiesFromHandle(&mut found, handle)), OK);
    let none = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
    assert_eq!((found.location.type_, found.requestedHandleTypes), (device().location.type_, none));
    let at = reserve(&importer, PAGE);
    assert_eq!(cu!(importer, cuMemMap(at, PAGE, 0, handle, 0)), OK);
    allow_device(&importer, at, PAGE);
    let mut bytes = [0_u8; 5];
    assert_eq!(importer.d2h(&mut bytes, at), OK);
    assert_eq!(&bytes, b"hello", "although the exporter is gone");
    let null = std::fs::File::open("/dev/null").unwrap();
    let other = ptr::without_provenance_mut::<c_void>(std::os::fd::AsRawFd::as_raw_fd(&null) as usize);
    let result = cu!(importer, cuMemImportFromShareableHandle(&mut handle, other, FD));
    assert_eq!(result, CUresult::CUDA_ERROR_UNKNOWN);
}
