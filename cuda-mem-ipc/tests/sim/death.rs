//! Peers that are killed, stop, or leave without a word.

use std::process::{Command, Stdio};
use std::thread;

use cuda_mem_core::{Driver, Stream};
use cuda_mem_ipc::Error;
use cuda_mem_ipc::shared::{Exporter, Importer, MemoryKind, SharedPool, SharedPoolOptions};
use cuda_mem_ipc::transport::{FIRST_KIND, MAX_PAYLOAD, Poller};
use cuda_mem_sim::Sim;
use rustix::net::SendFlags;
use rustix::process::{Signal, WaitOptions, waitpid};

use crate::child;
use crate::other::{
    LIMIT, Other, SHORT, connected, eventually, expect_open, open_descriptors, wait_for_exit,
};
use crate::own_sim::OwnSim;

#[test]
fn what_a_killed_peer_had_sent_arrives_and_then_its_end() {
    const NAME: &str = "death::what_a_killed_peer_had_sent_arrives_and_then_its_end";
    if let Some(connection) = connected() {
        // There is something to receive, and it never will: the system calls that a reset.
        let mut poller = Poller::new();
        poller.readable((), &connection);
        assert_eq!(poller.wait(LIMIT).unwrap(), [()]);
        for index in 0..3 {
            connection.send(FIRST_KIND + index, b"", &[], LIMIT).unwrap();
        }
        rustix::process::kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
    }
    if let Some(output) = child::again(NAME, &[]) {
        return child::expect_silent_success(&output);
    }
    let before = open_descriptors();
    {
        let (_other, connection) = Other::start(NAME);
        connection.send(FIRST_KIND, b"not received", &[], LIMIT).unwrap();
        wait_for_exit(connection.peer());
        assert!(!connection.peer().is_alive().unwrap());
        for index in 0..3 {
            assert_eq!(connection.recv(LIMIT).unwrap().kind, FIRST_KIND + index);
        }
        assert!(connection.recv(LIMIT).unwrap_err().is_gone());
        assert!(connection.send(FIRST_KIND, b"", &[], LIMIT).unwrap_err().is_gone());
    }
    expect_open(before);
}

#[test]
fn a_peer_killed_while_it_is_waited_for_ends_the_wait() {
    if let Some(connection) = connected() {
        connection.send(FIRST_KIND, b"here", &[], LIMIT).unwrap();
        connection.recv(LIMIT).unwrap_err();
        return;
    }
    let (other, connection) = Other::start("death::a_peer_killed_while_it_is_waited_for_ends_the_wait");
    connection.recv(LIMIT).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| connection.recv(LIMIT));
        other.signal(Signal::KILL);
        assert!(waiting.join().unwrap().unwrap_err().is_gone());
    });
}

/// The socket stays open in a process that the peer has started, so that it never reads as closed.
#[test]
fn a_peer_is_gone_though_another_process_has_its_socket() {
    if let Some(connection) = connected() {
        // It has the socket as its standard input, and ends with it.
        let mut heir = Command::new("cat").stdin(Stdio::inherit()).stdout(Stdio::null()).spawn().unwrap();
        connection.send(FIRST_KIND, b"", &[], LIMIT).unwrap();
        heir.wait().unwrap();
        return;
    }
    let (other, connection) = Other::start("death::a_peer_is_gone_though_another_process_has_its_socket");
    connection.recv(LIMIT).unwrap();
    other.signal(Signal::KILL);
    let pid = connection.peer().pid();
    assert!(matches!(connection.recv(LIMIT), Err(Error::PeerExited { pid: said }) if said == pid));
    let full = loop {
        if let Err(error) = connection.send(FIRST_KIND, &[0; MAX_PAYLOAD], &[], LIMIT) {
            break error;
        }
    };
    assert!(full.is_gone(), "{full}");
}

#[test]
fn a_stopped_peer_costs_a_deadline_and_no_memory() {
    if let Some(connection) = connected() {
        rustix::process::kill_process(rustix::process::getpid(), Signal::STOP).unwrap();
        let mut count = 0_u64;
        loop {
            let message = connection.recv(LIMIT).unwrap();
            if message.kind == FIRST_KIND + 1 {
                break;
            }
            assert_eq!(message.payload[..8], count.to_le_bytes());
            count += 1;
        }
        connection.send(FIRST_KIND, &count.to_le_bytes(), &[], LIMIT).unwrap();
        return;
    }
    let (other, connection) = Other::start("death::a_stopped_peer_costs_a_deadline_and_no_memory");
    waitpid(Some(other.pid()), WaitOptions::UNTRACED).unwrap();
    assert!(connection.recv(SHORT).unwrap_err().is_timeout());
    let mut payload = vec![0; MAX_PAYLOAD];
    let mut sent = 0_u64;
    let full = loop {
        payload[..8].copy_from_slice(&sent.to_le_bytes());
        match connection.send(FIRST_KIND, &payload, &[], SHORT) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 10_000, "160 MB are under way");
    };
    assert!(matches!(full, Error::Timeout { .. }), "{full}");
    assert!(sent > 0);
    assert!(connection.peer().is_alive().unwrap(), "it is only stopped");
    other.signal(Signal::CONT);
    // What did not fit was not sent, the rest arrives in order.
    connection.send(FIRST_KIND + 1, b"", &[], LIMIT).unwrap();
    assert_eq!(connection.recv(LIMIT).unwrap().payload, sent.to_le_bytes());
    other.finish();
}

/// The driver has every importing process free a block of a pool first, and this one lives. Nobody hears of its free any more.
#[test]
fn a_block_of_a_pool_is_freed_behind_the_process_whose_connection_broke() {
    const NAME: &str = "death::a_block_of_a_pool_is_freed_behind_the_process_whose_connection_broke";
    let sim = OwnSim::of(Sim::builder());
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    if let Some(connection) = connected() {
        let importer = Importer::new(&context, connection, LIMIT).unwrap();
        let _imported = importer.recv(LIMIT).unwrap();
        // The connection's socket, which ends over it.
        rustix::net::send(std::io::stdin(), b"nonsense", SendFlags::empty()).unwrap();
        thread::sleep(10 * LIMIT);
    }
    let (other, connection) = Other::start(NAME);
    let exporter = Exporter::new(&context, connection, LIMIT).unwrap();
    let stream = Stream::new(&context).unwrap();
    let options = SharedPoolOptions { kind: MemoryKind::DevicePool, segment_bytes: 2 << 20 };
    let pool = SharedPool::new(&context, &options).unwrap();
    exporter.hand_over(&pool.allocate(1000, &stream).unwrap(), &stream, LIMIT).unwrap();
    eventually("its lease is over", || exporter.leases() == 0);
    assert!(exporter.peer().is_alive().unwrap());
    sim.record(true);
    let is_freed = || sim.log().names().contains(&"cuMemFreeAsync");
    drop((pool, exporter));
    thread::sleep(4 * SHORT);
    assert!(!is_freed(), "the other process has it imported");
    other.signal(Signal::KILL);
    eventually("it is freed", is_freed);
}
