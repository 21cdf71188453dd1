//! The program's allocator: each test is a program.

use std::sync::Arc;

use cuda_mem_core::{Driver, Stream};
use cuda_mem_torch::{
    CudaAllocator, Error, MemPool, NativeAllocator, change_current_allocator, create_custom_allocator,
    current_allocator,
};

use crate::child;
use crate::library::simulator;

fn driver() -> Driver {
    Driver::over(cuda_mem_sim::table()).unwrap()
}

fn custom() -> Arc<cuda_mem_torch::PluggableAllocator> {
    // SAFETY: it gives nothing.
    unsafe { create_custom_allocator(driver(), |_, _, _| Ok(0), |_, _, _, _| Ok(())) }.unwrap()
}

#[test]
fn a_custom_allocator_is_installed_once() {
    if let Some(output) = child::again("current::a_custom_allocator_is_installed_once", &[]) {
        return child::expect_silent_success(&output);
    }
    let first = custom();
    change_current_allocator(first.clone()).unwrap();
    assert_eq!(current_allocator().unwrap().raw_deleter(), first.raw_deleter());
    assert_eq!(current_allocator().unwrap().name(), "pluggable");
    // It was initialised from the start.
    let refused = change_current_allocator(custom()).unwrap_err();
    assert!(matches!(refused, Error::AlreadyInitialized { name: "pluggable" }), "{refused}");
    assert_eq!(current_allocator().unwrap().raw_deleter(), first.raw_deleter());
}

#[test]
fn without_a_change_it_is_the_native_one() {
    // The library is named before the process that loads it begins.
    let named = std::env::var("CUDA_MEM_DRIVER");
    let library = named.unwrap_or_else(|_| simulator().into_os_string().into_string().unwrap());
    let variables = [("CUDA_MEM_DRIVER", library.as_str())];
    if let Some(output) = child::again("current::without_a_change_it_is_the_native_one", &variables) {
        return child::expect_silent_success(&output);
    }
    let current = current_allocator().unwrap();
    assert_eq!((current.name(), current.initialized()), ("native", false));
    current.init(1).unwrap();
    let device = Driver::system().unwrap().device(0).unwrap();
    let stream = Stream::new(&device.primary_context().unwrap()).unwrap();
    let block = current.malloc(3 << 20, device, &stream).unwrap();
    assert_eq!(current.device_stats(device).unwrap().reserved_bytes.all.current % (2 << 20), 0);
    // It is made once, and stays as it is initialised.
    assert_eq!(current_allocator().unwrap().raw_deleter(), current.raw_deleter());
    // SAFETY: nothing uses it.
    unsafe { current_allocator().unwrap().raw_delete(block) }.unwrap();
    let refused = change_current_allocator(custom()).unwrap_err();
    assert!(matches!(refused, Error::AlreadyInitialized { name: "native" }), "{refused}");
}

#[test]
fn an_allocator_that_is_not_initialised_gives_way() {
    if let Some(output) = child::again("current::an_allocator_that_is_not_initialised_gives_way", &[]) {
        return child::expect_silent_success(&output);
    }
    let first = Arc::new(NativeAllocator::new(driver()));
    change_current_allocator(first.clone()).unwrap();
    let second = Arc::new(NativeAllocator::new(driver()));
    change_current_allocator(second.clone()).unwrap();
    second.init(1).unwrap();
    let refused = change_current_allocator(first).unwrap_err();
    assert!(matches!(refused, Error::AlreadyInitialized { name: "native" }), "{refused}");
}

#[test]
fn a_mempool_is_of_the_programs_allocator() {
    if let Some(output) = child::again("current::a_mempool_is_of_the_programs_allocator", &[]) {
        return child::expect_silent_success(&output);
    }
    let native = Arc::new(NativeAllocator::new(driver()));
    native.init(1).unwrap();
    change_current_allocator(native.clone()).unwrap();
    let device = driver().device(0).unwrap();
    let context = device.primary_context().unwrap();
    let pool = context.with_current(|| MemPool::new(None, true, false, false)).unwrap().unwrap();
    assert_eq!(native.pool_use_count(device, pool.id()).unwrap(), 1);
    let id = pool.id();
    drop(pool);
    assert_eq!(native.pool_use_count(device, id).unwrap(), 0);
    let stream = Stream::new(&context).unwrap();
    let block = native.malloc(100, device, &stream).unwrap();
    // SAFETY: nothing uses it.
    unsafe { native.raw_delete(block) }.unwrap();
}

#[test]
fn without_a_driver_there_is_no_native_allocator() {
    let missing = [("CUDA_MEM_DRIVER", "/nonexistent/libcuda.so.1")];
    if let Some(output) = child::again("current::without_a_driver_there_is_no_native_allocator", &missing) {
        return child::expect_silent_success(&output);
    }
    let refused = current_allocator().unwrap_err();
    assert!(matches!(refused, Error::Core(cuda_mem_core::Error::Load(_))), "{refused}");
    // One that needs none can still be installed.
    change_current_allocator(custom()).unwrap();
    assert_eq!(current_allocator().unwrap().name(), "pluggable");
}
