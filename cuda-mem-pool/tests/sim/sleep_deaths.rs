//! A process is killed at each call of the driver that sleep and wake of a tag make: all that it had comes back.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

use cuda_mem_core::{Driver, Stream};
use cuda_mem_pool::caching::{Backup, CachingAllocator, CachingOptions, Restore, Tag};
use cuda_mem_sim::Sim;

use crate::common::pair::{self, Cast, Channel, test_name};
use crate::sleep::{MIB, allocate_in, byte, fill, sleep};

/// A small device has handles of 2 MiB, and the fewer bytes there are to save.
const MEMORY: u64 = 1 << 30;

/// In a small segment, and in two large ones.
const SIZES: [usize; 3] = [1000, 3 * MIB / 2, 2 * MIB];

/// Far more calls than a cycle makes.
const MOST: u64 = 500;

/// Sleeps and wakes, and is killed meanwhile unless it makes fewer calls.
fn victim(first: &Channel, backup: Backup, restore: Restore) {
    let nth = first.receive().words()[0];
    let account = PathBuf::from(String::from_utf8(first.receive().bytes).unwrap());
    let sim = Sim::builder().memory(MEMORY).account(account).build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let allocator = CachingAllocator::new(&context, &CachingOptions::default()).unwrap();
    let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(&context).unwrap());
    let blocks = SIZES.map(|bytes| allocate_in(&tag, &allocator, bytes, &stream));
    blocks.into_iter().zip(SIZES).for_each(|(block, bytes)| fill(&stream, block, bytes, 7));
    first.send(b"ready", &[]);
    assert_eq!(first.receive().bytes, b"go");
    sim.kill_at_nth_call_overall(nth);
    sleep(&tag, backup);
    Tag::wake(&[&tag], restore).unwrap();
    sim.clear_faults();
    let expected = if restore == Restore::Backup { 7 } else { 0 };
    blocks.iter().for_each(|block| assert_eq!(byte(&stream, *block), expected));
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Kills one at each call, until there are no more.
fn kill_at_each_call(cast: Cast) {
    let sim = Sim::builder().memory(MEMORY).build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let free = || context.memory_info().unwrap().free;
    // Those that start a process have the driver that a process has without asking.
    let _ = cuda_mem_sim::account();
    let before = (free(), open_descriptors());
    for nth in 1..MOST {
        let victim = cast.start("victim");
        victim.send_words(&[nth]);
        victim.send(sim.account().to_str().unwrap().as_bytes(), &[]);
        assert_eq!(victim.receive().bytes, b"ready");
        assert!(free() + SIZES.iter().sum::<usize>() <= before.0, "it is counted here");
        victim.send(b"go", &[]);
        let status = victim.end();
        assert!(status.success() || status.signal() == Some(libc::SIGABRT), "call {nth}: {status}");
        assert_eq!((free(), open_descriptors()), before, "call {nth}");
        if status.success() {
            // Three handles are let go, and made, mapped and let in again.
            assert!(nth > 30, "only {nth}");
            return;
        }
    }
    panic!("there are more than {MOST} calls");
}

#[test]
fn who_is_killed_at_any_call_of_a_cycle_with_a_backup_leaves_nothing() {
    let role: pair::Body = |first| victim(first, Backup::Pinned, Restore::Backup);
    pair::play_alone(test_name!(), &[("victim", role)], kill_at_each_call);
}

#[test]
fn who_is_killed_at_any_call_of_a_cycle_without_leaves_nothing() {
    let role: pair::Body = |first| victim(first, Backup::Discard, Restore::Filled(0));
    pair::play_alone(test_name!(), &[("victim", role)], kill_at_each_call);
}
