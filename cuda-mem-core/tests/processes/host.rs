//! Plain host memory that processes share.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use cuda_mem_core::host::{RegisterFlags, Registered, SharedMapping};
use cuda_mem_core::{Context, Error};

use crate::common::pair::{self, Channel, checksum, test_name};
use crate::common::{World, pattern};
use crate::vmm::only;
use crate::{download, upload};

const LEN: usize = 1 << 20;

fn register(context: &Context, memory: &SharedMapping) -> Registered<SharedMapping> {
    let flags = RegisterFlags::PORTABLE | RegisterFlags::MAPPED;
    Registered::new(context, memory.clone(), flags).unwrap()
}

fn other(first: &Channel) {
    let world = World::new();
    let memory = SharedMapping::open(only(first.receive().descriptors)).unwrap();
    let registered = register(&world.context, &memory);
    // The device of this process sees what that of the other one wrote, at an offset.
    let address = registered.on(&world.stream).unwrap().address();
    first.send_words(&[checksum(&download(&world.stream, address + 333, LEN - 333))]);
    memory.write(7, b"by the host").unwrap();
    upload(&world.stream, address + 100, &pattern(1000, 8));
    first.send(b"written", &[]);
    registered.close().unwrap();
}

#[test]
fn host_memory_is_the_same_bytes_for_the_devices_and_hosts_of_two_processes() {
    pair::play(test_name!(), &[("other", other)], |cast| {
        let world = World::new();
        let memory = SharedMapping::create(LEN).unwrap();
        let registered = register(&world.context, &memory);
        let address = registered.on(&world.stream).unwrap().address();
        let mut bytes = pattern(LEN, 7);
        upload(&world.stream, address, &bytes);
        let other = cast.start("other");
        other.send(b"memory", &[memory.as_fd()]);
        assert_eq!(other.receive().words(), [checksum(&bytes[333..])]);
        assert_eq!(other.receive().bytes, b"written");
        bytes[7..18].copy_from_slice(b"by the host");
        bytes[100..1100].copy_from_slice(&pattern(1000, 8));
        let mut seen = vec![0; LEN];
        memory.read(0, &mut seen).unwrap();
        assert!(seen == bytes);
        assert!(download(&world.stream, address, LEN) == bytes);
        other.finish();
        registered.close().unwrap();
    });
}

#[test]
fn bytes_are_written_without_their_neighbours() {
    let memory = SharedMapping::create(100).unwrap();
    assert!(memory.bytes() >= 100 && memory.bytes().is_multiple_of(4096));
    let mut expected = vec![0u8; memory.bytes()];
    for (offset, len) in [(0, 1), (3, 4), (7, 2), (16, 8), (21, 40), (memory.bytes() - 3, 3), (50, 0)] {
        let bytes = pattern(len, offset as u8);
        memory.write(offset, &bytes).unwrap();
        expected[offset..offset + len].copy_from_slice(&bytes);
        let mut part = vec![0; len];
        memory.read(offset, &mut part).unwrap();
        assert_eq!(part, bytes, "{len} bytes at {offset}");
    }
    let mut all = vec![0; memory.bytes()];
    memory.read(0, &mut all).unwrap();
    assert_eq!(all, expected);
    for (offset, len) in [(memory.bytes(), 1), (usize::MAX, 2), (memory.bytes() - 1, 2)] {
        let refused = memory.write(offset, &vec![0; len]);
        assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{refused:?}");
        assert!(matches!(memory.read(offset, &mut vec![0; len]), Err(Error::OutOfRange { .. })));
    }
    memory.word(16).unwrap().store(5, Ordering::SeqCst);
    assert!(matches!(memory.word(17), Err(Error::Misaligned { .. })));
    assert!(matches!(memory.word(memory.bytes() - 7), Err(Error::OutOfRange { .. })));
}

fn unsealed(flags: libc::c_uint) -> OwnedFd {
    // SAFETY: a terminated name and known flags.
    let file = unsafe { libc::memfd_create(c"test".as_ptr(), flags | libc::MFD_CLOEXEC) };
    assert!(file >= 0);
    // SAFETY: a descriptor that was just opened and that nobody else knows.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    // SAFETY: an open descriptor.
    assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), 4096) }, 0);
    file
}

#[test]
fn descriptors_that_could_hurt_are_refused() {
    let files = [
        ("a file that may shrink", unsealed(libc::MFD_ALLOW_SEALING)),
        ("a file without seals", unsealed(0)),
        ("no file in memory", File::open("/proc/self/exe").unwrap().into()),
        ("a device", File::open("/dev/zero").unwrap().into()),
    ];
    for (what, file) in files {
        let refused = SharedMapping::open(file);
        assert!(matches!(refused, Err(Error::NotShared { .. })), "{what}: {refused:?}");
    }
    let odd = unsealed(libc::MFD_ALLOW_SEALING);
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: an open descriptor.
    assert_eq!(unsafe { libc::ftruncate(odd.as_raw_fd(), 4000) }, 0);
    // SAFETY: an open descriptor and an integer argument.
    assert_eq!(unsafe { libc::fcntl(odd.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
    assert!(matches!(SharedMapping::open(odd), Err(Error::NotShared { .. })));
}

#[test]
fn sealed_memory_keeps_its_pages_and_its_writers() {
    let memory = SharedMapping::create(8192).unwrap();
    let before = SharedMapping::open(memory.as_fd().try_clone_to_owned().unwrap()).unwrap();
    memory.seal().unwrap();
    memory.word(0).unwrap().store(1, Ordering::SeqCst);
    before.word(8).unwrap().store(2, Ordering::SeqCst);
    assert_eq!(memory.word(8).unwrap().load(Ordering::SeqCst), 2);
    let holes = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: an open descriptor.
    assert_ne!(unsafe { libc::fallocate(memory.as_fd().as_raw_fd(), holes, 0, 4096) }, 0);
    assert_eq!(before.word(0).unwrap().load(Ordering::SeqCst), 1);
    assert!(SharedMapping::open(memory.as_fd().try_clone_to_owned().unwrap()).is_err());
}
