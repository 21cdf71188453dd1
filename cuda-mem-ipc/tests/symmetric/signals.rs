//! Data before flag, between streams of different processes.

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{DeviceBuffer, Driver, Error as CoreError, Stream, copy};
use cuda_mem_ipc::symmetric::{CHANNELS, Error, PeerBuffer, SymmetricMemory, Why};
use cuda_mem_sim::Builder;

use crate::common::capture::{Capture, GLOBAL, RELAXED};
use crate::common::gate::Gate;
use crate::common::pair::{self, Channel, test_name};
use crate::common::{Backend, backend};
use crate::own_sim::OwnSim;
use crate::rank::{Crew, LONG, Rank, SOON, Seat, culprit, options, until_broken, until_idle};

const TIMED_OUT: u64 = 3;

/// Bytes that are written before each flag.
const WIDTH: usize = 256;

/// Rounds that are in the streams at a time.
const BATCH: usize = 1000;

/// How many rounds: `CUDA_MEM_LITMUS_ROUNDS`, a million on hardware and nightly a hundred thousand.
fn rounds() -> usize {
    match std::env::var("CUDA_MEM_LITMUS_ROUNDS") {
        Ok(text) => text.parse::<usize>().expect("a number of rounds").next_multiple_of(BATCH),
        Err(_) => 3 * BATCH,
    }
}

fn bytes_of(round: usize) -> [u8; WIDTH] {
    let bytes = (round as u64 + 1).to_le_bytes();
    std::array::from_fn(|index| bytes[index % 8])
}

fn copy(stream: &Stream, target: (&PeerBuffer, usize), source: (&PeerBuffer, usize)) {
    let (to, from) = (target.0.on(stream).unwrap(), source.0.on(stream).unwrap());
    let (to, from) = (to.address() + target.1 as u64, from.address() + source.1 as u64);
    // SAFETY: bytes of both buffers, which know of the stream.
    unsafe { copy::memcpy_async(stream, to, from, WIDTH) }.unwrap();
}

/// Rank 0 writes into rank 1's buffer and flags it; rank 1 keeps what it finds, and flags that it has.
fn litmus(rank: &Rank) {
    let data = rank.memory(WIDTH);
    let rows = rank.memory(WIDTH * BATCH);
    let (cell, rows) =
        (data.get_buffer(1, 0..WIDTH).unwrap(), rows.get_buffer(rank.number(), 0..WIDTH * BATCH).unwrap());
    for first in (0..rounds()).step_by(BATCH) {
        if rank.number() == 0 {
            let bytes = (first..first + BATCH).flat_map(bytes_of).collect::<Vec<_>>();
            rank.upload(&rows, &bytes);
        }
        for row in 0..BATCH {
            if rank.number() == 0 {
                if first + row > 0 {
                    data.wait_signal(&rank.stream, 1, 2, Some(LONG)).unwrap();
                }
                copy(&rank.stream, (&cell, 0), (&rows, WIDTH * row));
                data.put_signal(&rank.stream, 1, 2).unwrap();
            } else {
                data.wait_signal(&rank.stream, 0, 2, Some(LONG)).unwrap();
                copy(&rank.stream, (&rows, WIDTH * row), (&cell, 0));
                data.put_signal(&rank.stream, 0, 2).unwrap();
            }
        }
        if rank.number() == 1 {
            let seen = rank.download(&rows);
            for row in 0..BATCH {
                assert_eq!(seen[WIDTH * row..][..WIDTH], bytes_of(first + row), "round {}", first + row);
            }
        }
        rank.stream.synchronize().unwrap();
        data.check().unwrap();
    }
    rank.meet(&*data);
}

/// A rank over a simulator that no other test has, so that its calls can be refused.
fn over_its_own_sim(crew: &Crew) -> (OwnSim, Rank) {
    let sim = OwnSim::of(Builder::from_env().unwrap());
    let driver = Driver::over(sim.table()).unwrap();
    let rank = Rank::new(crew.seat.context(driver), &crew.seat, &options(), None);
    (sim, rank)
}

#[test]
fn data_comes_before_its_flag() {
    on_ranks!(2, |seat| litmus(&seat.join()));
}

#[test]
fn a_signal_waits_for_the_work_before_it() {
    fn body(first: &Channel) {
        let rank = Seat::of(first).join();
        let memory = rank.memory(1000);
        memory.wait_signal(&rank.stream, 0, 0, None).unwrap();
        first.send(b"waiting", &[]);
        rank.stream.synchronize().unwrap();
        memory.check().unwrap();
        first.send(&rank.download(&memory.get_buffer(1, 0..1000).unwrap()), &[]);
        rank.meet(&*memory);
    }
    pair::play(test_name!(), &[("rank", body)], |cast| {
        let crew = Crew::start(cast, 2);
        let rank = crew.seat.join();
        let memory = rank.memory(1000);
        let source = DeviceBuffer::from_slice(&rank.stream, &[9u8; 1000]).unwrap();
        let busy = Stream::new(&rank.context).unwrap();
        let gate = Gate::before(&busy);
        {
            let target = memory.get_buffer(1, 0..1000).unwrap();
            let (to, from) = (target.on(&busy).unwrap(), source.on_read(&busy).unwrap());
            // SAFETY: as many bytes on both sides, which know of the stream.
            unsafe { copy::memcpy_async(&busy, to.address(), from.address(), 1000) }.unwrap();
        }
        memory.put_signal(&busy, 1, 0).unwrap();
        assert_eq!(crew.others[0].receive().bytes, b"waiting");
        std::thread::sleep(SOON);
        gate.open();
        assert_eq!(crew.others[0].receive().bytes, [9; 1000]);
        rank.meet(&*memory);
        crew.finish();
    });
}

/// Each rank adds its part to every rank's sum, between two barriers.
fn sums(rank: &Rank) {
    let memory = rank.memory(8 * rank.ranks());
    let own = memory.get_buffer(rank.number(), 0..8 * rank.ranks()).unwrap();
    for round in 0..50u64 {
        let channel = round as usize % CHANNELS;
        for to in 0..rank.ranks() {
            let place = 8 * rank.number()..8 * rank.number() + 8;
            let part = round * 100 + rank.number() as u64;
            rank.upload(&memory.get_buffer(to, place).unwrap(), &part.to_le_bytes());
        }
        memory.barrier(&rank.stream, channel, None).unwrap();
        let seen = rank.download(&own);
        let expected = (0..rank.ranks() as u64).flat_map(|from| (round * 100 + from).to_le_bytes());
        assert!(seen.iter().copied().eq(expected), "round {round}: {seen:?}");
        memory.barrier(&rank.stream, channel, None).unwrap();
    }
    rank.meet(&*memory);
}

#[test]
fn a_barrier_is_one_for_all_ranks() {
    on_ranks!(3, |seat| sums(&seat.join()));
}

/// Signals that come out of the order in which they are waited for: of two allocations, of two channels, and of a barrier.
fn apart(rank: &Rank) {
    let (one, two) = (rank.memory(100), rank.memory(100));
    let other = 1 - rank.number();
    let ways: [(&dyn SymmetricMemory, usize); 3] = [(&*one, 0), (&*two, 0), (&*two, 1)];
    for waited in 0..ways.len() {
        if rank.number() == 0 {
            for (index, (memory, channel)) in ways.into_iter().enumerate() {
                if index != waited {
                    memory.put_signal(&rank.stream, other, channel).unwrap();
                }
            }
            rank.stream.synchronize().unwrap();
        }
        // Signals do not count as coming to a barrier on their channel, and the other way round.
        one.barrier(&rank.stream, 0, None).unwrap();
        two.barrier(&rank.stream, 0, None).unwrap();
        rank.stream.synchronize().unwrap();
        let (memory, channel) = ways[waited];
        if rank.number() == 0 {
            rank.meet(&*one);
            memory.put_signal(&rank.stream, other, channel).unwrap();
        } else {
            memory.wait_signal(&rank.stream, other, channel, None).unwrap();
            assert!(!rank.stream.is_idle().unwrap(), "the others are of no concern");
            let beside = Stream::new(&rank.context).unwrap();
            one.barrier(&beside, 0, None).unwrap();
            for (index, (memory, channel)) in ways.into_iter().enumerate() {
                if index != waited {
                    memory.wait_signal(&beside, other, channel, None).unwrap();
                }
            }
            beside.synchronize().unwrap();
            rank.stream.synchronize().unwrap();
        }
        rank.meet(&*two);
    }
}

#[test]
fn signals_of_allocations_channels_and_barriers_are_apart() {
    on_ranks!(2, |seat| apart(&seat.join()));
}

#[test]
fn pads_that_are_used_again_count_on() {
    fn again(rank: &Rank) {
        let other = 1 - rank.number();
        // Made before any stream waits: a driver may have whoever makes one wait for those (docs/measurements.md).
        let beside = Stream::new(&rank.context).unwrap();
        // More than a segment has pads, one behind the other.
        let first = rank.memory(100);
        for round in 0..40 {
            let memory = rank.memory(100);
            memory.put_signal(&rank.stream, other, 4).unwrap();
            // A second one that nobody waits for.
            memory.put_signal(&rank.stream, other, 5).unwrap();
            memory.wait_signal(&rank.stream, other, 4, None).unwrap();
            rank.stream.synchronize().unwrap();
            rank.meet(&*first);
            memory.check().unwrap();
            drop(memory);
            let next = rank.memory(100);
            rank.meet(&*first);
            next.wait_signal(&rank.stream, other, 5, None).unwrap();
            assert!(!rank.stream.is_idle().unwrap(), "round {round}: the signal was for the memory before");
            first.barrier(&beside, 1, None).unwrap();
            next.put_signal(&beside, other, 5).unwrap();
            rank.stream.synchronize().unwrap();
            rank.meet(&*first);
        }
    }
    on_ranks!(2, |seat| again(&seat.join()));
}

#[test]
fn a_signal_that_memory_was_freed_before_is_not_its_successor_s() {
    fn body(first: &Channel) {
        late(&Seat::of(first).join());
    }
    fn late(rank: &Rank) {
        let other = 1 - rank.number();
        let (between, before) = (rank.memory(100), rank.memory(100));
        let [early, beside] = [(); 2].map(|()| Stream::new(&rank.context).unwrap());
        if rank.number() == 0 {
            // The streams wait, and nobody has it any more when it comes.
            before.wait_signal(&early, other, 0, Some(LONG)).unwrap();
            drop(before);
            let next = rank.memory(100);
            rank.meet(&*between);
            next.wait_signal(&beside, other, 0, Some(LONG)).unwrap();
            early.synchronize().unwrap();
            rank.meet(&*between);
            assert!(!beside.is_idle().unwrap(), "the signal was for the memory before");
            rank.meet(&*between);
            beside.synchronize().unwrap();
            next.check().unwrap();
        } else {
            let next = rank.memory(100);
            rank.meet(&*between);
            before.put_signal(&rank.stream, other, 0).unwrap();
            rank.meet(&*between);
            rank.meet(&*between);
            next.put_signal(&rank.stream, other, 0).unwrap();
        }
        rank.meet(&*between);
    }
    pair::play(test_name!(), &[("rank", body)], |cast| {
        let crew = Crew::start(cast, 2);
        late(&crew.seat.join());
        crew.finish();
    });
}

/// Nobody waits for it. It is in a stream yet when both ranks have freed the memory, behind a barrier, and have new memory.
#[test]
fn a_signal_that_comes_when_its_memory_is_freed_is_not_its_successor_s() {
    fn late(rank: &Rank) {
        let other = 1 - rank.number();
        let (between, before) = (rank.memory(100), rank.memory(100));
        let [first, second] = [(); 2].map(|()| Stream::new(&rank.context).unwrap());
        if rank.number() == 0 {
            between.barrier(&first, 3, Some(LONG)).unwrap();
            drop(before);
            let next = rank.memory(100);
            next.wait_signal(&second, other, 0, Some(LONG)).unwrap();
            rank.meet(&*between);
            first.synchronize().unwrap();
            std::thread::sleep(SOON);
            assert!(!second.is_idle().unwrap(), "the signal was for the memory before");
            rank.meet(&*between);
            second.synchronize().unwrap();
            // It counts on from there.
            next.wait_signal(&second, other, 0, Some(LONG)).unwrap();
            std::thread::sleep(SOON);
            assert!(!second.is_idle().unwrap(), "there was one signal");
            rank.meet(&*between);
            second.synchronize().unwrap();
            next.check().unwrap();
        } else {
            let gate = Gate::before(&first);
            before.put_signal(&first, other, 0).unwrap();
            between.barrier(&first, 3, Some(LONG)).unwrap();
            drop(before);
            let next = rank.memory(100);
            rank.meet(&*between);
            gate.open();
            rank.meet(&*between);
            next.put_signal(&second, other, 0).unwrap();
            rank.meet(&*between);
            next.put_signal(&first, other, 0).unwrap();
        }
        rank.meet(&*between);
    }
    on_ranks!(2, |seat| late(&seat.join()));
}

/// The stream waits for the freed memory's yet.
#[test]
fn a_signal_of_its_successor_ends_no_wait_for_freed_memory() {
    fn early(rank: &Rank) {
        let other = 1 - rank.number();
        let (between, before) = (rank.memory(100), rank.memory(100));
        let stream = Stream::new(&rank.context).unwrap();
        if rank.number() == 0 {
            before.wait_signal(&stream, other, 0, Some(LONG)).unwrap();
            drop(before);
            let next = rank.memory(100);
            next.wait_signal(&rank.stream, other, 0, Some(LONG)).unwrap();
            rank.stream.synchronize().unwrap();
            std::thread::sleep(SOON);
            let is_over = stream.is_idle().unwrap();
            rank.meet(&*between);
            assert!(!is_over, "the signal was for the memory behind it");
            stream.synchronize().unwrap();
        } else {
            rank.memory(100).put_signal(&rank.stream, other, 0).unwrap();
            rank.meet(&*between);
            before.put_signal(&rank.stream, other, 0).unwrap();
        }
        rank.meet(&*between);
    }
    on_ranks!(2, |seat| early(&seat.join()));
}

/// The other rank has signalled the successor already when it signals, by mistake or late, what it has of the freed memory.
#[test]
fn a_signal_of_freed_memory_behind_one_of_its_successor_is_not_its_successor_s() {
    fn late(rank: &Rank) {
        let other = 1 - rank.number();
        let (between, before) = (rank.memory(100), rank.memory(100));
        let stream = Stream::new(&rank.context).unwrap();
        rank.meet(&*between);
        if rank.number() == 0 {
            drop(before);
            let next = rank.memory(100);
            (0..2).for_each(|_| next.wait_signal(&stream, other, 0, Some(LONG)).unwrap());
            rank.meet(&*between);
            std::thread::sleep(SOON);
            let is_over = stream.is_idle().unwrap();
            rank.meet(&*between);
            assert!(!is_over, "two waits are over after one signal");
            stream.synchronize().unwrap();
            next.check().unwrap();
        } else {
            let next = rank.memory(100);
            next.put_signal(&stream, other, 0).unwrap();
            before.put_signal(&stream, other, 0).unwrap();
            stream.synchronize().unwrap();
            rank.meet(&*between);
            rank.meet(&*between);
            next.put_signal(&stream, other, 0).unwrap();
            stream.synchronize().unwrap();
        }
    }
    on_ranks!(2, |seat| late(&seat.join()));
}

#[test]
fn more_allocations_than_a_piece_of_words_is_for_have_signals_of_their_own() {
    fn many(rank: &Rank) {
        let other = 1 - rank.number();
        let all = (0..40).map(|_| rank.memory(100)).collect::<Vec<_>>();
        for signalled in all.iter().rev() {
            signalled.put_signal(&rank.stream, other, 0).unwrap();
        }
        for waited in &all {
            waited.wait_signal(&rank.stream, other, 0, Some(LONG)).unwrap();
        }
        rank.meet(&*all[39]);
        // Each has had its one.
        let beside = Stream::new(&rank.context).unwrap();
        all[20].wait_signal(&beside, other, 0, None).unwrap();
        rank.meet(&*all[18]);
        assert!(!beside.is_idle().unwrap());
        rank.meet(&*all[19]);
        all[20].put_signal(&rank.stream, other, 0).unwrap();
        beside.synchronize().unwrap();
        rank.meet(&*all[0]);
    }
    on_ranks!(2, |seat| many(&seat.join()));
}

/// Two waits for rank 1 are refused by the driver, one of them with a timeout; then rank 1 leaves, and rank 2 is late for a wait that the
/// stream has.
#[test]
fn nobody_is_at_fault_for_a_wait_that_was_refused() {
    fn body(first: &Channel) {
        let rank = Seat::of(first).join();
        let memory = rank.memory(100);
        rank.meet(&*memory);
        if rank.number() == 1 {
            assert_eq!(first.receive().bytes, b"leave");
        } else {
            assert_eq!(culprit(&until_broken(&*memory)), [2, TIMED_OUT]);
        }
        drop(memory);
        rank.finish();
    }
    if backend() != Backend::Simulator {
        return;
    }
    pair::play(test_name!(), &[("rank", body)], |cast| {
        let mut crew = Crew::start(cast, 3);
        let (sim, rank) = over_its_own_sim(&crew);
        let memory = rank.memory(100);
        rank.meet(&*memory);
        for timeout in [Some(SOON), None] {
            sim.fail_call("cuStreamWaitValue64", 1, CUresult::CUDA_ERROR_INVALID_VALUE);
            let refused = memory.wait_signal(&rank.stream, 1, 0, timeout);
            assert!(matches!(refused, Err(Error::Core(CoreError::Driver(_)))), "{refused:?}");
        }
        let leaving = crew.others.remove(0);
        leaving.send(b"leave", &[]);
        leaving.finish();
        memory.wait_signal(&rank.stream, 2, 0, Some(10 * SOON)).unwrap();
        assert_eq!(culprit(&until_broken(&*memory)), [2, TIMED_OUT]);
        until_idle(&rank.stream);
        drop(memory);
        rank.finish();
        crew.finish();
    });
}

/// The driver has no event for rank 0's part of a barrier, which is in its stream by then.
#[test]
fn a_barrier_whose_event_was_refused_is_one_for_all_ranks() {
    fn body(first: &Channel) {
        let rank = Seat::of(first).join();
        let memory = rank.memory(100);
        rank.meet(&*memory);
        for _ in 0..2 {
            memory.barrier(&rank.stream, 1, Some(LONG)).unwrap();
        }
        assert_eq!(first.receive().bytes, b"one");
        std::thread::sleep(SOON);
        assert!(!rank.stream.is_idle().unwrap(), "it is one ahead");
        first.send(b"waiting", &[]);
        rank.meet(&*memory);
        rank.finish();
    }
    if backend() != Backend::Simulator {
        return;
    }
    pair::play(test_name!(), &[("rank", body)], |cast| {
        let crew = Crew::start(cast, 2);
        let (sim, rank) = over_its_own_sim(&crew);
        let memory = rank.memory(100);
        rank.meet(&*memory);
        // A thread's default stream has events for more than this.
        let [own, beside] = [(); 2].map(|()| Stream::new(&rank.context).unwrap());
        let gate = Gate::before(&own);
        sim.fail_call("cuEventRecord", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        memory.barrier(&own, 1, Some(LONG)).unwrap();
        assert_eq!(sim.struck().len(), 1);
        let early = memory.barrier(&beside, 1, Some(LONG));
        assert!(matches!(early, Err(Error::Core(CoreError::OtherStream))), "{early:?}");
        gate.open();
        own.synchronize().unwrap();
        crew.others[0].send(b"one", &[]);
        assert_eq!(crew.others[0].receive().bytes, b"waiting");
        memory.barrier(&beside, 1, Some(LONG)).unwrap();
        beside.synchronize().unwrap();
        rank.meet(&*memory);
        drop(memory);
        rank.finish();
        crew.finish();
    });
}

/// How often a call asks whether a stream captures before it writes its first signal.
fn asked_before_the_write(sim: &OwnSim, call: impl FnOnce()) -> u64 {
    sim.record(true);
    sim.log().clear();
    call();
    sim.record(false);
    let calls = sim.log().names();
    let before = calls.iter().take_while(|&&call| call != "cuStreamWriteValue64");
    before.filter(|&&call| call == "cuStreamIsCapturing").count() as u64
}

/// A rank that meets rank 0 so often, and once more, and then hears that it has broken the group.
fn meets_until_broken(first: &Channel, times: usize) {
    let rank = Seat::of(first).join();
    let memory = rank.memory(100);
    (0..times).for_each(|_| rank.meet(&*memory));
    // The other rank goes on as soon as this is in the stream, and breaks the group.
    let _ = memory.barrier(&rank.stream, 0, Some(LONG));
    let broken = until_broken(&*memory);
    assert!(matches!(broken, Error::Broken { rank: 0, why: Why::Failed, .. }), "{broken}");
    drop(memory);
    rank.finish();
}

/// The driver refuses the signal itself, or what comes behind it.
#[test]
fn a_signal_that_counts_though_its_call_fails_breaks_the_group() {
    fn body(first: &Channel) {
        meets_until_broken(first, 0);
    }
    if backend() != Backend::Simulator {
        return;
    }
    pair::play(test_name!(), &[("rank", body)], |cast| {
        let crew = Crew::start(cast, 2);
        let (sim, rank) = over_its_own_sim(&crew);
        let memory = rank.memory(100);
        rank.meet(&*memory);
        let beside = Stream::new(&rank.context).unwrap();
        // Somebody else may have it capture: it is asked behind the signal too.
        assert!(!beside.as_raw().is_null());
        let refuse = |refusing, nth| {
            sim.fail_call(refusing, nth, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            let refused = memory.put_signal(&beside, 1, 1);
            assert!(matches!(refused, Err(Error::Core(CoreError::Driver(_)))), "{refusing}: {refused:?}");
        };
        refuse("cuStreamWriteValue64", 1);
        memory.check().unwrap();
        memory.put_signal(&beside, 1, 1).unwrap();
        let asked = asked_before_the_write(&sim, || memory.put_signal(&beside, 1, 1).unwrap());
        beside.synchronize().unwrap();
        refuse("cuStreamIsCapturing", asked + 1);
        let broken = memory.check();
        assert!(matches!(broken, Err(Error::Broken { rank: 0, why: Why::Failed, .. })), "{broken:?}");
        drop(memory);
        rank.finish();
        crew.finish();
    });
}

/// The driver refuses what orders rank 0's first signal behind another stream's, or the signal itself, or what comes behind it.
#[test]
fn a_barrier_breaks_the_group_only_when_a_part_of_it_is_in_its_stream() {
    fn body(first: &Channel) {
        meets_until_broken(first, 4);
    }
    if backend() != Backend::Simulator {
        return;
    }
    pair::play(test_name!(), &[("rank", body)], |cast| {
        let crew = Crew::start(cast, 2);
        let (sim, rank) = over_its_own_sim(&crew);
        let memory = rank.memory(100);
        rank.meet(&*memory);
        let beside = Stream::new(&rank.context).unwrap();
        for refusing in ["cuStreamWaitEvent", "cuStreamWriteValue64"] {
            sim.fail_call(refusing, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            let refused = memory.barrier(&beside, 0, Some(LONG));
            assert!(matches!(refused, Err(Error::Core(CoreError::Driver(_)))), "{refusing}: {refused:?}");
            memory.check().unwrap();
            rank.meet(&*memory);
        }
        // From here on somebody else may have it capture: it is asked behind the signal too.
        assert!(!beside.as_raw().is_null());
        memory.barrier(&beside, 0, Some(LONG)).unwrap();
        let asked = asked_before_the_write(&sim, || memory.barrier(&beside, 0, Some(LONG)).unwrap());
        beside.synchronize().unwrap();
        sim.fail_call("cuStreamIsCapturing", asked + 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let refused = memory.barrier(&beside, 0, Some(LONG));
        assert!(matches!(refused, Err(Error::Core(CoreError::Driver(_)))), "{refused:?}");
        let broken = memory.check();
        assert!(matches!(broken, Err(Error::Broken { rank: 0, why: Why::Failed, .. })), "{broken:?}");
        drop(memory);
        rank.finish();
        crew.finish();
    });
}

#[test]
fn a_stream_that_captures_is_refused_and_its_graph_goes_on() {
    fn body(first: &Channel) {
        let rank = Seat::of(first).join();
        rank.meet(&*rank.memory(100));
    }
    pair::play(test_name!(), &[("rank", body)], |cast| {
        let crew = Crew::start(cast, 2);
        let rank = crew.seat.join();
        let memory = rank.memory(100);
        let stream = Stream::new(&rank.context).unwrap();
        let capture = Capture::begin(&stream, RELAXED);
        let refused = [
            memory.barrier(&stream, 0, None),
            memory.put_signal(&stream, 1, 0),
            memory.wait_signal(&stream, 1, 0, None),
        ];
        for refused in refused {
            let is_refused = matches!(refused, Err(Error::Core(CoreError::Capturing { .. })));
            assert!(is_refused, "{refused:?}");
        }
        assert_eq!(capture.end().map(|graph| graph.len()).unwrap(), 0);
        // Nothing was counted.
        rank.meet(&*memory);
        crew.finish();
    });
}

/// In the mode in which the driver ends a capture for most calls of any thread.
#[test]
fn memory_is_made_mapped_and_given_back_beside_a_global_capture() {
    fn body(first: &Channel) {
        let rank = Seat::of(first).join();
        let kept = [rank.memory(100), rank.memory(4 << 20)];
        rank.meet(&*kept[1]);
    }
    pair::play(test_name!(), &[("rank", body)], |cast| {
        let crew = Crew::start(cast, 2);
        let rank = crew.seat.join();
        let stream = Stream::new(&rank.context).unwrap();
        let capture = Capture::begin(&stream, GLOBAL);
        // The second needs another segment, on both ranks.
        let kept = [rank.memory(100), rank.memory(4 << 20)];
        drop(kept[1].get_buffer(1, 0..100).unwrap().on(&rank.stream).unwrap());
        rank.meet(&*kept[1]);
        drop(kept);
        assert_eq!(capture.end().map(|graph| graph.len()), Ok(0));
        crew.finish();
    });
}

#[test]
fn numbers_that_are_no_channels_and_ranks() {
    pair::play(test_name!(), &[], |cast| {
        let crew = Crew::start(cast, 1);
        let rank = crew.seat.join();
        let memory = rank.memory(100);
        for (result, what) in [
            (memory.barrier(&rank.stream, CHANNELS, None), "the channel"),
            (memory.put_signal(&rank.stream, 0, usize::MAX), "the channel"),
            (memory.wait_signal(&rank.stream, 0, CHANNELS, None), "the channel"),
            (memory.put_signal(&rank.stream, 1, 0), "the rank"),
            (memory.wait_signal(&rank.stream, 1, 0, None), "the rank"),
        ] {
            assert!(
                matches!(&result, Err(Error::NotAccepted { what: said, .. }) if *said == what),
                "{result:?}"
            );
        }
        // A rank may signal itself, and is a barrier of its own.
        memory.put_signal(&rank.stream, 0, CHANNELS - 1).unwrap();
        memory.wait_signal(&rank.stream, 0, CHANNELS - 1, None).unwrap();
        rank.meet(&*memory);
        crew.finish();
    });
}
