//! Peers that stop answering, and go on later.

use cuda_mem_ipc::Error;
use cuda_mem_ipc::shared::{Exporter, Importer, SharedPool, SharedPoolOptions};

use super::{LEN, expect_usable};
use crate::common::pair::{self, Channel, Peer, test_name};
use crate::common::{World, pattern};
use crate::link::{LIMIT, SHORT, download, eventually, invite, invited, upload};

pub(crate) fn signal(peer: &Peer, signal: libc::c_int) {
    let pid = libc::pid_t::try_from(peer.id()).unwrap();
    // SAFETY: a child of this process that nobody has waited for yet.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    if signal == libc::SIGSTOP {
        let mut status = 0;
        // SAFETY: one status to write.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) }, pid);
    }
}

fn importer(first: &Channel) {
    let world = World::new();
    let importer = Importer::new(&world.context, invited(first), LIMIT).unwrap();
    first.send(b"ready", &[]);
    let mut count = 0;
    while let Ok(buffer) = importer.recv(LIMIT) {
        assert_eq!((buffer.sequence(), buffer.len()), (count, 1));
        count += 1;
    }
}

#[test]
fn an_importer_that_is_stopped_costs_deadlines_and_goes_on() {
    pair::play(test_name!(), &[("importer", importer)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
        let buffer = pool.allocate(1, &stream).unwrap();
        let peer = cast.start("importer");
        let exporter = Exporter::new(&world.context, invite(&peer), LIMIT).unwrap();
        assert_eq!(peer.receive().bytes, b"ready");
        signal(&peer, libc::SIGSTOP);
        let mut count = 0;
        let full = loop {
            match exporter.hand_over(&buffer, &stream, SHORT) {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
            assert!(count < 100_000, "nothing is queued without bound");
        };
        assert!(matches!(full, Error::Timeout { .. }), "{full}");
        assert_eq!(exporter.leases(), count, "what was not sent is no lease");
        // Nobody else waits for it.
        expect_usable(&world);
        signal(&peer, libc::SIGCONT);
        eventually("all go back", || exporter.leases() == 0);
        drop(exporter);
        peer.finish();
    });
}

fn exporter(first: &Channel) {
    let world = World::new();
    let stream = world.new_stream();
    let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
    let buffer = pool.allocate(LEN, &stream).unwrap();
    upload(&stream, buffer.as_raw(), &pattern(LEN, 6));
    let exporter = Exporter::new(&world.context, invited(first), LIMIT).unwrap();
    first.send(b"ready", &[]);
    assert_eq!(first.receive().bytes, b"go on");
    exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
    // A simulated device stops with its process; a real one would go on.
    stream.synchronize().unwrap();
    first.send(b"written", &[]);
    eventually("it goes back", || exporter.leases() == 0);
}

#[test]
fn an_exporter_that_is_stopped_costs_deadlines_and_goes_on() {
    pair::play(test_name!(), &[("exporter", exporter)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let peer = cast.start("exporter");
        let importer = Importer::new(&world.context, invite(&peer), LIMIT).unwrap();
        assert_eq!(peer.receive().bytes, b"ready");
        signal(&peer, libc::SIGSTOP);
        assert!(matches!(importer.recv(SHORT), Err(Error::Timeout { .. })));
        signal(&peer, libc::SIGCONT);
        peer.send(b"go on", &[]);
        let buffer = importer.recv(LIMIT).unwrap();
        assert_eq!(peer.receive().bytes, b"written");
        signal(&peer, libc::SIGSTOP);
        // What it wrote is there without it.
        assert!(download(&stream, buffer.on(&stream).unwrap().address(), LEN) == pattern(LEN, 6));
        drop(buffer);
        signal(&peer, libc::SIGCONT);
        peer.finish();
    });
}
