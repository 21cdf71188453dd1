//! One driver's functions, looked up when they are first asked for.

use std::ffi::{CStr, OsString, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::error::{LoadError, MissingFunction};
use crate::library::{LibraryId, variable};
use crate::types::*;

/// The oldest driver that serves: CUDA 12.2.
pub const MINIMUM_DRIVER: i32 = 12020;

/// Where the system keeps the driver, in the order in which the names are tried.
#[cfg(not(windows))]
const LIBRARY_NAMES: &[&str] = &["libcuda.so.1", "libcuda.so"];
#[cfg(windows)]
const LIBRARY_NAMES: &[&str] = &["nvcuda.dll"];

/// From an exported symbol's name to its address, null if there is none.
type Lookup = dyn Fn(&CStr) -> *const c_void + Send + Sync;

/// Stands in a slot for a function that the driver does not have.
static ABSENT: u8 = 0;

/// The functions of one driver.
///
/// A table is a value: several drivers can live in one process, the system's and simulated ones among them. Each function
/// has an accessor of its own name, which gives its address or says why there is none. An accessor costs one atomic load
/// once the driver was asked for the function, also if it has none.
///
/// The null stream means the legacy default stream in every table. The default stream of a thread has a handle of its own,
/// [`CU_STREAM_PER_THREAD`](crate::CU_STREAM_PER_THREAD).
///
/// The library behind a table is never unloaded, so addresses taken from it stay valid for the life of the process.
pub struct Table {
    lookup: Box<Lookup>,
    /// None for a lookup that knows only exported symbols.
    get_proc_address: Option<PFN_cuGetProcAddress_v12000>,
    library: LibraryId,
    version: i32,
    slots: [AtomicPtr<c_void>; FUNCTIONS.len()],
}

/// What is known of a bound function before any driver is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FunctionInfo {
    /// Its name without version suffix, as `cuGetProcAddress` takes it.
    pub name: &'static CStr,
    /// The symbol that drivers export this ABI under.
    pub export: &'static CStr,
    /// The CUDA version that brought this ABI: 1000 × major + 10 × minor.
    pub version: i32,
    /// The version of its variant in which the null stream means the calling thread's, if it has one.
    pub per_thread_version: Option<i32>,
}

impl Table {
    /// The system's driver: the library in the environment variable `CUDA_MEM_DRIVER` if it is set, else `libcuda.so.1`,
    /// else `libcuda.so` (`nvcuda.dll` on Windows, untested). The process has one table of it, loaded at the first call.
    ///
    /// Opening a library runs its initialisers: whoever sets the variable or installs the driver vouches for the file. A program
    /// that runs with raised privileges ignores the variable ([`variable`]).
    /// No driver function is called but `cuDriverGetVersion`.
    ///
    /// # Errors
    ///
    /// [`LoadError`]: no library, not a driver, or a driver older than [`MINIMUM_DRIVER`]. A failure is not remembered: the next
    /// call tries again.
    pub fn system() -> Result<&'static Self, LoadError> {
        static SYSTEM: OnceLock<Table> = OnceLock::new();
        match SYSTEM.get() {
            Some(table) => Ok(table),
            None => {
                let table = Self::load()?;
                Ok(SYSTEM.get_or_init(|| table))
            }
        }
    }

    fn load() -> Result<Self, LoadError> {
        let names: Vec<OsString> = match variable("CUDA_MEM_DRIVER") {
            Some(path) => vec![path],
            None => LIBRARY_NAMES.iter().map(OsString::from).collect(),
        };
        let mut tried = Vec::new();
        for name in names {
            // SAFETY: the initialisers of the system's driver, or of the library that the environment names in its
            // place, may run: the documentation of `system` says who vouches for them.
            match unsafe { libloading::Library::new(&name) } {
                Ok(library) => return Self::from_library(library, &name.to_string_lossy()),
                Err(error) => tried.push((name.to_string_lossy().into_owned(), reason(&error))),
            }
        }
        Err(LoadError::Library { tried })
    }

    fn from_library(library: libloading::Library, name: &str) -> Result<Self, LoadError> {
        // Never unloaded: the driver keeps threads and exit handlers of its own, and tables hand out its addresses.
        let library = ManuallyDrop::new(library);
        let lookup = move |symbol: &CStr| {
            // SAFETY: the symbol is read as an address and not used as anything here; `Table` casts it to the type that
            // was generated for exactly this export.
            let found = unsafe { library.get::<*const c_void>(symbol) };
            found.map_or(ptr::null(), |address| *address)
        };
        // SAFETY: the addresses are those of a library that is never unloaded, under the names its exports have.
        unsafe { Self::with_lookup(Box::new(lookup), name) }
    }

    /// A driver behind a closure that gives the address of an exported symbol, or null.
    ///
    /// The closure is asked for `cuGetProcAddress_v2` and `cuInit` first, and for the rest through that function. What that does not
    /// know, or all if there is none, the closure is asked for by its exported name ([`FunctionInfo::export`]). Tables whose `cuInit`
    /// has the same address are of the same library ([`Table::library`]).
    ///
    /// # Safety
    ///
    /// Each address must be that of a function with the type that CUDA 13.0's header gives the symbol, or one that may be
    /// called as such, and stay valid for the life of the process.
    ///
    /// # Errors
    ///
    /// [`LoadError`]: no `cuDriverGetVersion`, or a driver older than [`MINIMUM_DRIVER`].
    pub unsafe fn from_lookup(
        lookup: impl Fn(&CStr) -> *const c_void + Send + Sync + 'static,
    ) -> Result<Self, LoadError> {
        // SAFETY: the caller's promise.
        unsafe { Self::with_lookup(Box::new(lookup), "the lookup function") }
    }

    /// # Safety
    ///
    /// As for [`Table::from_lookup`].
    unsafe fn with_lookup(lookup: Box<Lookup>, library: &str) -> Result<Self, LoadError> {
        let get_proc_address = lookup(c"cuGetProcAddress_v2");
        let get_proc_address = (!get_proc_address.is_null()).then(|| {
            // SAFETY: the address of the export `cuGetProcAddress_v2`, which is this ABI (CUDA 12.0).
            unsafe { std::mem::transmute::<*const c_void, PFN_cuGetProcAddress_v12000>(get_proc_address) }
        });
        let library_id = LibraryId::of(lookup(c"cuInit").addr());
        let mut table = Self {
            lookup,
            get_proc_address,
            library: library_id,
            version: MINIMUM_DRIVER,
            slots: [const { AtomicPtr::new(ptr::null_mut()) }; FUNCTIONS.len()],
        };
        let Ok(get_version) = table.cuDriverGetVersion() else {
            return Err(LoadError::NotADriver { library: library.to_owned(), symbol: "cuDriverGetVersion" });
        };
        let mut version = 0;
        // SAFETY: the function writes one int, and may be called before cuInit.
        let result = unsafe { get_version(&mut version) };
        if result != CUresult::CUDA_SUCCESS {
            return Err(LoadError::VersionQuery { code: result.0 });
        }
        if version < MINIMUM_DRIVER {
            return Err(LoadError::TooOld { found: version, needed: MINIMUM_DRIVER });
        }
        table.version = version;
        Ok(table)
    }

    /// The library behind it: what is known of a driver is kept under this name, whichever table it was asked through.
    #[must_use]
    pub fn library(&self) -> LibraryId {
        self.library
    }

    /// The driver's CUDA version: 1000 × major + 10 × minor.
    #[must_use]
    pub fn version(&self) -> i32 {
        self.version
    }

    /// The address in `slot`, looked up if this is the first time.
    #[inline]
    fn address(&self, slot: usize) -> Result<*mut c_void, MissingFunction> {
        // Acquire pairs with the release below; the address itself is all that is published.
        let known = self.slots[slot].load(Ordering::Acquire);
        if known.is_null() || ptr::eq(known, absent()) { self.look_up(slot, known) } else { Ok(known) }
    }

    #[cold]
    fn look_up(&self, slot: usize, known: *mut c_void) -> Result<*mut c_void, MissingFunction> {
        let function = &FUNCTIONS[slot];
        let address = if known.is_null() { self.find(function) } else { ptr::null_mut() };
        if address.is_null() {
            self.slots[slot].store(absent(), Ordering::Release);
            let name = function.name.to_str().unwrap_or_default();
            return Err(MissingFunction { name, needed: function.version, found: self.version });
        }
        self.slots[slot].store(address, Ordering::Release);
        Ok(address)
    }

    fn find(&self, function: &FunctionInfo) -> *mut c_void {
        if function.version > self.version {
            return ptr::null_mut();
        }
        if let Some(get_proc_address) = self.get_proc_address {
            let flags = CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_LEGACY_STREAM;
            let mut address = ptr::null_mut();
            let mut status = CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
            let (name, version) = (function.name.as_ptr(), function.version);
            // SAFETY: a terminated name, one address and one status to write; may be called before cuInit.
            let result =
                unsafe { get_proc_address(name, &mut address, version, flags.0.into(), &mut status) };
            let found = CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS;
            if result == CUresult::CUDA_SUCCESS && status == found && !address.is_null() {
                return address;
            }
            if status != CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND {
                // It knows the name and not with this ABI: what it exports may have another one.
                return ptr::null_mut();
            }
        }
        // Profilers put a library of their own in front of the driver that knows fewer names: the export has the same ABI.
        (self.lookup)(function.export).cast_mut()
    }
}

/// The address that is no function's.
fn absent() -> *mut c_void {
    (&raw const ABSENT).cast_mut().cast()
}

/// The loader's own words, which stand behind its error.
pub(crate) fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_known = |address: *mut c_void| !address.is_null() && !ptr::eq(address, absent());
        let known = self.slots.iter().filter(|slot| is_known(slot.load(Ordering::Relaxed))).count();
        f.debug_struct("Table")
            .field("version", &self.version)
            .field("library", &self.library)
            .field("functions_looked_up", &known)
            .finish_non_exhaustive()
    }
}

/// Writes [`FUNCTIONS`] and the accessors from the generated list.
macro_rules! functions {
    ($($name:ident: $pfn:ident, $version:literal, $per_thread:expr, $base:literal, $export:literal, $page:literal;)*) => {
        /// Every bound function, in the order of the driver's manual.
        pub const FUNCTIONS: &[FunctionInfo] = &[$(
            FunctionInfo { name: $base, export: $export, version: $version, per_thread_version: $per_thread },
        )*];

        /// Positions in [`FUNCTIONS`].
        #[allow(non_camel_case_types, reason = "the functions' own names")]
        enum Slot { $($name,)* }

        /// The driver's functions, each under its own name.
        #[allow(non_snake_case, reason = "the functions' own names")]
        impl Table {
            $(
                #[doc = concat!(
                    "[`", stringify!($name), "`](https://docs.nvidia.com/cuda/cuda-driver-api/", $page, ") with the ABI of CUDA ",
                    stringify!($version), ".\n\n# Errors\n\n[`MissingFunction`] if this driver does not have it."
                )]
                #[inline]
                pub fn $name(&self) -> Result<$pfn, MissingFunction> {
                    let address = self.address(Slot::$name as usize)?;
                    // SAFETY: a non-null address that the driver gave for exactly this name and ABI version, or under
                    // exactly this export, for which the header declares this type; a function pointer and a data
                    // pointer have the same size on every platform that CUDA runs on.
                    Ok(unsafe { std::mem::transmute::<*mut c_void, $pfn>(address) })
                }
            )*
        }
    };
}

include!("generated/functions.rs");
