//! From A to B to C, and to several at once.

use cuda_mem_core::DeviceBuffer;
use cuda_mem_ipc::shared::{SharedPool, SharedPoolOptions};

use crate::common::gate::Gate;
use crate::common::pair::{self, Cast, Channel, checksum, test_name};
use crate::common::{World, pattern};
use crate::link::{LIMIT, enqueue_download, enqueue_upload, eventually, export_to, import_from};

const LEN: usize = 100_000;
const TEST: &str = "chain::what_was_received_is_handed_on";

/// Hands what it gets on and forgets it.
fn second(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let third = Cast::of(TEST).start("c");
    let exporter = export_to(&world, &third);
    let buffer = importer.recv(LIMIT).unwrap();
    exporter.hand_over(buffer.range(1000..LEN).unwrap(), &world.new_stream(), LIMIT).unwrap();
    drop(buffer);
    assert_eq!(third.receive().bytes, b"enqueued");
    assert_eq!(importer.buffers(), 1, "it goes back when C is done");
    third.send(b"let go", &[]);
    first.send(b"enqueued", &[]);
    first.send(&third.receive().bytes, &[]);
    third.finish();
    eventually("it goes back", || importer.buffers() == 0 && exporter.leases() == 0);
}

fn third(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let stream = world.new_stream();
    let buffer = importer.recv(LIMIT).unwrap();
    let target = DeviceBuffer::zeroed(&stream, buffer.len()).unwrap();
    enqueue_download(&stream, buffer.on(&stream).unwrap().address(), &target);
    first.send(b"enqueued", &[]);
    assert_eq!(first.receive().bytes, b"let go");
    drop(buffer);
    first.send_words(&[checksum(&target.to_vec(&stream).unwrap())]);
}

#[test]
fn what_was_received_is_handed_on() {
    assert_eq!(TEST, test_name!());
    pair::play(TEST, &[("b", second), ("c", third)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
        let buffer = pool.allocate(LEN, &stream).unwrap();
        let bytes = pattern(LEN, 8);
        let source = DeviceBuffer::from_slice(&stream, &bytes).unwrap();
        let peer = cast.start("b");
        let exporter = export_to(&world, &peer);
        let gate = Gate::before(&stream);
        enqueue_upload(&stream, buffer.on(&stream).unwrap().address(), &source);
        exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
        assert_eq!(peer.receive().bytes, b"enqueued");
        gate.open();
        assert_eq!(peer.receive().words(), [checksum(&bytes[1000..])]);
        eventually("it comes back", || exporter.leases() == 0);
        peer.finish();
    });
}

fn one_of_many(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let stream = world.new_stream();
    let buffer = importer.recv(LIMIT).unwrap();
    let target = DeviceBuffer::zeroed(&stream, LEN).unwrap();
    enqueue_download(&stream, buffer.on(&stream).unwrap().address(), &target);
    first.send_words(&[checksum(&target.to_vec(&stream).unwrap())]);
    assert_eq!(first.receive().bytes, b"done");
}

#[test]
fn one_buffer_goes_to_several() {
    pair::play(test_name!(), &[("one", one_of_many)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
        let buffer = pool.allocate(LEN, &stream).unwrap();
        let bytes = pattern(LEN, 9);
        let source = DeviceBuffer::from_slice(&stream, &bytes).unwrap();
        enqueue_upload(&stream, buffer.on(&stream).unwrap().address(), &source);
        let peers = [(); 3].map(|()| cast.start("one"));
        let exporters = peers.each_ref().map(|peer| export_to(&world, peer));
        for exporter in &exporters {
            exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
        }
        drop(buffer);
        for peer in &peers {
            assert_eq!(peer.receive().words(), [checksum(&bytes)]);
        }
        // The first is done; the others have it still, and so has the pool's segment somebody.
        let [first, second, third] = peers;
        first.send(b"done", &[]);
        eventually("the first gives it back", || exporters[0].leases() == 0);
        assert_eq!((pool.trim(), exporters[1].leases()), (0, 1));
        for peer in [second, third] {
            peer.send(b"done", &[]);
            peer.finish();
        }
        eventually("all give it back", || exporters.iter().all(|exporter| exporter.leases() == 0));
        assert!(pool.trim() > 0);
        first.finish();
    });
}
