//! The death matrix: either end is killed at each step of the protocol, and the other one goes on as it was.
//!
//! The steps are those of `docs/ipc.md`. `CUDA_MEM_DEATH_ROUNDS` says how often each is died at.
#![allow(clippy::print_stderr, reason = "tells how many were killed where")]

mod exporter;
mod importer;
pub(crate) mod stopped;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use cuda_mem_core::DeviceBuffer;

use crate::common::pair::{Channel, Peer};
use crate::common::{World, pattern};
use crate::link::eventually;

const LEN: usize = 100_000;

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Killed,
    /// By `exit`, with everything open.
    Exited,
    /// It lives on as another program.
    Replaced,
}

/// Waits for the end that the other process has in mind.
fn stay(first: &Channel) -> ! {
    first.send(b"ready", &[]);
    match first.receive().bytes.as_slice() {
        b"exit" => std::process::exit(0),
        b"exec" => panic!("{}", Command::new("sleep").arg("600").exec()),
        other => panic!("{other:?}"),
    }
}

fn ready(peer: &Peer) {
    assert_eq!(peer.receive().bytes, b"ready");
}

/// Ends a process that stays, and returns when it is gone; with what lives on in its place.
#[must_use]
fn end(mut peer: Peer, how: End) -> Option<Peer> {
    match how {
        End::Killed => peer.kill(),
        End::Replaced => {
            peer.send(b"exec", &[]);
            return Some(peer);
        }
        End::Exited => {
            peer.send(b"exit", &[]);
            peer.finish();
        }
    }
    None
}

/// Dies at a step again and again, and looks that nothing is left each time. No other test may run in the process.
fn die_at<S: std::fmt::Debug + Copy>(
    who: &str,
    step: S,
    how: End,
    rounds: usize,
    mut round: impl FnMut(&World, S, End) -> Duration,
) {
    let world = World::new();
    // What is made once and stays.
    round(&world, step, how);
    let before = Held::settled(&world);
    let mut longest = Duration::ZERO;
    for _ in 0..rounds {
        longest = longest.max(round(&world, step, how));
        before.expect_again(&world);
    }
    expect_usable(&world);
    eprintln!("{who} {how:?} at {step:?}: {} times, all back within {} ms", rounds + 1, longest.as_millis());
}

/// The time that something takes to become so.
fn time_until(what: &str, is_so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    eventually(what, is_so);
    start.elapsed()
}

/// What a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    mappings: usize,
    memory: usize,
}

impl Held {
    fn by(world: &World) -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        Self {
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
            mappings: maps.lines().filter(|line| line.contains("/memfd:cuda-mem")).count(),
            memory: world.context.memory_info().unwrap().free,
        }
    }

    /// What stays, once nothing has changed for a while.
    fn settled(world: &World) -> Self {
        let (mut last, mut times) = (Self::by(world), 0);
        eventually("nothing changes any more", || {
            std::thread::sleep(Duration::from_millis(10));
            let now = Self::by(world);
            times = if now == last { times + 1 } else { 0 };
            last = now;
            times == 10
        });
        last
    }

    /// What a context keeps for itself may have grown, but not by a segment.
    fn expect_again(self, world: &World) {
        let mut now = self;
        let start = Instant::now();
        while start.elapsed() < crate::link::LIMIT {
            now = Self::by(world);
            let is_memory_back = now.memory + (48 << 20) > self.memory;
            // Fewer, if what went on before was not quite over.
            if is_memory_back && now.descriptors <= self.descriptors && now.mappings <= self.mappings {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{self:?} was held, now {now:?}");
    }
}

/// The context does what it did before.
fn expect_usable(world: &World) {
    let stream = world.new_stream();
    let bytes = pattern(LEN, 77);
    assert!(DeviceBuffer::from_slice(&stream, &bytes).unwrap().to_vec(&stream).unwrap() == bytes);
    world.context.synchronize().unwrap();
    assert_eq!(world.driver.release_failures(), 0);
}
