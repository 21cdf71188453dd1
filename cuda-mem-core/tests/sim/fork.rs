//! A fork in the middle of another thread's call: the child inherits whatever lock that thread holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cuda_mem_core::copy::Stager;
use cuda_mem_core::host::{
    HostMapping, MappingOptions, PinnedFlags, RegisterFlags, RegisterOptions, Registered, raw,
};
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::vmm::{AddressRange, CreateOptions, PhysicalMemory};
use cuda_mem_core::{Context, DeviceBuffer, Driver, Error, ManagedBuffer, PinnedBuffer, Stream, Uses, nvml};
use cuda_mem_sim::Sim;

use crate::common::child;
use crate::rig::on_simulator;

/// How long a call is made to take: the fork happens in its middle.
const SLOW: Duration = Duration::from_millis(300);

/// What pinning and unpinning some memory fail with.
fn pinned_codes(driver: Driver) -> [Option<CUresult>; 2] {
    let memory = vec![0u8; 5000];
    let start = memory.as_ptr().cast_mut().cast();
    // SAFETY: the vector lives; what is pinned is unpinned below.
    let pinned = unsafe { raw::pin_memory_with(driver, start, 5000) };
    // SAFETY: no device uses it.
    let unpinned = unsafe { raw::unpin_memory_with(driver, start) };
    [pinned, unpinned].map(|result| result.err().and_then(|error| error.code()))
}

/// Runs `busy` in another thread, forks while its call of `function` is under way, and has the child drop things.
fn fork_during(function: &str, busy: impl Fn(&Context) + Sync) {
    on_simulator(|sim, context| {
        let stream = Stream::new(context).unwrap();
        let things = std::mem::ManuallyDrop::new((
            DeviceBuffer::<u8>::zeroed(&stream, 5000).unwrap(),
            PinnedBuffer::<u8>::zeroed(context, 5000, PinnedFlags::default()).unwrap(),
            ManagedBuffer::<u8>::zeroed(context, 5000).unwrap(),
            Registered::new(context, vec![0u8; 5000], RegisterFlags::default()).unwrap(),
            Stream::new(context).unwrap(),
            AddressRange::reserve(context.device(), 2 << 20, 0).unwrap(),
            PhysicalMemory::create(context.device(), 2 << 20, &CreateOptions::default()).unwrap(),
            Stager::builder(context).threads(3).build().unwrap(),
            context.clone(),
        ));
        sim.delay(function, SLOW);
        let started = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            let signal = Arc::clone(&started);
            let busy = &busy;
            scope.spawn(move || {
                signal.store(true, Ordering::SeqCst);
                busy(context);
            });
            while !started.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            std::thread::sleep(SLOW / 3);
            child::forked(|| {
                // SAFETY: the child's own copy of the memory, taken out once; the parent's is not touched.
                drop(unsafe { std::ptr::read(&*things) });
                if !matches!(Stream::new(context), Err(Error::Forked)) {
                    return Err("a stream in a forked child".to_owned());
                }
                if !matches!(Driver::over(context.driver().table()), Err(Error::Forked)) {
                    return Err("a driver in a forked child".to_owned());
                }
                let memory = vec![0u8; 5000];
                if !matches!(AddressRange::reserve(context.device(), 2 << 20, 0), Err(Error::Forked)) {
                    return Err("addresses in a forked child".to_owned());
                }
                if !matches!(nvml::processes(context.device()), Err(nvml::Error::Driver(Error::Forked))) {
                    return Err("processes in a forked child".to_owned());
                }
                if Registered::new(context, memory, RegisterFlags::default()).is_ok() {
                    return Err("a registration in a forked child".to_owned());
                }
                let memory =
                    HostMapping::new(5000, &MappingOptions::new()).map_err(|error| error.to_string())?;
                if Registered::with_options(context, memory, &RegisterOptions::new()).is_ok() {
                    return Err("a registration with options in a forked child".to_owned());
                }
                let pinned = pinned_codes(context.driver());
                if pinned != [Some(CUresult::CUDA_ERROR_NOT_INITIALIZED); 2] {
                    return Err(format!("pinning in a forked child gave {pinned:?}"));
                }
                context.driver().reclaim();
                match context.driver().release_failures() {
                    0 => Ok(()),
                    count => Err(format!("{count} failed releases in a forked child")),
                }
            });
        });
        sim.clear_faults();
        drop(std::mem::ManuallyDrop::into_inner(things));
    });
}

#[test]
fn during_an_allocation() {
    fork_during("cuMemAllocAsync", |context| {
        let stream = Stream::new(context).unwrap();
        assert_eq!(
            DeviceBuffer::from_slice(&stream, &[5u8; 100]).unwrap().to_vec(&stream).unwrap(),
            [5; 100]
        );
    });
}

#[test]
fn during_a_registration() {
    fork_during("cuMemHostRegister", |context| {
        drop(Registered::new(context, vec![0u8; 100_000], RegisterFlags::default()).unwrap());
    });
}

#[test]
fn during_a_registration_whose_pages_are_brought_in() {
    fork_during("cuMemHostRegister", |context| {
        let memory = HostMapping::new(100 << 20, &MappingOptions::new()).unwrap();
        drop(Registered::with_options(context, memory, &RegisterOptions::new().threads(4)).unwrap());
    });
}

#[test]
fn during_a_raw_pin() {
    fork_during("cuMemHostRegister", |context| {
        assert_eq!(pinned_codes(context.driver()), [None; 2]);
    });
}

#[test]
fn during_an_unregistration() {
    fork_during("cuMemHostUnregister", |context| {
        drop(Registered::new(context, vec![0u8; 100_000], RegisterFlags::default()).unwrap());
    });
}

#[test]
fn during_a_wait_under_the_lock_of_a_buffers_uses() {
    fork_during("cuStreamSynchronize", |context| {
        let stream = Stream::new(context).unwrap();
        let pinned = PinnedBuffer::<u8>::zeroed(context, 100, PinnedFlags::MAPPED).unwrap();
        drop(pinned.on(&stream).unwrap());
        assert_eq!(pinned.as_slice().unwrap(), [0; 100]);
    });
}

/// The lock of the uses is held while the driver has a stream wait for another one's.
#[test]
fn during_an_order_under_the_lock_of_a_buffers_uses() {
    on_simulator(|sim, context| {
        let [first, second] = [(); 2].map(|()| Stream::new(context).unwrap());
        let pinned = PinnedBuffer::<u8>::zeroed(context, 100, PinnedFlags::MAPPED).unwrap();
        let registered = Registered::new(context, vec![0u8; 5000], RegisterFlags::MAPPED).unwrap();
        drop((pinned.on(&first).unwrap(), registered.on(&first).unwrap()));
        sim.delay("cuStreamWaitEvent", SLOW);
        std::thread::scope(|scope| {
            scope.spawn(|| drop(pinned.on(&second).unwrap()));
            scope.spawn(|| drop(registered.on(&second).unwrap()));
            std::thread::sleep(SLOW / 3);
            child::forked(|| {
                pinned.absorb_uses(Uses::new());
                registered.absorb_uses(Uses::new());
                Ok(())
            });
        });
        sim.clear_faults();
    });
}

#[test]
fn during_a_staged_copy() {
    fork_during("cuMemcpyAsync", |context| {
        let stream = Stream::new(context).unwrap();
        let device = DeviceBuffer::<u8>::zeroed(&stream, 100_000).unwrap();
        let stager = Stager::builder(context).threads(3).build().unwrap();
        stager.upload(&stream, &[5; 100_000], &device.whole()).unwrap();
        assert!(device.to_vec(&stream).unwrap() == [5; 100_000]);
    });
}

#[test]
fn during_the_initialisation_of_a_driver() {
    fork_during("cuMemFreeHost", |context| {
        let sim = Sim::builder().build();
        sim.delay("cuInit", SLOW);
        Driver::over(sim.table()).unwrap();
        drop(PinnedBuffer::<u8>::zeroed(context, 100, PinnedFlags::default()).unwrap());
    });
}

/// A child is its parent's only where the parent has a driver.
#[test]
fn behind_an_initialisation_that_failed_children_are_fresh() {
    let test = "fork::behind_an_initialisation_that_failed_children_are_fresh";
    if let Some(output) = child::again(test, &[]) {
        return child::expect_silent_success(&output);
    }
    let sim = Sim::builder().build();
    for _ in 0..2 {
        sim.fail_call("cuInit", 1, CUresult::CUDA_ERROR_NO_DEVICE);
        let failed = Driver::over(sim.table()).unwrap_err();
        assert_eq!(failed.code(), Some(CUresult::CUDA_ERROR_NO_DEVICE));
        child::forked(|| match Driver::over(sim.table()) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        });
    }
    for _ in 0..2 {
        Driver::over(sim.table()).unwrap();
        child::forked(|| match Driver::over(sim.table()) {
            Err(Error::Forked) => Ok(()),
            other => Err(format!("{other:?} in a forked child")),
        });
    }
}
