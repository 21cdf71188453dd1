//! Adaptors over adaptors, and over every kind of resource.

use cuda_mem_pool::{HostDeviceAccessible, MemoryResource, TrackingAdaptor};

use crate::common::{World, pattern};
use crate::support::{cached, device, pinned};

/// Memory goes out and comes back, at three sizes, with and without a stream, owned and by address.
fn works(world: &World, resource: &impl MemoryResource) {
    for bytes in [1, 5000, 1 << 20] {
        let blocks = [
            resource.allocate(bytes, &world.stream).unwrap(),
            resource.allocate(bytes, None).unwrap(),
            resource.allocate(bytes, &world.stream).unwrap(),
        ];
        assert!(blocks.iter().all(|block| block.len() == bytes && block.address() != 0));
        drop(blocks);
        let address = resource.allocate_raw(bytes, None).unwrap();
        // SAFETY: allocated above and not used.
        unsafe { resource.deallocate(address, bytes, None) }.unwrap();
    }
}

fn two_over<R: MemoryResource>(world: &World, base: &R) {
    fn each<R: MemoryResource>(world: &World, resource: &R) {
        works(world, resource);
        let tracking = TrackingAdaptor::new(resource.clone(), false);
        works(world, &tracking);
        assert_eq!((tracking.bytes().current, tracking.allocations().allocated), (0, 12));
    }
    each(world, base);
    each(world, &TrackingAdaptor::new(base.clone(), false));
}

#[test]
fn one_and_two_over_device_memory() {
    let world = World::new();
    let resource = device(&world);
    two_over(&world, &resource);
    world.context.synchronize().unwrap();
    assert_eq!(resource.attributes().used_mem_current().unwrap(), 0);
}

#[test]
fn one_and_two_over_pinned_memory() {
    let world = World::new();
    let Some(resource) = pinned(&world) else { return };
    two_over(&world, &resource);
    world.context.synchronize().unwrap();
    assert_eq!(resource.attributes().used_mem_current().unwrap(), 0);
}

#[test]
fn one_and_two_over_the_pinned_cache() {
    let world = World::new();
    let resource = cached(&world);
    two_over(&world, &resource);
    assert_eq!(resource.statistics().active_requests.current, 0);
}

/// What takes a resource by what its memory is good for takes adaptors over such a resource.
fn filled(resource: &impl MemoryResource<Access = HostDeviceAccessible>, bytes: &[u8]) -> Vec<u8> {
    let mut block = resource.allocate(bytes.len(), None).unwrap();
    block.as_mut_slice().unwrap().copy_from_slice(bytes);
    block.as_slice().unwrap().to_vec()
}

#[test]
fn who_reaches_the_memory_stays_as_it_is_below() {
    let world = World::new();
    let bytes = pattern(10_000, 5);
    let resource = TrackingAdaptor::new(TrackingAdaptor::new(cached(&world), false), false);
    assert_eq!(filled(&resource, &bytes), bytes);
    let Some(resource) = pinned(&world) else { return };
    let resource = TrackingAdaptor::new(TrackingAdaptor::new(resource, false), false);
    assert_eq!(filled(&resource, &bytes), bytes);
}
