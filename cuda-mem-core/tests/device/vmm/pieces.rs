//! Memory in several pieces, imported as one range.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cuda_mem_core::ipc::ImportedMapping;
use cuda_mem_core::vmm::{self, CreateOptions, PhysicalMemory, ShareableMemory};
use cuda_mem_core::{DeviceBuffer, Error, Stream, copy};

use crate::common::gate::Gate;
use crate::common::outcome::record;
use crate::common::{Backend, World, backend, pattern};

#[test]
fn pieces_are_mapped_one_behind_the_other_and_unmapped_together() {
    let world = World::new();
    let (device, page) = (world.context.device(), vmm::granularity(world.context.device()).unwrap());
    let sizes = [page, 3 * page, 2 * page];
    let options = CreateOptions::supported_by(device).unwrap();
    let export = |&bytes: &usize| -> OwnedFd {
        ShareableMemory::create(device, bytes, &options).unwrap().export_posix_fd().unwrap()
    };
    let descriptors: Vec<OwnedFd> = sizes.iter().map(export).collect();
    let pieces: Vec<_> = descriptors.iter().map(AsFd::as_fd).zip(sizes).collect();
    let mapping = ImportedMapping::import_posix_fds(device, &pieces, &[device]).unwrap();
    assert_eq!(mapping.bytes(), 6 * page);

    let text = pattern(6 * page, 9);
    let source = DeviceBuffer::from_slice(&world.stream, &text).unwrap();
    let used = mapping.on(&world.stream).unwrap();
    // SAFETY: memory of that many bytes on both sides, which nobody else uses.
    unsafe { copy::memcpy_async(&world.stream, used.address(), source.as_raw(), text.len()) }.unwrap();
    drop(used);
    world.stream.synchronize().unwrap();
    // The memory is the pieces', each mapped by itself.
    let mut at = 0;
    for (descriptor, bytes) in pieces.iter().copied() {
        let piece = ImportedMapping::import_posix_fd(device, descriptor, bytes, &[device]).unwrap();
        let target = DeviceBuffer::<u8>::uninit(&world.stream, bytes).unwrap();
        // SAFETY: as above.
        unsafe { copy::memcpy_async(&world.stream, target.as_raw(), piece.as_raw(), bytes) }.unwrap();
        assert!(target.to_vec(&world.stream).unwrap() == text[at..at + bytes]);
        at += bytes;
    }
    mapping.close().unwrap();
}

#[test]
fn pieces_that_are_not_what_was_said_leave_nothing_mapped() {
    let world = World::new();
    let (device, page) = (world.context.device(), vmm::granularity(world.context.device()).unwrap());
    let options = CreateOptions::supported_by(device).unwrap();
    let memory = ShareableMemory::create(device, page, &options).unwrap();
    let descriptor = memory.export_posix_fd().unwrap();
    let wrong = [(descriptor.as_fd(), page), (descriptor.as_fd(), 2 * page)];
    let refused = ImportedMapping::import_posix_fds(device, &wrong, &[device]).unwrap_err();
    assert!(matches!(refused, Error::NotWhole { bytes } if bytes == 2 * page), "{refused}");
    let none = ImportedMapping::import_posix_fds(device, &[], &[device]).unwrap_err();
    assert!(matches!(none, Error::NotGranular { value: 0, .. }), "{none}");
    let huge = [(descriptor.as_fd(), usize::MAX), (descriptor.as_fd(), page)];
    let huge = ImportedMapping::import_posix_fds(device, &huge, &[device]).unwrap_err();
    assert!(matches!(huge, Error::TooLarge { .. }), "{huge}");
}

#[test]
fn memory_of_this_process_is_had_as_others_have_it() {
    let world = World::new();
    let (device, page) = (world.context.device(), vmm::granularity(world.context.device()).unwrap());
    let memory =
        ShareableMemory::create(device, page, &CreateOptions::supported_by(device).unwrap()).unwrap();
    let descriptor = memory.export_posix_fd().unwrap();
    // SAFETY: nothing uses it before it has memory.
    let own = unsafe { ImportedMapping::reserve(device, page) }.unwrap();
    own.wake(memory.into_memory(), &[device]).unwrap();
    assert_eq!((own.bytes(), own.device()), (page, device));
    let theirs = ImportedMapping::import_posix_fd(device, descriptor.as_fd(), page, &[device]).unwrap();
    assert_ne!(own.as_raw(), theirs.as_raw());
    let used = own.on(&world.stream).unwrap();
    for (offset, value, bytes) in [(0, 3, page), (100, 4, 17), (0, 5, 0)] {
        // SAFETY: the whole of the memory, or a part of it, which knows of the stream.
        unsafe { copy::memset_async(&world.stream, used.address() + offset, value, bytes) }.unwrap();
    }
    drop(used);
    own.close().unwrap();
    let target = DeviceBuffer::<u8>::uninit(&world.stream, page).unwrap();
    // SAFETY: memory of that many bytes on both sides, which nobody else uses.
    unsafe { copy::memcpy_async(&world.stream, target.as_raw(), theirs.as_raw(), page) }.unwrap();
    let mut expected = vec![3; page];
    expected[100..117].fill(4);
    let found = target.to_vec(&world.stream).unwrap();
    record!("bytes", &found[..200]);
    assert!(found == expected);
}

#[test]
fn memory_that_sleeps_is_other_memory_at_its_addresses_when_it_wakes() {
    let world = World::new();
    let (device, page) = (world.context.device(), vmm::granularity(world.context.device()).unwrap());
    let options = CreateOptions::supported_by(device).unwrap();
    let export = |bytes| ShareableMemory::create(device, bytes, &options).unwrap().export_posix_fd().unwrap();
    let (second, wrong) = (export(page), export(2 * page));
    // SAFETY: nothing uses it before it has memory.
    let mapping = unsafe { ImportedMapping::reserve(device, page) }.unwrap();
    assert!(!mapping.is_awake());
    mapping.wake(PhysicalMemory::create(device, page, &options).unwrap(), &[device]).unwrap();
    let filled = ImportedMapping::import_posix_fd(device, second.as_fd(), page, &[device]).unwrap();
    let text = pattern(page, 3);
    filled.as_range().unwrap().copy_from_slice(&world.stream, &text).unwrap();

    let (address, before) = (mapping.as_raw(), world.free_bytes());
    let busy = Stream::new(&world.context).unwrap();
    let gate = Gate::before(&busy);
    drop(mapping.on(&busy).unwrap());
    let is_open = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            is_open.store(true, Ordering::SeqCst);
            gate.open();
        });
        // SAFETY: its one use is known, and there is none before it wakes.
        unsafe { mapping.sleep() }.unwrap();
        assert!(is_open.load(Ordering::SeqCst), "a stream uses it yet");
    });
    assert!(!mapping.is_awake() && mapping.as_raw() == address);
    if backend() == Backend::Simulator {
        assert_eq!(world.context.memory_info().unwrap().free, before + page);
    }
    // SAFETY: as above; there is nothing.
    unsafe { mapping.sleep() }.unwrap();

    let refused = mapping.wake_posix_fd(wrong.as_fd(), &[device]).unwrap_err();
    assert!(matches!(refused, Error::NotWhole { .. }) && !mapping.is_awake(), "{refused}");
    mapping.wake_posix_fd(second.as_fd(), &[device]).unwrap();
    assert!(mapping.is_awake() && mapping.as_raw() == address);
    let seen = DeviceBuffer::<u8>::zeroed(&world.stream, page).unwrap();
    seen.whole().copy_from(&world.stream, &mapping.as_range().unwrap()).unwrap();
    assert!(seen.to_vec(&world.stream).unwrap() == text);
    let again = mapping.wake_posix_fd(second.as_fd(), &[device]).unwrap_err();
    assert!(matches!(again, Error::OutOfRange { .. }), "{again}");
    mapping.close().unwrap();
}
