//! Two devices: copies between them, and what belongs to one is not taken for the other's.
//!
//! On a machine with one device each test here checks that there is indeed only one, and records it.

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
