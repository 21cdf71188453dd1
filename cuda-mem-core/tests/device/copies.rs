//! Copies between all kinds of memory, of odd sizes at odd places.

use cuda_mem_core::host::{PinnedFlags, RegisterFlags, Registered};
use cuda_mem_core::{DeviceBuffer, DeviceRange, PinnedBuffer, copy};

use crate::common::outcome::record;
use crate::common::{World, is_filled, pattern};

const SIZES: [usize; 12] = [1, 2, 3, 5, 8, 63, 64, 65, 4095, 4097, 65_537, (1 << 20) + 13];
const OFFSETS: [usize; 4] = [0, 1, 7, 64];

/// Uploads `source` to an odd place, moves it to another, downloads it into `target`, and checks what lies around.
fn round_trip(world: &World, source: &[u8], target: &mut [u8], offset: usize) {
    let (stream, len) = (&world.stream, source.len());
    let first = DeviceBuffer::<u8>::uninit(stream, len + 2 * offset).unwrap();
    first.whole().fill_bytes(stream, 0xee).unwrap();
    let second = DeviceBuffer::<u8>::uninit(stream, len + 130).unwrap();
    second.whole().fill_bytes(stream, 0xdd).unwrap();
    first.range(offset..offset + len).unwrap().copy_from_slice(stream, source).unwrap();
    let moved: DeviceRange<'_, u8> = second.range(65..65 + len).unwrap();
    moved.copy_from(stream, &first.range(offset..offset + len).unwrap()).unwrap();
    moved.copy_to_slice(stream, target).unwrap();
    assert!(target == source, "{len} bytes at {offset}");
    let around = first.to_vec(stream).unwrap();
    assert!(around[..offset].iter().chain(&around[offset + len..]).all(|byte| *byte == 0xee));
    let around = second.to_vec(stream).unwrap();
    assert!(around[..65].iter().chain(&around[65 + len..]).all(|byte| *byte == 0xdd));
}

#[test]
fn pageable_memory() {
    let world = World::new();
    for len in SIZES {
        for offset in OFFSETS {
            let (source, mut target) = (pattern(len + offset, 1), vec![0; len + offset]);
            round_trip(&world, &source[offset..], &mut target[offset..], offset);
            record!(&format!("{len} at {offset}"), &target);
        }
    }
}

#[test]
fn pinned_memory() {
    let world = World::new();
    let pinned =
        || PinnedBuffer::<u8>::zeroed(&world.context, (1 << 20) + 200, PinnedFlags::default()).unwrap();
    let (mut source, mut target) = (pinned(), pinned());
    for len in SIZES {
        for offset in OFFSETS {
            let source = &mut source.as_mut_slice().unwrap()[offset..offset + len];
            source.copy_from_slice(&pattern(len, 2));
            round_trip(&world, source, &mut target.as_mut_slice().unwrap()[offset..offset + len], offset);
        }
    }
}

#[test]
fn registered_memory() {
    let world = World::new();
    let registered =
        || Registered::new(&world.context, vec![0u8; (1 << 20) + 200], RegisterFlags::default()).unwrap();
    let (mut source, mut target) = (registered(), registered());
    for len in SIZES {
        for offset in OFFSETS {
            let source = &mut source.as_mut_slice().unwrap()[offset..offset + len];
            source.copy_from_slice(&pattern(len, 3));
            round_trip(&world, source, &mut target.as_mut_slice().unwrap()[offset..offset + len], offset);
        }
    }
}

#[test]
fn ranges_of_one_buffer() {
    let world = World::new();
    let bytes = pattern(1000, 4);
    let buffer = DeviceBuffer::from_slice(&world.stream, &bytes).unwrap();
    buffer.range(500..750).unwrap().copy_from(&world.stream, &buffer.range(1..251).unwrap()).unwrap();
    let after = buffer.to_vec(&world.stream).unwrap();
    record!("bytes", &after);
    assert_eq!(after[..500], bytes[..500]);
    assert_eq!(after[500..750], bytes[1..251]);
    assert_eq!(after[750..], bytes[750..]);
}

#[test]
fn copies_on_another_stream_than_the_buffers_own() {
    let world = World::new();
    let (one, two) = (world.new_stream(), world.new_stream());
    let bytes = pattern(1 << 20, 5);
    let source = DeviceBuffer::from_slice(&one, &bytes).unwrap();
    let target = DeviceBuffer::<u8>::zeroed(&two, 1 << 20).unwrap();
    target.whole().copy_from(&world.stream, &source.whole()).unwrap();
    source.whole().fill_bytes(&two, 0).unwrap();
    assert!(target.to_vec(&one).unwrap() == bytes);
    assert!(is_filled(&source.to_vec(&one).unwrap(), 0));
}

#[test]
fn raw_copies_between_any_two_addresses() {
    let world = World::new();
    let stream = &world.stream;
    let bytes = pattern(5001, 6);
    let device = DeviceBuffer::<u8>::zeroed(stream, 5001).unwrap();
    let mut back = vec![0u8; 5001];
    let (from, to) =
        (bytes.as_ptr().expose_provenance() as u64, back.as_mut_ptr().expose_provenance() as u64);
    {
        let middle = device.on(stream).unwrap();
        // SAFETY: both sides live until the stream is synchronised, and nobody touches the target before.
        unsafe { copy::memcpy_async(stream, middle.address(), from, 5001) }.unwrap();
        // SAFETY: as above.
        unsafe { copy::memcpy_async(stream, to, middle.address(), 5001) }.unwrap();
        // SAFETY: of no bytes.
        unsafe { copy::memcpy_async(stream, 0, 0, 0) }.unwrap();
    }
    stream.synchronize().unwrap();
    record!("bytes", &back);
    assert_eq!(back, bytes);
}
