//! Which library a table is of, and what the environment says of libraries.

use std::ffi::{OsString, c_void};
use std::sync::{Mutex, PoisonError};

/// The name of a driver library in this process. Two tables of one library have the same name, and no name is used twice.
///
/// ```
/// # fn check(one: &cuda_mem_sys::Table, other: &cuda_mem_sys::Table) {
/// if one.library() == other.library() {
///     println!("what one table allocates, the other may free");
/// }
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LibraryId(u64);

#[derive(Debug)]
struct Libraries {
    last: u64,
    /// By the address of a function of theirs.
    known: Vec<(usize, LibraryId)>,
}

static LIBRARIES: Mutex<Libraries> = Mutex::new(Libraries { last: 0, known: Vec::new() });

impl LibraryId {
    /// The library that has this function. A lookup that knows no function of that name (address 0) is a library by itself.
    pub(crate) fn of(address: usize) -> Self {
        let mut libraries = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
        let known = libraries.known.iter().rev().find(|(known, _)| *known == address && address != 0);
        if let Some((_, id)) = known {
            return *id;
        }
        libraries.last = libraries.last.saturating_add(1);
        let id = Self(libraries.last);
        if address != 0 {
            libraries.known.push((address, id));
        }
        id
    }

    /// Says that a library has ended which is no file: a simulator, whose functions serve another one later. Tables whose `cuInit` has
    /// this address are of another library from now on.
    ///
    /// # Safety
    ///
    /// What was made by a table of the ended library is not used any more, or every call that names it is refused.
    pub unsafe fn retire(cu_init: *const c_void) {
        let mut libraries = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
        libraries.known.retain(|(known, _)| *known != cu_init.addr());
    }
}

/// An environment variable that names a file to be loaded, or changes what a program does. None if it is empty, and in a program with raised
/// privileges (set-user-ID, file capabilities): its environment is that of somebody who has fewer.
///
/// Asks [`getauxval(AT_SECURE)`](https://man7.org/linux/man-pages/man3/getauxval.3.html), as the loader does before it obeys `LD_PRELOAD`.
///
/// ```
/// if let Some(path) = cuda_mem_sys::variable("CUDA_MEM_DRIVER") {
///     println!("the driver is {}", path.display());
/// }
/// ```
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    unless(has_raised_privileges(), || std::env::var_os(name)).filter(|value| !value.is_empty())
}

fn unless<T>(is_privileged: bool, read: impl FnOnce() -> Option<T>) -> Option<T> {
    if is_privileged { None } else { read() }
}

#[cfg(target_os = "linux")]
fn has_raised_privileges() -> bool {
    use std::ffi::c_ulong;

    const AT_SECURE: c_ulong = 23;

    unsafe extern "C" {
        fn getauxval(kind: c_ulong) -> c_ulong;
    }

    // SAFETY: any number may be asked for; nothing is written.
    unsafe { getauxval(AT_SECURE) != 0 }
}

#[cfg(not(target_os = "linux"))]
fn has_raised_privileges() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_is_one_library_until_it_is_retired() {
        let (one, other) = (LibraryId::of(0x1000), LibraryId::of(0x2000));
        assert_ne!(one, other);
        assert_eq!(LibraryId::of(0x1000), one);
        // SAFETY: no table was made of it.
        unsafe { LibraryId::retire(std::ptr::without_provenance(0x1000)) };
        let next = LibraryId::of(0x1000);
        assert!(next != one && next != other);
        assert_ne!(LibraryId::of(0), LibraryId::of(0));
    }

    #[test]
    fn a_program_with_raised_privileges_reads_no_variable() {
        let asked = std::cell::Cell::new(false);
        let read = || {
            asked.set(true);
            Some(OsString::from("/somebody/else.so"))
        };
        assert_eq!(unless(true, read), None);
        assert!(!asked.get());
        assert!(unless(false, read).is_some() && asked.get());
        assert!(!has_raised_privileges());
    }
}
