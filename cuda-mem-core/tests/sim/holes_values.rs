//! Holes that are a wrong value: unknown codes, sizes that wrap, addresses, uninitialised bytes, flags.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_mem_core::host::PinnedFlags;
use cuda_mem_core::pointer::{self, MemoryKind};
use cuda_mem_core::sys::{CUresult, CUstream_flags};
use cuda_mem_core::{DeviceBuffer, Error, ManagedBuffer, PinnedBuffer, Stream};

use crate::rig::{argument, on_simulator, position};

#[test]
fn c4_unknown_result_codes_are_numbers() {
    on_simulator(|sim, context| {
        for code in [918, 1042, u32::MAX] {
            sim.fail_call("cuMemGetInfo", 1, CUresult(code));
            let error = context.memory_info().unwrap_err();
            assert_eq!(error.code(), Some(CUresult(code)));
            let text = format!("{error} {error:?}");
            assert!(text.contains("cuMemGetInfo") && text.contains(&code.to_string()), "{text}");
            assert!(error.to_string().contains("does not name"), "{error}");
        }
    });
}

#[test]
fn c5_sizes_that_wrap_never_reach_the_driver() {
    on_simulator(|sim, context| {
        let stream = Stream::new(context).unwrap();
        sim.log().clear();
        for count in [1usize << 62, (1 << 62) + 1, usize::MAX] {
            let flags = PinnedFlags::default();
            assert!(matches!(DeviceBuffer::<u32>::zeroed(&stream, count), Err(Error::TooLarge { .. })));
            assert!(matches!(
                PinnedBuffer::<u32>::zeroed(context, count, flags),
                Err(Error::TooLarge { .. })
            ));
            assert!(matches!(ManagedBuffer::<u32>::zeroed(context, count), Err(Error::TooLarge { .. })));
        }
        for allocation in ["cuMemAllocAsync", "cuMemHostAlloc", "cuMemAllocManaged"] {
            assert_eq!(sim.log().count(allocation), 0, "{allocation}");
        }
    });
}

#[test]
fn k4_new_streams_are_non_blocking() {
    on_simulator(|sim, context| {
        sim.log().clear();
        drop(Stream::new(context).unwrap());
        let records = sim.log().records();
        let created = &records[position(&records, "cuStreamCreateWithPriority")];
        assert_eq!(argument(created, "flags"), CUstream_flags::CU_STREAM_NON_BLOCKING.0.to_string());
    });
}

#[test]
fn k4_a_release_that_fails_is_counted_and_told_and_does_not_panic() {
    let sim = cuda_mem_sim::Sim::builder().build();
    let driver = cuda_mem_core::Driver::over(sim.table()).unwrap();
    let context = driver.device(0).unwrap().primary_context().unwrap();
    let told = Arc::new(AtomicU64::new(0));
    let hook = Arc::clone(&told);
    driver.on_release_failure(move |error| {
        assert_eq!(error.code(), Some(CUresult::CUDA_ERROR_UNKNOWN));
        hook.fetch_add(1, Ordering::Relaxed);
        panic!("a hook that must not panic, and does");
    });
    let stream = Stream::new(&context).unwrap();
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for _ in 0..2 {
        // One failure may be an old error of others, so a release is tried twice.
        sim.fail_call("cuStreamDestroy", 1, CUresult::CUDA_ERROR_UNKNOWN);
    }
    drop(stream);
    std::panic::set_hook(quiet);
    assert_eq!((driver.release_failures(), told.load(Ordering::Relaxed)), (1, 1));
}

#[test]
fn n3_an_address_is_only_a_number_to_safe_code() {
    on_simulator(|_, context| {
        let stream = Stream::new(context).unwrap();
        let buffer = DeviceBuffer::<u8>::uninit(&stream, 100).unwrap();
        let address = buffer.as_raw();
        drop(buffer);
        stream.synchronize().unwrap();
        // What it names may be gone; asking about it is all that safe code can do.
        for address in [address, address + 1, 0xdead_beef, u64::MAX] {
            let known = pointer::attributes(context, address).unwrap();
            assert!(known.kind == MemoryKind::Unknown || known.range_size > 0, "{address:#x}: {known:?}");
        }
    });
}

#[test]
fn b2_pinned_memory_is_initialised() {
    on_simulator(|_, context| {
        for _ in 0..3 {
            let mut pinned = PinnedBuffer::<u8>::zeroed(context, 100_000, PinnedFlags::default()).unwrap();
            assert!(pinned.as_slice().unwrap().iter().all(|byte| *byte == 0));
            pinned.as_mut_slice().unwrap().fill(0xff);
            let mut managed = ManagedBuffer::<u8>::zeroed(context, 100_000).unwrap();
            assert!(managed.as_slice().unwrap().iter().all(|byte| *byte == 0));
            managed.as_mut_slice().unwrap().fill(0xff);
        }
    });
}
