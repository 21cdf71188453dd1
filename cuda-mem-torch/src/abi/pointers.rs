//! What C passes by pointer.
//!
//! # Safety
//!
//! Relies on the callers of the functions for C, who promise that what is not null points to what the header says.

#![allow(unsafe_code, reason = "reads and writes what C points to")]

use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::error::Failure;

/// Writes a result.
///
/// # Safety
///
/// Not null, it is a place for a `T`.
pub(super) unsafe fn write<T>(to: *mut T, value: T, what: &str) -> Result<(), Failure> {
    expect(to, what)?;
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// As [`write`], unless it is null.
///
/// # Safety
///
/// As there.
pub(super) unsafe fn write_if<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller's promise.
        unsafe { to.write(value) };
    }
}

/// Refuses null.
pub(super) fn expect<T>(at: *const T, what: &str) -> Result<(), Failure> {
    if at.is_null() { Err(missing(what)) } else { Ok(()) }
}

/// A function that is passed.
pub(super) fn given<F>(function: Option<F>, what: &str) -> Result<F, Failure> {
    function.ok_or_else(|| missing(what))
}

/// What an argument points to.
///
/// # Safety
///
/// Not null, it is a `T` that stays as it is while the result is used.
pub(super) unsafe fn read<'a, T>(from: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { from.as_ref() }.ok_or_else(|| missing(what))
}

/// Text of an argument.
///
/// # Safety
///
/// Not null, it is text that ends with a 0 and stays as it is while the result is used.
pub(super) unsafe fn text<'a>(from: *const c_char, what: &str) -> Result<&'a str, Failure> {
    expect(from, what)?;
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(from) };
    text.to_str().map_err(|_| Failure::argument(format!("{what} is not UTF-8")))
}

/// What `read` makes of a pointer that may be null.
pub(super) fn optional<R>(
    from: *const c_char,
    read: impl FnOnce() -> Result<R, Failure>,
) -> Result<Option<R>, Failure> {
    if from.is_null() { Ok(None) } else { read().map(Some) }
}

/// The path of a file, which is bytes and not always UTF-8.
///
/// # Safety
///
/// As [`text`].
pub(super) unsafe fn path<'a>(from: *const c_char, what: &str) -> Result<&'a Path, Failure> {
    expect(from, what)?;
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(from) }.to_bytes();
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// Several values.
///
/// # Safety
///
/// Not null, it points to `count` values that stay as they are while the result is used.
pub(super) unsafe fn list<'a, T>(from: *const T, count: usize, what: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    expect(from, what)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(from, count) })
}

/// Text for C, which ends at a 0: each in it becomes a space.
pub(super) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

fn missing(what: &str) -> Failure {
    Failure::argument(format!("{what} is null"))
}

/// An address of the device as C has it.
pub(super) fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}

/// What is passed to a function of C's first, and goes with it to any thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Data(*mut c_void);

impl Data {
    pub(super) fn new(data: *mut c_void) -> Self {
        Self(data)
    }

    pub(super) fn raw(&self) -> *mut c_void {
        self.0
    }
}

// SAFETY: it is never dereferenced here; the caller that passed it promises that its functions may be called by any thread.
unsafe impl Send for Data {}
// SAFETY: as above.
unsafe impl Sync for Data {}
