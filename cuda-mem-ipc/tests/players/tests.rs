use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_mem_pool::cuda_mem_core::Driver;
use cuda_mem_pool::cuda_mem_core::ipc::SharedWords;
use proptest::prelude::*;

use super::*;
use crate::error::Error;
use crate::shared::exporter::played::TestExporter;
use crate::shared::importer::played::TestImporter;
use crate::shared::wire::{FIRST_OF_RING, HandOver, Message, Place, Point, SLOTS, Segment};
use crate::shared::{heard, say};

fn stage() -> Stage {
    let context = Driver::over(cuda_mem_sim::table()).unwrap().device(0).unwrap().primary_context().unwrap();
    Stage::new(&context).unwrap()
}

/// A buffer of a segment that never comes, and messages that go on: other segments are announced, and at once used no more.
#[test]
fn an_exporter_that_talks_on_keeps_no_receiver() {
    /// More than a receiver hears before it takes the segment for missing, and what a socket has room for.
    const MOST: usize = 20_000;
    let context = Driver::over(cuda_mem_sim::table()).unwrap().device(0).unwrap().primary_context().unwrap();
    // Each ends early if there was no message for a moment.
    for _ in 0..8 {
        let offer = |hostile: Connection| {
            let words = SharedWords::create(&context, SLOTS).unwrap();
            say(&hostile, &Message::Offer, &[words.as_fd()], LIMIT).unwrap();
            heard(&hostile, LIMIT).unwrap();
            (hostile, words)
        };
        let ((hostile, words), importer) =
            ends(offer, |there| TestImporter::new(&context, there, LIMIT.into()).unwrap());
        let said = AtomicUsize::new(0);
        let tell = |message: &Message, memory: &[_]| loop {
            match say(&hostile, message, memory, Duration::ZERO) {
                Ok(()) => break said.fetch_add(1, Ordering::SeqCst) < 2 * MOST,
                Err(error) if error.is_timeout() => {}
                Err(_) => break false,
            }
        };
        let talk = || {
            for segment in 1.. {
                let known = Segment { segment, generation: 0, bytes: 4096, place: Place::Host };
                if !tell(&Message::Segment(known), &[words.as_fd()])
                    || !tell(&Message::Retire { segment }, &[])
                {
                    return;
                }
            }
        };
        thread::scope(|scope| {
            scope.spawn(talk);
            while said.load(Ordering::SeqCst) < 100 {
                thread::yield_now();
            }
            let fence = Point { line: 0, generation: 1 };
            let part = HandOver { sequence: 0, segment: 0, offset: 0, len: 1, fence }.to_entry();
            let word = |place: usize| words.mapping().word(FIRST_OF_RING * 64 + place).unwrap();
            (0..).zip(part).for_each(|(at, value)| word(3 * 64 + at * 8).store(value, Ordering::SeqCst));
            word(0).store(1, Ordering::SeqCst);
            let refused = importer.receive();
            assert!(matches!(refused, Err(Error::Protocol { .. })), "{refused:?}");
        });
        let said = said.into_inner();
        assert!(said < MOST, "{said}");
    }
}

/// Both ends, and a buffer that the exporter has handed over, with its stream.
fn handed_over() -> (TestExporter, TestImporter, SharedBuffer, Stream) {
    let context = Driver::over(cuda_mem_sim::table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let stream = Stream::new(&context).unwrap();
    let options = SharedPoolOptions { kind: MemoryKind::Device, segment_bytes: SEGMENT };
    let buffer = SharedPool::new(&context, &options).unwrap().allocate(SEGMENT, &stream).unwrap();
    let (exporter, importer) = ends(
        |here| TestExporter::new(&context, here, true, LIMIT.into()).unwrap(),
        |there| TestImporter::new(&context, there, LIMIT.into()).unwrap(),
    );
    exporter.hand_over((&buffer).into(), &stream).unwrap();
    (exporter, importer, buffer, stream)
}

/// The system has no memory to receive messages with, for a while.
#[test]
fn a_buffer_whose_segment_is_not_heard_of_yet_goes_back_and_the_next_one_comes() {
    let (exporter, importer, buffer, stream) = handed_over();
    importer.refuse_messages(true);
    let refused = importer.receive();
    assert!(matches!(refused, Err(Error::System { .. })), "{refused:?}");
    importer.refuse_messages(false);
    exporter.serve().unwrap();
    assert!(exporter.leases().is_empty(), "it has gone back");
    exporter.hand_over((&buffer).into(), &stream).unwrap();
    drop(importer.receive().unwrap());
    exporter.end();
    importer.end();
}

/// Both live on, and the memory is used again.
#[test]
fn what_was_ready_is_not_once_its_exporter_gives_up() {
    let (exporter, importer, _buffer, stream) = handed_over();
    let received = importer.receive().unwrap();
    received.synchronize(LIMIT).unwrap();
    importer.break_off();
    assert!(exporter.serve().unwrap_err().is_gone());
    let is_refused = || {
        let (ready, used) = (received.is_ready(), received.on(&stream).map(drop));
        matches!((ready, used), (Err(Error::PeerDied { .. }), Err(Error::PeerDied { .. })))
    };
    assert!(is_refused(), "before the leases end");
    importer.end();
    exporter.end();
    assert!(exporter.leases().is_empty() && is_refused());
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..400)
}

#[test]
fn whatever_is_written_into_the_memory_of_both_is_refused_or_checked() {
    let stage = stage();
    proptest!(ProptestConfig::with_cases(64), |(input in bytes())| {
        let _ = stage.play(&input);
    });
}

#[test]
fn what_nobody_else_writes_comes_once_and_in_order() {
    let stage = stage();
    proptest!(ProptestConfig::with_cases(64), |(mut input in bytes(), is_to_another in any::<bool>())| {
        input.insert(0, NOBODY_WRITES | if is_to_another { TO_ANOTHER } else { 0 });
        let _ = stage.play(&input);
    });
}

/// What fuzzing found worth keeping, again: the target `ring` of `ci/fuzz`.
#[test]
fn what_is_kept_is_played_again() {
    let kept = include_str!("../../../ci/fuzz/seeds/ring.txt");
    let byte = |digits: &[u8; 2]| u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap();
    let stage = stage();
    let mut came = 0;
    for line in kept.lines().filter(|line| !line.starts_with('#')) {
        let (pairs, rest) = line.as_bytes().as_chunks::<2>();
        assert!(rest.is_empty(), "half a byte: {line}");
        came += stage.play(&pairs.iter().map(byte).collect::<Vec<_>>());
    }
    assert!(came > 600, "the corpus is lost");
}
