//! The few functions of NVIDIA's management library (NVML) that tell which devices there are and which processes use them, loaded at
//! run time.
//!
//! Written by hand from `nvml.h` of CUDA 12.9. The library comes with the driver, but not into every container.
//!
//! ```
//! match cuda_mem_sys::nvml::Table::system() {
//!     Ok(table) => {
//!         // SAFETY: may be called at any time; matched by the call below.
//!         println!("nvmlInit_v2 gave {}", unsafe { table.nvmlInit_v2()() }.0);
//!         // SAFETY: as above.
//!         unsafe { table.nvmlShutdown()() };
//!     }
//!     Err(error) => println!("no NVML here: {error}"),
//! }
//! ```

use std::error::Error;
use std::ffi::{CStr, c_char, c_uint, c_ulonglong, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;

/// Where the system keeps the library.
#[cfg(not(windows))]
const LIBRARY_NAME: &str = "libnvidia-ml.so.1";
#[cfg(windows)]
const LIBRARY_NAME: &str = "nvml.dll";

/// A result code of NVML.
#[allow(non_camel_case_types, reason = "the header's own name")]
#[must_use]
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct nvmlReturn_t(pub c_uint);

impl nvmlReturn_t {
    /// The call did what it was asked to.
    pub const NVML_SUCCESS: Self = Self(0);
    /// The device cannot tell.
    pub const NVML_ERROR_NOT_SUPPORTED: Self = Self(3);
    /// There is no such thing.
    pub const NVML_ERROR_NOT_FOUND: Self = Self(6);
    /// A table that was passed is too small; the call says how large it has to be.
    pub const NVML_ERROR_INSUFFICIENT_SIZE: Self = Self(7);
}

/// What stands behind a [`nvmlDevice_t`].
#[allow(non_camel_case_types, reason = "the header's own name")]
#[repr(C)]
#[derive(Debug)]
pub struct nvmlDevice_st {
    _private: [u8; 0],
}

/// A device.
#[allow(non_camel_case_types, reason = "the header's own name")]
pub type nvmlDevice_t = *mut nvmlDevice_st;

/// A process that uses a device.
#[allow(non_camel_case_types, non_snake_case, reason = "the header's own names")]
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct nvmlProcessInfo_t {
    /// Its number.
    pub pid: c_uint,
    /// The bytes of the device's memory that it has; [`NVML_VALUE_NOT_AVAILABLE`] if they are not known.
    pub usedGpuMemory: c_ulonglong,
    /// The GPU instance, on a device that is split up (MIG).
    pub gpuInstanceId: c_uint,
    /// The compute instance, likewise.
    pub computeInstanceId: c_uint,
}

const _: () = {
    assert!(size_of::<nvmlProcessInfo_t>() == 24);
    assert!(std::mem::offset_of!(nvmlProcessInfo_t, usedGpuMemory) == 8);
    assert!(std::mem::offset_of!(nvmlProcessInfo_t, gpuInstanceId) == 16);
    assert!(std::mem::offset_of!(nvmlProcessInfo_t, computeInstanceId) == 20);
};

/// The memory of a device, in bytes.
#[allow(non_camel_case_types, non_snake_case, reason = "the header's own names")]
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct nvmlMemory_v2_t {
    /// [`NVML_MEMORY_V2`], set by the caller.
    pub version: c_uint,
    /// All of it.
    pub total: c_ulonglong,
    /// What the driver and the firmware keep for themselves.
    pub reserved: c_ulonglong,
    /// What nobody has.
    pub free: c_ulonglong,
    /// What processes have.
    pub used: c_ulonglong,
}

/// The version of [`nvmlMemory_v2_t`]: its size, and 2 in the highest byte.
pub const NVML_MEMORY_V2: c_uint = size_of::<nvmlMemory_v2_t>() as c_uint | 2 << 24;

/// How busy a device was since the last sample.
#[allow(non_camel_case_types, reason = "the header's own name")]
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct nvmlUtilization_t {
    /// The share of the time in which a kernel ran, in per cent.
    pub gpu: c_uint,
    /// The share of the time in which device memory was read or written, in per cent.
    pub memory: c_uint,
}

const _: () = {
    assert!(NVML_MEMORY_V2 == 0x0200_0028);
    assert!(std::mem::offset_of!(nvmlMemory_v2_t, total) == 8);
    assert!(std::mem::offset_of!(nvmlMemory_v2_t, used) == 32);
    assert!(size_of::<nvmlUtilization_t>() == 8);
};

/// The most bytes of a device's name or UUID, with the zero at its end.
pub const NVML_DEVICE_NAME_V2_BUFFER_SIZE: usize = 96;

/// What stands for a number that is not known.
pub const NVML_VALUE_NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;

/// Why there is no [`Table`].
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// The library could not be opened.
    Library {
        /// Its file name.
        name: &'static str,
        /// The loader's reason.
        reason: String,
    },
    /// The library lacks a function: it is older than CUDA 11.6's, or something else.
    MissingFunction {
        /// The function.
        name: &'static str,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library { name, reason } => {
                write!(f, "NVIDIA's management library {name} could not be opened: {reason}")
            }
            Self::MissingFunction { name } => write!(f, "NVIDIA's management library has no {name}"),
        }
    }
}

impl Error for LoadError {}

/// Writes the table of functions, each by the name that the library exports it under.
macro_rules! functions {
    ($($name:ident: $type:ty, $page:literal;)*) => {
        /// The functions of one NVML library, which is never unloaded.
        #[allow(non_snake_case, reason = "the functions' own names")]
        #[derive(Debug, Clone, Copy)]
        pub struct Table {
            $($name: $type,)*
        }

        #[allow(non_snake_case, reason = "the functions' own names")]
        impl Table {
            $(
                #[doc = concat!("[`", stringify!($name), "`](https://docs.nvidia.com/deploy/nvml-api/", $page, ")")]
                #[must_use]
                pub fn $name(&self) -> $type {
                    self.$name
                }
            )*

            /// The functions behind a closure that gives the address of an exported symbol, or null.
            ///
            /// # Safety
            ///
            /// Each address must be that of a function with the type that NVIDIA's header gives the symbol, and stay valid for
            /// the life of the process.
            ///
            /// # Errors
            ///
            /// [`LoadError::MissingFunction`].
            pub unsafe fn from_lookup(lookup: impl Fn(&CStr) -> *const c_void) -> Result<Self, LoadError> {
                Ok(Self {
                    $($name: {
                        const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => c"",
                        };
                        let address = lookup(NAME);
                        if address.is_null() {
                            return Err(LoadError::MissingFunction { name: stringify!($name) });
                        }
                        // SAFETY: the caller's promise: the address of the function that the header declares so.
                        unsafe { std::mem::transmute::<*const c_void, $type>(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    nvmlInit_v2: unsafe extern "C" fn() -> nvmlReturn_t, "group__nvmlInitializationAndCleanup.html";
    nvmlShutdown: unsafe extern "C" fn() -> nvmlReturn_t, "group__nvmlInitializationAndCleanup.html";
    nvmlErrorString: unsafe extern "C" fn(nvmlReturn_t) -> *const c_char, "group__nvmlErrorReporting.html";
    nvmlDeviceGetHandleByUUID: unsafe extern "C" fn(*const c_char, *mut nvmlDevice_t) -> nvmlReturn_t,
        "group__nvmlDeviceQueries.html";
    nvmlDeviceGetComputeRunningProcesses_v3:
        unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_t) -> nvmlReturn_t,
        "group__nvmlDeviceQueries.html";
    nvmlDeviceGetGraphicsRunningProcesses_v3:
        unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_t) -> nvmlReturn_t,
        "group__nvmlDeviceQueries.html";
    nvmlDeviceGetCount_v2: unsafe extern "C" fn(*mut c_uint) -> nvmlReturn_t, "group__nvmlDeviceQueries.html";
    nvmlDeviceGetHandleByIndex_v2: unsafe extern "C" fn(c_uint, *mut nvmlDevice_t) -> nvmlReturn_t,
        "group__nvmlDeviceQueries.html";
    nvmlDeviceGetName: unsafe extern "C" fn(nvmlDevice_t, *mut c_char, c_uint) -> nvmlReturn_t,
        "group__nvmlDeviceQueries.html";
    nvmlDeviceGetUUID: unsafe extern "C" fn(nvmlDevice_t, *mut c_char, c_uint) -> nvmlReturn_t,
        "group__nvmlDeviceQueries.html";
    nvmlDeviceGetMemoryInfo_v2: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlMemory_v2_t) -> nvmlReturn_t,
        "group__nvmlDeviceQueries.html";
    nvmlDeviceGetUtilizationRates: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlUtilization_t) -> nvmlReturn_t,
        "group__nvmlDeviceQueries.html";
}

impl Table {
    /// The system's library: `libnvidia-ml.so.1` (`nvml.dll` on Windows, untested). No function of it is called.
    ///
    /// Opening a library runs its initialisers: whoever installs the driver vouches for the file.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub fn system() -> Result<Self, LoadError> {
        // SAFETY: the initialisers of the system's library may run: the documentation says who vouches for them.
        let library = unsafe { libloading::Library::new(LIBRARY_NAME) };
        let library = library.map_err(|error| LoadError::Library {
            name: LIBRARY_NAME,
            reason: crate::table::reason(&error),
        })?;
        // Never unloaded: the table hands out its addresses.
        let library = ManuallyDrop::new(library);
        let lookup = |symbol: &CStr| {
            // SAFETY: the symbol is read as an address and not used as anything here.
            let found = unsafe { library.get::<*const c_void>(symbol) };
            found.map_or(ptr::null(), |address| *address)
        };
        // SAFETY: the addresses are those of a library that is never unloaded, under the names its exports have.
        unsafe { Self::from_lookup(lookup) }
    }
}
