//! Holes around the registration of host memory.

use cuda_mem_core::host::{HostMemory, RegisterFlags, Registered};
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Driver, scope};
use cuda_mem_sim::Sim;

use crate::rig::{on_simulator, position, text};

const FLAGS: RegisterFlags = RegisterFlags::PORTABLE;

#[test]
fn b1_forgotten_memory_stays_registered_and_is_never_freed() {
    let sim = Sim::builder().build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let registered = Registered::new(&context, vec![7u8; 5000], FLAGS).unwrap();
    let address = registered.as_ptr();
    #[allow(clippy::mem_forget, reason = "it is what is tested")]
    std::mem::forget(registered);
    drop(context);
    let leaks = sim.leaks();
    assert!(leaks.iter().any(|leak| leak.to_string().contains("registration")), "{leaks:?}");
    assert!(sim.misuse().is_empty());
    // SAFETY: the vector was forgotten with its registration, so its bytes are there for ever.
    assert_eq!(unsafe { std::slice::from_raw_parts(address, 5000) }, [7; 5000]);
}

#[test]
fn b1_a_registration_may_be_dropped_in_any_thread() {
    on_simulator(|sim, context| {
        let registered = Registered::new(context, vec![7u8; 5000], FLAGS).unwrap();
        sim.log().clear();
        std::thread::spawn(move || drop(registered)).join().unwrap();
        let records = sim.log().records();
        assert!(records[position(&records, "cuMemHostUnregister")].number > 0, "{}", text(&records));
        assert_eq!(context.driver().release_failures(), 0);
    });
}

#[test]
fn b1_memory_that_the_driver_does_not_let_go_of_is_not_freed() {
    let sim = Sim::builder().build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let registered = Registered::new(&context, vec![7u8; 5000], FLAGS).unwrap();
    let address = registered.as_ptr();
    for _ in 0..2 {
        sim.fail_call("cuMemHostUnregister", 1, CUresult::CUDA_ERROR_UNKNOWN);
    }
    drop(registered);
    assert_eq!(context.driver().release_failures(), 1);
    // SAFETY: still registered, so the vector was leaked instead of freed.
    assert_eq!(unsafe { std::slice::from_raw_parts(address, 5000) }, [7; 5000]);
}

#[test]
fn o1_a_registration_ends_before_its_memory() {
    on_simulator(|sim, context| {
        sim.log().clear();
        {
            let vector = vec![1u8; 5000];
            scope(context, |scope| scope.register(&vector)).unwrap();
            assert_eq!(
                sim.log().count("cuMemHostUnregister"),
                1,
                "the scope has ended, and its memory lives"
            );
        }
        drop(Registered::new(context, vec![1u8; 5000], FLAGS).unwrap());
        assert_eq!((sim.log().count("cuMemHostRegister"), sim.log().count("cuMemHostUnregister")), (2, 2));
    });
}

#[test]
fn e1_a_registration_that_failed_is_not_undone() {
    on_simulator(|sim, context| {
        sim.log().clear();
        sim.fail_call("cuMemHostRegister", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let refused = Registered::new(context, vec![1u8; 5000], FLAGS).unwrap_err();
        assert_eq!(refused.error.code(), Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        assert_eq!(refused.owner, [1; 5000]);
        sim.fail_call("cuMemHostRegister", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert!(scope(context, |scope| scope.register(&refused.owner)).is_err());
        assert_eq!(sim.log().count("cuMemHostUnregister"), 0);
    });
}

#[test]
fn e1_a_registration_is_undone_once() {
    on_simulator(|sim, context| {
        sim.log().clear();
        let registered = Registered::new(context, vec![1u8; 5000], FLAGS).unwrap();
        drop(registered.close().unwrap());
        assert_eq!(sim.log().count("cuMemHostUnregister"), 1);
        let registered = Registered::new(context, vec![1u8; 5000], FLAGS).unwrap();
        sim.fail_call("cuMemHostUnregister", 1, CUresult::CUDA_ERROR_UNKNOWN);
        // Refused, it comes back registered, and its drop undoes it.
        let refused = registered.close().unwrap_err();
        assert_eq!(refused.error.code(), Some(CUresult::CUDA_ERROR_UNKNOWN));
        drop(refused);
        let undone = sim.log().filter(|record| {
            record.function == "cuMemHostUnregister" && record.result == CUresult::CUDA_SUCCESS
        });
        assert_eq!(undone.len(), 2);
    });
}
