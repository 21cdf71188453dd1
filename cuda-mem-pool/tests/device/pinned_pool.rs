//! `PinnedMemoryResource`: every member and branch.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cuda_mem_core::Error as CoreError;
use cuda_mem_core::raw_pool::{AllocationType, MemoryLocation, MemoryPool, PoolProperties};
use cuda_mem_core::sys::CUmemPool_attribute;
use cuda_mem_pool::{
    DeviceMemoryResource, Error, MemoryResource, PinnedMemoryResource, PinnedMemoryResourceOptions, Uuid,
};

use crate::common::{World, child, pattern};
use crate::support::{device, has_host_pools, has_node_pools, node, on_node, pinned};

fn options() -> PinnedMemoryResourceOptions {
    PinnedMemoryResourceOptions::default()
}

#[test]
fn the_defaults_are_those_of_the_field() {
    let defaults = options();
    assert!(!defaults.ipc_enabled);
    assert_eq!(defaults.max_size, 0);
    assert_eq!(defaults.numa_id, None);
}

#[test]
fn without_options_it_is_the_drivers_pool_and_stays_its_own() {
    let world = World::new();
    if !has_host_pools(&world) {
        let refused = PinnedMemoryResource::new(&world.context, None).unwrap_err();
        assert!(matches!(refused, Error::NeedsDriver { needs: 13000, .. }));
        assert!(refused.to_string().contains("CUDA 13.0"), "{refused}");
        return;
    }
    let resource = PinnedMemoryResource::new(&world.context, None).unwrap();
    let threshold = resource.attributes().release_threshold().unwrap();
    assert!(!resource.is_handle_owned());
    assert!(!resource.is_ipc_enabled());
    assert_eq!(resource.numa_id(), -1);
    assert_eq!(resource.uuid(), None);
    let handle = resource.handle();
    assert!(resource.is_device_accessible().unwrap());
    let block = resource.allocate(4096, None).unwrap();
    resource.close();
    drop(block);
    let again = PinnedMemoryResource::new(&world.context, None).unwrap();
    assert_eq!(again.handle(), handle);
    assert_eq!(again.attributes().release_threshold().unwrap(), threshold);
    let block = again.allocate(4096, &world.stream).unwrap();
    assert_eq!(block.as_slice().unwrap().len(), 4096);
}

#[test]
fn the_current_pool_is_the_one_that_was_made_current() {
    let world = World::new();
    if !has_host_pools(&world) {
        return;
    }
    let properties = PoolProperties {
        allocation_type: AllocationType::Pinned,
        location: MemoryLocation::Host,
        shareable: false,
        max_size: 0,
    };
    let pool = MemoryPool::create(world.driver, &properties).unwrap();
    let default = MemoryPool::default_of(world.driver, MemoryLocation::Host, AllocationType::Pinned).unwrap();
    pool.make_current(MemoryLocation::Host, AllocationType::Pinned).unwrap();
    let resource = PinnedMemoryResource::new(&world.context, None).unwrap();
    let found = resource.handle();
    default.make_current(MemoryLocation::Host, AllocationType::Pinned).unwrap();
    assert_eq!(found, pool.as_raw());
    assert!(!resource.is_handle_owned());
    resource.close();
    pool.close().unwrap();
    assert_eq!(PinnedMemoryResource::new(&world.context, None).unwrap().handle(), default.as_raw());
}

/// Who was given a pool that a program made, and may let go, has it for as long as he wants.
#[test]
fn the_current_pool_outlives_the_one_who_made_it() {
    let world = World::new();
    if !has_host_pools(&world) {
        return;
    }
    let properties = PoolProperties {
        allocation_type: AllocationType::Pinned,
        location: MemoryLocation::Host,
        shareable: false,
        max_size: 0,
    };
    let (place, kind) = (MemoryLocation::Host, AllocationType::Pinned);
    let default = MemoryPool::default_of(world.driver, place, kind).unwrap();
    let pool = MemoryPool::create(world.driver, &properties).unwrap();
    pool.make_current(place, kind).unwrap();
    let given = MemoryPool::current(world.driver, place, kind).unwrap();
    assert!(given == pool && !given.is_owned());
    drop(pool);

    let address = given.allocate(4096, &world.stream).unwrap();
    // SAFETY: allocated above, not used, freed once.
    unsafe { cuda_mem_core::raw_pool::free(address, &world.stream) }.unwrap();
    world.stream.synchronize().unwrap();
    given.trim_to(0).unwrap();
    assert_eq!(given.attributes().unwrap().used_mem_current, 0);
    given.close().unwrap();
    // It went with the last of them.
    assert!(MemoryPool::current(world.driver, place, kind).unwrap() == default);
}

#[test]
fn with_options_the_pool_is_its_own_and_keeps_what_is_freed() {
    let world = World::new();
    let Some(resource) = pinned(&world) else { return };
    assert!(resource.is_handle_owned());
    assert!(!resource.is_mapped());
    assert_eq!(resource.device_id(), -1);
    assert!(resource.is_host_accessible());
    assert!(resource.is_device_accessible().unwrap());
    assert_eq!(resource.numa_id(), if has_host_pools(&world) { -1 } else { 0 });
    assert_eq!(resource.attributes().release_threshold().unwrap(), u64::MAX);
    drop(resource.allocate(8 << 20, &world.stream).unwrap());
    world.context.synchronize().unwrap();
    assert!(resource.attributes().reserved_mem_current().unwrap() >= 8 << 20);
    resource.trim_to(0).unwrap();
    assert_eq!(resource.attributes().reserved_mem_current().unwrap(), 0);
}

#[test]
fn a_node_wins_with_ipc_and_without() {
    let world = World::new();
    for ipc_enabled in [false, true] {
        let Some(resource) = on_node(&world, ipc_enabled) else { return };
        assert_eq!(resource.numa_id(), 0);
        assert_eq!(resource.is_ipc_enabled(), ipc_enabled);
        assert_eq!(resource.uuid().is_some(), ipc_enabled);
        assert_eq!(resource.attributes().release_threshold().unwrap(), u64::MAX);
        let mut block = resource.allocate(4096, None).unwrap();
        block.as_mut_slice().unwrap().fill(3);
    }
}

#[test]
fn numbers_that_are_no_nodes() {
    let world = World::new();
    for numa_id in [-1, i32::MIN] {
        let refused =
            PinnedMemoryResource::new(&world.context, &options().with_numa_id(numa_id)).unwrap_err();
        assert!(matches!(refused, Error::NegativeNumaId { numa_id: named } if named == numa_id));
    }
    let refused = PinnedMemoryResource::new(&world.context, &options().with_numa_id(63)).unwrap_err();
    if has_node_pools(&world) {
        let Error::NoSuchNumaNode { numa_id: 63, nodes } = &refused else { panic!("{refused}") };
        assert!(nodes.contains(&node(&world)));
        assert!(refused.to_string().contains(&nodes[0].to_string()));
    } else {
        assert!(matches!(refused, Error::NoSuchPool { .. }), "{refused}");
    }
}

#[test]
fn ipc_without_a_node_lies_next_to_the_device() {
    let world = World::new();
    let made = PinnedMemoryResource::new(&world.context, &options().with_ipc_enabled(true));
    if !has_node_pools(&world) {
        let refused = made.unwrap_err();
        assert!(matches!(refused, Error::NoNumaNode { .. } | Error::NoSuchPool { .. }), "{refused}");
        return;
    }
    assert_eq!(made.unwrap().numa_id(), node(&world));
    let near = options().near(world.context.device()).unwrap();
    assert_eq!(PinnedMemoryResource::new(&world.context, &near).unwrap().numa_id(), node(&world));
}

#[test]
fn the_current_device_is_the_threads_own() {
    let world = World::new();
    let ipc = options().with_ipc_enabled(true);
    // A thread of its own has no current context.
    let refused = thread::scope(|scope| {
        scope.spawn(|| PinnedMemoryResource::on_current_device(world.driver, &ipc).map(drop)).join().unwrap()
    });
    assert!(matches!(refused, Err(Error::NoCurrentContext { .. })));
    if has_node_pools(&world) {
        let made = world.context.with_current(|| PinnedMemoryResource::on_current_device(world.driver, &ipc));
        assert_eq!(made.unwrap().unwrap().numa_id(), node(&world));
    }
    if has_host_pools(&world) {
        let made = thread::scope(|scope| {
            scope.spawn(|| PinnedMemoryResource::on_current_device(world.driver, None)).join().unwrap()
        });
        assert!(!made.unwrap().is_handle_owned());
    }
}

#[test]
fn beyond_its_size_it_is_out_of_memory() {
    let world = World::new();
    let small = options().with_max_size(32 << 20);
    let small = if has_host_pools(&world) { small } else { small.with_numa_id(0) };
    let Ok(resource) = PinnedMemoryResource::new(&world.context, &small) else {
        assert!(!has_node_pools(&world));
        return;
    };
    let kept = resource.allocate(1 << 20, &world.stream).unwrap();
    let refused = resource.allocate(64 << 20, &world.stream).unwrap_err();
    let Error::OutOfMemory { requested, used, limit, source: Some(_) } = &refused else {
        panic!("{refused}")
    };
    assert_eq!((*requested, *limit), (64 << 20, 32 << 20));
    assert!(*used >= 1 << 20);
    assert_eq!(refused.driver_error().map(|error| error.code().0), Some(2));
    drop(kept);
    resource.allocate(16 << 20, &world.stream).unwrap();
}

#[test]
fn the_pool_goes_with_the_last_of_its_memory() {
    let world = World::new();
    let Some(resource) = pinned(&world) else { return };
    let mut block = resource.allocate(4096, &world.stream).unwrap();
    resource.close();
    block.as_mut_slice().unwrap().fill(5);
    let device = device(&world).allocate(4096, &world.stream).unwrap();
    device.copy_from_slice(&world.stream, block.as_slice().unwrap()).unwrap();
    assert_eq!(device.to_vec(&world.stream).unwrap(), [5; 4096]);
    block.close().unwrap();
}

#[test]
fn attributes_are_read_and_set() {
    let world = World::new();
    let Some(resource) = pinned(&world) else { return };
    let attributes = resource.attributes();
    for value in [false, true] {
        attributes.set_reuse_follow_event_dependencies(value).unwrap();
        attributes.set_reuse_allow_opportunistic(value).unwrap();
        attributes.set_reuse_allow_internal_dependencies(value).unwrap();
        assert_eq!(attributes.reuse_follow_event_dependencies().unwrap(), value);
        assert_eq!(attributes.reuse_allow_opportunistic().unwrap(), value);
        assert_eq!(attributes.reuse_allow_internal_dependencies().unwrap(), value);
    }
    attributes.set_release_threshold(1 << 20).unwrap();
    assert_eq!(attributes.release_threshold().unwrap(), 1 << 20);
    let block = resource.allocate(1 << 20, &world.stream).unwrap();
    assert!(attributes.used_mem_current().unwrap() >= 1 << 20);
    assert!(attributes.reserved_mem_current().unwrap() >= attributes.used_mem_current().unwrap());
    block.close().unwrap();
    world.context.synchronize().unwrap();
    assert_eq!(attributes.used_mem_current().unwrap(), 0);
    assert!(attributes.used_mem_high().unwrap() >= 1 << 20);
    assert!(attributes.reserved_mem_high().unwrap() >= 1 << 20);
    attributes.reset_used_mem_high().unwrap();
    assert_eq!(attributes.used_mem_high().unwrap(), 0);
    resource.pool_is_trimmed();
    attributes.reset_reserved_mem_high().unwrap();
    assert_eq!(attributes.reserved_mem_high().unwrap(), attributes.reserved_mem_current().unwrap());
    assert!(resource.handle() as usize != 0);
    let read_only = CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
    let pool = MemoryPool::current_of_device(world.context.device()).unwrap();
    assert_eq!(pool.set_number(read_only, 0).unwrap_err().code().unwrap().0, 1);
}

trait Trimmed {
    fn pool_is_trimmed(&self);
}

impl Trimmed for PinnedMemoryResource {
    fn pool_is_trimmed(&self) {
        self.trim_to(0).unwrap();
        assert_eq!(self.attributes().reserved_mem_current().unwrap(), 0);
    }
}

#[test]
fn a_handle_takes_an_ipc_pool() {
    let world = World::new();
    let Some(private) = pinned(&world) else { return };
    assert!(matches!(private.allocation_handle(), Err(Error::NotIpcEnabled)));
    assert!(matches!(private.register(Uuid::new_v4()), Err(Error::NotIpcEnabled)));
    let Some(shared) = on_node(&world, true) else { return };
    let handle = shared.allocation_handle().unwrap();
    assert!(shared.uuid().is_some() && private.uuid().is_none());
    // Exported once, and kept.
    assert_eq!(handle.as_raw_fd(), shared.allocation_handle().unwrap().as_raw_fd());
    let reserved_behind_a_block = || {
        shared.allocate(1 << 20, &world.stream).unwrap().close().unwrap();
        world.context.synchronize().unwrap();
        shared.attributes().reserved_mem_current().unwrap()
    };
    let kept = reserved_behind_a_block();
    shared.trim_to(0).unwrap();
    let trimmed = shared.attributes().reserved_mem_current().unwrap();
    shared.attributes().set_release_threshold(0).unwrap();
    let released = reserved_behind_a_block();
    // Of older drivers NVIDIA documents that an IPC pool ignores both.
    if has_host_pools(&world) {
        assert!(kept >= 1 << 20, "{kept}");
        assert_eq!((trimmed, released), (0, 0));
    }
}

#[test]
fn an_imported_pool_is_mapped_and_gives_no_memory() {
    let world = World::new();
    let Some(shared) = on_node(&world, true) else { return };
    let handle = shared.allocation_handle().unwrap();
    let by_handle =
        PinnedMemoryResource::from_allocation_handle(&world.context, handle, shared.uuid()).unwrap();
    assert_eq!(by_handle.uuid(), shared.uuid());
    // SAFETY: a descriptor that lives as long as the handle.
    let number = unsafe { BorrowedFd::borrow_raw(handle.as_raw_fd()) };
    let by_number = PinnedMemoryResource::from_allocation_handle(&world.context, number, None).unwrap();
    let by_descriptor = PinnedMemoryResource::from_allocation_handle(&world.context, handle, None).unwrap();
    assert_eq!(by_number.uuid(), None);
    for mapped in [by_handle, by_number, by_descriptor] {
        assert!(mapped.is_mapped() && mapped.is_ipc_enabled() && mapped.is_handle_owned());
        assert!(mapped.is_device_accessible().unwrap());
        assert_eq!(mapped.numa_id(), -1);
        assert!(matches!(mapped.allocate(64, None), Err(Error::Mapped)));
        assert!(matches!(mapped.allocation_handle(), Err(Error::Mapped)));
        assert!(matches!(mapped.attributes().used_mem_current(), Err(Error::Mapped)));
        assert!(matches!(mapped.attributes().set_release_threshold(0), Err(Error::Mapped)));
        assert!(matches!(mapped.trim_to(0), Err(Error::Mapped)));
    }
    // The descriptor is still the exporter's.
    assert_eq!(handle.as_raw_fd(), shared.allocation_handle().unwrap().as_raw_fd());
    shared.allocate(64, None).unwrap().close().unwrap();
    let no_pool = std::fs::File::open("/dev/null").unwrap();
    let refused = PinnedMemoryResource::from_allocation_handle(&world.context, no_pool, None).unwrap_err();
    assert!(matches!(refused, Error::Core(CoreError::Driver(_))), "{refused}");
}

#[test]
fn the_registry_returns_the_first_and_keeps_nothing_alive() {
    let world = World::new();
    let unknown = Uuid::new_v4();
    let refused = PinnedMemoryResource::from_registry(unknown).unwrap_err();
    assert!(matches!(refused, Error::NotRegistered { uuid } if uuid == unknown));
    let Some(shared) = on_node(&world, true) else { return };
    let handle = shared.allocation_handle().unwrap();
    let import = || PinnedMemoryResource::from_allocation_handle(&world.context, handle, None).unwrap();
    let (first, second) = (import(), import());
    let uuid = shared.uuid().unwrap();
    assert_eq!(first.register(uuid).unwrap(), first);
    assert_eq!(first.uuid(), Some(uuid));
    assert_eq!(second.register(uuid).unwrap(), first);
    assert_eq!(PinnedMemoryResource::from_registry(uuid).unwrap(), first);
    let other_kind = DeviceMemoryResource::from_registry(uuid).unwrap_err();
    assert!(matches!(other_kind, Error::OtherKind { .. }), "{other_kind}");
    drop(first);
    assert!(matches!(PinnedMemoryResource::from_registry(uuid), Err(Error::NotRegistered { .. })));
    assert_eq!(second.register(uuid).unwrap(), second);
}

#[test]
fn a_pool_is_registered_under_its_own_uuid_alone() {
    let world = World::new();
    let Some(shared) = on_node(&world, true) else { return };
    let handle = shared.allocation_handle().unwrap();
    let (own, other) = (shared.uuid().unwrap(), Uuid::new_v4());
    let bare = PinnedMemoryResource::from_allocation_handle(&world.context, handle, None).unwrap();
    let named = PinnedMemoryResource::from_allocation_handle(&world.context, handle, own).unwrap();
    for pool in [&shared, &named] {
        let refused = pool.register(other).unwrap_err();
        let is_told =
            matches!(refused, Error::OtherUuid { own: said, asked } if (said, asked) == (own, other));
        assert!(is_told, "{refused}");
        let unknown = PinnedMemoryResource::from_registry(other);
        assert!(matches!(unknown, Err(Error::NotRegistered { .. })), "nothing was entered");
    }
    // One without a UUID gets that which it is registered under first; whoever is registered comes before the pool that asks.
    assert_eq!(bare.register(other).unwrap(), bare);
    assert_eq!((bare.uuid(), shared.uuid()), (Some(other), Some(own)));
    assert_eq!(shared.register(other).unwrap(), bare);
    let refused = bare.register(own).unwrap_err();
    assert!(matches!(refused, Error::OtherUuid { .. }), "{refused}");
    assert_eq!(shared.register(own).unwrap(), shared);
}

#[test]
fn a_forked_child_finds_nothing_in_the_registry_and_does_not_hang() {
    let world = World::new();
    let Some(shared) = on_node(&world, true) else { return };
    let uuid = shared.uuid().unwrap();
    shared.register(uuid).unwrap();
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        // It has the lock at most times.
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                shared.register(uuid).unwrap();
            }
        });
        let children = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..20 {
                child::forked(|| {
                    let refused = [PinnedMemoryResource::from_registry(uuid), shared.register(uuid)];
                    let is_refused = |one: &Result<_, _>| matches!(one, Err(Error::Core(CoreError::Forked)));
                    refused.iter().all(is_refused).then_some(()).ok_or_else(|| format!("{refused:?}\n"))
                });
            }
        }));
        has_ended.store(true, Ordering::Relaxed);
        children.unwrap();
    });
}

#[test]
fn one_pool_serves_several_streams() {
    let world = World::new();
    let Some(resource) = pinned(&world) else { return };
    let streams = [world.new_stream(), world.new_stream(), world.new_stream()];
    for round in 0..20u8 {
        let mut blocks =
            streams.iter().map(|stream| resource.allocate(10_000, stream).unwrap()).collect::<Vec<_>>();
        for (seed, block) in (0u8..).zip(&mut blocks) {
            let bytes = pattern(10_000, seed ^ round);
            block.as_mut_slice().unwrap().copy_from_slice(&bytes);
        }
        for (seed, block) in (0u8..).zip(&blocks) {
            assert_eq!(block.as_slice().unwrap(), pattern(10_000, seed ^ round));
        }
    }
}
