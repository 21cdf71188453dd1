//! Descriptors that are sent and not received yet.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use cuda_mem_ipc::symmetric::{Error, Exchange, Group, Why};
use rustix::io::{Errno, IoSlice};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
    socketpair,
};
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::common::{Backend, World, backend, child};
use crate::rank::{LONG, SOON, options};

/// What two ranks do at once.
fn both<T: Send>(what: impl Fn(usize) -> T + Sync) -> [T; 2] {
    thread::scope(|scope| {
        let second = scope.spawn(|| what(1));
        [what(0), second.join().unwrap()]
    })
}

const MOST: u64 = 512;

fn limit_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(MOST);
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// Two ranks in a process that may have few descriptors under way, and whose user has too many: the sockets have those.
fn groups_without_room(world: &World) -> ([Group; 2], PathBuf, [OwnedFd; 2]) {
    let directory = std::env::temp_dir().join(format!("cuda-mem-under-way-{}", std::process::id()));
    let groups = both(|rank| Group::join(&world.context, "group", rank, 2, &directory, &options()).unwrap());
    // Root's may be as many as they like. Threads that start from here on have none of that either.
    let mut sets = capabilities(None).unwrap();
    sets.effective = CapabilitySet::empty();
    sets.permitted = CapabilitySet::empty();
    sets.inheritable = CapabilitySet::empty();
    set_capabilities(None, sets).unwrap();
    limit_descriptors();
    let (here, there) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    // Until these alone are too many: those of other processes are received at some time.
    let mut sent = 0;
    let refused = loop {
        let files = [file.as_fd(); 200];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        match sendmsg(&here, &[IoSlice::new(b"all")], &mut control, SendFlags::DONTWAIT) {
            Err(refused) if sent > MOST => break refused,
            Err(_) => thread::yield_now(),
            Ok(_) => sent += files.len() as u64,
        }
    };
    assert_eq!(refused, Errno::TOOMANYREFS);
    (groups, directory, [here, there])
}

/// On the simulator, in a process of its own that runs this test alone.
fn world_of_a_process(name: &str) -> Option<World> {
    if backend() != Backend::Simulator {
        return None;
    }
    let output = child::again(name, &[]);
    output.iter().for_each(child::expect_silent_success);
    output.is_none().then(World::new)
}

/// The system counts those of all of a user's processes together, and refuses more for as long as that lasts.
#[test]
fn descriptors_that_somebody_else_does_not_receive_break_no_group() {
    let Some(world) =
        world_of_a_process("under_way::descriptors_that_somebody_else_does_not_receive_break_no_group")
    else {
        return;
    };
    let (groups, directory, sockets) = groups_without_room(&world);
    thread::scope(|scope| {
        let made = groups.each_ref().map(|group| scope.spawn(move || group.alloc::<u8>(1000).map(drop)));
        thread::sleep(SOON);
        assert!(made.iter().all(|made| !made.is_finished()));
        drop(sockets);
        made.into_iter().for_each(|made| made.join().unwrap().unwrap());
    });
    groups.iter().for_each(|group| group.check().unwrap());
    drop(groups);
    std::fs::remove_dir_all(directory).unwrap();
}

/// It waits for room no longer, as for nothing else.
#[test]
fn a_group_that_breaks_ends_a_call_that_waits_for_room() {
    let Some(world) = world_of_a_process("under_way::a_group_that_breaks_ends_a_call_that_waits_for_room")
    else {
        return;
    };
    let (groups, directory, _sockets) = groups_without_room(&world);
    let began = Instant::now();
    let ended = thread::scope(|scope| {
        let made = scope.spawn(|| groups[0].alloc::<u8>(1000).map(drop));
        thread::sleep(SOON);
        assert!(!made.is_finished());
        groups[1].all_gather(b"", SOON).unwrap_err();
        made.join().unwrap()
    });
    assert!(matches!(ended, Err(Error::Broken { rank: 0, why: Why::TimedOut, .. })), "{ended:?}");
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    drop(groups);
    std::fs::remove_dir_all(directory).unwrap();
}
