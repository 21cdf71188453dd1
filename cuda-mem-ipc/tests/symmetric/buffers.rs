//! Buffers of all ranks, read and written by all.

use cuda_mem_core::Stream;
use cuda_mem_ipc::symmetric::{Error, GroupOptions, SIGNAL_PAD_BYTES, SymmetricBackend};

use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::common::pair::{self, checksum, test_name};
use crate::common::{is_filled, pattern};
use crate::rank::{Crew, LONG, Rank, SOON, options};

const SIZES: [usize; 3] = [300_001, 0, 5 << 20];

/// Each rank's own bytes of an allocation.
fn bytes_of(rank: usize, size: usize) -> Vec<u8> {
    pattern(size, 10 * (rank as u8 + 1))
}

fn read_and_write(rank: &Rank) {
    // The last does not fit the first segment.
    for size in SIZES {
        let memory = rank.memory(size);
        assert_eq!((memory.rank(), memory.world_size()), (rank.number(), rank.ranks()));
        assert_eq!((memory.buffer_size(), memory.offset()), (size, 0));
        rank.upload(&memory.get_buffer(rank.number(), 0..size).unwrap(), &bytes_of(rank.number(), size));
        rank.meet(&*memory);
        for other in rank.others() {
            let theirs = memory.get_buffer(other, 0..size).unwrap();
            assert_eq!(theirs.as_raw(), memory.buffer_ptrs()[other]);
            let seen = rank.download(&theirs);
            assert_eq!(checksum(&seen), checksum(&bytes_of(other, size)), "of rank {other}");
        }
        rank.meet(&*memory);
        // Each writes its number into every buffer, at its own place.
        for other in 0..rank.ranks() {
            let place = rank.number() * size / rank.ranks()..(rank.number() + 1) * size / rank.ranks();
            let bytes = vec![rank.number() as u8; place.len()];
            rank.upload(&memory.get_buffer(other, place).unwrap(), &bytes);
        }
        rank.meet(&*memory);
        let own = rank.download(&memory.get_buffer(rank.number(), 0..size).unwrap());
        for from in 0..rank.ranks() {
            let place = from * size / rank.ranks()..(from + 1) * size / rank.ranks();
            assert!(is_filled(&own[place], from as u8), "by rank {from}");
        }
        rank.meet(&*memory);
    }
}

#[test]
fn ranks_read_and_write_each_others_buffers() {
    on_ranks!(3, |seat| {
        let rank = seat.join();
        read_and_write(&rank);
        rank.finish();
    });
}

/// A program that allocates all that it needs, and only then comes to the first rendezvous.
fn all_at_once(rank: &Rank) {
    const BYTES: usize = 2 << 20;
    let all = (0..300).map(|_| rank.empty(BYTES)).collect::<Vec<_>>();
    let memories = all.iter().map(|buffer| buffer.rendezvous(None).unwrap()).collect::<Vec<_>>();
    let last = &memories[299];
    let seen = rank.others().map(|other| last.get_buffer(other, 0..BYTES).unwrap()).collect::<Vec<_>>();
    rank.upload(&last.get_buffer(rank.number(), 0..BYTES).unwrap(), &bytes_of(rank.number(), BYTES));
    rank.meet(&**last);
    for (other, theirs) in rank.others().zip(&seen) {
        assert_eq!(checksum(&rank.download(theirs)), checksum(&bytes_of(other, BYTES)), "of rank {other}");
    }
    rank.meet(&**last);
}

#[test]
fn many_segments_may_be_made_before_the_first_rendezvous() {
    on_ranks!(2, |seat| all_at_once(&seat.join_with(&GroupOptions { segment_bytes: 2 << 20, ..options() })));
}

fn offsets(rank: &Rank) {
    let buffer = rank.empty(100_000);
    let whole = buffer.rendezvous(Some("ranks")).unwrap();
    rank.upload(&whole.get_buffer(rank.number(), 0..100_000).unwrap(), &bytes_of(rank.number(), 100_000));
    rank.meet(&*whole);
    let part = rank.native.rendezvous(buffer.as_raw() + 40_000, None).unwrap();
    assert_eq!((part.offset(), part.buffer_size()), (40_000, 100_000));
    assert_eq!(part.buffer_ptrs(), whole.buffer_ptrs());
    for other in 0..rank.ranks() {
        let theirs = part.get_buffer(other, 10..60_000).unwrap();
        assert_eq!(theirs.as_raw(), whole.buffer_ptrs()[other] + 40_010);
        assert_eq!(rank.download(&theirs), bytes_of(other, 100_000)[40_010..]);
        for (start, end) in [(0, 60_001), (60_001, 60_001), (5, 4), (1, usize::MAX)] {
            let beyond = part.get_buffer(other, start..end);
            let bytes = 60_000;
            assert!(
                matches!(beyond, Err(Error::BeyondBuffer { rank, bytes: said, .. }) if (rank, said) == (other, bytes)),
                "{beyond:?}"
            );
        }
    }
    let nobody = part.get_buffer(rank.ranks(), 0..1);
    assert!(matches!(nobody, Err(Error::NotAccepted { value, .. }) if value == rank.ranks()), "{nobody:?}");
    let outside = rank.native.rendezvous(buffer.as_raw() + 100_000, None);
    assert!(matches!(outside, Err(Error::UnknownAddress { .. })), "{outside:?}");
    let wrong = buffer.rendezvous(Some("others"));
    assert!(matches!(wrong, Err(Error::WrongGroup { .. })), "{wrong:?}");
    rank.meet(&*whole);
}

#[test]
fn an_address_inside_an_allocation_has_an_offset() {
    on_ranks!(2, |seat| offsets(&seat.join()));
}

fn pads(rank: &Rank) {
    for round in 0..3 {
        let (one, two) = (rank.memory(1000), rank.memory(1000));
        for memory in [&one, &two] {
            assert_eq!(memory.signal_pad_size(), SIGNAL_PAD_BYTES);
            assert_eq!(memory.signal_pad_size(), 32 * 72 * 4);
        }
        assert_ne!(one.signal_pad_ptrs(), two.signal_pad_ptrs());
        rank.meet(&*one);
        for other in 0..rank.ranks() {
            let pad = one.get_signal_pad(other).unwrap();
            assert_eq!((pad.as_raw(), pad.bytes()), (one.signal_pad_ptrs()[other], SIGNAL_PAD_BYTES));
            assert!(rank.download(&pad).iter().all(|byte| *byte == 0), "round {round}");
        }
        rank.meet(&*one);
        // A kernel that was stopped in its middle: the slot of this rank, in channel 3 of the next one's pad.
        let to = (rank.number() + 1) % rank.ranks();
        let slot = 4 * (rank.ranks() * 3 + rank.number());
        let pad = one.get_signal_pad(to).unwrap();
        let mut bytes = rank.download(&pad);
        bytes[slot] = 1;
        rank.upload(&pad, &bytes);
        rank.meet(&*one);
        let from = (rank.number() + rank.ranks() - 1) % rank.ranks();
        let own = rank.download(&one.get_signal_pad(rank.number()).unwrap());
        assert_eq!(own[4 * (rank.ranks() * 3 + from)], 1);
        rank.meet(&*one);
    }
}

#[test]
fn signal_pads_are_apart_and_zero_also_when_they_are_used_again() {
    // No more pads than are in use at once: each round has those of the one before.
    on_ranks!(2, |seat| pads(&seat.join_with(&GroupOptions { segment_allocations: 2, ..options() })));
}

#[test]
fn memory_is_used_again_when_nobody_has_it_and_its_work_is_done() {
    pair::play(test_name!(), &[], |cast| {
        let crew = Crew::start(cast, 1);
        let rank = crew.seat.join();
        let buffer = rank.empty(1 << 20);
        let (address, memory) = (buffer.as_raw(), buffer.rendezvous(None).unwrap());
        drop(buffer);
        let gone = rank.native.find(address);
        assert!(matches!(gone, Err(Error::UnknownAddress { .. })), "freed once: {gone:?}");
        let other = rank.empty(1 << 20);
        assert_ne!(other.as_raw(), address, "a handle keeps it");

        let busy = Stream::new(&rank.context).unwrap();
        let gate = Gate::before(&busy);
        drop(memory.get_buffer(0, 0..1).unwrap().on(&busy).unwrap());
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                drop(memory);
                done.send(()).unwrap();
            });
            is_done.recv_timeout(SOON).unwrap_err();
            gate.open();
            is_done.recv().unwrap();
        });
        assert_eq!(rank.empty(1 << 20).as_raw(), address);
        rank.finish();
        crew.finish();
    });
}

/// The stream may wait for another rank, and that one for this allocation.
#[test]
fn memory_is_allocated_while_what_was_freed_beside_a_capture_is_in_use() {
    pair::play(test_name!(), &[], |cast| {
        let crew = Crew::start(cast, 1);
        let rank = crew.seat.join();
        let memory = rank.memory(1000);
        let busy = Stream::new(&rank.context).unwrap();
        drop(memory.get_buffer(0, 0..1).unwrap().on(&busy).unwrap());
        let capture = Capture::begin(&busy, RELAXED);
        drop(memory);
        capture.end().unwrap();
        let gate = Gate::before(&busy);
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let rank = &rank;
            scope.spawn(move || done.send(rank.try_empty(1000).map(drop)).unwrap());
            let made = is_done.recv_timeout(LONG / 6);
            gate.open();
            made.expect("it waits for the stream").unwrap();
        });
        rank.finish();
        crew.finish();
    });
}

#[test]
fn a_buffer_whose_memory_was_freed_leaves_the_next_at_its_address_alone() {
    pair::play(test_name!(), &[], |cast| {
        let crew = Crew::start(cast, 1);
        let rank = crew.seat.join();
        let by_group = || {
            // SAFETY: nobody uses what was allocated.
            let group = unsafe { rank.native.remove_group("ranks") }.unwrap();
            rank.native.add_group(&group).unwrap();
        };
        let by_address = |address| {
            let allocated = rank.native.find(address).unwrap();
            // SAFETY: nobody uses the memory.
            unsafe { rank.native.free(allocated) }.unwrap();
            // SAFETY: as above; another one that has the address by then stays.
            let again = unsafe { rank.native.free(allocated) };
            assert!(matches!(again, Err(Error::UnknownAddress { .. })), "{again:?}");
        };
        let ways: [&dyn Fn(u64); 2] = [&|_| by_group(), &by_address];
        for free in ways {
            let stale = rank.empty(1000);
            free(stale.as_raw());
            let gone = stale.rendezvous(None);
            assert!(matches!(gone, Err(Error::UnknownAddress { .. })), "{gone:?}");
            let live = rank.empty(1000);
            assert_eq!(live.as_raw(), stale.as_raw());
            let gone = stale.rendezvous(None);
            assert!(matches!(gone, Err(Error::Freed { address }) if address == stale.as_raw()), "{gone:?}");
            drop(stale);
            assert_ne!(rank.empty(1000).as_raw(), live.as_raw());
            live.rendezvous(None).unwrap();
        }
        rank.finish();
        crew.finish();
    });
}
