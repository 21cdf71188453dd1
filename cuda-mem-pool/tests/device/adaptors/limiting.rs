//! `LimitingAdaptor`.

use cuda_mem_pool::{Error, LimitingAdaptor, MemoryResource};

use super::faulty::Faulty;
use crate::common::World;
use crate::support::device;

const MIB: usize = 1 << 20;

#[test]
fn more_than_the_limit_at_once_is_refused_with_the_figures() {
    let world = World::new();
    let upstream = Faulty::new(&world);
    let resource = LimitingAdaptor::new(upstream.clone(), 5 * MIB as u64);
    let kept = resource.allocate(MIB, &world.stream).unwrap();
    assert_eq!(upstream.asked().len(), 1);
    let refused = resource.allocate(5 * MIB, &world.stream).unwrap_err();
    let Error::OutOfMemory { requested, used, limit, source: None } = &refused else { panic!("{refused}") };
    assert_eq!((*requested, *used, *limit), (5 * MIB, MIB as u64, 5 * MIB as u64));
    assert!(refused.to_string().contains("5242880"), "{refused}");
    assert!(upstream.asked().is_empty());
    assert_eq!(resource.allocated_bytes(), kept.len() as u64);
}

#[test]
fn the_last_byte_is_within_and_the_next_is_not() {
    let world = World::new();
    let resource = LimitingAdaptor::new(device(&world), 1000);
    let block = resource.allocate(999, &world.stream).unwrap();
    assert!(resource.allocate(2, &world.stream).is_err());
    let last = resource.allocate(1, &world.stream).unwrap();
    assert!(resource.allocate(1, &world.stream).is_err());
    // Nothing is always to be had.
    assert_eq!(resource.allocate(0, &world.stream).unwrap().address(), 0);
    drop((block, last));
    assert!(resource.allocate(isize::MAX as usize - 255, &world.stream).is_err());
    assert_eq!(resource.allocated_bytes(), 0);
}

#[test]
fn by_address_it_counts_too() {
    let world = World::new();
    let resource = LimitingAdaptor::new(device(&world), 4096);
    let address = resource.allocate_raw(4096, None).unwrap();
    assert!(resource.allocate_raw(1, None).is_err());
    // SAFETY: allocated above and not used.
    unsafe { resource.deallocate(address, 4096, None) }.unwrap();
    assert_eq!(resource.allocated_bytes(), 0);
    let clone = resource.clone();
    assert_eq!(clone, resource);
    world.context.synchronize().unwrap();
    assert_eq!(resource.upstream().attributes().used_mem_current().unwrap(), clone.allocated_bytes());
}
