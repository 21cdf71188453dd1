//! The importer dies.

use std::time::Duration;

use cuda_mem_core::DeviceBuffer;
use cuda_mem_ipc::shared::{Exporter, Importer, SharedPool, SharedPoolOptions};

use super::{End, LEN, die_at, end, ready, stay, time_until};
use crate::common::gate::Gate;
use crate::common::pair::{self, Cast, Channel, checksum, test_name};
use crate::common::{World, death_rounds, pattern};
use crate::link::{
    LIMIT, download, enqueue_download, enqueue_upload, eventually, export_to, import_from, invite, invited,
    upload,
};

/// Where the importer dies: behind the step of this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Offered,
    Accepted,
    /// It may be mapping a segment of which it gets no buffer.
    AnnouncedAhead,
    /// It has.
    MappedAhead,
    HandedOver,
    Received,
    /// Its stream waits for the exporter's.
    Waiting,
    /// The exporter's stream waits for its own.
    Released,
    Returned,
}

const STEPS: [Step; 9] = [
    Step::Offered,
    Step::Accepted,
    Step::AnnouncedAhead,
    Step::MappedAhead,
    Step::HandedOver,
    Step::Received,
    Step::Waiting,
    Step::Released,
    Step::Returned,
];

fn dying(first: &Channel) {
    let step = STEPS[usize::try_from(first.receive().words()[0]).unwrap()];
    let world = World::new();
    let connection = invited(first);
    if step == Step::Offered {
        stay(first);
    }
    let importer = Importer::new(&world.context, connection, LIMIT).unwrap();
    if step == Step::MappedAhead {
        eventually("it is mapped", || importer.mapped_ahead() == 1);
    }
    if matches!(step, Step::Accepted | Step::AnnouncedAhead | Step::MappedAhead | Step::HandedOver) {
        stay(first);
    }
    let buffer = importer.recv(LIMIT).unwrap();
    if step == Step::Received {
        stay(first);
    }
    let stream = world.new_stream();
    let target = DeviceBuffer::zeroed(&stream, LEN).unwrap();
    stream.synchronize().unwrap();
    let gate = Gate::new(&world.context);
    if step == Step::Released {
        gate.hold(&stream);
    }
    enqueue_download(&stream, buffer.on(&stream).unwrap().address(), &target);
    if step == Step::Waiting {
        assert!(!stream.is_idle().unwrap());
        stay(first);
    }
    drop(buffer);
    if step == Step::Returned {
        stream.synchronize().unwrap();
    }
    stay(first);
}

/// Returns how long it took until everything was back.
fn round(cast: Cast, world: &World, step: Step, how: End) -> Duration {
    let (stream, other) = (world.new_stream(), world.new_stream());
    let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
    let victim = cast.start("importer");
    victim.send_words(&[step as u64]);
    let connection = invite(&victim);
    if step == Step::Offered {
        return std::thread::scope(|scope| {
            let offering = scope.spawn(|| Exporter::new(&world.context, connection, LIMIT));
            ready(&victim);
            let _heir = end(victim, how);
            assert!(offering.join().unwrap().unwrap_err().is_gone());
            Duration::ZERO
        });
    }
    let exporter = Exporter::new(&world.context, connection, LIMIT).unwrap();
    // All of the segment, so that whoever comes next gets the same bytes.
    let buffer = pool.allocate(64 << 20, &stream).unwrap();
    upload(&stream, buffer.as_raw(), &pattern(LEN, 1));
    let source = DeviceBuffer::from_slice(&stream, &pattern(LEN, 2)).unwrap();
    stream.synchronize().unwrap();
    let gate = Gate::new(&world.context);
    let is_held = matches!(step, Step::HandedOver | Step::Received | Step::Waiting);
    if is_held {
        gate.hold(&stream);
    }
    if matches!(step, Step::AnnouncedAhead | Step::MappedAhead) {
        assert!(exporter.announce(&buffer).unwrap());
    } else if step != Step::Accepted {
        enqueue_upload(&stream, buffer.on(&stream).unwrap().address(), &source);
        exporter.hand_over(buffer.range(0..LEN).unwrap(), &stream, LIMIT).unwrap();
    }
    ready(&victim);
    let again = (step == Step::Released).then(|| {
        drop(buffer);
        eventually("the buffer goes back", || exporter.leases() == 0);
        let again = pool.allocate(64 << 20, &other).unwrap();
        assert!(!other.is_idle().unwrap(), "it waits for the receiver");
        again
    });
    let _heir = end(victim, how);
    let time = time_until("its leases end", || {
        exporter.leases() == 0 && (again.is_none() || other.is_idle().unwrap())
    });
    eventually("it is known to be gone", || {
        let tiny = pool.allocate(1, &other).unwrap();
        exporter.hand_over(&tiny, &other, LIMIT).is_err_and(|error| error.is_gone())
    });
    if is_held {
        assert!(!stream.is_idle().unwrap(), "the exporter's own work is not hurried");
        gate.open();
    }
    stream.synchronize().unwrap();
    other.synchronize().unwrap();
    drop(again);
    // The memory is this process's again, whatever was done to it.
    let next = pool.allocate(64 << 20, &other).unwrap();
    upload(&other, next.on(&other).unwrap().address(), &pattern(LEN, 3));
    assert!(download(&other, next.as_raw(), LEN) == pattern(LEN, 3));
    time
}

#[test]
fn an_importer_that_is_killed_takes_nothing_with_it() {
    pair::play_alone(test_name!(), &[("importer", dying)], |cast| {
        for step in STEPS {
            die_at("importer", step, End::Killed, death_rounds(), |world, step, how| {
                round(cast, world, step, how)
            });
        }
    });
}

#[test]
fn an_importer_that_exits_without_a_word_takes_nothing_with_it() {
    pair::play_alone(test_name!(), &[("importer", dying)], |cast| {
        for step in STEPS {
            die_at("importer", step, End::Exited, 1, |world, step, how| round(cast, world, step, how));
        }
    });
}

/// The process is there, and nothing of it: it is treated as gone soon after its end is closed.
#[test]
fn an_importer_that_becomes_another_program_takes_nothing_with_it() {
    pair::play_alone(test_name!(), &[("importer", dying)], |cast| {
        for step in [Step::MappedAhead, Step::HandedOver, Step::Waiting, Step::Released] {
            die_at("importer", step, End::Replaced, 1, |world, step, how| round(cast, world, step, how));
        }
    });
}

/// The exporter has let the connection go, and its stream waits for the receiver's all the same.
#[test]
fn a_release_that_was_promised_is_waited_for_no_longer_than_its_receiver_lives() {
    pair::play(test_name!(), &[("importer", dying)], |cast| {
        let world = World::new();
        let (stream, other) = (world.new_stream(), world.new_stream());
        let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
        let victim = cast.start("importer");
        victim.send_words(&[Step::Released as u64]);
        let exporter = export_to(&world, &victim);
        let buffer = pool.allocate(64 << 20, &stream).unwrap();
        exporter.hand_over(buffer.range(0..LEN).unwrap(), &stream, LIMIT).unwrap();
        drop(buffer);
        ready(&victim);
        eventually("the buffer goes back", || exporter.leases() == 0);
        drop(exporter);
        // Longer than a peer is given that has closed.
        std::thread::sleep(Duration::from_millis(700));
        let again = pool.allocate(64 << 20, &other).unwrap();
        // Longer than it takes to let go of words that nobody looks after.
        std::thread::sleep(Duration::from_millis(300));
        assert!(!other.is_idle().unwrap());
        let _heir = end(victim, End::Killed);
        eventually("the stream goes on", || other.is_idle().unwrap());
        drop(again);
    });
}

fn bystander(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let stream = world.new_stream();
    let buffer = importer.recv(LIMIT).unwrap();
    let target = DeviceBuffer::zeroed(&stream, LEN).unwrap();
    enqueue_download(&stream, buffer.on(&stream).unwrap().address(), &target);
    first.send(b"enqueued", &[]);
    first.send_words(&[checksum(&target.to_vec(&stream).unwrap())]);
    drop(buffer);
}

/// Both wait for the same buffer.
#[test]
fn one_importer_s_death_harms_no_other() {
    pair::play(test_name!(), &[("importer", dying), ("bystander", bystander)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
        let buffer = pool.allocate(LEN, &stream).unwrap();
        let source = DeviceBuffer::from_slice(&stream, &pattern(LEN, 2)).unwrap();
        let (victim, peer) = (cast.start("importer"), cast.start("bystander"));
        victim.send_words(&[Step::Waiting as u64]);
        let (to_victim, to_peer) = (export_to(&world, &victim), export_to(&world, &peer));
        let gate = Gate::before(&stream);
        enqueue_upload(&stream, buffer.on(&stream).unwrap().address(), &source);
        to_victim.hand_over(&buffer, &stream, LIMIT).unwrap();
        to_peer.hand_over(&buffer, &stream, LIMIT).unwrap();
        drop(buffer);
        ready(&victim);
        assert_eq!(peer.receive().bytes, b"enqueued");
        let _heir = end(victim, End::Killed);
        eventually("its lease ends", || to_victim.leases() == 0);
        assert_eq!(to_peer.leases(), 1);
        gate.open();
        assert_eq!(peer.receive().words(), [checksum(&pattern(LEN, 2))]);
        eventually("the other one is done", || to_peer.leases() == 0);
        peer.finish();
    });
}
