//! The pair of functions that a memory pool is made over, rule by rule.

use std::sync::Arc;

use cuda_mem_core::{Device, Error as CoreError, Stream};
use cuda_mem_torch::Error;
use cuda_mem_torch::cuda_mem_ipc::symmetric::SymmetricBackend;
use cuda_mem_torch::symm::{
    Backends, DeviceType, MempoolAllocator, RegistryError, SymmetricMempool, cuda_symm_alloc, cuda_symm_free,
};

use crate::common::World;
use crate::common::capture::{Capture, RELAXED};
use crate::common::child;
use crate::common::gate::Gate;
use crate::symm_fakes::{Call, Fake, SOON};

/// Gives back what the test has of an allocator, and uses no more.
fn free(
    mempool: &SymmetricMempool,
    address: u64,
    size: usize,
    device: Device,
    stream: &Stream,
) -> Result<(), Error> {
    // SAFETY: nobody uses it as memory.
    unsafe { mempool.free(address, size, device, stream) }
}

fn over(backend: Arc<dyn SymmetricBackend>) -> (Backends, SymmetricMempool) {
    let backends = Backends::new();
    backends.register(DeviceType::CUDA, backend).unwrap();
    let mempool = SymmetricMempool::new(&backends, DeviceType::CUDA);
    (backends, mempool)
}

#[test]
fn the_backend_is_looked_up_at_the_first_call_and_kept() {
    let world = World::new();
    let backends = Backends::new();
    let mempool = SymmetricMempool::new(&backends, DeviceType::CUDA);
    let device = world.context.device();
    let early = mempool.alloc(100, device, &world.stream);
    assert!(matches!(early, Err(Error::Registry(RegistryError::NoBackend { .. }))), "{early:?}");
    // A look-up that found nothing is not kept.
    let (one, two) = (Fake::new("NCCL"), Fake::new("NVSHMEM"));
    backends.register(DeviceType::CUDA, one.clone()).unwrap();
    backends.register(DeviceType::CUDA, two.clone()).unwrap();
    backends.set_backend(DeviceType::CUDA, "NVSHMEM").unwrap();
    let address = mempool.alloc(100, device, &world.stream).unwrap();
    assert!(matches!(
        backends.set_backend(DeviceType::CUDA, "NCCL"),
        Err(RegistryError::BackendInUse { .. })
    ));
    // The backends are not needed any more.
    drop(backends);
    free(&mempool, address, 100, device, &world.stream).unwrap();
    assert_eq!(two.calls(), [Call::Alloc(100, device.as_raw(), None), Call::Free(address)]);
    assert_eq!(one.calls(), []);
}

#[test]
fn a_backend_that_was_replaced_gets_its_memory_back() {
    let world = World::new();
    let device = world.context.device();
    let (one, two) = (Fake::new("NCCL"), Fake::new("NCCL"));
    let (backends, mempool) = over(one.clone());
    let [first, second] = [(); 2].map(|()| mempool.alloc(100, device, &world.stream).unwrap());
    let free = |address| free(&mempool, address, 100, device, &world.stream).unwrap();
    one.end();
    free(first);
    let alone = mempool.alloc(200, device, &world.stream).unwrap();
    free(alone);
    one.calls();
    backends.register(DeviceType::CUDA, two.clone()).unwrap();
    let third = mempool.alloc(100, device, &world.stream).unwrap();
    assert_ne!(third, second);
    free(second);
    free(third);
    assert_eq!(one.calls(), [Call::Free(second)]);
    assert_eq!(two.calls(), [Call::Alloc(100, device.as_raw(), None), Call::Free(third)]);
}

#[test]
fn memory_is_on_the_device_that_was_asked_for_and_for_no_group() {
    let world = World::new();
    let fake = Fake::new("NVSHMEM");
    let (_backends, mempool) = over(fake.clone());
    let devices = world.driver.devices().unwrap();
    let contexts = devices.iter().map(|device| device.primary_context().unwrap()).collect::<Vec<_>>();
    for current in &contexts {
        for &device in &devices {
            let allocate = || mempool.alloc(4096, device, &world.stream).unwrap();
            current.with_current(allocate).unwrap();
            assert_eq!(fake.calls(), [Call::Alloc(4096, device.as_raw(), None)]);
        }
    }
}

#[test]
fn nvshmem_and_nccl_are_admitted_and_others_refused_by_name() {
    let world = World::new();
    let device = world.context.device();
    for name in ["NVSHMEM", "NCCL"] {
        let (_backends, mempool) = over(Fake::new(name));
        let address = mempool.alloc(100, device, &world.stream).unwrap();
        free(&mempool, address, 100, device, &world.stream).unwrap();
    }
    for name in ["NATIVE", "CUDA", "nvshmem", ""] {
        let fake = Fake::new(name);
        let (_backends, mempool) = over(fake.clone());
        let refused = [
            mempool.alloc(100, device, &world.stream).map(drop),
            free(&mempool, 0x1000, 100, device, &world.stream),
        ];
        for refused in refused {
            let error = refused.unwrap_err();
            let Error::Registry(RegistryError::NotForMempools { backend, accepted }) = &error else {
                panic!("{error}")
            };
            assert_eq!((backend.as_str(), *accepted), (name, &["NVSHMEM", "NCCL"][..]));
        }
        assert_eq!(fake.calls(), [], "it was not asked");
    }
}

#[test]
fn free_comes_behind_the_work_of_the_stream() {
    let world = World::new();
    let fake = Fake::new("NVSHMEM");
    let (_backends, mempool) = over(fake.clone());
    let device = world.context.device();
    let busy = Stream::new(&world.context).unwrap();
    let address = mempool.alloc(100, device, &busy).unwrap();
    fake.calls();
    let gate = Gate::before(&busy);
    std::thread::scope(|scope| {
        let freeing = scope.spawn(|| free(&mempool, address, 100, device, &busy));
        std::thread::sleep(SOON);
        assert_eq!(fake.calls(), []);
        gate.open();
        freeing.join().unwrap().unwrap();
    });
    assert_eq!(fake.calls(), [Call::Free(address)]);

    let capture = Capture::begin(&busy, RELAXED);
    let refused = free(&mempool, address, 100, device, &busy);
    assert!(matches!(refused, Err(Error::Core(CoreError::Capturing { .. }))), "{refused:?}");
    assert_eq!(fake.calls(), []);
    assert_eq!(capture.end().map(|graph| graph.len()).unwrap(), 0);
}

#[test]
fn allocators_are_registered_by_device_type_and_cudas_is_there() {
    let cuda = Backends::global().get_mempool_allocator(DeviceType::CUDA).unwrap();
    let again = Backends::global().get_mempool_allocator(DeviceType::CUDA).unwrap();
    assert!(Arc::ptr_eq(&cuda, &again));
    let exists = Backends::global().register_mempool_allocator(DeviceType::CUDA, cuda.clone());
    assert!(matches!(exists, Err(RegistryError::MempoolAllocatorExists { .. })), "{exists:?}");

    let (backends, xpu) = (Backends::new(), DeviceType::new("xpu"));
    let missing = backends.get_mempool_allocator(xpu).map(drop).unwrap_err();
    assert!(matches!(missing, RegistryError::NoMempoolAllocator { device_type: "xpu", .. }));
    assert!(missing.to_string().contains("xpu"), "{missing}");
    backends.register_mempool_allocator(xpu, cuda.clone()).unwrap();
    assert!(Arc::ptr_eq(&backends.get_mempool_allocator(xpu).unwrap(), &cuda));
    assert!(backends.get_mempool_allocator(DeviceType::CUDA).is_err());
}

/// What a program sees: the program's backends, in a process of its own.
#[test]
fn the_programs_own_functions_use_the_programs_choice() {
    if let Some(output) =
        child::again("symm_mempool::the_programs_own_functions_use_the_programs_choice", &[])
    {
        return child::expect_silent_success(&output);
    }
    let world = World::new();
    let device: Device = world.context.device();
    let fake = Fake::new("NCCL");
    Backends::global().register(DeviceType::CUDA, fake.clone()).unwrap();
    Backends::global().set_backend(DeviceType::CUDA, "NCCL").unwrap();
    let address = cuda_symm_alloc(100, device, &world.stream).unwrap();
    // SAFETY: nobody uses it as memory.
    unsafe { cuda_symm_free(address, 100, device, &world.stream) }.unwrap();
    assert_eq!(fake.calls(), [Call::Alloc(100, device.as_raw(), None), Call::Free(address)]);
    let used = Backends::global().set_backend(DeviceType::CUDA, "NATIVE");
    assert!(matches!(used, Err(RegistryError::BackendInUse { .. })), "{used:?}");
}

#[test]
fn a_program_that_chose_nothing_is_told_that_a_group_is_needed() {
    let test = "symm_mempool::a_program_that_chose_nothing_is_told_that_a_group_is_needed";
    if let Some(output) = child::again(test, &[]) {
        return child::expect_silent_success(&output);
    }
    let world = World::new();
    let refused = cuda_symm_alloc(100, world.context.device(), &world.stream);
    assert!(
        matches!(&refused, Err(Error::Registry(RegistryError::NotForMempools { backend, .. })) if backend == "NATIVE"),
        "{refused:?}"
    );
}
