//! Moving bytes between places that hold them in different ways.
//!
//! # Safety
//!
//! Places come out of the table of blocks, for ranges that it checked. Bytes there may be changed by others at any time
//! (by the program, by another process, by other streams), so they are only copied, through raw pointers, and no
//! reference to them is ever made.

use std::ptr;

use super::os;
use cuda_mem_sys::CUresult;

/// Where the bytes of a checked range are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the simulator's own memory: always there.
    Own(*mut u8),
    /// In memory that the program may take away at any time: reached through the kernel, which checks.
    Program(usize),
    /// Nowhere: the simulator runs without data.
    Nowhere,
}

// SAFETY: a place is an address; what may be done with it from which thread is the business of the functions below.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

/// What is copied at a time where bytes take a detour.
const DETOUR: usize = 256 << 10;

impl Place {
    /// The place `offset` bytes further on.
    pub(crate) fn offset(self, offset: usize) -> Self {
        match self {
            Self::Own(at) => Self::Own(at.wrapping_add(offset)),
            Self::Program(at) => Self::Program(at.wrapping_add(offset)),
            Self::Nowhere => Self::Nowhere,
        }
    }
}

/// Copies `len` bytes; memory that the program took away meanwhile is error 700, as an access of the device to it is.
///
/// # Safety
///
/// Own places hold at least `len` bytes.
pub(crate) unsafe fn copy(to: Place, from: Place, len: usize) -> Result<(), CUresult> {
    let result = match (to, from) {
        (Place::Nowhere, _) | (_, Place::Nowhere) => Ok(()),
        (Place::Own(to), Place::Own(from)) => {
            // SAFETY: the caller's promise; ranges that overlap are copied as if through a buffer.
            unsafe { ptr::copy(from, to, len) };
            Ok(())
        }
        // SAFETY: the caller's promise for the place that is the simulator's own.
        (Place::Own(to), Place::Program(from)) => unsafe { os::read_process(from, to, len) },
        // SAFETY: as above.
        (Place::Program(to), Place::Own(from)) => unsafe { os::write_process(to, from, len) },
        (Place::Program(_), Place::Program(_)) => {
            let mut detour = vec![0_u8; DETOUR.min(len)];
            let mut done = 0;
            while done < len {
                let size = DETOUR.min(len - done);
                let middle = Place::Own(detour.as_mut_ptr());
                // SAFETY: the buffer holds at least `size` bytes.
                unsafe { copy(middle, from.offset(done), size) }?;
                // SAFETY: as above.
                unsafe { copy(to.offset(done), middle, size) }?;
                done += size;
            }
            Ok(())
        }
    };
    result.map_err(|_| CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)
}

/// Fills `len` bytes with a pattern of one, two or four bytes that repeats from the start.
///
/// # Safety
///
/// As for [`copy`].
pub(crate) unsafe fn fill(to: Place, pattern: &[u8], len: usize) -> Result<(), CUresult> {
    if let (Place::Own(to), &[byte]) = (to, pattern) {
        // SAFETY: the caller's promise.
        unsafe { ptr::write_bytes(to, byte, len) };
        return Ok(());
    }
    // Patterns divide the detour, so each piece begins with the pattern's first byte.
    let piece: Vec<u8> = pattern.iter().copied().cycle().take(DETOUR.min(len)).collect();
    let mut done = 0;
    while done < len {
        let size = piece.len().min(len - done);
        let from = Place::Own(piece.as_ptr().cast_mut());
        // SAFETY: the piece holds `size` bytes and is only read; the caller's promise for the rest.
        unsafe { copy(to.offset(done), from, size) }?;
        done += size;
    }
    Ok(())
}
