//! The ladder of the caching allocator, step by step, and with every call on it failing.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::thread;

use cuda_mem_core::sys::{CUdevice_attribute, CUresult};
use cuda_mem_core::{Context, Driver, DriverError, Event, Stream};
use cuda_mem_pool::caching::{
    Advice, Backup, CachingAllocator, CachingOptions, OutOfMemoryReport, Pin, Restore, Tag,
};
use cuda_mem_pool::history::HistoryOptions;
use cuda_mem_pool::snapshot::Action;
use cuda_mem_pool::{Error, Result};
use cuda_mem_sim::{Builder, Sim};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::rig::on;

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// A machine with little memory.
fn machine(bytes: usize) -> Builder {
    Sim::builder().memory(bytes as u64).driver(13000)
}

fn allocator(context: &Context, moves: bool) -> CachingAllocator {
    CachingAllocator::new(context, &CachingOptions::default().with_moves(moves)).unwrap()
}

fn free(allocator: &CachingAllocator, address: u64) -> Result<()> {
    // SAFETY: each caller allocated the block and does not use it.
    unsafe { allocator.free_by_address(address) }
}

fn report(allocator: &CachingAllocator, bytes: usize, stream: &Stream) -> Box<OutOfMemoryReport> {
    match allocator.allocate_by_address(bytes, stream) {
        Err(Error::DeviceOutOfMemory(report)) => report,
        other => panic!("{bytes} bytes: {other:?}"),
    }
}

fn says_ask_elsewhere(report: &OutOfMemoryReport) -> bool {
    report.advice.iter().any(|advice| matches!(advice, Advice::AskElsewhere { .. }))
}

#[test]
fn two_gib_on_a_full_device_of_four() {
    on(machine(4 * GIB), |_, context| {
        let [one, other, user] = [(); 3].map(|()| Stream::new(context).unwrap());
        let allocator = allocator(context, true);
        let free_at_first = context.memory_info().unwrap().free;
        let live = allocator.allocate_by_address(GIB, &one).unwrap();
        let used = allocator.allocate_by_address(GIB, &other).unwrap();
        let held = allocator.allocate_by_address(GIB, &other).unwrap();
        let mut rest = Vec::new();
        while let Ok(block) = allocator.allocate_by_address(64 * MIB, &one) {
            rest.push(block);
        }
        // A pinned hole among the blocks of the first stream.
        let hole = rest.remove(rest.len() / 2);
        let pinned = allocator.pin(hole, 64 * MIB, Pin::Exported).unwrap();
        free(&allocator, hole).unwrap();
        // A stream that nobody can wait for: a graph is being captured on the block's own.
        let gate = Gate::before(&user);
        allocator.record_stream(used, &user).unwrap();
        let capture = Capture::begin(&other, RELAXED);
        free(&allocator, used).unwrap();
        let ooms = allocator.statistics().num_ooms;
        thread::scope(|scope| {
            // The host waits for the user's stream in the end.
            scope.spawn(|| {
                while allocator.statistics().num_alloc_retries <= ooms {
                    thread::yield_now();
                }
                gate.open();
            });
            let refused = report(&allocator, 2 * GIB, &one);
            let text = refused.to_string();
            assert_eq!((refused.requested, refused.total), (2 * GIB, 4 * GIB), "{text}");
            assert!(refused.free.unwrap() < 64 * MIB, "{text}");
            assert_eq!(refused.limit, None);
            assert_eq!(refused.live, 2 * GIB + rest.len() * 64 * MIB, "{text}");
            assert_eq!(refused.reserved, refused.live + refused.pending + refused.cached_bytes(), "{text}");
            assert!(refused.reserved + 64 * MIB > free_at_first, "{text}");
            let cached = refused.cached.iter().find(|cached| cached.stream == Some(one.id())).unwrap();
            assert!(cached.bytes >= 64 * MIB && refused.pinned >= 64 * MIB, "{text}");
            assert!(refused.largest < 2 * GIB, "{text}");
            assert!(refused.advice.iter().any(|advice| matches!(advice, Advice::FreeMore { .. })), "{text}");
            for said in [
                "2.00 GiB were asked for",
                "free of 4.00 GiB",
                "in blocks in use",
                "in freed blocks that streams still use",
                &format!("stream {:#x}: ", one.as_raw().addr()),
                "Pins keep",
                "The largest block that would have fitted",
                "the device is not known",
                "What would help: ",
            ] {
                assert!(text.contains(said), "{said:?} is not in: {text}");
            }
        });
        drop(capture.end().unwrap());
        drop(pinned);
        for block in rest.into_iter().chain([live, held]) {
            free(&allocator, block).unwrap();
        }
        let block = allocator.allocate_by_address(2 * GIB, &one).unwrap();
        free(&allocator, block).unwrap();
    });
}

#[test]
fn what_is_pending_is_said() {
    on(machine(128 * MIB), |_, context| {
        let [one, user] = [(); 2].map(|()| Stream::new(context).unwrap());
        let allocator = allocator(context, true);
        let used = allocator.allocate_by_address(64 * MIB, &one).unwrap();
        let kept = allocator.allocate_by_address(24 * MIB, &one).unwrap();
        allocator.record_stream(used, &user).unwrap();
        let capture = Capture::begin(&user, RELAXED);
        free(&allocator, used).unwrap();
        let refused = report(&allocator, 64 * MIB, &one);
        assert_eq!((refused.live, refused.pending), (24 * MIB, 64 * MIB));
        assert!(refused.advice.contains(&Advice::AwaitStreams { bytes: 64 * MIB }), "{refused}");
        drop(capture.end().unwrap());
        let block = allocator.allocate_by_address(64 * MIB, &one).unwrap();
        [block, kept].into_iter().for_each(|block| free(&allocator, block).unwrap());
    });
}

/// A higher limit gives no more than the device has left, and others that hold less give no more than the limit does.
#[test]
fn what_leaves_less_is_said_to_be_in_the_way() {
    on(machine(256 * MIB), |_, context| {
        let stream = Stream::new(context).unwrap();
        let options = CachingOptions::default().with_max_bytes(GIB);
        let [allocator, others] = [(); 2].map(|()| CachingAllocator::new(context, &options).unwrap());
        let kept = allocator.allocate_by_address(100 * MIB, &stream).unwrap();
        let rest = others.allocate_by_address(60 * MIB, &stream).unwrap();
        let advised = |bytes: usize| {
            let refused = report(&allocator, bytes, &stream);
            let has = |is_it: fn(&Advice) -> bool| refused.advice.iter().any(is_it);
            let raise = has(|advice| matches!(advice, Advice::RaiseMemoryFraction { .. }));
            (raise, has(|advice| matches!(advice, Advice::EndOthers { .. })))
        };
        assert_eq!(advised(150 * MIB), (false, true));
        allocator.set_limit(150 * MIB).unwrap();
        assert_eq!(advised(70 * MIB), (true, false));
        // The device has less than that.
        assert_eq!(advised(120 * MIB), (false, false));
        // The device would have enough without others, but the limit leaves less.
        allocator.set_limit(220 * MIB).unwrap();
        assert_eq!(advised(150 * MIB), (false, false));
        free(&allocator, allocator.allocate_by_address(70 * MIB, &stream).unwrap()).unwrap();
        free(&allocator, kept).unwrap();
        free(&others, rest).unwrap();
    });
}

/// What a stream has free that captures stays with it: nobody can be made to wait for that stream.
#[test]
fn what_a_stream_that_captures_has_free_is_not_said_to_fit() {
    on(machine(256 * MIB), |_, context| {
        let [one, other] = [(); 2].map(|()| Stream::new(context).unwrap());
        let allocator = allocator(context, true);
        let kept = allocator.allocate_by_address(100 * MIB, &one).unwrap();
        let freed = allocator.allocate_by_address(100 * MIB, &other).unwrap();
        let capture = Capture::begin(&other, RELAXED);
        free(&allocator, freed).unwrap();
        let refused = report(&allocator, 110 * MIB, &one);
        assert!(refused.largest < 100 * MIB, "{refused}");
        assert!(!says_ask_elsewhere(&refused), "{refused}");
        drop(capture.end().unwrap());
        let block = allocator.allocate_by_address(110 * MIB, &one).unwrap();
        [block, kept].into_iter().for_each(|block| free(&allocator, block).unwrap());
    });
}

#[test]
fn a_stream_waits_rather_than_the_host() {
    on(machine(128 * MIB), |_, context| {
        let [one, user] = [(); 2].map(|()| Stream::new(context).unwrap());
        let allocator = allocator(context, true);
        let used = allocator.allocate_by_address(64 * MIB, &one).unwrap();
        let kept = allocator.allocate_by_address(24 * MIB, &one).unwrap();
        let gate = Gate::before(&user);
        allocator.record_stream(used, &user).unwrap();
        free(&allocator, used).unwrap();
        let block = allocator.allocate_by_address(64 * MIB, &one).unwrap();
        // It is held up on the device.
        let statistics = allocator.statistics();
        assert_eq!((statistics.num_alloc_retries, statistics.num_sync_all_streams), (1, 0));
        assert!(!one.is_idle().unwrap());
        gate.open();
        one.synchronize().unwrap();
        [block, kept].into_iter().for_each(|block| free(&allocator, block).unwrap());
    });
}

/// A small block needs a page at a multiple of its size, which no hole between large ones need have.
#[test]
fn a_hole_that_is_no_page_is_not_said_to_fit_a_small_block() {
    on(machine(64 * MIB), |_, context| {
        let stream = Stream::new(context).unwrap();
        let allocator = allocator(context, true);
        let mut blocks = Vec::new();
        while let Ok(block) = allocator.allocate_by_address(3 * MIB / 2, &stream) {
            blocks.push(block);
        }
        free(&allocator, blocks.swap_remove(blocks.len() / 2)).unwrap();
        let refused = report(&allocator, 1000, &stream);
        assert!(!says_ask_elsewhere(&refused), "{refused}");
        assert_eq!(refused.largest, 3 * MIB / 2, "{refused}");
        blocks.push(allocator.allocate_by_address(refused.largest, &stream).unwrap());
        blocks.into_iter().for_each(|block| free(&allocator, block).unwrap());
    });
}

#[test]
fn handles_that_are_too_large_for_the_gap_go_back() {
    on(machine(64 * MIB), |_, context| {
        let [one, other] = [(); 2].map(|()| Stream::new(context).unwrap());
        let allocator = allocator(context, true);
        let mut blocks = Vec::new();
        // Handles of 4 MiB, and then not one page more.
        while let Ok(block) = allocator.allocate_by_address(4 * MIB, &one) {
            blocks.push(block);
        }
        free(&allocator, blocks.pop().unwrap()).unwrap();
        one.synchronize().unwrap();
        let block = allocator.allocate_by_address(3 * MIB / 2, &other).unwrap();
        assert_eq!(allocator.statistics().num_sync_all_streams, 0);
        blocks.into_iter().chain([block]).for_each(|block| free(&allocator, block).unwrap());
    });
}

/// What another thread has freed is in use no more, though the heap was not told yet.
#[test]
fn what_another_thread_freed_serves_a_stream_without_a_step_of_the_ladder() {
    on(machine(64 * MIB), |sim, context| {
        let [one, other] = [(); 2].map(|()| Stream::new(context).unwrap());
        let allocator = allocator(context, true);
        let block = allocator.allocate_by_address(40 * MIB, &one).unwrap();
        thread::scope(|scope| scope.spawn(|| free(&allocator, block).unwrap()).join()).unwrap();
        let releases = sim.log().count("cuMemRelease");
        let block = allocator.allocate_by_address(40 * MIB, &other).unwrap();
        assert_eq!(
            (allocator.statistics().num_alloc_retries, sim.log().count("cuMemRelease")),
            (0, releases)
        );
        free(&allocator, block).unwrap();
    });
}

#[test]
fn without_moves_memory_goes_back_and_is_got_again() {
    on(machine(64 * MIB), |_, context| {
        let [one, other] = [(); 2].map(|()| Stream::new(context).unwrap());
        let allocator = allocator(context, false);
        let block = allocator.allocate_by_address(40 * MIB, &one).unwrap();
        free(&allocator, block).unwrap();
        one.synchronize().unwrap();
        let block = allocator.allocate_by_address(50 * MIB, &other).unwrap();
        free(&allocator, block).unwrap();
    });
}

/// What the driver does not take back stays, and the request does without.
#[test]
fn a_refused_release_ends_no_request() {
    for refused in ["cuMemUnmap", "cuMemRelease"] {
        on(machine(64 * MIB), |sim, context| {
            let [one, other] = [(); 2].map(|()| Stream::new(context).unwrap());
            let allocator = allocator(context, false);
            let block = allocator.allocate_by_address(40 * MIB, &one).unwrap();
            free(&allocator, block).unwrap();
            one.synchronize().unwrap();
            sim.fail_call(refused, 1, CUresult::CUDA_ERROR_UNKNOWN);
            let block = allocator.allocate_by_address(50 * MIB, &other).unwrap();
            assert_eq!(sim.struck().len(), 1, "{refused}");
            free(&allocator, block).unwrap();
        });
    }
}

#[test]
fn a_refused_release_keeps_no_other_stream_s_memory() {
    on(machine(256 * MIB), |sim, context| {
        let allocator = allocator(context, false);
        let streams = [(); 2].map(|()| Stream::new(context).unwrap());
        let blocks =
            streams.each_ref().map(|stream| allocator.allocate_by_address(40 * MIB, stream).unwrap());
        blocks.into_iter().for_each(|block| free(&allocator, block).unwrap());
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        let before = allocator.reserved_bytes();
        sim.fail_call("cuMemUnmap", 1, CUresult::CUDA_ERROR_UNKNOWN);
        assert!(allocator.empty_cache().is_err());
        assert_eq!(allocator.reserved_bytes(), before / 2);
        assert_eq!(allocator.empty_cache().unwrap(), before / 2);
    });
}

/// Nor does a handle that is mapped nowhere any more and is refused each time.
#[test]
fn a_handle_that_is_refused_again_keeps_no_other_stream_s_memory() {
    on(machine(256 * MIB), |sim, context| {
        let allocator = allocator(context, false);
        let streams = [(); 2].map(|()| Stream::new(context).unwrap());
        let blocks =
            streams.each_ref().map(|stream| allocator.allocate_by_address(40 * MIB, stream).unwrap());
        blocks.into_iter().for_each(|block| free(&allocator, block).unwrap());
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        let before = allocator.reserved_bytes();
        // The first stream's handle, and the same one once more when it is the second stream's turn.
        (0..2).for_each(|_| sim.fail_call("cuMemRelease", 1, CUresult::CUDA_ERROR_UNKNOWN));
        assert!(allocator.empty_cache().is_err());
        assert_eq!((sim.struck().len(), allocator.reserved_bytes()), (2, before / 2));
        assert_eq!(allocator.empty_cache().unwrap(), before / 2);
    });
}

/// Whoever hears of a lack of memory tries again with less, on a device that answers nothing any more.
#[test]
fn a_lost_device_is_not_told_of_as_out_of_memory() {
    on(machine(64 * MIB), |sim, context| {
        let stream = Stream::new(context).unwrap();
        let allocator = allocator(context, true);
        let kept = allocator.allocate_by_address(50 * MIB, &stream).unwrap();
        let lost = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
        let calls = ["cuStreamIsCapturing", "cuEventRecord", "cuEventQuery", "cuMemCreate", "cuMemGetInfo"];
        for call in calls {
            (1..=100).for_each(|nth| sim.fail_call(call, nth, lost));
        }
        let refused = allocator.allocate_by_address(30 * MIB, &stream).unwrap_err();
        sim.clear_faults();
        assert_eq!(refused.driver_error().map(DriverError::code), Some(lost), "{refused}");
        free(&allocator, kept).unwrap();
    });
}

#[test]
fn the_host_waits_last_and_is_counted() {
    on(machine(64 * MIB), |sim, context| {
        let [one, other] = [(); 2].map(|()| Stream::new(context).unwrap());
        let allocator = allocator(context, false);
        let block = allocator.allocate_by_address(40 * MIB, &one).unwrap();
        let gate = Gate::before(&one);
        free(&allocator, block).unwrap();
        // Opened only when the trim, which comes before the wait, found that the device is not done.
        let queried = || sim.log().count("cuEventQuery");
        let before = queried();
        let block = thread::scope(|scope| {
            scope.spawn(|| {
                while queried() == before {
                    thread::yield_now();
                }
                gate.open();
            });
            allocator.allocate_by_address(50 * MIB, &other).unwrap()
        });
        assert!(allocator.statistics().num_sync_all_streams <= 1);
        assert_eq!(allocator.statistics().num_ooms, 0);
        free(&allocator, block).unwrap();
    });
}

/// A run up the whole ladder, with what it has in `blocks` when it ends early.
pub(crate) fn climb(
    allocator: &CachingAllocator,
    streams: &[Stream; 3],
    blocks: &RefCell<Vec<u64>>,
) -> Result<()> {
    let [one, other, user] = streams;
    let allocate = |bytes: usize, stream: &Stream| -> Result<u64> {
        let address = allocator.allocate_by_address(bytes, stream)?;
        blocks.borrow_mut().push(address);
        Ok(address)
    };
    let give = |address: u64| {
        blocks.borrow_mut().retain(|block| *block != address);
        free(allocator, address)
    };
    let used = allocate(20 * MIB, one)?;
    let small = allocate(3000, one)?;
    let cached = allocate(16 * MIB, other)?;
    let pinned = allocator.pin(small, 3000, Pin::Graph)?;
    allocator.record_stream(used, user)?;
    give(used)?;
    give(cached)?;
    // The other's free memory and what the user may still use.
    let large = allocate(48 * MIB, one)?;
    assert!(matches!(allocate(2 * GIB, one), Err(Error::DeviceOutOfMemory(_))));
    give(large)?;
    give(small)?;
    drop(pinned);
    // Pages of 2 MiB out of larger handles.
    for _ in 0..5 {
        allocate(3 * MIB / 2, user)?;
    }
    // What only a reclaimer has.
    let spare = Mutex::new(Some(allocate(30 * MIB, other)?));
    let reclaimer = {
        let allocator = allocator.clone();
        let reclaim =
            move |_| spare.lock().unwrap().take().is_some_and(|block| free(&allocator, block).is_ok());
        Arc::new(reclaim)
    };
    let freed = Arc::new(Mutex::new(false));
    let id = {
        let (reclaimer, freed) = (Arc::clone(&reclaimer), Arc::clone(&freed));
        allocator.attach_oom_reclaimer(move |bytes| {
            let done = reclaimer(bytes);
            *freed.lock().unwrap() |= done;
            done
        })
    };
    let last = allocate(40 * MIB, one);
    assert!(allocator.detach(id));
    if *freed.lock().unwrap() {
        // Before the last one, or where that failed at the end.
        let at = blocks.borrow().len() - if last.is_ok() { 2 } else { 1 };
        blocks.borrow_mut().remove(at);
    }
    last.map(|_| ())
}

/// Every byte is there after whatever happened: nothing is in use, all of it goes back, and all of it can be had.
pub(crate) fn expect_whole(context: &Context, allocator: &CachingAllocator, stream: &Stream) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut reserved = usize::MAX;
    for _ in 0..2 {
        context.synchronize().unwrap();
        allocator.empty_cache().unwrap();
        reserved = allocator.reserved_bytes();
    }
    let statistics = allocator.statistics();
    if reserved != 0 {
        complaints.push(format!("{reserved} bytes are held"));
    }
    if (statistics.active_bytes.all.current, statistics.allocation.all.current) != (0, 0) {
        complaints.push(format!("{} bytes are active", statistics.active_bytes.all.current));
    }
    match allocator.allocate_by_address(56 * MIB, stream) {
        Ok(block) => free(allocator, block).unwrap(),
        Err(error) => complaints.push(error.to_string()),
    }
    complaints
}

/// The run with a call failing: the function that was struck, if there are so many calls, and what is wrong afterwards.
fn climb_with_fault(moves: bool, nth: u64, code: CUresult) -> (Option<&'static str>, Vec<String>) {
    let sim = machine(64 * MIB).no_data().build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let streams = [(); 3].map(|()| Stream::new(&context).unwrap());
    let allocator = allocator(&context, moves);
    let blocks = RefCell::default();
    sim.fail_nth_call_overall(nth, code);
    let outcome = climb(&allocator, &streams, &blocks);
    let struck = sim.struck().first().map(|struck| struck.function);
    sim.clear_faults();
    let mut complaints = Vec::new();
    match outcome {
        Ok(()) => {}
        Err(Error::Core(cuda_mem_core::Error::Driver(error))) if struck.is_some() && error.code() == code => {
        }
        // Refused on the last step, too.
        Err(Error::DeviceOutOfMemory(_))
            if struck.is_some() && code == CUresult::CUDA_ERROR_OUT_OF_MEMORY => {}
        Err(error) => complaints.push(format!("{error:?}")),
    }
    blocks.take().into_iter().for_each(|block| free(&allocator, block).unwrap());
    complaints.extend(expect_whole(&context, &allocator, &streams[0]));
    drop((allocator, streams, context));
    complaints.extend(sim.misuse().iter().map(|misuse| format!("misused: {misuse}")));
    complaints.extend(sim.leaks().iter().map(|leak| format!("leaked: {leak}")));
    let complaints = complaints.iter().map(|what| format!("call {nth}, {struck:?}, {code:?}: {what}"));
    (struck, complaints.collect())
}

fn nothing_is_lost(moves: bool, expected: &[&str]) {
    // A call meets one code; the one that the allocator explains is met by each function.
    let codes = [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_UNKNOWN];
    let (mut functions, mut failures) = (BTreeSet::new(), Vec::new());
    for nth in 1.. {
        let (struck, complaints) = climb_with_fault(moves, nth, codes[nth as usize % codes.len()]);
        failures.extend(complaints);
        let Some(struck) = struck else { break };
        functions.insert(struck);
    }
    assert!(failures.is_empty(), "{} complaints:\n{}", failures.len(), failures.join("\n"));
    let missed: Vec<_> = expected.iter().filter(|function| !functions.contains(*function)).collect();
    assert!(missed.is_empty(), "not struck: {missed:?}");
}

#[test]
fn nothing_is_lost_wherever_a_call_fails() {
    let ladder = [
        "cuMemAddressReserve",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemUnmap",
        "cuMemRelease",
        "cuEventRecord",
        "cuEventQuery",
        "cuMemGetInfo",
    ];
    nothing_is_lost(true, &ladder);
}

#[test]
fn nothing_is_lost_wherever_a_call_fails_without_moves() {
    nothing_is_lost(false, &["cuMemUnmap", "cuMemRelease"]);
}

#[test]
fn a_run_up_the_ladder_leaves_nothing() {
    let (struck, complaints) = climb_with_fault(true, u64::MAX / 2, CUresult::CUDA_ERROR_UNKNOWN);
    assert!(struck.is_none() && complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn a_stream_waits_on_the_device_where_there_is_no_more_memory() {
    on(machine(GIB), |sim, context| {
        let [one, user] = [(); 2].map(|()| Stream::new(context).unwrap());
        let allocator = allocator(context, true);
        let kept = allocator.allocate_by_address(940 * MIB, &one).unwrap();
        let used = allocator.allocate_by_address(64 * MIB, &one).unwrap();
        let held = allocator.reserved_bytes();
        // Neither stream has come to the free.
        let gates = [Gate::before(&one), Gate::before(&user)];
        allocator.record_stream(used, &user).unwrap();
        free(&allocator, used).unwrap();
        let came_to_free = Event::new(context).unwrap();
        one.record(&came_to_free).unwrap();
        let later = Gate::before(&user);
        let next = allocator.allocate_by_address(60 * MIB, &one).unwrap();
        // It waits for what the other stream does with the block, on the device, and for nothing that came later.
        let [own, others] = gates;
        own.open();
        came_to_free.synchronize().unwrap();
        let is_held_up = !one.is_idle().unwrap();
        others.open();
        one.synchronize().unwrap();
        later.open();
        // Here, because a test that fails while a gate is shut hangs.
        assert_eq!((next, allocator.reserved_bytes()), (used, held));
        assert_eq!((is_held_up, sim.log().count("cuStreamWaitEvent")), (true, 1));
        [next, kept].into_iter().for_each(|block| free(&allocator, block).unwrap());
    });
}

/// Streams work beside each other as long as there is more memory.
#[test]
fn no_stream_is_held_up_while_there_is_more_memory() {
    on(machine(GIB), |sim, context| {
        let [one, two, user] = [(); 3].map(|()| Stream::new(context).unwrap());
        let allocator = allocator(context, true);
        let used = allocator.allocate_by_address(64 * MIB, &one).unwrap();
        let gate = Gate::before(&one);
        gate.hold(&user);
        allocator.record_stream(used, &user).unwrap();
        free(&allocator, used).unwrap();
        let waits = || sim.log().count("cuStreamWaitEvent");
        let before = waits();
        let next = allocator.allocate_by_address(60 * MIB, &two).unwrap();
        let own = allocator.allocate_by_address(60 * MIB, &one).unwrap();
        let after = waits();
        gate.open();
        assert_eq!(after, before);
        assert_ne!(own, used);
        [next, own].into_iter().for_each(|block| free(&allocator, block).unwrap());
    });
}

/// Asking the driver what is free takes as long as making memory: each allocation asks once, however far up the ladder it comes.
#[test]
fn an_allocation_that_needs_memory_asks_once_what_the_device_has_left() {
    on(machine(GIB), |sim, context| {
        let [one, other] = [(); 2].map(|()| Stream::new(context).unwrap());
        let allocator = allocator(context, true);
        let asked = || sim.log().count("cuMemGetInfo");
        let grown = || sim.log().count("cuMemCreate") + sim.log().count("cuMemMap");
        let mut live = Vec::new();
        let (mut growths, mut most, mut most_refused) = (0, 0, 0);
        // More and more, and from half on less again: at the brim handles are moved, waited for and given back.
        for step in 0..400_usize {
            let stream = if step % 3 == 0 { &other } else { &one };
            let (before, held) = (asked(), grown());
            match allocator.allocate_by_address((1 + step * 7 % 23) * MIB, stream) {
                Ok(block) => {
                    live.push(block);
                    most = most.max(asked() - before);
                    growths += usize::from(grown() > held);
                }
                Err(Error::DeviceOutOfMemory(_)) => {
                    most_refused = most_refused.max(asked() - before);
                    let half = live.len() / 2;
                    live.drain(half..).for_each(|block| free(&allocator, block).unwrap());
                }
                Err(error) => panic!("{error}"),
            }
            if step % 5 == 0 && !live.is_empty() {
                free(&allocator, live.swap_remove(step % live.len())).unwrap();
            }
        }
        assert!(growths > 50, "{growths} growths");
        assert_eq!(most, 1, "questions in one allocation");
        // The error says what is free then.
        assert_eq!(most_refused, 2, "questions in one that is refused");
        live.into_iter().for_each(|block| free(&allocator, block).unwrap());
    });
}

#[test]
fn a_stream_is_not_held_up_by_one_that_is_slower() {
    on(machine(GIB), |_, context| {
        let [one, user] = [(); 2].map(|()| Stream::new(context).unwrap());
        let allocator = allocator(context, true);
        let used = allocator.allocate_by_address(64 * MIB, &one).unwrap();
        let gate = Gate::before(&user);
        allocator.record_stream(used, &user).unwrap();
        free(&allocator, used).unwrap();
        // The block's own stream has come past the free: that the other has not is its own doing.
        one.synchronize().unwrap();
        let next = allocator.allocate_by_address(60 * MIB, &one).unwrap();
        assert_ne!(next, used);
        one.synchronize().unwrap();
        gate.open();
        free(&allocator, next).unwrap();
    });
}

/// Of what sleeps nothing is held, so it is no part of that.
#[test]
fn what_sleeps_is_no_part_of_what_is_held() {
    on(machine(GIB), |_, context| {
        let (stream, allocator) = (Stream::new(context).unwrap(), allocator(context, true));
        let tag = allocator.tag("weights").unwrap();
        let scope = tag.enter().unwrap();
        let asleep = [(); 2].map(|()| allocator.allocate_by_address(300 * MIB, &stream).unwrap());
        let hole = allocator.allocate_by_address(MIB / 2, &stream).unwrap();
        drop(scope);
        free(&allocator, hole).unwrap();
        // SAFETY: nothing uses the blocks before they wake.
        unsafe { Tag::sleep(&[&tag], Backup::Discard) }.unwrap();
        let awake = allocator.allocate_by_address(100 * MIB, &stream).unwrap();
        let refused = report(&allocator, GIB, &stream);
        assert_eq!(refused.live, 100 * MIB, "{refused}");
        assert_eq!(refused.reserved, refused.live + refused.pending + refused.cached_bytes(), "{refused}");
        free(&allocator, awake).unwrap();
        allocator.empty_cache().unwrap();
        Tag::wake(&[&tag], Restore::Nothing).unwrap();
        asleep.into_iter().for_each(|block| free(&allocator, block).unwrap());
    });
}

/// Memory of a tag is the device's as any other.
#[test]
fn the_largest_block_in_a_tag_is_said_and_had() {
    on(machine(GIB), |_, context| {
        let (stream, allocator) = (Stream::new(context).unwrap(), allocator(context, true));
        allocator.set_limit(100 * MIB).unwrap();
        let tag = allocator.tag("weights").unwrap();
        for _ in 0..2 {
            let scope = tag.enter().unwrap();
            let refused = report(&allocator, 200 * MIB, &stream);
            assert_eq!(refused.largest, 100 * MIB, "{refused}");
            report(&allocator, refused.largest + MIB, &stream);
            let block = allocator.allocate_by_address(refused.largest, &stream).unwrap();
            drop(scope);
            free(&allocator, block).unwrap();
            allocator.empty_cache().unwrap();
        }
    });
}

/// What another thread freed is counted by whoever passes a peak next, in a private pool too.
#[test]
fn frees_of_the_default_pool_are_none_of_private_pools() {
    on(machine(4 * GIB).no_data(), |_, context| {
        let (stream, allocator) = (Stream::new(context).unwrap(), allocator(context, true));
        let block = allocator.allocate_by_address(GIB, &stream).unwrap();
        thread::scope(|scope| scope.spawn(|| free(&allocator, block).unwrap()).join()).unwrap();
        let tag = allocator.tag("weights").unwrap();
        let scope = tag.enter().unwrap();
        let private = allocator.allocate_by_address(3 * GIB / 2, &stream).unwrap();
        drop(scope);
        let rest = allocator.allocate_by_address(2 * GIB, &stream).unwrap();
        [private, rest].into_iter().for_each(|block| free(&allocator, block).unwrap());
    });
}

/// A process may have only so many addresses in a row, however much memory there is.
#[test]
fn without_addresses_fewer_are_enough_and_with_none_it_is_out_of_memory() {
    on(machine(GIB).no_data(), |sim, context| {
        let fail_one = || sim.fail_call("cuMemAddressReserve", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        for size in [MIB / 2, 8 * MIB] {
            let stream = Stream::new(context).unwrap();
            let fewer = allocator(context, true);
            fail_one();
            let block = fewer.allocate_by_address(size, &stream).unwrap();
            assert_eq!((sim.struck().len(), fewer.statistics().num_alloc_retries), (1, 0));
            free(&fewer, block).unwrap();
            let none = allocator(context, true);
            (0..100).for_each(|_| fail_one());
            let report = report(&none, size, &stream);
            assert_eq!(report.reserved, 0);
            sim.clear_faults();
            let block = none.allocate_by_address(size, &stream).unwrap();
            free(&none, block).unwrap();
        }
    });
}

/// A machine whose device maps no memory.
fn machine_without_mapping(bytes: usize) -> Builder {
    let maps = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    machine(bytes).attribute(maps, 0)
}

/// What has nothing free that serves the request needs a whole segment there.
#[test]
fn what_the_report_says_of_segments_in_the_default_pool_holds() {
    for maps in [true, false] {
        let machine = if maps { machine(GIB) } else { machine_without_mapping(GIB) };
        on(machine, |_, context| {
            let [one, other] = [(); 2].map(|()| Stream::new(context).unwrap());
            let allocator = allocator(context, true);
            allocator.set_expandable_segments(false).unwrap();
            allocator.set_limit(28 * MIB).unwrap();
            let kept = allocator.allocate_by_address(3 * MIB, &one).unwrap();
            let refused = report(&allocator, 3 * MIB, &other);
            assert_eq!((refused.largest, says_ask_elsewhere(&refused)), (MIB, false), "{refused}");
            // 12 MiB more make a segment, which the limit does not let be.
            assert_eq!(refused.advice.last(), Some(&Advice::FreeMore { bytes: 12 * MIB }), "{refused}");
            let refused = report(&allocator, 15 * MIB, &other);
            assert_eq!(refused.advice.last(), Some(&Advice::FreeMore { bytes: 14 * MIB }), "{refused}");
            let block = allocator.allocate_by_address(refused.largest, &other).unwrap();
            [block, kept].into_iter().for_each(|block| free(&allocator, block).unwrap());
        });
    }
}

/// They serve nobody: the default pool is not one of segments any more.
#[test]
fn segments_of_before_are_not_said_to_fit_once_segments_expand_again() {
    on(machine(GIB), |_, context| {
        let (stream, allocator) = (Stream::new(context).unwrap(), allocator(context, true));
        allocator.set_limit(24 * MIB).unwrap();
        allocator.set_expandable_segments(false).unwrap();
        let kept = allocator.allocate_by_address(3 * MIB / 2, &stream).unwrap();
        allocator.set_expandable_segments(true).unwrap();
        let refused = report(&allocator, 20 * MIB, &stream);
        assert_eq!(refused.largest, 4 * MIB, "{refused}");
        let block = allocator.allocate_by_address(refused.largest, &stream).unwrap();
        [block, kept].into_iter().for_each(|block| free(&allocator, block).unwrap());
    });
}

/// Large blocks and slabs are larger than the one, and blocks up to 1 MiB come from slabs alone.
#[test]
fn what_is_free_beside_large_blocks_and_in_slabs_is_said_to_serve_what_it_does() {
    on(machine(GIB), |_, context| {
        let (stream, allocator) = (Stream::new(context).unwrap(), allocator(context, true));
        let longest = |refused: &OutOfMemoryReport| refused.cached.iter().map(|one| one.largest).max();
        allocator.set_limit(4 * MIB).unwrap();
        let kept = allocator.allocate_by_address(3 * MIB, &stream).unwrap();
        for (bytes, missing) in [(2 * MIB, 2 * MIB), (MIB, 2 * MIB), (1000, 2 * MIB)] {
            let refused = report(&allocator, bytes, &stream);
            assert_eq!((refused.largest, longest(&refused)), (0, Some(MIB)), "{refused}");
            assert_eq!(refused.advice.last(), Some(&Advice::FreeMore { bytes: missing }), "{refused}");
        }
        free(&allocator, kept).unwrap();
        for (bytes, largest) in [(1000, 16 << 10), (20_000, MIB)] {
            allocator.empty_cache().unwrap();
            allocator.set_limit(2 * MIB).unwrap();
            let kept = allocator.allocate_by_address(bytes, &stream).unwrap();
            let refused = report(&allocator, 2 * MIB, &stream);
            let rest = 2 * MIB - bytes.next_multiple_of(512);
            assert_eq!((refused.largest, longest(&refused)), (largest, Some(rest)), "{refused}");
            assert_eq!(refused.advice.last(), Some(&Advice::FreeMore { bytes: 2 * MIB }), "{refused}");
            let block = allocator.allocate_by_address(largest, &stream).unwrap();
            [block, kept].into_iter().for_each(|block| free(&allocator, block).unwrap());
        }
    });
}

/// The handle went back, but as long as a mapping is there the device has no more for it.
#[test]
fn memory_whose_unmapping_was_refused_goes_back_with_the_cache() {
    on(machine(GIB), |sim, context| {
        let (stream, allocator) = (Stream::new(context).unwrap(), allocator(context, true));
        let free_before = context.memory_info().unwrap().free;
        for call in ["cuMemSetAccess", "cuMemUnmap", "cuMemUnmap"] {
            sim.fail_call(call, 1, CUresult::CUDA_ERROR_UNKNOWN);
        }
        allocator.allocate_by_address(3 * MIB, &stream).unwrap_err();
        assert_eq!((sim.struck().len(), context.memory_info().unwrap().free), (3, free_before - 4 * MIB));
        allocator.empty_cache().unwrap();
        assert_eq!((allocator.reserved_bytes(), context.memory_info().unwrap().free), (0, free_before));
    });
}

/// The device is asked once, for both.
#[test]
fn what_the_history_says_is_free_is_what_the_report_says() {
    on(machine(64 * MIB), |sim, context| {
        let (stream, allocator) = (Stream::new(context).unwrap(), allocator(context, true));
        let kept = allocator.allocate_by_address(30 * MIB, &stream).unwrap();
        allocator.history().start(&HistoryOptions::default());
        let asked = sim.log().count("cuMemGetInfo");
        let refused = report(&allocator, 60 * MIB, &stream);
        assert_eq!(sim.log().count("cuMemGetInfo") - asked, 1);
        let entries = allocator.history().entries();
        let oom = entries.iter().find(|entry| entry.action == Action::Oom).unwrap();
        assert_eq!(Some(oom.address as usize), refused.free);
        free(&allocator, kept).unwrap();
    });
}

#[derive(Debug, Clone)]
enum Step {
    Allocate(usize, usize),
    Free(Index),
    Expand(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let sizes = prop_oneof![
        1..=16_usize << 10,
        (16 << 10)..=MIB,
        MIB..=3 * MIB,
        MIB..=12 * MIB,
        prop::sample::select(vec![16 << 10, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 40 * MIB]),
    ];
    prop_oneof![
        12 => (0..2_usize, sizes).prop_map(|(stream, bytes)| Step::Allocate(stream, bytes)),
        6 => any::<Index>().prop_map(Step::Free),
        1 => any::<bool>().prop_map(Step::Expand),
    ]
}

/// A request of what a report says is the largest block is served, and one above is not. New handles may begin in the midst of what is free,
/// and end in the midst: of these two parts, each less than a handle, the report says nothing.
fn expect_true(allocator: &CachingAllocator, stream: &Stream, refused: &OutOfMemoryReport) {
    assert!(!says_ask_elsewhere(refused), "nobody else allocates: {refused}");
    for cached in &refused.cached {
        assert!((1..=cached.bytes).contains(&cached.largest), "{refused}");
    }
    let above = allocator.allocate_by_address(refused.largest + 4 * MIB, stream);
    assert!(matches!(above, Err(Error::DeviceOutOfMemory(_))), "{above:?}: {refused}");
    let less = refused.advice.iter().find_map(|advice| match advice {
        Advice::FreeMore { bytes } => refused.requested.checked_sub(*bytes),
        _ => None,
    });
    for bytes in [refused.largest].into_iter().chain(less).filter(|bytes| *bytes > 0) {
        match allocator.allocate_by_address(bytes, stream) {
            Ok(block) => free(allocator, block).unwrap(),
            Err(error) => panic!("{bytes} of: {refused}\n{error}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_reports_say_is_the_largest_block_is_had(
        (maps, moves, expands) in (prop::bool::weighted(0.8), any::<bool>(), any::<bool>()),
        limit in 8..120_usize,
        steps in vec(step(), 10..120),
    ) {
        let machine = if maps { machine(GIB) } else { machine_without_mapping(GIB) };
        on(machine.no_data(), |_, context| {
            let streams = [(); 2].map(|()| Stream::new(context).unwrap());
            let allocator = allocator(context, moves);
            allocator.set_limit(limit * MIB / 2).unwrap();
            allocator.set_expandable_segments(expands).unwrap();
            let mut live = Vec::new();
            for step in steps {
                match step {
                    Step::Allocate(stream, bytes) => {
                        match allocator.allocate_by_address(bytes, &streams[stream]) {
                            Ok(block) => live.push(block),
                            Err(Error::DeviceOutOfMemory(refused)) => {
                                expect_true(&allocator, &streams[stream], &refused);
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                    Step::Free(_) if live.is_empty() => {}
                    Step::Free(at) => free(&allocator, live.swap_remove(at.index(live.len()))).unwrap(),
                    Step::Expand(expands) => allocator.set_expandable_segments(expands).unwrap(),
                }
            }
            live.into_iter().for_each(|block| free(&allocator, block).unwrap());
        });
    }
}
