//! Ends of connections that say whatever a test wants.

use std::os::fd::{AsFd, BorrowedFd};
use std::thread;

use cuda_mem_core::ipc::SharedWords;
use cuda_mem_core::vmm::{self, CreateOptions, ShareableMemory};
use cuda_mem_ipc::shared::wire::{Message, Offer, Place, SLOTS, Segment};
use cuda_mem_ipc::transport::{Connection, PeerPolicy, Pending, pair};

use crate::common::World;
use crate::link::LIMIT;

/// A connection with both ends in this process.
pub(crate) fn both_ends() -> (Connection, Connection) {
    let (here, there) = pair().unwrap();
    let other = thread::spawn(|| Pending::inherited(there).unwrap().complete(&PeerPolicy::default(), LIMIT));
    (here.complete(&PeerPolicy::default(), LIMIT).unwrap(), other.join().unwrap().unwrap())
}

pub(crate) fn say(connection: &Connection, message: Message, descriptors: &[BorrowedFd<'_>]) {
    let (kind, payload) = message.encode();
    connection.send(kind, &payload, descriptors, LIMIT).unwrap();
}

pub(crate) fn heard(connection: &Connection) -> Message {
    let message = connection.recv(LIMIT).unwrap();
    Message::parse(message.kind, &message.payload).unwrap()
}

/// Makes an exporter's offer.
pub(crate) fn offer(world: &World, connection: &Connection) -> SharedWords {
    let words = SharedWords::create(&world.context, SLOTS).unwrap();
    let (_keepers, keepsake) = std::io::pipe().unwrap();
    say(connection, Message::Offer(Offer::OURS), &[words.as_fd(), keepsake.as_fd()]);
    words
}

/// Memory of one page, and what an exporter says of it.
pub(crate) fn segment(world: &World, number: u64) -> (ShareableMemory, Segment) {
    let device = world.context.device();
    let page = vmm::granularity(device).unwrap();
    let memory =
        ShareableMemory::create(device, page, &CreateOptions::supported_by(device).unwrap()).unwrap();
    let place = Place::Device(device.uuid().unwrap());
    (memory, Segment { segment: number, generation: 1, bytes: page as u64, place })
}
