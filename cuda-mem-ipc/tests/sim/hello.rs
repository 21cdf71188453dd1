//! Before anything is accepted: who is there, and does it speak the same.

use std::thread;

use cuda_mem_ipc::Error;
use cuda_mem_ipc::transport::{FIRST_KIND, PeerPolicy, Pending, pair, without_descriptor_guard};
use rustix::process::geteuid;

use crate::other::{LIMIT, Other, SHORT, inherited, wait_for_exit};
use crate::raw::{Raw, Watched, frame, frame_with, hello, hello_with};

/// What the maker of a pair says to the first packet, sent with as many descriptors.
fn refused(packet: &[u8], attached: usize) -> Error {
    // What is sent comes, also what no honest peer sends.
    without_descriptor_guard();
    let (here, there) = pair().unwrap();
    let (raw, watched) = (Raw(there), Watched::new());
    raw.send(packet, &vec![watched.descriptor(); attached]);
    let error = here.complete(&PeerPolicy::default(), LIMIT).unwrap_err();
    watched.expect_closed();
    error
}

#[test]
fn only_a_hello_of_the_peer_itself_is_one() {
    let pid = std::process::id();
    let other = refused(&frame(0, &hello_with(1, 1, pid + 1)), 0);
    assert!(
        matches!(other, Error::PeerMismatch { told_pid, pid: found, .. } if (told_pid, found) == (pid + 1, pid))
    );
    let mut later = hello();
    later[8] ^= 1;
    assert!(matches!(refused(&frame(0, &later), 0), Error::PeerMismatch { .. }));
    let version = refused(&frame(0, &hello_with(2, 9, pid)), 0);
    assert!(matches!(version, Error::NoCommonVersion { theirs: (2, 9), ours: (1, 1) }), "{version}");
    assert!(matches!(
        refused(&frame(FIRST_KIND, &hello()), 0),
        Error::NoHello { kind: FIRST_KIND, bytes: 16 }
    ));
    assert!(matches!(refused(&frame(0, &hello()[..15]), 0), Error::NoHello { kind: 0, bytes: 15 }));
    assert!(matches!(refused(&frame_with(0, &hello(), 2), 2), Error::NoHello { kind: 0, .. }));
    assert!(matches!(refused(&frame(0, &hello()), 3), Error::DescriptorCount { declared: 0, received: 3 }));
    assert!(matches!(refused(b"hello", 9), Error::Frame(_)));
}

#[test]
fn who_says_nothing_or_leaves_is_an_error() {
    let (here, there) = pair().unwrap();
    assert!(here.complete(&PeerPolicy::default(), SHORT).unwrap_err().is_timeout());
    assert!(matches!(
        Pending::inherited(there).unwrap().complete(&PeerPolicy::default(), LIMIT),
        Err(Error::Closed { .. })
    ));
    let (here, there) = pair().unwrap();
    drop(there);
    assert!(matches!(here.complete(&PeerPolicy::default(), LIMIT), Err(Error::Closed { .. })));
}

#[test]
fn a_hello_of_a_later_release_is_understood() {
    let (here, there) = pair().unwrap();
    let raw = Raw(there);
    let later = [hello_with(1, 7, std::process::id()), b"what later releases add".to_vec()].concat();
    raw.send(&frame(0, &later), &[]);
    assert_eq!(here.complete(&PeerPolicy::default(), LIMIT).unwrap().peer().pid(), std::process::id());
}

/// The policy stands in for another user, whom a test cannot be.
#[test]
fn a_user_that_the_policy_does_not_name_is_refused_at_either_end() {
    let (own, other) = (geteuid().as_raw(), geteuid().as_raw() + 1);
    let [refusing, admitting] = [other, own].map(|uid| PeerPolicy::default().with_uids([uid]));
    for refuses_here in [true, false] {
        let (here, there) = pair().unwrap();
        let (near, far) = if refuses_here { (&refusing, &admitting) } else { (&admitting, &refusing) };
        let (near, far) = thread::scope(|scope| {
            let far = scope.spawn(|| Pending::inherited(there).unwrap().complete(far, LIMIT));
            (here.complete(near, LIMIT), far.join().unwrap())
        });
        let (refused, closed) = if refuses_here { (near, far) } else { (far, near) };
        match refused {
            Err(Error::PeerRefused { uid, pid, accepted, .. }) => {
                assert_eq!((uid, pid, accepted), (own, std::process::id(), format!("users {other}")));
            }
            other => panic!("{other:?}"),
        }
        // The other side may have been faster, and finds its connection closed at its first message.
        match closed {
            Err(error) => assert!(error.is_gone(), "{error}"),
            Ok(connection) => assert!(connection.recv(LIMIT).unwrap_err().is_gone()),
        }
    }
}

#[test]
fn nothing_is_sent_to_whom_the_policy_refuses() {
    let (here, there) = pair().unwrap();
    let raw = Raw(there);
    raw.send(&frame(0, &hello()), &[]);
    let nobody = PeerPolicy::default().with_predicate(|_| false);
    assert!(matches!(here.complete(&nobody, LIMIT), Err(Error::PeerRefused { .. })));
    assert_eq!(raw.next_packet(), b"");
}

#[test]
fn only_an_end_of_a_pair_is_inherited() {
    let (reader, _writer) = std::io::pipe().unwrap();
    assert!(matches!(Pending::inherited(reader.into()), Err(Error::NotAnEnd)));
    let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(matches!(Pending::inherited(stream.into()), Err(Error::NotAnEnd)));
    let network = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(matches!(Pending::inherited(network.into()), Err(Error::NotAnEnd)));
}

#[test]
fn each_side_knows_the_process_at_the_other() {
    if let Some(pending) = inherited() {
        let connection = pending.complete(&PeerPolicy::default(), LIMIT).unwrap();
        assert_eq!(connection.peer().pid(), std::os::unix::process::parent_id());
        let told = [connection.peer().start_time(), connection.peer().uid().into()].map(u64::to_le_bytes);
        connection.send(FIRST_KIND, &told.concat(), &[], LIMIT).unwrap();
        connection.recv(LIMIT).unwrap();
        return;
    }
    let (other, connection) = Other::start("hello::each_side_knows_the_process_at_the_other");
    let peer = connection.peer();
    assert_eq!(peer.pid(), other.pid().as_raw_nonzero().get().cast_unsigned());
    assert_eq!(peer.uid(), rustix::process::getuid().as_raw());
    assert_eq!(peer.gid(), rustix::process::getgid().as_raw());
    let own_start = &hello()[8..];
    let message = connection.recv(LIMIT).unwrap();
    assert_eq!(message.payload, [own_start, &u64::from(geteuid().as_raw()).to_le_bytes()].concat());
    connection.send(FIRST_KIND, b"", &[], LIMIT).unwrap();
    other.finish();
    wait_for_exit(peer);
}
