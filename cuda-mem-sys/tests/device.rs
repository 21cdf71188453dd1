//! The raw bindings on a driver: the system's, or the simulator's library where `CUDA_MEM_DRIVER` names it.
//!
//! `cargo xtask gpu-test` runs this on both and compares what it records. Started without it on a machine that has no driver,
//! it checks what such a machine is told.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on stops and says so")]

use std::fs::File;
use std::io::Write;
use std::ptr;

use cuda_mem_sys::{CU_STREAM_PER_THREAD, CUcontext, CUdevice, CUdeviceptr, CUresult, CUstream, Table};

/// The driver, initialised; None where there is none and none was promised.
fn driver() -> Option<&'static Table> {
    let found = Table::system();
    if std::env::var_os("CUDA_MEM_BACKEND").is_none()
        && let Err(error) = &found
    {
        let text = error.to_string();
        assert!(text.contains("libcuda.so.1") && text.contains("CUDA_MEM_DRIVER"), "{text}");
        return None;
    }
    let table = found.expect("the row promises a driver");
    let init = table.cuInit().unwrap();
    // SAFETY: cuInit may be called at any time, from any thread, with flags 0.
    assert_eq!(unsafe { init(0) }, CUresult::CUDA_SUCCESS);
    Some(table)
}

/// The default stream that `CUDA_MEM_DEFAULT_STREAM` names: the legacy one, or this thread's.
fn default_stream() -> CUstream {
    match std::env::var("CUDA_MEM_DEFAULT_STREAM").as_deref() {
        Ok("per_thread") => CU_STREAM_PER_THREAD,
        _ => ptr::null_mut(),
    }
}

/// Leaves a result to be compared between drivers, and hands it on.
fn record(test: &str, step: &str, result: CUresult) -> CUresult {
    if let Some(path) = std::env::var_os("CUDA_MEM_RECORD") {
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        // One write a line: tests run at once, and lines of several must not mix.
        file.write_all(format!("{test}\t{step}\t{}\n", result.0).as_bytes()).unwrap();
    }
    result
}

/// Retains each device's primary context in turn, makes it current, and gives both back.
fn on_each_device(table: &Table, test: impl Fn(CUdevice)) {
    let mut count = 0;
    let get_count = table.cuDeviceGetCount().unwrap();
    // SAFETY: the function writes one int.
    assert_eq!(unsafe { get_count(&mut count) }, CUresult::CUDA_SUCCESS);
    assert!(count > 0, "a driver without devices");
    for ordinal in 0..count {
        let mut device: CUdevice = 0;
        let mut context: CUcontext = ptr::null_mut();
        let (get, retain) = (table.cuDeviceGet().unwrap(), table.cuDevicePrimaryCtxRetain().unwrap());
        let (push, pop) = (table.cuCtxPushCurrent().unwrap(), table.cuCtxPopCurrent().unwrap());
        let release = table.cuDevicePrimaryCtxRelease().unwrap();
        // SAFETY: the function writes one device number.
        assert_eq!(unsafe { get(&mut device, ordinal) }, CUresult::CUDA_SUCCESS);
        // SAFETY: a device that the driver gave, and one handle to write.
        assert_eq!(unsafe { retain(&mut context, device) }, CUresult::CUDA_SUCCESS);
        // SAFETY: the context is retained.
        assert_eq!(unsafe { push(context) }, CUresult::CUDA_SUCCESS);
        test(device);
        // SAFETY: the context pushed above is on this thread's stack.
        assert_eq!(unsafe { pop(&mut context) }, CUresult::CUDA_SUCCESS);
        // SAFETY: the device's context was retained above and is not used any more.
        assert_eq!(unsafe { release(device) }, CUresult::CUDA_SUCCESS);
    }
}

#[test]
fn bytes_come_back_from_each_device() {
    let Some(table) = driver() else { return };
    let record = |step, result| record("bytes_come_back_from_each_device", step, result);
    let (alloc, free) = (table.cuMemAlloc().unwrap(), table.cuMemFree().unwrap());
    let (upload, download) = (table.cuMemcpyHtoDAsync().unwrap(), table.cuMemcpyDtoHAsync().unwrap());
    let synchronize = table.cuStreamSynchronize().unwrap();
    on_each_device(table, |_| {
        let sent: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        let mut received = vec![0_u8; sent.len()];
        let mut address: CUdeviceptr = 0;
        let stream = default_stream();
        // SAFETY: the function writes one address.
        let result = unsafe { alloc(&mut address, sent.len()) };
        assert_eq!(record("allocate", result), CUresult::CUDA_SUCCESS);
        // SAFETY: as many bytes as were allocated, from memory that lives until the stream is waited for below.
        let result = unsafe { upload(address, sent.as_ptr().cast(), sent.len(), stream) };
        assert_eq!(record("upload", result), CUresult::CUDA_SUCCESS);
        // SAFETY: as above, into memory that nobody looks at before that.
        let result = unsafe { download(received.as_mut_ptr().cast(), address, sent.len(), stream) };
        assert_eq!(record("download", result), CUresult::CUDA_SUCCESS);
        // SAFETY: a default stream is always there.
        let result = unsafe { synchronize(stream) };
        assert_eq!(record("synchronize", result), CUresult::CUDA_SUCCESS);
        assert_eq!(received, sent);
        // SAFETY: nothing uses the memory any more.
        let result = unsafe { free(address) };
        assert_eq!(record("free", result), CUresult::CUDA_SUCCESS);
    });
}

#[test]
fn refusals_have_the_codes_of_the_manual() {
    let Some(table) = driver() else { return };
    let record = |step, result| record("refusals_have_the_codes_of_the_manual", step, result);
    let (alloc, get_device) = (table.cuMemAlloc().unwrap(), table.cuDeviceGet().unwrap());
    let unregister = table.cuMemHostUnregister().unwrap();
    on_each_device(table, |_| {
        let mut address: CUdeviceptr = 0;
        // SAFETY: the function writes one address, or nothing.
        let result = unsafe { alloc(&mut address, 0) };
        assert_eq!(record("allocate nothing", result), CUresult::CUDA_ERROR_INVALID_VALUE);
        // SAFETY: as above.
        let result = unsafe { alloc(&mut address, 1 << 50) };
        assert_eq!(record("allocate a pebibyte", result), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let mut bytes = [0_u8; 64];
        // SAFETY: an address that was never registered is refused.
        let result = unsafe { unregister(bytes.as_mut_ptr().cast()) };
        assert_eq!(record("unregister what is not", result), CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
        let mut device: CUdevice = 0;
        // SAFETY: the function writes one device number, or nothing.
        let result = unsafe { get_device(&mut device, 1000) };
        assert_eq!(record("device 1000", result), CUresult::CUDA_ERROR_INVALID_DEVICE);
    });
}

#[test]
fn functions_newer_than_the_driver_are_errors() {
    let Some(table) = driver() else { return };
    match table.cuMemGetMemPool() {
        Ok(_) => assert!(table.version() >= 13000),
        Err(missing) => {
            assert!(table.version() < 13000, "{missing}");
            assert_eq!((missing.needed, missing.found), (13000, table.version()));
        }
    }
}
