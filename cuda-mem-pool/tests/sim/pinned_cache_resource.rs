//! The pinned cache as a resource: which driver calls it makes, and how it ends.

use std::alloc::Layout;

use cuda_mem_core::sys::{CUdevice_attribute, CUresult};
use cuda_mem_core::{Context, Driver, Error as CoreError, Stream};
use cuda_mem_pool::pinned_cache::PinnedCacheOptions;
use cuda_mem_pool::{DeviceMemoryResource, Error, MemoryResource, PinnedCachingAllocator, TrackingAdaptor};
use cuda_mem_sim::Sim;

use crate::common::child;
use crate::rig::{log_of, on_simulator, text};

const MIB: usize = 1 << 20;

fn resource(context: &Context) -> PinnedCachingAllocator {
    let options = PinnedCacheOptions::default().with_returns_surplus(false);
    PinnedCachingAllocator::with_options(context, options)
}

#[test]
fn a_device_that_needs_another_address_is_named() {
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
    let sim = Sim::builder().devices(2).attribute(attribute, 0).build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let allocator = PinnedCachingAllocator::new(&context);
    let refused = allocator.allocate_raw(100, None).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { device, .. } if device == context.device()), "{refused}");
    assert_eq!(allocator.allocate(100).unwrap().len(), 100, "a block tells each device's own");
}

#[test]
fn a_cached_pair_by_address_pins_nothing_and_waits_for_nothing() {
    on_simulator(|sim, context| {
        let resource = resource(context);
        let stream = Stream::new(context).unwrap();
        let pair = || {
            let address = resource.allocate_raw(5000, &stream).unwrap();
            // SAFETY: allocated above and not used.
            unsafe { resource.deallocate(address, 5000, None) }.unwrap();
        };
        pair();
        stream.synchronize().unwrap();
        let log = sim.log();
        let records = log_of(&log, pair);
        let cheap =
            ["cuStreamIsCapturing", "cuEventRecord", "cuEventQuery", "cuThreadExchangeStreamCaptureMode"];
        assert!(records.iter().all(|record| cheap.contains(&record.function)), "{}", text(&records));
    });
}

#[test]
fn without_memory_the_error_says_how_much_there_was_and_what_the_driver_said() {
    on_simulator(|sim, context| {
        let resource = resource(context);
        let kept = MemoryResource::allocate(&resource, 3 * MIB, None).unwrap();
        sim.fail_call("cuMemHostRegister", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        sim.fail_call("cuMemHostRegister", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let refused = MemoryResource::allocate(&resource, 700_000, None).unwrap_err();
        let Error::OutOfMemory { requested: 700_000, used, limit: 0, .. } = refused else {
            panic!("{refused}")
        };
        assert_eq!(used, (3 * MIB) as u64);
        let code = refused.driver_error().map(cuda_mem_core::DriverError::code);
        assert_eq!(code, Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        drop(kept);
    });
}

#[test]
fn a_stream_of_another_driver_gets_and_frees_nothing() {
    let other = Sim::builder().build();
    on_simulator(|_, context| {
        let resource = resource(context);
        let foreign = Driver::over(other.table()).unwrap().device(0).unwrap().primary_context().unwrap();
        let foreign = Stream::new(&foreign).unwrap();
        let is_foreign = |error: &Error| matches!(error, Error::Core(CoreError::ForeignContext { .. }));
        assert!(is_foreign(&MemoryResource::allocate(&resource, 5000, &foreign).unwrap_err()));
        assert_eq!(resource.statistics().active_requests.current, 0);
        let address = resource.allocate_raw(5000, None).unwrap();
        // SAFETY: refused, because of the stream.
        let refused = unsafe { resource.deallocate(address, 5000, &foreign) }.unwrap_err();
        assert!(is_foreign(&refused), "{refused}");
        // SAFETY: allocated above and not used; the free before was refused.
        unsafe { resource.deallocate(address, 5000, None) }.unwrap();
    });
}

/// A thread of the parent may have had the lock of what is out.
#[test]
fn a_forked_child_gives_no_memory_back_and_takes_no_lock_for_it() {
    on_simulator(|_, context| {
        let (stream, resource) = (Stream::new(context).unwrap(), resource(context));
        let all = [resource.raw(), TrackingAdaptor::new(resource.clone(), false).raw()];
        let layout = Layout::from_size_align(5000, 256).unwrap();
        child::forked(|| {
            all.iter().try_for_each(|raw| {
                // SAFETY: refused, whatever the address is.
                match unsafe { raw.deallocate(4096, layout, &stream) } {
                    Err(CoreError::Forked) => Ok(()),
                    freed => Err(format!("{freed:?} in a forked child")),
                }
            })
        });
    });
}

/// A free that the driver fails, for once, is no free.
#[test]
fn a_free_that_fails_leaves_the_memory_allocated() {
    on_simulator(|sim, context| {
        let resource = resource(context);
        let address = resource.allocate_raw(5000, None).unwrap();
        sim.fail_call("cuStreamIsCapturing", 1, CUresult::CUDA_ERROR_UNKNOWN);
        // SAFETY: allocated above and not used.
        let refused = unsafe { resource.deallocate(address, 5000, None) };
        assert!(matches!(refused, Err(Error::Core(CoreError::Driver(_)))));
        assert_eq!(resource.statistics().active_requests.current, 1);
        assert_ne!(MemoryResource::allocate(&resource, 5000, None).unwrap().address(), address);
        // SAFETY: as above; the free before failed.
        unsafe { resource.deallocate(address, 5000, None) }.unwrap();
        assert_eq!(resource.statistics().active_requests.current, 0);
    });
}

/// Whoever has nothing but an address has the memory: it is leaked, never given to others or to the system.
#[test]
fn an_address_outlives_the_resource() {
    let sim = Sim::builder().workers(2).build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let stream = Stream::new(&context).unwrap();
    let resource = resource(&context);
    let address = resource.allocate_raw(5000, &stream).unwrap();
    drop(resource);
    let bytes = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: 5000 bytes that were allocated here and are nobody else's.
    let bytes = unsafe { std::slice::from_raw_parts_mut(bytes, 5000) };
    bytes.fill(3);
    let device = DeviceMemoryResource::new(&context, None).unwrap().allocate(5000, &stream).unwrap();
    device.copy_from_slice(&stream, bytes).unwrap();
    assert_eq!(device.to_vec(&stream).unwrap(), [3; 5000]);
    drop((device, stream, context));
    assert!(sim.misuse().is_empty());
    assert!(!sim.leaks().is_empty(), "pinned memory that somebody had was unpinned");
}

#[test]
fn a_forked_child_is_told_so_and_frees_nothing() {
    on_simulator(|_, context| {
        let resource = resource(context);
        let stream = Stream::new(context).unwrap();
        let address = resource.allocate_raw(5000, &stream).unwrap();
        let block = std::mem::ManuallyDrop::new(MemoryResource::allocate(&resource, 7000, &stream).unwrap());
        child::forked(|| {
            if !matches!(
                MemoryResource::allocate(&resource, 5000, &stream),
                Err(Error::Core(CoreError::Forked))
            ) {
                return Err("memory in a forked child".to_owned());
            }
            let layout = Layout::from_size_align(5000, 256).unwrap();
            // SAFETY: refused in a child.
            let freed = unsafe { resource.raw().deallocate(address, layout, &stream) };
            if !matches!(freed, Err(CoreError::Forked)) {
                return Err("a free in a forked child".to_owned());
            }
            // SAFETY: as above.
            let freed = unsafe { resource.deallocate(address, 5000, None) };
            if !matches!(freed, Err(Error::Core(CoreError::Forked))) {
                return Err("a forked child took a lock of its parent's".to_owned());
            }
            // SAFETY: the child's own copy, taken out once; the parent's is not touched.
            drop(unsafe { std::ptr::read(&*block) });
            Ok(())
        });
        drop(std::mem::ManuallyDrop::into_inner(block));
        // SAFETY: allocated above and not used; the child's free was refused.
        unsafe { resource.deallocate(address, 5000, None) }.unwrap();
        assert_eq!(resource.statistics().active_requests.current, 0);
    });
}
