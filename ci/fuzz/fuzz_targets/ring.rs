//! Whatever a peer writes into the memory of a connection, its rings above all, is refused or checked, and nobody waits for it without an end:
//! `cargo +nightly fuzz run ring`.

#![no_main]

use std::ffi::c_int;
use std::sync::LazyLock;

use cuda_mem_ipc::shared::hostile::Stage;
use cuda_mem_pool::cuda_mem_core::Driver;
use libfuzzer_sys::fuzz_target;

static STAGE: LazyLock<Stage> = LazyLock::new(|| {
    let driver = Driver::over(cuda_mem_sim::table()).expect("the simulator is a driver");
    let context = driver.device(0).and_then(|device| device.primary_context()).expect("it has a device");
    Stage::new(&context).expect("memory of it can be shared")
});

/// Whether leaks are not looked for. Threads end what an input has left behind, and one that begins or ends meanwhile looks like a leak.
// SAFETY: the sanitizer asks for a function of this name and signature, which nobody else defines.
#[unsafe(no_mangle)]
extern "C" fn __lsan_is_turned_off() -> c_int {
    1
}

// What the crate's own tests do with the inputs that are kept in `seeds`.
fuzz_target!(|bytes: &[u8]| {
    let _ = STAGE.play(bytes);
});
