//! Ranks that are killed, or never signal: the others learn which one, and nobody waits for ever.
//!
//! `CUDA_MEM_DEATH_ROUNDS` says how often a rank is killed at each step.
#![allow(clippy::print_stderr, reason = "tells how many were killed where")]

use std::fs::{DirEntry, read_dir, read_link};
use std::time::{Duration, Instant};

use cuda_mem_core::Driver;
use cuda_mem_ipc::symmetric::{GroupOptions, Result, SymmetricMemory};
use cuda_mem_sim::Builder;

use crate::common::pair::{self, Channel, test_name};
use crate::common::{Backend, World, backend, death_rounds, driver};
use crate::rank::{Crew, Rank, SOON, Seat, culprit, options, until_broken, until_idle};

const DIED: u64 = 1;
const TIMED_OUT: u64 = 3;

/// The rank that comes to its end.
const LAST: usize = 2;

/// What every survivor finds: the group is of no use, the context is.
fn survive(rank: &Rank, memory: Option<&dyn SymmetricMemory>, expected: [u64; 2]) {
    if let Some(memory) = memory {
        assert_eq!(culprit(&until_broken(memory)), expected);
        // Its stream was let go.
        until_idle(&rank.stream);
        let refused = [
            memory.barrier(&rank.stream, 1, None),
            memory.put_signal(&rank.stream, 0, 0),
            memory.wait_signal(&rank.stream, 0, 0, None),
        ];
        for refused in refused {
            assert_eq!(culprit(&refused.unwrap_err()), expected);
        }
    }
    let refused = rank.try_empty(1000);
    assert_eq!(culprit(&refused.unwrap_err()), expected);
    let buffer = cuda_mem_core::DeviceBuffer::from_slice(&rank.stream, &[7u8; 100]).unwrap();
    assert_eq!(buffer.to_vec(&rank.stream).unwrap(), [7; 100]);
}

/// Kills rank 2 at a step, again and again with new processes.
fn kill(cast: pair::Cast, step: &str, same: impl Fn(&Rank, &dyn Fn())) {
    let rounds = death_rounds();
    for _ in 0..rounds {
        kill_once(cast, &same);
    }
    eprintln!("rank {LAST} Killed in {step}: {rounds} times");
}

/// Ranks 0 and 1 do the same and end well; rank 2 is killed when it has said so.
fn kill_once(cast: pair::Cast, same: impl FnOnce(&Rank, &dyn Fn())) {
    let mut crew = Crew::start(cast, 3);
    let rank = crew.seat.join();
    let ready = std::cell::Cell::new(false);
    {
        let [second, last] = &mut crew.others[..] else { unreachable!() };
        let last = std::cell::RefCell::new(last);
        let kill = || {
            assert_eq!(second.receive().bytes, b"waiting");
            assert_eq!(last.borrow().receive().bytes, b"ready");
            last.borrow_mut().kill();
            ready.set(true);
        };
        same(&rank, &kill);
    }
    assert!(ready.get());
    rank.finish();
    crew.others[0].send(b"finished", &[]);
    let last = crew.others.pop();
    crew.finish();
    drop(last);
}

/// The sockets, pipes, pidfds and shared host memory of this process. What the driver has open is its own.
fn open_descriptors() -> Vec<String> {
    let name = |entry: std::io::Result<DirEntry>| {
        let name = read_link(entry.unwrap().path()).ok()?.to_string_lossy().into_owned();
        let kinds = ["socket:", "pipe:", "anon_inode:[pidfd]", "/memfd:cuda-mem "];
        kinds.iter().any(|kind| name.starts_with(kind)).then_some(name)
    };
    let mut all = read_dir("/proc/self/fd").unwrap().filter_map(name).collect::<Vec<_>>();
    all.sort();
    all
}

/// The second rank's way through `same`, which leaves nothing in its process, where no other test runs.
fn second(first: &Channel, seat: &Seat, same: impl FnOnce(&Rank, &dyn Fn())) {
    let world = World::new();
    let context = seat.context(world.driver);
    let before = open_descriptors();
    // Far more than what contexts come to keep for themselves.
    let options = GroupOptions { segment_bytes: 256 << 20, ..options() };
    let rank = Rank::new(context.clone(), seat, &options, None);
    let free = context.memory_info().unwrap().free;
    same(&rank, &|| first.send(b"waiting", &[]));
    rank.finish();
    // What streams that were busy at that moment have left registered keeps its file.
    let start = Instant::now();
    while world.driver.registrations_left() > 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "registrations are left");
        std::thread::sleep(Duration::from_millis(1));
    }
    // What peers sent, and their connections, are closed in the background.
    let start = Instant::now();
    while open_descriptors() != before && start.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(open_descriptors(), before);
    // Memory lasts as long as the other survivor has it mapped.
    assert_eq!(first.receive().bytes, b"finished");
    // On a device, other tests have memory too, for a while.
    let start = Instant::now();
    while context.memory_info().unwrap().free + (128 << 20) <= free {
        assert!(start.elapsed() < Duration::from_secs(30), "{free} bytes were free, and are not again");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn until_killed(first: &Channel) -> ! {
    first.send(b"ready", &[]);
    loop {
        std::thread::park();
    }
}

fn in_rendezvous(rank: &Rank, waiting: &dyn Fn()) {
    let buffer = rank.empty(1000);
    let error = std::thread::scope(|scope| {
        let looking = scope.spawn(|| buffer.rendezvous(None).unwrap_err());
        waiting();
        looking.join().unwrap()
    });
    assert_eq!(culprit(&error), [LAST as u64, DIED]);
    survive(rank, None, [LAST as u64, DIED]);
}

#[test]
fn a_rank_killed_in_rendezvous_is_named() {
    fn body(first: &Channel) {
        let seat = Seat::of(first);
        if seat.rank == LAST {
            let _rank = seat.join();
            until_killed(first);
        }
        second(first, &seat, in_rendezvous);
    }
    pair::play_beside(test_name!(), &[("rank", body)], |cast| kill(cast, "rendezvous", in_rendezvous));
}

fn in_barrier(rank: &Rank, waiting: &dyn Fn()) {
    let memory = rank.memory(1000);
    rank.meet(&*memory);
    memory.barrier(&rank.stream, 0, None).unwrap();
    assert!(!rank.stream.is_idle().unwrap());
    waiting();
    survive(rank, Some(&*memory), [LAST as u64, DIED]);
}

#[test]
fn a_rank_killed_in_barrier_is_named_and_the_streams_are_let_go() {
    fn body(first: &Channel) {
        let seat = Seat::of(first);
        if seat.rank == LAST {
            let rank = seat.join();
            let memory = rank.memory(1000);
            rank.meet(&*memory);
            until_killed(first);
        }
        second(first, &seat, in_barrier);
    }
    pair::play_beside(test_name!(), &[("rank", body)], |cast| kill(cast, "barrier", in_barrier));
}

fn in_wait(rank: &Rank, waiting: &dyn Fn()) {
    let memory = rank.memory(1000);
    // The first of the two has come.
    for round in 0..2 {
        memory.wait_signal(&rank.stream, LAST, 5, None).unwrap();
        if round == 0 {
            rank.stream.synchronize().unwrap();
            memory.check().unwrap();
        }
    }
    assert!(!rank.stream.is_idle().unwrap());
    waiting();
    survive(rank, Some(&*memory), [LAST as u64, DIED]);
}

#[test]
fn a_rank_killed_in_wait_signal_is_named_and_the_streams_are_let_go() {
    fn body(first: &Channel) {
        let seat = Seat::of(first);
        if seat.rank == LAST {
            let rank = seat.join();
            let memory = rank.memory(1000);
            for other in rank.others() {
                memory.put_signal(&rank.stream, other, 5).unwrap();
            }
            rank.stream.synchronize().unwrap();
            // It waits too when it is killed, for what never comes.
            memory.wait_signal(&rank.stream, 0, 5, None).unwrap();
            until_killed(first);
        }
        second(first, &seat, in_wait);
    }
    pair::play_beside(test_name!(), &[("rank", body)], |cast| kill(cast, "wait_signal", in_wait));
}

fn sleep(rank: &Rank) -> Result<()> {
    // SAFETY: nothing is queued before the group wakes.
    unsafe { rank.group.sleep() }.map(drop)
}

fn change(rank: &Rank, waiting: &dyn Fn(), is_wake: bool) {
    let memory = rank.memory(1000);
    rank.meet(&*memory);
    if is_wake {
        sleep(rank).unwrap();
    }
    let error = std::thread::scope(|scope| {
        let changing = scope.spawn(|| if is_wake { rank.group.wake() } else { sleep(rank) });
        waiting();
        changing.join().unwrap().unwrap_err()
    });
    assert_eq!(culprit(&error), [LAST as u64, DIED]);
    survive(rank, Some(&*memory), [LAST as u64, DIED]);
}

/// The last rank, which comes to a call of the driver that takes long, or does not come; where there is no simulator the latter.
fn killed_in(first: &Channel, seat: &Seat, call: Option<&str>, is_wake: bool) -> ! {
    let sim = (backend() == Backend::Simulator).then(|| Builder::from_env().unwrap().build());
    let driver = sim.as_ref().map_or_else(driver, |sim| Driver::over(sim.table()).unwrap());
    let rank = Rank::new(seat.context(driver), seat, &options(), None);
    let memory = rank.memory(1000);
    rank.meet(&*memory);
    if is_wake {
        sleep(&rank).unwrap();
    }
    std::thread::scope(|scope| {
        if let (Some(call), Some(sim)) = (call, &sim) {
            sim.delay(call, Duration::from_secs(600));
            scope.spawn(|| if is_wake { rank.group.wake() } else { sleep(&rank) });
            std::thread::sleep(3 * SOON);
        }
        until_killed(first)
    })
}

macro_rules! killed {
    ($name:ident, $is_wake:literal, $call:expr) => {
        #[test]
        fn $name() {
            let same: fn(&Rank, &dyn Fn()) = |rank, waiting| change(rank, waiting, $is_wake);
            let body: pair::Body = |first| {
                let seat = Seat::of(first);
                if seat.rank == LAST {
                    killed_in(first, &seat, $call, $is_wake);
                }
                second(first, &seat, |rank, waiting| change(rank, waiting, $is_wake));
            };
            pair::play_beside(test_name!(), &[("rank", body)], |cast| kill(cast, stringify!($name), same));
        }
    };
}

killed!(a_rank_killed_before_it_sleeps_is_named, false, None);
killed!(a_rank_killed_when_all_sleep_is_named, false, Some("cuMemUnmap"));
killed!(a_rank_killed_before_it_wakes_is_named, true, None);
killed!(a_rank_killed_when_it_makes_memory_is_named, true, Some("cuMemCreate"));
killed!(a_rank_killed_when_all_wake_is_named, true, Some("cuMemImportFromShareableHandle"));

/// Rank 0 waits with a timeout for rank 2, rank 1 without one; rank 2 lives and never signals.
#[test]
fn a_rank_that_never_signals_is_named_on_every_rank() {
    fn body(first: &Channel) {
        let rank = Seat::of(first).join();
        let memory = rank.memory(1000);
        if rank.number() == LAST {
            first.send(b"here", &[]);
            assert_eq!(culprit(&until_broken(&*memory)), [LAST as u64, TIMED_OUT]);
        } else {
            memory.wait_signal(&rank.stream, LAST, 0, None).unwrap();
            first.send(b"here", &[]);
            survive(&rank, Some(&*memory), [LAST as u64, TIMED_OUT]);
        }
        rank.finish();
    }
    pair::play_beside(test_name!(), &[("rank", body)], |cast| {
        let crew = Crew::start(cast, 3);
        let rank = crew.seat.join();
        let memory = rank.memory(1000);
        // Before anybody's time is over: the group breaks for those too that have not come so far.
        crew.others.iter().for_each(|other| assert_eq!(other.receive().bytes, b"here"));
        // What is in time costs nobody anything.
        memory.put_signal(&rank.stream, 0, 0).unwrap();
        rank.stream.synchronize().unwrap();
        memory.wait_signal(&rank.stream, 0, 0, Some(SOON)).unwrap();
        rank.stream.synchronize().unwrap();
        std::thread::sleep(2 * SOON);
        memory.check().unwrap();
        memory.wait_signal(&rank.stream, LAST, 0, Some(SOON)).unwrap();
        survive(&rank, Some(&*memory), [LAST as u64, TIMED_OUT]);
        rank.finish();
        crew.finish();
    });
}
