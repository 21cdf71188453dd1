//! The caller's world stays as it was, also when a call fails or panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cuda_mem_core::host::{PinnedFlags, RegisterFlags, Registered};
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{DeviceBuffer, ManagedBuffer, PinnedBuffer, Stream, scope};

use crate::common::capture::{THREAD_LOCAL, exchange_mode, thread_mode};
use crate::rig::{current, on_simulator};

#[test]
fn a_failing_call_restores_the_context_and_the_capture_mode() {
    on_simulator(|sim, context| {
        let table = sim.table();
        let stream = Stream::new(context).unwrap();
        let before = exchange_mode(table, THREAD_LOCAL);
        assert_eq!(current(table), 0);
        type Call<'c> = &'c dyn Fn() -> bool;
        let calls: [(&str, Call<'_>); 7] = [
            ("cuStreamCreateWithPriority", &|| Stream::new(context).is_err()),
            ("cuStreamGetId", &|| Stream::new(context).is_err()),
            ("cuMemHostAlloc", &|| PinnedBuffer::<u8>::zeroed(context, 1, PinnedFlags::default()).is_err()),
            ("cuMemAllocManaged", &|| ManagedBuffer::<u8>::zeroed(context, 1).is_err()),
            ("cuMemHostRegister", &|| {
                Registered::new(context, vec![0u8; 1], RegisterFlags::default()).is_err()
            }),
            ("cuCtxSynchronize", &|| context.synchronize().is_err()),
            ("cuMemAllocAsync", &|| DeviceBuffer::<u8>::uninit(&stream, 1).is_err()),
        ];
        for (function, fails) in calls {
            sim.fail_call(function, 1, CUresult::CUDA_ERROR_UNKNOWN);
            assert!(fails(), "{function}");
            assert_eq!(current(table), 0, "{function}");
            assert_eq!(thread_mode(table), THREAD_LOCAL, "{function}");
        }
        exchange_mode(table, before);
    });
}

#[test]
fn a_context_that_cannot_be_restored_at_first_is_restored() {
    on_simulator(|sim, context| {
        for function in ["cuCtxPopCurrent", "cuThreadExchangeStreamCaptureMode"] {
            let before = exchange_mode(sim.table(), THREAD_LOCAL);
            // The second exchange is the one that puts the mode back.
            let nth = if function == "cuCtxPopCurrent" { 1 } else { 2 };
            sim.fail_call(function, nth, CUresult::CUDA_ERROR_UNKNOWN);
            drop(PinnedBuffer::<u8>::zeroed(context, 1, PinnedFlags::default()).unwrap());
            assert_eq!(sim.struck().len(), 1, "{function}");
            assert_eq!(current(sim.table()), 0, "{function}");
            assert_eq!(thread_mode(sim.table()), THREAD_LOCAL, "{function}");
            assert_eq!(context.driver().release_failures(), 0);
            sim.clear_faults();
            exchange_mode(sim.table(), before);
        }
    });
}

#[test]
fn a_panic_restores_the_context_and_the_capture_mode() {
    on_simulator(|sim, context| {
        let table = sim.table();
        let stream = Stream::new(context).unwrap();
        let bytes = vec![0u8; 100];
        let device = DeviceBuffer::<u8>::uninit(&stream, 100).unwrap();
        let before = exchange_mode(table, THREAD_LOCAL);
        let panicking: [&dyn Fn(); 2] = [&|| context.with_current(|| panic!("on purpose")).unwrap(), &|| {
            scope(context, |scope| -> cuda_mem_core::Result<()> {
                scope.register(&bytes)?;
                scope.upload(&stream, &bytes, &device.whole())?;
                panic!("on purpose");
            })
            .unwrap();
        }];
        for body in panicking {
            assert!(catch_unwind(AssertUnwindSafe(body)).is_err());
            assert_eq!(current(table), 0);
            assert_eq!(thread_mode(table), THREAD_LOCAL);
        }
        exchange_mode(table, before);
    });
}
