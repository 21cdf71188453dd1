//! Two devices: copies between them, and what belongs to one is not taken for the other's.
//!
//! On a machine with one device each test here checks that there is indeed only one, and records it.

use std::sync::Arc;

use cuda_mem_core::copy::{self, Stager};
use cuda_mem_core::raw_pool::{AllocationType, MemoryLocation, MemoryPool, PoolBlock, PoolProperties};
use cuda_mem_core::{Context, DeviceBuffer, Error, Event, PinnedBuffer, Stream, host::PinnedFlags, pointer};

use crate::common::gate::Gate;
use crate::common::outcome::record;
use crate::common::{World, pattern};

/// A stream on the second device, if there is one.
fn second(world: &World) -> Option<(Context, Stream)> {
    let count = world.driver.device_count().unwrap();
    record!("devices", &(count > 1));
    if count == 1 {
        assert!(matches!(world.driver.device(1), Err(Error::NoSuchDevice { ordinal: 1, count: 1 })));
        return None;
    }
    let context = world.driver.device(1).unwrap().primary_context().unwrap();
    let stream = Stream::new(&context).unwrap();
    Some((context, stream))
}

#[test]
fn copies_go_from_one_device_to_the_other() {
    let world = World::new();
    let Some((_, there)) = second(&world) else { return };
    let here = &world.stream;
    for len in [1, 4097, (1 << 20) + 3] {
        let bytes = pattern(len, 1);
        let source = DeviceBuffer::from_slice(here, &bytes).unwrap();
        for stream in [here, &there] {
            let target = DeviceBuffer::<u8>::zeroed(&there, len).unwrap();
            target.whole().copy_from(stream, &source.whole()).unwrap();
            let copied = target.to_vec(&there).unwrap();
            record!(&format!("{len}"), &copied);
            assert!(copied == bytes);
        }
    }
}

/// Which the call for copies between contexts does not take.
#[test]
fn memory_of_a_pool_of_the_host_is_copied_to_the_other_device_and_back() {
    let world = World::new();
    let Some((_, there)) = second(&world) else { return };
    let (allocation_type, location) = (AllocationType::Pinned, MemoryLocation::Host);
    let properties = PoolProperties { allocation_type, location, shareable: false, max_size: 0 };
    let pool = MemoryPool::create(world.driver, &properties);
    record!("a pool of the host", &pool.is_ok());
    // There are none before CUDA 13.0.
    let Ok(pool) = pool.map(Arc::new) else { return };
    pool.set_access(&world.driver.devices().unwrap(), true).unwrap();
    let blocks = [(); 2].map(|()| PoolBlock::allocate(&pool, 4097, &world.stream).unwrap());
    let (source, target) = (blocks[0].as_range::<u8>().unwrap(), blocks[1].as_range().unwrap());
    source.copy_from_slice(&world.stream, &pattern(4097, 5)).unwrap();
    let buffer = DeviceBuffer::<u8>::zeroed(&there, 4097).unwrap();
    buffer.whole().copy_from(&there, &source).unwrap();
    assert_eq!(buffer.to_vec(&there).unwrap(), pattern(4097, 5));
    target.copy_from(&there, &buffer.whole()).unwrap();
    let mut back = vec![0; 4097];
    target.copy_to_slice(&world.stream, &mut back).unwrap();
    assert_eq!(back, pattern(4097, 5));
}

#[test]
fn contexts_reach_each_other_and_copy_without() {
    let world = World::new();
    let Some((context, there)) = second(&world) else { return };
    let bytes = pattern(4097, 4);
    let source = DeviceBuffer::from_slice(&world.stream, &bytes).unwrap();
    let target = DeviceBuffer::<u8>::zeroed(&there, 4097).unwrap();
    there.synchronize().unwrap();
    let (to, from) = ((target.as_raw(), &context), (source.as_raw(), &world.context));
    // SAFETY: memory of that many bytes on both sides, which nobody else uses.
    unsafe { copy::memcpy_peer_async(&world.stream, to, from, 4097) }.unwrap();
    world.stream.synchronize().unwrap();
    assert_eq!(target.to_vec(&there).unwrap(), bytes);
    let can = world.context.device().can_access_peer(context.device()).unwrap();
    for _ in 0..2 {
        // The second time it is so already.
        let enabled = world.context.enable_peer_access(&context);
        record!("enabled", &enabled);
        assert_eq!(enabled.is_ok(), can);
    }
}

#[test]
fn uses_on_the_other_device_are_ordered() {
    let world = World::new();
    let Some((_, there)) = second(&world) else { return };
    let here = world.new_stream();
    let source = DeviceBuffer::<u8>::zeroed(&here, 5000).unwrap();
    let target = DeviceBuffer::<u8>::zeroed(&there, 5000).unwrap();
    let gate = Gate::before(&here);
    source.whole().fill_bytes(&here, 6).unwrap();
    target.whole().copy_from(&there, &source.whole()).unwrap();
    source.whole().fill_bytes(&here, 7).unwrap();
    drop(source);
    assert!(!there.is_idle().unwrap());
    gate.open();
    assert_eq!(target.to_vec(&there).unwrap(), [6; 5000]);
}

#[test]
fn events_order_streams_of_two_devices_but_are_recorded_on_their_own() {
    let world = World::new();
    let Some((context, there)) = second(&world) else { return };
    let here = world.new_stream();
    let event = Event::new(&world.context).unwrap();
    let gate = Gate::before(&here);
    here.record(&event).unwrap();
    there.wait(&event).unwrap();
    assert!(!there.is_idle().unwrap());
    gate.open();
    there.synchronize().unwrap();
    let result = there.record(&event);
    record!("another device's event", &result);
    assert!(matches!(result, Err(Error::ForeignContext { .. })));
    here.wait_stream(&there).unwrap();
    let timed = (Event::with_timing(&world.context).unwrap(), Event::with_timing(&context).unwrap());
    assert!(matches!(timed.0.elapsed_since(&timed.1), Err(Error::ForeignContext { .. })));
}

#[test]
fn portable_pinned_memory_serves_both() {
    let world = World::new();
    let Some((_, there)) = second(&world) else { return };
    let mut pinned = PinnedBuffer::<u8>::zeroed(&world.context, 5000, PinnedFlags::PORTABLE).unwrap();
    pinned.as_mut_slice().unwrap().copy_from_slice(&pattern(5000, 2));
    let device = DeviceBuffer::from_slice(&there, pinned.as_slice().unwrap()).unwrap();
    assert_eq!(device.to_vec(&there).unwrap(), pattern(5000, 2));
    let known = pointer::attributes(&world.context, device.as_raw()).unwrap();
    assert_eq!(known.device, there.context().device().as_raw());
    assert_ne!(known.device, world.context.device().as_raw());
}

/// A stager with a ring so small that the copies here go round it.
fn small_stager(context: &Context) -> Stager {
    Stager::builder(context).threads(3).slots(3).slot_bytes(32 << 10).build().unwrap()
}

#[test]
fn a_stager_serves_both_devices_whatever_context_is_current() {
    let world = World::new();
    let Some((context, there)) = second(&world) else { return };
    let here = world.new_stream();
    let (stager, len) = (small_stager(&world.context), 1_000_003);
    std::thread::scope(|scope| {
        for (seed, stream) in [(3, &here), (4, &there), (5, &there), (6, &here)] {
            let (stager, stream) = (stager.clone(), stream.clone());
            // Each works while the context of the other device is current in its thread.
            let current = if stream == here { context.clone() } else { world.context.clone() };
            scope.spawn(move || {
                let copies = || {
                    let device = DeviceBuffer::<u8>::zeroed(&stream, len).unwrap();
                    for seed in [seed, seed + 10] {
                        let (source, mut target) = (pattern(len, seed), vec![0; len]);
                        stager.upload(&stream, &source, &device.whole()).unwrap();
                        stager.download(&stream, &device.whole(), &mut target).unwrap();
                        assert!(target == source);
                        stager.upload_from(&stream, &mut &target[1..], &device.range(1..).unwrap()).unwrap();
                        stager.upload(&stream, &source[..9], &device.range(..9).unwrap()).unwrap();
                        assert!(device.to_vec(&stream).unwrap() == source);
                    }
                };
                current.with_current(copies).unwrap();
            });
        }
    });
}

#[test]
fn a_stager_that_is_dropped_waits_for_its_copies_on_both_devices() {
    let world = World::new();
    let Some((_, there)) = second(&world) else { return };
    let here = world.new_stream();
    let (stager, len) = (small_stager(&world.context), 90 << 10);
    let buffer = |stream| DeviceBuffer::<u8>::zeroed(stream, len).unwrap();
    let (on_here, on_there) = (buffer(&here), buffer(&there));
    let gates = (Gate::before(&here), Gate::before(&there));
    std::thread::scope(|scope| {
        let part = on_here.range(..70_000).unwrap();
        stager.upload(&here, &pattern(70_000, 7), &part).unwrap();
        let copies = scope.spawn(|| {
            let stager = stager;
            stager.upload(&there, &pattern(len, 9), &on_there.whole()).unwrap();
            drop(stager);
        });
        gates.0.open();
        gates.1.open();
        copies.join().unwrap();
    });
    assert!(on_here.to_vec(&here).unwrap()[..70_000] == pattern(70_000, 7));
    assert!(on_there.to_vec(&there).unwrap() == pattern(len, 9));
}

#[test]
fn a_stager_takes_what_a_plain_copy_takes_and_goes_on() {
    let world = World::new();
    let Some((_, there)) = second(&world) else { return };
    let (here, stager, len) = (&world.stream, small_stager(&world.context), 200_000);
    let (source, mut target) = (pattern(len, 8), vec![0; len]);
    // The one device's stream and the other's memory: whether that goes is the driver's to say.
    let device = DeviceBuffer::<u8>::zeroed(here, len).unwrap();
    let plain = device.copy_from_slice(&there, &source);
    record!("another device's memory", &plain);
    for _ in 0..5 {
        let staged = stager.upload(&there, &source, &device.whole());
        assert_eq!(staged.map_err(|error| error.code()), plain.clone().map_err(|error| error.code()));
        let staged = stager.download(&there, &device.whole(), &mut target);
        assert_eq!(staged.is_ok(), plain.is_ok());
    }
    stager.upload(here, &source, &device.whole()).unwrap();
    stager.download(here, &device.whole(), &mut target).unwrap();
    assert!(target == source);
}
