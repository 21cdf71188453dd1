//! Host memory registered in place.

use std::sync::Arc;

use cuda_mem_core::host::{HostMemory, RegisterFlags, Registered};
use cuda_mem_core::sys::{CUdevice_attribute, CUresult};
use cuda_mem_core::{DeviceBuffer, Error, RegisteredBy, Stream, Transfer, copy, pointer};

use crate::common::gate::Gate;
use crate::common::outcome::record;
use crate::common::{World, pattern};

/// A piece of shared pages, which several owners can register.
struct Piece {
    pages: Arc<Pages>,
    start: usize,
    len: usize,
}

/// Sixteen pages that start at a page's start.
#[repr(align(4096))]
struct Pages([u8; 16 * 4096]);

impl Piece {
    fn of(pages: &Arc<Pages>, start: usize, len: usize) -> Self {
        Self { pages: Arc::clone(pages), start, len }
    }
}

// SAFETY: the pages stay where they are while any piece of them exists. Nobody reads or writes their bytes but devices.
unsafe impl HostMemory for Piece {
    fn as_ptr(&self) -> *const u8 {
        self.pages.0[self.start..].as_ptr()
    }

    fn byte_len(&self) -> usize {
        self.len
    }

    fn is_writable(&self) -> bool {
        true
    }
}

/// Addresses at which there is no memory.
struct Nowhere {
    address: usize,
    len: usize,
}

// SAFETY: not kept: nothing is mapped there, and these tests show that the driver says so.
unsafe impl HostMemory for Nowhere {
    fn as_ptr(&self) -> *const u8 {
        std::ptr::without_provenance(self.address)
    }

    fn byte_len(&self) -> usize {
        self.len
    }

    fn is_writable(&self) -> bool {
        true
    }
}

fn pages() -> Arc<Pages> {
    Arc::new(Pages([1; 16 * 4096]))
}

#[test]
fn the_owner_stays_usable_and_comes_back() {
    let world = World::new();
    let vector = pattern(100_000, 1);
    let address = vector.as_ptr();
    let mut registered = Registered::new(&world.context, vector, RegisterFlags::default()).unwrap();
    assert_eq!((registered.as_ptr(), registered.byte_len()), (address, 100_000));
    assert_eq!(registered.memory().unwrap().len(), 100_000);
    registered.as_mut_slice().unwrap()[7] = 9;
    let device = DeviceBuffer::from_slice(&world.stream, registered.as_slice().unwrap()).unwrap();
    let vector = registered.close().unwrap();
    assert_eq!((vector.as_ptr(), vector[7]), (address, 9));
    assert_eq!(device.to_vec(&world.stream).unwrap(), vector);
}

#[test]
fn boxed_slices_and_typed_vectors() {
    let world = World::new();
    let boxed: Box<[u32]> = (0..5000).collect();
    let registered = Registered::new(&world.context, boxed, RegisterFlags::default()).unwrap();
    assert_eq!(registered.as_slice().unwrap().len(), 5000);
    assert_eq!(registered.as_slice().unwrap()[4999], 4999);
    let empty = Registered::new(&world.context, Vec::<u64>::new(), RegisterFlags::default()).unwrap();
    assert_eq!(empty.as_slice().unwrap(), []);
    assert_eq!(empty.close().unwrap(), []);
}

#[test]
fn mapped_memory_is_written_by_the_device_in_place() {
    let world = World::new();
    let flags = RegisterFlags::PORTABLE | RegisterFlags::MAPPED;
    let registered = Registered::new(&world.context, vec![0u8; 5000], flags).unwrap();
    assert_eq!(registered.flags(), flags);
    let stream = world.new_stream();
    let source = DeviceBuffer::from_slice(&stream, &pattern(5000, 2)).unwrap();
    let gate = Gate::before(&stream);
    {
        let (from, to) = (source.on_read(&stream).unwrap(), registered.on(&stream).unwrap());
        // SAFETY: both know that this stream uses them.
        unsafe { copy::memcpy_async(&stream, to.address(), from.address(), 5000) }.unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            gate.open();
        });
        // The slice is given only when the device has written it.
        assert_eq!(registered.as_slice().unwrap(), pattern(5000, 2));
    });
}

/// Has `stream` write memory in place, behind a gate.
fn write_behind(gate: &Gate, stream: &Stream, source: &DeviceBuffer<u8>, memory: &Registered<Vec<u8>>) {
    gate.hold(stream);
    let (from, to) = (source.on_read(stream).unwrap(), memory.on(stream).unwrap());
    // SAFETY: both know that this stream uses them.
    unsafe { copy::memcpy_async(stream, to.address(), from.address(), 5000) }.unwrap();
}

/// The owner inside knows of uses that its holder has never heard of: those from before, and those that came through it.
#[test]
fn what_an_owner_inside_knows_of_is_waited_for() {
    let world = World::new();
    let flags = RegisterFlags::PORTABLE | RegisterFlags::MAPPED;
    let stream = world.new_stream();
    let source = DeviceBuffer::from_slice(&stream, &pattern(5000, 2)).unwrap();
    for (is_earlier, is_mut) in [(true, true), (true, false), (false, true), (false, false)] {
        let gate = Gate::new(&world.context);
        let inner = Registered::new(&world.context, vec![0u8; 5000], flags).unwrap();
        if is_earlier {
            write_behind(&gate, &stream, &source, &inner);
        }
        let mut outer = Registered::new(&world.context, inner, flags).unwrap();
        if !is_earlier {
            write_behind(&gate, &stream, &source, outer.memory().unwrap());
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                gate.open();
            });
            let seen = if is_mut { &*outer.as_mut_slice().unwrap() } else { outer.as_slice().unwrap() };
            assert!(seen == pattern(5000, 2), "the device has not written it yet");
        });
    }
}

#[test]
fn streams_are_ordered_behind_what_an_owner_inside_knows_of() {
    let world = World::new();
    let flags = RegisterFlags::PORTABLE | RegisterFlags::MAPPED;
    let (stream, later) = (world.new_stream(), world.new_stream());
    let source = DeviceBuffer::from_slice(&stream, &pattern(5000, 2)).unwrap();
    let target = DeviceBuffer::<u8>::zeroed(&later, 5000).unwrap();
    later.synchronize().unwrap();
    let gate = Gate::new(&world.context);
    let inner = Registered::new(&world.context, vec![0u8; 5000], flags).unwrap();
    write_behind(&gate, &stream, &source, &inner);
    let outer = Registered::new(&world.context, inner, flags).unwrap();
    drop(outer.on(&later).unwrap());
    let is_ordered = !later.is_idle().unwrap();
    let transfer = Transfer::upload(&world.new_stream(), outer, &target.whole()).unwrap();
    let is_copied = transfer.is_done().unwrap();
    // Before anything is asserted: what is dropped waits for it.
    gate.open();
    assert!(is_ordered && !is_copied);
    drop(transfer.wait().unwrap());
    assert!(target.to_vec(&later).unwrap() == pattern(5000, 2));
}

#[test]
fn a_range_inside_another_with_the_same_flags_is_shared() {
    let world = World::new();
    let (pages, flags) = (pages(), RegisterFlags::default());
    let outer = Registered::new(&world.context, Piece::of(&pages, 0, 16 * 4096), flags).unwrap();
    let inner = Registered::new(&world.context, Piece::of(&pages, 4096, 4096), flags).unwrap();
    drop(outer.close().unwrap());
    let known = pointer::attributes(&world.context, inner.as_ptr().addr() as u64).unwrap();
    assert_eq!(known.kind, pointer::MemoryKind::Host, "the inner holder still needs the pages");
    let address = inner.as_ptr().addr() as u64;
    drop(inner);
    assert_eq!(pointer::attributes(&world.context, address).unwrap().kind, pointer::MemoryKind::Unknown);
}

#[test]
fn overlaps_that_cannot_be_shared_name_what_is_in_the_way() {
    let world = World::new();
    let (pages, flags) = (pages(), RegisterFlags::default());
    let middle = Registered::new(&world.context, Piece::of(&pages, 4096, 8192), flags).unwrap();
    let ours = RegisteredBy::Ours { range: middle.as_ptr().addr()..middle.as_ptr().addr() + 8192 };
    for (name, start, len, flags) in [
        ("reaches out", 8192, 8192, flags),
        ("reaches in", 0, 4097, flags),
        ("around", 0, 16 * 4096, flags),
        ("other flags", 4096, 8192, flags | RegisterFlags::MAPPED),
    ] {
        let refused = Registered::new(&world.context, Piece::of(&pages, start, len), flags).unwrap_err();
        record!(name, &refused.error);
        assert!(matches!(refused.error, Error::AlreadyRegistered { by, .. } if by == ours), "{name}");
        assert_eq!(refused.owner.start, start);
    }
    Registered::new(&world.context, Piece::of(&pages, 12288, 4096), flags).unwrap();
}

#[test]
fn memory_that_others_registered_is_an_error_that_says_so() {
    let world = World::new();
    let table = world.driver.table();
    let pages = pages();
    let address = pages.0.as_ptr().cast_mut().cast();
    let register = || {
        // SAFETY: pages that live until they are unregistered below; the context is current.
        unsafe { table.cuMemHostRegister().unwrap()(address, 8192, 0) }
    };
    assert_eq!(world.context.with_current(register).unwrap(), CUresult::CUDA_SUCCESS);
    let refused =
        Registered::new(&world.context, Piece::of(&pages, 0, 4096), RegisterFlags::default()).unwrap_err();
    record!("theirs", &refused.error);
    assert!(matches!(refused.error, Error::AlreadyRegistered { by: RegisteredBy::Others, .. }));
    // SAFETY: registered above.
    let unregister = || unsafe { table.cuMemHostUnregister().unwrap()(address) };
    // It is still theirs: a registration that failed undoes nothing.
    assert_eq!(world.context.with_current(unregister).unwrap(), CUresult::CUDA_SUCCESS);
    Registered::new(&world.context, refused.owner, RegisterFlags::default()).unwrap();
}

#[test]
fn addresses_without_memory_are_refused() {
    let world = World::new();
    for (name, address, len) in [("null", 0, 4096), ("never mapped", 0x1000, 4096)] {
        let result = Registered::new(&world.context, Nowhere { address, len }, RegisterFlags::default());
        record!(name, &result);
        assert_eq!(result.unwrap_err().error.code(), Some(CUresult::CUDA_ERROR_INVALID_VALUE), "{name}");
    }
    let nowhere = Nowhere { address: usize::MAX - 100, len: 4096 };
    let refused = Registered::new(&world.context, nowhere, RegisterFlags::default()).unwrap_err();
    assert!(matches!(refused.error, Error::TooLarge { .. }));
}

#[test]
fn memory_that_nobody_may_write_is_registered_read_only_or_not_at_all() {
    let world = World::new();
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
    let supported = world.context.device().supports(attribute).unwrap();
    let shared = Arc::new(pattern(8192, 3));
    let result = Registered::new(&world.context, Arc::clone(&shared), RegisterFlags::default());
    record!("shared", &result);
    match result {
        Ok(registered) => {
            assert!(supported && registered.flags().contains(RegisterFlags::READ_ONLY));
            assert!(!registered.is_writable());
        }
        Err(refused) => {
            assert!(!supported, "{}", refused.error);
            assert!(matches!(refused.error, Error::Unsupported { .. }));
            assert!(Arc::ptr_eq(&refused.owner, &shared));
        }
    }
}

#[test]
fn a_copy_from_one_registration_into_the_next_is_refused_by_the_driver() {
    let world = World::new();
    let (pages, flags) = (pages(), RegisterFlags::default());
    let first = Registered::new(&world.context, Piece::of(&pages, 0, 4096), flags).unwrap();
    let second = Registered::new(&world.context, Piece::of(&pages, 4096, 4096), flags).unwrap();
    let device = DeviceBuffer::<u8>::zeroed(&world.stream, 8192).unwrap();
    let source = first.as_ptr().addr() as u64;
    let to = device.on(&world.stream).unwrap();
    // SAFETY: both pieces live until the stream is synchronised.
    let result = unsafe { copy::memcpy_async(&world.stream, to.address(), source, 8192) };
    drop(to);
    world.stream.synchronize().unwrap();
    record!("across", &result);
    assert_eq!(result.unwrap_err().code(), Some(CUresult::CUDA_ERROR_INVALID_VALUE));
    drop((first, second));
}
