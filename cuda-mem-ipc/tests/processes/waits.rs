//! What waits for a stream or a peer holds up nobody else, and loses nothing when the peer dies meanwhile.

use std::os::fd::AsFd;

use cuda_mem_core::DeviceBuffer;
use cuda_mem_ipc::shared::wire::Message;

use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::common::{World, pattern};
use crate::hostile::{importer, part, write};
use crate::link::{SHORT, enqueue_download, eventually, upload};
use crate::raw::{say, segment};

const LEN: usize = 100_000;

/// The stream captures, so that no release can be recorded before the exporter is gone.
#[test]
fn a_buffer_that_could_not_go_back_is_unmapped_behind_its_uses() {
    let world = World::new();
    let (memory, said) = segment(&world, 0);
    let (importer, hostile, words) = importer(&world);
    say(&hostile, Message::Segment(said), &[memory.export_posix_fd().unwrap().as_fd()]);
    say(&hostile, part(0, LEN as u64), &[]);
    // The exporter's work is done.
    write(&words, 0, &[1]);
    let buffer = importer.recv(crate::link::LIMIT).unwrap();
    upload(&world.stream, buffer.as_raw(), &pattern(LEN, 5));
    let stream = world.new_stream();
    let target = DeviceBuffer::zeroed(&stream, LEN).unwrap();
    stream.synchronize().unwrap();
    let gate = Gate::before(&stream);
    enqueue_download(&stream, buffer.on(&stream).unwrap().address(), &target);
    let capture = Capture::begin(&stream, RELAXED);
    drop(buffer);
    assert_eq!(importer.buffers(), 1, "nothing can be recorded yet");
    drop(hostile);
    eventually("it has gone back", || importer.buffers() == 0);
    drop(importer);
    capture.end().unwrap();
    // Long enough for what must not be done.
    std::thread::sleep(SHORT);
    assert!(!stream.is_idle().unwrap());
    gate.open();
    assert!(target.to_vec(&stream).unwrap() == pattern(LEN, 5));
    assert_eq!(world.driver.release_failures(), 0);
}
