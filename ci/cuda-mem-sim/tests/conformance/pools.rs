//! Memory pools.

use std::ptr;

use cuda_mem_sys::{
    CUmemAccess_flags, CUmemAccessDesc_v1, CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation,
    CUmemLocationType, CUmemPool_attribute as Attribute, CUmemPoolProps_v1, CUmemPoolPtrExportData_v1,
    CUmemoryPool,
};

use crate::Case;
use crate::questions::{Questions, ask, cu};

pub(crate) const DEVICE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
const HOST: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;
pub(crate) const NODE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;
const CURRENT_NODE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;

pub(crate) fn properties(type_: CUmemLocationType, id: i32, handles: u32) -> CUmemPoolProps_v1 {
    CUmemPoolProps_v1 {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: CUmemAllocationHandleType(handles),
        location: CUmemLocation { type_, id },
        ..CUmemPoolProps_v1::default()
    }
}

/// Asks for a pool, and ends it again if there is one.
fn create(q: &mut Questions, situation: &str, properties: &CUmemPoolProps_v1) {
    let mut pool = ptr::null_mut();
    ask!(q, situation, cuMemPoolCreate(&mut pool, properties));
    if !pool.is_null() {
        q.expect(cu!(q, cuMemPoolDestroy(pool)));
    }
}

pub(crate) fn pool(q: &Questions, properties: &CUmemPoolProps_v1) -> CUmemoryPool {
    let mut pool = ptr::null_mut();
    q.expect(cu!(q, cuMemPoolCreate(&mut pool, properties)));
    pool
}

pub(crate) const CASES: &[Case] = &[
    ("memory pools: creation", |m| Questions::answers(m, creation)),
    ("memory pools: destruction", |m| Questions::answers(m, destruction)),
    ("memory pools: attributes", |m| Questions::answers(m, attributes)),
    ("memory pools: sharing", |m| Questions::answers(m, sharing)),
    ("memory pools: by location", |m| Questions::answers(m, by_location)),
    ("memory pools: host pools", |m| Questions::answers(m, host_pools)),
    ("memory pools: thresholds", |m| Questions::answers(m, thresholds)),
];

fn creation(q: &mut Questions) {
    let device = properties(DEVICE, 0, 0);
    create(q, "device", &device);
    create(q, "posix fd", &properties(DEVICE, 0, 1));
    create(q, "win32", &properties(DEVICE, 0, 2));
    create(q, "fabric", &properties(DEVICE, 0, 8));
    create(q, "posix fd \\| fabric", &properties(DEVICE, 0, 9));
    create(q, "handle types 0x40", &properties(DEVICE, 0, 0x40));
    for (situation, kind) in [("allocType 0", 0), ("allocType managed, device", 2), ("allocType 9", 9)] {
        create(q, situation, &CUmemPoolProps_v1 { allocType: CUmemAllocationType(kind), ..device });
    }
    create(q, "device 99", &properties(DEVICE, 99, 0));
    create(q, "location type 0", &properties(CUmemLocationType(0), 0, 0));
    create(q, "location type 99", &properties(CUmemLocationType(99), 0, 0));
    create(q, "HOST", &properties(HOST, 0, 0));
    create(q, "HOST, id 5", &properties(HOST, 5, 0));
    create(q, "HOST, posix fd", &properties(HOST, 0, 1));
    create(q, "HOST_NUMA node 0, posix fd", &properties(NODE, 0, 1));
    create(q, "HOST_NUMA node 7", &properties(NODE, 7, 0));
    create(q, "HOST_NUMA_CURRENT", &properties(CURRENT_NODE, 0, 0));
    let mut reserved = device;
    reserved.reserved[5] = 1;
    create(q, "reserved byte set", &reserved);
    create(q, "usage 0x8000", &CUmemPoolProps_v1 { usage: 0x8000, ..device });
    create(q, "maxSize 1", &CUmemPoolProps_v1 { maxSize: 1, ..device });
    create(q, "maxSize 1 << 60", &CUmemPoolProps_v1 { maxSize: 1 << 60, ..device });
    let mut pool = ptr::null_mut();
    ask!(q, "null props", cuMemPoolCreate(&mut pool, ptr::null()));
}

fn destruction(q: &mut Questions) {
    let stream = q.stream();
    let limited = pool(q, &CUmemPoolProps_v1 { maxSize: 32 << 20, ..properties(DEVICE, 0, 0) });
    let mut at = 0;
    ask!(
        q,
        "over maxSize (pool of 32 MiB, asks 64)",
        cuMemAllocFromPoolAsync(&mut at, 64 << 20, limited, stream)
    );
    q.expect(cu!(q, cuMemAllocFromPoolAsync(&mut at, 1000, limited, stream)));
    q.expect(cu!(q, cuMemFreeAsync(at, stream)));
    ask!(q, "freed but not synchronised", cuMemPoolDestroy(limited));
    let mut default = ptr::null_mut();
    q.expect(cu!(q, cuDeviceGetDefaultMemPool(&mut default, 0)));
    ask!(q, "default pool", cuMemPoolDestroy(default));
    ask!(q, "null", cuMemPoolDestroy(ptr::null_mut()));
    let current = pool(q, &properties(DEVICE, 0, 0));
    q.expect(cu!(q, cuDeviceSetMemPool(0, current)));
    ask!(q, "current pool of the device", cuMemPoolDestroy(current));
    let mut now = ptr::null_mut();
    q.expect(cu!(q, cuDeviceGetMemPool(&mut now, 0)));
    assert_eq!(now, default);
    ask!(q, "twice", cuMemPoolDestroy(current));
    ask!(q, "null pool", cuDeviceSetMemPool(0, ptr::null_mut()));
    let mut location = CUmemLocation { type_: CURRENT_NODE, id: 0 };
    let pinned = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    ask!(q, "HOST_NUMA_CURRENT", cuMemGetDefaultMemPool(&mut now, &mut location, pinned));
}

fn attributes(q: &mut Questions) {
    let pool = pool(q, &properties(DEVICE, 0, 0));
    let mut value = 0_u64;
    let at = (&raw mut value).cast();
    ask!(q, "attribute 99", cuMemPoolSetAttribute(pool, Attribute(99), at));
    let (now, high) = (Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH);
    ask!(q, "USED_MEM_CURRENT (read-only)", cuMemPoolSetAttribute(pool, now, at));
    ask!(q, "USED_MEM_HIGH to 0", cuMemPoolSetAttribute(pool, high, at));
    let mut five = 5_u64;
    ask!(q, "USED_MEM_HIGH to 5", cuMemPoolSetAttribute(pool, high, (&raw mut five).cast()));
    ask!(q, "more than reserved", cuMemPoolTrimTo(pool, 1 << 40));
    let access = |id, flags| CUmemAccessDesc_v1 { location: CUmemLocation { type_: DEVICE, id }, flags };
    let none = access(0, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE);
    let read = access(0, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ);
    let stranger = access(99, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    ask!(q, "the pool's own device to NONE", cuMemPoolSetAccess(pool, &none, 1));
    ask!(q, "the pool's own device to READ", cuMemPoolSetAccess(pool, &read, 1));
    ask!(q, "device 99", cuMemPoolSetAccess(pool, &stranger, 1));
    let (mut flags, mut own) =
        (CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE, CUmemLocation { type_: DEVICE, id: 0 });
    ask!(q, "the pool's own device", cuMemPoolGetAccess(&mut flags, pool, &mut own));
    assert_eq!(flags, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    q.expect(cu!(q, cuMemPoolDestroy(pool)));
}

fn sharing(q: &mut Questions) {
    let (stream, pool) = (q.stream(), pool(q, &properties(DEVICE, 0, 0)));
    let mut fd = -1_i32;
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    ask!(
        q,
        "pool without handle types",
        cuMemPoolExportToShareableHandle((&raw mut fd).cast(), pool, kind, 0)
    );
    let (mut at, device) = (0, q.alloc(4096));
    q.expect(cu!(q, cuMemAllocFromPoolAsync(&mut at, 1000, pool, stream)));
    let mut data = CUmemPoolPtrExportData_v1::default();
    ask!(q, "pointer of a pool without handle types", cuMemPoolExportPointer(&mut data, at));
    ask!(q, "cuMemAlloc pointer", cuMemPoolExportPointer(&mut data, device));
    q.expect(cu!(q, cuMemFreeAsync(at, stream)));
    q.expect(cu!(q, cuMemFree(device)));
}

fn by_location(q: &mut Questions) {
    let pinned = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    let managed = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED;
    for (situation, type_, id, kind) in [
        ("device", DEVICE, 0, pinned),
        ("HOST", HOST, 0, pinned),
        ("HOST_NUMA node 0", NODE, 0, pinned),
        ("HOST_NUMA node 7", NODE, 7, pinned),
        ("device 99", DEVICE, 99, pinned),
        ("managed, no location", CUmemLocationType(0), 0, managed),
    ] {
        let (mut location, mut default, mut current) =
            (CUmemLocation { type_, id }, ptr::null_mut(), ptr::null_mut());
        ask!(q, situation, cuMemGetDefaultMemPool(&mut default, &mut location, kind));
        ask!(q, situation, cuMemGetMemPool(&mut current, &mut location, kind));
        assert_eq!(default, current);
    }
    let (mut device, mut host) =
        (CUmemLocation { type_: DEVICE, id: 0 }, CUmemLocation { type_: HOST, id: 0 });
    let (on_device, on_host) = (pool(q, &properties(DEVICE, 0, 0)), pool(q, &properties(HOST, 0, 0)));
    ask!(q, "the device's", cuMemSetMemPool(&mut device, pinned, on_device));
    ask!(q, "a host pool for the device", cuMemSetMemPool(&mut device, pinned, on_host));
    ask!(q, "the host's", cuMemSetMemPool(&mut host, pinned, on_host));
    ask!(q, "a host pool for the device", cuDeviceSetMemPool(0, on_host));
    let mut now = ptr::null_mut();
    q.expect(cu!(q, cuMemGetMemPool(&mut now, &mut host, pinned)));
    assert_eq!(now, on_host);
}

fn host_pools(q: &mut Questions) {
    let stream = q.stream();
    for (name, properties) in [("HOST", properties(HOST, 0, 0)), ("HOST_NUMA", properties(NODE, 0, 0))] {
        let pool = pool(q, &properties);
        let mut at = 0;
        ask!(q, name, cuMemAllocFromPoolAsync(&mut at, 4096, pool, stream));
        q.expect(cu!(q, cuStreamSynchronize(stream)));
        let mut device = CUmemLocation { type_: DEVICE, id: 0 };
        let mut flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        ask!(q, name, cuMemPoolGetAccess(&mut flags, pool, &mut device));
        q.fact("access of the device", flags.0);
        let grant = CUmemAccessDesc_v1 {
            location: device,
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        ask!(q, name, cuMemPoolSetAccess(pool, &grant, 1));
        ask!(q, name, cuMemPoolGetAccess(&mut flags, pool, &mut device));
        q.fact("access of the device", flags.0);
        let (other, byte) = (q.alloc(64), [0_u8]);
        ask!(q, "to it", cuMemcpyHtoDAsync(at, byte.as_ptr().cast(), 1, stream));
        ask!(q, "to it", cuMemcpyDtoDAsync(at, other, 1, stream));
        ask!(q, "from it", cuMemcpyDtoDAsync(other, at, 1, stream));
        ask!(q, "to it", cuMemcpyAsync(at, other, 1, stream));
        ask!(q, "from it", cuMemcpyAsync(other, at, 1, stream));
        q.expect(cu!(q, cuStreamSynchronize(stream)));
        q.expect(cu!(q, cuMemFree(other)));
        let none = CUmemAccessDesc_v1 { flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE, ..grant };
        ask!(q, "taken back", cuMemPoolSetAccess(pool, &none, 1));
        ask!(q, "no descriptions", cuMemPoolSetAccess(pool, ptr::null(), 0));
        ask!(q, "null descriptions", cuMemPoolSetAccess(pool, ptr::null(), 1));
        q.expect(cu!(q, cuMemFreeAsync(at, stream)));
        q.expect(cu!(q, cuStreamSynchronize(stream)));
        q.expect(cu!(q, cuMemPoolDestroy(pool)));
    }
}

fn thresholds(q: &mut Questions) {
    let stream = q.stream();
    for (name, properties) in [
        ("device", properties(DEVICE, 0, 0)),
        ("HOST", properties(HOST, 0, 0)),
        ("HOST_NUMA", properties(NODE, 0, 0)),
        ("device, posix fd", properties(DEVICE, 0, 1)),
    ] {
        let pool = pool(q, &properties);
        for threshold in [0, u64::MAX] {
            let (mut keep, mut reserved, mut at) = (threshold, 0_u64, 0);
            let attribute = Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            q.expect(cu!(q, cuMemPoolSetAttribute(pool, attribute, (&raw mut keep).cast())));
            q.expect(cu!(q, cuMemAllocFromPoolAsync(&mut at, 1000, pool, stream)));
            q.expect(cu!(q, cuMemFreeAsync(at, stream)));
            q.expect(cu!(q, cuStreamSynchronize(stream)));
            let attribute = Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
            let mut keeps = || {
                q.expect(cu!(q, cuMemPoolGetAttribute(pool, attribute, (&raw mut reserved).cast())));
                reserved > 0
            };
            let after_synchronisation = keeps();
            q.expect(cu!(q, cuMemPoolTrimTo(pool, 0)));
            let after_trim = keeps();
            let kept = format!("{after_synchronisation}, after a trim {after_trim}");
            q.fact(&format!("{name}, threshold {threshold}: something kept"), kept);
        }
        q.expect(cu!(q, cuMemPoolDestroy(pool)));
    }
}
