//! Pools and their blocks.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use cuda_mem_core::raw_pool::{
    self, AllocationType, ImportedBlock, MemoryLocation, MemoryPool, PointerExport, PoolProperties,
};
use cuda_mem_core::{Driver, Error};

use crate::common::gate::Gate;
use crate::common::pair::{self, Cast, Channel, Message, checksum, test_name};
use crate::common::{World, pattern};
use crate::{download, upload};

pub(crate) const LEN: usize = 3 << 20;

/// A pool that other processes may have; none where the driver has no such pools.
pub(crate) fn shareable(driver: Driver, location: MemoryLocation) -> Option<MemoryPool> {
    let allocation_type = AllocationType::Pinned;
    let made = MemoryPool::create(
        driver,
        &PoolProperties { allocation_type, location, shareable: true, max_size: 0 },
    );
    match made {
        Ok(pool) => Some(pool),
        Err(error) => {
            assert!(matches!(location, MemoryLocation::HostNuma(_)), "{error}");
            assert_eq!(error.code().map(|code| code.0), Some(1), "{error}");
            None
        }
    }
}

/// An export as it was sent: the pool's descriptor with the bytes.
pub(crate) fn decode(message: Message) -> (OwnedFd, PointerExport) {
    let export = PointerExport::from_bytes(message.bytes.try_into().unwrap());
    (crate::vmm::only(message.descriptors), export)
}

fn importer(first: &Channel) {
    let world = World::new();
    let (descriptor, export) = decode(first.receive());
    let pool = Arc::new(MemoryPool::import(world.driver, descriptor.as_fd()).unwrap());
    let again = MemoryPool::import(world.driver, descriptor.as_fd()).unwrap();
    drop(descriptor);
    // It takes nothing from the first one, whether the driver has one pool for both or two.
    again.close().unwrap();
    let stream = world.new_stream();
    // SAFETY: imported once at a time, from the process that exported the pool, which frees after this one.
    let import = |bytes| unsafe { ImportedBlock::import(&pool, &export, bytes, &stream) };
    let beyond = import(LEN + (64 << 20));
    assert!(matches!(beyond, Err(Error::NotAsDeclared { what: "the size", .. })), "{beyond:?}");
    stream.synchronize().unwrap();
    let block = import(LEN).unwrap();
    let address = block.on(&world.stream).unwrap().address();
    first.send_words(&[checksum(&download(&world.stream, address + 1001, LEN - 1001))]);
    upload(&world.stream, address, &pattern(5000, 6));
    block.close().unwrap();
    stream.synchronize().unwrap();
    first.send(b"freed", &[]);
    drop(pool);
    assert_eq!(world.driver.release_failures(), 0);
}

fn exporter(cast: Cast, location: MemoryLocation) {
    let world = World::new();
    let Some(pool) = shareable(world.driver, location) else { return };
    let address = pool.allocate(LEN, &world.stream).unwrap();
    let mut bytes = pattern(LEN, 5);
    upload(&world.stream, address, &bytes);
    let importer = cast.start("importer");
    // SAFETY: nobody is given the export, if there were one.
    let early = unsafe { MemoryPool::export_pointer(world.driver, address) };
    assert_eq!(early.unwrap_err().code().map(|code| code.0), Some(1), "of a pool that was not exported");
    let descriptor = pool.export().unwrap();
    // SAFETY: nothing here borrows the memory; it is freed after the importer's free.
    let export = unsafe { MemoryPool::export_pointer(world.driver, address) }.unwrap();
    importer.send(export.as_bytes(), &[descriptor.as_fd()]);
    assert_eq!(importer.receive().words(), [checksum(&bytes[1001..])]);
    assert_eq!(importer.receive().bytes, b"freed");
    bytes[..5000].copy_from_slice(&pattern(5000, 6));
    assert!(download(&world.stream, address, LEN) == bytes);
    importer.finish();
    // SAFETY: no work uses it, here or there.
    unsafe { raw_pool::free(address, &world.stream) }.unwrap();
}

/// It would have the memory, and keep it for as long as it runs.
#[test]
fn a_program_that_is_started_does_not_get_the_descriptor_of_a_pool() {
    let world = World::new();
    let descriptor = shareable(world.driver, MemoryLocation::Device(0)).unwrap().export().unwrap();
    // SAFETY: an open descriptor; the command takes no argument.
    let flags = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFD) };
    assert_eq!(flags, libc::FD_CLOEXEC);
}

#[test]
fn a_block_of_a_device_pool_is_the_same_bytes_in_another_process() {
    let roles: &[(&str, pair::Body)] = &[("importer", importer)];
    pair::play(test_name!(), roles, |cast| exporter(cast, MemoryLocation::Device(0)));
}

#[test]
fn a_block_of_a_pool_on_a_node_of_the_host_is_the_same_bytes_in_another_process() {
    let roles: &[(&str, pair::Body)] = &[("importer", importer)];
    pair::play(test_name!(), roles, |cast| exporter(cast, MemoryLocation::HostNuma(0)));
}

#[test]
fn what_waits_for_a_free_waits_until_it_is_reached() {
    let world = World::new();
    let pool = shareable(world.driver, MemoryLocation::Device(0)).unwrap();
    let address = pool.allocate(LEN, &world.stream).unwrap();
    world.stream.synchronize().unwrap();
    let theirs = Arc::new(MemoryPool::import(world.driver, pool.export().unwrap().as_fd()).unwrap());
    let stream = world.new_stream();
    // SAFETY: nothing here borrows the memory; it is freed after the import is.
    let export = unsafe { MemoryPool::export_pointer(world.driver, address) }.unwrap();
    // SAFETY: imported once, from the pool's own process.
    let mut block = unsafe { ImportedBlock::import(&theirs, &export, LEN, &stream) }.unwrap();
    let guard = Arc::new(());
    block.drop_after_free(Arc::clone(&guard));
    let gate = Gate::before(&stream);
    block.close().unwrap();
    assert_eq!(world.driver.reclaim(), 1);
    assert_eq!(Arc::strong_count(&guard), 2);
    gate.open();
    stream.synchronize().unwrap();
    assert_eq!(world.driver.reclaim(), 0);
    assert_eq!(Arc::strong_count(&guard), 1);
    // SAFETY: no work uses it.
    unsafe { raw_pool::free(address, &world.stream) }.unwrap();
}
