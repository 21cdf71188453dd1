//! Addresses and memory apart from each other.

mod limits;
mod pieces;

use std::os::fd::AsRawFd;
use std::ptr;

use cuda_mem_core::sys::{CUmemAllocationHandleType, CUresult};
use cuda_mem_core::vmm::{self, Access, AddressRange, CreateOptions, PhysicalMemory};
use cuda_mem_core::{Device, DeviceBuffer, Error, Result, Stream, copy};
use cuda_mem_sim::MisuseKind;

use crate::common::gate::Gate;
use crate::common::kernels::Kernels;
use crate::common::outcome::record;
use crate::common::{World, pattern};

const LEN: usize = 5000;

/// A device, the size of its pages, and some addresses.
struct Pages {
    device: Device,
    page: usize,
    range: AddressRange,
}

impl Pages {
    fn new(world: &World) -> Self {
        let device = world.context.device();
        let page = vmm::granularity(device).unwrap();
        let range = AddressRange::reserve(device, 8 * page, 0).unwrap();
        Self { device, page, range }
    }

    fn create(&self, pages: usize) -> PhysicalMemory {
        PhysicalMemory::create(self.device, pages * self.page, &CreateOptions::default()).unwrap()
    }

    /// Maps memory at a page, for reading and writing.
    fn map(&self, at: usize, memory: &PhysicalMemory) {
        self.range.map(at * self.page, memory).unwrap();
        self.allow(at, memory.bytes() / self.page, Access::ReadWrite).unwrap();
    }

    fn allow(&self, at: usize, pages: usize, access: Access) -> Result<()> {
        self.range.set_access(at * self.page, pages * self.page, &[self.device], access)
    }

    fn address(&self, at: usize) -> u64 {
        self.range.address() + (at * self.page) as u64
    }

    /// # Safety
    ///
    /// As for [`AddressRange::unmap`].
    unsafe fn unmap(&self, at: usize, pages: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.range.unmap(at * self.page, pages * self.page) }.unwrap();
    }
}

/// Writes to mapped addresses and waits.
fn write(stream: &Stream, address: u64, bytes: &[u8]) -> Result<()> {
    let source = DeviceBuffer::from_slice(stream, bytes)?;
    let from = source.on_read(stream)?;
    // SAFETY: addresses that the driver checks; what is mapped there stays until the wait below.
    unsafe { copy::memcpy_async(stream, address, from.address(), bytes.len()) }?;
    stream.synchronize()
}

fn read(stream: &Stream, address: u64, len: usize) -> Result<Vec<u8>> {
    let target = DeviceBuffer::<u8>::zeroed(stream, len)?;
    {
        let to = target.on(stream)?;
        // SAFETY: as in `write`.
        unsafe { copy::memcpy_async(stream, to.address(), address, len) }?;
    }
    target.to_vec(stream)
}

/// A copy from pageable memory, which the driver refuses at once where the device may not write.
fn poke(world: &World, address: u64) -> CUresult {
    let (copy, bytes) = (world.driver.table().cuMemcpyHtoD().unwrap(), [5u8; 100]);
    // SAFETY: addresses that the driver checks, and bytes that live until the wait below; the context is current.
    let run = || unsafe { copy(address, bytes.as_ptr().cast(), bytes.len()) };
    let result = world.context.with_current(run).unwrap();
    // It may return before its bytes have arrived.
    world.context.synchronize().unwrap();
    result
}

#[test]
fn memory_at_two_addresses_is_one_memory() {
    let world = World::new();
    let kernels = Kernels::load(&world.context);
    let (one, two) = (world.new_stream(), world.new_stream());
    let pages = Pages::new(&world);
    let memory = pages.create(1);
    pages.map(0, &memory);
    pages.map(5, &memory);
    assert_eq!(pages.range.mapped_bytes(), 2 * pages.page);
    // Work through either address sees the work before it through the other, on one stream and across two.
    // SAFETY: mapped memory that stays until the streams were waited for.
    unsafe { kernels.fill_u32(&one, pages.address(0), 1000, 7) };
    // SAFETY: as above.
    unsafe { kernels.add_one_u32(&one, pages.address(5), 1000) };
    two.wait_stream(&one).unwrap();
    // SAFETY: as above.
    unsafe { kernels.add_one_u32(&two, pages.address(0), 1000) };
    // SAFETY: as above; the halves of a page do not overlap.
    unsafe { kernels.copy_u8(&two, pages.address(0) + 8000, pages.address(5), 4000) };
    let bytes = read(&two, pages.address(5), 12_000).unwrap();
    record!("first words", &bytes[..4000]);
    let words = |bytes: &[u8]| bytes.chunks(4).all(|word| word == 9u32.to_le_bytes());
    assert!(words(&bytes[..4000]) && words(&bytes[8000..]));
    // SAFETY: both streams have ended.
    unsafe { pages.unmap(0, 1) };
    // SAFETY: as above.
    unsafe { pages.unmap(5, 1) };
    assert_eq!(pages.range.mapped_bytes(), 0);
}

#[test]
fn mapped_memory_outlives_its_handle_and_its_other_mapping() {
    let world = World::new();
    let pages = Pages::new(&world);
    let memory = pages.create(2);
    pages.map(1, &memory);
    pages.map(4, &memory);
    memory.close().unwrap();
    write(&world.stream, pages.address(1), &pattern(LEN, 1)).unwrap();
    // SAFETY: the stream was waited for.
    unsafe { pages.unmap(1, 2) };
    let gone = poke(&world, pages.address(1));
    world.expect_misuse(&[MisuseKind::UseAfterFree]);
    record!("unmapped", &(gone.0 as usize));
    assert_eq!(gone, CUresult::CUDA_ERROR_INVALID_VALUE);
    let bytes = read(&world.stream, pages.address(4), LEN).unwrap();
    record!("the other mapping", &bytes);
    assert_eq!(bytes, pattern(LEN, 1));
    // SAFETY: as above.
    unsafe { pages.unmap(4, 2) };
    pages.range.close().unwrap();
    assert_eq!(world.driver.release_failures(), 0);
}

#[test]
fn devices_do_what_they_may() {
    let world = World::new();
    let pages = Pages::new(&world);
    let memory = pages.create(1);
    let at = pages.address(3);
    pages.range.map(3 * pages.page, &memory).unwrap();
    let expect = |step: &str, expected: CUresult| {
        let written = poke(&world, at);
        record!(&format!("write {step}"), &(written.0 as usize));
        assert_eq!(written, expected, "{step}");
    };
    let (ok, refused) = (CUresult::CUDA_SUCCESS, CUresult::CUDA_ERROR_INVALID_VALUE);
    expect("at first", refused);
    pages.allow(3, 1, Access::ReadWrite).unwrap();
    expect("with both", ok);
    pages.allow(3, 1, Access::Read).unwrap();
    expect("when it may read", refused);
    assert_eq!(read(&world.stream, at, 100).unwrap(), [5; 100]);
    pages.allow(3, 1, Access::None).unwrap();
    expect("with nothing", refused);
    pages.range.set_access(3 * pages.page, pages.page, &[], Access::ReadWrite).unwrap();
    expect("for no devices", refused);
    // SAFETY: the context was waited for.
    unsafe { pages.unmap(3, 1) };
}

#[test]
fn pages_are_moved_beside_work_that_waits() {
    let world = World::new();
    let stream = world.new_stream();
    let pages = Pages::new(&world);
    let (used, moved) = (pages.create(1), pages.create(1));
    pages.map(0, &used);
    pages.map(1, &used);
    pages.map(2, &moved);
    let source = DeviceBuffer::from_slice(&stream, &pattern(LEN, 3)).unwrap();
    stream.synchronize().unwrap();
    let gate = Gate::before(&stream);
    {
        let from = source.on_read(&stream).unwrap();
        // SAFETY: a mapping that stays until the stream was waited for.
        unsafe { copy::memcpy_async(&stream, pages.address(0), from.address(), LEN) }.unwrap();
    }
    // None of these waits for the stream: it could not go on before the gate is opened below.
    // SAFETY: nobody uses these addresses; the work that waits has others.
    unsafe { pages.unmap(1, 2) };
    pages.map(1, &moved);
    pages.map(6, &used);
    drop(pages.create(1));
    assert!(!stream.is_idle().unwrap());
    gate.open();
    assert_eq!(read(&stream, pages.address(6), LEN).unwrap(), pattern(LEN, 3));
    // SAFETY: the stream was waited for.
    unsafe { pages.unmap(0, 2) };
    // SAFETY: as above.
    unsafe { pages.unmap(6, 1) };
}

#[test]
fn a_handle_goes_through_books_as_a_number() {
    let world = World::new();
    let pages = Pages::new(&world);
    let before = world.free_bytes();
    let raw = pages.create(16).into_raw();
    let during = world.context.memory_info().unwrap().free;
    assert!(during < before);
    // SAFETY: the handle that was just given out, with its size.
    let memory = unsafe { PhysicalMemory::from_raw(world.driver, raw, 16 * pages.page) };
    assert_eq!((memory.as_raw(), memory.bytes()), (raw, 16 * pages.page));
    memory.close().unwrap();
    assert!(world.context.memory_info().unwrap().free > during);
}

#[test]
fn a_second_device_is_let_in() {
    let world = World::new();
    let pages = Pages::new(&world);
    if world.driver.device_count().unwrap() == 1 {
        assert!(matches!(world.driver.device(1), Err(Error::NoSuchDevice { ordinal: 1, count: 1 })));
        return;
    }
    let second = world.driver.device(1).unwrap();
    let memory = pages.create(1);
    pages.range.map(0, &memory).unwrap();
    let allowed = pages.range.set_access(0, pages.page, &[pages.device, second], Access::ReadWrite);
    record!("both", &allowed);
    if second.can_access_peer(pages.device).unwrap() {
        allowed.unwrap();
        let context = second.primary_context().unwrap();
        let (stream, kernels) = (Stream::new(&context).unwrap(), Kernels::load(&context));
        // SAFETY: mapped memory that stays until the stream was waited for.
        unsafe { kernels.fill_u32(&stream, pages.address(0), 1000, 3) };
        stream.synchronize().unwrap();
        assert!(
            read(&world.stream, pages.address(0), 4000).unwrap().chunks(4).all(|word| word == [3, 0, 0, 0])
        );
    } else {
        assert_eq!(allowed.unwrap_err().code(), Some(CUresult::CUDA_ERROR_INVALID_DEVICE));
    }
    // SAFETY: the streams were waited for.
    unsafe { pages.unmap(0, 1) };
}

#[test]
fn memory_is_for_other_processes_if_it_was_asked_to_be() {
    let world = World::new();
    let pages = Pages::new(&world);
    let options = CreateOptions::supported_by(pages.device).unwrap();
    let memory = PhysicalMemory::create(pages.device, pages.page, &options).unwrap();
    assert!(options.shareable, "every device on Linux");
    pages.map(0, &memory);
    let bytes = pattern(LEN, 3);
    write(&world.stream, pages.address(0), &bytes).unwrap();
    let descriptor = memory.export_posix_fd().unwrap();
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let import = world.driver.table().cuMemImportFromShareableHandle().unwrap();
    let number = ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
    let mut raw = 0;
    // SAFETY: one handle to write, an open descriptor.
    assert_eq!(unsafe { import(&mut raw, number, kind) }, CUresult::CUDA_SUCCESS);
    // SAFETY: the handle that was just made, which nobody else has.
    let theirs = unsafe { PhysicalMemory::from_raw(world.driver, raw, pages.page) };
    pages.map(3, &theirs);
    assert_eq!(read(&world.stream, pages.address(3), LEN).unwrap(), bytes);
    // SAFETY: the read was waited for.
    unsafe { pages.unmap(0, 1) };
    // SAFETY: as above.
    unsafe { pages.unmap(3, 1) };

    let private = pages.create(1);
    let refused = private.export_posix_fd().unwrap_err();
    let Error::Driver(refused) = refused else { panic!("{refused}") };
    record!("private memory", &(refused.code().0 as usize));
    assert_eq!(refused.code(), CUresult::CUDA_ERROR_INVALID_VALUE);
}
