//! Ends of connections that say whatever a test wants.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use cuda_mem_core::ipc::SharedWords;
use cuda_mem_core::vmm::{self, CreateOptions, ShareableMemory};
use cuda_mem_ipc::shared::wire::{
    FIRST_OF_RELEASES, FIRST_OF_RING, HandOver, Message, Place, RING_ENTRIES, Release, SLOTS, Segment,
};
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
    say(connection, Message::Offer, &[words.as_fd()]);
    words
}

/// Puts a buffer into the ring of hand-overs, once there is room. Nobody is woken.
pub(crate) fn hand(words: &SharedWords, said: HandOver) {
    put(words, FIRST_OF_RING, &said.to_entry());
}

/// Wakes who sleeps on the ring of hand-overs: the first half of its eighteenth word counts that.
pub(crate) fn wake(words: &SharedWords) {
    use std::sync::atomic::AtomicU32;
    let bell = words.mapping().word(FIRST_OF_RING * 64 + 17 * 8).unwrap().as_ptr().cast::<u32>();
    // SAFETY: half of an aligned word of memory that the words keep; this half is only ever touched as 32 bits.
    let bell = unsafe { AtomicU32::from_ptr(bell) };
    bell.fetch_add(1, Ordering::SeqCst);
    rustix::thread::futex::wake(bell, rustix::thread::futex::Flags::empty(), u32::MAX >> 1).unwrap();
}

/// Gives a buffer back, as an importer does.
pub(crate) fn release(connection: &Connection, words: &SharedWords, release: Release) {
    put(words, FIRST_OF_RELEASES, &release.to_entry());
    ring(connection);
}

/// Says that something is in the ring of releases. An exporter that looked before may have ended the connection over it.
pub(crate) fn ring(connection: &Connection) {
    let (kind, payload) = Message::Ring.encode();
    let sent = connection.send(kind, &payload, &[], LIMIT);
    assert!(sent.as_ref().err().is_none_or(cuda_mem_ipc::Error::is_gone), "{sent:?}");
}

fn put(words: &SharedWords, first: usize, entry: &[u64]) {
    let word = |slot: usize| words.mapping().word((first + slot) * 64).unwrap().load(Ordering::SeqCst);
    let tail = word(0);
    crate::link::eventually("there is room in the ring", || tail - word(1) < RING_ENTRIES);
    write(words, first + 3 + usize::try_from(tail % RING_ENTRIES).unwrap(), entry);
    write(words, first, &[tail + 1]);
}

/// Writes words of a slot.
pub(crate) fn write(words: &SharedWords, slot: usize, values: &[u64]) {
    for (word, value) in values.iter().enumerate() {
        let place = slot * 64 + word * 8;
        words.mapping().word(place).unwrap().store(*value, Ordering::SeqCst);
    }
}

/// Hears an importer's answer.
pub(crate) fn accepted(connection: &Connection) {
    assert!(matches!(heard(connection), Message::Accept { .. }));
}

/// Answers an offer as an importer that wants to hear of so many segments ahead.
pub(crate) fn accept(connection: &Connection, segments: u64) {
    say(connection, Message::Accept { segments, bytes: 1 << 40 }, &[]);
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
