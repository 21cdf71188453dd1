//! Groups that sleep and wake.

use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_core::{Stream, copy};
use cuda_mem_ipc::symmetric::{
    Error, Exchange, Group, GroupOptions, Result, SIGNAL_PAD_BYTES, SymmetricMemory,
};

use crate::common::gate::Gate;
use crate::common::pair::{self, Channel, test_name};
use crate::common::{Backend, World, backend};
use crate::rank::{Crew, LONG, Rank, SOON, Seat, options};

/// Far more than anything else that a test has: contexts on hardware grow by themselves. Each byte of it is written and read by each rank.
fn large() -> usize {
    if backend() == Backend::Gpu { 32 << 20 } else { 8 << 20 }
}

fn sleep(group: &Group) -> Result<usize> {
    // SAFETY: these tests have waited for all that uses the group's memory, and queue nothing before they wake it.
    unsafe { group.sleep() }
}

/// All ranks' processes have come here.
fn gather(rank: &Rank) {
    rank.group.all_gather(&[], LONG).unwrap();
}

fn free(rank: &Rank) -> usize {
    rank.context.memory_info().unwrap().free
}

/// What each rank has at each place, in a round.
fn part(rank: usize, round: usize) -> u8 {
    (16 * round + 3 * rank + 1) as u8
}

/// Each rank writes its part, into its own memory and into the next one's, and sums up all of them.
fn sum(rank: &Rank, memory: &dyn SymmetricMemory, round: usize) {
    let (size, ranks) = (memory.buffer_size(), rank.ranks());
    let half = size / 2;
    let (own, next) = (rank.number(), (rank.number() + 1) % ranks);
    rank.upload(&memory.get_buffer(own, 0..half).unwrap(), &vec![part(own, round); half]);
    rank.upload(&memory.get_buffer(next, half..size).unwrap(), &vec![part(own, round); size - half]);
    rank.meet(memory);
    let mut sums = [0u32; 2];
    for other in 0..ranks {
        let seen = rank.download(&memory.get_buffer(other, 0..size).unwrap());
        for (sum, seen) in sums.iter_mut().zip([&seen[..half], &seen[half..]]) {
            assert!(seen == vec![seen[0]; seen.len()]);
            *sum += u32::from(seen[0]);
        }
    }
    let expected = (0..ranks).map(|rank| u32::from(part(rank, round))).sum::<u32>();
    assert_eq!(sums, [expected; 2], "round {round}");
    rank.meet(memory);
}

fn cycles(rank: &Rank) {
    let memories = [rank.memory(large()), rank.memory(1000), rank.memory(large())];
    // Which the other ranks have not mapped.
    let alone = rank.empty(large());
    let all = || -> Vec<Vec<u64>> {
        memories.iter().map(|memory| [memory.buffer_ptrs(), memory.signal_pad_ptrs()].concat()).collect()
    };
    let addresses = all();
    for round in 0..2 {
        memories.iter().for_each(|memory| sum(rank, &**memory, round));
        let pad = memories[0].get_signal_pad(rank.number()).unwrap();
        rank.upload(&pad, &[1; SIGNAL_PAD_BYTES]);
        // One that is waited for after the sleep.
        let next = (rank.number() + 1) % rank.ranks();
        memories[1].put_signal(&rank.stream, next, 3).unwrap();
        rank.stream.synchronize().unwrap();
        let dropped = rank.memory(5000);
        gather(rank);
        let before = free(rank);
        gather(rank);

        let freed = sleep(&rank.group).unwrap();
        assert!((3 * large()..4 * large()).contains(&freed), "{freed}");
        let devices = rank.context.driver().devices().unwrap();
        let beside = |other: &usize| other % devices.len() == rank.number() % devices.len();
        // What the ranks of the device had, all of it: each had mapped that of the others too.
        let had = freed * (0..rank.ranks()).filter(beside).count();
        // Contexts on hardware may have grown meanwhile, but not by a segment. What other tests took there comes back.
        let (start, is_free) = (Instant::now(), || free(rank) + large() / 2 >= before + had);
        while !is_free() {
            assert!(start.elapsed() < LONG, "{} of {before} and {had}", free(rank));
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(sleep(&rank.group).unwrap(), 0);
        let refused = [rank.try_empty(1000).map(drop), alone.rendezvous(None).map(drop)];
        for refused in refused {
            assert!(matches!(&refused, Err(Error::Asleep { group }) if group == "ranks"), "{refused:?}");
        }
        drop(dropped);
        gather(rank);

        rank.group.wake().unwrap();
        rank.group.wake().unwrap();
        assert_eq!(all(), addresses);
        assert!(rank.download(&pad).iter().all(|byte| *byte == 0));
        let last = (rank.number() + rank.ranks() - 1) % rank.ranks();
        memories[1].wait_signal(&rank.stream, last, 3, None).unwrap();
        rank.stream.synchronize().unwrap();
        gather(rank);
    }
    memories.iter().for_each(|memory| sum(rank, &**memory, 7));
    sum(rank, &*alone.rendezvous(None).unwrap(), 8);
    // And a group that sleeps ends like others.
    sleep(&rank.group).unwrap();
}

#[test]
fn memory_goes_back_and_comes_again_at_the_same_addresses() {
    on_ranks!(3, |seat| {
        let rank = seat.join();
        cycles(&rank);
        rank.finish();
    });
}

#[test]
fn memory_that_is_dropped_asleep_is_used_again_awake() {
    fn dropped(rank: &Rank) {
        let (first, second) = (rank.memory(1000), rank.empty(1000));
        let (address, barrier) = (second.as_raw(), rank.memory(100));
        rank.meet(&*barrier);
        sleep(&rank.group).unwrap();
        drop(second);
        rank.group.wake().unwrap();
        assert_eq!(rank.empty(1000).as_raw(), address);
        sum(rank, &*first, 1);
    }
    on_ranks!(2, |seat| dropped(&seat.join()));
}

#[test]
fn work_that_nobody_recorded_is_waited_for() {
    fn busy(rank: &Rank) {
        let memory = rank.memory(1000);
        rank.meet(&*memory);
        let stream = Stream::new(&rank.context).unwrap();
        let gate = Gate::before(&stream);
        for address in memory.buffer_ptrs() {
            // SAFETY: bytes of each rank's memory, by a mapping of this process's that stays until they are written.
            unsafe { copy::memset_async(&stream, *address, 1, 1000) }.unwrap();
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(SOON);
                gate.open();
            });
            sleep(&rank.group).unwrap();
            assert!(stream.is_idle().unwrap());
        });
        rank.group.wake().unwrap();
        sum(rank, &*memory, 1);
    }
    on_ranks!(2, |seat| busy(&seat.join()));
}

/// More than may be announced at a time.
#[test]
fn many_segments_sleep_and_wake() {
    fn many(rank: &Rank) {
        let all = (0..300).map(|_| rank.empty(2 << 20)).collect::<Vec<_>>();
        for round in 0..2 {
            sleep(&rank.group).unwrap();
            rank.group.wake().unwrap();
            sum(rank, &*all[299].rendezvous(None).unwrap(), round);
        }
    }
    on_ranks!(2, |seat| many(&seat.join_with(&GroupOptions { segment_bytes: 2 << 20, ..options() })));
}

/// Tries until the other rank has come too.
fn until_there<T>(mut call: impl FnMut() -> Result<T>) -> T {
    let start = Instant::now();
    loop {
        match call() {
            Ok(done) => return done,
            Err(Error::Missing { .. }) if start.elapsed() < LONG => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_and_nothing_has_changed() {
    const PATIENCE: Duration = Duration::from_secs(3);
    fn hasty() -> GroupOptions {
        GroupOptions { timeout: PATIENCE, ..options() }
    }
    fn body(first: &Channel) {
        let seat = Seat::of(first);
        assert_eq!(first.receive().bytes, b"join");
        let rank = seat.join_with(&hasty());
        let memory = rank.memory(large());
        sum(&rank, &*memory, 1);
        assert_eq!(first.receive().bytes, b"sleep");
        // What it has is used by nobody meanwhile, and is there.
        let seen = rank.download(&memory.get_buffer(0, 0..100).unwrap());
        assert!(seen.iter().all(|byte| *byte == part(0, 1)));
        until_there(|| sleep(&rank.group));
        assert_eq!(first.receive().bytes, b"wake");
        until_there(|| rank.group.wake());
        sum(&rank, &*memory, 2);
    }
    pair::play_beside(test_name!(), &[("rank", body)], |cast| {
        let crew = Crew::start(cast, 2);
        // Before the other one waits for it.
        let turn = World::new();
        crew.others[0].send(b"join", &[]);
        let rank = Rank::new(crew.seat.context(turn.driver), &crew.seat, &hasty(), Some(turn));
        let memory = rank.memory(large());
        let addresses = [memory.buffer_ptrs(), memory.signal_pad_ptrs()].concat();
        sum(&rank, &*memory, 1);
        let named = |call: &dyn Fn() -> Result<()>, expected| {
            let start = Instant::now();
            let missing = call();
            let is_named = matches!(&missing, Err(Error::Missing { ranks, what, .. }) if ranks == &[1] && *what == expected);
            assert!(is_named, "{missing:?}");
            assert!((PATIENCE..2 * PATIENCE).contains(&start.elapsed()), "{:?}", start.elapsed());
            rank.group.check().unwrap();
        };
        named(&|| sleep(&rank.group).map(drop), "sleep");
        let seen = rank.download(&memory.get_buffer(1, 0..100).unwrap());
        assert!(seen.iter().all(|byte| *byte == part(1, 1)));
        crew.others[0].send(b"sleep", &[]);
        assert!(until_there(|| sleep(&rank.group)) >= large());
        let before = free(&rank);
        named(&|| rank.group.wake(), "wake");
        let (after, made) = (free(&rank), rank.try_empty(1));
        assert!(after >= before, "{after} bytes of {before} are free");
        assert!(matches!(made, Err(Error::Asleep { .. })), "it is awake");
        crew.others[0].send(b"wake", &[]);
        until_there(|| rank.group.wake());
        assert_eq!([memory.buffer_ptrs(), memory.signal_pad_ptrs()].concat(), addresses);
        sum(&rank, &*memory, 2);
        crew.finish();
    });
}
