//! Ends of connections that say whatever a test wants.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use cuda_mem_core::ipc::SharedWords;
use cuda_mem_core::vmm::{self, CreateOptions, ShareableMemory};
use cuda_mem_ipc::shared::wire::{Accept, FIRST_OF_RING, Message, Offer, Place, SLOTS, Segment};
use cuda_mem_ipc::transport::{Connection, Frame, PeerPolicy, Pending, pair};
use rustix::io::IoSlice;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
    socketpair,
};

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

/// Puts a first entry into the ring of hand-overs, which begin three cache lines behind its start.
pub(crate) fn enter(words: &SharedWords, entry: &[u64]) {
    write(words, FIRST_OF_RING + 3, entry);
    write(words, FIRST_OF_RING, &[1]);
}

/// Writes words of a slot.
pub(crate) fn write(words: &SharedWords, slot: usize, values: &[u64]) {
    for (word, value) in values.iter().enumerate() {
        let place = slot * 64 + word * 8;
        words.mapping().word(place).unwrap().store(*value, Ordering::SeqCst);
    }
}

/// Hears an importer's answer: where it hears of segments ahead.
pub(crate) fn accepted(connection: &Connection) -> Branch {
    let message = connection.recv(LIMIT).unwrap();
    assert!(matches!(Message::parse(message.kind, &message.payload), Ok(Message::Accept(_))));
    let [socket] = <[OwnedFd; 1]>::try_from(message.descriptors).unwrap();
    Branch { socket, next: 0 }
}

/// Answers an offer as an importer that wants to hear of so many segments ahead, and says where.
pub(crate) fn accept(connection: &Connection, segments: u64) -> OwnedFd {
    let (here, there) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let accepted = Accept { segments, bytes: 1 << 40 };
    say(connection, Message::Accept(accepted), &[there.as_fd()]);
    here
}

/// Where an exporter says what an importer may do ahead.
pub(crate) struct Branch {
    pub(crate) socket: OwnedFd,
    pub(crate) next: u64,
}

impl Branch {
    pub(crate) fn say(&mut self, message: Message, descriptors: &[BorrowedFd<'_>]) {
        assert!(self.try_say(message, descriptors));
    }

    /// Whether somebody still hears it.
    pub(crate) fn try_say(&mut self, message: Message, descriptors: &[BorrowedFd<'_>]) -> bool {
        let (kind, payload) = message.encode();
        self.send(kind, &payload, descriptors)
    }

    pub(crate) fn send(&mut self, kind: u16, payload: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
        let frame =
            Frame::new(kind, self.next, payload).unwrap().with_descriptors(descriptors.len()).unwrap();
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
        self.next += 1;
        sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL).is_ok()
    }
}

/// Memory of one page, and what an exporter says of it.
pub(crate) fn segment(world: &World, number: u64) -> (ShareableMemory, Segment) {
    let device = world.context.device();
    let page = vmm::granularity(device).unwrap();
    let memory =
        ShareableMemory::create(device, page, &CreateOptions::supported_by(device).unwrap()).unwrap();
    let place = Place::Device(device.uuid().unwrap());
    (memory, Segment { segment: number, generation: generation(), bytes: page as u64, place })
}

/// One that no other test's segments have: all tests of a process are one exporter to each other, and one's segment of a number would be
/// taken for another's.
pub(crate) fn generation() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::SeqCst)
}
