//! One thread that looks after many.

use std::io::Write;
use std::thread;
use std::time::Duration;

use cuda_mem_ipc::transport::{
    Address, Connection, Deadline, FIRST_KIND, Listener, MAX_PAYLOAD, PeerPolicy, Poller,
};
use rustix::process::Signal;

use crate::other::{LIMIT, Other, SHORT, connected, wait_for_exit};
use crate::raw::Raw;

#[test]
fn a_server_thread_sees_clients_messages_and_exits() {
    if let Some(connection) = connected() {
        connection.recv(LIMIT).unwrap_err();
        return;
    }
    let (other, to_other) = Other::start("polling::a_server_thread_sees_clients_messages_and_exits");
    let address = Address::abstract_name(&format!("cuda-mem-polling-{}", std::process::id())).unwrap();
    let listener = Listener::bind(&address, LIMIT).unwrap();
    let ready = |pending: Option<&_>, connection: Option<&Connection>| {
        let mut poller = Poller::new();
        poller.readable("client", &listener);
        if let Some(pending) = pending {
            poller.readable("hello", pending);
        }
        if let Some(connection) = connection {
            poller.readable("message", connection);
        }
        poller.readable("exit", to_other.peer().as_ref());
        poller.wait(if pending.is_none() && connection.is_none() { SHORT } else { LIMIT }).unwrap()
    };
    assert!(ready(None, None).is_empty());
    let client =
        thread::spawn(move || Connection::connect(&address, &PeerPolicy::same_user(), LIMIT).unwrap());
    let pending = listener.accept(LIMIT).unwrap();
    assert_eq!(ready(Some(&pending), None), ["hello"]);
    let connection = pending.complete(&PeerPolicy::same_user(), LIMIT).unwrap();
    let client = client.join().unwrap();
    client.send(FIRST_KIND, b"", &[], LIMIT).unwrap();
    assert_eq!(ready(None, Some(&connection)), ["message"]);
    other.signal(Signal::KILL);
    wait_for_exit(to_other.peer());
    assert_eq!(ready(None, Some(&connection)), ["message", "exit"]);
    connection.recv(LIMIT).unwrap();
    assert_eq!(ready(None, Some(&connection)), ["exit"]);
}

#[test]
fn nothing_is_sent_to_a_peer_that_has_enough() {
    let (raw, connection) = Raw::connected();
    let send = || connection.send(FIRST_KIND, &[1; MAX_PAYLOAD], &[], Duration::ZERO);
    let full = std::iter::repeat_with(send).find_map(Result::err).unwrap();
    assert!(full.is_timeout(), "{full}");
    while rustix::net::recv(&raw.0, &mut [0; 8], rustix::net::RecvFlags::DONTWAIT).is_ok() {}
    send().unwrap();
}

#[test]
fn any_descriptor_can_wake_the_thread() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let deadline = Deadline::after(LIMIT);
    thread::scope(|scope| {
        scope.spawn(move || writer.write_all(b"!").unwrap());
        let mut poller = Poller::default();
        poller.readable(7, &reader);
        assert_eq!(poller.wait(deadline).unwrap(), [7]);
    });
    assert!(!deadline.has_passed());
}
