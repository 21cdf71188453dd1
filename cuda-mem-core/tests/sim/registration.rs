//! Registration: which calls it makes and in which thread, what its failures say, what raw pins keep alive.

use cuda_mem_core::host::raw::{self, PinError};
use cuda_mem_core::host::{
    CancelToken, HostMapping, HostMemory, MappingOptions, RegisterFlags, RegisterOptions, Registered,
};
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Driver, Error};
use cuda_mem_sim::Sim;

use crate::common::child;
use crate::common::library::simulator;
use crate::rig::{current, expect_clean, log_of, on, on_simulator, text};

/// Several pieces of those that threads take.
const LEN: usize = 100 << 20;

fn mapping() -> HostMapping {
    HostMapping::new(LEN, &MappingOptions::new()).unwrap()
}

#[test]
fn the_threads_that_bring_pages_in_make_no_driver_call() {
    on_simulator(|sim, context| {
        let options = RegisterOptions::new().threads(4);
        let records = log_of(&sim.log(), || {
            drop(Registered::with_options(context, mapping(), &options).unwrap().close().unwrap());
        });
        let count = |function| records.iter().filter(|record| record.function == function).count();
        assert_eq!((count("cuMemHostRegister"), count("cuMemHostUnregister")), (1, 1));
        assert!(records.iter().all(|record| record.thread == records[0].thread), "{}", text(&records));
    });
}

#[test]
fn what_is_cancelled_or_fails_registers_nothing_and_undoes_nothing() {
    on_simulator(|sim, context| {
        let token = CancelToken::new();
        token.cancel();
        let options = RegisterOptions::new().cancel(&token);
        let records = log_of(&sim.log(), || {
            let refused = Registered::with_options(context, mapping(), &options).unwrap_err();
            assert!(matches!(refused.error, Error::Cancelled), "{}", refused.error);
            assert_eq!(refused.owner.residency().unwrap().resident, 0);
        });
        assert!(records.iter().all(|record| !record.function.contains("Register")), "{}", text(&records));

        sim.fail_call("cuMemHostRegister", 1, CUresult::CUDA_ERROR_UNKNOWN);
        let refused = Registered::with_options(context, mapping(), &RegisterOptions::new()).unwrap_err();
        assert_eq!(refused.error.code(), Some(CUresult::CUDA_ERROR_UNKNOWN));
        assert_eq!(sim.log().count("cuMemHostUnregister"), 0);
        let again = Registered::with_options(context, refused.owner, &RegisterOptions::new()).unwrap();
        assert_eq!(again.close().unwrap().byte_len(), LEN);
    });
}

/// Takes `CAP_IPC_LOCK` from this thread, so that the limit on locked memory holds for it.
fn drop_the_privilege_to_lock() {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    // Version 3: effective, permitted and inheritable, each in two words of which the low ones come first.
    let mut header = Header { version: 0x2008_0522, pid: 0 };
    let mut sets = [0u32; 6];
    // SAFETY: the header, and room for the sets of its version.
    let got = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) };
    assert_eq!(got, 0);
    sets[0] &= !(1 << 14);
    // SAFETY: as above.
    let set = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) };
    assert_eq!(set, 0);
}

fn limit_locked_memory(bytes: libc::rlim_t) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: one limit to read.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0);
}

#[test]
fn the_lock_limit_is_named_with_its_value_where_it_is_what_is_in_the_way() {
    let test = "registration::the_lock_limit_is_named_with_its_value_where_it_is_what_is_in_the_way";
    if let Some(output) = child::again(test, &[]) {
        return child::expect_silent_success(&output);
    }
    limit_locked_memory(64 << 10);
    drop_the_privilege_to_lock();
    on_simulator(|sim, context| {
        let register = |bytes: usize, code| {
            sim.fail_call("cuMemHostRegister", 1, code);
            let memory = vec![1u8; bytes];
            Registered::new(context, memory, RegisterFlags::default()).map(drop).unwrap_err().error
        };
        for code in [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_OPERATING_SYSTEM] {
            let error = register(1 << 20, code);
            let Error::LockLimit { bytes, limit, .. } = error else { panic!("{error}") };
            assert_eq!((bytes, limit, error.code()), (1 << 20, 64 << 10, Some(code)));
            assert!(error.to_string().contains("65536"), "{error}");
            // So little is within the limit: something else is the matter.
            assert!(matches!(register(4096, code), Error::Driver(_)));
        }
        let other = register(1 << 20, CUresult::CUDA_ERROR_UNKNOWN);
        assert!(matches!(other, Error::Driver(_)), "{other}");
    });
}

#[test]
fn the_lock_limit_is_not_blamed_where_there_is_none() {
    let test = "registration::the_lock_limit_is_not_blamed_where_there_is_none";
    if let Some(output) = child::again(test, &[]) {
        return child::expect_silent_success(&output);
    }
    let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: one limit to read. Where it may not be raised, the test is about a process that may lock nothing.
    if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) } != 0 {
        return;
    }
    on_simulator(|sim, context| {
        sim.fail_call("cuMemHostRegister", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let refused = Registered::new(context, vec![1u8; 64 << 20], RegisterFlags::default()).unwrap_err();
        assert!(matches!(refused.error, Error::Driver(_)), "{}", refused.error);
    });
}

fn pin(driver: Driver, memory: &[u8]) -> Result<(), PinError> {
    // SAFETY: the tests keep their memory until it is unpinned.
    unsafe { raw::pin_memory_with(driver, memory.as_ptr().cast_mut().cast(), memory.len()) }
}

fn unpin(driver: Driver, memory: &[u8]) -> Result<(), PinError> {
    // SAFETY: no device uses it.
    unsafe { raw::unpin_memory_with(driver, memory.as_ptr().cast_mut().cast()) }
}

/// Whether the primary context of a device exists.
fn is_active(sim: &Sim, device: i32) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: two numbers to write.
    let code = unsafe { sim.table().cuDevicePrimaryCtxGetState().unwrap()(device, &mut flags, &mut active) };
    assert_eq!(code, CUresult::CUDA_SUCCESS);
    active != 0
}

#[test]
fn a_pin_makes_the_first_devices_context_and_keeps_it_until_the_last_is_undone() {
    let sim = Sim::builder().devices(2).build();
    let driver = Driver::over(sim.table()).unwrap();
    let memory = [vec![1u8; 5000], vec![2u8; 5000]];
    assert!(!is_active(&sim, 0));
    pin(driver, &memory[0]).unwrap();
    pin(driver, &memory[1]).unwrap();
    assert!(is_active(&sim, 0) && !is_active(&sim, 1));
    assert_eq!(current(sim.table()), 0, "the caller's current context is left alone");
    unpin(driver, &memory[0]).unwrap();
    assert!(is_active(&sim, 0));
    unpin(driver, &memory[1]).unwrap();
    assert!(!is_active(&sim, 0));
    // The device of the current context comes first.
    let second = driver.device(1).unwrap().primary_context().unwrap();
    second.with_current(|| pin(driver, &memory[0])).unwrap().unwrap();
    drop(second);
    assert!(is_active(&sim, 1) && !is_active(&sim, 0));
    unpin(driver, &memory[0]).unwrap();
    assert!(!is_active(&sim, 1));
    // A pin that fails keeps nothing.
    sim.fail_call("cuMemHostRegister", 1, CUresult::CUDA_ERROR_UNKNOWN);
    assert_eq!(pin(driver, &memory[0]).unwrap_err().code(), Some(CUresult::CUDA_ERROR_UNKNOWN));
    assert!(!is_active(&sim, 0));
    expect_clean(&sim);
}

#[test]
fn pins_are_portable() {
    on_simulator(|sim, context| {
        let memory = vec![1u8; 5000];
        pin(context.driver(), &memory).unwrap();
        let mut flags = 0;
        let get = sim.table().cuMemHostGetFlags().unwrap();
        // SAFETY: one number to write; the address is only asked about.
        let ask = || unsafe { get(&mut flags, memory.as_ptr().cast_mut().cast()) };
        assert_eq!(context.with_current(ask).unwrap(), CUresult::CUDA_SUCCESS);
        assert_eq!(flags & RegisterFlags::PORTABLE.bits(), RegisterFlags::PORTABLE.bits());
        unpin(context.driver(), &memory).unwrap();
    });
}

#[test]
fn codes_of_earlier_work_come_with_two_hints_and_others_without() {
    on_simulator(|sim, context| {
        let (driver, memory) = (context.driver(), vec![1u8; 5000]);
        for (code, hinted) in [(700, true), (719, true), (710, true), (999, false), (2, false), (1042, false)]
        {
            sim.fail_call("cuMemHostRegister", 1, CUresult(code));
            let pinned = pin(driver, &memory).unwrap_err();
            pin(driver, &memory).unwrap();
            sim.fail_call("cuMemHostUnregister", 1, CUresult(code));
            let unpinned = unpin(driver, &memory).unwrap_err();
            // It is still pinned.
            unpin(driver, &memory).unwrap();
            for error in [pinned, unpinned] {
                let text = error.to_string();
                assert_eq!(error.code(), Some(CUresult(code)));
                assert_eq!(error.is_of_earlier_work(), hinted, "{text}");
                assert!(text.contains(&format!("cudaError: {code}")), "{text}");
                assert_eq!(text.contains("asynchronous error"), hinted, "{text}");
                assert_eq!(text.contains("CUDA_LAUNCH_BLOCKING=1"), hinted, "{text}");
            }
        }
    });
}

#[test]
fn pinning_without_a_driver_says_what_is_missing() {
    let test = "registration::pinning_without_a_driver_says_what_is_missing";
    if let Some(output) = child::again(test, &[("CUDA_MEM_DRIVER", "/nowhere/libcuda.so.1")]) {
        return child::expect_silent_success(&output);
    }
    let mut memory = vec![1u8; 5000];
    let start = memory.as_mut_ptr().cast();
    // SAFETY: nothing can be pinned here.
    let results = [unsafe { raw::pin_memory(start, 5000) }, unsafe { raw::unpin_memory(start) }];
    for error in results.map(Result::unwrap_err) {
        assert_eq!(error.code(), None);
        assert!(error.to_string().contains("/nowhere/libcuda.so.1"), "{error}");
    }
}

#[test]
fn the_first_pin_loads_the_driver_and_initialises_it() {
    let test = "registration::the_first_pin_loads_the_driver_and_initialises_it";
    let library = simulator().into_os_string().into_string().unwrap();
    let variables = [("CUDA_MEM_DRIVER", library.as_str()), ("CUDA_MEM_SIM_LIBRARY", library.as_str())];
    if let Some(output) = child::again(test, &variables) {
        return child::expect_silent_success(&output);
    }
    let is_loaded = || std::fs::read_to_string("/proc/self/maps").unwrap().contains(&library);
    assert!(!is_loaded());
    let mut memory = vec![1u8; 5000];
    let start = memory.as_mut_ptr().cast();
    // SAFETY: the vector lives until it is unpinned below.
    unsafe { raw::pin_memory(start, 5000) }.unwrap();
    assert!(is_loaded());
    // SAFETY: no device uses it.
    unsafe { raw::unpin_memory(start) }.unwrap();
}

/// A thread may undo what another has registered since it asked for that, and before it knows: the driver keeps the count, and the
/// simulator would report it.
#[test]
fn pins_of_many_threads() {
    on(Sim::builder().misuse_detection(false), |_, context| {
        let (driver, memory) = (context.driver(), vec![1u8; 64 * 4096]);
        let (pinned, unpinned) = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        let pinned = (0..50).filter(|_| pin(driver, &memory).is_ok()).count();
                        let unpinned = (0..50).filter(|_| unpin(driver, &memory).is_ok()).count();
                        (pinned, unpinned)
                    })
                })
                .collect();
            let counts = threads.into_iter().map(|thread| thread.join().unwrap());
            counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
        });
        assert_eq!(pinned, unpinned);
        assert_eq!(unpin(driver, &memory).unwrap_err().code(), Some(CUresult(713)));
    });
}
