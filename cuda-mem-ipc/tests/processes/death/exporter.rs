//! The exporter dies.

use std::os::fd::AsFd;
use std::time::Duration;

use cuda_mem_core::DeviceBuffer;
use cuda_mem_ipc::Error;
use cuda_mem_ipc::shared::wire::{HandOver, Message, Point};
use cuda_mem_ipc::shared::{Exporter, Importer, SharedPool, SharedPoolOptions};

use super::{End, LEN, die_at, end, ready, stay, time_until};
use crate::common::gate::Gate;
use crate::common::pair::{self, Cast, Channel, test_name};
use crate::common::{World, death_rounds, pattern};
use crate::link::{LIMIT, download, enqueue_download, enqueue_upload, eventually, invite, invited, upload};
use crate::raw;

/// Where the exporter dies: behind the step of this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Offered,
    Accepted,
    /// The importer may be mapping a segment of which it gets no buffer.
    AnnouncedAhead,
    /// It has.
    MappedAhead,
    /// The segment is there, and no buffer of it.
    Announced,
    /// The importer's stream waits for a fence that was not recorded yet.
    Entered,
    /// Its work is not done, and the buffer not received.
    HandedOver,
    Received,
    /// The importer's stream waits for its own.
    Waiting,
    /// Its work is done.
    Ready,
    Returned,
}

const STEPS: [Step; 11] = [
    Step::Offered,
    Step::Accepted,
    Step::AnnouncedAhead,
    Step::MappedAhead,
    Step::Announced,
    Step::Entered,
    Step::HandedOver,
    Step::Received,
    Step::Waiting,
    Step::Ready,
    Step::Returned,
];

fn dying(first: &Channel) {
    let step = STEPS[usize::try_from(first.receive().words()[0]).unwrap()];
    let world = World::new();
    let connection = invited(first);
    if matches!(step, Step::Offered | Step::Announced | Step::Entered) {
        let words = raw::offer(&world, &connection);
        if step != Step::Offered {
            raw::accepted(&connection);
            let (memory, said) = raw::segment(&world, 0);
            let descriptor = memory.export_posix_fd().unwrap();
            raw::say(&connection, Message::Segment(said.clone()), &[descriptor.as_fd()]);
            if step == Step::Entered {
                let (sequence, segment, offset) = (0, 0, 0);
                let (len, fence) = (said.bytes, Point { line: 0, generation: 1 });
                raw::hand(&words, HandOver { sequence, segment, offset, len, fence });
                // The importer may sleep already.
                raw::wake(&words);
            }
        }
        stay(first);
    }
    let exporter = Exporter::new(&world.context, connection, LIMIT).unwrap();
    if step == Step::Accepted {
        stay(first);
    }
    let stream = world.new_stream();
    let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
    let buffer = pool.allocate(LEN, &stream).unwrap();
    if matches!(step, Step::AnnouncedAhead | Step::MappedAhead) {
        exporter.attach(&pool).unwrap();
        stay(first);
    }
    upload(&stream, buffer.as_raw(), &pattern(LEN, 1));
    let source = DeviceBuffer::from_slice(&stream, &pattern(LEN, 2)).unwrap();
    stream.synchronize().unwrap();
    let gate = Gate::new(&world.context);
    let is_done = matches!(step, Step::Ready | Step::Returned);
    if !is_done {
        gate.hold(&stream);
    }
    enqueue_upload(&stream, buffer.on(&stream).unwrap().address(), &source);
    exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
    if is_done {
        stream.synchronize().unwrap();
    }
    stay(first);
}

/// Returns how long it took until the importer knew.
fn round(cast: Cast, world: &World, step: Step, how: End) -> Duration {
    let stream = world.new_stream();
    let victim = cast.start("exporter");
    victim.send_words(&[step as u64]);
    let importer = Importer::new(&world.context, invite(&victim), LIMIT).unwrap();
    if matches!(
        step,
        Step::Offered | Step::Accepted | Step::AnnouncedAhead | Step::MappedAhead | Step::Announced
    ) {
        ready(&victim);
        if step == Step::MappedAhead {
            eventually("it is mapped", || importer.mapped_ahead() == 1);
        }
        let _heir = end(victim, how);
        return time_until("it is known to be gone", || importer.recv(LIMIT).unwrap_err().is_gone());
    }
    if step == Step::HandedOver {
        ready(&victim);
        let _heir = end(victim, how);
        let buffer = importer.recv(LIMIT).unwrap();
        let time = time_until("it is known to be gone", || buffer.is_ready().is_err());
        expect_dead(&buffer, world);
        assert!(importer.recv(LIMIT).unwrap_err().is_gone());
        return time;
    }
    let buffer = importer.recv(LIMIT).unwrap();
    ready(&victim);
    match step {
        Step::Entered => {
            drop(buffer.on(&stream).unwrap());
            assert!(!stream.is_idle().unwrap());
            let _heir = end(victim, how);
            let time = time_until("the stream goes on", || stream.is_idle().unwrap());
            expect_dead(&buffer, world);
            time
        }
        Step::Received => {
            let _heir = end(victim, how);
            let time = time_until("it is known to be gone", || buffer.is_ready().is_err());
            expect_dead(&buffer, world);
            // The memory stays what it is until it is dropped.
            download(&stream, buffer.as_raw(), LEN);
            time
        }
        Step::Waiting => {
            let target = DeviceBuffer::zeroed(&stream, LEN).unwrap();
            stream.synchronize().unwrap();
            enqueue_download(&stream, buffer.on(&stream).unwrap().address(), &target);
            assert!(!stream.is_idle().unwrap());
            let _heir = end(victim, how);
            let time = time_until("the stream goes on", || stream.is_idle().unwrap());
            expect_dead(&buffer, world);
            assert!(target.to_vec(&stream).unwrap() == pattern(LEN, 1), "what was there before");
            time
        }
        Step::Returned => {
            download(&stream, buffer.on(&stream).unwrap().address(), LEN);
            drop(buffer);
            let _heir = end(victim, how);
            time_until("it is known to be gone", || importer.recv(LIMIT).unwrap_err().is_gone())
        }
        _ => {
            let _heir = end(victim, how);
            let time = time_until("it is known to be gone", || importer.recv(LIMIT).unwrap_err().is_gone());
            // What was done before is good for ever, also once the words are gone.
            for _ in 0..2 {
                assert!(buffer.is_ready().unwrap());
                let address = buffer.on(&stream).unwrap().address();
                assert!(download(&stream, address, LEN) == pattern(LEN, 2));
                std::thread::sleep(crate::link::SHORT);
            }
            time
        }
    }
}

fn expect_dead(buffer: &cuda_mem_ipc::shared::ReceivedBuffer, world: &World) {
    let stream = world.new_stream();
    assert!(matches!(buffer.is_ready(), Err(Error::PeerDied { .. })));
    assert!(matches!(buffer.synchronize(LIMIT), Err(Error::PeerDied { .. })));
    assert!(matches!(buffer.on(&stream).map(drop), Err(Error::PeerDied { .. })));
}

#[test]
fn an_exporter_that_is_killed_leaves_its_importers_sane() {
    pair::play_alone(test_name!(), &[("exporter", dying)], |cast| {
        for step in STEPS {
            die_at("exporter", step, End::Killed, death_rounds(), |world, step, how| {
                round(cast, world, step, how)
            });
        }
    });
}

#[test]
fn an_exporter_that_exits_without_a_word_leaves_its_importers_sane() {
    pair::play_alone(test_name!(), &[("exporter", dying)], |cast| {
        for step in STEPS {
            die_at("exporter", step, End::Exited, 1, |world, step, how| round(cast, world, step, how));
        }
    });
}

fn sends_two(first: &Channel) {
    let world = World::new();
    let stream = world.new_stream();
    let exporter = Exporter::new(&world.context, invited(first), LIMIT).unwrap();
    let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
    let buffer = pool.allocate(LEN, &stream).unwrap();
    upload(&stream, buffer.as_raw(), &pattern(LEN, 4));
    for _ in 0..2 {
        exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
    }
    stream.synchronize().unwrap();
    stay(first);
}

/// Of a segment that the importer has, and of one that it has not.
#[test]
fn what_an_exporter_had_sent_before_it_was_killed_is_received() {
    pair::play(test_name!(), &[("exporter", sends_two)], |cast| {
        for before in [0, 1] {
            let world = World::new();
            let stream = world.new_stream();
            let victim = cast.start("exporter");
            let importer = Importer::new(&world.context, invite(&victim), LIMIT).unwrap();
            let mut received: Vec<_> = (0..before).map(|_| importer.recv(LIMIT).unwrap()).collect();
            ready(&victim);
            let _heir = end(victim, End::Killed);
            // Longer than it takes to be noticed.
            std::thread::sleep(crate::link::SHORT);
            received.extend((before..2).map(|_| importer.recv(LIMIT).unwrap()));
            for buffer in &received {
                let address = buffer.on(&stream).unwrap().address();
                assert!(download(&stream, address, LEN) == pattern(LEN, 4));
            }
            assert!(importer.recv(LIMIT).unwrap_err().is_gone());
        }
    });
}

/// As for an importer.
#[test]
fn an_exporter_that_becomes_another_program_leaves_its_importers_sane() {
    pair::play_alone(test_name!(), &[("exporter", dying)], |cast| {
        for step in [Step::MappedAhead, Step::Received, Step::Waiting, Step::Ready] {
            die_at("exporter", step, End::Replaced, 1, |world, step, how| round(cast, world, step, how));
        }
    });
}
