//! Descriptors arrive as what they were, with close-on-exec, all or none, and none is lost or left open.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use cuda_mem_core::{Driver, Stream};
use cuda_mem_ipc::Error;
use cuda_mem_ipc::shared::{Exporter, SharedPool, SharedPoolOptions, wire};
use cuda_mem_ipc::transport::{Descriptors, FIRST_KIND, MAX_DESCRIPTORS, MAX_PAYLOAD, pair};
use cuda_mem_sim::Sim;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_getfd};
use rustix::process::{Resource, Signal, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::child;
use crate::other::{LIMIT, Other, both_ends, connected, expect_open, open_descriptors};
use crate::own_sim::OwnSim;

/// Long enough to be no accident, short enough to wait for.
const SOON: Duration = Duration::from_millis(100);

fn files(count: usize) -> Vec<File> {
    let file = |index: usize| {
        let mut file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        write!(file, "file {index}").unwrap();
        file
    };
    (0..count).map(file).collect()
}

fn borrowed(files: &[File]) -> Vec<BorrowedFd<'_>> {
    files.iter().map(AsFd::as_fd).collect()
}

fn expect_files(descriptors: Descriptors, count: usize) {
    assert_eq!(descriptors.len(), count);
    for (index, descriptor) in descriptors.into_vec().into_iter().enumerate() {
        assert_eq!(fcntl_getfd(&descriptor).unwrap(), FdFlags::CLOEXEC);
        let mut file = File::from(descriptor);
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, format!("file {index}"));
    }
}

#[test]
fn a_message_carries_253_descriptors_to_another_process_and_no_more() {
    const NAME: &str = "descriptors::a_message_carries_253_descriptors_to_another_process_and_no_more";
    if let Some(connection) = connected() {
        let before = open_descriptors();
        for count in [1, MAX_DESCRIPTORS, 0] {
            expect_files(connection.recv(LIMIT).unwrap().descriptors, count);
        }
        expect_open(before);
        connection.send(FIRST_KIND, b"all were right", &[], LIMIT).unwrap();
        return;
    }
    // Counted in a process where nobody else opens any.
    if let Some(output) = child::again(NAME, &[]) {
        return child::expect_silent_success(&output);
    }
    let before = open_descriptors();
    {
        let (other, connection) = Other::start(NAME);
        let files = files(MAX_DESCRIPTORS + 1);
        let all = borrowed(&files);
        connection.send(FIRST_KIND, b"", &all[..1], LIMIT).unwrap();
        connection.send(FIRST_KIND, b"", &all[..MAX_DESCRIPTORS], LIMIT).unwrap();
        let asked = |result| match result {
            Err(Error::TooManyDescriptors { asked, most: MAX_DESCRIPTORS }) => asked,
            result => panic!("{result:?}"),
        };
        assert_eq!(asked(connection.send(FIRST_KIND, b"", &all, LIMIT)), 254);
        let long = vec![0; MAX_PAYLOAD + 1];
        let refused = connection.send(FIRST_KIND, &long, &all[..1], LIMIT);
        assert!(
            matches!(refused, Err(Error::PayloadTooLong { bytes, most: MAX_PAYLOAD }) if bytes == long.len())
        );
        // The next one arrives.
        connection.send(FIRST_KIND, &long[1..], &[], LIMIT).unwrap();
        assert_eq!(connection.recv(LIMIT).unwrap().payload, b"all were right");
        other.finish();
    }
    expect_open(before);
}

/// Those of the calling thread, which may be root's.
fn drop_capabilities() {
    let mut sets = capabilities(None).unwrap();
    sets.effective = CapabilitySet::empty();
    sets.permitted = CapabilitySet::empty();
    sets.inheritable = CapabilitySet::empty();
    set_capabilities(None, sets).unwrap();
}

fn limit_descriptors(to: usize) {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(to as u64);
    setrlimit(Resource::Nofile, limit).unwrap();
}

#[test]
fn descriptors_that_find_no_room_are_all_closed() {
    if let Some(output) = child::again("descriptors::descriptors_that_find_no_room_are_all_closed", &[]) {
        return child::expect_silent_success(&output);
    }
    let (here, there) = both_ends();
    let files = files(50);
    here.send(FIRST_KIND, b"", &borrowed(&files), LIMIT).unwrap();
    let before = open_descriptors();
    // One is that of the count itself.
    limit_descriptors(before + 9);
    match there.recv(LIMIT) {
        Err(Error::ControlTruncated { received }) => assert!((1..50).contains(&received), "{received}"),
        other => panic!("{other:?}"),
    }
    expect_open(before);
    assert!(matches!(there.recv(LIMIT), Err(Error::Broken)));
    assert!(here.recv(LIMIT).unwrap_err().is_gone());
}

#[test]
fn too_many_descriptors_under_way_are_an_error_of_their_own() {
    if let Some(output) =
        child::again("descriptors::too_many_descriptors_under_way_are_an_error_of_their_own", &[])
    {
        return child::expect_silent_success(&output);
    }
    let (here, there) = both_ends();
    let files = files(100);
    drop_capabilities();
    limit_descriptors(open_descriptors() + 150);
    let mut sent = 0;
    let error = loop {
        match here.send(FIRST_KIND, b"", &borrowed(&files), SOON) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 100, "the system allows any number");
    };
    assert!(matches!(error, Error::TooManyInFlight), "{error}");
    thread::scope(|scope| {
        let again = scope.spawn(|| here.send(FIRST_KIND, b"again", &borrowed(&files), LIMIT));
        thread::sleep(SOON);
        assert!(!again.is_finished(), "it waits until its deadline for room");
        // Nothing was lost.
        for _ in 0..sent {
            expect_files(there.recv(LIMIT).unwrap().descriptors, 100);
        }
        // The system counts those of the user, whose other processes, of other tests, may have some under way.
        again.join().unwrap().unwrap();
    });
    assert_eq!(there.recv(LIMIT).unwrap().payload, b"again");
}

/// There is no room for descriptors meanwhile, and a process that the receiver has started keeps its socket.
#[test]
fn a_receiver_that_has_exited_is_not_waited_for_until_there_is_room() {
    const NAME: &str = "descriptors::a_receiver_that_has_exited_is_not_waited_for_until_there_is_room";
    if let Some(connection) = connected() {
        // It has the socket as its standard input, and ends with it.
        let mut heir = Command::new("cat").stdin(Stdio::inherit()).stdout(Stdio::null()).spawn().unwrap();
        connection.send(wire::ACCEPT, &[0; 16], &[], LIMIT).unwrap();
        heir.wait().unwrap();
        return;
    }
    if let Some(output) = child::again(NAME, &[]) {
        return child::expect_silent_success(&output);
    }
    let sim = OwnSim::of(Sim::builder());
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let stream = Stream::new(&context).unwrap();
    let pool = SharedPool::new(&context, &SharedPoolOptions::default()).unwrap();
    let buffer = pool.allocate(1, &stream).unwrap();
    let (other, connection) = Other::start(NAME);
    let exporter = Exporter::new(&context, connection, LIMIT).unwrap();
    let (full, _unread) = both_ends();
    let files = files(100);
    drop_capabilities();
    let most = open_descriptors() + 150;
    limit_descriptors(most);
    // Until these alone are too many: those of other processes are received at some time.
    let mut sent = 0;
    while sent <= most {
        sent += full.send(FIRST_KIND, b"", &borrowed(&files), SOON).map_or(0, |()| files.len());
    }
    let refused = thread::scope(|scope| {
        let waits = scope.spawn(|| exporter.hand_over(&buffer, &stream, LIMIT));
        thread::sleep(SOON);
        assert!(!waits.is_finished(), "it waits for room");
        other.signal(Signal::KILL);
        waits.join().unwrap().unwrap_err()
    });
    assert!(refused.is_gone(), "{refused}");
}

/// What a new program has open, of each kind that the transport opens: none, but for what whoever started the tests left open.
fn inherited() -> [usize; 4] {
    let mut list = Command::new("ls");
    list.args(["-l", "/proc/self/fd"]).stdin(Stdio::null()).stderr(Stdio::null());
    let output = String::from_utf8(list.output().unwrap().stdout).unwrap();
    assert!(output.contains("/dev/null"), "{output}");
    ["socket:", "pidfd", "memfd", "cuda-mem-exec"].map(|kind| output.matches(kind).count())
}

#[test]
fn a_new_program_inherits_nothing() {
    let before = inherited();
    let directory = std::env::temp_dir().join(format!("cuda-mem-exec-{}", std::process::id()));
    let address = cuda_mem_ipc::transport::Address::in_directory(&directory, "name").unwrap();
    let listener = cuda_mem_ipc::transport::Listener::bind(&address, LIMIT).unwrap();
    let (here, there) = both_ends();
    let files = files(3);
    here.send(FIRST_KIND, b"", &borrowed(&files), LIMIT).unwrap();
    let sent = there.recv(LIMIT).unwrap();
    let (_pending, _end) = pair().unwrap();
    let ours = [listener.as_fd(), here.as_fd(), there.as_fd(), here.peer().as_fd(), there.peer().as_fd()];
    let received = sent.descriptors.iter().map(AsFd::as_fd);
    for descriptor in ours.into_iter().chain(received) {
        assert_eq!(fcntl_getfd(descriptor).unwrap(), FdFlags::CLOEXEC, "{}", descriptor.as_raw_fd());
    }
    assert_eq!(inherited(), before);
    drop(listener);
    std::fs::remove_dir(directory).unwrap();
}
