//! Imports that happen once, of memory of another process.

use std::fmt::Debug;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cuda_mem_core::ipc::{DeviceAllocation, ImportedMapping, MemoryHandle, OpenedMemory};
use cuda_mem_core::raw_pool::{
    self, AllocationType, ImportedBlock, MemoryLocation, MemoryPool, PointerExport, PoolProperties,
};
use cuda_mem_core::vmm::{self, CreateOptions, ShareableMemory};
use cuda_mem_core::{Context, Device, DeviceBuffer, Error, Stream, copy};
use cuda_mem_ipc::{Departure, ImportError, ImportKey, Imports};

use crate::common::capture::{Capture, RELAXED};
use crate::common::pair::{self, Cast, Channel, test_name};
use crate::common::{World, pattern};

const LEN: usize = 100_000;
const LONG: Duration = Duration::from_secs(60);

fn upload(stream: &Stream, address: u64, bytes: &[u8]) {
    let source = DeviceBuffer::from_slice(stream, bytes).unwrap();
    let from = source.on_read(stream).unwrap();
    // SAFETY: addresses of memory that the test keeps until the wait below.
    unsafe { copy::memcpy_async(stream, address, from.address(), bytes.len()) }.unwrap();
    stream.synchronize().unwrap();
}

fn download(stream: &Stream, address: u64) -> Vec<u8> {
    let target = DeviceBuffer::<u8>::zeroed(stream, LEN).unwrap();
    {
        let to = target.on(stream).unwrap();
        // SAFETY: as in `upload`.
        unsafe { copy::memcpy_async(stream, to.address(), address, LEN) }.unwrap();
    }
    target.to_vec(stream).unwrap()
}

/// Threads that take shares and give them back, all of the same memory, and always find its bytes.
fn come_and_go<V: Send + Sync + Debug + 'static>(
    context: &Context,
    import: impl Fn(Departure) -> Result<V, Error> + Sync,
    address: impl Fn(&V) -> u64 + Sync,
    settle: impl FnOnce(),
) {
    let (imports, key) = (Imports::new(), ImportKey::new(context.device(), b"the memory"));
    let times = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (imports, key, import, address, times) = (&imports, &key, &import, &address, &times);
            scope.spawn(move || {
                let stream = Stream::new(context).unwrap();
                let share = || {
                    let counted = |departure| {
                        times.fetch_add(1, Ordering::SeqCst);
                        import(departure)
                    };
                    imports.import(key, LONG, counted).unwrap()
                };
                for round in 0..50 {
                    let one = share();
                    let two = (round % 2 == thread % 2).then(|| (share(), one.clone()));
                    if let Some((two, clone)) = &two {
                        assert_eq!((address(two), address(clone)), (address(&one), address(&one)));
                    }
                    assert!(download(&stream, address(&one)) == pattern(LEN, 1));
                }
            });
        }
    });
    settle();
    assert_eq!(imports.len(), 0);
    assert!(times.into_inner() > 0);
    assert_eq!(context.driver().release_failures(), 0);
}

fn opens_legacy(first: &Channel) {
    let world = World::new();
    let handle = MemoryHandle::from_parts(first.receive().bytes.try_into().unwrap(), 0, LEN as u64);
    let open = |departure| {
        let mut memory = OpenedMemory::open(&world.context, &handle)?;
        memory.drop_after_close(departure);
        Ok(memory)
    };
    come_and_go(&world.context, open, OpenedMemory::as_raw, || {});
}

#[test]
fn memory_of_a_legacy_handle_is_opened_once_at_a_time() {
    pair::play(test_name!(), &[("importer", opens_legacy)], |cast| {
        let world = World::new();
        let memory = DeviceAllocation::new(&world.context, LEN).unwrap();
        upload(&world.stream, memory.as_raw(), &pattern(LEN, 1));
        let importer = cast.start("importer");
        // SAFETY: the memory stays until the peer has closed what it opened.
        importer.send(unsafe { memory.handle(0..LEN) }.unwrap().base(), &[]);
        importer.finish();
    });
}

fn only(descriptors: Vec<OwnedFd>) -> OwnedFd {
    let [descriptor] = <[OwnedFd; 1]>::try_from(descriptors).unwrap();
    descriptor
}

fn maps(first: &Channel) {
    let world = World::new();
    let (device, message) = (world.context.device(), first.receive());
    let bytes = usize::try_from(message.words()[0]).unwrap();
    let descriptor = only(message.descriptors);
    let map = |departure| {
        let mut mapping = ImportedMapping::import_posix_fd(device, descriptor.as_fd(), bytes, &[device])?;
        mapping.drop_after_unmap(departure);
        Ok(mapping)
    };
    come_and_go(&world.context, map, ImportedMapping::as_raw, || {});
}

fn shareable(device: Device) -> ShareableMemory {
    let page = vmm::granularity(device).unwrap();
    ShareableMemory::create(device, page, &CreateOptions::supported_by(device).unwrap()).unwrap()
}

#[test]
fn memory_of_a_descriptor_is_mapped_once_at_a_time() {
    pair::play(test_name!(), &[("importer", maps)], |cast| {
        let world = World::new();
        let device = world.context.device();
        let memory = shareable(device);
        let (bytes, descriptor) = (memory.memory().bytes(), memory.export_posix_fd().unwrap());
        let here = ImportedMapping::import_posix_fd(device, descriptor.as_fd(), bytes, &[device]).unwrap();
        upload(&world.stream, here.as_raw(), &pattern(LEN, 1));
        let importer = cast.start("importer");
        importer.send(&(bytes as u64).to_le_bytes(), &[descriptor.as_fd()]);
        importer.finish();
    });
}

fn imports_block(first: &Channel) {
    let world = World::new();
    let message = first.receive();
    let export = PointerExport::from_bytes(message.bytes.try_into().unwrap());
    let descriptor = only(message.descriptors);
    let pool = Arc::new(MemoryPool::import(world.driver, descriptor.as_fd()).unwrap());
    let home = world.new_stream();
    let import = |departure| {
        // SAFETY: imported once at a time, which is what is tested, from the pool's own process, which frees last.
        let mut block = unsafe { ImportedBlock::import(&pool, &export, LEN, &home) }?;
        block.drop_after_free(departure);
        Ok(block)
    };
    come_and_go(&world.context, import, ImportedBlock::as_raw, || {
        home.synchronize().unwrap();
        assert_eq!(world.driver.reclaim(), 0);
    });
}

fn exports_block(cast: Cast, location: MemoryLocation) {
    let world = World::new();
    let allocation_type = AllocationType::Pinned;
    let properties = PoolProperties { allocation_type, location, shareable: true, max_size: 0 };
    let pool = match MemoryPool::create(world.driver, &properties) {
        Ok(pool) => pool,
        // Older drivers, and hosts without nodes, have no such pools.
        Err(error) => {
            assert!(matches!(location, MemoryLocation::HostNuma(_)), "{error}");
            return assert_eq!(error.code().map(|code| code.0), Some(1), "{error}");
        }
    };
    let address = pool.allocate(LEN, &world.stream).unwrap();
    upload(&world.stream, address, &pattern(LEN, 1));
    let importer = cast.start("importer");
    let descriptor = pool.export().unwrap();
    // SAFETY: nothing here borrows the memory; it is freed after the importer's frees.
    let export = unsafe { MemoryPool::export_pointer(world.driver, address) }.unwrap();
    importer.send(export.as_bytes(), &[descriptor.as_fd()]);
    importer.finish();
    // SAFETY: no work uses it, here or there.
    unsafe { raw_pool::free(address, &world.stream) }.unwrap();
}

#[test]
fn a_block_of_a_device_pool_is_imported_once_at_a_time() {
    let roles: &[(&str, pair::Body)] = &[("importer", imports_block)];
    pair::play(test_name!(), roles, |cast| exports_block(cast, MemoryLocation::Device(0)));
}

#[test]
fn a_block_of_a_pool_of_the_host_is_imported_once_at_a_time() {
    let roles: &[(&str, pair::Body)] = &[("importer", imports_block)];
    pair::play(test_name!(), roles, |cast| exports_block(cast, MemoryLocation::HostNuma(0)));
}

#[test]
fn memory_that_a_capture_holds_is_not_imported_anew_before_its_end() {
    let world = World::new();
    let (device, stream) = (world.context.device(), world.new_stream());
    let memory = shareable(device);
    let (bytes, descriptor) = (memory.memory().bytes(), memory.export_posix_fd().unwrap());
    let (imports, key) = (Imports::new(), ImportKey::new(device, b"the memory"));
    let import = |limit| {
        imports.import(&key, limit, |departure| {
            let mut mapping = ImportedMapping::import_posix_fd(device, descriptor.as_fd(), bytes, &[device])?;
            mapping.drop_after_unmap(departure);
            Ok::<_, Error>(mapping)
        })
    };
    let first = import(LONG).unwrap();
    let capture = Capture::begin(&stream, RELAXED);
    drop(first.on(&stream).unwrap());
    drop(first);
    assert_eq!(imports.len(), 1, "the driver has not let go");
    let short = Duration::from_millis(20);
    let early = import(short);
    assert!(matches!(early, Err(ImportError::Timeout(limit)) if limit == short), "{early:?}");
    drop(capture.end().unwrap());
    // Whoever comes has the release tried again.
    drop(import(LONG).unwrap());
    assert_eq!(imports.len(), 0);
    assert_eq!(world.driver.release_failures(), 0);
}
