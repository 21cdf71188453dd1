//! `FailureCallbackAdaptor`.

use std::alloc::Layout;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cuda_mem_pool::{AlignedAdaptor, Error, FailureCallbackAdaptor, LimitingAdaptor, MemoryResource};

use super::faulty::Faulty;
use crate::common::World;

#[test]
fn it_tries_again_as_often_as_it_is_told() {
    let world = World::new();
    let upstream = Faulty::new(&world);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let known = Arc::clone(&seen);
    let resource = FailureCallbackAdaptor::new(upstream.clone(), move |bytes, error| {
        assert!(matches!(error, Error::OutOfMemory { .. }));
        let mut seen = known.lock().unwrap();
        seen.push(bytes);
        seen.len() < 3
    });
    upstream.refuse_allocations(1);
    assert_eq!(resource.allocate(1234, &world.stream).unwrap().len(), 1234);
    assert_eq!(*seen.lock().unwrap(), [1234]);
    assert_eq!(upstream.asked().len(), 2);
    upstream.refuse_allocations(10);
    assert!(matches!(resource.allocate(99, &world.stream), Err(Error::OutOfMemory { requested: 99, .. })));
    assert_eq!(*seen.lock().unwrap(), [1234, 99, 99]);
    assert_eq!(upstream.asked().len(), 2);
}

#[test]
fn the_alignment_is_passed_on_each_time() {
    let world = World::new();
    let upstream = Faulty::new(&world);
    let aligned = AlignedAdaptor::new(upstream.clone(), 512, usize::MAX).unwrap();
    let resource = FailureCallbackAdaptor::new(aligned, |_, _| true);
    upstream.refuse_allocations(2);
    let block = resource.allocate_aligned(4096, 8192, &world.stream).unwrap();
    assert_eq!(block.address() % 8192, 0);
    let around = Layout::from_size_align(4096 + 8192 - 256, 256).unwrap();
    assert_eq!(upstream.asked(), [around; 3]);
}

#[test]
fn it_is_asked_about_every_error_and_sees_which() {
    let world = World::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let resource = FailureCallbackAdaptor::new(Faulty::new(&world), move |_, error| {
        count.fetch_add(1, Ordering::SeqCst);
        matches!(error, Error::OutOfMemory { .. })
    });
    let refused = resource.allocate_aligned(64, 1024, &world.stream);
    assert!(matches!(refused, Err(Error::Alignment { asked: 1024, .. })));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    // No allocation was tried, so there is nothing to ask about.
    assert!(resource.allocate_aligned(64, 3, &world.stream).is_err());
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[test]
fn what_the_callback_frees_through_it_makes_room() {
    let world = World::new();
    let limited = LimitingAdaptor::new(Faulty::new(&world), 1000);
    let cache = Arc::new(Mutex::new(Vec::new()));
    let cached = Arc::clone(&cache);
    let resource = FailureCallbackAdaptor::new(limited, move |_, _| cached.lock().unwrap().pop().is_some());
    for _ in 0..4 {
        let block = resource.allocate(250, &world.stream).unwrap();
        cache.lock().unwrap().push(block);
    }
    let block = resource.allocate(600, &world.stream).unwrap();
    assert_eq!(cache.lock().unwrap().len(), 1);
    assert_eq!(resource.upstream().allocated_bytes(), 850);
    drop(block);
    // The cache holds memory, and so the callback, and so the cache.
    cache.lock().unwrap().clear();
}

#[test]
fn a_panic_of_the_callback_goes_through_and_leaves_all_in_order() {
    let world = World::new();
    let upstream = Faulty::new(&world);
    let resource = FailureCallbackAdaptor::new(upstream.clone(), |_, _| panic!("the callback's own"));
    let resource = LimitingAdaptor::new(resource, 1000);
    upstream.refuse_allocations(1);
    let stream = world.new_stream();
    let panicked = catch_unwind(AssertUnwindSafe(|| resource.allocate(800, &stream)));
    assert_eq!(*panicked.unwrap_err().downcast::<&str>().unwrap(), "the callback's own");
    assert_eq!(resource.allocated_bytes(), 0);
    assert_eq!(resource.allocate(800, &stream).unwrap().len(), 800);
}
