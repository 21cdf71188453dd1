//! Buffers that cannot be received.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use cuda_mem_core::ipc::SharedWords;
use cuda_mem_ipc::shared::wire::{FIRST_OF_RELEASES, HandOver, Message, Point, RING_ENTRIES};
use cuda_mem_ipc::transport::Connection;

use crate::common::World;
use crate::hostile::importer;
use crate::link::{LIMIT, SHORT, eventually};
use crate::raw::{hand, say, segment, write};

/// More than a connection and a ring have room for.
const COUNT: u64 = 2000;

/// Takes what an importer has released.
fn take(connection: &Connection, words: &SharedWords, taken: &mut u64, released: &mut BTreeSet<u64>) {
    while let Ok(message) = connection.recv(SHORT / 10) {
        match Message::parse(message.kind, &message.payload).unwrap() {
            Message::Ring => {}
            other => panic!("{other:?}"),
        }
    }
    let word = |slot: usize| words.mapping().word((FIRST_OF_RELEASES + slot) * 64).unwrap();
    while *taken < word(0).load(Ordering::SeqCst) {
        let entry = 3 + usize::try_from(*taken % RING_ENTRIES).unwrap();
        assert!(released.insert(word(entry).load(Ordering::SeqCst)));
        *taken += 1;
        write(words, FIRST_OF_RELEASES + 1, &[*taken]);
    }
}

#[test]
fn those_of_memory_that_cannot_be_mapped_go_back_to_an_exporter_that_does_not_listen() {
    let world = World::new();
    let (importer, exporter, words) = importer(&world);
    let (_memory, said) = segment(&world, 0);
    let none = File::open("/dev/null").unwrap();
    say(&exporter, Message::Segment(said.clone()), &[none.as_fd()]);
    for sequence in 0..COUNT {
        hand(
            &words,
            HandOver { sequence, segment: 0, offset: 0, len: 1, fence: Point { line: 0, generation: 1 } },
        );
        importer.recv(LIMIT).unwrap_err();
    }
    assert!(importer.buffers() > 0, "there is room for all of them");
    let (mut taken, mut released) = (0, BTreeSet::new());
    eventually("not all have come back", || {
        take(&exporter, &words, &mut taken, &mut released);
        released.iter().copied().eq(0..COUNT)
    });
    eventually("the importer counts them", || importer.buffers() == 0);
}
