//! What the threads do: move bytes between a slot and the host's side of a copy.
//!
//! # Safety
//!
//! Relies on [`super::board`] for who may touch which bytes of a slot, and on whoever makes a [`Host`] for the memory that it
//! names: that stays borrowed until no load with it is posted any more.

#![allow(unsafe_code, reason = "copies between addresses")]

use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;

use super::board::Failure;
use super::past_cache;
use super::tuning::PAST_CACHE;
use crate::driver::Handle;

/// Bytes of host memory, which are read or written by whoever answers for them.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostBytes {
    address: Handle<u8>,
    len: usize,
}

impl HostBytes {
    pub(super) fn new(address: *mut u8, len: usize) -> Self {
        Self { address: Handle::new(address), len }
    }

    /// Where its byte `place` is. Not beyond the end.
    pub(super) fn address(&self, place: usize) -> *mut u8 {
        self.address.raw().wrapping_add(place.min(self.len))
    }
}

/// The host's side of a copy.
#[derive(Debug)]
pub(super) enum Host {
    /// Memory to read.
    Source(HostBytes),
    /// Memory to write.
    Target(HostBytes),
    /// A file to read, from this offset on.
    File { descriptor: RawFd, offset: u64 },
}

/// One load: a slot, and which of the host's bytes belong into it.
#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) host: Arc<Host>,
    /// Where the slot begins.
    pub(super) slot: Handle<u8>,
    /// The place of the slot's first byte in the whole copy.
    pub(super) start: usize,
}

impl Task {
    /// Moves the bytes of a part of the slot.
    ///
    /// # Safety
    ///
    /// The part must lie in the slot, its bytes must have been given to the caller by the board, and the host's memory or file
    /// must be there still.
    pub(super) unsafe fn run(&self, part: Range<usize>) -> Result<(), Failure> {
        let slot = self.slot.raw().wrapping_add(part.start);
        let place = self.start.saturating_add(part.start);
        match &*self.host {
            Host::Source(bytes) => {
                // SAFETY: bytes of a borrowed source, and bytes of the slot that are this part's alone.
                unsafe { copy(bytes.address(place), slot, part.len()) };
                Ok(())
            }
            Host::Target(bytes) => {
                let copy = if bytes.len < PAST_CACHE { copy } else { past_cache::copy };
                // SAFETY: bytes of the slot that are this part's alone, and bytes of a mutably borrowed target, no byte of
                // which belongs to two parts.
                unsafe { copy(slot, bytes.address(place), part.len()) };
                Ok(())
            }
            Host::File { descriptor, offset } => {
                let offset = offset.saturating_add(place as u64);
                // SAFETY: an open file, and bytes of the slot that are this part's alone.
                let read = unsafe { read(*descriptor, offset, slot, part.len()) };
                read.map_err(|(done, source)| Failure { at: place.saturating_add(done), source })
            }
        }
    }
}

/// Copies as the C library does. The slots are meant to stay in the cache, so stores go through it.
///
/// # Safety
///
/// As [`ptr::copy_nonoverlapping`].
unsafe fn copy(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the caller's promise; the ring is no part of any source or target.
    unsafe { ptr::copy_nonoverlapping(source, target, len) };
}

/// Reads `len` bytes of a file; after an error also says how many there are.
///
/// # Safety
///
/// `len` bytes must be writable at `target`.
pub(super) unsafe fn read(
    descriptor: RawFd,
    offset: u64,
    target: *mut u8,
    len: usize,
) -> Result<(), (usize, io::Error)> {
    let mut done = 0;
    while done < len {
        let (place, left) = (target.wrapping_add(done), len.saturating_sub(done));
        let at = offset.checked_add(done as u64).and_then(|at| libc::off64_t::try_from(at).ok());
        let at = at.ok_or_else(|| (done, io::ErrorKind::InvalidInput.into()))?;
        // SAFETY: `left` writable bytes. A descriptor that is none is an error.
        let read = unsafe { libc::pread64(descriptor, place.cast(), left, at) };
        match usize::try_from(read) {
            Ok(0) => return Err((done, io::ErrorKind::UnexpectedEof.into())),
            Ok(read) => done = done.saturating_add(read),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err((done, error));
                }
            }
        }
    }
    Ok(())
}
