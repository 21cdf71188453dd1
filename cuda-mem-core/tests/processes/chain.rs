//! What was imported goes on to a third process: A to B to C.

use std::os::fd::AsFd;
use std::sync::Arc;

use cuda_mem_core::Error;
use cuda_mem_core::ipc::{DeviceAllocation, MemoryHandle, OpenedMemory, SharedWords};
use cuda_mem_core::raw_pool::{self, ImportedBlock, MemoryLocation, MemoryPool};
use cuda_mem_core::vmm::PhysicalMemory;

use crate::common::pair::{self, Cast, Channel, checksum, test_name};
use crate::common::{World, pattern};
use crate::legacy::{decode, encode};
use crate::pools::LEN;
use crate::vmm::{Mapped, shareable};
use crate::{download, pools, upload};

fn expect_code<T: std::fmt::Debug>(result: Result<T, Error>, code: u32) {
    let error = result.unwrap_err();
    assert_eq!(error.code().map(|code| code.0), Some(code), "{error}");
}

/// Passes what came on to C, once this process has used it, and C's answer back to A.
fn pass_on(test: &'static str, first: &Channel, import: impl FnOnce(&World, &pair::Message) -> u64) {
    let world = World::new();
    let message = first.receive();
    first.send_words(&[import(&world, &message)]);
    let third = Cast::of(test).start("c");
    let descriptors: Vec<_> = message.descriptors.iter().map(AsFd::as_fd).collect();
    third.send(&message.bytes, &descriptors);
    first.send(&third.receive().bytes, &[]);
    third.finish();
    assert_eq!(world.driver.release_failures(), 0);
}

/// C adds its own bytes, and tells what it saw before.
fn last(first: &Channel, import: impl FnOnce(&World, &pair::Message) -> u64) {
    let world = World::new();
    let seen = import(&world, &first.receive());
    first.send_words(&[seen]);
}

/// A's part: both others must see its bytes.
fn begin(cast: Cast, bytes: &[u8], message: &[u8], descriptors: &[std::os::fd::BorrowedFd<'_>]) {
    let second = cast.start("b");
    second.send(message, descriptors);
    assert_eq!(second.receive().words(), [checksum(bytes)], "B");
    assert_eq!(second.receive().words(), [checksum(bytes)], "C");
    second.finish();
}

fn use_opened(world: &World, message: &pair::Message) -> u64 {
    let memory = OpenedMemory::open(&world.context, &decode(message)).unwrap();
    // The driver exports nothing that is another's.
    // SAFETY: nobody is given the handle, if there were one.
    expect_code(unsafe { MemoryHandle::of_address(&world.context, memory.as_raw(), 1) }, 1);
    checksum(&download(&world.stream, memory.as_raw(), LEN))
}

const LEGACY: &str = "chain::a_legacy_handle_is_passed_on";

#[test]
fn a_legacy_handle_is_passed_on() {
    let roles: &[(&str, pair::Body)] =
        &[("b", |first| pass_on(LEGACY, first, use_opened)), ("c", |first| last(first, use_opened))];
    assert_eq!(LEGACY, test_name!());
    pair::play(LEGACY, roles, |cast| {
        let world = World::new();
        let memory = DeviceAllocation::new(&world.context, LEN + 5000).unwrap();
        upload(&world.stream, memory.as_raw() + 5000, &pattern(LEN, 40));
        // SAFETY: the memory stays until the peer has closed what it opened.
        let handle = unsafe { memory.handle(5000..5000 + LEN) }.unwrap();
        begin(cast, &pattern(LEN, 40), &encode(&handle), &[]);
    });
}

fn use_physical(world: &World, message: &pair::Message) -> u64 {
    let device = world.context.device();
    let bytes = usize::try_from(message.words()[0]).unwrap();
    let descriptor = message.descriptors[0].as_fd();
    let memory = PhysicalMemory::import_posix_fd(device, descriptor, bytes).unwrap();
    let mapped = Mapped::new(device, &memory);
    checksum(&download(&world.stream, mapped.address(), bytes))
}

const PHYSICAL: &str = "chain::a_descriptor_of_memory_is_passed_on";

#[test]
fn a_descriptor_of_memory_is_passed_on() {
    let roles: &[(&str, pair::Body)] =
        &[("b", |first| pass_on(PHYSICAL, first, use_physical)), ("c", |first| last(first, use_physical))];
    assert_eq!(PHYSICAL, test_name!());
    pair::play(PHYSICAL, roles, |cast| {
        let world = World::new();
        let memory = shareable(&world);
        let mapped = Mapped::new(world.context.device(), memory.memory());
        let len = memory.memory().bytes();
        let bytes = pattern(len, 41);
        upload(&world.stream, mapped.address(), &bytes);
        let descriptor = memory.export_posix_fd().unwrap();
        begin(cast, &bytes, &(len as u64).to_le_bytes(), &[descriptor.as_fd()]);
    });
}

fn use_block(world: &World, message: &pair::Message) -> u64 {
    let export = raw_pool::PointerExport::from_bytes(message.bytes[..].try_into().unwrap());
    let pool = Arc::new(MemoryPool::import(world.driver, message.descriptors[0].as_fd()).unwrap());
    expect_code(pool.export(), 1);
    let stream = world.new_stream();
    // SAFETY: imported once in this process, from the one that exported the pool, which frees last.
    let block = unsafe { ImportedBlock::import(&pool, &export, LEN, &stream) }.unwrap();
    // SAFETY: nobody is given the export, if there were one.
    expect_code(unsafe { MemoryPool::export_pointer(world.driver, block.as_raw()) }, 1);
    let seen = checksum(&download(&stream, block.as_raw(), LEN));
    block.close().unwrap();
    stream.synchronize().unwrap();
    seen
}

const POOL: &str = "chain::a_pool_and_its_block_are_passed_on";

#[test]
fn a_pool_and_its_block_are_passed_on() {
    let roles: &[(&str, pair::Body)] =
        &[("b", |first| pass_on(POOL, first, use_block)), ("c", |first| last(first, use_block))];
    assert_eq!(POOL, test_name!());
    pair::play(POOL, roles, |cast| {
        let world = World::new();
        let pool = pools::shareable(world.driver, MemoryLocation::Device(0)).unwrap();
        let address = pool.allocate(LEN, &world.stream).unwrap();
        upload(&world.stream, address, &pattern(LEN, 42));
        let descriptor = pool.export().unwrap();
        // SAFETY: nothing here borrows the memory; it is freed after the others' frees.
        let export = unsafe { MemoryPool::export_pointer(world.driver, address) }.unwrap();
        begin(cast, &pattern(LEN, 42), export.as_bytes(), &[descriptor.as_fd()]);
        // SAFETY: no work uses it, in any process.
        unsafe { raw_pool::free(address, &world.stream) }.unwrap();
    });
}

const WORDS: &str = "chain::a_fence_reaches_all_who_have_the_words";

fn wait_in_stream(world: &World, message: &pair::Message) -> u64 {
    let descriptor = message.descriptors[0].try_clone().unwrap();
    let words = SharedWords::open(&world.context, descriptor).unwrap();
    let fence = words.line(9).unwrap().fence(message.words()[0]).unwrap();
    let stream = world.new_stream();
    fence.make_wait(&stream).unwrap();
    stream.synchronize().unwrap();
    assert!(fence.is_complete().unwrap());
    checksum(&[9])
}

#[test]
fn a_fence_reaches_all_who_have_the_words() {
    let roles: &[(&str, pair::Body)] =
        &[("b", |first| pass_on(WORDS, first, wait_in_stream)), ("c", |first| last(first, wait_in_stream))];
    assert_eq!(WORDS, test_name!());
    pair::play(WORDS, roles, |cast| {
        let world = World::new();
        let words = SharedWords::create(&world.context, 10).unwrap();
        let fence = words.line(9).unwrap().record(&world.stream).unwrap();
        let number = fence.generation().unwrap().to_le_bytes();
        begin(cast, &[9], &number, &[words.as_fd()]);
    });
}
