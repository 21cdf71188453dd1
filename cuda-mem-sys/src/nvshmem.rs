//! The host functions of NVSHMEM that symmetric memory needs, loaded at run time from `libnvshmem_host.so.3`.
//!
//! Written by hand from the headers of 3.4.5 and 3.8.0, and checked against the exports of both. The headers' `nvshmemx_init_attr` is
//! inline and not exported: [`Table::nvshmemx_hostlib_init_attr`] does its work, with attributes whose layout depends on the
//! version ([`InitAttributes`]).
//!
//! ```
//! match cuda_mem_sys::nvshmem::Table::system() {
//!     Ok(table) => {
//!         // SAFETY: may be called at any time.
//!         let status = unsafe { table.nvshmemx_init_status()() };
//!         println!("NVSHMEM {}, status {status}", table.version());
//!     }
//!     Err(error) => println!("no NVSHMEM here: {error}"),
//! }
//! ```

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::CUstream;
use crate::engine::{self, functions};
pub use crate::engine::{LoadError, MissingFunction, Version};

/// The library's file name.
pub const LIBRARY_NAME: &str = "libnvshmem_host.so.3";

/// The environment variable that says where the library is: its path, or a folder that has [`LIBRARY_NAME`], such as `nvidia/nvshmem/lib`
/// of the Python package `nvidia-nvshmem-cu13`.
pub const LIBRARY_VARIABLE: &str = "CUDA_MEM_NVSHMEM";

/// The oldest version that serves.
pub const MINIMUM_VERSION: Version = Version::new(3, 3, 0);

/// [`Table::nvshmemx_hostlib_init_attr`] is told by a unique id who is there.
pub const NVSHMEMX_INIT_WITH_UNIQUEID: c_uint = 1 << 3;

/// [`Table::nvshmemx_init_status`]: nobody has initialised it in this process.
pub const NVSHMEM_STATUS_NOT_INITIALIZED: c_int = 0;
/// [`Table::nvshmemx_init_status`]: it knows the other processes and has no device yet.
pub const NVSHMEM_STATUS_IS_BOOTSTRAPPED: c_int = 1;
/// [`Table::nvshmemx_init_status`]: it is initialised. Higher numbers are too, with several processes on a device.
pub const NVSHMEM_STATUS_IS_INITIALIZED: c_int = 2;
/// [`Table::nvshmemx_init_status`]: no status.
pub const NVSHMEM_STATUS_INVALID: c_int = c_int::MAX;

/// [`Table::nvshmemx_signal_op_on_stream`]: the word becomes the value.
pub const NVSHMEM_SIGNAL_SET: c_int = 9;
/// [`Table::nvshmemx_signal_op_on_stream`]: the value is added to the word.
pub const NVSHMEM_SIGNAL_ADD: c_int = 10;

/// [`Table::nvshmemx_signal_wait_until_on_stream`]: until the word is the value.
pub const NVSHMEM_CMP_EQ: c_int = 0;
/// [`Table::nvshmemx_signal_wait_until_on_stream`]: until the word is not below the value.
pub const NVSHMEM_CMP_GE: c_int = 5;

/// All processing elements.
pub const NVSHMEM_TEAM_WORLD: i32 = 0;

/// What the processing elements of one instance know each other by. One of them gets it, all pass it.
#[allow(non_camel_case_types, reason = "the header's own name")]
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct nvshmemx_uniqueid_v1 {
    /// Layout 1 and the size.
    pub version: c_int,
    /// The library's own.
    pub internal: [c_char; 124],
}

/// Who is there.
#[allow(non_camel_case_types, reason = "the header's own name")]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct nvshmemx_uniqueid_args_v1 {
    /// Layout 1 and the size.
    pub version: c_int,
    /// The id, which the initialisation reads.
    pub id: *mut nvshmemx_uniqueid_v1,
    /// This processing element.
    pub myrank: c_int,
    /// How many there are.
    pub nranks: c_int,
}

/// Arguments of the initialisation before 3.5.
#[allow(non_camel_case_types, reason = "the header's own name")]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct nvshmemx_init_args_v1 {
    /// Layout 1 and the size.
    pub version: c_int,
    /// Who is there.
    pub uid_args: nvshmemx_uniqueid_args_v1,
    /// Zero.
    pub content: [c_char; 96],
}

/// Arguments of the initialisation from 3.5 on.
#[allow(non_camel_case_types, reason = "the header's own name")]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct nvshmemx_init_args_v2 {
    /// Layout 2 and the size.
    pub version: c_int,
    /// Who is there.
    pub uid_args: nvshmemx_uniqueid_args_v1,
    /// The device; -1 for the current one.
    pub cuda_device_id: c_int,
    /// Zero.
    pub content: [c_char; 92],
}

/// Attributes of the initialisation before 3.5.
#[allow(non_camel_case_types, reason = "the header's own name")]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct nvshmemx_init_attr_v1 {
    /// Layout 1 and the size.
    pub version: c_int,
    /// Null.
    pub mpi_comm: *mut c_void,
    /// The arguments.
    pub args: nvshmemx_init_args_v1,
}

/// Attributes of the initialisation from 3.5 on.
#[allow(non_camel_case_types, reason = "the header's own name")]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct nvshmemx_init_attr_v2 {
    /// Layout 2 and the size.
    pub version: c_int,
    /// Null.
    pub mpi_comm: *mut c_void,
    /// The arguments.
    pub args: nvshmemx_init_args_v2,
}

/// The number that a structure begins with: its layout, and its size.
const fn layout<T>(number: c_int) -> c_int {
    // No structure here has more than 144 bytes.
    (number << 16) + size_of::<T>() as c_int
}

impl nvshmemx_uniqueid_v1 {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { version: layout::<Self>(1), internal: [0; 124] }
    }

    /// The bytes that the other processing elements need.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 128] {
        let mut bytes = [0; 128];
        let (head, tail) = bytes.split_at_mut(4);
        head.copy_from_slice(&self.version.to_ne_bytes());
        tail.copy_from_slice(&self.internal.map(|char| char.to_ne_bytes()[0]));
        bytes
    }

    /// From the bytes of [`to_bytes`](Self::to_bytes).
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 128]) -> Self {
        let [a, b, c, d, internal @ ..] = *bytes;
        let internal = internal.map(|byte| c_char::from_ne_bytes([byte]));
        Self { version: c_int::from_ne_bytes([a, b, c, d]), internal }
    }
}

impl Default for nvshmemx_uniqueid_v1 {
    fn default() -> Self {
        Self::new()
    }
}

impl nvshmemx_uniqueid_args_v1 {
    const NOBODY: Self =
        Self { version: layout::<Self>(1), id: std::ptr::null_mut(), myrank: -1, nranks: -1 };
}

/// The attributes of [`Table::nvshmemx_hostlib_init_attr`], as a version of the library has them.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum InitAttributes {
    /// Before 3.5.
    V1(nvshmemx_init_attr_v1),
    /// From 3.5 on.
    V2(nvshmemx_init_attr_v2),
}

impl InitAttributes {
    /// With nothing set, for a version of the library.
    #[must_use]
    pub const fn new(version: Version) -> Self {
        let uid_args = nvshmemx_uniqueid_args_v1::NOBODY;
        if version.major == 3 && version.minor < 5 {
            let number = layout::<nvshmemx_init_args_v1>(1);
            let args = nvshmemx_init_args_v1 { version: number, uid_args, content: [0; 96] };
            let version = layout::<nvshmemx_init_attr_v1>(1);
            Self::V1(nvshmemx_init_attr_v1 { version, mpi_comm: std::ptr::null_mut(), args })
        } else {
            let (number, cuda_device_id) = (layout::<nvshmemx_init_args_v2>(2), -1);
            let args = nvshmemx_init_args_v2 { version: number, uid_args, cuda_device_id, content: [0; 92] };
            let version = layout::<nvshmemx_init_attr_v2>(2);
            Self::V2(nvshmemx_init_attr_v2 { version, mpi_comm: std::ptr::null_mut(), args })
        }
    }

    /// As the functions take them.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut c_void {
        match self {
            Self::V1(attributes) => (&raw mut *attributes).cast(),
            Self::V2(attributes) => (&raw mut *attributes).cast(),
        }
    }
}

functions! {
    "NVSHMEM";
    always {
    nvshmemx_vendor_get_version_info: unsafe extern "C" fn(*mut c_int, *mut c_int, *mut c_int),
        "https://docs.nvidia.com/nvshmem/api/gen/api/setup.html";
    nvshmem_info_get_version: unsafe extern "C" fn(*mut c_int, *mut c_int),
        "https://docs.nvidia.com/nvshmem/api/gen/api/setup.html#nvshmem-info-get-version";
    nvshmemx_init_status: unsafe extern "C" fn() -> c_int,
        "https://docs.nvidia.com/nvshmem/api/gen/api/setup.html#nvshmemx-init-status";
    nvshmemx_get_uniqueid: unsafe extern "C" fn(*mut nvshmemx_uniqueid_v1) -> c_int,
        "https://docs.nvidia.com/nvshmem/api/gen/api/setup.html#nvshmemx-get-uniqueid";
    nvshmemx_set_attr_uniqueid_args:
        unsafe extern "C" fn(c_int, c_int, *const nvshmemx_uniqueid_v1, *mut c_void) -> c_int,
        "https://docs.nvidia.com/nvshmem/api/gen/api/setup.html#nvshmemx-set-attr-uniqueid-args";
    nvshmemx_hostlib_init_attr: unsafe extern "C" fn(c_uint, *mut c_void) -> c_int,
        "https://docs.nvidia.com/nvshmem/api/gen/api/setup.html#nvshmemx-hostlib-init-attr";
    nvshmemx_hostlib_finalize: unsafe extern "C" fn(),
        "https://docs.nvidia.com/nvshmem/api/gen/api/setup.html#nvshmemx-hostlib-finalize";
    nvshmem_my_pe: unsafe extern "C" fn() -> c_int,
        "https://docs.nvidia.com/nvshmem/api/gen/api/setup.html#nvshmem-my-pe";
    nvshmem_n_pes: unsafe extern "C" fn() -> c_int,
        "https://docs.nvidia.com/nvshmem/api/gen/api/setup.html#nvshmem-n-pes";
    nvshmem_team_my_pe: unsafe extern "C" fn(i32) -> c_int,
        "https://docs.nvidia.com/nvshmem/api/gen/api/teams.html#nvshmem-team-my-pe";
    nvshmem_team_n_pes: unsafe extern "C" fn(i32) -> c_int,
        "https://docs.nvidia.com/nvshmem/api/gen/api/teams.html#nvshmem-team-n-pes";
    nvshmem_team_translate_pe: unsafe extern "C" fn(i32, c_int, i32) -> c_int,
        "https://docs.nvidia.com/nvshmem/api/gen/api/teams.html#nvshmem-team-translate-pe";
    nvshmem_malloc: unsafe extern "C" fn(usize) -> *mut c_void,
        "https://docs.nvidia.com/nvshmem/api/gen/api/memory.html#nvshmem-malloc-nvshmem-free-nvshmem-align";
    nvshmem_calloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
        "https://docs.nvidia.com/nvshmem/api/gen/api/memory.html#nvshmem-calloc";
    nvshmem_align: unsafe extern "C" fn(usize, usize) -> *mut c_void,
        "https://docs.nvidia.com/nvshmem/api/gen/api/memory.html#nvshmem-malloc-nvshmem-free-nvshmem-align";
    nvshmem_free: unsafe extern "C" fn(*mut c_void),
        "https://docs.nvidia.com/nvshmem/api/gen/api/memory.html#nvshmem-malloc-nvshmem-free-nvshmem-align";
    nvshmem_ptr: unsafe extern "C" fn(*const c_void, c_int) -> *mut c_void,
        "https://docs.nvidia.com/nvshmem/api/gen/api/setup.html#nvshmem-ptr";
    nvshmem_barrier_all: unsafe extern "C" fn(),
        "https://docs.nvidia.com/nvshmem/api/gen/api/collectives.html#nvshmem-barrier-nvshmem-barrier-all";
    nvshmemx_barrier_all_on_stream: unsafe extern "C" fn(CUstream),
        "https://docs.nvidia.com/nvshmem/api/gen/api/collectives.html#nvshmem-barrier-nvshmem-barrier-all";
    nvshmem_quiet: unsafe extern "C" fn(),
        "https://docs.nvidia.com/nvshmem/api/gen/api/ordering.html#nvshmem-quiet";
    nvshmemx_quiet_on_stream: unsafe extern "C" fn(CUstream),
        "https://docs.nvidia.com/nvshmem/api/gen/api/ordering.html#nvshmem-quiet";
    nvshmemx_putmem_on_stream: unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int, CUstream),
        "https://docs.nvidia.com/nvshmem/api/gen/api/rma.html#nvshmem-put";
    nvshmemx_getmem_on_stream: unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int, CUstream),
        "https://docs.nvidia.com/nvshmem/api/gen/api/rma.html#nvshmem-get";
    nvshmemx_signal_op_on_stream: unsafe extern "C" fn(*mut u64, u64, c_int, c_int, CUstream),
        "https://docs.nvidia.com/nvshmem/api/gen/api/signal.html#nvshmemx-signal-op";
    nvshmemx_signal_wait_until_on_stream: unsafe extern "C" fn(*mut u64, c_int, u64, CUstream),
        "https://docs.nvidia.com/nvshmem/api/gen/api/sync.html#nvshmem-signal-wait-until";
    }
    since {}
}

impl Table {
    /// The library that [`LIBRARY_VARIABLE`] names if it is set, else [`LIBRARY_NAME`] where the loader finds it, which is the one of
    /// the process if there is one. No function is called but `nvshmemx_vendor_get_version_info`.
    ///
    /// Opening a library runs its initialisers: whoever sets the variable or installs the library vouches for the file.
    ///
    /// # Errors
    ///
    /// [`LoadError`]: no library, not NVSHMEM, or a version that does not serve.
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
        let get_version = lookup(c"nvshmemx_vendor_get_version_info");
        if get_version.is_null() {
            let symbol = "nvshmemx_vendor_get_version_info";
            return Err(LoadError::NotTheLibrary { library: "NVSHMEM", symbol });
        }
        // SAFETY: the caller's promise: the address of the function that the header declares so.
        let get_version = unsafe {
            std::mem::transmute::<*const c_void, unsafe extern "C" fn(*mut c_int, *mut c_int, *mut c_int)>(
                get_version,
            )
        };
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        // SAFETY: three numbers to write; may be called before the initialisation.
        unsafe { get_version(&mut major, &mut minor, &mut patch) };
        let number = |told: c_int| {
            u32::try_from(told).map_err(|_| LoadError::VersionQuery { library: "NVSHMEM", code: told })
        };
        let found = Version::new(number(major)?, number(minor)?, number(patch)?);
        if found.major != MINIMUM_VERSION.major || found < MINIMUM_VERSION {
            return Err(LoadError::Unsupported { library: "NVSHMEM", found, needed: MINIMUM_VERSION });
        }
        // SAFETY: the caller's promise.
        unsafe { Self::look_up(found, &lookup) }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// Sizes as the headers of 3.4.5 and 3.8.0 assert them, places as a C compiler gives them.
    #[test]
    fn layouts_are_those_of_the_headers() {
        assert_eq!(size_of::<nvshmemx_uniqueid_v1>(), 128);
        assert_eq!(size_of::<nvshmemx_uniqueid_args_v1>(), 24);
        assert_eq!(offset_of!(nvshmemx_uniqueid_args_v1, id), 8);
        assert_eq!(offset_of!(nvshmemx_uniqueid_args_v1, myrank), 16);
        assert_eq!(offset_of!(nvshmemx_uniqueid_args_v1, nranks), 20);
        assert_eq!((size_of::<nvshmemx_init_args_v1>(), size_of::<nvshmemx_init_args_v2>()), (128, 128));
        assert_eq!(offset_of!(nvshmemx_init_args_v1, uid_args), 8);
        assert_eq!(offset_of!(nvshmemx_init_args_v2, uid_args), 8);
        assert_eq!(offset_of!(nvshmemx_init_args_v2, cuda_device_id), 32);
        assert_eq!((size_of::<nvshmemx_init_attr_v1>(), size_of::<nvshmemx_init_attr_v2>()), (144, 144));
        assert_eq!(
            (offset_of!(nvshmemx_init_attr_v1, args), offset_of!(nvshmemx_init_attr_v2, args)),
            (16, 16)
        );
    }

    #[test]
    fn attributes_have_the_layout_of_the_version() {
        for minor in [3, 4] {
            let InitAttributes::V1(attributes) = InitAttributes::new(Version::new(3, minor, 5)) else {
                panic!("layout 1 before 3.5")
            };
            let versions = (attributes.version, attributes.args.version, attributes.args.uid_args.version);
            assert_eq!(versions, ((1 << 16) + 144, (1 << 16) + 128, (1 << 16) + 24));
        }
        for minor in [5, 8] {
            let InitAttributes::V2(attributes) = InitAttributes::new(Version::new(3, minor, 0)) else {
                panic!("layout 2 from 3.5 on")
            };
            let versions = (attributes.version, attributes.args.version, attributes.args.uid_args.version);
            assert_eq!(versions, ((2 << 16) + 144, (2 << 16) + 128, (1 << 16) + 24));
            assert_eq!(attributes.args.cuda_device_id, -1);
        }
    }

    #[test]
    fn an_id_survives_its_bytes() {
        let mut id = nvshmemx_uniqueid_v1::new();
        let bytes: [u8; 124] = std::array::from_fn(|index| 196_u8.wrapping_add(index as u8));
        id.internal = bytes.map(|byte| c_char::from_ne_bytes([byte]));
        assert_eq!(id.version, (1 << 16) + 128);
        assert_eq!(id.to_bytes()[4..], bytes);
        assert_eq!(nvshmemx_uniqueid_v1::from_bytes(&id.to_bytes()), id);
    }
}
