//! Several threads at one adaptor.

use std::thread;

use cuda_mem_pool::{MemoryResource, TrackingAdaptor};

use super::faulty::Faulty;
use crate::common::World;
use crate::support::device;

const THREADS: usize = 6;
const ROUNDS: usize = 100;

#[test]
fn books_balance_when_memory_is_freed_in_another_thread() {
    let world = World::new();
    let statistics = TrackingAdaptor::new(device(&world), false);
    let tracking = TrackingAdaptor::new(statistics.clone(), false);
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (world, resource, sender) = (&world, &tracking, sender.clone());
            scope.spawn(move || {
                let stream = world.new_stream();
                for round in 0..ROUNDS {
                    let block = resource.allocate(1 + (number * 31 + round * 97) % 3000, &stream).unwrap();
                    sender.send(block).unwrap();
                }
            });
        }
        drop(sender);
        scope.spawn(move || receiver.into_iter().for_each(|block| block.close().unwrap()));
    });
    assert!(tracking.outstanding_allocations().is_empty());
    assert_eq!(tracking.bytes().current, 0);
    assert_eq!((statistics.bytes().current, statistics.allocations().current), (0, 0));
    assert_eq!(usize::try_from(statistics.allocations().allocated).unwrap(), THREADS * ROUNDS);
}

/// What another thread can do at that moment, done by the same one.
#[test]
fn memory_that_is_allocated_again_while_its_free_returns_stays_in_the_books() {
    let world = World::new();
    let upstream = Faulty::new(device(&world));
    let stream = world.new_stream();
    let tracking = TrackingAdaptor::new(upstream.clone(), false);
    let resource = TrackingAdaptor::new(tracking.clone(), false);
    let first = resource.allocate(2000, &stream).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let (again, same) = (resource.clone(), stream.clone());
    upstream.after_next_free(move || sender.send(again.allocate(2000, &same).unwrap()).unwrap());
    drop(first);
    let second = receiver.recv().unwrap();
    for tracker in [&resource.bytes(), &tracking.bytes()] {
        assert_eq!((tracker.current, tracker.peak), (2000, 2000));
    }
    assert_eq!((resource.allocations().current, resource.allocations().peak), (1, 1));
    assert_eq!(tracking.outstanding_allocations().len(), 1);
    second.close().unwrap();
    assert!(tracking.outstanding_allocations().is_empty());
    assert_eq!(resource.bytes().current, 0);
}
