//! The caching allocator when there is no memory, and memory that has to stay.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cuda_mem_pool::caching::{Advice, CachingAllocator, CachingOptions, OutOfMemoryReport, Pin};
use cuda_mem_pool::segments::Filter;
use cuda_mem_pool::{Error, MemoryResource, MempoolId};

use crate::common::World;
use crate::support::allocator;

const MIB: usize = 1 << 20;

/// An allocator that may hold so many bytes, give or take a page.
fn limited(world: &World, bytes: usize) -> CachingAllocator {
    let total = world.context.device().total_memory().unwrap();
    let options = CachingOptions::default().with_memory_fraction(bytes as f64 / total as f64);
    CachingAllocator::new(&world.context, &options).unwrap()
}

fn report(allocator: &CachingAllocator, bytes: usize, world: &World) -> Box<OutOfMemoryReport> {
    match allocator.allocate(bytes, &world.stream) {
        Err(Error::DeviceOutOfMemory(report)) => report,
        other => panic!("{bytes} bytes: {other:?}"),
    }
}

#[test]
fn more_than_the_device_has_is_said_to_be_so() {
    let world = World::new();
    let allocator = allocator(&world);
    let total = world.context.device().total_memory().unwrap();
    let kept = allocator.allocate(3 * MIB, &world.stream).unwrap();
    let report = report(&allocator, total + MIB, &world);
    assert_eq!((report.requested, report.total, report.limit), (total + MIB, total, None));
    assert_eq!((report.live, report.pending), (3 * MIB, 0));
    assert_eq!(report.advice, [Advice::LargerThanDevice { total }]);
    assert!(report.largest < total);
    assert!(report.reserved >= report.live + report.cached_bytes());
    assert_eq!(allocator.statistics().num_ooms, 1);
    drop(kept);
    drop(allocator.allocate(5 * MIB, &world.stream).unwrap());
}

#[test]
fn what_no_heap_has_room_for_is_out_of_memory_too() {
    let world = World::new();
    let allocator = allocator(&world);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    allocator.attach_oom_observer(move |report| told.lock().unwrap().push(report.requested));
    let sizes = [(1 << 46) + 1, 1 << 50, (1 << 60) - 1];
    let total = world.context.device().total_memory().unwrap();
    for bytes in sizes {
        let report = report(&allocator, bytes, &world);
        assert_eq!(
            (report.requested, &report.advice[..]),
            (bytes, &[Advice::LargerThanDevice { total }][..])
        );
    }
    assert_eq!((allocator.statistics().num_ooms, &seen.lock().unwrap()[..]), (3, &sizes[..]));
    let refused = allocator.allocate(1 << 60, &world.stream);
    assert!(matches!(refused, Err(Error::TooLarge { bytes }) if bytes == 1 << 60), "{refused:?}");
    assert_eq!(allocator.statistics().num_ooms, 3);
    drop(allocator.allocate(5 * MIB, &world.stream).unwrap());
}

/// Others on the device may need what the device has left.
#[test]
fn a_request_that_fails_keeps_nothing_of_what_was_left() {
    let world = World::new();
    let total = world.context.device().total_memory().unwrap();
    for allocator in [allocator(&world), limited(&world, total / 10 * 9)] {
        let kept = allocator.allocate(total / 8 * 5, &world.stream).unwrap();
        let free = || world.context.memory_info().unwrap().free;
        let (before, reserved) = (free(), allocator.reserved_bytes());
        let peak = || allocator.statistics().reserved_bytes.all.peak;
        let held = peak();
        for _ in 0..2 {
            let report = report(&allocator, total / 8 * 5, &world);
            assert_eq!((allocator.reserved_bytes(), report.reserved), (reserved, reserved));
            assert_eq!(peak(), held, "something was made for it");
            assert!(free() + total / 64 > before, "{} of {before} bytes are left", free());
        }
        // What the heap has free is still used.
        drop(allocator.allocate(total / 4, &world.stream).unwrap());
        drop(kept);
    }
}

/// What somebody else has cannot be known before: what was made by then goes back.
#[test]
fn what_was_made_goes_back_where_others_have_the_rest() {
    let world = World::new();
    let total = world.context.device().total_memory().unwrap();
    let others = allocator(&world).allocate(total / 2, &world.stream).unwrap();
    let allocator = allocator(&world);
    let free = || world.context.memory_info().unwrap().free;
    for frees in [0, 300] {
        for _ in 0..frees {
            drop(allocator.allocate(3 * MIB, &world.stream).unwrap());
        }
        let (before, reserved) = (free(), allocator.reserved_bytes());
        report(&allocator, total / 8 * 5, &world);
        assert!(allocator.reserved_bytes() <= reserved, "{} for {reserved}", allocator.reserved_bytes());
        assert!(free() + total / 64 > before, "{} of {before} bytes are left", free());
    }
    drop(others);
    drop(allocator.allocate(total / 8 * 5, &world.stream).unwrap());
}

/// Two of its eight MiB are there, as the end of one handle and the beginning of another; what is left of the limit fits between.
#[test]
fn the_last_that_there_is_fills_a_gap() {
    let world = World::new();
    let allocator = limited(&world, 64 * MIB);
    let first = allocator.allocate(5 * MIB, &world.stream).unwrap();
    let middle = allocator.allocate(8 * MIB, &world.stream).unwrap();
    let last = allocator.allocate(5 * MIB, &world.stream).unwrap();
    drop(middle);
    world.stream.synchronize().unwrap();
    allocator.empty_cache().unwrap();
    let total = world.context.device().total_memory().unwrap();
    let limit = (allocator.reserved_bytes() + 6 * MIB) as f64 / total as f64;
    allocator.set_memory_fraction(limit.next_up()).unwrap();
    drop(allocator.allocate(8 * MIB, &world.stream).unwrap());
    drop((first, last));
}

/// A page is enough for a small block wherever its addresses begin.
#[test]
fn the_last_page_serves_a_small_block() {
    let world = World::new();
    let total = world.context.device().total_memory().unwrap();
    for bytes in [512, MIB - 512] {
        let allocator = limited(&world, 64 * MIB);
        let kept = allocator.allocate(5 * MIB, &world.stream).unwrap();
        let limit = (allocator.reserved_bytes() + 2 * MIB) as f64 / total as f64;
        allocator.set_memory_fraction(limit.next_up()).unwrap();
        drop(allocator.allocate(bytes, &world.stream).unwrap());
        drop(kept);
    }
}

#[test]
fn a_limit_is_told_from_a_full_device() {
    let world = World::new();
    let allocator = limited(&world, 40 * MIB);
    let kept = allocator.allocate(20 * MIB, &world.stream).unwrap();
    let beyond = report(&allocator, 50 * MIB, &world);
    let report = report(&allocator, 30 * MIB, &world);
    let limit = report.limit.unwrap();
    assert_eq!(beyond.advice, [Advice::RaiseMemoryFraction { limit }], "nothing else would help");
    assert!((39 * MIB..=40 * MIB).contains(&limit));
    assert_eq!(report.advice.first(), Some(&Advice::RaiseMemoryFraction { limit }));
    assert!(report.reserved <= limit);
    // What the report says fits does.
    assert!(report.largest >= 16 * MIB);
    drop(allocator.allocate(report.largest, &world.stream).unwrap());
    allocator.set_memory_fraction(1.0).unwrap();
    drop(allocator.allocate(30 * MIB, &world.stream).unwrap());
    drop(kept);
}

#[test]
fn a_lower_limit_leaves_what_is_held() {
    let world = World::new();
    let allocator = limited(&world, 64 * MIB);
    let kept = allocator.allocate(32 * MIB, &world.stream).unwrap();
    allocator.set_memory_fraction(0.0).unwrap();
    assert!(allocator.allocate(8 * MIB, &world.stream).unwrap_err().is_out_of_memory());
    assert!(allocator.reserved_bytes() >= 32 * MIB);
    drop(kept);
    drop(allocator.allocate(8 * MIB, &world.stream).unwrap());
    let fraction = f64::NAN;
    assert!(matches!(allocator.set_memory_fraction(fraction), Err(Error::InvalidFraction { .. })));
    assert_eq!(allocator.memory_fraction(), 0.0);
}

#[test]
fn streams_are_told_apart_in_what_is_free() {
    let world = World::new();
    let (allocator, other) = (limited(&world, 64 * MIB), world.new_stream());
    let kept = allocator.allocate(MIB / 2, &other).unwrap();
    let small = allocator.allocate(MIB / 4, &world.stream).unwrap();
    let report = report(&allocator, 80 * MIB, &world);
    for (stream, block) in [(&other, &kept), (&world.stream, &small)] {
        let cached = report.cached.iter().find(|cached| cached.stream == Some(stream.id())).unwrap();
        // The rest of a page, at least.
        assert!(cached.bytes >= 2 * MIB - block.len() && cached.largest <= cached.bytes);
    }
    assert_eq!(report.reserved, report.live + report.cached_bytes());
}

/// Nobody else gets it, so that only the report says where the memory is.
#[test]
fn what_private_pools_have_free_is_told() {
    let world = World::new();
    let (allocator, id) = (limited(&world, 64 * MIB), MempoolId::for_user());
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    let [kept, freed] = [3 * MIB, 30 * MIB].map(|bytes| allocator.allocate(bytes, &world.stream).unwrap());
    allocator.end_allocate_to_pool(id).unwrap();
    drop(freed);
    let other = allocator.allocate(5 * MIB, &world.stream).unwrap();
    let refused = report(&allocator, 50 * MIB, &world);
    let cached = refused.cached.iter().find(|cached| cached.pool == id).unwrap();
    assert_eq!((cached.bytes, cached.largest), (47 * MIB, 30 * MIB));
    assert_eq!(refused.reserved, refused.live + refused.cached_bytes());
    assert!(refused.advice.contains(&Advice::ReleasePools { bytes: 47 * MIB }), "{refused}");
    assert!(refused.to_string().contains(&format!("private pool {id}: 47.00 MiB")), "{refused}");
    drop(kept);
    allocator.release_pool(id).unwrap();
    drop(allocator.allocate(50 * MIB, &world.stream).unwrap());
    drop(other);
}

#[test]
fn reclaimers_and_observers_may_use_the_allocator() {
    let world = World::new();
    let allocator = limited(&world, 64 * MIB);
    let cache = Arc::new(Mutex::new(vec![allocator.allocate(40 * MIB, &world.stream).unwrap()]));
    let (asked, told) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let reclaimer = {
        let (allocator, stream, cache, asked) =
            (allocator.clone(), world.stream.clone(), Arc::clone(&cache), Arc::clone(&asked));
        allocator.clone().attach_oom_reclaimer(move |bytes| {
            asked.fetch_add(1, Ordering::Relaxed);
            assert_eq!(bytes, 50 * MIB);
            // A request that fails in here asks nobody.
            assert!(allocator.allocate(60 * MIB, &stream).is_err());
            drop(allocator.allocate(MIB, &stream).unwrap());
            !std::mem::take(&mut *cache.lock().unwrap()).is_empty()
        })
    };
    let observer = {
        let (allocator, stream, told) = (allocator.clone(), world.stream.clone(), Arc::clone(&told));
        allocator.clone().attach_oom_observer(move |report| {
            assert_eq!(report.requested, 50 * MIB);
            drop(allocator.allocate(MIB, &stream).unwrap());
            assert!(allocator.allocate(60 * MIB, &stream).is_err());
            told.fetch_add(1, Ordering::Relaxed);
        })
    };
    let counts = || (asked.load(Ordering::Relaxed), told.load(Ordering::Relaxed));
    let block = allocator.allocate(50 * MIB, &world.stream).unwrap();
    assert_eq!(counts(), (1, 0));
    assert!(allocator.allocate(50 * MIB, &world.stream).is_err());
    assert_eq!(counts(), (2, 1));
    assert!(allocator.detach(reclaimer) && allocator.detach(observer) && !allocator.detach(observer));
    assert!(allocator.allocate(50 * MIB, &world.stream).is_err());
    assert_eq!(counts(), (2, 1));
    drop(block);
}

#[test]
fn pinned_memory_stays_when_the_cache_goes() {
    let world = World::new();
    let allocator = allocator(&world);
    let block = allocator.allocate(10 * MIB, &world.stream).unwrap();
    let (address, len) = (block.address(), block.len());
    let pinned = allocator.pin(address, len, Pin::Registered).unwrap();
    let again = allocator.pin(address, 0, Pin::Graph).unwrap();
    assert_eq!(
        allocator.pins().iter().map(|(_, pin)| *pin).collect::<Vec<_>>(),
        [Pin::Registered, Pin::Graph]
    );
    let (segments, generation) = (pinned.segments().unwrap(), allocator.generation(address, len).unwrap());
    assert_eq!(segments[0].pins, 2);
    assert!(segments.windows(2).all(|two| two[0].address + two[0].bytes as u64 == two[1].address));
    drop(block);
    world.stream.synchronize().unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(pinned.segments().unwrap(), segments);
    drop(pinned);
    allocator.empty_cache().unwrap();
    assert!(allocator.segment(address).is_ok());
    assert_eq!(allocator.generation(address, 1).unwrap(), segments[0].generation);
    assert!(generation >= segments[0].generation);
    drop(again);
    assert!(allocator.pins().is_empty());
    while allocator.empty_cache().unwrap() > 0 {}
    assert_eq!(allocator.reserved_bytes(), 0);
    assert!(matches!(allocator.segment(address), Err(Error::UnknownAddress { .. })));
    assert!(matches!(allocator.pin(address, 1, Pin::DlPack), Err(Error::UnknownAddress { .. })));
    assert!(matches!(allocator.pin(u64::MAX, 2, Pin::DlPack), Err(Error::TooLarge { bytes: 2 })));
}

#[test]
fn a_forgotten_pin_keeps_the_allocator() {
    let world = World::new();
    let allocator = limited(&world, 64 * MIB);
    let address = allocator.allocate_by_address(10 * MIB, &world.stream).unwrap();
    let pinned = allocator.pin(address, 10 * MIB, Pin::Exported).unwrap();
    drop(allocator);
    assert_eq!(pinned.segments().unwrap()[0].pins, 1);
    assert_eq!(pinned.export_posix_fds().unwrap().len(), pinned.segments().unwrap().len());
}

/// What a pool would lend is among what would have been had.
#[test]
fn what_pools_lend_counts_as_what_would_have_fitted() {
    let world = World::new();
    let (allocator, id) = (limited(&world, 64 * MIB), MempoolId::for_user());
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    drop(allocator.allocate(30 * MIB, &world.stream).unwrap());
    allocator.end_allocate_to_pool(id).unwrap();
    let kept = allocator.allocate(20 * MIB, &world.stream).unwrap();
    let before = report(&allocator, 50 * MIB, &world).largest;
    assert!(before < 30 * MIB, "{before}: it lends nothing yet");
    allocator.set_use_on_oom(id, true).unwrap();
    let refused = report(&allocator, 50 * MIB, &world);
    let (largest, advice) = (refused.largest, &refused.advice);
    assert_eq!(largest, 30 * MIB);
    let releases = advice.iter().any(|advice| matches!(advice, Advice::ReleasePools { .. }));
    assert!(!releases, "all of it would be less than was asked for: {refused}");
    drop(allocator.allocate(largest, &world.stream).unwrap());
    let other = world.new_stream();
    let refused = allocator.allocate(50 * MIB, &other).unwrap_err();
    assert!(matches!(&refused, Error::DeviceOutOfMemory(report) if report.largest < 30 * MIB), "{refused}");
    drop(kept);
    allocator.release_pool(id).unwrap();
}

#[test]
fn a_request_of_a_private_pool_is_told_what_that_would_have_given() {
    let world = World::new();
    let (allocator, id) = (limited(&world, 64 * MIB), MempoolId::for_user());
    let routed = |bytes: usize| {
        allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
        let block = allocator.allocate(bytes, &world.stream);
        allocator.end_allocate_to_pool(id).unwrap();
        block
    };
    let largest = || match routed(50 * MIB) {
        Err(Error::DeviceOutOfMemory(report)) => report.largest,
        other => panic!("{other:?}"),
    };
    let full = allocator.allocate(48 * MIB, &world.stream).unwrap();
    let total = world.context.device().total_memory().unwrap();
    let limit = (allocator.memory_fraction() * total as f64).round() as usize;
    let room = limit - allocator.reserved_bytes();
    assert!((10 * MIB..20 * MIB).contains(&room), "{room}");
    assert_eq!(largest(), room / (2 * MIB) * (2 * MIB), "a segment of its own");
    let more = allocator.allocate(8 * MIB, &world.stream).unwrap();
    assert_eq!(largest(), MIB, "large segments have 20 MiB");
    drop((full, more));
    // What is free in the pool, and in no other.
    drop(routed(30 * MIB).unwrap());
    let full = allocator.allocate(30 * MIB, &world.stream).unwrap();
    assert_eq!(largest(), 30 * MIB);
    drop(routed(30 * MIB).unwrap());
    drop(full);
}
