//! Memory of `cuMemCreate` by descriptors.

use std::os::fd::{AsFd, OwnedFd};

use cuda_mem_core::ipc::{DeviceAllocation, ImportedMapping, OpenedMemory};
use cuda_mem_core::vmm::{
    self, Access, AddressRange, CreateOptions, FabricHandle, HandleTypes, PhysicalMemory, ShareableMemory,
};
use cuda_mem_core::{Device, Error, Stream};

use crate::common::kernels::Kernels;
use crate::common::outcome::record;
use crate::common::pair::{self, Channel, checksum, test_name};
use crate::common::{World, pattern};
use crate::legacy::{decode, encode};
use crate::{download, upload};

/// Memory at an address, for as long as this lives.
pub(crate) struct Mapped {
    range: AddressRange,
    bytes: usize,
}

impl Mapped {
    pub(crate) fn new(device: Device, memory: &PhysicalMemory) -> Self {
        let range = AddressRange::reserve(device, memory.bytes(), 0).unwrap();
        range.map(0, memory).unwrap();
        range.set_access(0, memory.bytes(), &[device], Access::ReadWrite).unwrap();
        Self { range, bytes: memory.bytes() }
    }

    pub(crate) fn address(&self) -> u64 {
        self.range.address()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: tests wait for their streams before they end.
        let _ = unsafe { self.range.unmap(0, self.bytes) };
    }
}

/// Memory of two pages that other processes may have.
pub(crate) fn shareable(world: &World) -> ShareableMemory {
    let device = world.context.device();
    let page = vmm::granularity(device).unwrap();
    ShareableMemory::create(device, 2 * page, &CreateOptions::supported_by(device).unwrap()).unwrap()
}

pub(crate) fn only(descriptors: Vec<OwnedFd>) -> OwnedFd {
    let [descriptor] = <[OwnedFd; 1]>::try_from(descriptors).unwrap();
    descriptor
}

fn importer_of_much(first: &Channel) {
    let world = World::new();
    let (device, message) = (world.context.device(), first.receive());
    let bytes = usize::try_from(message.words()[0]).unwrap();
    let before = world.context.memory_info().unwrap().free;
    let memory = PhysicalMemory::import_posix_fd(device, only(message.descriptors).as_fd(), bytes).unwrap();
    let mapped = Mapped::new(device, &memory);
    upload(&world.stream, mapped.address(), &pattern(10_000, 1));
    let after = world.context.memory_info().unwrap().free;
    // What a context keeps for itself may have grown, but not by that much.
    assert!(after + bytes / 2 > before, "{before} bytes were free, now {after}");
    first.send(b"mapped", &[]);
    assert_eq!(first.receive().bytes, b"end");
}

#[test]
fn imported_memory_is_counted_once() {
    pair::play(test_name!(), &[("importer", importer_of_much)], |cast| {
        let world = World::new();
        let device = world.context.device();
        let before = world.context.memory_info().unwrap().free;
        let options = CreateOptions::supported_by(device).unwrap();
        let memory = ShareableMemory::create(device, 256 << 20, &options).unwrap();
        assert!(world.context.memory_info().unwrap().free + (128 << 20) < before);
        let importer = cast.start("importer");
        let descriptor = memory.export_posix_fd().unwrap();
        importer.send(&(256u64 << 20).to_le_bytes(), &[descriptor.as_fd()]);
        assert_eq!(importer.receive().bytes, b"mapped");
        drop(descriptor);
        memory.into_memory().close().unwrap();
        // It is the importer's yet, whose device it is on.
        assert!(world.context.memory_info().unwrap().free + (128 << 20) < before);
        importer.send(b"end", &[]);
        importer.finish();
        assert!(world.context.memory_info().unwrap().free + (128 << 20) > before);
    });
}

fn importer(first: &Channel) {
    let world = World::new();
    let device = world.context.device();
    let message = first.receive();
    let bytes = usize::try_from(message.words()[0]).unwrap();
    let descriptor = only(message.descriptors);
    for wrong in [bytes / 2, bytes * 2] {
        let refused = PhysicalMemory::import_posix_fd(device, descriptor.as_fd(), wrong);
        assert!(matches!(refused, Err(Error::NotWhole { bytes }) if bytes == wrong), "{refused:?}");
    }
    let memory = PhysicalMemory::import_posix_fd(device, descriptor.as_fd(), bytes).unwrap();
    drop(descriptor);
    // The driver does not say of an imported handle how it came.
    assert_eq!(memory.properties().unwrap().handle_types, HandleTypes::empty());
    let mapped = Mapped::new(device, &memory);
    memory.close().unwrap();
    first.send_words(&[checksum(&download(&world.stream, mapped.address() + 5, bytes - 5))]);
    assert_eq!(first.receive().bytes, b"let go");
    // The exporter has neither the handle nor a mapping any more.
    upload(&world.stream, mapped.address(), &pattern(10_000, 4));
    assert_eq!(download(&world.stream, mapped.address(), 10_000), pattern(10_000, 4));
    drop(mapped);
    assert_eq!(world.driver.release_failures(), 0);
}

#[test]
fn memory_of_another_process_is_imported_whole() {
    pair::play(test_name!(), &[("importer", importer)], |cast| {
        let world = World::new();
        let memory = shareable(&world);
        let len = memory.memory().bytes();
        let mapped = Mapped::new(world.context.device(), memory.memory());
        let bytes = pattern(len, 3);
        upload(&world.stream, mapped.address(), &bytes);
        let importer = cast.start("importer");
        let descriptor = memory.export_posix_fd().unwrap();
        importer.send(&(len as u64).to_le_bytes(), &[descriptor.as_fd()]);
        let seen = importer.receive().words();
        record!("what was exported", &bytes);
        assert_eq!(seen, [checksum(&bytes[5..])]);
        drop((mapped, descriptor));
        memory.into_memory().close().unwrap();
        importer.send(b"let go", &[]);
        importer.finish();
    });
}

#[test]
fn descriptors_of_something_else_are_refused() {
    let world = World::new();
    let device = world.context.device();
    let page = vmm::granularity(device).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let refused = PhysicalMemory::import_posix_fd(device, null.as_fd(), page);
    record!("/dev/null", &refused);
    assert_eq!(refused.unwrap_err().code().map(|code| code.0), Some(999));
    let odd = PhysicalMemory::import_posix_fd(device, null.as_fd(), page + 1);
    assert!(matches!(odd, Err(Error::NotGranular { .. })), "{odd:?}");
    if world.driver.device_count().unwrap() > 1 {
        let other = world.driver.device(1).unwrap();
        let memory = shareable(&world);
        let descriptor = memory.export_posix_fd().unwrap();
        let refused = PhysicalMemory::import_posix_fd(other, descriptor.as_fd(), 2 * page);
        let expected = matches!(refused, Err(Error::NotAsDeclared { declared: 1, found: 0, .. }));
        assert!(expected, "{refused:?}");
    }
}

#[test]
fn fabric_handles_are_there_or_said_not_to_be() {
    let world = World::new();
    let device = world.context.device();
    let page = vmm::granularity(device).unwrap();
    let options = CreateOptions { fabric: true, ..CreateOptions::supported_by(device).unwrap() };
    match ShareableMemory::create(device, page, &options) {
        Ok(memory) => {
            assert!(memory.handle_types().contains(HandleTypes::FABRIC | HandleTypes::POSIX_FD));
            memory.export_fabric().unwrap();
        }
        Err(error) => assert!(matches!(error, Error::Unsupported { .. }), "{error}"),
    }
    let without = shareable(&world).export_fabric();
    assert!(matches!(without, Err(Error::NotShareable { .. })), "{without:?}");
    PhysicalMemory::import_fabric(device, &FabricHandle::from_bytes([0; 64]), page).unwrap_err();
}

/// None where the host has no nodes, or the driver no memory on them.
fn on_a_node(world: &World, bytes: usize) -> Option<ShareableMemory> {
    let options = CreateOptions { node: Some(0), ..CreateOptions::default() };
    let made = ShareableMemory::create(world.context.device(), bytes, &options);
    let lacks = made.as_ref().err().and_then(Error::code).map(|code| code.0);
    assert!(matches!(lacks, None | Some(1 | 801)), "{made:?}");
    made.ok()
}

fn importer_of_a_node(first: &Channel) {
    let world = World::new();
    let device = world.context.device();
    let message = first.receive();
    let bytes = usize::try_from(message.words()[0]).unwrap();
    let [host, of_device] = <[OwnedFd; 2]>::try_from(message.descriptors).unwrap();
    let as_a_device_s = PhysicalMemory::import_posix_fd(device, host.as_fd(), bytes);
    let as_a_node_s = ImportedMapping::import_posix_fd_of_node(device, 0, of_device.as_fd(), bytes);
    let as_another_s = ImportedMapping::import_posix_fd_of_node(device, 1, host.as_fd(), bytes);
    let kinds = "the kind of place (CUmemLocationType)";
    for (refused, expected) in [
        (as_a_device_s.map(drop), (kinds, 1, 3)),
        (as_a_node_s.map(drop), (kinds, 3, 1)),
        (as_another_s.map(drop), ("the node", 1, 0)),
    ] {
        let Err(Error::NotAsDeclared { what, declared, found }) = refused else { panic!("{refused:?}") };
        assert_eq!((what, declared, found), expected);
    }
    let theirs = ImportedMapping::import_posix_fd_of_node(device, 0, host.as_fd(), bytes).unwrap();
    let address = theirs.on(&world.stream).unwrap().address();
    assert_eq!(download(&world.stream, address, 10_000), pattern(10_000, 5));
    upload(&world.stream, address, &pattern(10_000, 6));
    theirs.close().unwrap();
    // Other memory can be mapped afterwards, wherever it was.
    let others = (0..20).map(|_| Mapped::new(device, shareable(&world).memory())).collect::<Vec<_>>();
    drop(others);
    assert_eq!(world.driver.release_failures(), 0);
}

#[test]
fn memory_on_a_node_of_the_host_is_mapped_by_another_process() {
    pair::play(test_name!(), &[("importer", importer_of_a_node)], |cast| {
        let world = World::new();
        let device = world.context.device();
        let of_device = shareable(&world);
        let bytes = of_device.memory().bytes();
        let Some(host) = on_a_node(&world, bytes) else { return };
        let (host, of_device) = (host.export_posix_fd().unwrap(), of_device.export_posix_fd().unwrap());
        let ours = ImportedMapping::import_posix_fd_of_node(device, 0, host.as_fd(), bytes).unwrap();
        let address = ours.on(&world.stream).unwrap().address();
        upload(&world.stream, address, &pattern(10_000, 5));
        let importer = cast.start("importer");
        importer.send(&(bytes as u64).to_le_bytes(), &[host.as_fd(), of_device.as_fd()]);
        importer.finish();
        assert_eq!(download(&world.stream, address, 10_000), pattern(10_000, 6));
        assert_eq!(world.driver.release_failures(), 0);
    });
}

fn second_device(first: &Channel) {
    let world = World::new();
    let devices = world.driver.devices().unwrap();
    let context = devices[1].primary_context().unwrap();
    let stream = Stream::new(&context).unwrap();
    let message = first.receive();
    let bytes = usize::try_from(message.words()[0]).unwrap();
    let descriptor = only(message.descriptors);
    let mapping =
        ImportedMapping::import_posix_fd(devices[0], descriptor.as_fd(), bytes, &devices[..2]).unwrap();
    let kernels = Kernels::load(&context);
    let address = mapping.on(&stream).unwrap().address();
    // SAFETY: mapped memory that knows that the stream uses it.
    unsafe { kernels.add_one_u32(&stream, address, 1000) };
    stream.synchronize().unwrap();
    let opened = OpenedMemory::open(&context, &decode(&first.receive())).unwrap();
    let address = opened.on(&stream).unwrap().address();
    // SAFETY: as above.
    unsafe { kernels.add_one_u32(&stream, address, 1000) };
    mapping.close().unwrap();
    opened.close().unwrap();
    assert_eq!(world.driver.release_failures(), 0);
}

#[test]
fn another_device_of_another_process_reaches_the_memory() {
    pair::play(test_name!(), &[("second", second_device)], |cast| {
        let world = World::new();
        let device = world.context.device();
        if world.driver.device_count().unwrap() == 1 {
            return assert!(matches!(world.driver.device(1), Err(Error::NoSuchDevice { .. })));
        }
        if !world.driver.device(1).unwrap().can_access_peer(device).unwrap() {
            return;
        }
        let memory = shareable(&world);
        let mapped = Mapped::new(device, memory.memory());
        let legacy = DeviceAllocation::new(&world.context, 4000).unwrap();
        for address in [mapped.address(), legacy.as_raw()] {
            upload(&world.stream, address, &[7, 0, 0, 0].repeat(1000));
        }
        let second = cast.start("second");
        let descriptor = memory.export_posix_fd().unwrap();
        second.send(&(memory.memory().bytes() as u64).to_le_bytes(), &[descriptor.as_fd()]);
        // SAFETY: the memory stays until the peer has closed what it opened.
        second.send(&encode(&unsafe { legacy.handle(0..4000) }.unwrap()), &[]);
        second.finish();
        for address in [mapped.address(), legacy.as_raw()] {
            assert_eq!(download(&world.stream, address, 4000), [8, 0, 0, 0].repeat(1000));
        }
    });
}
