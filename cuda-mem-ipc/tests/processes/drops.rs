//! Whoever drops a buffer waits for no stream.

use std::os::fd::AsFd;
use std::thread;

use cuda_mem_core::{DeviceBuffer, Stream};
use cuda_mem_ipc::shared::wire::{HandOver, Message, Point};
use cuda_mem_ipc::shared::{Exporter, MemoryKind, ReceivedBuffer, SharedPool};
use cuda_mem_ipc::transport::Connection;

use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::common::{World, pattern};
use crate::hostile::{exporter, importer};
use crate::link::{SHORT, enqueue_download, eventually, kinds, options, upload};
use crate::raw::{hand, say, segment, write};

/// So many that one of them would have to wait if any could: it takes another thread's turn between two lines.
const COUNT: u64 = 300;

const LEN: usize = 1000;

/// The system knows fifteen letters of a thread's name.
fn threads_that_release() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |thread: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(thread.unwrap().path().join("comm")).unwrap_or_default()
    };
    threads.map(name).filter(|name| name.starts_with("cuda-mem-releas")).count()
}

/// An exporter, and a peer that has something of it.
fn bystanders(world: &World) -> (Exporter, Connection) {
    let pool = SharedPool::new(&world.context, &options(MemoryKind::Device, 4096)).unwrap();
    let (exporter, peer, _words) = exporter(world, &pool);
    (exporter, peer)
}

/// Drops things in a thread, which has to end though their stream waits. What ends meanwhile elsewhere waits for none of them.
fn expect_no_wait<T: Send + 'static>(
    what: &str,
    (exporter, peer): (Exporter, Connection),
    gate: &Gate,
    stream: &Stream,
    dropped: Vec<T>,
) {
    let dropping = thread::spawn(move || dropped.into_iter().for_each(drop));
    eventually(what, || dropping.is_finished());
    dropping.join().unwrap();
    // Those that wait in calls, and whoever looks at the others. Nearly all would have to wait.
    let most = usize::try_from(COUNT).unwrap() / 5;
    assert!(threads_that_release() < most, "{what}: {} threads wait", threads_that_release());
    drop(peer);
    eventually("what a peer had that is gone comes back", || exporter.leases() == 0);
    assert!(!stream.is_idle().unwrap(), "{what}: the stream waits");
    gate.open();
    stream.synchronize().unwrap();
}

#[test]
fn the_drop_of_an_isolated_buffer_waits_for_no_stream() {
    let world = World::new();
    for kind in kinds(&world) {
        let pool = SharedPool::new(&world.context, &options(kind, 4096)).unwrap();
        let stream = world.new_stream();
        let buffers = (0..COUNT).map(|_| pool.allocate_isolated(LEN, &stream).unwrap()).collect::<Vec<_>>();
        let bystanders = bystanders(&world);
        let gate = Gate::before(&stream);
        buffers.iter().for_each(|buffer| drop(buffer.on(&stream).unwrap()));
        expect_no_wait("isolated buffers", bystanders, &gate, &stream, buffers);
        eventually("all of them go", || pool.reserved_bytes() == 0);
    }
    eventually("nothing is left", || world.driver.registrations_left() == 0);
    assert_eq!(world.driver.release_failures(), 0);
}

/// The pools' own handles are gone: with each buffer its pool ends.
#[test]
fn the_drop_of_the_last_buffer_of_a_pool_waits_for_no_stream() {
    let world = World::new();
    let stream = world.new_stream();
    let buffers = (0..COUNT).map(|_| {
        let pool = SharedPool::new(&world.context, &options(MemoryKind::Device, 4096)).unwrap();
        pool.allocate(LEN, &stream).unwrap()
    });
    let buffers = buffers.collect::<Vec<_>>();
    let bystanders = bystanders(&world);
    let gate = Gate::before(&stream);
    buffers.iter().for_each(|buffer| drop(buffer.on(&stream).unwrap()));
    expect_no_wait("last buffers", bystanders, &gate, &stream, buffers);
    assert_eq!(world.driver.release_failures(), 0);
}

/// Their exporter has said that the segments are gone, so that each of them is unmapped with its buffer.
#[test]
fn the_drop_of_a_received_buffer_waits_for_no_stream() {
    let world = World::new();
    let (importer, hostile, words) = importer(&world);
    let bystanders = bystanders(&world);
    // The exporter's work is done.
    write(&words, 0, &[1]);
    let stream = world.new_stream();
    let gate = Gate::new(&world.context);
    let mut received = Vec::new();
    for number in 0..COUNT {
        let (memory, said) = segment(&world, number);
        say(&hostile, Message::Segment(said.clone()), &[memory.export_posix_fd().unwrap().as_fd()]);
        let (len, fence) = (LEN as u64, Point { line: 0, generation: 1 });
        hand(&words, HandOver { sequence: number, segment: number, offset: 0, len, fence });
        received.push(importer.recv(SHORT * 100).unwrap());
        say(&hostile, Message::Retire { segment: number }, &[]);
    }
    assert!(importer.recv(SHORT).unwrap_err().is_timeout(), "the ends of the segments are heard");
    gate.hold(&stream);
    received.iter().for_each(|buffer: &ReceivedBuffer| drop(buffer.on(&stream).unwrap()));
    expect_no_wait("received buffers", bystanders, &gate, &stream, received);
    // It has taken no messages.
    drop(hostile);
    eventually("all have gone back", || importer.buffers() == 0);
    assert_eq!(world.driver.release_failures(), 0);
}

/// What a stream was given before its capture began is waited for, also when the pool goes with the buffer.
#[test]
fn a_pool_that_ends_beside_a_capture_waits_for_the_work_before_it() {
    let world = World::new();
    let stream = world.new_stream();
    let pool = SharedPool::new(&world.context, &options(MemoryKind::Device, 4096)).unwrap();
    let buffer = pool.allocate(LEN, &stream).unwrap();
    upload(&stream, buffer.as_raw(), &pattern(LEN, 3));
    let target = DeviceBuffer::zeroed(&stream, LEN).unwrap();
    stream.synchronize().unwrap();
    let gate = Gate::before(&stream);
    enqueue_download(&stream, buffer.on(&stream).unwrap().address(), &target);
    let capture = Capture::begin(&stream, RELAXED);
    drop((buffer, pool));
    // Long enough for what must not be done.
    thread::sleep(SHORT);
    capture.end().unwrap();
    thread::sleep(SHORT);
    assert!(!stream.is_idle().unwrap());
    gate.open();
    assert!(target.to_vec(&stream).unwrap() == pattern(LEN, 3));
    assert_eq!(world.driver.release_failures(), 0);
}
