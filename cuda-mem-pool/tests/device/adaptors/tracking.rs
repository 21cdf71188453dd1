//! `TrackingAdaptor`.

use std::backtrace::Backtrace;

use cuda_mem_core::Error::{NotAllocated, WrongSize};
use cuda_mem_pool::statistics::Stat;
use cuda_mem_pool::{Allocation, DeviceAccessible, Error, MemoryResource, TrackingAdaptor};

use super::faulty::{Faulty, is_refusal};
use crate::common::World;
use crate::support::device;

#[test]
fn what_is_left_is_named_with_its_stream() {
    let world = World::new();
    let resource = TrackingAdaptor::new(device(&world), false);
    let other = world.new_stream();
    let mut blocks =
        (1..=9).map(|size| resource.allocate(size * 10, &world.stream).unwrap()).collect::<Vec<_>>();
    blocks.push(resource.allocate(100, &other).unwrap());
    blocks.retain(|block| block.len() % 20 == 0);
    let mut expected = blocks
        .iter()
        .map(|block| {
            (block.address(), block.len(), if block.len() == 100 { other.id() } else { world.stream.id() })
        })
        .collect::<Vec<_>>();
    expected.sort_unstable();
    let out = resource.outstanding_allocations();
    assert!(out.iter().all(|one| one.backtrace.is_none()));
    assert_eq!(out.iter().map(|one| (one.address, one.bytes, one.stream)).collect::<Vec<_>>(), expected);
    assert_eq!(resource.bytes().current, 20 + 40 + 60 + 80 + 100);
}

#[test]
fn a_backtrace_names_who_allocated() {
    let world = World::new();
    let resource = TrackingAdaptor::new(device(&world), true);
    #[inline(never)]
    fn the_culprit(
        resource: &impl MemoryResource<Access = DeviceAccessible>,
    ) -> (Allocation<DeviceAccessible>, Backtrace) {
        (resource.allocate(64, None).unwrap(), Backtrace::force_capture())
    }
    let (block, own) = the_culprit(&resource.clone());
    let out = resource.outstanding_allocations();
    let backtrace = out[0].backtrace.as_ref().unwrap();
    assert_eq!(backtrace.status(), own.status());
    // A stripped program has no names.
    let has_names = own.to_string().contains("the_culprit");
    assert_eq!(backtrace.to_string().contains("the_culprit"), has_names, "{backtrace}");
    drop(block);
}

#[test]
fn one_over_another_sees_its_own() {
    let world = World::new();
    let inner = TrackingAdaptor::new(device(&world), false);
    let outer = TrackingAdaptor::new(inner.clone(), false);
    assert_eq!(outer.upstream(), &inner);
    assert_ne!(TrackingAdaptor::new(inner.clone(), false), outer);
    let below = inner.allocate(10, &world.stream).unwrap();
    let above = outer.allocate(20, &world.stream).unwrap();
    assert_eq!((outer.bytes().current, inner.bytes().current), (20, 30));
    assert_eq!(outer.upstream().outstanding_allocations().len(), 2);
    drop(below);
    assert_eq!((outer.bytes().current, inner.bytes().current), (20, 20));
    drop(above);
    assert_eq!((outer.bytes().current, inner.bytes().current), (0, 0));
}

#[test]
fn a_free_with_another_size_frees_nothing() {
    let world = World::new();
    let upstream = Faulty::new(device(&world));
    let resource = TrackingAdaptor::new(upstream.clone(), false);
    let address = resource.allocate_raw(1000, &world.stream).unwrap();
    let used = upstream.used();
    // SAFETY: refused, which is what is tested.
    let refused = unsafe { resource.deallocate(address, 999, None) }.unwrap_err();
    let Error::Core(WrongSize { address: named, given: 999, allocated: 1000 }) = refused else {
        panic!("{refused}")
    };
    assert_eq!((named, upstream.used()), (address, used));
    assert_eq!(resource.bytes().current, 1000);
    // SAFETY: allocated above and not used; the free before was refused.
    unsafe { resource.deallocate(address, 1000, None) }.unwrap();
    assert_eq!(resource.bytes().current, 0);
}

#[test]
fn a_free_of_something_else_frees_nothing_and_counts_nothing() {
    let world = World::new();
    let upstream = device(&world);
    let resource = TrackingAdaptor::new(upstream.clone(), false);
    let other = upstream.allocate_raw(4096, &world.stream).unwrap();
    let kept = resource.allocate(100, &world.stream).unwrap();
    // Both share the upstream's memory of streams, so only the books know that this is not theirs.
    // SAFETY: refused, which is what is tested.
    let refused = unsafe { resource.deallocate(other, 4096, None) }.unwrap_err();
    assert!(matches!(refused, Error::Core(NotAllocated { address }) if address == other), "{refused}");
    assert_eq!(resource.bytes().current, 100);
    // SAFETY: allocated above and not used; the free before was refused.
    unsafe { upstream.deallocate(other, 4096, None) }.unwrap();
    drop(kept);
    assert_eq!(resource.bytes().current, 0);
}

#[test]
fn what_the_upstream_does_not_take_is_still_out() {
    let world = World::new();
    let upstream = Faulty::new(device(&world));
    let resource = TrackingAdaptor::new(upstream.clone(), false);
    let block = resource.allocate(100, &world.stream).unwrap();
    upstream.refuse_frees(1);
    let refused = block.close().unwrap_err();
    assert!(is_refusal(&refused.error));
    assert_eq!(resource.outstanding_allocations()[0].address, refused.owner.address());
    let all = Stat { current: 100, peak: 100, allocated: 100, freed: 0 };
    assert_eq!((resource.bytes(), resource.allocations().freed), (all, 0));
    refused.owner.close().unwrap();
    upstream.refuse_allocations(1);
    assert!(resource.allocate(100, &world.stream).is_err());
    assert_eq!(resource.bytes().current, 0);
}

#[test]
fn memory_outlives_the_last_handle() {
    let world = World::new();
    let upstream = device(&world);
    let resource = TrackingAdaptor::new(upstream.clone(), true);
    let block = resource.allocate(4096, &world.stream).unwrap();
    drop(resource);
    block.copy_from_slice(&world.stream, &[7; 4096]).unwrap();
    assert_eq!(block.to_vec(&world.stream).unwrap(), [7; 4096]);
    block.close().unwrap();
    world.context.synchronize().unwrap();
    assert_eq!(upstream.attributes().used_mem_current().unwrap(), 0);
}
