//! A process that is killed, and what the other has of it.

use std::os::fd::AsFd;

use cuda_mem_core::ipc::{DeviceAllocation, OpenedMemory, SharedWords};
use cuda_mem_core::vmm::PhysicalMemory;
use cuda_mem_core::{DeviceBuffer, Error};

use crate::common::gate::Gate;
use crate::common::pair::{self, Channel, test_name};
use crate::common::{World, pattern};
use crate::legacy::{decode, encode};
use crate::vmm::{Mapped, only, shareable};
use crate::{download, upload};

const LEN: usize = 100_000;

/// Waits to be killed.
fn stay(first: &Channel) -> ! {
    first.send(b"ready", &[]);
    loop {
        std::thread::park();
    }
}

/// The context does what it did before.
fn expect_usable(world: &World) {
    let stream = world.new_stream();
    let bytes = pattern(LEN, 77);
    assert!(DeviceBuffer::from_slice(&stream, &bytes).unwrap().to_vec(&stream).unwrap() == bytes);
    world.context.synchronize().unwrap();
    assert_eq!(world.driver.release_failures(), 0);
}

fn exporter(first: &Channel) {
    let world = World::new();
    let words = SharedWords::create(&world.context, 1).unwrap();
    let memory = shareable(&world);
    let mapped = Mapped::new(world.context.device(), memory.memory());
    upload(&world.stream, mapped.address(), &pattern(LEN, 20));
    let stream = world.new_stream();
    let _gate = Gate::before(&stream);
    let fence = words.line(0).unwrap().record(&stream).unwrap();
    let descriptor = memory.export_posix_fd().unwrap();
    first.send_words(&[memory.memory().bytes() as u64, fence.generation().unwrap()]);
    first.send(b"handles", &[descriptor.as_fd(), words.as_fd()]);
    stay(first);
}

#[test]
fn who_waits_for_an_exporter_that_was_killed_is_let_go_by_poison() {
    pair::play(test_name!(), &[("exporter", exporter)], |cast| {
        let world = World::new();
        let device = world.context.device();
        let mut exporter = cast.start("exporter");
        let numbers = exporter.receive().words();
        let mut descriptors = exporter.receive().descriptors;
        let words = SharedWords::open(&world.context, descriptors.pop().unwrap()).unwrap();
        let bytes = usize::try_from(numbers[0]).unwrap();
        let memory = PhysicalMemory::import_posix_fd(device, only(descriptors).as_fd(), bytes).unwrap();
        let mapped = Mapped::new(device, &memory);
        let line = words.line(0).unwrap();
        let fence = line.fence(numbers[1]).unwrap();
        let stream = world.new_stream();
        fence.make_wait(&stream).unwrap();
        assert_eq!(exporter.receive().bytes, b"ready");
        exporter.kill();
        assert!(!stream.is_idle().unwrap(), "the dead write no fence");
        assert!(!fence.is_complete().unwrap());
        line.poison();
        stream.synchronize().unwrap();
        assert!(matches!(fence.is_complete(), Err(Error::Poisoned)));
        // The memory is the importer's as well.
        assert!(download(&stream, mapped.address(), LEN) == pattern(LEN, 20));
        drop((fence, line, words, mapped, memory));
        expect_usable(&world);
    });
}

fn importer(first: &Channel) {
    let world = World::new();
    let words = SharedWords::open(&world.context, only(first.receive().descriptors)).unwrap();
    let memory = OpenedMemory::open(&world.context, &decode(&first.receive())).unwrap();
    let stream = world.new_stream();
    words.line(0).unwrap().fence(1).unwrap().make_wait(&stream).unwrap();
    let _address = memory.on(&stream).unwrap().address();
    stay(first);
}

#[test]
fn an_importer_that_is_killed_while_it_waits_takes_nothing_with_it() {
    pair::play(test_name!(), &[("importer", importer)], |cast| {
        let world = World::new();
        let before = world.context.memory_info().unwrap().free;
        let words = SharedWords::create(&world.context, 1).unwrap();
        let memory = DeviceAllocation::new(&world.context, 64 << 20).unwrap();
        upload(&world.stream, memory.as_raw(), &pattern(LEN, 30));
        let mut importer = cast.start("importer");
        importer.send(b"words", &[words.as_fd()]);
        // SAFETY: the memory stays until the peer has closed what it opened.
        importer.send(&encode(&unsafe { memory.handle(0..LEN) }.unwrap()), &[]);
        assert_eq!(importer.receive().bytes, b"ready");
        importer.kill();
        assert!(download(&world.stream, memory.as_raw(), LEN) == pattern(LEN, 30));
        words.line(0).unwrap().record(&world.stream).unwrap().synchronize(None).unwrap();
        memory.close().unwrap();
        drop(words);
        expect_usable(&world);
        // What a context keeps for itself may have grown, but not by that much.
        let after = world.context.memory_info().unwrap().free;
        assert!(after + (48 << 20) > before, "{before} bytes were free, now {after}");
    });
}

#[test]
fn memory_that_is_freed_while_a_dead_process_had_it_open_comes_back() {
    pair::play(test_name!(), &[("importer", importer)], |cast| {
        let world = World::new();
        let before = world.context.memory_info().unwrap().free;
        let words = SharedWords::create(&world.context, 1).unwrap();
        let memory = DeviceAllocation::new(&world.context, 64 << 20).unwrap();
        let mut importer = cast.start("importer");
        importer.send(b"words", &[words.as_fd()]);
        // SAFETY: the memory stays until the peer has closed what it opened.
        importer.send(&encode(&unsafe { memory.handle(0..LEN) }.unwrap()), &[]);
        assert_eq!(importer.receive().bytes, b"ready");
        // Against the rules, and before the death.
        memory.close().unwrap();
        importer.kill();
        let after = world.context.memory_info().unwrap().free;
        assert!(after + (48 << 20) > before, "{before} bytes were free, now {after}");
        drop(words);
        expect_usable(&world);
    });
}

fn opened_late(first: &Channel) {
    let world = World::new();
    let memory = DeviceAllocation::new(&world.context, LEN).unwrap();
    // SAFETY: the memory stays until the peer has closed what it opened.
    first.send(&encode(&unsafe { memory.handle(0..LEN) }.unwrap()), &[]);
    stay(first);
}

#[test]
fn a_legacy_handle_of_a_dead_process_is_refused() {
    pair::play(test_name!(), &[("exporter", opened_late)], |cast| {
        let world = World::new();
        let mut exporter = cast.start("exporter");
        let handle = decode(&exporter.receive());
        assert_eq!(exporter.receive().bytes, b"ready");
        exporter.kill();
        let refused = OpenedMemory::open(&world.context, &handle).unwrap_err();
        assert_eq!(refused.code().map(|code| code.0), Some(400), "{refused}");
        expect_usable(&world);
    });
}
