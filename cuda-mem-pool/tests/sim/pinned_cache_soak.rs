//! `PinnedCachingAllocator` under many threads, while driver calls fail now and then.
//!
//! `CUDA_MEM_SOAK_SECONDS` says for how long; 1 without it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{RwLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, DeviceBuffer, Driver, Stream, Transfer};
use cuda_mem_pool::pinned_cache::PinnedCacheOptions;
use cuda_mem_pool::{Error, MempoolId, PinnedBlock, PinnedCachingAllocator};
use cuda_mem_sim::Sim;

use crate::rig::expect_clean;

const THREADS: u64 = 8;
/// The most that a thread has at a time.
const LIVE: usize = 24;

fn seconds() -> u64 {
    match std::env::var("CUDA_MEM_SOAK_SECONDS") {
        Ok(text) => text.parse().expect("CUDA_MEM_SOAK_SECONDS is a number of seconds"),
        Err(_) => 1,
    }
}

/// Numbers of one thread.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % bound
    }

    fn size(&mut self) -> usize {
        let octave = self.below(13);
        usize::try_from((1 << (octave + 8)) + self.below(1 << (octave + 8))).unwrap()
    }
}

/// A block whose ends say whose it is.
struct Marked(PinnedBlock, u8);

impl Marked {
    fn new(mut block: PinnedBlock, mark: u8) -> Option<Self> {
        // With a fault the wait for the uses may fail; there are none in a new block.
        let bytes = block.as_mut_slice().expect("a new block's bytes");
        *bytes.first_mut()? = mark;
        *bytes.last_mut()? = mark;
        Some(Self(block, mark))
    }

    fn check(&self) {
        if let Ok(bytes) = self.0.as_slice() {
            assert_eq!((bytes.first(), bytes.last()), (Some(&self.1), Some(&self.1)), "somebody else wrote");
        }
    }
}

/// What one thread does until it is told to stop. Errors are those that were injected; nothing may panic.
fn work(
    context: &Context,
    allocator: &PinnedCachingAllocator,
    number: u64,
    stop: &AtomicBool,
    steps: &RwLock<()>,
    others: &mpsc::Sender<PinnedBlock>,
) -> Result<(), Error> {
    let mut numbers = Numbers(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let stream = Stream::new(context)?;
    let device = DeviceBuffer::<u8>::zeroed(&stream, 4 << 20)?;
    let mut live: Vec<Marked> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let _step = steps.read().unwrap();
        match numbers.below(100) {
            0..45 if live.len() < LIVE => {
                let mark = u8::try_from(numbers.below(256)).unwrap();
                live.extend(
                    allocator.allocate(numbers.size()).ok().and_then(|block| Marked::new(block, mark)),
                );
            }
            45..85 if !live.is_empty() => {
                let index = usize::try_from(numbers.below(live.len() as u64)).unwrap();
                let marked = live.swap_remove(index);
                marked.check();
                let Marked(block, _) = marked;
                match numbers.below(4) {
                    0 => drop(block),
                    1 => drop(others.send(block)),
                    2 => {
                        // A pending use, which the simulator would see misused.
                        let target = device.range(0..block.len()).expect("a range of the buffer");
                        drop(Transfer::upload(&stream, block, &target).map(Transfer::wait));
                    }
                    _ => {
                        if let (Ok(used), Ok(source)) = (block.on(&stream), device.on(&stream)) {
                            let (target, source) = (used.address(), source.address());
                            // SAFETY: the block and the buffer know of the use, and nobody looks at the bytes any more.
                            let copy = unsafe {
                                cuda_mem_core::copy::memcpy_async(&stream, target, source, block.len())
                            };
                            drop(copy);
                        }
                        drop(block);
                    }
                }
            }
            85..88 => allocator.trim_to(1 << 20),
            88..91 => {
                let pool = MempoolId(number, numbers.below(2));
                let me = thread::current().id();
                if allocator.begin_allocate_to_pool(pool, move |_| thread::current().id() == me).is_ok() {
                    let block = allocator.allocate(numbers.size());
                    allocator.end_allocate_to_pool(pool)?;
                    allocator.release_pool(pool)?;
                    drop(block);
                }
            }
            91 => {
                let stats = allocator.statistics();
                assert!(stats.active_requests.peak >= stats.active_requests.current);
            }
            _ => live.iter().for_each(Marked::check),
        }
    }
    Ok(())
}

#[test]
fn nothing_is_held_leaked_or_misused_after_a_soak() {
    let sim = Sim::builder().workers(4).build();
    let driver = Driver::over(sim.table()).unwrap();
    let context = driver.device(0).unwrap().primary_context().unwrap();
    let options = PinnedCacheOptions::default().with_max_cached_bytes(64 << 20);
    let allocator = PinnedCachingAllocator::with_options(&context, options);
    let stop = AtomicBool::new(false);
    // Held by whoever is in the middle of something.
    let steps = RwLock::new(());
    let mut faults = 0;
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for number in 1..=THREADS {
            let (context, allocator, stop, steps) = (&context, &allocator, &stop, &steps);
            let sender = sender.clone();
            scope.spawn(move || {
                // A fault may strike before the loop: then the thread starts anew.
                while !stop.load(Ordering::Relaxed) {
                    let _ = work(context, allocator, number, stop, steps, &sender);
                }
            });
        }
        drop(sender);
        // Blocks that one thread allocated and this one frees.
        let between = &steps;
        scope.spawn(move || {
            for block in receiver {
                let _step = between.read().unwrap();
                drop(block);
            }
        });
        let until = Instant::now() + Duration::from_secs(seconds());
        let mut numbers = Numbers(99);
        while Instant::now() < until {
            // A release is tried twice, so the next fault comes when nobody is in the middle of the one before.
            if sim.struck().len() == faults {
                drop(steps.write().unwrap());
                let codes = [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_UNKNOWN];
                sim.fail_nth_call_overall(20 + numbers.below(500), codes[faults % 2]);
                faults += 1;
            }
            thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{faults} faults, {} blocks", allocator.statistics().active_requests.allocated);
    sim.clear_faults();
    assert_eq!(allocator.statistics().active_requests.current, 0);
    assert_eq!(
        allocator.statistics().active_requests.allocated,
        allocator.statistics().active_requests.freed
    );
    context.driver().reclaim();
    // What waits for streams is free now that they are gone.
    while allocator.statistics().allocated_bytes.current > 0 {
        allocator.empty_cache();
        thread::yield_now();
    }
    drop(allocator);
    assert_eq!(driver.release_failures(), 0);
    drop(context);
    expect_clean(&sim);
}
