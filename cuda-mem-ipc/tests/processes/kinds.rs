//! Memory of other kinds, and segments that come and go.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use cuda_mem_core::DeviceBuffer;
use cuda_mem_ipc::Error;
use cuda_mem_ipc::shared::wire::{HandOver, Message, Point, Segment};
use cuda_mem_ipc::shared::{Exporter, Importer, MemoryKind, SharedPool, SharedPoolOptions};

use crate::common::gate::Gate;
use crate::common::pair::{self, Cast, Channel, checksum, test_name};
use crate::common::{World, pattern};
use crate::link::{
    LIMIT, SHORT, download, enqueue_upload, eventually, export_to, import_from, invite, invited, kinds,
    options, upload,
};
use crate::raw::{accept, accepted, hand, heard, offer, say, wake};

const LEN: usize = 100_000;

fn host_receiver(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let stream = world.new_stream();
    let buffer = importer.recv(LIMIT).unwrap();
    let mut bytes = vec![0; LEN];
    assert!(matches!(buffer.read(0, &mut bytes, SHORT), Err(Error::Timeout { .. })));
    first.send(b"waiting", &[]);
    buffer.read(0, &mut bytes, LIMIT).unwrap();
    first.send_words(&[checksum(&bytes)]);
    // The device reads the same.
    assert!(download(&stream, buffer.on(&stream).unwrap().address(), LEN) == bytes);
    buffer.write(10, &pattern(100, 70), LIMIT).unwrap();
    assert!(buffer.read(LEN - 1, &mut [0; 2], LIMIT).is_err());
}

#[test]
fn host_memory_is_handed_over() {
    pair::play(test_name!(), &[("receiver", host_receiver)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let options = SharedPoolOptions { kind: MemoryKind::Host, segment_bytes: 1 << 20 };
        let pool = SharedPool::new(&world.context, &options).unwrap();
        let _before = pool.allocate(5000, &stream).unwrap();
        let buffer = pool.allocate(LEN, &stream).unwrap();
        buffer.write(0, &pattern(LEN, 3), LIMIT).unwrap();
        let source = DeviceBuffer::from_slice(&stream, &pattern(LEN, 4)).unwrap();
        let receiver = cast.start("receiver");
        let exporter = export_to(&world, &receiver);
        let gate = Gate::before(&stream);
        enqueue_upload(&stream, buffer.on(&stream).unwrap().address(), &source);
        exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
        assert_eq!(receiver.receive().bytes, b"waiting");
        gate.open();
        assert_eq!(receiver.receive().words(), [checksum(&pattern(LEN, 4))]);
        eventually("it goes back", || exporter.leases() == 0);
        let mut bytes = vec![0; 100];
        buffer.read(10, &mut bytes, LIMIT).unwrap();
        assert_eq!(bytes, pattern(100, 70));
        assert!(buffer.write(LEN, &[1], LIMIT).is_err());
        receiver.finish();
        assert_eq!(world.driver.release_failures(), 0);
    });
}

fn slow_writer(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let stream = world.new_stream();
    let source = DeviceBuffer::from_slice(&stream, &pattern(LEN, 2)).unwrap();
    let buffer = importer.recv(LIMIT).unwrap();
    buffer.synchronize(LIMIT).unwrap();
    let gate = Gate::before(&stream);
    enqueue_upload(&stream, buffer.on(&stream).unwrap().address(), &source);
    let one = buffer.clone();
    let reading = std::thread::spawn(move || one.read(0, &mut [0], SHORT));
    eventually("its own use is waited for no longer than that", || reading.is_finished());
    assert!(matches!(reading.join().unwrap(), Err(Error::Timeout { .. })));
    drop(buffer);
    first.send(b"dropped", &[]);
    assert_eq!(first.receive().bytes, b"go on");
    gate.open();
    stream.synchronize().unwrap();
    assert_eq!(first.receive().bytes, b"read");
}

#[test]
fn a_host_reads_behind_the_work_of_who_gave_the_memory_back() {
    pair::play(test_name!(), &[("writer", slow_writer)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let pool = SharedPool::new(&world.context, &options(MemoryKind::Host, 1 << 20)).unwrap();
        let buffer = pool.allocate(LEN, &stream).unwrap();
        buffer.write(0, &pattern(LEN, 1), LIMIT).unwrap();
        let writer = cast.start("writer");
        let exporter = export_to(&world, &writer);
        exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
        assert_eq!(writer.receive().bytes, b"dropped");
        eventually("it was given back", || exporter.leases() == 0);
        let mut bytes = vec![0; LEN];
        assert!(matches!(buffer.read(0, &mut bytes, SHORT), Err(Error::Timeout { .. })));
        assert!(matches!(buffer.write(0, &bytes, SHORT), Err(Error::Timeout { .. })));
        writer.send(b"go on", &[]);
        buffer.read(0, &mut bytes, LIMIT).unwrap();
        assert!(bytes == pattern(LEN, 2));
        writer.send(b"read", &[]);
        writer.finish();
    });
}

fn importer_of_isolated(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let stream = world.new_stream();
    let before = world.context.memory_info().unwrap().free;
    for seed in 0..3 {
        let buffer = importer.recv(LIMIT).unwrap();
        let address = buffer.on(&stream).unwrap().address();
        assert!(download(&stream, address, LEN) == pattern(LEN, seed));
        assert!(matches!(buffer.read(0, &mut [0], LIMIT), Err(Error::NotOnHost)));
        drop(buffer);
    }
    first.send(b"seen", &[]);
    // What retires a segment comes before this.
    assert!(importer.recv(LIMIT).unwrap_err().is_gone());
    let slack = 48 << 20;
    eventually("its memory is free", || world.context.memory_info().unwrap().free + slack > before);
}

#[test]
fn isolated_memory_goes_when_its_buffer_does() {
    pair::play(test_name!(), &[("importer", importer_of_isolated)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
        let before = world.context.memory_info().unwrap().free;
        let importer = cast.start("importer");
        let exporter = export_to(&world, &importer);
        for seed in 0..3 {
            let buffer = pool.allocate_isolated(64 << 20, &stream).unwrap();
            upload(&stream, buffer.as_raw(), &pattern(LEN, seed));
            exporter.hand_over(buffer.range(0..LEN).unwrap(), &stream, LIMIT).unwrap();
            assert!(pool.reserved_bytes() >= 64 << 20);
        }
        assert_eq!(importer.receive().bytes, b"seen");
        eventually("the segments are gone", || exporter.leases() == 0 && pool.reserved_bytes() == 0);
        drop(exporter);
        let slack = 48 << 20;
        eventually("the memory is free", || world.context.memory_info().unwrap().free + slack > before);
        importer.finish();
        assert_eq!(world.driver.release_failures(), 0);
    });
}

/// Takes buffers and waits for the end of its segments.
fn importer_of_pools(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let stream = world.new_stream();
    loop {
        match importer.recv(LIMIT) {
            Ok(buffer) => {
                let address = buffer.on(&stream).unwrap().address();
                first.send_words(&[checksum(&download(&stream, address, buffer.len()))]);
            }
            Err(error) => break assert!(error.is_gone(), "{error}"),
        }
    }
    assert_eq!(world.driver.release_failures(), 0);
}

/// Blocks of a driver pool are freed here only when the importer has freed them.
#[test]
fn pools_of_the_driver_have_their_memory_back_when_importers_have_let_go() {
    pair::play(test_name!(), &[("importer", importer_of_pools)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let importer = cast.start("importer");
        let exporter = export_to(&world, &importer);
        let pool = SharedPool::new(&world.context, &options(MemoryKind::DevicePool, 4 << 20)).unwrap();
        for seed in 0..20 {
            let buffer = pool.allocate_isolated(3 << 20, &stream).unwrap();
            upload(&stream, buffer.as_raw(), &pattern(LEN, seed));
            exporter.hand_over(buffer.range(0..LEN).unwrap(), &stream, LIMIT).unwrap();
            assert_eq!(importer.receive().words(), [checksum(&pattern(LEN, seed))], "{seed}");
        }
        eventually("the segments are gone", || exporter.leases() == 0 && pool.reserved_bytes() == 0);
        // It ends when the importer has let go of them all.
        drop(exporter);
        importer.finish();
        assert_eq!(world.driver.release_failures(), 0);
    });
}

/// Has a buffer until it is killed.
fn keeper(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let _buffer = importer.recv(LIMIT).unwrap();
    first.send(b"ready", &[]);
    first.receive();
}

/// Hands a buffer of its pool over and stays.
fn owner(first: &Channel) {
    let world = World::new();
    let stream = world.new_stream();
    let kind = match first.receive().words()[..] {
        [0] => MemoryKind::DevicePool,
        _ => MemoryKind::HostNuma(0),
    };
    let exporter = Exporter::new(&world.context, invited(first), LIMIT).unwrap();
    let pool = SharedPool::new(&world.context, &options(kind, 4 << 20)).unwrap();
    let buffer = pool.allocate(LEN, &stream).unwrap();
    upload(&stream, buffer.as_raw(), &pattern(LEN, 9));
    exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
    // The fence is reached before this process ends.
    stream.synchronize().unwrap();
    first.send(b"ready", &[]);
    first.receive();
}

#[test]
fn memory_outlives_either_end() {
    pair::play(test_name!(), &[("keeper", keeper), ("owner", owner)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let all = kinds(&world);
        for (number, kind) in (0..).zip([MemoryKind::DevicePool, MemoryKind::HostNuma(0)]) {
            if !all.contains(&kind) {
                continue;
            }
            let mut keeper = cast.start("keeper");
            let exporter = export_to(&world, &keeper);
            let pool = SharedPool::new(&world.context, &options(kind, 4 << 20)).unwrap();
            let buffer = pool.allocate(LEN, &stream).unwrap();
            exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
            drop(buffer);
            assert_eq!(keeper.receive().bytes, b"ready");
            keeper.kill();
            eventually("its lease ends", || exporter.leases() == 0);
            assert_eq!(pool.trim(), 4 << 20);
            drop((exporter, pool));

            let mut owner = cast.start("owner");
            owner.send_words(&[number]);
            let importer = Importer::new(&world.context, invite(&owner), LIMIT).unwrap();
            let buffer = importer.recv(LIMIT).unwrap();
            assert_eq!(owner.receive().bytes, b"ready");
            owner.kill();
            assert!(importer.recv(LIMIT).unwrap_err().is_gone());
            // Its work was done, so that nothing is lost.
            assert!(buffer.is_ready().unwrap());
            let address = buffer.on(&stream).unwrap().address();
            assert_eq!(checksum(&download(&stream, address, LEN)), checksum(&pattern(LEN, 9)), "{kind:?}");
            drop((buffer, importer));
            let buffer = DeviceBuffer::from_slice(&stream, &pattern(LEN, 3)).unwrap();
            assert!(buffer.to_vec(&stream).unwrap() == pattern(LEN, 3), "the context is sane");
        }
        assert_eq!(world.driver.release_failures(), 0);
    });
}

fn importer_of_two(first: &Channel) {
    let world = World::new();
    let (one, two) = (import_from(&world, first), import_from(&world, first));
    let (left, right) = (one.recv(LIMIT).unwrap(), two.recv(LIMIT).unwrap());
    // The same segment, at one address.
    first.send_words(&[right.as_raw() - left.as_raw()]);
}

#[test]
fn two_connections_share_one_mapping() {
    pair::play(test_name!(), &[("importer", importer_of_two)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
        let (left, right) = (pool.allocate(LEN, &stream).unwrap(), pool.allocate(LEN, &stream).unwrap());
        let importer = cast.start("importer");
        let (one, two) = (export_to(&world, &importer), export_to(&world, &importer));
        one.hand_over(&left, &stream, LIMIT).unwrap();
        two.hand_over(&right, &stream, LIMIT).unwrap();
        assert_eq!(importer.receive().words(), [right.as_raw() - left.as_raw()]);
        importer.finish();
    });
}

#[test]
fn sizes_that_no_buffer_has_are_refused() {
    let world = World::new();
    let options = SharedPoolOptions::default();
    let pool = SharedPool::new(&world.context, &options).unwrap();
    for bytes in [0, usize::MAX, isize::MAX.unsigned_abs() + 1] {
        assert!(matches!(pool.allocate(bytes, &world.stream), Err(Error::Core(_))), "{bytes}");
        assert!(matches!(pool.allocate_isolated(bytes, &world.stream), Err(Error::Core(_))), "{bytes}");
    }
    assert!(SharedPool::new(&world.context, &SharedPoolOptions { segment_bytes: 0, ..options }).is_err());
    // More than the device has: nothing is left over.
    assert!(pool.allocate(1 << 50, &world.stream).is_err());
    assert_eq!(pool.reserved_bytes(), 0);
    assert_eq!(world.driver.release_failures(), 0);
}

fn other_program(first: &Channel) {
    let world = World::new();
    let connection = invited(first);
    // An importer that meets an importer.
    let refused = Importer::new(&world.context, connection, SHORT);
    assert!(matches!(refused, Err(Error::Timeout { .. } | Error::Closed { .. })), "{refused:?}");
}

#[test]
fn two_of_a_kind_do_not_wait_for_ever() {
    pair::play(test_name!(), &[("other", other_program)], |cast| {
        let world = World::new();
        let other = cast.start("other");
        let connection = invite(&other);
        let refused = Importer::new(&world.context, connection, SHORT);
        assert!(refused.is_err());
        other.finish();
    });
}

/// Tells of the block that it gets, under two numbers.
fn tells_twice(first: &Channel) {
    let world = World::new();
    let last = Cast::of(TWICE).start("importer");
    // An importer for the one, an exporter for the other.
    let (mine, theirs) = (invited(first), invite(&last));
    assert!(matches!(heard(&mine), Message::Offer));
    accept(&mine, 0);
    let words = offer(&world, &theirs);
    accepted(&theirs);
    let told = mine.recv(LIMIT).unwrap();
    let Message::Segment(said) = Message::parse(told.kind, &told.payload).unwrap() else {
        panic!("{told:?}")
    };
    for number in [1, 2] {
        let segment = Segment { segment: number, ..said.clone() };
        say(&theirs, Message::Segment(segment), &[told.descriptors[0].as_fd()]);
        hand(
            &words,
            HandOver {
                sequence: number,
                segment: number,
                offset: 0,
                len: 1,
                fence: Point { line: 0, generation: 1 },
            },
        );
        // The importer may sleep.
        wake(&words);
    }
    assert_eq!(last.receive().bytes, b"seen");
    // The segment comes before its buffer: the exporter may still be handing over.
    assert_eq!(first.receive().bytes, b"handed over");
    drop((mine, theirs));
    last.finish();
}

const TWICE: &str = "kinds::a_block_of_a_pool_is_imported_once_whatever_it_is_called";

fn importer_of_one_twice(first: &Channel) {
    let world = World::new();
    let failures = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&failures);
    world.driver.on_release_failure(move |error| told.lock().unwrap().push(error.to_string()));
    let importer = import_from(&world, first);
    let both = [importer.recv(LIMIT), importer.recv(LIMIT)];
    // Segments are mapped ahead of their buffers, so either may have come first.
    assert!(
        matches!(&both, [Ok(_), Err(Error::BlockImported)] | [Err(Error::BlockImported), Ok(_)]),
        "{both:?}"
    );
    drop(both);
    first.send(b"seen", &[]);
    assert!(importer.recv(LIMIT).unwrap_err().is_gone());
    drop(importer);
    assert_eq!(*failures.lock().unwrap(), [""; 0]);
}

#[test]
fn a_block_of_a_pool_is_imported_once_whatever_it_is_called() {
    let roles: [(&str, pair::Body); 2] = [("middle", tells_twice), ("importer", importer_of_one_twice)];
    assert_eq!(TWICE, test_name!());
    pair::play(TWICE, &roles, |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let pool = SharedPool::new(&world.context, &options(MemoryKind::DevicePool, 4 << 20)).unwrap();
        let buffer = pool.allocate(LEN, &stream).unwrap();
        let middle = cast.start("middle");
        let exporter = export_to(&world, &middle);
        exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
        middle.send(b"handed over", &[]);
        middle.finish();
    });
}
