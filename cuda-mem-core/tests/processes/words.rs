//! Lines of fences that two processes share.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cuda_mem_core::host::SharedMapping;
use cuda_mem_core::ipc::{DeviceAllocation, OpenedMemory, SharedWords, poison_word};
use cuda_mem_core::{DeviceBuffer, Error, copy};

use crate::common::gate::Gate;
use crate::common::outcome::record;
use crate::common::pair::{self, Channel, checksum, test_name};
use crate::common::{World, pattern};
use crate::legacy::{decode, encode};
use crate::vmm::only;
use crate::{download, upload};

const LEN: usize = 100_000;

/// Long enough to be no accident, short enough to wait for.
const SOON: Duration = Duration::from_millis(30);

/// The lines that the two directions have.
const THERE: usize = 3;
const BACK: usize = 60;

fn open_words(world: &World, first: &Channel) -> SharedWords {
    SharedWords::open(&world.context, only(first.receive().descriptors)).unwrap()
}

fn consumer(first: &Channel) {
    let world = World::new();
    let words = open_words(&world, first);
    let memory = OpenedMemory::open(&world.context, &decode(&first.receive())).unwrap();
    let (there, back) = (words.line(THERE).unwrap(), words.line(BACK).unwrap());
    let stream = world.new_stream();
    for round in 0..20u8 {
        let fence = there.fence(first.receive().words()[0]).unwrap();
        assert!(!fence.is_complete().unwrap());
        fence.make_wait(&stream).unwrap();
        assert!(!stream.is_idle().unwrap());
        first.send(b"waiting", &[]);
        let address = memory.on(&stream).unwrap().address();
        let seen = checksum(&download(&stream, address, LEN));
        assert_eq!(seen, checksum(&pattern(LEN, round)), "round {round}");
        fence.synchronize(None).unwrap();
        let written = back.record(&stream).unwrap();
        first.send_words(&[written.generation().unwrap()]);
    }
    assert_eq!(first.receive().bytes, b"done");
}

#[test]
fn a_word_orders_the_work_of_two_processes() {
    pair::play(test_name!(), &[("consumer", consumer)], |cast| {
        let world = World::new();
        let words = SharedWords::create(&world.context, 64).unwrap();
        let (there, back) = (words.line(THERE).unwrap(), words.line(BACK).unwrap());
        let memory = DeviceAllocation::new(&world.context, LEN).unwrap();
        let stream = world.new_stream();
        upload(&stream, memory.as_raw(), &pattern(LEN, 99));
        let consumer = cast.start("consumer");
        consumer.send(b"words", &[words.as_fd()]);
        // SAFETY: the memory stays until the peer has closed what it opened.
        consumer.send(&encode(&unsafe { memory.handle(0..LEN) }.unwrap()), &[]);
        for round in 0..20u8 {
            let bytes = DeviceBuffer::from_slice(&stream, &pattern(LEN, round)).unwrap();
            let gate = Gate::before(&stream);
            {
                let (from, to) = (bytes.on_read(&stream).unwrap(), memory.on(&stream).unwrap());
                // SAFETY: memory that both keep until the stream has run this.
                unsafe { copy::memcpy_async(&stream, to.address(), from.address(), LEN) }.unwrap();
            }
            let fence = there.record(&stream).unwrap();
            assert_eq!(fence.generation(), Some(u64::from(round) + 1));
            consumer.send_words(&[fence.generation().unwrap()]);
            assert_eq!(consumer.receive().bytes, b"waiting");
            assert!(!fence.is_complete().unwrap());
            gate.open();
            // The other's fence orders this stream behind its reads: the memory may be written again.
            let read = back.fence(consumer.receive().words()[0]).unwrap();
            read.make_wait(&stream).unwrap();
            drop(bytes);
        }
        stream.synchronize().unwrap();
        consumer.send(b"done", &[]);
        consumer.finish();
        let last = download(&stream, memory.as_raw(), LEN);
        record!("after the last round", &last);
        assert!(last == pattern(LEN, 19));
    });
}

fn waiting(first: &Channel) {
    let world = World::new();
    let words = open_words(&world, first);
    let line = words.line(0).unwrap();
    let fence = line.fence(7).unwrap();
    let start = Instant::now();
    let late = fence.synchronize(Some(SOON));
    assert!(matches!(late, Err(Error::Timeout(limit)) if limit == SOON), "{late:?}");
    assert!(start.elapsed() >= SOON);
    let stream = world.new_stream();
    fence.make_wait(&stream).unwrap();
    first.send(b"waiting", &[]);
    stream.synchronize().unwrap();
    assert!(matches!(fence.is_complete(), Err(Error::Poisoned)));
    assert!(matches!(fence.synchronize(None), Err(Error::Poisoned)));
    assert!(matches!(line.record(&stream), Err(Error::Poisoned)));
    // The neighbours were not.
    assert!(!words.line(1).unwrap().is_poisoned());
    words.line(1).unwrap().record(&stream).unwrap().synchronize(None).unwrap();
    // Nobody takes it back: it was seen here.
    words.mapping().word(0).unwrap().store(0, Ordering::SeqCst);
    words.mapping().word(8).unwrap().store(0, Ordering::SeqCst);
    assert!(line.is_poisoned());
}

#[test]
fn poison_from_outside_frees_who_waits_in_another_process() {
    pair::play(test_name!(), &[("waiting", waiting)], |cast| {
        let world = World::new();
        let words = SharedWords::create(&world.context, 2).unwrap();
        let waiting = cast.start("waiting");
        waiting.send(b"words", &[words.as_fd()]);
        assert_eq!(waiting.receive().bytes, b"waiting");
        // Somebody without a driver.
        let mapping = SharedMapping::open(words.as_fd().try_clone_to_owned().unwrap()).unwrap();
        poison_word(&mapping, 0).unwrap();
        waiting.finish();
        assert!(words.line(0).unwrap().is_poisoned());
        for slot in [words.slots(), usize::MAX] {
            assert!(matches!(poison_word(&mapping, slot), Err(Error::OutOfRange { .. })));
            assert!(matches!(words.line(slot), Err(Error::OutOfRange { .. })));
        }
        for number in [0, (1 << 62) + 1, u64::MAX] {
            let refused = words.line(0).unwrap().fence(number);
            assert!(matches!(refused, Err(Error::NotAccepted { .. })), "{number}: {refused:?}");
        }
    });
}

#[test]
fn a_second_writer_goes_on_where_the_first_ended() {
    let world = World::new();
    let stream = world.new_stream();
    let words = SharedWords::create(&world.context, 1).unwrap();
    for _ in 0..3 {
        words.line(0).unwrap().record(&stream).unwrap().synchronize(None).unwrap();
    }
    let again = SharedWords::open(&world.context, words.as_fd().try_clone_to_owned().unwrap()).unwrap();
    let fence = again.line(0).unwrap().record(&stream).unwrap();
    assert_eq!(fence.generation(), Some(4));
    fence.synchronize(None).unwrap();
    // Two streams of one writer are kept in order.
    let (held, other) = (world.new_stream(), world.new_stream());
    let gate = Gate::before(&held);
    let (first, second) = (again.line(0).unwrap().record(&held), again.line(0).unwrap().record(&other));
    assert!(!other.is_idle().unwrap());
    gate.open();
    second.unwrap().synchronize(None).unwrap();
    assert!(first.unwrap().is_complete().unwrap());
}

/// Another process may write anything there at any time.
#[test]
fn a_word_that_is_taken_back_holds_up_none_of_its_writers() {
    let world = World::new();
    let words = SharedWords::create(&world.context, 1).unwrap();
    let line = words.line(0).unwrap();
    let streams = [(); 3].map(|()| world.new_stream());
    for stream in &streams {
        let fence = line.record(stream).unwrap();
        let passed = fence.synchronize(Some(Duration::from_secs(20)));
        if passed.is_err() {
            // So that the stream's end is not waited for.
            line.poison();
        }
        passed.unwrap();
        words.mapping().word(0).unwrap().store(0, Ordering::SeqCst);
    }
}

#[test]
fn a_line_of_one_stream_takes_no_other_one() {
    let world = World::new();
    let (own, other) = (world.new_stream(), world.new_stream());
    let words = SharedWords::create(&world.context, 1).unwrap();
    let line = words.line_of_one_stream(0).unwrap();
    let gate = Gate::before(&own);
    line.record(&own).unwrap();
    for line in [&line, &words.line(0).unwrap()] {
        let refused = line.record(&other);
        assert!(matches!(refused, Err(Error::OtherStream)), "{refused:?}");
    }
    gate.open();
    // Behind a fence with an event anybody records.
    words.line(0).unwrap().record(&own).unwrap();
    let fence = line.record(&other).unwrap();
    assert_eq!(fence.generation(), Some(3));
    fence.synchronize(None).unwrap();
}

#[test]
fn words_that_go_away_let_their_waiters_go() {
    let world = World::new();
    let stream = world.new_stream();
    let words = SharedWords::create(&world.context, 8).unwrap();
    let others = SharedWords::open(&world.context, words.as_fd().try_clone_to_owned().unwrap()).unwrap();
    let line = words.line(5).unwrap();
    line.fence(1).unwrap().make_wait(&stream).unwrap();
    drop(words);
    assert!(!stream.is_idle().unwrap(), "the line has the words yet");
    drop(line);
    assert!(stream.is_idle().unwrap());
    // The other end is told, of this line alone.
    assert!(others.line(5).unwrap().is_poisoned() && !others.line(4).unwrap().is_poisoned());
    assert_eq!(world.driver.release_failures(), 0);
}

#[test]
fn words_that_nobody_waits_for_go_away_in_peace() {
    let world = World::new();
    let stream = world.new_stream();
    let words = SharedWords::create(&world.context, 1).unwrap();
    let others = SharedWords::open(&world.context, words.as_fd().try_clone_to_owned().unwrap()).unwrap();
    let fence = words.line(0).unwrap().record(&stream).unwrap();
    others.line(0).unwrap().fence(1).unwrap().make_wait(&stream).unwrap();
    fence.synchronize(None).unwrap();
    drop((fence, words));
    assert!(!others.line(0).unwrap().is_poisoned());
    others.line(0).unwrap().fence(1).unwrap().synchronize(None).unwrap();
}
