//! The libraries of symmetric memory: what a program is told where one is absent, too old or something else.
//!
//! Where `CUDA_MEM_NVSHMEM` or `CUDA_MEM_NCCL` names a real one, its exports are what is tested.
#![cfg(all(feature = "nccl", feature = "nvshmem"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on stops and says so")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use cuda_mem_sys::engine::{LoadError, Version};
use cuda_mem_sys::nccl::ncclResult_t;
use cuda_mem_sys::{nccl, nvshmem};

/// Stands for every function that is not called.
extern "C" fn never() {
    std::process::abort();
}

extern "C" fn nccl_of<const CODE: c_int>(version: *mut c_int) -> ncclResult_t {
    // SAFETY: the table passes a number to write.
    unsafe { *version = CODE };
    ncclResult_t::ncclSuccess
}

extern "C" fn nccl_that_fails(_: *mut c_int) -> ncclResult_t {
    ncclResult_t::ncclSystemError
}

extern "C" fn nvshmem_of<const MAJOR: c_int, const MINOR: c_int>(
    major: *mut c_int,
    minor: *mut c_int,
    patch: *mut c_int,
) {
    // SAFETY: the table passes a number to write.
    unsafe { *major = MAJOR };
    // SAFETY: as above.
    unsafe { *minor = MINOR };
    // SAFETY: as above.
    unsafe { *patch = 5 };
}

/// A library with such a function for its version, and without the one that is `missing`.
fn with(name: &CStr, version: *const c_void, missing: &CStr) -> impl Fn(&CStr) -> *const c_void {
    move |symbol| {
        if symbol == missing {
            ptr::null()
        } else if symbol == name {
            version
        } else {
            never as *const c_void
        }
    }
}

fn nccl(version: *const c_void, missing: &CStr) -> Result<nccl::Table, LoadError> {
    // SAFETY: only the function of the version is called, which has its type.
    unsafe { nccl::Table::from_lookup(with(c"ncclGetVersion", version, missing)) }
}

fn nvshmem(version: *const c_void, missing: &CStr) -> Result<nvshmem::Table, LoadError> {
    // SAFETY: as above.
    unsafe { nvshmem::Table::from_lookup(with(c"nvshmemx_vendor_get_version_info", version, missing)) }
}

#[test]
fn versions_that_do_not_serve_are_named_with_those_that_do() {
    let of = nccl_of::<22_605> as *const c_void;
    // Although it lacks a function too.
    let error = nccl(of, c"ncclCommWindowRegister").unwrap_err();
    assert_eq!(error.to_string(), "NCCL 2.27.0 or a newer one of version 2 is needed, this is 2.26.5");
    let error = nccl(nccl_of::<30_000> as *const c_void, c"").unwrap_err();
    assert!(matches!(error, LoadError::Unsupported { found: Version { major: 3, .. }, .. }), "{error}");
    for of in [nvshmem_of::<2, 11> as *const c_void, nvshmem_of::<3, 2> as _, nvshmem_of::<4, 0> as _] {
        let error = nvshmem(of, c"").unwrap_err();
        assert!(
            error.to_string().starts_with("NVSHMEM 3.3.0 or a newer one of version 3 is needed"),
            "{error}"
        );
    }
}

#[test]
fn a_library_without_its_functions_is_none() {
    let of = nccl_of::<22_907> as *const c_void;
    for missing in [c"ncclGetVersion", c"ncclMemAlloc"] {
        let error = nccl(of, missing).unwrap_err();
        assert_eq!(error.to_string(), format!("this is no NCCL: it has no {}", missing.to_str().unwrap()));
    }
    let of = nvshmem_of::<3, 4> as *const c_void;
    for missing in [c"nvshmemx_vendor_get_version_info", c"nvshmem_ptr"] {
        let error = nvshmem(of, missing).unwrap_err();
        assert_eq!(error.to_string(), format!("this is no NVSHMEM: it has no {}", missing.to_str().unwrap()));
    }
}

#[test]
fn what_tells_no_version_is_an_error() {
    let error = nccl(nccl_that_fails as *const c_void, c"").unwrap_err();
    assert!(matches!(error, LoadError::VersionQuery { code: 2, .. }), "{error}");
    let error = nvshmem(nvshmem_of::<-1, 0> as *const c_void, c"").unwrap_err();
    assert!(matches!(error, LoadError::VersionQuery { code: -1, .. }), "{error}");
}

#[test]
fn functions_that_came_later_are_missing_from_older_libraries() {
    let table = nccl(nccl_of::<22_809> as *const c_void, c"ncclGetPeerDevicePointer").unwrap();
    assert_eq!(table.version(), Version::new(2, 28, 9));
    let missing = table.ncclGetPeerDevicePointer().unwrap_err();
    assert_eq!(missing.to_string(), "ncclGetPeerDevicePointer needs NCCL 2.29.0, this is 2.28.9");
    let table = nccl(nccl_of::<22_907> as *const c_void, c"").unwrap();
    assert!(table.ncclGetPeerDevicePointer().is_ok());
}

/// Absent on most machines; where they are, every export that a table needs is.
#[test]
fn the_systems_libraries_are_whole_or_absent() {
    match nccl::Table::system() {
        Ok(table) => assert!(table.version() >= nccl::MINIMUM_VERSION),
        Err(error) => {
            let text = error.to_string();
            assert!(matches!(error, LoadError::Library { .. }) && text.contains("CUDA_MEM_NCCL"), "{text}");
            assert!(std::env::var_os(nccl::LIBRARY_VARIABLE).is_none(), "{text}");
        }
    }
    match nvshmem::Table::system() {
        Ok(table) => {
            assert!(table.version() >= nvshmem::MINIMUM_VERSION);
            // SAFETY: may be called at any time.
            let status = unsafe { table.nvshmemx_init_status()() };
            assert_eq!(status, nvshmem::NVSHMEM_STATUS_NOT_INITIALIZED);
        }
        Err(error) => {
            let text = error.to_string();
            assert!(
                matches!(error, LoadError::Library { .. }) && text.contains("CUDA_MEM_NVSHMEM"),
                "{text}"
            );
            assert!(std::env::var_os(nvshmem::LIBRARY_VARIABLE).is_none(), "{text}");
        }
    }
}
