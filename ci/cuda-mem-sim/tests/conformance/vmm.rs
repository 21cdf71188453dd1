//! Address ranges, handles and mappings.

use std::ptr;

use cuda_mem_sys::{
    CUmemAccess_flags, CUmemAccessDesc_v1, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp_v1, CUmemAllocationType, CUmemLocation, CUmemLocationType,
};

use crate::Case;
use crate::questions::{Questions, as_host, ask, cu};

const MIB: usize = 1 << 20;
const PAGE: usize = 2 * MIB;
const DEVICE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
const NODE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;
const FD: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

fn properties(type_: CUmemLocationType, id: i32, handles: u32) -> CUmemAllocationProp_v1 {
    CUmemAllocationProp_v1 {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType(handles),
        location: CUmemLocation { type_, id },
        ..CUmemAllocationProp_v1::default()
    }
}

fn handle(q: &Questions, size: usize, handles: u32) -> u64 {
    let mut handle = 0;
    q.expect(cu!(q, cuMemCreate(&mut handle, size, &properties(DEVICE, 0, handles), 0)));
    handle
}

fn range(q: &Questions, size: usize) -> u64 {
    let mut at = 0;
    q.expect(cu!(q, cuMemAddressReserve(&mut at, size, 0, 0, 0)));
    at
}

fn access(type_: CUmemLocationType, id: i32, flags: CUmemAccess_flags) -> CUmemAccessDesc_v1 {
    CUmemAccessDesc_v1 { location: CUmemLocation { type_, id }, flags }
}

pub(crate) const CASES: &[Case] = &[
    ("address ranges and handles: granularity", |m| Questions::answers(m, granularity)),
    ("address ranges and handles: creation", |m| Questions::answers(m, creation)),
    ("address ranges and handles: reservation", |m| Questions::answers(m, reservation)),
    ("address ranges and handles: mapping", |m| Questions::answers(m, mapping)),
    ("address ranges and handles: access rights", |m| Questions::answers(m, access_rights)),
    ("address ranges and handles: unmapping", |m| Questions::answers(m, unmapping)),
    ("address ranges and handles: sharing", |m| Questions::answers(m, sharing)),
    ("address ranges and handles: unusable", |m| Questions::answers(m, unusable)),
];

fn granularity(q: &mut Questions) {
    for kind in 0..5 {
        for (name, option) in [("minimum", 0), ("recommended", 1)] {
            for handles in 0..2 {
                let mut size = 0;
                let situation = format!("location type {kind}, {name}, handle types {handles}");
                let (about, option) = (
                    properties(CUmemLocationType(kind), 0, handles),
                    CUmemAllocationGranularity_flags(option),
                );
                ask!(q, &situation, cuMemGetAllocationGranularity(&mut size, &about, option));
                assert_eq!(size, PAGE);
            }
        }
    }
    let mut size = 0;
    let (minimum, fifth) = (CUmemAllocationGranularity_flags(0), CUmemAllocationGranularity_flags(5));
    let about = properties(DEVICE, 99, 0);
    ask!(q, "device 99", cuMemGetAllocationGranularity(&mut size, &about, minimum));
    let about = properties(DEVICE, 0, 0);
    ask!(q, "option 5", cuMemGetAllocationGranularity(&mut size, &about, fifth));
}

fn creation(q: &mut Questions) {
    let device = properties(DEVICE, 0, 0);
    let mut rdma = device;
    rdma.allocFlags.gpuDirectRDMACapable = 1;
    let managed = CUmemAllocationProp_v1 { type_: CUmemAllocationType(2), ..device };
    let untyped = CUmemAllocationProp_v1 { type_: CUmemAllocationType(0), ..device };
    let rows = [
        ("2 MiB", PAGE, device, 0),
        ("size 1 MiB (not a multiple)", MIB, device, 0),
        ("size 2 MiB + 4096", PAGE + 4096, device, 0),
        ("size 0", 0, device, 0),
        ("size 1 << 60", 1 << 60, device, 0),
        ("200 GiB", 200 << 30, device, 0),
        ("flags 1", PAGE, device, 1),
        ("type 0", PAGE, untyped, 0),
        ("type managed (2)", PAGE, managed, 0),
        ("device 99", PAGE, properties(DEVICE, 99, 0), 0),
        ("handle type 2 (win32)", PAGE, properties(DEVICE, 0, 2), 0),
        ("handle type 8 (fabric)", PAGE, properties(DEVICE, 0, 8), 0),
        ("handle type 0x40", PAGE, properties(DEVICE, 0, 0x40), 0),
        ("gpuDirectRDMACapable", PAGE, rdma, 0),
        (
            "gpuDirectRDMACapable and posix fd",
            PAGE,
            CUmemAllocationProp_v1 { requestedHandleTypes: FD, ..rdma },
            0,
        ),
        ("HOST_NUMA node 0, 2 MiB", PAGE, properties(NODE, 0, 0), 0),
        ("HOST_NUMA node 7", PAGE, properties(NODE, 7, 0), 0),
        ("HOST", PAGE, properties(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, 0, 0), 0),
    ];
    for (situation, size, about, flags) in rows {
        let mut handle = 0;
        ask!(q, situation, cuMemCreate(&mut handle, size, &about, flags));
        if handle != 0 {
            q.expect(cu!(q, cuMemRelease(handle)));
        }
    }
    let mut handle = 0;
    ask!(q, "null props", cuMemCreate(&mut handle, PAGE, ptr::null(), 0));
    ask!(q, "0", cuMemRelease(0));
}

fn reservation(q: &mut Questions) {
    let held = range(q, 16 * MIB);
    let rows = [
        ("16 MiB", 16 * MIB, 0, 0, 0),
        ("16 MiB, alignment 1 GiB", 16 * MIB, 1 << 30, 0, 0),
        ("alignment 3", 16 * MIB, 3, 0, 0),
        ("alignment 3 MiB", 16 * MIB, 3 * MIB, 0, 0),
        ("alignment 4096", 16 * MIB, 4096, 0, 0),
        ("alignment 1 << 45", 16 * MIB, 1 << 45, 0, 0),
        ("size 0", 0, 0, 0, 0),
        ("size 4096", 4096, 0, 0, 0),
        ("size 2 MiB + 4096", PAGE + 4096, 0, 0, 0),
        ("size 1 << 47", 1 << 47, 0, 0, 0),
        ("size 1 << 44 (16 TiB)", 1 << 44, 0, 0, 0),
        ("hint: address already reserved", 16 * MIB, 0, held, 0),
        ("hint: odd address", 16 * MIB, 0, held + 1, 0),
        ("flags 1", 16 * MIB, 0, 0, 1),
    ];
    for (situation, size, alignment, hint, flags) in rows {
        let mut at = 0;
        ask!(q, situation, cuMemAddressReserve(&mut at, size, alignment, hint, flags));
        assert_ne!(at, held);
        if at != 0 {
            q.expect(cu!(q, cuMemAddressFree(at, size)));
        }
    }
    ask!(q, "unknown", cuMemAddressFree(0x7f12_3460_0000, PAGE));
    q.expect(cu!(q, cuMemAddressFree(held, 16 * MIB)));
}

fn mapping(q: &mut Questions) {
    let (at, small, large) = (range(q, 16 * MIB), handle(q, PAGE, 0), handle(q, 2 * PAGE, 0));
    ask!(q, "size 1 MiB (not a multiple)", cuMemMap(at, MIB, 0, small, 0));
    ask!(q, "size 4 MiB of a 2 MiB handle", cuMemMap(at, 2 * PAGE, 0, small, 0));
    ask!(q, "size 0", cuMemMap(at, 0, 0, small, 0));
    ask!(q, "offset 4096", cuMemMap(at, PAGE, 4096, small, 0));
    ask!(q, "offset 2 MiB into a 4 MiB handle", cuMemMap(at, PAGE, PAGE, large, 0));
    ask!(q, "2 MiB of a 4 MiB handle, offset 0", cuMemMap(at, PAGE, 0, large, 0));
    ask!(q, "misaligned address", cuMemMap(at + 4096, PAGE, 0, small, 0));
    ask!(q, "address that is not reserved", cuMemMap(0x7f12_3460_0000, PAGE, 0, small, 0));
    ask!(q, "flags 1", cuMemMap(at, PAGE, 0, small, 1));
    ask!(q, "handle 0", cuMemMap(at, PAGE, 0, 0, 0));
    ask!(q, "valid", cuMemMap(at, PAGE, 0, small, 0));
    ask!(q, "over an existing mapping", cuMemMap(at, PAGE, 0, small, 0));
    ask!(q, "the same handle at a second address", cuMemMap(at + PAGE as u64, PAGE, 0, small, 0));
    q.expect(cu!(q, cuMemRelease(small)));
    ask!(
        q,
        "released handle whose memory is still mapped",
        cuMemMap(at + 2 * PAGE as u64, PAGE, 0, small, 0)
    );
    ask!(q, "released handle, again, still mapped", cuMemRelease(small));
    q.expect(cu!(q, cuMemUnmap(at, 3 * PAGE)));
    q.expect(cu!(q, cuMemRelease(large)));
    q.expect(cu!(q, cuMemAddressFree(at, 16 * MIB)));
}

fn access_rights(q: &mut Questions) {
    let (at, small) = (range(q, 4 * PAGE), handle(q, PAGE, 0));
    let write = access(DEVICE, 0, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    let mut flags = 7;
    let device = CUmemLocation { type_: DEVICE, id: 0 };
    ask!(q, "reserved, not mapped", cuMemSetAccess(at, PAGE, &write, 1));
    q.expect(cu!(q, cuMemMap(at, PAGE, 0, small, 0)));
    ask!(q, "mapped without access", cuMemGetAccess(&mut flags, &device, at));
    assert_eq!(flags, 0);
    ask!(q, "mapped", cuMemSetAccess(at, PAGE, &write, 1));
    ask!(q, "the same again", cuMemSetAccess(at, PAGE, &write, 1));
    ask!(q, "half of a mapping (1 MiB)", cuMemSetAccess(at, MIB, &write, 1));
    ask!(q, "mapped and unmapped part together", cuMemSetAccess(at, 2 * PAGE, &write, 1));
    let stranger = access(DEVICE, 99, write.flags);
    ask!(q, "device 99", cuMemSetAccess(at, PAGE, &stranger, 1));
    let node = access(NODE, 0, write.flags);
    ask!(q, "host NUMA location on device memory", cuMemSetAccess(at, PAGE, &node, 1));
    let odd = access(DEVICE, 0, CUmemAccess_flags(2));
    ask!(q, "flags 2 (invalid)", cuMemSetAccess(at, PAGE, &odd, 1));
    ask!(q, "count 0", cuMemSetAccess(at, PAGE, &write, 0));
    ask!(q, "null descriptors", cuMemSetAccess(at, PAGE, ptr::null(), 1));
    ask!(q, "reserved, not mapped", cuMemGetAccess(&mut flags, &device, at + 2 * PAGE as u64));
    ask!(q, "part of a mapping (1 MiB of 2)", cuMemUnmap(at, MIB));
    q.expect(cu!(q, cuMemUnmap(at, PAGE)));
    q.expect(cu!(q, cuMemRelease(small)));
    q.expect(cu!(q, cuMemAddressFree(at, 4 * PAGE)));
}

fn unmapping(q: &mut Questions) {
    let (at, large) = (range(q, 4 * PAGE), handle(q, 2 * PAGE, 0));
    q.expect(cu!(q, cuMemMap(at, 2 * PAGE, 0, large, 0)));
    ask!(q, "2 MiB of a mapping of 4 MiB", cuMemUnmap(at, PAGE));
    ask!(q, "4 MiB: one mapping of 4 MiB", cuMemUnmap(at, 2 * PAGE));
    ask!(q, "not mapped", cuMemUnmap(at, PAGE));
    let small = handle(q, PAGE, 0);
    q.expect(cu!(q, cuMemMap(at, PAGE, 0, small, 0)));
    q.expect(cu!(q, cuMemMap(at + 2 * PAGE as u64, PAGE, 0, small, 0)));
    ask!(q, "range with a hole (mapped, free, mapped)", cuMemUnmap(at, 3 * PAGE));
    q.expect(cu!(q, cuMemRelease(small)));
    q.expect(cu!(q, cuMemRelease(large)));
    q.expect(cu!(q, cuMemAddressFree(at, 4 * PAGE)));
    let (mut found, device) = (0, q.alloc(PAGE));
    ask!(q, "cuMemAlloc pointer", cuMemRetainAllocationHandle(&mut found, as_host(device)));
    q.expect(cu!(q, cuMemFree(device)));
}

fn sharing(q: &mut Questions) {
    let (plain, shared) = (handle(q, PAGE, 0), handle(q, PAGE, 1));
    let mut fd = -1_i32;
    let to = (&raw mut fd).cast();
    ask!(q, "handle without handle types, posix fd", cuMemExportToShareableHandle(to, plain, FD, 0));
    ask!(q, "posix fd, and imported in the same process", cuMemExportToShareableHandle(to, shared, FD, 0));
    let mut again = 0;
    q.expect(cu!(q, cuMemImportFromShareableHandle(&mut again, as_host(fd as u64), FD)));
    assert_ne!(again, shared);
    let null = std::fs::File::open("/dev/null").unwrap();
    let null = as_host(std::os::fd::AsRawFd::as_raw_fd(&null) as u64);
    ask!(q, "fd of /dev/null", cuMemImportFromShareableHandle(&mut again, null, FD));
    ask!(q, "fd -1", cuMemImportFromShareableHandle(&mut again, as_host(u64::MAX), FD));
    let mut about = CUmemAllocationProp_v1::default();
    ask!(q, "valid", cuMemGetAllocationPropertiesFromHandle(&mut about, shared));
    assert_eq!((about.location.type_, about.location.id, about.requestedHandleTypes), (DEVICE, 0, FD));
    ask!(q, "imported", cuMemGetAllocationPropertiesFromHandle(&mut about, again));
    let none = CUmemAllocationHandleType(0);
    assert_eq!((about.location.type_, about.location.id, about.requestedHandleTypes), (DEVICE, 0, none));
}

fn unusable(q: &mut Questions) {
    let (at, small) = (range(q, 2 * PAGE), handle(q, PAGE, 0));
    let bytes = [1_u8; 16];
    let from = bytes.as_ptr().cast();
    ask!(q, "reserved but unmapped address (VMM)", cuMemcpyHtoD(at, from, 16));
    q.expect(cu!(q, cuMemMap(at, PAGE, 0, small, 0)));
    ask!(q, "mapped address without cuMemSetAccess (VMM)", cuMemcpyHtoD(at, from, 16));
    let read = access(DEVICE, 0, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ);
    q.expect(cu!(q, cuMemSetAccess(at, PAGE, &read, 1)));
    ask!(q, "read-only access (VMM)", cuMemcpyHtoD(at, from, 16));
    q.expect(cu!(q, cuMemUnmap(at, PAGE)));
    q.expect(cu!(q, cuMemRelease(small)));
    ask!(q, "handle whose memory is gone", cuMemRelease(small));
    q.expect(cu!(q, cuMemAddressFree(at, 2 * PAGE)));
}
