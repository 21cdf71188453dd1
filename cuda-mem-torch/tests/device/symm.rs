//! Symmetric memory behind a memory pool.

use std::sync::{Arc, Mutex};

use cuda_mem_core::ipc::DeviceAllocation;
use cuda_mem_core::{Device, Stream};
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::segments::Filter;
use cuda_mem_torch::cuda_mem_ipc::symmetric;
use cuda_mem_torch::symm::{self, Backends, DeviceType, MempoolAllocator, RegistryError, SymmetricMempool};
use cuda_mem_torch::{CudaAllocator, Error, MemPool, Result};

use crate::common::World;
use crate::native::native;
use crate::program::{MIB, free};
use crate::symm_fakes::Fake;

/// Symmetric memory of a group of one.
#[derive(Default)]
struct Alone(Mutex<Vec<DeviceAllocation>>);

// SAFETY: memory of the driver, which gives it to one receiver, and is there when it returns.
unsafe impl MempoolAllocator for Alone {
    fn alloc(&self, size: usize, _: Device, stream: &Stream) -> Result<u64> {
        let memory = DeviceAllocation::new(stream.context(), size)?;
        let address = memory.as_raw();
        self.0.lock().unwrap().push(memory);
        Ok(address)
    }

    unsafe fn free(&self, address: u64, _: usize, _: Device, _: &Stream) -> Result<()> {
        self.0.lock().unwrap().retain(|memory| memory.as_raw() != address);
        Ok(())
    }
}

#[test]
fn a_pool_has_segments_of_symmetric_memory() {
    let world = World::new();
    let device = world.context.device();
    let functions = Arc::new(Alone::default());
    let source = symm::of(world.driver, functions.clone()).unwrap();
    let owner: Arc<dyn CudaAllocator> = Arc::new(native(&world));
    let make = || MemPool::of(&owner, Some(source), true, false, false);
    let pool = world.context.with_current(make).unwrap().unwrap();
    owner.begin_allocate_to_pool(device, pool.id(), Filter::this_thread()).unwrap();
    let block = owner.malloc(3 * MIB, device, &world.stream).unwrap();
    owner.end_allocate_to_pool(device, pool.id()).unwrap();
    assert_eq!(functions.0.lock().unwrap()[0].as_raw(), block);
    assert_eq!(functions.0.lock().unwrap()[0].bytes(), 20 * MIB);
    free(&*owner, block);
    owner.release_pool(device, pool.id()).unwrap();
    world.stream.synchronize().unwrap();
    drop(pool);
    assert!(functions.0.lock().unwrap().is_empty());
}

#[test]
fn cudas_functions_are_registered_and_say_which_backends_they_take() {
    let world = World::new();
    let (device, stream) = (world.context.device(), &world.stream);
    let allocator = symm::get_mempool_allocator(world.driver, DeviceType::CUDA).unwrap();
    let refused = allocator.malloc(100, device, stream).unwrap_err();
    let Error::Registry(RegistryError::NotForMempools { accepted, .. }) = &refused else {
        panic!("{refused}")
    };
    assert_eq!(*accepted, ["NVSHMEM", "NCCL"]);
    let stats = allocator.device_stats(device).unwrap();
    assert_eq!((stats.allocation.all.allocated, stats.num_ooms), (0, 0));
}

#[test]
fn what_the_backend_refuses_is_the_requests_error() {
    let world = World::new();
    let (device, backends, fake) = (world.context.device(), Backends::new(), Fake::new("NCCL"));
    fake.on_alloc(|| Err(symmetric::Error::Left { rank: 3 }));
    backends.register(DeviceType::CUDA, fake).unwrap();
    let functions = Arc::new(SymmetricMempool::new(&backends, DeviceType::CUDA));
    let allocator = symm::of(world.driver, functions).unwrap();
    let refused = allocator.malloc(100, device, &world.stream).unwrap_err();
    assert!(matches!(refused, Error::Symmetric(symmetric::Error::Left { rank: 3 })), "{refused}");
    let stats = allocator.device_stats(device).unwrap();
    assert_eq!((stats.allocation.all.allocated, stats.num_ooms), (0, 0));
}

#[test]
fn other_kinds_of_devices_are_registered_once() {
    let world = World::new();
    let kind = DeviceType::new("a kind of this test");
    let missing = symm::get_mempool_allocator(world.driver, kind).unwrap_err();
    assert!(matches!(missing, Error::Registry(RegistryError::NoMempoolAllocator { .. })), "{missing}");
    let register = || Backends::global().register_mempool_allocator(kind, Arc::new(Alone::default()));
    register().unwrap();
    let again = register().unwrap_err();
    assert!(matches!(again, RegistryError::MempoolAllocatorExists { .. }), "{again}");
    let allocator = symm::get_mempool_allocator(world.driver, kind).unwrap();
    let block = allocator.malloc(100, world.context.device(), &world.stream).unwrap();
    free(&*allocator, block);
}
