//! Options of the caching allocator that say how much it may hold, and giving memory back down to a size.

use std::sync::Barrier;
use std::thread;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, Stream};
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions, Hold};
use cuda_mem_pool::{Error, MemoryResource};
use cuda_mem_sim::Sim;

use crate::rig::on;

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

fn on_a_large_one(test: impl FnOnce(&Sim, &Context)) {
    on(Sim::builder().memory(16 << 30), test);
}

#[test]
fn what_may_be_held_is_the_smaller_of_the_bytes_and_the_fraction() {
    on_a_large_one(|_, context| {
        let stream = Stream::new(context).unwrap();
        let options = CachingOptions::default().with_max_bytes(64 * MIB);
        let allocator = CachingAllocator::new(context, &options).unwrap();
        drop(allocator.allocate(60 * MIB, &stream).unwrap());
        let refused = |bytes| match allocator.allocate(bytes, &stream) {
            Err(Error::DeviceOutOfMemory(report)) => report.limit,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(65 * MIB), Some(64 * MIB));
        allocator.empty_cache().unwrap();
        allocator.set_memory_fraction(32.0 / 16384.0).unwrap();
        assert_eq!(refused(33 * MIB), Some(32 * MIB));
        allocator.set_memory_fraction(1.0).unwrap();
        assert_eq!(refused(65 * MIB), Some(64 * MIB));
    });
}

/// Each is the one that was set, though another thread sets the other half at the same time.
#[test]
fn a_limit_that_is_set_beside_a_fraction_is_not_lost() {
    on_a_large_one(|_, context| {
        let stream = Stream::new(context).unwrap();
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        for _ in 0..1000 {
            allocator.set_memory_fraction(1.0).unwrap();
            allocator.set_limit(usize::MAX).unwrap();
            let begins = Barrier::new(2);
            thread::scope(|scope| {
                scope.spawn(|| {
                    begins.wait();
                    allocator.set_limit(2 * MIB).unwrap();
                });
                begins.wait();
                allocator.set_memory_fraction(0.5).unwrap();
            });
            assert!(allocator.memory_fraction() == 0.5);
            allocator.allocate(3 * MIB, &stream).unwrap_err();
        }
    });
}

#[test]
fn what_is_held_tightly_stays_near_the_peak() {
    on_a_large_one(|_, context| {
        let stream = Stream::new(context).unwrap();
        let held = |hold| {
            let options = CachingOptions::default().with_hold(hold);
            let allocator = CachingAllocator::new(context, &options).unwrap();
            // Free pieces between blocks that no later block fits in, each a handle of such a device.
            let blocks: Vec<_> = (0..64).map(|_| allocator.allocate(14 * MIB, &stream).unwrap()).collect();
            let kept: Vec<_> = blocks.into_iter().enumerate().filter(|(at, _)| at % 2 == 0).collect();
            stream.synchronize().unwrap();
            let large = allocator.allocate(420 * MIB, &stream).unwrap();
            drop((kept, large));
            let held = allocator.statistics().reserved_bytes.all.peak as usize;
            allocator.empty_cache().unwrap();
            held
        };
        assert!(held(Hold::Tight { over_peak: 1.02 }) <= 896 * MIB / 100 * 105);
        assert!(held(Hold::Ample) >= 896 * MIB + 406 * MIB);
    });
}

#[test]
fn a_factor_below_one_is_refused_by_its_value() {
    on_a_large_one(|_, context| {
        for over_peak in [0.99, -1.0, f64::NAN, f64::INFINITY] {
            let options = CachingOptions::default().with_hold(Hold::Tight { over_peak });
            let error = CachingAllocator::new(context, &options).unwrap_err();
            assert!(matches!(error, Error::InvalidOverPeak { .. }), "{error:?}");
            assert!(error.to_string().contains(&over_peak.to_string()), "{error}");
        }
    });
}

#[test]
fn the_reserve_goes_last_and_is_there_to_be_set() {
    on_a_large_one(|_, context| {
        let stream = Stream::new(context).unwrap();
        let left = |reserve_bytes| {
            let options = CachingOptions::default().with_reserve_bytes(reserve_bytes);
            let allocator = CachingAllocator::new(context, &options).unwrap();
            // Half of it is free and in pieces when the device is nearly full: it moves before the reserve is used.
            let blocks: Vec<_> = (0..380).map(|_| allocator.allocate(40 * MIB, &stream).unwrap()).collect();
            let kept: Vec<_> = blocks.into_iter().enumerate().filter(|(at, _)| at % 2 == 0).collect();
            stream.synchronize().unwrap();
            let large = allocator.allocate(GIB, &stream).unwrap();
            let left = context.memory_info().unwrap().free;
            drop((kept, large));
            allocator.empty_cache().unwrap();
            left
        };
        assert!(left(GIB) >= GIB);
        assert!(left(0) < GIB);
    });
}

/// Others that leave little have new handles be small. What is free in larger ones moves all the same before the reserve is used.
#[test]
fn the_reserve_goes_last_beside_handles_of_another_size() {
    on_a_large_one(|_, context| {
        let stream = Stream::new(context).unwrap();
        let [allocator, others] =
            [(); 2].map(|()| CachingAllocator::new(context, &CachingOptions::default()).unwrap());
        let blocks: Vec<_> = (0..128).map(|_| allocator.allocate(14 * MIB, &stream).unwrap()).collect();
        let kept: Vec<_> = blocks.into_iter().enumerate().filter(|(at, _)| at % 2 == 0).collect();
        let left = context.memory_info().unwrap().free - 200 * MIB;
        let rest = others.allocate(left, &stream).unwrap();
        let held = allocator.reserved_bytes();
        let large = allocator.allocate(150 * MIB, &stream).unwrap();
        assert_eq!(allocator.reserved_bytes(), held);
        drop((kept, rest, large));
    });
}

/// What private pools hold of a limit changes no size of handles: what is free in those of before would serve nobody else.
#[test]
fn handles_have_one_size_whatever_private_pools_hold() {
    on_a_large_one(|_, context| {
        let stream = Stream::new(context).unwrap();
        let options = CachingOptions::default().with_max_bytes(8 << 30);
        let allocator = CachingAllocator::new(context, &options).unwrap();
        let handle = || {
            let block = allocator.allocate(40 * MIB, &stream).unwrap();
            (allocator.segment(block.address()).unwrap().bytes, block)
        };
        let (before, first) = handle();
        let pool = allocator.private_pool(None).unwrap();
        let route = pool.route_this_thread().unwrap();
        let private = allocator.allocate(3 << 30, &stream).unwrap();
        drop(route);
        let (after, second) = handle();
        assert_eq!((before, after), (12 * MIB, 12 * MIB));
        drop((first, second, private));
    });
}

/// Where private pools leave little, handles are small, and the report counts with those.
#[test]
fn what_is_said_to_fit_beside_private_pools_is_all_that_does() {
    on_a_large_one(|_, context| {
        let stream = Stream::new(context).unwrap();
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let pool = allocator.private_pool(None).unwrap();
        let route = pool.route_this_thread().unwrap();
        let left = context.memory_info().unwrap().free;
        let private = allocator.allocate(left - 180 * MIB, &stream).unwrap();
        drop(route);
        let Err(Error::DeviceOutOfMemory(refused)) = allocator.allocate(GIB, &stream) else { panic!() };
        assert_eq!(refused.largest, refused.free.unwrap() / (2 * MIB) * (2 * MIB), "{refused}");
        drop(allocator.allocate(refused.largest, &stream).unwrap());
        drop(private);
    });
}

#[test]
fn memory_goes_back_down_to_a_size() {
    on_a_large_one(|_, context| {
        let stream = Stream::new(context).unwrap();
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let block = allocator.allocate(100 * MIB, &stream).unwrap();
        drop(allocator.allocate(900 * MIB, &stream).unwrap());
        stream.synchronize().unwrap();
        let held = allocator.reserved_bytes();
        assert_eq!(allocator.trim_to(held).unwrap(), 0);
        let went = allocator.trim_to(500 * MIB).unwrap();
        assert_eq!(allocator.reserved_bytes(), held - went);
        // No more than is asked for, but for the rest of a handle.
        assert!(
            (460 * MIB..=500 * MIB).contains(&allocator.reserved_bytes()),
            "{}",
            allocator.reserved_bytes()
        );
        allocator.trim_to(0).unwrap();
        assert!(allocator.reserved_bytes() >= 100 * MIB, "what is in use stays");
        drop(block);
    });
}

/// Segments go whole, and no more of them than must.
#[test]
fn segments_that_are_free_go_back_down_to_a_size_too() {
    let trims: [fn(&CachingAllocator, usize, &Stream); 3] = [
        |allocator, bytes, _| _ = allocator.trim_to(bytes).unwrap(),
        |allocator, bytes, _| _ = allocator.set_limit(bytes).unwrap(),
        |allocator, bytes, stream| {
            allocator.set_limit(bytes + MIB).unwrap();
            drop(allocator.allocate(MIB, stream).unwrap());
        },
    ];
    for trim in trims {
        on_a_large_one(|_, context| {
            let stream = Stream::new(context).unwrap();
            let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
            let tag = allocator.tag("cache").unwrap().enter().unwrap();
            drop([(); 10].map(|()| allocator.allocate(40 * MIB, &stream).unwrap()));
            drop(tag);
            stream.synchronize().unwrap();
            assert_eq!(allocator.reserved_bytes(), 400 * MIB);
            trim(&allocator, 399 * MIB, &stream);
            let held = allocator.reserved_bytes();
            assert!((360 * MIB..=362 * MIB).contains(&held), "{held}");
        });
    }
}

/// Ranges of addresses that lie side by side, the second with larger handles: what is free from the one into the other ends in the midst of
/// a handle.
#[test]
fn handles_of_several_sizes_side_by_side_go_back_without_what_is_in_use() {
    on(Sim::builder().memory(4 << 30), |sim, context| {
        let stream = Stream::new(context).unwrap();
        let options = CachingOptions::default().with_max_bytes(64 * MIB);
        let allocator = CachingAllocator::new(context, &options).unwrap();
        // A range with no more addresses than are needed.
        sim.fail_call("cuMemAddressReserve", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let [kept, behind] = [8, 10].map(|size| allocator.allocate(size * MIB, &stream).unwrap());
        allocator.set_limit(usize::MAX).unwrap();
        let [before, mut block] = [(); 2].map(|()| allocator.allocate(3 * MIB, &stream).unwrap());
        assert_eq!(behind.address() + 10 * MIB as u64, before.address());
        assert_eq!(before.address() + 3 * MIB as u64, block.address());
        drop((behind, before));
        stream.synchronize().unwrap();
        assert_eq!(allocator.empty_cache().unwrap(), 10 * MIB);
        block.as_device_range().fill_bytes(&stream, 7).unwrap();
        stream.synchronize().unwrap();
        drop((kept, block));
        stream.synchronize().unwrap();
        assert_eq!(allocator.empty_cache().unwrap(), 16 * MIB);
    });
}
