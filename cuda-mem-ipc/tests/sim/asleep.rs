//! Groups that sleep and wake, of ranks that are threads here, with simulators of their own.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, DeviceBuffer, Driver, Stream};
use cuda_mem_ipc::symmetric::{Error, Group, GroupOptions, Result};
use cuda_mem_sim::Sim;

use crate::own_sim::OwnSim;

/// Far more than anything else that a test has.
const LARGE: usize = 8 << 20;

/// Long enough to be no accident, short enough to wait for.
const SOON: Duration = Duration::from_millis(100);

/// Small segments: a test fills more than one.
fn options() -> GroupOptions {
    let timeout = Duration::from_secs(60);
    GroupOptions { timeout, segment_bytes: 4 << 20, segment_allocations: 16, ..GroupOptions::default() }
}

fn sleep(group: &Group) -> Result<usize> {
    // SAFETY: these tests have waited for all that uses the group's memory, and queue nothing before they wake it.
    unsafe { group.sleep() }
}

/// What each rank has at each place, in a round.
fn part(rank: usize, round: usize) -> u8 {
    (16 * round + 3 * rank + 1) as u8
}

/// Who broke the group, and whether it died, left or was too late; the other ranks say the same.
fn culprit(error: &Error) -> (usize, String) {
    match error {
        Error::Broken { rank, why, .. } => (*rank, format!("{why:?}")),
        error => panic!("not broken: {error}"),
    }
}

/// Two ranks, each with a simulator of its own, of one account.
#[test]
fn memory_is_not_free_while_a_rank_has_it_mapped() {
    const LATE: Duration = Duration::from_secs(3);
    let one = OwnSim::of(Sim::builder().record(true));
    let two = OwnSim::of(Sim::builder().record(true).account(one.account()));
    let contexts = [&one, &two]
        .map(|sim| Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap());
    let free = || contexts[0].memory_info().unwrap().free;
    let directory = std::env::temp_dir().join(format!("cuda-mem-mapped-{}", std::process::id()));
    let (both, nothing) = (Barrier::new(3), free());
    // Nobody panics between two waits for the others.
    let (awake, mapped, unmaps, asleep) = thread::scope(|scope| {
        let ranks = [0, 1].map(|number| {
            let (both, directory, context) = (&both, &directory, &contexts[number]);
            scope.spawn(move || {
                let group = Group::join(context, "ranks", number, 2, directory, &options());
                let memory = group.as_ref().map(|group| group.alloc::<u8>(LARGE));
                let there = memory.as_ref().map(|memory| memory.as_ref().map(|it| it.of(1 - number).is_ok()));
                both.wait();
                both.wait();
                let slept = group.as_ref().map(sleep);
                both.wait();
                both.wait();
                assert!(matches!((there, slept), (Ok(Ok(true)), Ok(Ok(_)))));
            })
        });
        both.wait();
        let (awake, before) = (free(), [&one, &two].map(|sim| sim.log().count("cuMemUnmap")));
        two.delay("cuMemUnmap", LATE);
        both.wait();
        // Its own memory, and that of the other; and then what it does besides.
        let start = Instant::now();
        while one.log().count("cuMemUnmap") < before[0] + 2 && start.elapsed() < LATE {
            thread::yield_now();
        }
        thread::sleep(SOON);
        let mapped = free();
        let unmaps =
            [(&one, before[0]), (&two, before[1])].map(|(sim, had)| sim.log().count("cuMemUnmap") - had);
        // Its second one may be as fast as any.
        two.clear_faults();
        both.wait();
        let asleep = free();
        both.wait();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
        (awake, mapped, unmaps, asleep)
    });
    assert!(awake + 2 * LARGE <= nothing);
    assert_eq!(unmaps, [2, 0], "the first rank has unmapped all, and the other nothing");
    assert!(mapped < awake + LARGE, "what the other rank has mapped is there");
    assert!(asleep >= awake + 2 * LARGE, "all have unmapped all");
    let _ = std::fs::remove_dir_all(&directory);
}

/// Two ranks, here threads over one simulator, of which the `nth` call from the sleep on fails. False if there were fewer. Counts those that
/// are asleep and awake after no further try, after one, and not at all.
fn survives(nth: u64, fates: &mut [usize; 3]) -> bool {
    const SIZE: usize = 10_000;
    let sim = OwnSim::of(Sim::builder());
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let crew = std::env::temp_dir().join(format!("cuda-mem-asleep-{}", std::process::id()));
    let (both, worked) = (Barrier::new(2), AtomicUsize::new(0));
    let struck = thread::scope(|scope| {
        let rank = |number| {
            let (context, sim, both, worked): (&Context, &Sim, _, _) = (&context, &sim, &both, &worked);
            let directory = &crew;
            scope.spawn(move || {
                let options = GroupOptions { segment_bytes: 2 << 20, ..options() };
                let group = Group::join(context, "ranks", number, 2, directory, &options).unwrap();
                let stream = Stream::new(context).unwrap();
                let [one, two] = [(); 2].map(|()| group.alloc::<u8>(2 << 20).unwrap());
                let memories = [&one, &two];
                let addresses = || memories.map(|memory| memory.memory().buffer_ptrs().to_vec());
                let fill = |round| {
                    for memory in memories {
                        let (own, other) = (memory.of(number).unwrap(), memory.of(1 - number).unwrap());
                        let here = own.as_range::<u8>().unwrap().range(..SIZE).unwrap();
                        here.copy_from_slice(&stream, &[part(number, round); SIZE]).unwrap();
                        group.barrier(&stream).unwrap();
                        let seen = DeviceBuffer::<u8>::zeroed(&stream, SIZE).unwrap();
                        let there = other.as_range::<u8>().unwrap().range(..SIZE).unwrap();
                        seen.whole().copy_from(&stream, &there).unwrap();
                        assert_eq!(seen.to_vec(&stream).unwrap(), [part(1 - number, round); SIZE]);
                        group.barrier(&stream).unwrap();
                    }
                    stream.synchronize().unwrap();
                };
                fill(1);
                let before = addresses();
                // A failure of a first step changes nothing, and one behind it breaks the group: for both.
                let change = |call: &dyn Fn() -> Result<()>| {
                    both.wait();
                    let done = call();
                    worked.fetch_add(usize::from(done.is_ok()), Ordering::SeqCst);
                    both.wait();
                    group.check()?;
                    let count = worked.load(Ordering::SeqCst);
                    both.wait();
                    worked.store(0, Ordering::SeqCst);
                    if done.is_ok() {
                        assert_eq!(count, 2);
                        return Ok(0);
                    }
                    let is_named = matches!(done, Err(Error::Core(_) | Error::FailedElsewhere { .. }));
                    assert!(is_named && count == 0, "{done:?}, {count}");
                    both.wait();
                    call().unwrap();
                    Ok(1)
                };
                if both.wait().is_leader() {
                    sim.fail_nth_call_overall(nth, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
                }
                let slept = change(&|| sleep(&group).map(drop));
                let woken = slept.and_then(|first| Ok(first + change(&|| group.wake())?));
                both.wait();
                let struck = !sim.struck().is_empty();
                both.wait();
                sim.clear_faults();
                both.wait();
                if woken.is_ok() {
                    assert_eq!(addresses(), before);
                    fill(2);
                }
                (struck, woken.map_err(|error| culprit(&error)))
            })
        };
        let [one, two] = [0, 1].map(rank).map(|rank| rank.join().unwrap());
        assert_eq!(one, two, "call {nth}");
        fates[one.1.unwrap_or(2)] += 1;
        one.0
    });
    assert_eq!(context.driver().release_failures(), 0, "call {nth}");
    let misuse: Vec<_> = sim.misuse().iter().map(ToString::to_string).collect();
    assert!(misuse.is_empty(), "call {nth}: {misuse:#?}");
    let _ = std::fs::remove_dir_all(&crew);
    struck
}

#[test]
fn each_call_of_the_driver_may_fail() {
    let mut fates = [0; 3];
    let count = (1..).take_while(|nth| survives(*nth, &mut fates)).count();
    println!("{count} calls failed: {fates:?}");
    assert!(count > 40 && fates.iter().all(|fate| *fate > 0), "{count}, {fates:?}");
}

/// Its signal has gone to the driver, which takes a while, when the other one goes.
#[test]
fn a_rank_that_leaves_during_a_barrier_is_at_fault_for_it() {
    const LATE: Duration = Duration::from_secs(1);
    let sim = OwnSim::of(Sim::builder());
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let directory = std::env::temp_dir().join(format!("cuda-mem-leaves-{}", std::process::id()));
    let join = |rank| {
        let group = Group::join(&context, "ranks", rank, 2, &directory, &options()).unwrap();
        let stream = Stream::new(&context).unwrap();
        group.barrier(&stream).unwrap();
        (group, stream)
    };
    let ((stays, stream), leaves) = thread::scope(|scope| {
        let other = scope.spawn(|| join(1));
        (join(0), other.join().unwrap())
    });
    context.synchronize().unwrap();
    sim.delay("cuStreamWriteValue64", LATE);
    let refused = thread::scope(|scope| {
        let barrier = scope.spawn(|| stays.barrier(&stream));
        thread::sleep(SOON);
        drop(leaves);
        barrier.join().unwrap()
    });
    sim.clear_faults();
    assert!(matches!(refused, Err(Error::Left { rank: 1 })), "{refused:?}");
    assert_eq!(culprit(&stays.check().unwrap_err()), (1, "Left".to_owned()));
    let _ = std::fs::remove_dir_all(&directory);
}
