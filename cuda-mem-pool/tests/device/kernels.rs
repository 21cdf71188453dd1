//! Kernels write into what pools give, from every device that was let in.

use cuda_mem_core::Stream;
use cuda_mem_pool::{MemoryResource, PinnedMemoryResource};

use crate::common::World;
use crate::common::kernels::Kernels;
use crate::common::outcome::record;
use crate::support::{on_node, pinned};

const COUNT: u64 = 100_003;
const BYTES: usize = 4 * COUNT as usize;

fn written_from_every_device(world: &World, resource: &PinnedMemoryResource) {
    for (device, value) in world.driver.devices().unwrap().into_iter().zip(7u32..) {
        let context = device.primary_context().unwrap();
        let kernels = Kernels::load(&context);
        let stream = Stream::new(&context).unwrap();
        let block = resource.allocate(BYTES, &world.stream).unwrap();
        {
            let words = block.on(&stream).unwrap();
            // SAFETY: the allocation knows that this stream uses it.
            unsafe { kernels.fill_u32(&stream, words.address(), COUNT, value) };
            // SAFETY: as above.
            unsafe { kernels.add_one_u32(&stream, words.address(), COUNT) };
        }
        let bytes = block.as_slice().unwrap();
        let words = bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
        let words = words.collect::<Vec<_>>();
        record!(&format!("device {device:?}"), &words);
        assert_eq!(words, vec![value + 1; COUNT as usize]);
    }
}

#[test]
fn into_a_host_pool() {
    let world = World::new();
    if let Some(resource) = pinned(&world) {
        written_from_every_device(&world, &resource);
    }
}

#[test]
fn into_a_pool_on_a_node_with_ipc_and_without() {
    let world = World::new();
    for ipc_enabled in [false, true] {
        if let Some(resource) = on_node(&world, ipc_enabled) {
            written_from_every_device(&world, &resource);
        }
    }
}

#[test]
fn into_the_drivers_own_pool() {
    let world = World::new();
    if crate::support::has_host_pools(&world) {
        let resource = PinnedMemoryResource::new(&world.context, None).unwrap();
        written_from_every_device(&world, &resource);
    }
}
