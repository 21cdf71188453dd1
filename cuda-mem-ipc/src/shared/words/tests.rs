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
        let opened = Words::open(&context, vec![descriptor].into(), 1);
        assert_eq!(opened.is_ok(), is_accepted, "{bytes}");
        assert!(is_accepted || matches!(opened, Err(Error::Protocol { pid: 1, .. })), "{bytes}");
    }
}

fn context(sim: &Sim) -> Context {
    Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap()
}

/// Both sides' words, in one process.
fn both(context: &Context) -> (Words, Words) {
    let memory = Words::memory(context).unwrap();
    let descriptor = memory.as_fd().try_clone_to_owned().unwrap();
    let theirs = Words::open(context, vec![descriptor].into(), 1).unwrap();
    (Words::of(context, memory, 2).unwrap(), theirs)
}

/// More streams than there are lines share the last one, where each waits for the one before.
#[test]
fn streams_beyond_the_lines_share_the_last_one() {
    let sim = Sim::builder().build();
    let context = context(&sim);
    let (ours, theirs) = both(&context);
    let streams: Vec<_> = (0..LINES + 8).map(|_| Stream::new(&context).unwrap()).collect();
    let points: Vec<_> = streams.iter().map(|stream| ours.record(stream).unwrap()).collect();
    assert!(points.iter().map(|point| point.line).eq((0..wire::LINES).chain([wire::LINES - 1; 8])));
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    assert!(points.iter().all(|point| theirs.is_reached(*point).unwrap()));
}

#[test]
fn a_refused_fence_that_the_peer_was_told_of_is_never_reached() {
    let sim = Sim::builder().build();
    let context = context(&sim);
    let stream = Stream::new(&context).unwrap();
    let (ours, theirs) = both(&context);
    let mut announced = None;
    sim.fail_call("cuStreamWriteValue64", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let recorded = ours.record_announced(&stream, |point| {
        announced = Some(point);
        true
    });
    assert!(matches!(recorded, Err(Error::Core(core::Error::Driver(_)))), "{recorded:?}");
    let point = announced.unwrap();
    assert!(matches!(theirs.is_reached(point), Err(Error::PeerDied { pid: 1 })));
    assert!(matches!(theirs.make_wait(point, &stream), Err(Error::PeerDied { pid: 1 })));
    stream.synchronize().unwrap();
}

/// A peer that never reaches its fences could otherwise hold up all of the device's hardware queues.
#[test]
fn few_streams_wait_for_fences_of_a_peer_that_are_not_reached() {
    let sim = Sim::builder().build();
    let context = context(&sim);
    let (ours, theirs) = both(&context);
    let (busy, gate) = (Stream::new(&context).unwrap(), FenceLine::new(&context).unwrap());
    let fence = gate.fence(1).unwrap();
    fence.make_wait(&busy).unwrap();
    let point = ours.record(&busy).unwrap();
    let streams: Vec<_> = (0..=MOST_WAITS).map(|_| Stream::new(&context).unwrap()).collect();
    let (last, few) = streams.split_last().unwrap();
    for stream in few {
        // As often as it likes: a stream waits for one thing at a time.
        theirs.make_wait(point, stream).unwrap();
        theirs.make_wait(point, stream).unwrap();
    }
    let refused = theirs.make_wait(point, last);
    assert!(matches!(refused, Err(Error::TooManyWaits { pid: 1, most: MOST_WAITS })), "{refused:?}");
    let has_room_for = |stream: &Stream| theirs.waits_with_room(stream.id()).is_some();
    assert!(!has_room_for(last) && has_room_for(&few[0]));
    gate.poison();
    busy.synchronize().unwrap();
    theirs.make_wait(point, last).unwrap();
    assert!(has_room_for(last));
}

#[test]
fn a_wait_that_was_refused_is_none_of_the_few() {
    let sim = Sim::builder().build();
    let context = context(&sim);
    let (ours, theirs) = both(&context);
    let (busy, gate) = (Stream::new(&context).unwrap(), FenceLine::new(&context).unwrap());
    gate.fence(1).unwrap().make_wait(&busy).unwrap();
    let points = [(); 2].map(|()| ours.record(&busy).unwrap());
    let streams: Vec<_> = (0..=MOST_WAITS).map(|_| Stream::new(&context).unwrap()).collect();
    let refuse = |point: Point, stream: &Stream| {
        sim.fail_call("cuStreamWaitValue64", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let refused = theirs.make_wait(point, stream);
        assert!(matches!(refused, Err(Error::Core(core::Error::Driver(_)))), "{refused:?}");
    };
    let (last, few) = streams.split_last().unwrap();
    few.iter().for_each(|stream| refuse(points[0], stream));
    theirs.make_wait(points[0], last).unwrap();
    // What a stream has counts, whatever it is refused behind that.
    few[1..].iter().for_each(|stream| theirs.make_wait(points[0], stream).unwrap());
    refuse(points[1], last);
    let refused = theirs.make_wait(points[0], &few[0]);
    assert!(matches!(refused, Err(Error::TooManyWaits { .. })), "{refused:?}");
    gate.poison();
    busy.synchronize().unwrap();
}

#[test]
fn an_end_lets_streams_go_while_somebody_holds_the_words() {
    let sim = Sim::builder().build();
    let context = context(&sim);
    let (ours, theirs) = both(&context);
    let (busy, gate) = (Stream::new(&context).unwrap(), FenceLine::new(&context).unwrap());
    gate.fence(1).unwrap().make_wait(&busy).unwrap();
    let point = ours.record(&busy).unwrap();
    let stream = Stream::new(&context).unwrap();
    theirs.make_wait(point, &stream).unwrap();
    let held = theirs.page().unwrap();
    theirs.end();
    let until = Instant::now() + Duration::from_secs(10);
    while !stream.is_idle().unwrap() {
        assert!(Instant::now() < until, "it waits for a peer that is gone");
        thread::sleep(Duration::from_millis(1));
    }
    drop(held);
    gate.poison();
    busy.synchronize().unwrap();
}

#[test]
fn nothing_counts_of_a_side_that_gives_up_though_it_lives() {
    let sim = Sim::builder().build();
    let context = context(&sim);
    let stream = Stream::new(&context).unwrap();
    let (ours, theirs) = both(&context);
    let point = ours.record(&stream).unwrap();
    stream.synchronize().unwrap();
    assert!(theirs.is_reached(point).unwrap());
    ours.give_up();
    assert!(matches!(theirs.is_reached(point), Err(Error::PeerDied { pid: 1 })));
    // As a stream does that comes to its fence behind that.
    let page = theirs.page().unwrap();
    let word = page.mapping().word(SLOT * point.line as usize).unwrap();
    word.store(point.generation, Ordering::SeqCst);
    theirs.end();
    assert!(matches!(theirs.is_reached(point), Err(Error::PeerDied { pid: 1 })));
    assert!(matches!(theirs.make_wait(point, &stream), Err(Error::PeerDied { pid: 1 })));
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
            Words::open(&context, vec![descriptor.try_clone().unwrap()].into(), 1)
        };
        assert!(words.is_ok() && holes() == Err(rustix::io::Errno::PERM), "{is_own}");
    }
}
