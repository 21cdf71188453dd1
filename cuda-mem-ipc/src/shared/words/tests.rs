use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_pool::cuda_mem_core::Driver;
use cuda_mem_pool::cuda_mem_core::sys::CUresult;
use cuda_mem_sim::Sim;

use super::*;

#[test]
fn what_a_peer_sends_is_pinned_only_if_it_is_as_large_as_it_must_be() {
    let context = Driver::over(cuda_mem_sim::table()).unwrap().device(0).unwrap().primary_context().unwrap();
    // The last one's pages would be there only when they are pinned.
    for (bytes, is_accepted) in
        [(1, false), (wire::SLOTS * SLOT, true), (4 * LARGEST_PAGE, false), (1 << 30, false)]
    {
        let mapping = SharedMapping::create(bytes).unwrap();
        let descriptor = mapping.as_fd().try_clone_to_owned().unwrap();
        let opened = Words::open(&context, descriptor, 1);
        assert_eq!(opened.is_ok(), is_accepted, "{bytes}");
        assert!(is_accepted || matches!(opened, Err(Error::Protocol { pid: 1, .. })), "{bytes}");
    }
}

fn context(sim: &Sim) -> Context {
    Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap()
}

/// A fence that the peer was told of and the driver refuses.
fn refused(sim: &Sim, words: &Words, stream: &Stream) -> Point {
    let mut announced = None;
    sim.fail_call("cuStreamWriteValue64", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let recorded = words.record_announced(stream, |point| {
        announced = Some(point);
        true
    });
    assert!(matches!(recorded, Err(Error::Core(core::Error::Driver(_)))), "{recorded:?}");
    announced.unwrap()
}

#[test]
fn a_refused_fence_is_no_death_of_either_side() {
    let sim = Sim::builder().build();
    let context = context(&sim);
    let stream = Stream::new(&context).unwrap();
    let memory = Words::memory(&context).unwrap();
    let theirs = Words::open(&context, memory.as_fd().try_clone_to_owned().unwrap(), 1).unwrap();
    let ours = Words::of(&context, memory, 2).unwrap();
    let lines: Vec<_> = (0..LINES).map(|_| refused(&sim, &ours, &stream)).collect();
    for point in &lines {
        assert!(matches!(theirs.is_reached(*point), Err(Error::FenceRefused { pid: 1 })));
        assert!(matches!(theirs.hold_up(*point, &stream), Err(Error::FenceRefused { pid: 1 })));
    }
    let numbers = lines.iter().map(|point| point.line);
    assert!(numbers.eq(0..wire::LINES), "one refused fence a line");
    let none = ours.record(&stream);
    assert!(matches!(none, Err(Error::NoLinesLeft { lines: wire::LINES })), "{none:?}");
    theirs.end();
    assert!(matches!(theirs.is_reached(lines[0]), Err(Error::PeerDied { pid: 1 })));
}

/// A stream that shares the line writes behind the poison, and the word is back where somebody may wait for more.
#[test]
fn a_line_stays_poisoned_until_all_streams_that_share_it_are_done() {
    let sim = Sim::builder().build();
    let context = context(&sim);
    let words = Words::of(&context, Words::memory(&context).unwrap(), 1).unwrap();
    let (first, gate) = (Stream::new(&context).unwrap(), FenceLine::new(&context).unwrap());
    gate.fence(1).unwrap().hold_up(&first).unwrap();
    (0..ALONE).for_each(|line| assert_eq!(words.record(&Stream::new(&context).unwrap()).unwrap().line, line));
    let shared = words.record(&first).unwrap();
    for _ in ALONE + 1..wire::LINES {
        assert_ne!(words.record(&Stream::new(&context).unwrap()).unwrap().line, shared.line);
    }
    let last = Stream::new(&context).unwrap();
    releases::stay().unwrap();
    assert_eq!(refused(&sim, &words, &last), Point { generation: 2, ..shared });
    assert!(!last.is_idle().unwrap(), "in order behind the other one");
    gate.poison();
    last.synchronize().unwrap();
    let (page, begin) = (words.page().unwrap(), Instant::now());
    while word(&page.words, words.slot(words.side, shared.line)) <= LAST {
        assert!(begin.elapsed() < Duration::from_secs(20), "whoever waits for the refused fence waits on");
        thread::yield_now();
    }
    releases::leave();
}

/// What streams were given to say is not waited for where nothing is said any more.
#[test]
fn what_was_lost_with_a_context_is_not_waited_for() {
    let sim = Sim::builder().build();
    let context = context(&sim);
    let words = Arc::new(Words::of(&context, Words::memory(&context).unwrap(), 1).unwrap());
    let (stream, gate) = (Stream::new(&context).unwrap(), FenceLine::new(&context).unwrap());
    gate.fence(1).unwrap().hold_up(&stream).unwrap();
    words.record(&stream).unwrap();
    let mut recorded = Recorded::of(&words).unwrap();
    assert!(!recorded.is_reached());
    sim.fail_call("cuEventQuery", 1, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert!(recorded.is_reached());
    assert!(!recorded.is_reached(), "it was no loss, but for the test");
    gate.poison();
    stream.synchronize().unwrap();
    assert!(recorded.is_reached());
}

/// A device goes on with the pages that it was given.
#[test]
fn nobody_takes_pages_out_of_what_is_pinned() {
    use rustix::fs::{FallocateFlags, fallocate};
    let context = Driver::over(cuda_mem_sim::table()).unwrap().device(0).unwrap().primary_context().unwrap();
    for is_own in [true, false] {
        let memory = Words::memory(&context).unwrap();
        let descriptor = memory.as_fd().try_clone_to_owned().unwrap();
        let holes =
            || fallocate(&descriptor, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096);
        holes().unwrap();
        let words = if is_own {
            Words::of(&context, memory, 1)
        } else {
            Words::open(&context, descriptor.try_clone().unwrap(), 1)
        };
        assert!(words.is_ok() && holes() == Err(rustix::io::Errno::PERM), "{is_own}");
    }
}
