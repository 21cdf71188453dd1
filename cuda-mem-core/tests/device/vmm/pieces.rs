//! Memory in several pieces, imported as one range.

use std::os::fd::{AsFd, OwnedFd};

use cuda_mem_core::ipc::ImportedMapping;
use cuda_mem_core::vmm::{self, CreateOptions, ShareableMemory};
use cuda_mem_core::{DeviceBuffer, Error, copy};

use crate::common::outcome::record;
use crate::common::{World, pattern};

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
    let own = ImportedMapping::reserve(device, page).unwrap();
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
