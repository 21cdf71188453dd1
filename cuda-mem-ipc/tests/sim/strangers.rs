//! Peers, and processes that are nobody's peers, that send descriptors whose closing takes long, or as many as they can: nobody else is held up.
//!
//! Each with the system's refusal of unexpected descriptors (`SO_PASSRIGHTS`, Linux 6.16) and without it. No clock decides: what a descriptor
//! holds up would be held up for ten times as long as is waited here.
#![allow(clippy::print_stderr, reason = "prints how long an honest peer took")]

use std::io::Write;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_core::host::SharedMapping;
use cuda_mem_core::{Context, Driver, Stream};
use cuda_mem_ipc::Error;
use cuda_mem_ipc::shared::wire::{Message, Place, SLOTS, Segment};
use cuda_mem_ipc::shared::{Exporter, Importer, SharedPool, SharedPoolOptions};
use cuda_mem_ipc::transport::{Address, Connection, Listener, PeerPolicy, pair, without_descriptor_guard};
use rustix::io::{Errno, IoSlice};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, sendmsg, socket_with, sockopt,
};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::child;
use crate::other::{LIMIT, both_ends, open_descriptors};

/// How long a descriptor's closing takes.
const LINGER: Duration = Duration::from_secs(30);

/// What nobody may be held up for: far more than anything takes, and far less than that.
const HELD_UP: Duration = Duration::from_secs(3);

/// A TCP socket whose closing waits for [`LINGER`], because nobody reads what it has to send.
fn lingering() -> (OwnedFd, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    one.set_nonblocking(true).unwrap();
    while one.write(&[0; 1 << 16]).is_ok() {}
    sockopt::set_socket_linger(&one, Some(LINGER)).unwrap();
    one.set_nonblocking(false).unwrap();
    (one.into(), other.into())
}

/// Sends a packet with one lingering descriptor, whose last copy the receiver has then.
fn send_lingering(socket: impl AsFd) -> (rustix::io::Result<usize>, OwnedFd) {
    let (one, other) = lingering();
    let descriptors = [one.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let sent = sendmsg(socket, &[IoSlice::new(b"no hello")], &mut control, SendFlags::NOSIGNAL);
    if sent.is_err() {
        // This is the last copy.
        sockopt::set_socket_linger(&one, None).unwrap();
    }
    (sent, other)
}

/// Whether this system refuses unexpected descriptors.
fn is_guarded() -> bool {
    let (here, there) = pair().unwrap();
    let (sent, _other) = send_lingering(&there);
    drop(here);
    sent == Err(Errno::PERM)
}

/// Runs a test with the guard, if the system has it, and without, in a process of its own: it is the process's.
fn with_and_without(name: &str, test: impl Fn(bool)) {
    if let Some(output) = child::again(name, &[]) {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success());
        return;
    }
    if is_guarded() {
        test(true);
    }
    without_descriptor_guard();
    test(false);
}

fn expect_at_once(what: &str, took: Duration) {
    eprintln!("{what}: {took:.1?}");
    assert!(took < HELD_UP, "{what} took {took:?}");
}

#[test]
fn who_is_not_admitted_does_not_hold_up_whoever_looks() {
    with_and_without("strangers::who_is_not_admitted_does_not_hold_up_whoever_looks", |is_guarded| {
        let expected = if is_guarded { Err(Errno::PERM) } else { Ok(8) };
        let nobody = PeerPolicy::same_user().with_predicate(|_| false);
        // By a pair, where the message is read first, and by a name, where nothing is read.
        let (here, there) = pair().unwrap();
        let (sent, _other) = send_lingering(&there);
        assert_eq!(sent, expected);
        let start = Instant::now();
        assert!(here.complete(&nobody, Duration::from_millis(100)).is_err());
        expect_at_once("complete(…, 100 ms) of a pair", start.elapsed());

        let name = format!("cuda-mem-stranger-{}-{is_guarded}", std::process::id());
        let listener = Listener::bind(&Address::abstract_name(&name).unwrap(), LIMIT).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let stranger = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&stranger, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        let (sent, _other) = send_lingering(&stranger);
        assert_eq!(sent, expected);
        let pending = listener.accept(LIMIT).unwrap();
        let start = Instant::now();
        let refused = pending.complete(&nobody, Duration::from_millis(100));
        assert!(matches!(refused, Err(Error::PeerRefused { .. })), "{refused:?}");
        expect_at_once("complete(…, 100 ms) of a listener", start.elapsed());
        // One that is dropped without a look.
        let stranger = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&stranger, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        let (_, _other) = send_lingering(&stranger);
        let start = Instant::now();
        drop(listener.accept(LIMIT).unwrap());
        expect_at_once("the drop of who was not looked at", start.elapsed());
    });
}

fn context() -> Context {
    Driver::over(cuda_mem_sim::table()).unwrap().device(0).unwrap().primary_context().unwrap()
}

fn ends(context: &Context) -> (Exporter, Importer) {
    let (here, there) = both_ends();
    let theirs = context.clone();
    let importer = thread::spawn(move || Importer::new(&theirs, there, LIMIT).unwrap());
    (Exporter::new(context, here, LIMIT).unwrap(), importer.join().unwrap())
}

fn say(connection: &Connection, message: Message, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
    let (kind, payload) = message.encode();
    connection.send(kind, &payload, descriptors, LIMIT)
}

/// How long an honest peer takes to give a buffer back.
fn round(exporter: &Exporter, importer: &Importer, pool: &SharedPool, stream: &Stream) -> Duration {
    let buffer = pool.allocate(1000, stream).unwrap();
    exporter.hand_over(&buffer, stream, LIMIT).unwrap();
    let received = importer.recv(LIMIT).unwrap();
    let start = Instant::now();
    drop(received);
    exporter.returned(LIMIT).unwrap();
    start.elapsed()
}

#[test]
fn an_honest_peer_gives_back_beside_hostile_ones() {
    with_and_without("strangers::an_honest_peer_gives_back_beside_hostile_ones", |is_guarded| {
        let context = context();
        let stream = Stream::new(&context).unwrap();
        let pool = SharedPool::new(&context, &SharedPoolOptions::default()).unwrap();
        let (exporter, importer) = ends(&context);
        expect_at_once("a buffer goes back", round(&exporter, &importer, &pool, &stream));
        // An importer has no reason to send any, and an exporter may send what is no memory.
        let (here, hostile) = both_ends();
        let victim = thread::scope(|scope| {
            let victim = scope.spawn(|| Exporter::new(&context, here, LIMIT).unwrap());
            assert!(matches!(hostile.recv(LIMIT).unwrap().kind, cuda_mem_ipc::shared::wire::OFFER));
            say(&hostile, Message::Accept { segments: 0, bytes: 0 }, &[]).unwrap();
            victim.join().unwrap()
        });
        let (one, _other) = lingering();
        let sent = say(&hostile, Message::Ring, &[one.as_fd()]);
        assert_eq!(matches!(sent, Err(Error::DescriptorsRefused)), is_guarded, "{sent:?}");
        if is_guarded {
            // This is the last copy.
            sockopt::set_socket_linger(&one, None).unwrap();
        }
        drop(one);
        let (importing, exporting) = both_ends();
        let memory = SharedMapping::create(SLOTS * 64).unwrap();
        say(&exporting, Message::Offer, &[memory.as_fd()]).unwrap();
        let victims = (victim, Importer::new(&context, importing, LIMIT).unwrap());
        let mut others = Vec::new();
        for segment in 0..4 {
            let (one, other) = lingering();
            let place = Place::Device(context.device().uuid().unwrap());
            let said = Segment { segment, generation: 1, bytes: 2 << 20, place };
            say(&exporting, Message::Segment(said.clone()), &[one.as_fd()]).unwrap();
            others.push(other);
        }
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(5));
            let took = round(&exporter, &importer, &pool, &stream);
            assert!(took < HELD_UP, "{took:?}");
        }
        let what = "a buffer goes back beside hostile peers";
        expect_at_once(what, round(&exporter, &importer, &pool, &stream));
        drop((victims, hostile, exporting));
        expect_at_once("and when they are gone", round(&exporter, &importer, &pool, &stream));
    });
}

/// Segments of as many handles as can be, of which no buffer comes.
#[test]
fn one_peer_does_not_use_up_the_descriptors() {
    const MOST: u64 = 1024;
    with_and_without("strangers::one_peer_does_not_use_up_the_descriptors", |_| {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = Some(MOST);
        setrlimit(Resource::Nofile, limit).unwrap();
        let context = context();
        let stream = Stream::new(&context).unwrap();
        let (importing, exporting) = both_ends();
        let memory = SharedMapping::create(SLOTS * 64).unwrap();
        say(&exporting, Message::Offer, &[memory.as_fd()]).unwrap();
        let ahead = cuda_mem_ipc::shared::AheadLimit::NONE;
        let victim = Importer::with_ahead(&context, importing, ahead, LIMIT).unwrap();
        let before = open_descriptors();
        let place = Place::Parts { uuid: context.device().uuid().unwrap(), sizes: vec![1 << 21; 64] };
        let mut sent = 0;
        for segment in 0..4096 {
            let said = Segment { segment, generation: 2, bytes: 64 << 21, place: place.clone() };
            let (kind, payload) = Message::Segment(said.clone()).encode();
            let flood = [memory.as_fd(); 64];
            // Until the victim takes no more.
            if exporting.send(kind, &payload, &flood, Duration::from_millis(300)).is_err() {
                break;
            }
            sent += 1;
        }
        // Something of before may be closed by now.
        let more = open_descriptors().saturating_sub(before);
        eprintln!("{sent} segments of 64 descriptors were sent, {more} stay open of {MOST}");
        assert!(more <= 200, "{more} are open");
        // An honest connection comes up, and hands over.
        let (exporter, importer) = ends(&context);
        let options = SharedPoolOptions { segment_bytes: 2 << 20, ..SharedPoolOptions::default() };
        let pool = SharedPool::new(&context, &options).unwrap();
        for _ in 0..1000 {
            let buffer = pool.allocate(4096, &stream).unwrap();
            exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
            drop(importer.recv(LIMIT).unwrap());
        }
        exporter.returned(LIMIT).unwrap();
        drop((victim, exporting));
    });
}

/// A process of its own for a test, with the usual limit of descriptors. None in the one that has waited for it.
fn with_1024_descriptors(name: &str) -> Option<Context> {
    if let Some(output) = child::again(name, &[]) {
        child::expect_silent_success(&output);
        return None;
    }
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(1024);
    setrlimit(Resource::Nofile, limit).unwrap();
    Some(context())
}

/// How many descriptors of this process are of a file in memory.
fn copies(memory: &SharedMapping) -> usize {
    let file = rustix::fs::fstat(memory).unwrap().st_ino;
    let is_one = |entry: &std::fs::DirEntry| entry.path().metadata().is_ok_and(|found| found.ino() == file);
    std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter(is_one).count()
}

/// At the usual limit: one descriptor waits, or those of a segment of as many handles as can be.
#[test]
fn what_comes_behind_a_segment_of_which_no_buffer_comes_is_heard() {
    let name = "strangers::what_comes_behind_a_segment_of_which_no_buffer_comes_is_heard";
    let Some(context) = with_1024_descriptors(name) else { return };
    let uuid = context.device().uuid().unwrap();
    let parts = Place::Parts { uuid, sizes: vec![1 << 21; 64] };
    for (handles, place) in [(1, Place::Device(uuid)), (64, parts)] {
        let (importing, exporting) = both_ends();
        let memory = SharedMapping::create(SLOTS * 64).unwrap();
        say(&exporting, Message::Offer, &[memory.as_fd()]).unwrap();
        let ahead = cuda_mem_ipc::shared::AheadLimit::NONE;
        let victim = Importer::with_ahead(&context, importing, ahead, LIMIT).unwrap();
        let before = copies(&memory);
        let expect_waiting = |count, what: &str| {
            let start = Instant::now();
            while copies(&memory) != before + count {
                assert!(start.elapsed() < HELD_UP, "{what} of {handles}: {}", copies(&memory) - before);
                thread::sleep(Duration::from_millis(1));
            }
        };
        let tell = |segment| {
            let said =
                Segment { segment, generation: 4, bytes: (handles as u64) << 21, place: place.clone() };
            say(&exporting, Message::Segment(said), &vec![memory.as_fd(); handles]).unwrap();
            expect_waiting(handles, "it is kept");
        };
        tell(1);
        say(&exporting, Message::Retire { segment: 1 }, &[]).unwrap();
        expect_waiting(0, "it is retired");
        tell(2);
        drop(exporting);
        let ended = victim.recv(HELD_UP);
        assert!(ended.as_ref().is_err_and(Error::is_gone), "{handles}: {ended:?}");
    }
}

/// Each of which has no more than one may have.
#[test]
fn many_peers_do_not_use_up_the_descriptors() {
    const MOST: usize = 4096;
    const PEERS: usize = 10;
    with_and_without("strangers::many_peers_do_not_use_up_the_descriptors", |_| {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = Some(MOST as u64);
        setrlimit(Resource::Nofile, limit).unwrap();
        let context = context();
        let peer = |_| {
            let (importing, exporting) = both_ends();
            let memory = SharedMapping::create(SLOTS * 64).unwrap();
            say(&exporting, Message::Offer, &[memory.as_fd()]).unwrap();
            let ahead = cuda_mem_ipc::shared::AheadLimit::NONE;
            (Importer::with_ahead(&context, importing, ahead, LIMIT).unwrap(), exporting, memory)
        };
        let peers = (0..PEERS).map(peer).collect::<Vec<_>>();
        let before = open_descriptors();
        let place = Place::Parts { uuid: context.device().uuid().unwrap(), sizes: vec![1 << 21; 64] };
        for segment in 0..4 {
            for (_, exporting, memory) in &peers {
                let said = Segment { segment, generation: 3, bytes: 64 << 21, place: place.clone() };
                say(exporting, Message::Segment(said), &[memory.as_fd(); 64]).unwrap();
            }
        }
        // A quarter, and one message of each.
        let (most, start) = (MOST / 4 + PEERS * 64, Instant::now());
        while start.elapsed() < Duration::from_secs(1) {
            let more = open_descriptors().saturating_sub(before);
            assert!(more <= most, "{more} are open");
            thread::sleep(Duration::from_millis(10));
        }
        let (stream, (exporter, importer)) = (Stream::new(&context).unwrap(), ends(&context));
        let pool = SharedPool::new(&context, &SharedPoolOptions::default()).unwrap();
        expect_at_once("a buffer goes back beside them", round(&exporter, &importer, &pool, &stream));
        drop(peers);
    });
}

/// The exporter's host memory is pinned, and keeps a descriptor: both have an end.
#[test]
fn host_memory_of_a_peer_has_a_budget() {
    let Some(context) = with_1024_descriptors("strangers::host_memory_of_a_peer_has_a_budget") else {
        return;
    };
    let stream = Stream::new(&context).unwrap();
    let options = SharedPoolOptions { kind: cuda_mem_ipc::shared::MemoryKind::Host, segment_bytes: 4096 };
    let (greedy, victim) = ends(&context);
    let pool = SharedPool::new(&context, &options).unwrap();
    let mut kept = Vec::new();
    let refused = loop {
        let buffer = pool.allocate_isolated(4096, &stream).unwrap();
        greedy.hand_over(&buffer, &stream, LIMIT).unwrap();
        match victim.recv(LIMIT) {
            Ok(received) => kept.push((buffer, received)),
            Err(error) => break error,
        }
        assert!(kept.len() < 200, "there is no end");
    };
    assert!(matches!(refused, Error::OverBudget { what: "descriptors", most: 64 }), "{refused}");
    assert!(refused.to_string().ends_with("until the exporter trims its pool"), "{refused}");
    assert_eq!(kept.len(), 64);
    // Another one has its own.
    let (honest, importer) = ends(&context);
    let buffer = pool.allocate_isolated(4096, &stream).unwrap();
    honest.hand_over(&buffer, &stream, LIMIT).unwrap();
    drop(importer.recv(LIMIT).unwrap());
    // And what goes back may come again.
    kept.clear();
    greedy.returned(LIMIT).unwrap();
    let start = Instant::now();
    loop {
        let buffer = pool.allocate_isolated(4096, &stream).unwrap();
        greedy.hand_over(&buffer, &stream, LIMIT).unwrap();
        match victim.recv(LIMIT) {
            Ok(_) => break,
            Err(error) => assert!(start.elapsed() < LIMIT, "{error}"),
        }
    }
}
