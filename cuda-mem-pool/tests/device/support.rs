//! Resources that tests work with.

use cuda_mem_core::Stream;
use cuda_mem_core::sys::CUdevice_attribute;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::pinned_cache::PinnedCacheOptions;
use cuda_mem_pool::segments::Filter;
use cuda_mem_pool::{
    DeviceMemoryResource, DeviceMemoryResourceOptions, Error, PinnedCachingAllocator, PinnedMemoryResource,
    PinnedMemoryResourceOptions,
};

use crate::common::World;

/// A stream's handle as snapshots and histories have it: the legacy default stream's is 0.
pub(crate) fn shown(stream: &Stream) -> u64 {
    let handle = stream.as_raw() as usize as u64;
    if handle == 1 { 0 } else { handle }
}

/// A caching allocator of its own.
pub(crate) fn allocator(world: &World) -> CachingAllocator {
    CachingAllocator::new(&world.context, &CachingOptions::default()).unwrap()
}

/// Frees a block that the test allocated, once.
pub(crate) fn free(allocator: &CachingAllocator, address: u64) {
    // SAFETY: what still uses it was recorded, or is a graph that is launched no more once its pool was released.
    unsafe { allocator.free_by_address(address) }.unwrap();
}

/// Accepts the requests of a stream.
pub(crate) fn on(stream: &Stream) -> Filter {
    Filter::stream(stream.id().as_raw())
}

/// A pool of its own on the device.
pub(crate) fn device(world: &World) -> DeviceMemoryResource {
    DeviceMemoryResource::new(&world.context, &DeviceMemoryResourceOptions::default()).unwrap()
}

/// A pinned cache of its own, without a thread.
pub(crate) fn cached(world: &World) -> PinnedCachingAllocator {
    let options = PinnedCacheOptions::default().with_returns_surplus(false);
    PinnedCachingAllocator::with_options(&world.context, options)
}

/// A pinned pool of its own. Where the driver has none, that it says so is what is tested, and there is none.
pub(crate) fn pinned(world: &World) -> Option<PinnedMemoryResource> {
    let options = PinnedMemoryResourceOptions::default();
    if has_host_pools(world) {
        return Some(PinnedMemoryResource::new(&world.context, &options).unwrap());
    }
    let refused = PinnedMemoryResource::new(&world.context, &options).unwrap_err();
    assert!(matches!(refused, Error::NeedsDriver { needs: 13000, .. }), "{refused}");
    on_node(world, false)
}

/// A pinned pool on node 0, as [`pinned`].
pub(crate) fn on_node(world: &World, ipc_enabled: bool) -> Option<PinnedMemoryResource> {
    let options = PinnedMemoryResourceOptions::default().with_numa_id(0).with_ipc_enabled(ipc_enabled);
    match PinnedMemoryResource::new(&world.context, &options) {
        Ok(resource) => {
            assert!(has_node_pools(world));
            Some(resource)
        }
        Err(refused) => {
            assert!(!has_node_pools(world), "{refused}");
            assert!(matches!(refused, Error::NoSuchPool { .. }), "{refused}");
            None
        }
    }
}

/// Whether the driver has pools of host memory on no node in particular.
pub(crate) fn has_host_pools(world: &World) -> bool {
    world.driver.version() >= 13000
}

/// Whether the driver has pools on nodes, and the machine nodes.
pub(crate) fn has_node_pools(world: &World) -> bool {
    world.driver.version() >= 12060 && node(world) >= 0
}

/// The node next to the device; negative without one.
pub(crate) fn node(world: &World) -> i32 {
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID;
    world.context.device().attribute(attribute).unwrap_or(-1)
}
