//! Memory pools on the simulated driver.

use std::ptr;

use cuda_mem_sim::{MisuseKind, Sim};
use cuda_mem_sys::{
    CUmemAccess_flags, CUmemAccessDesc_v1, CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation,
    CUmemLocationType, CUmemPool_attribute as Attribute, CUmemPoolProps_v1, CUmemoryPool, CUresult, CUstream,
};

use crate::gpu::{Gpu, INVALID_VALUE, OK, OUT_OF_MEMORY, cu};

const SEGMENT: u64 = 32 << 20;

fn location(type_: CUmemLocationType, id: i32) -> CUmemLocation {
    CUmemLocation { type_, id }
}

fn properties(type_: CUmemLocationType, id: i32) -> CUmemPoolProps_v1 {
    CUmemPoolProps_v1 {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: location(type_, id),
        ..CUmemPoolProps_v1::default()
    }
}

fn create(gpu: &Gpu, properties: &CUmemPoolProps_v1) -> Result<CUmemoryPool, CUresult> {
    let mut pool = ptr::null_mut();
    match cu!(gpu, cuMemPoolCreate(&mut pool, properties)) {
        OK => Ok(pool),
        error => Err(error),
    }
}

fn take(gpu: &Gpu, pool: CUmemoryPool, len: usize, stream: CUstream) -> Result<u64, CUresult> {
    let mut at = 0;
    match cu!(gpu, cuMemAllocFromPoolAsync(&mut at, len, pool, stream)) {
        OK => Ok(at),
        error => Err(error),
    }
}

fn attribute(gpu: &Gpu, pool: CUmemoryPool, attribute: Attribute) -> u64 {
    let mut value = 0_u64;
    assert_eq!(cu!(gpu, cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast())), OK);
    value
}

fn device_pool(gpu: &Gpu) -> CUmemoryPool {
    create(gpu, &properties(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0)).unwrap()
}

#[test]
fn a_block_is_reused_at_once_on_its_own_stream_and_counted() {
    let gpu = Gpu::new();
    let (stream, pool) = (gpu.stream(), device_pool(&gpu));
    let one = take(&gpu, pool, 1000, stream).unwrap();
    assert_eq!(attribute(&gpu, pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1000);
    assert_eq!(attribute(&gpu, pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), SEGMENT);
    assert_eq!(cu!(gpu, cuMemsetD8Async(one, 7, 1000, stream)), OK);
    assert_eq!(cu!(gpu, cuMemFreeAsync(one, stream)), OK);
    let two = take(&gpu, pool, 500, stream).unwrap();
    assert_eq!(one, two);
    assert_eq!(cu!(gpu, cuMemFreeAsync(two, stream)), OK);
    assert_eq!(cu!(gpu, cuMemFreeAsync(two, stream)), INVALID_VALUE);
    gpu.synchronize(stream);
    assert_eq!(attribute(&gpu, pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    assert_eq!(attribute(&gpu, pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH), 1000);
    assert_eq!(cu!(gpu, cuMemPoolDestroy(pool)), OK);
    gpu.destroy_stream(stream);
    let kinds: Vec<_> = gpu.sim.misuse().iter().map(|misuse| misuse.kind).collect();
    assert_eq!(kinds, [MisuseKind::DoubleFree]);
}

#[test]
fn another_stream_gets_a_freed_block_only_after_an_event() {
    let gpu = Gpu::new();
    let (one, two, pool) = (gpu.stream(), gpu.stream(), device_pool(&gpu));
    let off = 0_i32;
    let attribute = Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC;
    assert_eq!(cu!(gpu, cuMemPoolSetAttribute(pool, attribute, (&raw const off).cast_mut().cast())), OK);
    let first = take(&gpu, pool, 1000, one).unwrap();
    assert_eq!(cu!(gpu, cuMemFreeAsync(first, one)), OK);
    let second = take(&gpu, pool, 1000, two).unwrap();
    assert_ne!(first, second, "nothing orders the two streams");
    let mut event = ptr::null_mut();
    assert_eq!(cu!(gpu, cuEventCreate(&mut event, 2)), OK);
    assert_eq!(cu!(gpu, cuEventRecord(event, one)), OK);
    assert_eq!(cu!(gpu, cuStreamWaitEvent(two, event, 0)), OK);
    let third = take(&gpu, pool, 1000, two).unwrap();
    assert_eq!(first, third);
    for block in [second, third] {
        assert_eq!(cu!(gpu, cuMemFreeAsync(block, two)), OK);
    }
    assert_eq!(cu!(gpu, cuEventDestroy(event)), OK);
    assert_eq!(cu!(gpu, cuMemPoolDestroy(pool)), OK);
    gpu.destroy_stream(one);
    gpu.destroy_stream(two);
    gpu.assert_quiet();
}

#[test]
fn a_use_on_another_stream_without_order_is_reported() {
    let gpu = Gpu::new();
    let (one, two, pool) = (gpu.stream(), gpu.stream(), device_pool(&gpu));
    let block = take(&gpu, pool, 1000, one).unwrap();
    assert_eq!(cu!(gpu, cuMemsetD8Async(block, 1, 1000, two)), OK);
    assert_eq!(cu!(gpu, cuMemFreeAsync(block, one)), OK);
    let kinds: Vec<_> = gpu.sim.misuse().iter().map(|misuse| misuse.kind).collect();
    assert_eq!(kinds, [MisuseKind::UseBeforeAllocation, MisuseKind::UseUnorderedWithFree]);
}

#[test]
fn synchronisation_gives_back_what_the_threshold_does_not_keep() {
    let gpu = Gpu::new();
    let (stream, pool) = (gpu.stream(), device_pool(&gpu));
    let reserved = |pool| attribute(&gpu, pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    let block = take(&gpu, pool, 1000, stream).unwrap();
    assert_eq!(cu!(gpu, cuMemFreeAsync(block, stream)), OK);
    gpu.synchronize(stream);
    assert_eq!(reserved(pool), 0);
    let keep = u64::MAX;
    let threshold = Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    assert_eq!(cu!(gpu, cuMemPoolSetAttribute(pool, threshold, (&raw const keep).cast_mut().cast())), OK);
    let block = take(&gpu, pool, 1000, stream).unwrap();
    assert_eq!(cu!(gpu, cuMemFreeAsync(block, stream)), OK);
    gpu.synchronize(stream);
    assert_eq!(reserved(pool), SEGMENT);
    assert_eq!(cu!(gpu, cuMemPoolTrimTo(pool, 0)), OK);
    assert_eq!(reserved(pool), 0);
    assert_eq!(cu!(gpu, cuMemPoolDestroy(pool)), OK);
    gpu.destroy_stream(stream);
    gpu.assert_quiet();
}

#[test]
fn limits_hold() {
    let gpu = Gpu::with(Sim::builder().memory(128 << 20));
    let stream = gpu.stream();
    let limited = CUmemPoolProps_v1 {
        maxSize: 32 << 20,
        ..properties(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0)
    };
    let pool = create(&gpu, &limited).unwrap();
    assert_eq!(take(&gpu, pool, 64 << 20, stream), Err(OUT_OF_MEMORY));
    let block = take(&gpu, pool, 32 << 20, stream).unwrap();
    let other = device_pool(&gpu);
    assert_eq!(take(&gpu, other, 100 << 20, stream), Err(OUT_OF_MEMORY));
    assert_eq!(cu!(gpu, cuMemFreeAsync(block, stream)), OK);
    gpu.synchronize(stream);
    let large = take(&gpu, other, 100 << 20, stream).unwrap();
    assert_eq!(cu!(gpu, cuMemFreeAsync(large, stream)), OK);
    gpu.synchronize(stream);
}

#[test]
fn locations_and_handle_types_answer_as_the_hardware() {
    let gpu = Gpu::new();
    let fd = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let none = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
    let rows = [
        (CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0, none, OK),
        (CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0, fd, OK),
        (CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 99, none, INVALID_VALUE),
        (CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, 0, none, OK),
        (CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, 0, fd, INVALID_VALUE),
        (CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, fd, OK),
        (CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, 7, none, INVALID_VALUE),
        (CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0, none, INVALID_VALUE),
    ];
    for (kind, id, handles, expected) in rows {
        let wanted = CUmemPoolProps_v1 { handleTypes: handles, ..properties(kind, id) };
        let code = match create(&gpu, &wanted) {
            Ok(pool) => cu!(gpu, cuMemPoolDestroy(pool)),
            Err(error) => error,
        };
        assert_eq!(code, expected, "{kind:?} {id} {handles:?}");
    }
    gpu.assert_quiet();
    let old = Gpu::with(Sim::builder().driver(12020));
    let host = properties(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, 0);
    assert_eq!(create(&old, &host), Err(INVALID_VALUE));
    assert!(old.table().cuMemGetDefaultMemPool().is_err());
}

#[test]
fn a_host_pool_is_the_hosts_until_a_device_is_let_in() {
    let gpu = Gpu::new();
    let stream = gpu.stream();
    let pool = create(&gpu, &properties(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, 0)).unwrap();
    let block = take(&gpu, pool, 4096, stream).unwrap();
    let host = ptr::with_exposed_provenance_mut::<u8>(block as usize);
    // SAFETY: host pools are memory of the process; nothing else uses this block.
    unsafe { host.write(42) };
    let access = || {
        let mut flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ;
        let mut device = location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0);
        assert_eq!(cu!(gpu, cuMemPoolGetAccess(&mut flags, pool, &mut device)), OK);
        flags.0
    };
    assert_eq!(access(), 0);
    let letting_in = CUmemAccessDesc_v1 {
        location: location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0),
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    assert_eq!(cu!(gpu, cuMemPoolSetAccess(pool, &letting_in, 1)), OK);
    assert_eq!(access(), 3);
    let device = gpu.alloc(1);
    assert_eq!(cu!(gpu, cuMemcpyDtoDAsync(device, block, 1, stream)), INVALID_VALUE);
    assert_eq!(cu!(gpu, cuMemcpyDtoDAsync(block, device, 1, stream)), INVALID_VALUE);
    assert_eq!(cu!(gpu, cuMemcpyAsync(device, block, 1, stream)), OK);
    gpu.synchronize(stream);
    let mut byte = [0_u8];
    assert_eq!(gpu.d2h(&mut byte, device), OK);
    assert_eq!(byte, [42]);
    assert_eq!(cu!(gpu, cuMemFreeAsync(block, stream)), OK);
    gpu.synchronize(stream);
    assert_eq!(cu!(gpu, cuMemPoolDestroy(pool)), OK);
    gpu.free(device);
    gpu.destroy_stream(stream);
    gpu.assert_quiet();
}

#[test]
fn a_destroyed_pool_ends_with_its_last_block() {
    let gpu = Gpu::new();
    let (stream, pool) = (gpu.stream(), device_pool(&gpu));
    let block = take(&gpu, pool, 1000, stream).unwrap();
    assert_eq!(cu!(gpu, cuDeviceSetMemPool(0, pool)), OK);
    assert_eq!(cu!(gpu, cuMemPoolDestroy(pool)), OK);
    assert_eq!(cu!(gpu, cuMemPoolDestroy(pool)), INVALID_VALUE);
    let (mut current, mut default) = (ptr::null_mut(), ptr::null_mut());
    assert_eq!(cu!(gpu, cuDeviceGetMemPool(&mut current, 0)), OK);
    assert_eq!(cu!(gpu, cuDeviceGetDefaultMemPool(&mut default, 0)), OK);
    assert_eq!(current, default);
    assert_eq!(cu!(gpu, cuMemPoolDestroy(default)), INVALID_VALUE);
    assert_eq!(gpu.h2d(block, &[1, 2]), OK);
    assert_eq!(cu!(gpu, cuMemFreeAsync(block, stream)), OK);
    gpu.synchronize(stream);
    let (mut free, mut total) = (0, 0);
    assert_eq!(cu!(gpu, cuMemGetInfo(&mut free, &mut total)), OK);
    assert_eq!(free, total);
    gpu.destroy_stream(stream);
}
