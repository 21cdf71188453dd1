//! The functions of NCCL that symmetric memory needs, loaded at run time from `libnccl.so.2`.
//!
//! Written by hand from the headers of 2.28.9, 2.29.7 and 2.32.3, and checked against the exports of all three. Windows came with 2.27; the
//! addresses of other ranks' windows, and signals, with 2.29: on an older library those functions are a [`MissingFunction`].
//!
//! ```
//! match cuda_mem_sys::nccl::Table::system() {
//!     Ok(table) => match table.ncclGetPeerDevicePointer() {
//!         Ok(_) => println!("NCCL {}", table.version()),
//!         Err(missing) => println!("{missing}"),
//!     },
//!     Err(error) => println!("no NCCL here: {error}"),
//! }
//! ```

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::CUstream;
use crate::engine::{self, functions};
pub use crate::engine::{LoadError, MissingFunction, Version};

/// The library's file name.
pub const LIBRARY_NAME: &str = "libnccl.so.2";

/// The environment variable that says where the library is: its path, or a folder that has [`LIBRARY_NAME`], such as `nvidia/nccl/lib`
/// of the Python package `nvidia-nccl-cu13`.
pub const LIBRARY_VARIABLE: &str = "CUDA_MEM_NCCL";

/// The oldest version that serves: the first with windows.
pub const MINIMUM_VERSION: Version = Version::new(2, 27, 0);

/// The version that brought the addresses of other ranks' windows to the host.
pub const PEER_POINTERS: Version = Version::new(2, 29, 0);

/// Bytes of an [`ncclUniqueId`].
pub const NCCL_UNIQUE_ID_BYTES: usize = 128;

/// A window of every rank at the same place behind its beginning.
pub const NCCL_WIN_COLL_SYMMETRIC: c_int = 1;

/// [`ncclUint32`](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/types.html)
pub const NCCL_UINT32: c_int = 3;

/// [`ncclSum`](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/types.html)
pub const NCCL_SUM: c_int = 0;

/// A result code.
#[allow(non_camel_case_types, reason = "the header's own name")]
#[must_use]
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ncclResult_t(pub c_int);

#[allow(non_upper_case_globals, reason = "the header's own names")]
impl ncclResult_t {
    /// The call did what it was asked to.
    pub const ncclSuccess: Self = Self(0);
    /// A CUDA call failed.
    pub const ncclUnhandledCudaError: Self = Self(1);
    /// A call of the system failed.
    pub const ncclSystemError: Self = Self(2);
    /// The library failed.
    pub const ncclInternalError: Self = Self(3);
    /// An argument cannot be.
    pub const ncclInvalidArgument: Self = Self(4);
    /// The call cannot be made here.
    pub const ncclInvalidUsage: Self = Self(5);
    /// Another rank is at fault.
    pub const ncclRemoteError: Self = Self(6);
    /// The call has begun, and goes on.
    pub const ncclInProgress: Self = Self(7);
}

/// What stands behind an [`ncclComm_t`].
#[allow(non_camel_case_types, reason = "the header's own name")]
#[repr(C)]
#[derive(Debug)]
pub struct ncclComm {
    _private: [u8; 0],
}

/// A communicator.
#[allow(non_camel_case_types, reason = "the header's own name")]
pub type ncclComm_t = *mut ncclComm;

/// What stands behind an [`ncclWindow_t`], in the device's memory.
#[allow(non_camel_case_types, reason = "the header's own name")]
#[repr(C)]
#[derive(Debug)]
pub struct ncclWindow_vidmem {
    _private: [u8; 0],
}

/// A window: memory that the ranks of a communicator have registered together.
#[allow(non_camel_case_types, reason = "the header's own name")]
pub type ncclWindow_t = *mut ncclWindow_vidmem;

/// What the ranks of a communicator know each other by. One of them gets it, all pass it.
#[allow(non_camel_case_types, reason = "the header's own name")]
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ncclUniqueId {
    /// The library's own.
    pub internal: [c_char; NCCL_UNIQUE_ID_BYTES],
}

impl ncclUniqueId {
    /// The bytes that the other ranks need.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; NCCL_UNIQUE_ID_BYTES] {
        self.internal.map(|char| char.to_ne_bytes()[0])
    }

    /// From the bytes of [`to_bytes`](Self::to_bytes).
    #[must_use]
    pub fn from_bytes(bytes: &[u8; NCCL_UNIQUE_ID_BYTES]) -> Self {
        Self { internal: bytes.map(|byte| c_char::from_ne_bytes([byte])) }
    }
}

/// Which signals are waited for.
#[allow(non_camel_case_types, non_snake_case, reason = "the header's own names")]
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ncclWaitSignalDesc_t {
    /// How many.
    pub opCnt: c_int,
    /// Of which rank.
    pub peer: c_int,
    /// The signal's number.
    pub sigIdx: c_int,
    /// Zero.
    pub ctx: c_int,
}

const _: () = {
    assert!(size_of::<ncclUniqueId>() == 128);
    assert!(size_of::<ncclWaitSignalDesc_t>() == 16);
};

functions! {
    "NCCL";
    always {
    ncclGetVersion: unsafe extern "C" fn(*mut c_int) -> ncclResult_t,
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/comms.html#ncclgetversion";
    ncclGetUniqueId: unsafe extern "C" fn(*mut ncclUniqueId) -> ncclResult_t,
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/comms.html#ncclgetuniqueid";
    ncclCommInitRank: unsafe extern "C" fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int) -> ncclResult_t,
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/comms.html#ncclcomminitrank";
    ncclCommFinalize: unsafe extern "C" fn(ncclComm_t) -> ncclResult_t,
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/comms.html#ncclcommfinalize";
    ncclCommDestroy: unsafe extern "C" fn(ncclComm_t) -> ncclResult_t,
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/comms.html#ncclcommdestroy";
    ncclCommAbort: unsafe extern "C" fn(ncclComm_t) -> ncclResult_t,
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/comms.html#ncclcommabort";
    ncclCommGetAsyncError: unsafe extern "C" fn(ncclComm_t, *mut ncclResult_t) -> ncclResult_t,
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/comms.html#ncclcommgetasyncerror";
    ncclCommCount: unsafe extern "C" fn(ncclComm_t, *mut c_int) -> ncclResult_t,
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/comms.html#ncclcommcount";
    ncclCommUserRank: unsafe extern "C" fn(ncclComm_t, *mut c_int) -> ncclResult_t,
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/comms.html#ncclcommuserrank";
    ncclGetErrorString: unsafe extern "C" fn(ncclResult_t) -> *const c_char,
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/comms.html#ncclgeterrorstring";
    ncclGetLastError: unsafe extern "C" fn(ncclComm_t) -> *const c_char,
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/comms.html#ncclgetlasterror";
    ncclMemAlloc: unsafe extern "C" fn(*mut *mut c_void, usize) -> ncclResult_t,
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/comms.html#ncclmemalloc";
    ncclMemFree: unsafe extern "C" fn(*mut c_void) -> ncclResult_t,
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/comms.html#ncclmemfree";
    ncclCommWindowRegister:
        unsafe extern "C" fn(ncclComm_t, *mut c_void, usize, *mut ncclWindow_t, c_int) -> ncclResult_t,
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/comms.html#ncclcommwindowregister";
    ncclCommWindowDeregister: unsafe extern "C" fn(ncclComm_t, ncclWindow_t) -> ncclResult_t,
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/comms.html#ncclcommwindowderegister";
    ncclAllReduce: unsafe extern "C" fn(
        *const c_void, *mut c_void, usize, c_int, c_int, ncclComm_t, CUstream,
    ) -> ncclResult_t,
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/colls.html#ncclallreduce";
    }
    since {
        ncclGetPeerDevicePointer:
            unsafe extern "C" fn(ncclWindow_t, usize, c_int, *mut *mut c_void) -> ncclResult_t, PEER_POINTERS,
            "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/device.html";
        ncclSignal: unsafe extern "C" fn(c_int, c_int, c_int, c_uint, ncclComm_t, CUstream) -> ncclResult_t,
            PEER_POINTERS, "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/rma.html";
        ncclWaitSignal:
            unsafe extern "C" fn(c_int, *mut ncclWaitSignalDesc_t, ncclComm_t, CUstream) -> ncclResult_t,
            PEER_POINTERS, "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/rma.html";
    }
}

impl Table {
    /// The library that [`LIBRARY_VARIABLE`] names if it is set, else [`LIBRARY_NAME`] where the loader finds it, which is the one of
    /// the process if there is one. No function is called but `ncclGetVersion`.
    ///
    /// Opening a library runs its initialisers: whoever sets the variable or installs the library vouches for the file.
    ///
    /// # Errors
    ///
    /// [`LoadError`]: no library, not NCCL, or a version that does not serve.
    pub fn system() -> Result<Self, LoadError> {
        let lookup = engine::open(LIBRARY_NAME, LIBRARY_VARIABLE)?;
        // SAFETY: the addresses are those of a library that is never unloaded, under the names its exports have.
        unsafe { Self::from_lookup(lookup) }
    }

    /// The functions behind a closure that gives the address of an exported symbol, or null.
    ///
    /// # Safety
    ///
    /// Each address must be that of a function with the type that NVIDIA's header gives the symbol, and stay valid for
    /// the life of the process.
    ///
    /// # Errors
    ///
    /// [`LoadError`], as for [`system`](Self::system).
    pub unsafe fn from_lookup(lookup: impl Fn(&CStr) -> *const c_void) -> Result<Self, LoadError> {
        // Before the rest: an older library lacks some of it, and its version says more than a name.
        let get_version = lookup(c"ncclGetVersion");
        if get_version.is_null() {
            return Err(LoadError::NotTheLibrary { library: "NCCL", symbol: "ncclGetVersion" });
        }
        // SAFETY: the caller's promise: the address of the function that the header declares so.
        let get_version = unsafe {
            std::mem::transmute::<*const c_void, unsafe extern "C" fn(*mut c_int) -> ncclResult_t>(
                get_version,
            )
        };
        let mut code = 0;
        // SAFETY: one number to write; may be called at any time.
        let result = unsafe { get_version(&mut code) };
        if result != ncclResult_t::ncclSuccess {
            return Err(LoadError::VersionQuery { library: "NCCL", code: result.0 });
        }
        let found = decode(code).ok_or(LoadError::VersionQuery { library: "NCCL", code })?;
        if found.major != MINIMUM_VERSION.major || found < MINIMUM_VERSION {
            return Err(LoadError::Unsupported { library: "NCCL", found, needed: MINIMUM_VERSION });
        }
        // SAFETY: the caller's promise.
        unsafe { Self::look_up(found, &lookup) }
    }

    /// What the library says of a result code.
    #[must_use]
    pub fn error_string(&self, result: ncclResult_t) -> String {
        // SAFETY: may be called at any time, with any code.
        let text = unsafe { self.ncclGetErrorString()(result) };
        if text.is_null() {
            return String::new();
        }
        // SAFETY: not null: a string of the library's own, which is never unloaded.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// The version in a code: 22809 is 2.28.9, and before 2.9 2804 was 2.8.4.
fn decode(code: c_int) -> Option<Version> {
    let code = u32::try_from(code).ok()?;
    let (major, rest) =
        if code < 10_000 { (code / 1000, code % 1000) } else { (code / 10_000, code % 10_000) };
    Some(Version::new(major, rest / 100, rest % 100))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_the_header_writes_them() {
        assert_eq!(decode(22_809), Some(Version::new(2, 28, 9)));
        assert_eq!(decode(23_203), Some(Version::new(2, 32, 3)));
        assert_eq!(decode(2804), Some(Version::new(2, 8, 4)));
        assert_eq!(decode(-1), None);
    }

    #[test]
    fn an_id_survives_its_bytes() {
        let bytes = std::array::from_fn(|index| u8::try_from(2 * index % 256).unwrap_or(0));
        assert_eq!(ncclUniqueId::from_bytes(&bytes).to_bytes(), bytes);
    }
}
