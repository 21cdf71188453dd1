//! Copies whose target is not looked at soon: written past the cache, so that no line of it is read before it is overwritten.
//!
//! # Safety
//!
//! Relies on SSE2 being part of every x86-64 processor, and on a fence behind non-temporal stores: without one they may become
//! visible after what the thread does next.

#![allow(unsafe_code, reason = "copies between addresses")]

use std::ptr;

/// Copies like [`ptr::copy_nonoverlapping`], past the cache where the processor has a way to.
///
/// # Safety
///
/// As there.
pub(super) unsafe fn copy(source: *const u8, target: *mut u8, len: usize) {
    let head = target.align_offset(LINE).min(len);
    let whole = len.saturating_sub(head) / LINE;
    // SAFETY: the caller's promise, of the bytes before the first whole line.
    unsafe { ptr::copy_nonoverlapping(source, target, head) };
    // SAFETY: the caller's promise; so many whole lines of the target begin there.
    unsafe { lines(source.wrapping_add(head), target.wrapping_add(head), whole) };
    let done = head.saturating_add(whole.saturating_mul(LINE));
    let (source, target) = (source.wrapping_add(done), target.wrapping_add(done));
    // SAFETY: the caller's promise, of the bytes behind the last whole line.
    unsafe { ptr::copy_nonoverlapping(source, target, len.saturating_sub(done)) };
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// # Safety
///
/// `count` lines must be readable at `source` and writable at `target`, which begins a line; the two do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn lines(source: *const u8, target: *mut u8, count: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    let source = source.cast::<__m128i>();
    let target = target.cast::<__m128i>();
    for index in 0..count.saturating_mul(LINE / size_of::<__m128i>()) {
        // SAFETY: the caller's promise; the load takes any alignment.
        let value = unsafe { _mm_loadu_si128(source.wrapping_add(index)) };
        // SAFETY: the caller's promise; a line is aligned to more than the 16 bytes that the store needs.
        unsafe { _mm_stream_si128(target.wrapping_add(index), value) };
    }
    // What the thread does next, giving the bytes to another among it, comes after the stores.
    // SAFETY: SSE is part of every x86-64 processor.
    unsafe { _mm_sfence() };
}

/// # Safety
///
/// As above.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn lines(source: *const u8, target: *mut u8, count: usize) {
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(source, target, count.saturating_mul(LINE)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_arrives_and_nothing_beside_it() {
        let source: Vec<u8> = (0..700u32).map(|at| ((at * 7) >> 2) as u8).collect();
        for from in [0, 1, 15, 64] {
            for to in [0, 3, 16, 63, 64] {
                for len in [0, 1, 15, 63, 64, 65, 127, 128, 500] {
                    let mut target = vec![0xEE; 640];
                    // SAFETY: both lie in their vectors.
                    unsafe { copy(source[from..].as_ptr(), target[to..].as_mut_ptr(), len) };
                    assert_eq!(target[to..to + len], source[from..from + len], "{from} {to} {len}");
                    assert!(target[..to].iter().chain(&target[to + len..]).all(|&byte| byte == 0xEE));
                }
            }
        }
    }
}
