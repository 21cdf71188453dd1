//! Threads whose streams end, done or busy, or are forgotten, with blocks that others use and free meanwhile.

use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::thread;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, Error as CoreError, Stream};
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::segments::Filter;
use cuda_mem_pool::{Allocation, DeviceAccessible, Error, MemoryResource, MempoolId};
use cuda_mem_sim::Sim;

use crate::rig::on;

const THREADS: u64 = 3;
/// Threads that come one after the other, and streams that each has.
const GENERATIONS: u64 = 10;
const STREAMS: u64 = 6;

/// Numbers that look like any, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn is_one_of(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

enum Block {
    Owned(Allocation<DeviceAccessible>),
    ByAddress(u64),
}

/// What the threads leave to each other.
#[derive(Default)]
struct Bag(Mutex<Vec<Block>>);

impl Bag {
    fn put(&self, block: Block) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(block);
    }

    fn take(&self, numbers: &mut Numbers) -> Option<Block> {
        let mut blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = blocks.len() as u64;
        (count > 0).then(|| blocks.swap_remove(usize::try_from(numbers.below(count)).unwrap()))
    }
}

struct World<'w> {
    sim: &'w Sim,
    context: &'w Context,
    allocator: CachingAllocator,
    bag: Bag,
}

/// What there is, unless there is none left.
fn if_any<R>(allocated: Result<R, Error>) -> Option<R> {
    match allocated {
        Ok(block) => Some(block),
        Err(Error::DeviceOutOfMemory(_)) => None,
        Err(error) => panic!("{error:?}"),
    }
}

impl World<'_> {
    fn free(&self, address: u64) {
        // SAFETY: allocated once and taken out of the bag once; the streams that used it were recorded.
        unsafe { self.allocator.free_by_address(address) }.unwrap();
    }

    fn allocate(&self, stream: &Stream, numbers: &mut Numbers) {
        let bytes = [1000, 300 << 10, 3 << 20, 9 << 20][usize::try_from(numbers.below(4)).unwrap()];
        if numbers.is_one_of(4) {
            let address = if_any(self.allocator.allocate_by_address(bytes, stream));
            address.into_iter().for_each(|address| self.bag.put(Block::ByAddress(address)));
            return;
        }
        let Some(mut block) = if_any(self.allocator.allocate(bytes, stream)) else { return };
        block.as_device_range().fill_bytes(stream, 1).unwrap();
        if numbers.is_one_of(2) {
            self.bag.put(Block::Owned(block));
        }
    }

    fn use_anothers(&self, stream: &Stream, numbers: &mut Numbers) {
        match self.bag.take(numbers) {
            Some(Block::Owned(mut block)) if numbers.is_one_of(2) => {
                // Behind a stream that another thread is about to destroy, or its default stream, nothing can be ordered.
                let used = block.as_device_range().fill_bytes(stream, 2);
                assert!(
                    matches!(used, Ok(()) | Err(CoreError::WrongThread | CoreError::Disowned)),
                    "{used:?}"
                );
            }
            Some(Block::ByAddress(address)) => {
                if numbers.is_one_of(2) {
                    self.allocator.record_stream(address, stream).unwrap();
                }
                self.free(address);
            }
            Some(Block::Owned(_)) | None => {}
        }
    }

    fn use_stream(&self, stream: &Stream, numbers: &mut Numbers) {
        (0..=numbers.below(4)).for_each(|_| self.allocate(stream, numbers));
        (0..numbers.below(4)).for_each(|_| self.use_anothers(stream, numbers));
        if numbers.is_one_of(2) {
            stream.synchronize().unwrap();
        }
    }

    /// A stream of somebody else's, which is forgotten and destroyed.
    fn use_theirs(&self, numbers: &mut Numbers) {
        let (table, mut raw) = (self.sim.table(), ptr::null_mut());
        // SAFETY: one handle to write; the context is current.
        let made = self.context.with_current(|| unsafe { table.cuStreamCreate().unwrap()(&mut raw, 1) });
        assert_eq!(made.unwrap(), CUresult::CUDA_SUCCESS);
        // SAFETY: destroyed below, once it was disowned.
        let stream = unsafe { Stream::borrow_raw(self.context, raw.cast()) }.unwrap();
        self.use_stream(&stream, numbers);
        // SAFETY: it is given no more work.
        unsafe { self.allocator.forget_stream(&stream) }.unwrap();
        stream.disown();
        // SAFETY: made above, destroyed once.
        assert_eq!(unsafe { table.cuStreamDestroy().unwrap()(raw) }, CUresult::CUDA_SUCCESS);
    }

    fn run(&self, mut numbers: Numbers) {
        for _ in 0..STREAMS {
            match numbers.below(3) {
                0 => self.use_stream(&Stream::new(self.context).unwrap(), &mut numbers),
                1 => self.use_stream(&Stream::per_thread(self.context).unwrap(), &mut numbers),
                _ => self.use_theirs(&mut numbers),
            }
            if numbers.is_one_of(8) {
                self.allocator.empty_cache().unwrap();
            }
        }
    }
}

#[test]
fn nobody_has_what_others_use_whichever_streams_end() {
    streams_end(64 << 20, |_| {});
}

/// A pool gives on what streams have that nobody has any more, while others come and go.
#[test]
fn nobody_has_what_others_use_of_a_private_pool_either() {
    streams_end(256 << 20, |allocator| {
        allocator.begin_allocate_to_pool(MempoolId::for_user(), Filter::new(|_| true)).unwrap();
    });
}

fn streams_end(memory: u64, set_up: impl FnOnce(&CachingAllocator)) {
    on(Sim::builder().memory(memory).workers(3), |sim, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        set_up(&allocator);
        let world = World { sim, context, allocator, bag: Bag::default() };
        for generation in 0..GENERATIONS {
            thread::scope(|scope| {
                for thread in 0..THREADS {
                    let numbers = Numbers::new(generation * THREADS + thread + 1);
                    let world = &world;
                    scope.spawn(move || world.run(numbers));
                }
            });
        }
        context.synchronize().unwrap();
        let mut numbers = Numbers::new(0);
        while let Some(block) = world.bag.take(&mut numbers) {
            if let Block::ByAddress(address) = block {
                world.free(address);
            }
        }
        context.synchronize().unwrap();
        world.allocator.empty_cache().unwrap();
        let driver = context.driver();
        assert_eq!((driver.reclaim(), driver.release_failures()), (0, 0));
        assert_eq!(world.allocator.statistics().active.all.current, 0);
    });
}
