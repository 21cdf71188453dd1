//! Staged copies of slices and batches: the bytes, their order, and many threads on one ring.

use cuda_mem_core::copy::Stager;
use cuda_mem_core::host::{RegisterFlags, Registered};
use cuda_mem_core::{DeviceBuffer, Error, Stream};

use crate::common::gate::Gate;
use crate::common::kernels::Kernels;
use crate::common::outcome::record;
use crate::common::{World, pattern};

/// The most that goes without the ring.
const STRAIGHT: usize = 64 << 10;
const SLOT: usize = 32 << 10;
const SLOTS: usize = 3;

/// With slots so small that a copy of some hundred KiB goes round the ring.
fn small(world: &World) -> Stager {
    Stager::builder(&world.context).threads(3).slots(SLOTS).slot_bytes(SLOT).build().unwrap()
}

fn there_and_back(world: &World, stager: &Stager, source: &[u8], target: &mut [u8], offset: usize) {
    let (stream, len) = (&world.stream, source.len());
    let device = DeviceBuffer::<u8>::uninit(stream, len + 2 * offset).unwrap();
    device.whole().fill_bytes(stream, 0xee).unwrap();
    let range = device.range(offset..offset + len).unwrap();
    stager.upload(stream, source, &range).unwrap();
    stager.download(stream, &range, target).unwrap();
    assert!(source == target, "{len} bytes at {offset}");
    let around = device.to_vec(stream).unwrap();
    assert!(around[offset..offset + len] == *source, "{len} bytes at {offset}, copied straight");
    assert!(around[..offset].iter().chain(&around[offset + len..]).all(|byte| *byte == 0xee));
}

#[test]
fn slices_of_all_sizes_at_odd_places() {
    let world = World::new();
    let stager = small(&world);
    let slots = [SLOT - 1, SLOT, SLOT + 1, 3 * SLOT, 3 * SLOT + 1, 10 * SLOT - 7, 41 * SLOT + 13];
    for len in [0, 1, STRAIGHT - 1, STRAIGHT, STRAIGHT + 1].into_iter().chain(slots) {
        for offset in [0, 1, 63] {
            let (source, mut target) = (pattern(len + offset, 1), vec![0; len + offset]);
            there_and_back(&world, &stager, &source[offset..], &mut target[offset..], offset);
            record!(&format!("{len} at {offset}"), &target);
        }
    }
}

#[test]
fn a_ring_of_the_usual_size_and_one_of_the_least() {
    let world = World::new();
    let usual = Stager::new(&world.context).unwrap();
    let least = Stager::builder(&world.context).threads(1).slots(1).slot_bytes(4096).build().unwrap();
    assert_eq!((least.threads(), least.slots(), least.slot_bytes()), (1, 1, 4096));
    // Downloads from 32 MiB on take a way of their own.
    for (stager, len) in [(&usual, 20 << 20), (&usual, (33 << 20) + 7), (&least, (1 << 20) + 5)] {
        let (source, mut target) = (pattern(len, 2), vec![0; len]);
        there_and_back(&world, stager, &source, &mut target, 3);
    }
}

#[test]
fn elements_that_no_slot_is_a_multiple_of() {
    let world = World::new();
    let (stager, stream) = (small(&world), &world.stream);
    let source: Vec<[u32; 3]> = (0..50_000).map(|number| [number, !number, 7]).collect();
    let device = DeviceBuffer::<[u32; 3]>::zeroed(stream, source.len()).unwrap();
    stager.upload(stream, &source, &device.whole()).unwrap();
    let mut target = vec![[0; 3]; source.len() - 1];
    stager.download(stream, &device.range(1..).unwrap(), &mut target).unwrap();
    assert!(target == source[1..]);
}

#[test]
fn an_upload_is_ordered_on_its_stream_and_the_source_is_free_at_once() {
    let world = World::new();
    let (stager, stream, other) = (small(&world), world.new_stream(), world.new_stream());
    let kernels = Kernels::load(&world.context);
    let words = SLOT * SLOTS / 4;
    let device = DeviceBuffer::<u32>::zeroed(&stream, words).unwrap();
    stream.synchronize().unwrap();
    let gate = Gate::before(&stream);
    {
        let earlier = device.on(&stream).unwrap();
        // SAFETY: the buffer knows of the stream.
        unsafe { kernels.fill_u32(&stream, earlier.address(), words as u64, 1) };
    }
    let mut source = vec![5u32; words];
    // It fits into the ring, so that the call returns while the stream is held up.
    stager.upload(&stream, &source, &device.whole()).unwrap();
    source.fill(9);
    {
        let later = device.on(&other).unwrap();
        // SAFETY: as above.
        unsafe { kernels.add_one_u32(&other, later.address(), words as u64) };
    }
    gate.open();
    assert!(device.to_vec(&other).unwrap() == vec![6; words]);
}

#[test]
fn a_download_sees_what_other_streams_wrote_before() {
    let world = World::new();
    let (stager, writer, reader) = (small(&world), world.new_stream(), world.new_stream());
    let device = DeviceBuffer::<u8>::zeroed(&writer, 10 * SLOT).unwrap();
    let gate = Gate::before(&writer);
    device.whole().fill_bytes(&writer, 3).unwrap();
    let mut target = vec![0; 10 * SLOT];
    std::thread::scope(|scope| {
        let download = scope.spawn(|| stager.download(&reader, &device.whole(), &mut target));
        gate.open();
        download.join().unwrap().unwrap();
    });
    assert!(target == vec![3; 10 * SLOT]);
}

#[test]
fn of_copies_that_lie_over_each_other_the_last_one_stays() {
    let world = World::new();
    let (stager, stream, held) = (small(&world), world.new_stream(), world.new_stream());
    let len = 9 * SLOT;
    let bytes = pattern(len, 8);
    let (device, other) =
        (DeviceBuffer::<u8>::zeroed(&stream, len).unwrap(), DeviceBuffer::<u8>::zeroed(&held, len).unwrap());
    held.synchronize().unwrap();
    // Forwards and backwards, within slots and over their ends, twice the same, and one under all that came before.
    let lens = [300, 300, SLOT - 1, SLOT + 1, 2 * SLOT + 7, 5];
    let places = (0..48).map(|piece| {
        let at = if piece % 2 == 0 { piece * 4001 } else { (48 - piece) * 4001 };
        (piece * 17, at..at + lens[piece % lens.len()])
    });
    let places =
        places.chain([(0, 1000..1500), (9, 1000..1500), (3, 700..700 + 4 * SLOT)]).collect::<Vec<_>>();
    let mut expected = vec![0; len];
    let upload_all = |expected: &mut [u8]| {
        for (from, to) in &places {
            let source = &bytes[*from..from + to.len()];
            stager.upload(&stream, source, &device.range(to.clone()).unwrap()).unwrap();
            expected[to.clone()].copy_from_slice(source);
        }
    };
    upload_all(&mut expected);
    assert!(device.to_vec(&stream).unwrap() == expected, "through the ring");
    device.whole().fill_bytes(&stream, 0).unwrap();
    let gate = Gate::before(&held);
    fill_ring(&stager, &held, &other);
    upload_all(&mut expected);
    assert!(device.to_vec(&stream).unwrap() == expected, "past the ring");
    gate.open();
}

/// Has copies of a stream that is held up fill the ring.
fn fill_ring(stager: &Stager, held: &Stream, device: &DeviceBuffer<u8>) {
    let range = device.range(..SLOTS * SLOT).unwrap();
    stager.upload(held, &pattern(SLOTS * SLOT, 9), &range).unwrap();
}

#[test]
fn registered_memory_is_copied_like_any_other() {
    let world = World::new();
    let (stager, stream) = (small(&world), &world.stream);
    for len in [1000, STRAIGHT, 7 * SLOT + 9] {
        let register = |memory| Registered::new(&world.context, memory, RegisterFlags::default()).unwrap();
        let (source, mut target) = (register(pattern(len, 4)), register(vec![0; len]));
        let device = DeviceBuffer::<u8>::zeroed(stream, len).unwrap();
        stager.upload(stream, source.as_slice().unwrap(), &device.whole()).unwrap();
        stager.download(stream, &device.whole(), target.as_mut_slice().unwrap()).unwrap();
        assert!(target.as_slice().unwrap() == source.as_slice().unwrap(), "{len}");
        assert!(target.close().unwrap() == pattern(len, 4), "{len}");
    }
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_copied() {
    let world = World::new();
    let (stager, stream) = (small(&world), &world.stream);
    let device = DeviceBuffer::<u8>::zeroed(stream, 4 * SLOT).unwrap();
    let (whole, bytes) = (device.whole(), vec![1u8; 4 * SLOT + 1]);
    let mismatch = |result: Result<(), Error>| {
        record!("mismatch", &result);
        assert!(matches!(result, Err(Error::LengthMismatch { .. })), "{result:?}");
    };
    mismatch(stager.upload(stream, &bytes, &whole));
    mismatch(stager.download(stream, &whole, &mut bytes.clone()));
    assert!(device.to_vec(stream).unwrap() == vec![0; 4 * SLOT]);
    for (builder, name) in [
        (Stager::builder(&world.context).threads(0), "threads is 0; accepted are 1 to"),
        (Stager::builder(&world.context).slots(0), "slots is 0; accepted are 1 to"),
        (Stager::builder(&world.context).slot_bytes(100), "slot_bytes is 100; accepted are 4096 to"),
    ] {
        let error = builder.build().unwrap_err();
        assert!(error.to_string().starts_with(name), "{error}");
    }
}

#[test]
fn many_threads_share_a_ring() {
    let world = World::new();
    let stager = small(&world);
    std::thread::scope(|scope| {
        for seed in 0..6u8 {
            let (stager, stream) = (stager.clone(), world.new_stream());
            scope.spawn(move || {
                let len = (usize::from(seed) + 3) * SLOT + usize::from(seed);
                let device = DeviceBuffer::<u8>::zeroed(&stream, len).unwrap();
                let (source, mut target) = (pattern(len, seed), vec![0; len]);
                for _ in 0..5 {
                    stager.upload(&stream, &source, &device.whole()).unwrap();
                    target.fill(0);
                    stager.download(&stream, &device.whole(), &mut target).unwrap();
                    assert!(target == source);
                }
            });
        }
    });
}

#[test]
fn a_stream_that_is_held_up_holds_up_nobody_else() {
    let world = World::new();
    let (stager, held, free) = (small(&world), world.new_stream(), world.new_stream());
    let len = 4 * SLOTS * SLOT;
    let source = pattern(len, 6);
    let (one, two) =
        (DeviceBuffer::<u8>::zeroed(&held, len).unwrap(), DeviceBuffer::<u8>::zeroed(&free, len).unwrap());
    held.synchronize().unwrap();
    let gate = Gate::before(&held);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| stager.upload(&held, &source, &one.whole()));
        // Fill the ring with the other's slots, then go past it, in both directions: nothing opens the gate before.
        let mut target = vec![0; len];
        stager.upload(&free, &source, &two.whole()).unwrap();
        stager.download(&free, &two.whole(), &mut target).unwrap();
        assert!(target == source);
        assert!(!waits.is_finished());
        gate.open();
        waits.join().unwrap().unwrap();
    });
    assert!(one.to_vec(&held).unwrap() == source);
}
