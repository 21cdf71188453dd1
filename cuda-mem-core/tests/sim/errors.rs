//! Drivers that are missing, old, incomplete or broken: what the errors say.

use std::ffi::{CStr, c_int};
use std::ptr;

use cuda_mem_core::sys::{CUresult, LoadError, Table};
use cuda_mem_core::{DeviceBuffer, Driver, Error, Stream};
use cuda_mem_sim::Sim;

use crate::common::child;
use crate::rig::on;

/// The error of the system's driver, in a process in which the environment names this library.
fn system_error(library: &str) -> Error {
    assert_eq!(std::env::var("CUDA_MEM_DRIVER").as_deref(), Ok(library));
    Driver::system().unwrap_err()
}

#[test]
fn a_missing_library_is_an_error_that_names_it() {
    let library = "/nowhere/libcuda.so.1";
    let test = "errors::a_missing_library_is_an_error_that_names_it";
    if let Some(output) = child::again(test, &[("CUDA_MEM_DRIVER", library)]) {
        return child::expect_silent_success(&output);
    }
    let error = system_error(library);
    assert!(matches!(&error, Error::Load(load) if matches!(**load, LoadError::Library { .. })), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(library) && text.contains("install the NVIDIA driver"), "{text}");
    // It is not remembered: it is said again.
    assert_eq!(Driver::system().unwrap_err().to_string(), text);
}

#[test]
fn a_library_that_is_no_driver_is_an_error_that_says_what_it_lacks() {
    let test = "errors::a_library_that_is_no_driver_is_an_error_that_says_what_it_lacks";
    if let Some(output) = child::again(test, &[("CUDA_MEM_DRIVER", "libm.so.6")]) {
        return child::expect_silent_success(&output);
    }
    let error = system_error("libm.so.6");
    assert!(
        matches!(&error, Error::Load(load) if matches!(**load, LoadError::NotADriver { .. })),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(text.contains("libm.so.6") && text.contains("cuDriverGetVersion"), "{text}");
}

unsafe extern "C" fn version_12_1(version: *mut c_int) -> CUresult {
    // SAFETY: the caller's number.
    unsafe { version.write(12010) };
    CUresult::CUDA_SUCCESS
}

unsafe extern "C" fn version_unknown(_: *mut c_int) -> CUresult {
    CUresult(1042)
}

fn table_with(version: unsafe extern "C" fn(*mut c_int) -> CUresult) -> Result<Table, LoadError> {
    let lookup =
        move |symbol: &CStr| if symbol == c"cuDriverGetVersion" { version as *const _ } else { ptr::null() };
    // SAFETY: the one address that it gives is that of a function of the type that the name has.
    unsafe { Table::from_lookup(lookup) }
}

#[test]
fn a_driver_of_cuda_12_1_is_too_old() {
    let error = Error::from(std::sync::Arc::new(table_with(version_12_1).unwrap_err()));
    let text = error.to_string();
    assert!(text.contains("12.2 is needed") && text.contains("12.1"), "{text}");
}

#[test]
fn a_driver_that_does_not_tell_its_version_is_refused_with_its_code() {
    let text = table_with(version_unknown).unwrap_err().to_string();
    assert!(text.contains("1042"), "{text}");
}

#[test]
fn a_driver_of_cuda_12_2_serves_and_names_what_it_lacks() {
    on(Sim::builder().driver(12020), |sim, context| {
        assert_eq!(context.driver().version(), 12020);
        let stream = Stream::new(context).unwrap();
        let buffer = DeviceBuffer::from_slice(&stream, &[1u8, 2, 3]).unwrap();
        assert_eq!(buffer.to_vec(&stream).unwrap(), [1, 2, 3]);
        let missing = sim.table().cuMemGetMemPool().unwrap_err();
        assert_eq!((missing.needed, missing.found), (13000, 12020));
        let text = Error::from(missing).to_string();
        assert!(text.contains("cuMemGetMemPool") && text.contains("13.0") && text.contains("12.2"), "{text}");
    });
}

#[test]
fn a_driver_that_lacks_a_function_it_should_have_is_an_error_that_names_it() {
    on(Sim::builder().missing("cuMemAllocManaged"), |_, context| {
        let error = cuda_mem_core::ManagedBuffer::<u8>::zeroed(context, 100).unwrap_err();
        assert!(matches!(error, Error::Missing(missing) if missing.name == "cuMemAllocManaged"));
        assert!(error.to_string().contains("has CUDA 13.0 but no cuMemAllocManaged"), "{error}");
    });
}

#[test]
fn a_driver_that_does_not_initialise_is_an_error_and_not_remembered() {
    let sim = Sim::builder().build();
    sim.fail_call("cuInit", 1, CUresult::CUDA_ERROR_NO_DEVICE);
    let error = Driver::over(sim.table()).unwrap_err();
    assert_eq!(error.code(), Some(CUresult::CUDA_ERROR_NO_DEVICE));
    assert!(error.to_string().contains("cuInit failed: CUDA_ERROR_NO_DEVICE (100)"), "{error}");
    assert_eq!(Driver::over(sim.table()).unwrap().device_count().unwrap(), 1);
}

#[test]
fn a_machine_without_devices_says_so() {
    let sim = Sim::builder().devices(0).build();
    match Driver::over(sim.table()) {
        Ok(driver) => assert!(matches!(driver.device(0), Err(Error::NoSuchDevice { ordinal: 0, count: 0 }))),
        Err(error) => assert_eq!(error.code(), Some(CUresult::CUDA_ERROR_NO_DEVICE)),
    }
}

#[test]
fn errors_carry_the_call_its_code_and_its_bytes() {
    on(Sim::builder(), |sim, context| {
        let stream = Stream::new(context).unwrap();
        for code in [2, 918, 1042] {
            sim.fail_call("cuMemAllocAsync", 1, CUresult(code));
            let Err(Error::Driver(error)) = DeviceBuffer::<u32>::uninit(&stream, 1000) else {
                panic!("no error")
            };
            assert_eq!((error.call(), error.code().0, error.bytes()), ("cuMemAllocAsync", code, Some(4000)));
            assert_eq!(error.name().is_some(), code == 2);
            let text = error.to_string();
            assert!(text.contains("4000 bytes") && text.contains(&code.to_string()), "{text}");
        }
    });
}

#[test]
fn a_copy_that_another_device_does_not_reach_names_both() {
    on(Sim::builder().devices(2), |_, context| {
        let other = context.driver().device(1).unwrap().primary_context().unwrap();
        let (here, there) = (Stream::new(context).unwrap(), Stream::new(&other).unwrap());
        let (buffer, bytes) = (DeviceBuffer::<u8>::zeroed(&here, 4).unwrap(), &mut [0; 4][..]);
        let second = DeviceBuffer::<u8>::zeroed(&here, 4).unwrap();
        for refused in [
            buffer.to_vec(&there).map(drop),
            buffer.copy_from_slice(&there, bytes),
            buffer.copy_to_slice(&there, bytes),
            buffer.whole().fill_bytes(&there, 1),
            buffer.whole().copy_from(&there, &second.whole()),
            cuda_mem_core::scope(context, |scope| scope.upload(&there, bytes, &buffer.whole())),
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::OtherDevice { memory: 0, stream: 1, .. }), "{error:?}");
            assert_eq!(error.code(), Some(CUresult::CUDA_ERROR_INVALID_VALUE));
        }
        assert_eq!(buffer.to_vec(&here).unwrap(), [0; 4]);
    });
}
