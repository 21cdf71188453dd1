//! Copies by address, and what devices reach of each other.

use cuda_mem_core::{DeviceBuffer, Stream};
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::{self, MempoolId};
use cuda_mem_torch::{CudaAllocator, Error};

use crate::common::kernels::Kernels;
use crate::common::{World, pattern};
use crate::native::native;
use crate::program::{MIB, Program, free};

/// The bytes at an address.
fn bytes(stream: &Stream, address: u64, len: usize) -> Vec<u8> {
    let host = DeviceBuffer::<u8>::uninit(stream, len).unwrap();
    let target = host.on(stream).unwrap();
    // SAFETY: memory of that many bytes on both sides, which nobody else uses.
    unsafe { cuda_mem_core::copy::memcpy_async(stream, target.address(), address, len) }.unwrap();
    drop(target);
    host.to_vec(stream).unwrap()
}

#[test]
fn data_is_copied_and_there_when_it_returns() {
    let world = World::new();
    let allocator = native(&world);
    let text = pattern(MIB, 3);
    let source = DeviceBuffer::from_slice(&world.stream, &text).unwrap();
    world.stream.synchronize().unwrap();
    let block = allocator.malloc(MIB, world.context.device(), &world.stream).unwrap();
    // SAFETY: memory of that many bytes on both sides, which nobody else uses.
    let copied = || unsafe { allocator.copy_data(block, source.as_raw(), MIB) };
    world.context.with_current(copied).unwrap().unwrap();
    assert_eq!(bytes(&world.stream, block, MIB), text);
    free(&allocator, block);
}

#[test]
fn copies_between_devices_are_ordered_on_the_stream_with_peer_access_and_without() {
    let world = World::new();
    let allocator = native(&world);
    let text = pattern(MIB, 5);
    let own = world.context.device();
    for device in world.driver.devices().unwrap() {
        let there = Stream::new(&device.primary_context().unwrap()).unwrap();
        let (from, to) = (
            allocator.malloc(MIB, own, &world.stream).unwrap(),
            allocator.malloc(MIB, device, &there).unwrap(),
        );
        let source = DeviceBuffer::from_slice(&world.stream, &text).unwrap();
        let copy = |target, target_device, source, source_device, stream: &Stream, p2p| {
            // SAFETY: memory of that many bytes on both sides, which nobody else uses; the streams wait for each other.
            unsafe { allocator.memcpy_async(target, target_device, source, source_device, MIB, stream, p2p) }
                .unwrap();
        };
        copy(from, own, source.as_raw(), own, &world.stream, false);
        copy(to, device, from, own, &world.stream, false);
        world.stream.synchronize().unwrap();
        assert_eq!(bytes(&there, to, MIB), text);
        if device != own && own.can_access_peer(device).unwrap() {
            allocator.enable_peer_access(own, device).unwrap();
            allocator.enable_peer_access(device, own).unwrap();
            allocator.enable_peer_access(own, device).unwrap();
            copy(from, own, to, device, &world.stream, true);
            world.stream.synchronize().unwrap();
            assert_eq!(bytes(&world.stream, from, MIB), text);
        }
        free(&allocator, to);
        free(&allocator, from);
    }
}

#[test]
fn a_device_reaches_itself() {
    let world = World::new();
    let device = world.context.device();
    native(&world).enable_peer_access(device, device).unwrap();
}

#[test]
fn peers_reach_memory_that_comes_later_and_what_cannot_says_so() {
    let world = World::new();
    let (program, native) = (Program::new().allocator(&world), native(&world));
    program.init(world.driver.device_count().unwrap()).unwrap();
    let own = world.context.device();
    // Memory of `cuMemAlloc`, and memory that is mapped.
    let allocators: [&dyn CudaAllocator; 2] = [&*program, &native];
    for (allocator, device) in allocators.iter().flat_map(|&allocator| {
        world.driver.devices().unwrap().into_iter().skip(1).map(move |it| (allocator, it))
    }) {
        let before = allocator.malloc(3 * MIB, own, &world.stream).unwrap();
        let enabled = allocator.enable_peer_access(device, own);
        if !device.can_access_peer(own).unwrap() {
            let refused = enabled.unwrap_err();
            assert!(matches!(refused, Error::Pool(cuda_mem_pool::Error::NoPeerAccess { .. })), "{refused}");
            free(allocator, before);
            continue;
        }
        enabled.unwrap();
        // More than what is there has free: its end is new.
        let after = allocator.malloc(100 * MIB, own, &world.stream).unwrap();
        let context = device.primary_context().unwrap();
        let (kernels, remote) = (Kernels::load(&context), Stream::new(&context).unwrap());
        for (block, len) in [(before, 3 * MIB), (after, 100 * MIB)] {
            let end = block + (len - 4096) as u64;
            // SAFETY: the last words of memory that nobody else uses.
            unsafe { kernels.fill_u32(&remote, end, 1024, 0x0707_0707) };
            remote.synchronize().unwrap();
            assert_eq!(bytes(&world.stream, end, 4096), [7; 4096]);
            free(allocator, block);
        }
        // The next device's memory is to be new, too.
        allocator.empty_cache(MempoolId::NONE).unwrap();
    }
}
