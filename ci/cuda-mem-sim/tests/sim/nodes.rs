//! Nodes of host memory, and what drivers of each version know of them and of host pools.

use std::ptr;

use cuda_mem_sim::{Builder, Sim};
use cuda_mem_sys::{
    CUdevice_attribute as Attribute, CUmem_advise, CUmemAllocationType, CUmemLocation, CUmemLocationType,
    CUmemPoolProps_v1, CUpointer_attribute, CUresult,
};

use crate::gpu::{Gpu, INVALID_VALUE, OK, cu};

const NODE_OF_DEVICE: Attribute = Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID;
const NODE_MAPPINGS: Attribute = Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
const NODE_POOLS: Attribute = Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED;
const HOST_POOLS: Attribute = Attribute::CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED;

const HOST: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;
const NODE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;

fn attribute(gpu: &Gpu, attribute: Attribute, device: i32) -> Result<i32, CUresult> {
    let mut value = -9;
    match cu!(gpu, cuDeviceGetAttribute(&mut value, attribute, device)) {
        OK => Ok(value),
        error => Err(error),
    }
}

fn properties(type_: CUmemLocationType, id: i32) -> CUmemPoolProps_v1 {
    CUmemPoolProps_v1 {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: CUmemLocation { type_, id },
        ..CUmemPoolProps_v1::default()
    }
}

fn pool(gpu: &Gpu, properties: &CUmemPoolProps_v1) -> CUresult {
    let mut pool = ptr::null_mut();
    match cu!(gpu, cuMemPoolCreate(&mut pool, properties)) {
        OK => cu!(gpu, cuMemPoolDestroy(pool)),
        error => error,
    }
}

#[test]
fn each_version_knows_what_its_headers_knew() {
    let unknown = Err(INVALID_VALUE);
    for (version, mappings, node_pools, host_pools) in [
        (12020, unknown, unknown, unknown),
        (12060, unknown, unknown, unknown),
        (12080, unknown, unknown, unknown),
        (12090, Ok(1), Ok(1), unknown),
        (13000, Ok(1), Ok(1), Ok(1)),
    ] {
        let gpu = Gpu::with(Sim::builder().driver(version));
        assert_eq!(attribute(&gpu, NODE_OF_DEVICE, 0), Ok(0), "{version}");
        assert_eq!(attribute(&gpu, NODE_MAPPINGS, 0), mappings, "{version}");
        assert_eq!(attribute(&gpu, NODE_POOLS, 0), node_pools, "{version}");
        assert_eq!(attribute(&gpu, HOST_POOLS, 0), host_pools, "{version}");
    }
}

#[test]
fn pools_of_nodes_came_before_pools_of_the_host() {
    let managed = CUmemPoolProps_v1 {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED,
        ..CUmemPoolProps_v1::default()
    };
    for (version, node, host) in [
        (12020, INVALID_VALUE, INVALID_VALUE),
        (12060, OK, INVALID_VALUE),
        (12090, OK, INVALID_VALUE),
        (13000, OK, OK),
    ] {
        let gpu = Gpu::with(Sim::builder().driver(version));
        assert_eq!(pool(&gpu, &properties(NODE, 0)), node, "{version}");
        assert_eq!(pool(&gpu, &properties(HOST, 0)), host, "{version}");
        assert_eq!(pool(&gpu, &managed), host, "{version}");
        assert_eq!(gpu.table().cuMemGetMemPool().is_ok(), host == OK, "{version}");
    }
}

#[test]
fn devices_take_the_nodes_in_turn_unless_told() {
    let nodes = |builder: Builder| {
        let gpu = Gpu::with(builder);
        [0, 1, 2].map(|device| attribute(&gpu, NODE_OF_DEVICE, device).unwrap())
    };
    assert_eq!(nodes(Sim::builder().devices(3)), [0, 0, 0]);
    assert_eq!(nodes(Sim::builder().devices(3).numa_nodes(2)), [0, 1, 0]);
    assert_eq!(nodes(Sim::builder().devices(3).numa_nodes(2).device_nodes(&[1, 1, 0])), [1, 1, 0]);
    assert_eq!(nodes(Sim::builder().devices(3).numa_nodes(0)), [-1, -1, -1]);
}

#[test]
fn pools_lie_at_nodes_that_there_are() {
    for nodes in [0, 1, 2] {
        let gpu = Gpu::with(Sim::builder().numa_nodes(nodes));
        for node in -1..3 {
            let expected = if (0..nodes).contains(&node) { OK } else { INVALID_VALUE };
            assert_eq!(pool(&gpu, &properties(NODE, node)), expected, "node {node} of {nodes}");
        }
        assert_eq!(pool(&gpu, &properties(HOST, 0)), OK);
        assert_eq!(attribute(&gpu, NODE_POOLS, 0), Ok(i32::from(nodes > 0)));
        gpu.assert_quiet();
    }
}

#[test]
fn memory_of_a_managed_pool_is_managed() {
    let gpu = Gpu::new();
    let managed = CUmemPoolProps_v1 {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED,
        ..CUmemPoolProps_v1::default()
    };
    assert_eq!(pool(&gpu, &CUmemPoolProps_v1 { maxSize: 1 << 20, ..managed }), INVALID_VALUE);
    let (mut pool, mut at, mut is_managed) = (ptr::null_mut(), 0, 0_u32);
    assert_eq!(cu!(gpu, cuMemPoolCreate(&mut pool, &managed)), OK);
    assert_eq!(cu!(gpu, cuMemAllocFromPoolAsync(&mut at, 4096, pool, ptr::null_mut())), OK);
    gpu.synchronize(ptr::null_mut());
    let asked = CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED;
    assert_eq!(cu!(gpu, cuPointerGetAttribute((&raw mut is_managed).cast(), asked, at)), OK);
    assert_eq!(is_managed, 1);
    let host = CUmemLocation { type_: HOST, id: 0 };
    // It moves, but takes no advice; memory of cuMemAllocManaged does.
    let mut alone = 0;
    assert_eq!(cu!(gpu, cuMemAllocManaged(&mut alone, 4096, 1)), OK);
    for number in 1..=6 {
        let advice = CUmem_advise(number);
        let refused = cu!(gpu, cuMemAdvise(at, 4096, advice, host));
        assert_eq!(refused, CUresult::CUDA_ERROR_NOT_SUPPORTED, "{number}");
        assert_eq!(cu!(gpu, cuMemAdvise(alone, 4096, advice, host)), OK, "{number}");
    }
    assert_eq!(cu!(gpu, cuMemFree(alone)), OK);
    assert_eq!(cu!(gpu, cuMemPrefetchAsync(at, 4096, host, 0, ptr::null_mut())), OK);
    assert_eq!(cu!(gpu, cuMemFreeAsync(at, ptr::null_mut())), OK);
    gpu.synchronize(ptr::null_mut());
    assert_eq!(cu!(gpu, cuMemPoolDestroy(pool)), OK);
    gpu.assert_quiet();
}
