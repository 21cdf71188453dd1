//! Connections between a test and the processes that it starts, and what both do with memory.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use cuda_mem_core::{DeviceBuffer, Stream, copy};
use cuda_mem_ipc::shared::{Exporter, Importer, MemoryKind, SharedPool, SharedPoolOptions};
use cuda_mem_ipc::transport::{Connection, PeerPolicy, Pending, pair};

use crate::common::World;
use crate::common::pair::Channel;

/// How long anything may take that has to happen. Far longer than it needs.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// How long is waited for what must not happen.
pub(crate) const SHORT: Duration = Duration::from_millis(30);

/// A connection to a process that was started, which calls `invited`.
pub(crate) fn invite(peer: &Channel) -> Connection {
    let (here, there) = pair().unwrap();
    peer.send(b"connect", &[there.as_fd()]);
    drop(there);
    here.complete(&PeerPolicy::default(), LIMIT).unwrap()
}

/// The other end of `invite`.
pub(crate) fn invited(first: &Channel) -> Connection {
    let [there] = <[OwnedFd; 1]>::try_from(first.receive().descriptors).unwrap();
    Pending::inherited(there).unwrap().complete(&PeerPolicy::default(), LIMIT).unwrap()
}

/// The kinds of memory that a shared pool has, as far as the driver knows them.
pub(crate) fn kinds(world: &World) -> Vec<MemoryKind> {
    let all = [MemoryKind::Device, MemoryKind::DevicePool, MemoryKind::HostNuma(0), MemoryKind::Host];
    let is_known = |kind: &MemoryKind| {
        let made = SharedPool::new(&world.context, &options(*kind, 2 << 20));
        let is_old = matches!(kind, MemoryKind::HostNuma(_)) && world.driver.version() < 12020;
        assert!(made.is_ok() || is_old, "{kind:?}: {made:?}");
        made.is_ok()
    };
    all.into_iter().filter(is_known).collect()
}

pub(crate) fn options(kind: MemoryKind, segment_bytes: usize) -> SharedPoolOptions {
    SharedPoolOptions { kind, segment_bytes }
}

pub(crate) fn export_to(world: &World, peer: &Channel) -> Exporter {
    Exporter::new(&world.context, invite(peer), LIMIT).unwrap()
}

pub(crate) fn import_from(world: &World, first: &Channel) -> Importer {
    Importer::new(&world.context, invited(first), LIMIT).unwrap()
}

/// Puts a copy of `source` into the stream.
pub(crate) fn enqueue_upload(stream: &Stream, address: u64, source: &DeviceBuffer<u8>) {
    let from = source.on_read(stream).unwrap();
    // SAFETY: addresses of memory that the test keeps until the stream has run this, or hands over behind it.
    unsafe { copy::memcpy_async(stream, address, from.address(), source.len()) }.unwrap();
}

/// Puts a copy of what is at an address into the stream.
pub(crate) fn enqueue_download(stream: &Stream, address: u64, target: &DeviceBuffer<u8>) {
    let to = target.on(stream).unwrap();
    // SAFETY: as above.
    unsafe { copy::memcpy_async(stream, to.address(), address, target.len()) }.unwrap();
}

/// Writes to an address and waits.
pub(crate) fn upload(stream: &Stream, address: u64, bytes: &[u8]) {
    enqueue_upload(stream, address, &DeviceBuffer::from_slice(stream, bytes).unwrap());
    stream.synchronize().unwrap();
}

/// What is at an address once the stream has come to it.
pub(crate) fn download(stream: &Stream, address: u64, len: usize) -> Vec<u8> {
    let target = DeviceBuffer::zeroed(stream, len).unwrap();
    enqueue_download(stream, address, &target);
    target.to_vec(stream).unwrap()
}

/// Waits until something is so. Fails only when it has not been for far longer than it needs.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
