//! `PluggableAllocator`: what its functions are asked, and what is no allocation.

use std::sync::Arc;

use cuda_mem_core::{Error as CoreError, Stream};
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool;
use cuda_mem_torch::{CudaAllocator, DataPtr, Error, create_custom_allocator};

use crate::common::World;
use crate::program::{Call, MIB, Program, free};

#[test]
fn the_functions_get_exact_sizes_and_what_belongs_to_the_allocation() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    let allocator = program.allocator(&world);
    let (one, two) = (world.stream.id().as_raw(), world.new_stream());
    let first = allocator.malloc(1, device, &world.stream).unwrap();
    let second = allocator.raw_alloc_with_stream(12_345_677, &two).unwrap();
    let two = two.id().as_raw();
    assert_eq!(program.calls(), [Call::Alloc(1, device, one), Call::Alloc(12_345_677, device, two)]);
    free(&*allocator, second);
    free(&*allocator, first);
    let expected = [Call::Free(second, 12_345_677, device, two), Call::Free(first, 1, device, one)];
    assert_eq!(program.calls(), expected);
    assert_eq!(program.out(), 0);
}

#[test]
fn no_bytes_are_address_0_and_call_nobody() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    let allocator = program.allocator(&world);
    assert_eq!(allocator.malloc(0, device, &world.stream).unwrap(), 0);
    free(&*allocator, 0);
    allocator.record_stream(0, &world.stream).unwrap();
    assert_eq!(program.calls(), []);
    let huge = allocator.malloc(1 << 60, device, &world.stream).unwrap_err();
    assert!(matches!(huge, Error::Pool(cuda_mem_pool::Error::TooLarge { .. })), "{huge}");
    assert_eq!(program.calls(), [], "more than any device has is not asked for");
}

#[test]
fn what_is_not_allocated_here_is_an_error() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    let (allocator, other) = (program.allocator(&world), program.allocator(&world));
    let block = allocator.malloc(100, device, &world.stream).unwrap();
    let unknown = |error: Error, address| {
        assert!(matches!(error, Error::UnknownPointer { address: found } if found == address), "{error}");
    };
    // SAFETY: refused, because it is another's.
    unknown(unsafe { other.raw_delete(block) }.unwrap_err(), block);
    // SAFETY: refused, because no allocation begins there.
    unknown(unsafe { allocator.raw_delete(block + 1) }.unwrap_err(), block + 1);
    unknown(allocator.record_stream(block + 1, &world.stream).unwrap_err(), block + 1);
    unknown(allocator.base_allocation(block + 1).unwrap_err(), block + 1);
    free(&*allocator, block);
    // SAFETY: refused, because it is free.
    unknown(unsafe { allocator.raw_delete(block) }.unwrap_err(), block);
    assert_eq!(program.calls().len(), 2, "the program heard of one allocation and one free");
}

#[test]
fn a_stream_of_another_device_is_refused() {
    let world = World::new();
    let allocator = Program::new().allocator(&world);
    for device in world.driver.devices().unwrap().into_iter().skip(1) {
        let refused = allocator.malloc(100, device, &world.stream).unwrap_err();
        assert!(matches!(refused, Error::Core(CoreError::ForeignContext { .. })), "{refused}");
        let there = Stream::new(&device.primary_context().unwrap()).unwrap();
        let block = allocator.malloc(100, device, &there).unwrap();
        free(&*allocator, block);
        assert_eq!(allocator.device_stats(device).unwrap().allocation.all.allocated, 1);
        assert_eq!(allocator.device_stats(world.context.device()).unwrap().allocation.all.allocated, 0);
    }
}

#[test]
fn it_is_initialised_from_the_start_and_a_clone_is_not() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    let allocator = program.allocator(&world);
    assert!(allocator.initialized());
    let block = allocator.malloc(100, device, &world.stream).unwrap();
    let clone = (*allocator).clone();
    assert!(!clone.initialized());
    // SAFETY: refused: a clone has the functions and not the bookkeeping.
    assert!(matches!(unsafe { clone.raw_delete(block) }, Err(Error::UnknownPointer { .. })));
    assert_eq!(clone.device_stats(device).unwrap().allocation.all.allocated, 0);
    let another = clone.malloc(200, device, &world.stream).unwrap();
    assert_eq!(program.calls().len(), 2, "the same functions");
    free(&clone, another);
    free(&*allocator, block);
    assert_ne!(clone.raw_deleter(), allocator.raw_deleter());
}

#[test]
fn an_owner_frees_what_it_has_and_outlives_its_allocator() {
    let world = World::new();
    let program = Program::new();
    let allocator: Arc<dyn CudaAllocator> = program.allocator(&world);
    let block = world.context.with_current(|| allocator.allocate(4096)).unwrap().unwrap();
    assert_eq!(block.device(), world.context.device());
    let raw = world.context.with_current(|| allocator.raw_alloc(512)).unwrap().unwrap();
    let (device, legacy) = (world.context.device(), Stream::legacy(&world.context).unwrap().id().as_raw());
    assert_eq!(program.calls(), [4096, 512].map(|size| Call::Alloc(size, device, legacy)));
    let deleter = allocator.raw_deleter();
    assert_eq!(&deleter, block.deleter());
    drop(allocator);
    assert_eq!(program.out(), 2);
    drop(block);
    assert_eq!(program.out(), 1);
    // SAFETY: allocated above, freed once, and nothing uses it.
    unsafe { deleter.delete(raw) }.unwrap();
    assert_eq!(program.out(), 0);
    // SAFETY: nothing is at address 0.
    let nothing = unsafe { DataPtr::from_raw(0, world.context.device(), deleter) };
    nothing.close().unwrap();
}

#[test]
fn an_allocator_is_moved_and_assigned_over_beside_its_allocations() {
    let world = World::new();
    let (program, other) = (Program::new(), Program::new());
    let allocate = |allocator: &dyn CudaAllocator| {
        world.context.with_current(|| allocator.allocate(4096)).unwrap().unwrap()
    };
    let mut allocator = (*program.allocator(&world)).clone();
    let (first, second, third) = (allocate(&allocator), allocate(&allocator), allocate(&allocator));
    let mut moved = Box::new(allocator);
    drop(first);
    assert_eq!(program.out(), 2);
    let address = second.into_raw();
    free(&*moved, address);
    assert_eq!(program.out(), 1);
    // What was there is dropped.
    *moved = (*other.allocator(&world)).clone();
    assert_eq!((program.out(), other.out()), (1, 0));
    let fourth = allocate(&*moved);
    assert_eq!((program.out(), other.out()), (1, 1));
    drop(third);
    assert_eq!((program.out(), other.out()), (0, 1));
    allocator = *moved;
    drop(allocator);
    assert_eq!(other.out(), 1);
    drop(fourth);
    assert_eq!(other.out(), 0);
}

#[test]
fn an_owner_gives_its_address_away_or_tells_why_it_cannot_free() {
    let world = World::new();
    let program = Program::new();
    let allocator = program.allocator(&world);
    let allocate = || world.context.with_current(|| allocator.allocate(4096)).unwrap().unwrap();
    let address = allocate().into_raw();
    assert_eq!(program.out(), 1);
    free(&*allocator, address);
    allocate().close().unwrap();
    assert_eq!(program.out(), 0);
    let block = allocate();
    let address = block.address();
    program.refuse_free();
    let refused = block.close().unwrap_err();
    assert!(matches!(refused, Error::Function { function: "free", .. }), "{refused}");
    // Still allocated.
    free(&*allocator, address);
    assert_eq!(program.out(), 0);
    let failures = world.driver.release_failures();
    let block = allocate();
    let address = block.address();
    program.refuse_free();
    drop(block);
    assert_eq!(world.driver.release_failures(), failures + 1);
    free(&*allocator, address);
}

#[test]
fn without_a_current_device_there_is_none_to_allocate_on() {
    let world = World::new();
    let allocator = Program::new().allocator(&world);
    let result = std::thread::scope(|scope| scope.spawn(|| allocator.raw_alloc(100)).join().unwrap());
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Pool(cuda_mem_pool::Error::NoCurrentContext { .. })), "{error}");
}

#[test]
fn an_error_of_alloc_is_the_requests_and_an_address_is_given_once() {
    let world = World::new();
    let device = world.context.device();
    let fixed = cuda_mem_core::DeviceBuffer::<u8>::uninit(&world.stream, 4096).unwrap();
    let address = fixed.as_raw();
    // SAFETY: the memory outlives the allocator; what is given twice is refused.
    let made = unsafe {
        create_custom_allocator(
            world.driver,
            move |size, _, _| match size {
                1 => {
                    Err(Error::Function { function: "alloc", source: Arc::new(std::io::Error::other("no")) })
                }
                _ => Ok(address),
            },
            |_, _, _, _| Ok(()),
        )
    };
    let allocator = made.unwrap();
    let refused = allocator.malloc(1, device, &world.stream).unwrap_err();
    assert!(matches!(refused, Error::Function { function: "alloc", .. }), "{refused}");
    assert_eq!(allocator.malloc(100, device, &world.stream).unwrap(), address);
    let twice = allocator.malloc(100, device, &world.stream).unwrap_err();
    assert!(matches!(twice, Error::GivenTwice { address: found } if found == address), "{twice}");
    let stats = allocator.device_stats(device).unwrap();
    assert_eq!((stats.allocation.all.current, stats.num_ooms), (1, 0));
    free(&*allocator, address);
}

#[test]
fn the_names_are_fixed() {
    let world = World::new();
    assert_eq!(Program::new().allocator(&world).name(), "pluggable");
    assert_eq!(cuda_mem_torch::NativeAllocator::new(world.driver).name(), "native");
}

#[test]
fn off_it_asks_the_driver_and_not_the_program() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    let allocator = program.allocator(&world);
    assert!(allocator.is_enabled());
    let before = allocator.malloc(100, device, &world.stream).unwrap();
    program.calls();
    allocator.enable(false);
    assert!(!allocator.is_enabled());
    let direct = allocator.malloc(3 * MIB, device, &world.stream).unwrap();
    assert_eq!(allocator.base_allocation(direct).unwrap(), (direct, 4 * MIB));
    assert_eq!(program.calls(), []);
    // Each goes back to where it came from.
    free(&*allocator, before);
    assert_eq!(program.calls().len(), 1);
    allocator.enable(true);
    allocator.record_stream(direct, &world.new_stream()).unwrap();
    free(&*allocator, direct);
    assert_eq!(program.calls(), []);
    // SAFETY: refused, because it is free.
    assert!(matches!(unsafe { allocator.raw_delete(direct) }, Err(Error::UnknownPointer { .. })));
}
