//! A hook of the program's that runs inside a call, and calls back.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use cuda_mem_core::Driver;
use cuda_mem_core::sys::CUresult;
use cuda_mem_sim::Sim;
use cuda_mem_torch::{CudaAllocator, NativeAllocator};

/// Far longer than it needs.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn who_hears_of_a_device_that_was_not_initialised_tries_again() {
    let (done, ended) = mpsc::channel();
    let thread = thread::spawn(move || {
        let sim = Sim::builder().build();
        let driver = Driver::over(sim.table()).unwrap();
        let native = Arc::new(NativeAllocator::new(driver));
        let (again, heard) = (Arc::clone(&native), mpsc::channel());
        let tell = Mutex::new(heard.0);
        driver.on_release_failure(move |_| {
            again.init(0).unwrap();
            tell.lock().unwrap().send(()).unwrap();
        });
        // The context that was retained for it goes, which the driver refuses as often as it is asked.
        for function in ["cuDeviceTotalMem", "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease"] {
            sim.fail_call(function, 1, CUresult::CUDA_ERROR_UNKNOWN);
        }
        native.init(1).unwrap_err();
        heard.1.try_recv().unwrap();
        driver.on_release_failure(|_| {});
        native.init(1).unwrap();
        done.send(()).unwrap();
    });
    assert_ne!(ended.recv_timeout(LIMIT), Err(mpsc::RecvTimeoutError::Timeout), "it waits for ever");
    thread.join().unwrap();
}
