//! From A to B to C, and to several at once.

use cuda_mem_core::DeviceBuffer;
use cuda_mem_ipc::Error;
use cuda_mem_ipc::shared::{MemoryKind, SharedPool, SharedPoolOptions};

use crate::common::gate::Gate;
use crate::common::pair::{self, Cast, Channel, checksum, test_name};
use crate::common::{Backend, World, backend, pattern};
use crate::death::stopped::signal;
use crate::link::{
    LIMIT, SHORT, enqueue_download, enqueue_upload, eventually, export_to, import_from, kinds, options,
};

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
        for kind in kinds(&world) {
            hand_on(cast, &world, kind);
        }
    });
}

fn hand_on(cast: Cast, world: &World, kind: MemoryKind) {
    let stream = world.new_stream();
    let pool = SharedPool::new(&world.context, &options(kind, 64 << 20)).unwrap();
    let buffer = pool.allocate(LEN, &stream).unwrap();
    let bytes = pattern(LEN, 8);
    let source = DeviceBuffer::from_slice(&stream, &bytes).unwrap();
    let peer = cast.start("b");
    let exporter = export_to(world, &peer);
    let gate = Gate::before(&stream);
    enqueue_upload(&stream, buffer.on(&stream).unwrap().address(), &source);
    exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
    assert_eq!(peer.receive().bytes, b"enqueued");
    gate.open();
    assert_eq!(peer.receive().words(), [checksum(&bytes[1000..])], "{kind:?}");
    eventually("it comes back", || exporter.leases() == 0);
    peer.finish();
}

/// Hands everything back as if it were its own.
fn mirror(first: &Channel) {
    let world = World::new();
    let (importer, exporter) = (import_from(&world, first), export_to(&world, first));
    let stream = world.new_stream();
    loop {
        match importer.recv(LIMIT) {
            Ok(buffer) => drop(exporter.hand_over(&buffer, &stream, LIMIT).unwrap()),
            Err(Error::BlockImported) => first.send(b"refused", &[]),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Each lease is on what came by the one before, of a process that is gone, and the first one is waited for as long as this process itself
/// has the memory in use.
#[test]
fn what_goes_back_and_forth_comes_back_when_the_other_process_dies() {
    pair::play(test_name!(), &[("mirror", mirror)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
        let mut peer = cast.start("mirror");
        let (exporter, importer) = (export_to(&world, &peer), import_from(&world, &peer));
        exporter.hand_over(&pool.allocate(LEN, &stream).unwrap(), &stream, LIMIT).unwrap();
        for _ in 0..3 {
            exporter.hand_over(&importer.recv(LIMIT).unwrap(), &stream, LIMIT).unwrap();
        }
        let last = importer.recv(LIMIT).unwrap();
        assert_eq!(exporter.leases(), 4);
        stream.synchronize().unwrap();
        let gate = Gate::before(&stream);
        drop(last.on(&stream).unwrap());
        // It does not get to giving anything back: what it had would wait for the stream then, by its fence.
        signal(&peer, libc::SIGSTOP);
        drop(last);
        peer.kill();
        eventually("what it had handed back is nobody's", || importer.buffers() == 0);
        // Longer than a peer is given for its end.
        std::thread::sleep(SHORT * 30);
        assert_eq!(exporter.leases(), 1, "the stream uses it");
        gate.open();
        eventually("all comes back", || exporter.leases() == 0);
        assert!(pool.trim() > 0);
        assert_eq!(world.driver.release_failures(), 0);
    });
}

/// Nobody takes a block for the second time, but it has been told of. Whether a driver lets a process import its own is not known of hardware.
#[test]
fn a_block_that_goes_back_and_forth_comes_back_when_the_other_process_dies() {
    if backend() == Backend::Gpu {
        return;
    }
    pair::play(test_name!(), &[("mirror", mirror)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let is_pool =
            |kind: &MemoryKind| matches!(kind, MemoryKind::DevicePool | MemoryKind::HostNumaPool(_));
        for kind in kinds(&world).into_iter().filter(is_pool) {
            let pool = SharedPool::new(&world.context, &options(kind, 1 << 20)).unwrap();
            let mut peer = cast.start("mirror");
            let (exporter, importer) = (export_to(&world, &peer), import_from(&world, &peer));
            exporter.hand_over(&pool.allocate(LEN, &stream).unwrap(), &stream, LIMIT).unwrap();
            exporter.hand_over(&importer.recv(LIMIT).unwrap(), &stream, LIMIT).unwrap();
            assert_eq!(peer.receive().bytes, b"refused");
            peer.kill();
            eventually("all comes back", || exporter.leases() == 0);
            assert!(pool.trim() > 0);
        }
        assert_eq!(world.driver.release_failures(), 0);
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
