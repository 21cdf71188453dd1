//! What [`nvshmem`](crate::nvshmem) and [`nccl`](crate::nccl) have in common: how such a library is found and opened, and what is said of one that
//! is not there, or too old.

use std::error::Error;
use std::ffi::{CStr, OsStr, OsString, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr;

/// A library's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Changes with the file name of the library.
    pub major: u32,
    /// Brings functions.
    pub minor: u32,
    /// Mends them.
    pub patch: u32,
}

impl Version {
    /// A version.
    #[must_use]
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Why there is no table of a library's functions.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// The library could not be opened.
    Library {
        /// The file name that was tried.
        name: String,
        /// The environment variable that says where it is.
        variable: &'static str,
        /// The loader's reason.
        reason: String,
    },
    /// The library lacks a function that each supported version has.
    NotTheLibrary {
        /// What it was to be.
        library: &'static str,
        /// The function.
        symbol: &'static str,
    },
    /// The library did not tell its version.
    VersionQuery {
        /// The library.
        library: &'static str,
        /// Its result code, or what it told.
        code: i32,
    },
    /// The library is older than what serves, or of another major version.
    Unsupported {
        /// The library.
        library: &'static str,
        /// Its version.
        found: Version,
        /// The oldest version that serves, the first of the only major version that does.
        needed: Version,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library { name, variable, reason } => {
                write!(
                    f,
                    "{name} could not be opened ({reason}); set {variable} to the library's path or folder"
                )
            }
            Self::NotTheLibrary { library, symbol } => write!(f, "this is no {library}: it has no {symbol}"),
            Self::VersionQuery { library, code } => {
                write!(f, "{library} did not tell its version: it gave {code}")
            }
            Self::Unsupported { library, found, needed } => {
                write!(
                    f,
                    "{library} {needed} or a newer one of version {} is needed, this is {found}",
                    needed.major
                )
            }
        }
    }
}

impl Error for LoadError {}

/// A function that this library does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct MissingFunction {
    /// The library.
    pub library: &'static str,
    /// The function.
    pub name: &'static str,
    /// The version that brought it.
    pub needed: Version,
    /// The version of the library that was asked.
    pub found: Version,
}

impl fmt::Display for MissingFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { library, name, needed, found } = self;
        if needed > found {
            write!(f, "{name} needs {library} {needed}, this is {found}")
        } else {
            write!(f, "{library} {found} has no {name}, which {needed} brought")
        }
    }
}

impl Error for MissingFunction {}

/// From an exported symbol's name to its address, null if there is none.
pub(crate) type Lookup<'l> = dyn Fn(&CStr) -> *const c_void + 'l;

/// Opens the library that `variable` names, a file or a folder that has the file, else `name` by the loader's own search. It is
/// never unloaded.
pub(crate) fn open(
    name: &'static str,
    variable: &'static str,
) -> Result<impl Fn(&CStr) -> *const c_void, LoadError> {
    let file = located(name, crate::variable(variable));
    // SAFETY: the initialisers of the library may run: the documentation of the callers says who vouches for them.
    let library = unsafe { libloading::Library::new(&file) };
    let library = library.map_err(|error| LoadError::Library {
        name: file.to_string_lossy().into_owned(),
        variable,
        reason: crate::table::reason(&error),
    })?;
    // Never unloaded: it has threads, and the tables hand out its addresses.
    let library = ManuallyDrop::new(library);
    Ok(move |symbol: &CStr| {
        // SAFETY: the symbol is read as an address and not used as anything here.
        let found = unsafe { library.get::<*const c_void>(symbol) };
        found.map_or(ptr::null(), |address| *address)
    })
}

fn located(name: &str, value: Option<OsString>) -> OsString {
    match value {
        Some(value) if Path::new(&value).is_dir() => Path::new(&value).join(name).into_os_string(),
        Some(value) => value,
        None => OsStr::new(name).to_owned(),
    }
}

/// A function's name as the loader takes it.
pub(crate) const fn terminated(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

/// Writes the table of a library's functions, each by the name that it is exported under: those that each supported version
/// has, and those that came later, with their version.
macro_rules! functions {
    (
        $library:literal;
        always { $($name:ident: $type:ty, $page:literal;)* }
        since { $($later:ident: $later_type:ty, $version:expr, $later_page:literal;)* }
    ) => {
        /// The functions of one library, which is never unloaded.
        #[allow(non_snake_case, reason = "the functions' own names")]
        #[derive(Debug, Clone, Copy)]
        pub struct Table {
            version: Version,
            $($name: $type,)*
            $($later: Option<$later_type>,)*
        }

        #[allow(non_snake_case, reason = "the functions' own names")]
        impl Table {
            $(
                #[doc = concat!("[`", stringify!($name), "`](", $page, ")")]
                #[must_use]
                pub fn $name(&self) -> $type {
                    self.$name
                }
            )*
            $(
                #[doc = concat!(
                    "[`", stringify!($later), "`](", $later_page, ")\n\n# Errors\n\n[`MissingFunction`] if the library is older."
                )]
                pub fn $later(&self) -> Result<$later_type, MissingFunction> {
                    let (name, needed, found) = (stringify!($later), $version, self.version);
                    self.$later.ok_or(MissingFunction { library: $library, name, needed, found })
                }
            )*

            /// The library's version.
            #[must_use]
            pub fn version(&self) -> Version {
                self.version
            }

            /// # Safety
            ///
            /// As for [`Table::from_lookup`].
            unsafe fn look_up(version: Version, lookup: &crate::engine::Lookup<'_>) -> Result<Self, LoadError> {
                use crate::engine::terminated;

                Ok(Self {
                    version,
                    $($name: {
                        let address = lookup(const { terminated(concat!(stringify!($name), "\0")) });
                        if address.is_null() {
                            let symbol = stringify!($name);
                            return Err(LoadError::NotTheLibrary { library: $library, symbol });
                        }
                        // SAFETY: the caller's promise: the address of the function that the header declares so.
                        unsafe { std::mem::transmute::<*const c_void, $type>(address) }
                    },)*
                    $($later: {
                        let address = lookup(const { terminated(concat!(stringify!($later), "\0")) });
                        // SAFETY: as above; a null address is `None`.
                        unsafe { std::mem::transmute::<*const c_void, Option<$later_type>>(address) }
                    },)*
                })
            }
        }
    };
}
pub(crate) use functions;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_by_its_path_its_folder_or_the_loader() {
        let folder = std::env::temp_dir();
        assert_eq!(located("libx.so.1", None), "libx.so.1");
        assert_eq!(located("libx.so.1", Some("/somewhere/liby.so".into())), "/somewhere/liby.so");
        assert_eq!(located("libx.so.1", Some(folder.clone().into())), folder.join("libx.so.1"));
    }

    #[test]
    fn errors_name_what_was_needed_and_what_was_found() {
        let (old, new) = (Version::new(2, 28, 9), Version::new(2, 29, 0));
        let missing = MissingFunction { library: "NCCL", name: "ncclSignal", needed: new, found: old };
        assert_eq!(missing.to_string(), "ncclSignal needs NCCL 2.29.0, this is 2.28.9");
        let lost = MissingFunction { found: Version::new(2, 30, 1), ..missing }.to_string();
        assert_eq!(lost, "NCCL 2.30.1 has no ncclSignal, which 2.29.0 brought");
        let error = LoadError::Unsupported { library: "NCCL", found: old, needed: new }.to_string();
        assert_eq!(error, "NCCL 2.29.0 or a newer one of version 2 is needed, this is 2.28.9");
        let Err(error) = open("libnot-there.so.77", "CUDA_MEM_NOT_SET") else { panic!("it is there") };
        let source = error.to_string();
        assert!(source.contains("libnot-there.so.77") && source.contains("CUDA_MEM_NOT_SET"), "{source}");
    }
}
