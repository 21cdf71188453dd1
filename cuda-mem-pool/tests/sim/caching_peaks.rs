//! Peaks where other threads free than those that allocate.

use std::sync::mpsc;
use std::thread;

use cuda_mem_core::Stream;
use cuda_mem_pool::caching::CachingAllocator;
use cuda_mem_pool::history::HistoryOptions;
use cuda_mem_pool::segments::Filter;
use cuda_mem_pool::snapshot::Action;
use cuda_mem_pool::{Error, MempoolId};
use cuda_mem_sim::Sim;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::blocks::{allocator, free};
use crate::rig::on;

const MIB: usize = 1 << 20;

fn elsewhere<R: Send>(body: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| scope.spawn(body).join()).unwrap()
}

/// The most active bytes since the peaks began anew.
fn peak(allocator: &CachingAllocator) -> u64 {
    allocator.statistics().active_bytes.all.peak
}

#[test]
fn what_was_left_is_not_there_any_more_when_another_stream_raises_the_peak() {
    on(Sim::builder(), |_, context| {
        let allocator = allocator(context);
        let streams = [(); 2].map(|()| Stream::new(context).unwrap());
        // Each has memory of its own, so that nobody gets any below.
        for stream in &streams {
            free(&allocator, allocator.allocate_by_address(MIB, stream).unwrap());
        }
        allocator.reset_peak_statistics();
        let [a, b] = &streams;
        let first = allocator.allocate_by_address(MIB, a).unwrap();
        elsewhere(|| free(&allocator, first));
        let second = allocator.allocate_by_address(MIB, b).unwrap();
        assert_eq!(peak(&allocator), MIB as u64);
        elsewhere(|| free(&allocator, second));
        allocator.reset_peak_statistics();
        assert_eq!(peak(&allocator), 0);
    });
}

#[test]
fn what_was_left_is_not_there_any_more_when_a_private_pool_raises_the_peak() {
    on(Sim::builder(), |_, context| {
        let allocator = allocator(context);
        let [a, b] = [(); 2].map(|()| Stream::new(context).unwrap());
        let first = allocator.allocate_by_address(MIB, &a).unwrap();
        let pool = MempoolId::for_user();
        allocator.begin_allocate_to_pool(pool, Filter::this_thread()).unwrap();
        // It brings the pool's memory, for which all that was left is taken in.
        free(&allocator, allocator.allocate_by_address(MIB, &b).unwrap());
        allocator.reset_peak_statistics();
        elsewhere(|| free(&allocator, first));
        let second = allocator.allocate_by_address(MIB, &b).unwrap();
        allocator.end_allocate_to_pool(pool).unwrap();
        assert_eq!(peak(&allocator), MIB as u64);
        free(&allocator, second);
    });
}

/// Whoever looks while a request fails, or at all there is, sees what was left as free.
#[test]
fn what_was_left_is_not_among_the_figures_that_are_told() {
    on(Sim::builder().memory(64 << 20), |_, context| {
        let allocator = allocator(context);
        let [a, b] = [(); 2].map(|()| Stream::new(context).unwrap());
        allocator.history().start(&HistoryOptions::default());
        let leave = || free(&allocator, elsewhere(|| allocator.allocate_by_address(MIB, &a).unwrap()));
        leave();
        let refused = allocator.allocate_by_address(100 * MIB, &b);
        let Err(Error::DeviceOutOfMemory(report)) = refused else { panic!("{refused:?}") };
        assert_eq!(report.live, 0);
        leave();
        let _all = allocator.snapshot();
        let entries = allocator.history().entries();
        let told = entries.iter().rfind(|entry| entry.action == Action::Snapshot).unwrap();
        assert_eq!(told.size, 0);
        leave();
        allocator.reset_accumulated_statistics();
        let counted = allocator.statistics().allocation.all;
        assert_eq!((counted.allocated, counted.freed), (0, 0));
    });
}

/// A program goes to a peak, frees half, resets the peaks or does not, and goes on with other sizes: bytes that are held, and driver
/// calls.
fn held_after_a_peak(resets: bool) -> (usize, u64, String) {
    let sim = Sim::builder().memory(4 << 30).build();
    let context =
        cuda_mem_core::Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let allocator = allocator(&context);
    let stream = Stream::new(&context).unwrap();
    let mut live: Vec<_> =
        (0..60).map(|_| allocator.allocate_by_address(20 * MIB, &stream).unwrap()).collect();
    let mut kept = Vec::new();
    for (number, block) in live.drain(..).enumerate() {
        if number % 2 == 0 { free(&allocator, block) } else { kept.push(block) }
    }
    if resets {
        allocator.reset_peak_statistics();
    }
    for round in 1..40usize {
        let sizes = [9 + round % 7, 33 + round % 5, 18 + round % 3];
        let blocks = sizes.map(|mib| allocator.allocate_by_address(mib * MIB, &stream).unwrap());
        kept.extend(&blocks[..1]);
        blocks[1..].iter().for_each(|block| free(&allocator, *block));
        if round % 2 == 0 {
            free(&allocator, kept.remove(round % kept.len()));
        }
    }
    let held = (
        allocator.reserved_bytes(),
        allocator.statistics().num_device_alloc,
        format!("{:?}", allocator.driver_calls()),
    );
    kept.into_iter().for_each(|block| free(&allocator, block));
    held
}

/// Loggers reset the peaks at each step. That changed how much may be held above the peak, and with it what was moved.
#[test]
fn reset_peak_statistics_changes_nothing_of_what_is_held() {
    assert_eq!(held_after_a_peak(true), held_after_a_peak(false));
}

/// What one of the threads does; the others wait.
#[derive(Debug, Clone, Copy)]
enum Step {
    Allocate { stream: usize, bytes: usize },
    Free { which: prop::sample::Index },
    ResetPeak,
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let bytes = prop_oneof![1..2000usize, 1..600_000usize, 1..6_000_000usize];
    let step = prop_oneof![
        6 => (0..STREAMS, bytes).prop_map(|(stream, bytes)| Step::Allocate { stream, bytes }),
        6 => any::<prop::sample::Index>().prop_map(|which| Step::Free { which }),
        1 => Just(Step::ResetPeak),
    ];
    vec((0..THREADS, step), 1..200)
}

const STREAMS: usize = 3;
const THREADS: usize = 3;

/// Blocks and requested bytes, and the most of both since the peaks began anew.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Plain {
    now: [u64; 2],
    most: [u64; 2],
}

impl Plain {
    fn add(&mut self, bytes: usize) {
        self.now = [self.now[0] + 1, self.now[1] + bytes as u64];
        self.most = [self.most[0].max(self.now[0]), self.most[1].max(self.now[1])];
    }

    fn remove(&mut self, bytes: usize) {
        self.now = [self.now[0] - 1, self.now[1] - bytes as u64];
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whichever thread allocates and frees, one after the other, the peaks are those of a plain count.
    #[test]
    fn peaks_are_exact_whoever_frees(steps in steps()) {
        let sim = Sim::builder().build();
        let context = cuda_mem_core::Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
        let allocator = allocator(&context);
        let streams = [(); STREAMS].map(|()| Stream::new(&context).unwrap());
        let (mut plain, mut live) = (Plain::default(), Vec::new());
        thread::scope(|scope| {
            // Threads that stay: what one leaves is in a ring of its own, and who allocates is known by its thread.
            let threads = [(); THREADS].map(|()| {
                let ((give, get), (tell, told)) = (mpsc::channel::<Work>(), mpsc::channel());
                scope.spawn(move || get.into_iter().for_each(|work| tell.send(work()).unwrap()));
                move |work: Work| {
                    give.send(work).unwrap();
                    told.recv().unwrap()
                }
            });
            for (thread, step) in steps {
                match step {
                    Step::Allocate { stream, bytes } => {
                        let (allocator, stream) = (allocator.clone(), streams[stream].clone());
                        let address = threads[thread](Box::new(move || allocator.allocate_by_address(bytes, &stream).unwrap()));
                        live.push((address, bytes));
                        plain.add(bytes);
                    }
                    Step::Free { which } if !live.is_empty() => {
                        let (address, bytes) = live.swap_remove(which.index(live.len()));
                        let allocator = allocator.clone();
                        threads[thread](Box::new(move || {
                            free(&allocator, address);
                            address
                        }));
                        plain.remove(bytes);
                    }
                    Step::Free { .. } => {}
                    Step::ResetPeak => {
                        allocator.reset_peak_statistics();
                        plain.most = plain.now;
                    }
                }
            }
            let statistics = allocator.statistics();
            let [blocks, bytes] = [statistics.active.all, statistics.requested_bytes.all];
            prop_assert_eq!([blocks.current, bytes.current], plain.now);
            prop_assert_eq!([blocks.peak, bytes.peak], plain.most);
            live.drain(..).for_each(|(address, _)| free(&allocator, address));
            Ok(())
        })?;
    }
}

type Work = Box<dyn FnOnce() -> u64 + Send>;
