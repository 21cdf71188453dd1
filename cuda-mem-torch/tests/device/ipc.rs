//! Allocations for other processes.

use cuda_mem_core::DeviceBuffer;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::MempoolId;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::segments::Filter;
use cuda_mem_torch::{CudaAllocator, Error, HandleError, NativeAllocator, ShareableHandle};

use crate::common::pair::{self, Channel, test_name};
use crate::common::{World, pattern};
use crate::native::native;
use crate::program::{MIB, Program, free};

const SOME: usize = 3 * MIB;

fn send(channel: &Channel, handle: &ShareableHandle) {
    let mut message = handle.offset.to_ne_bytes().to_vec();
    message.extend(&handle.handle);
    channel.send(&message, &[]);
}

fn receive(channel: &Channel) -> ShareableHandle {
    let message = channel.receive().bytes;
    let (offset, bytes) = message.split_first_chunk().unwrap();
    let mut handle = share_nothing();
    (handle.offset, handle.handle) = (u64::from_ne_bytes(*offset), bytes.to_vec());
    handle
}

/// Something to fill in: the type may get more fields.
fn share_nothing() -> ShareableHandle {
    let world = World::new();
    let allocator = native(&world);
    let block = allocator.malloc(100, world.context.device(), &world.stream).unwrap();
    let handle = share(&allocator, block);
    free(&allocator, block);
    handle
}

fn share(allocator: &dyn CudaAllocator, block: u64) -> ShareableHandle {
    // SAFETY: tests free what they share when the other side is done.
    unsafe { allocator.share_ipc_handle(block) }.unwrap()
}

fn write(world: &World, address: u64, text: &[u8]) {
    let source = DeviceBuffer::from_slice(&world.stream, text).unwrap();
    // SAFETY: memory of that many bytes on both sides, which nobody else uses.
    unsafe { cuda_mem_core::copy::memcpy_async(&world.stream, address, source.as_raw(), text.len()) }
        .unwrap();
    world.stream.synchronize().unwrap();
}

fn read(world: &World, address: u64, len: usize) -> Vec<u8> {
    let target = DeviceBuffer::<u8>::uninit(&world.stream, len).unwrap();
    // SAFETY: as in `write`.
    unsafe { cuda_mem_core::copy::memcpy_async(&world.stream, target.as_raw(), address, len) }.unwrap();
    target.to_vec(&world.stream).unwrap()
}

/// Opens what the other process shares, reads it, and writes it for the other to see.
fn importer(channel: &Channel) {
    let handle = receive(channel);
    let world = World::new();
    let allocator = native(&world);
    let open = || world.context.with_current(|| allocator.ipc_dev_ptr(&handle.handle)).unwrap().unwrap();
    let (one, two) = (open(), open());
    assert_eq!(one.address(), two.address(), "the same bytes are opened once");
    assert!(one.bytes() as u64 >= handle.offset + SOME as u64);
    let address = one.address() + handle.offset;
    assert_eq!(read(&world, address, SOME), pattern(SOME, 1));
    drop(one);
    let used = two.on(&world.stream).unwrap();
    write(&world, used.address() + handle.offset, &pattern(SOME, 2));
    drop(used);
    drop(two);
    // Opened anew.
    let third = open();
    assert_eq!(read(&world, third.address() + handle.offset, SOME), pattern(SOME, 2));
    drop(third);
    channel.send(b"done", &[]);
}

/// Shares an allocation with a process, which reads and writes it.
fn goes_both_ways(test: &'static str, kind: u8, make: fn(&World, &NativeAllocator) -> u64) {
    pair::play(test, &[("importer", importer)], |cast| {
        let other = cast.start("importer");
        let handle;
        {
            let world = World::new();
            let allocator = native(&world);
            let block = make(&world, &allocator);
            write(&world, block, &pattern(SOME, 1));
            handle = share(&allocator, block);
            assert_eq!(handle, share(&allocator, block), "asked again, they are the same");
            assert!(handle.handle[0] == 2 && handle.handle[1] == kind);
            send(&other, &handle);
            assert_eq!(other.receive().bytes, b"done");
            assert_eq!(read(&world, block, SOME), pattern(SOME, 2));
            free(&allocator, block);
        }
        other.finish();
    });
}

#[test]
fn a_block_of_the_default_pool_goes_both_ways() {
    goes_both_ways(test_name!(), b'e', |world, allocator| {
        let before = allocator.malloc(MIB, world.context.device(), &world.stream).unwrap();
        let block = allocator.malloc(SOME, world.context.device(), &world.stream).unwrap();
        free(allocator, before);
        block
    });
}

#[test]
fn a_block_of_a_private_pool_goes_both_ways() {
    goes_both_ways(test_name!(), b'c', |world, allocator| {
        let (device, id) = (world.context.device(), MempoolId::for_user());
        allocator.begin_allocate_to_pool(device, id, Filter::this_thread()).unwrap();
        allocator.malloc(SOME, device, &world.stream).unwrap();
        let block = allocator.malloc(SOME, device, &world.stream).unwrap();
        allocator.end_allocate_to_pool(device, id).unwrap();
        block
    });
}

#[test]
fn memory_straight_from_the_driver_goes_both_ways() {
    goes_both_ways(test_name!(), b'c', |world, allocator| {
        allocator.enable(false);
        allocator.malloc(SOME, world.context.device(), &world.stream).unwrap()
    });
}

#[test]
fn memory_of_a_program_is_shared_as_the_driver_shares_it() {
    let world = World::new();
    let allocator = Program::new().allocator(&world);
    let block = allocator.malloc(SOME, world.context.device(), &world.stream).unwrap();
    let handle = share(&*allocator, block);
    assert_eq!((handle.offset, handle.handle.len(), handle.handle[1]), (0, 66, b'c'));
    free(&*allocator, block);
}

#[test]
fn a_pool_of_another_allocators_memory_is_shared_as_the_driver_shares_it() {
    let world = World::new();
    let (program, device, id) = (Program::new(), world.context.device(), MempoolId::for_user());
    let allocator = program.allocator(&world);
    allocator.begin_allocate_to_pool(device, id, Filter::this_thread()).unwrap();
    let (one, two) = (
        allocator.malloc(SOME, device, &world.stream).unwrap(),
        allocator.malloc(SOME, device, &world.stream).unwrap(),
    );
    allocator.end_allocate_to_pool(device, id).unwrap();
    let (first, second) = (share(&*allocator, one), share(&*allocator, two));
    assert_eq!((first.offset, second.offset, first.handle[1]), (0, SOME as u64, b'c'));
    assert_eq!(first.handle, second.handle, "one segment");
    free(&*allocator, one);
    free(&*allocator, two);
    allocator.release_pool(device, id).unwrap();
}

#[test]
fn what_is_not_allocated_is_not_shared() {
    let world = World::new();
    let allocators: [Box<dyn CudaAllocator>; 2] =
        [Box::new(native(&world)), Box::new((*Program::new().allocator(&world)).clone())];
    for allocator in allocators {
        // SAFETY: refused.
        let refused = unsafe { allocator.share_ipc_handle(4096) }.unwrap_err();
        assert!(matches!(refused, Error::UnknownPointer { address: 4096 }), "{refused}");
    }
}

/// A process that has ended may have left its number to another one, whose descriptors are none of the reader's business.
#[test]
fn a_handle_of_a_process_whose_number_another_has_is_refused() {
    let world = World::new();
    let allocator = native(&world);
    let block = allocator.malloc(4 * MIB, world.context.device(), &world.stream).unwrap();
    let mut handle = share(&allocator, block).handle;
    let open = |bytes: &[u8]| world.context.with_current(|| allocator.ipc_dev_ptr(bytes)).unwrap().map(drop);
    open(&handle).unwrap();
    // Behind the mark is when the exporter was started: earlier than this process.
    let mark = handle.windows(8).position(|bytes| bytes == b"cudamem2").unwrap() + 8;
    let start = u64::from_ne_bytes(handle[mark..mark + 8].try_into().unwrap());
    handle[mark..mark + 8].copy_from_slice(&(start - 1).to_ne_bytes());
    let refused = open(&handle).unwrap_err();
    assert!(matches!(refused, Error::Handle(HandleError::Exporter { call: "pidfd_open", .. })), "{refused}");
    free(&allocator, block);
}

#[test]
fn bytes_that_name_nothing_are_refused() {
    let world = World::new();
    let allocator = native(&world);
    let open = |bytes: &[u8]| {
        world.context.with_current(|| allocator.ipc_dev_ptr(bytes)).unwrap().map(drop).unwrap_err()
    };
    assert!(matches!(open(&[4, b'c']), Error::Handle(HandleError::Version { found: 4, .. })));
    assert!(matches!(open(&[2, b'?']), Error::Handle(HandleError::Kind { .. })));
    assert!(matches!(open(&[]), Error::Handle(HandleError::Length { .. })));
    // A process that there is not: no number is as high.
    let mut mapped = vec![2, b'e'];
    mapped.extend(i32::MAX.to_ne_bytes());
    mapped.extend([0; 4]);
    mapped.extend((2u64 << 20).to_ne_bytes());
    mapped.extend(1u64.to_ne_bytes());
    mapped.extend(0i32.to_ne_bytes());
    let refused = open(&mapped);
    assert!(matches!(refused, Error::Handle(HandleError::Exporter { call: "pidfd_open", .. })), "{refused}");
    // A descriptor of this process that is no memory.
    let file = std::fs::File::open("/dev/null").unwrap();
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
    mapped.splice(2..6, (std::process::id() as i32).to_ne_bytes());
    mapped.splice(26..30, descriptor.to_ne_bytes());
    let refused = open(&mapped);
    assert!(matches!(refused, Error::Core(_)), "{refused}");
    assert!(matches!(open(&[7; 64]), Error::Core(_)), "the driver's own handle of nothing");
}
