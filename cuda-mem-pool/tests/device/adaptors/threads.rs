//! Several threads at one adaptor.

use std::collections::HashSet;
use std::thread;

use cuda_mem_pool::{
    AlignedAdaptor, Error, LimitingAdaptor, LoggingAdaptor, MemoryResource, TrackingAdaptor,
};

use super::faulty::Faulty;
use super::logging::Shared;
use crate::common::World;
use crate::support::device;

const THREADS: usize = 6;
const ROUNDS: usize = 100;

/// Runs the same in several threads, each with its number.
fn in_threads(work: impl Fn(usize) + Sync) {
    thread::scope(|scope| {
        for number in 0..THREADS {
            let work = &work;
            scope.spawn(move || work(number));
        }
    });
}

#[test]
fn the_limit_holds_whatever_races() {
    let world = World::new();
    // It counts a free before the limit does, so its peak can never be above.
    let counted = TrackingAdaptor::new(device(&world), false);
    let limit = 10_000;
    let resource = LimitingAdaptor::new(counted.clone(), limit);
    in_threads(|number| {
        let stream = world.new_stream();
        let mut out = Vec::new();
        for round in 0..ROUNDS {
            match resource.allocate(1 + (number * 997 + round * 131) % 4000, &stream) {
                Ok(block) => out.push(block),
                Err(Error::OutOfMemory { used, limit: named, .. }) => {
                    assert!(named == limit && used <= limit);
                    out.clear();
                }
                Err(error) => panic!("{error}"),
            }
        }
    });
    assert_eq!(resource.allocated_bytes(), 0);
    let counters = counted.statistics();
    assert_eq!(counters.bytes.current, 0);
    assert!(counters.bytes.peak <= i64::try_from(limit).unwrap(), "{counters:?}");
    assert!(counters.bytes.total > i64::try_from(limit).unwrap(), "{counters:?}");
}

#[test]
fn books_balance_when_memory_is_freed_in_another_thread() {
    let world = World::new();
    let statistics = TrackingAdaptor::new(device(&world), false);
    let tracking = TrackingAdaptor::new(statistics.clone(), false);
    let resource = AlignedAdaptor::new(tracking.clone(), 1024, 1000).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (world, resource, sender) = (&world, &resource, sender.clone());
            scope.spawn(move || {
                let stream = world.new_stream();
                for round in 0..ROUNDS {
                    let block = resource.allocate(1 + (number * 31 + round * 97) % 3000, &stream).unwrap();
                    assert!(block.len() < 1000 || block.address() % 1024 == 0);
                    sender.send(block).unwrap();
                }
            });
        }
        drop(sender);
        scope.spawn(move || receiver.into_iter().for_each(|block| block.close().unwrap()));
    });
    assert!(tracking.outstanding_allocations().is_empty());
    assert_eq!(tracking.allocated_bytes(), 0);
    let counters = statistics.statistics();
    assert_eq!((counters.bytes.current, counters.allocations.current), (0, 0));
    assert_eq!(usize::try_from(counters.allocations.total).unwrap(), THREADS * ROUNDS);
}

/// What another thread can do at that moment, done by the same one.
#[test]
fn memory_that_is_allocated_again_while_its_free_returns_stays_in_the_books() {
    let world = World::new();
    let (upstream, log) = (Faulty::new(&world), Shared::default());
    let stream = world.new_stream();
    let tracking = TrackingAdaptor::new(upstream.clone(), false);
    let aligned = AlignedAdaptor::new(tracking.clone(), 1024, 1000).unwrap();
    let resource = LimitingAdaptor::new(LoggingAdaptor::new(aligned, log.clone()), 10_000);
    let first = resource.allocate(2000, &stream).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let (again, same) = (resource.clone(), stream.clone());
    upstream.after_next_free(move || sender.send(again.allocate(2000, &same).unwrap()).unwrap());
    let was = first.address();
    drop(first);
    let second = receiver.recv().unwrap();
    assert_eq!(resource.allocated_bytes(), 2000);
    assert_eq!(tracking.outstanding_allocations().len(), 1);
    let rows = log.rows().into_iter().map(|row| (row.action, row.pointer)).collect::<Vec<_>>();
    let row = |action: &str, address| (action.to_owned(), address);
    assert_eq!(rows, [row("allocate", was), row("free", was), row("allocate", second.address())]);
    second.close().unwrap();
    assert!(tracking.outstanding_allocations().is_empty());
    assert_eq!(resource.allocated_bytes(), 0);
}

#[test]
fn the_log_can_be_replayed() {
    let world = World::new();
    let log = Shared::default();
    let resource = LoggingAdaptor::new(device(&world), log.clone());
    in_threads(|number| {
        let stream = world.new_stream();
        for round in 0..ROUNDS {
            // One at a time, and the same sizes: the pool gives out again at once what is freed.
            let block = resource.allocate(512 + number % 2, &stream).unwrap();
            if round % 7 == 0 {
                stream.synchronize().unwrap();
            }
            block.close().unwrap();
        }
    });
    let rows = log.rows();
    assert_eq!(rows.len(), 2 * THREADS * ROUNDS);
    assert_eq!(rows.iter().map(|row| row.thread).collect::<HashSet<_>>().len(), THREADS);
    let mut out = HashSet::new();
    for row in &rows {
        let fits = match row.action.as_str() {
            "allocate" => out.insert((row.pointer, row.size)),
            "free" => out.remove(&(row.pointer, row.size)),
            _ => false,
        };
        assert!(fits, "{row:?}");
    }
    assert!(out.is_empty());
}
