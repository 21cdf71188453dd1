//! Pinning by bare address, as PyTorch does it.

use std::ffi::c_void;
use std::ptr;

use cuda_mem_core::host::raw::{self, PinError};
use cuda_mem_core::host::{RegisterFlags, Registered};
use cuda_mem_core::pointer::{self, MemoryKind};
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{DeviceBuffer, Error, RegisteredBy, scope};

use crate::common::outcome::append;
use crate::common::{Backend, World, backend, pattern};

/// Pins with the driver under test: by the plain function where that is the system's.
fn pin(world: &World, start: *const u8, size: usize) -> Result<(), PinError> {
    let ptr = start.cast_mut().cast::<c_void>();
    match backend() {
        // SAFETY: the tests keep their memory until it is unpinned; other addresses are refused.
        Backend::Gpu => unsafe { raw::pin_memory(ptr, size) },
        // SAFETY: as above.
        Backend::Simulator => unsafe { raw::pin_memory_with(world.driver, ptr, size) },
    }
}

fn unpin(world: &World, start: *const u8) -> Result<(), PinError> {
    let ptr = start.cast_mut().cast::<c_void>();
    match backend() {
        // SAFETY: the tests put no work with the memory into streams after this.
        Backend::Gpu => unsafe { raw::unpin_memory(ptr) },
        // SAFETY: as above.
        Backend::Simulator => unsafe { raw::unpin_memory_with(world.driver, ptr) },
    }
}

fn code(step: &str, result: Result<(), PinError>) -> i64 {
    let code = result.as_ref().err().map_or(0, |error| i64::from(error.code().expect("a code").0));
    append("raw_pins", step, &usize::try_from(code).unwrap());
    if let Err(error) = result {
        assert!(error.to_string().contains(&format!("cudaError: {code}")), "{error}");
    }
    code
}

#[test]
fn pinned_memory_is_known_to_all_contexts_until_it_is_unpinned() {
    let world = World::new();
    let bytes = pattern(100_000, 1);
    let (start, address) = (bytes.as_ptr(), bytes.as_ptr().addr() as u64);
    assert_eq!(code("pin", pin(&world, start, bytes.len())), 0);
    let known = pointer::attributes(&world.context, address).unwrap();
    assert_eq!((known.kind, known.range_size), (MemoryKind::Host, bytes.len()));
    let device = DeviceBuffer::<u8>::zeroed(&world.stream, bytes.len()).unwrap();
    scope(&world.context, |scope| scope.upload(&world.stream, &bytes, &device.whole())).unwrap();
    assert!(device.to_vec(&world.stream).unwrap() == bytes);
    assert_eq!(code("unpin", unpin(&world, start)), 0);
    assert_eq!(pointer::attributes(&world.context, address).unwrap().kind, MemoryKind::Unknown);
    assert_eq!(code("unpin again", unpin(&world, start)), 713);
}

#[test]
fn much_memory_is_brought_in_by_several_threads() {
    let world = World::new();
    let len = (100 << 20) + 1;
    let memory = vec![0u8; len];
    assert_eq!(code("much", pin(&world, memory.as_ptr(), len)), 0);
    let known = pointer::attributes(&world.context, memory.as_ptr().addr() as u64).unwrap();
    assert_eq!(known.range_size, len);
    assert_eq!(code("much, unpinned", unpin(&world, memory.as_ptr())), 0);
    assert!(memory == vec![0; len]);
}

#[test]
fn bad_addresses_and_sizes_have_the_drivers_codes() {
    let world = World::new();
    let bytes = pattern(100_000, 2);
    let start = bytes.as_ptr();
    let nowhere = ptr::without_provenance(0x1000);
    for (step, start, size, expected) in [
        ("null", ptr::null(), 4096, 1),
        ("null, no bytes", ptr::null(), 0, 1),
        ("no bytes", start, 0, 1),
        ("not mapped", nowhere, 4096, 1),
        ("around the end of the address space", start, usize::MAX, 1),
    ] {
        assert_eq!(code(step, pin(&world, start, size)), expected, "{step}");
    }
    for (step, start, expected) in
        [("unpin null", ptr::null(), 1), ("unpin unknown", start, 713), ("unpin nowhere", nowhere, 713)]
    {
        assert_eq!(code(step, unpin(&world, start)), expected, "{step}");
    }
    pin(&world, start, bytes.len()).unwrap();
    assert_eq!(code("unpin inside", unpin(&world, start.wrapping_add(4096))), 1);
    unpin(&world, start).unwrap();
}

#[test]
fn memory_that_is_pinned_already_names_by_what() {
    let world = World::new();
    let bytes = pattern(100_000, 3);
    let start = bytes.as_ptr();
    pin(&world, start, bytes.len()).unwrap();
    let ours = RegisteredBy::Ours { range: start.addr()..start.addr() + bytes.len() };
    for (step, start, size) in [
        ("the same", start, bytes.len()),
        ("inside", start.wrapping_add(5000), 10),
        ("the end", start.wrapping_add(99_999), 1),
    ] {
        let error = pin(&world, start, size).unwrap_err();
        assert!(matches!(error.error(), Error::AlreadyRegistered { by, .. } if *by == ours), "{error}");
        assert_eq!(error.error().code(), error.code());
        assert_eq!(code(step, Err(error)), 712);
    }
    // Pins are not counted: one ends it.
    unpin(&world, start).unwrap();
    assert_eq!(code("unpin the second", unpin(&world, start)), 713);
}

#[test]
fn memory_with_an_owner_is_neither_pinned_nor_unpinned() {
    let world = World::new();
    let registered = Registered::new(&world.context, pattern(100_000, 4), RegisterFlags::default()).unwrap();
    let start = registered.as_slice().unwrap().as_ptr();
    assert_eq!(code("pin an owner's", pin(&world, start, 4096)), 712);
    let error = unpin(&world, start).unwrap_err();
    assert!(matches!(error.error(), Error::HeldByOwner { .. }), "{error}");
    assert_eq!(error.code(), Some(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED));
    let known = pointer::attributes(&world.context, start.addr() as u64).unwrap();
    assert_eq!(known.kind, MemoryKind::Host);
}

#[test]
fn an_owner_that_shares_a_pin_outlives_it() {
    let world = World::new();
    let bytes = pattern(100_000, 5);
    let (start, address) = (bytes.as_ptr(), bytes.as_ptr().addr() as u64);
    pin(&world, start, bytes.len()).unwrap();
    let shared = Registered::new(&world.context, bytes, RegisterFlags::default()).unwrap();
    unpin(&world, start).unwrap();
    assert_eq!(pointer::attributes(&world.context, address).unwrap().kind, MemoryKind::Host);
    assert_eq!(code("unpin what an owner still holds", unpin(&world, start)), 713);
    let bytes = shared.close().unwrap();
    assert_eq!(pointer::attributes(&world.context, address).unwrap().kind, MemoryKind::Unknown);
    drop(bytes);
}

#[test]
fn memory_that_others_registered_is_unpinned_as_well() {
    let world = World::new();
    let bytes = pattern(100_000, 6);
    let start = bytes.as_ptr();
    let register = world.driver.table().cuMemHostRegister().unwrap();
    let theirs = || {
        // SAFETY: the vector lives until it is unpinned below; a context is current.
        unsafe { register(start.cast_mut().cast(), bytes.len(), 0) }
    };
    assert_eq!(world.context.with_current(theirs).unwrap(), CUresult::CUDA_SUCCESS);
    assert_eq!(code("pin others'", pin(&world, start, bytes.len())), 712);
    assert_eq!(code("unpin others'", unpin(&world, start)), 0);
}

#[test]
fn a_pin_that_others_undo_is_an_error_and_forgotten() {
    let world = World::new();
    let bytes = pattern(100_000, 8);
    let start = bytes.as_ptr();
    pin(&world, start, bytes.len()).unwrap();
    let unregister = world.driver.table().cuMemHostUnregister().unwrap();
    // SAFETY: pinned above; nothing uses it.
    assert_eq!(unsafe { unregister(start.cast_mut().cast()) }, CUresult::CUDA_SUCCESS);
    assert_eq!(code("unpin what others unpinned", unpin(&world, start)), 713);
    assert_eq!(code("pin it again", pin(&world, start, bytes.len())), 0);
    unpin(&world, start).unwrap();
}

#[test]
fn the_device_is_that_of_the_current_context() {
    let world = World::new();
    for device in world.driver.devices().unwrap() {
        let context = device.primary_context().unwrap();
        let bytes = pattern(5000, 7);
        context.with_current(|| pin(&world, bytes.as_ptr(), bytes.len())).unwrap().unwrap();
        let known = pointer::attributes(&context, bytes.as_ptr().addr() as u64).unwrap();
        assert_eq!(known.device, device.as_raw());
        unpin(&world, bytes.as_ptr()).unwrap();
    }
}
