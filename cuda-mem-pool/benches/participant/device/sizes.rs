//! The sizes that a thread allocates in turn, as `ci/peers/patterns.h` has them.

use super::engines::Mt19937;

/// How many sizes there are before they begin again.
pub(crate) const SIZES: usize = 1024;

/// Of one thread: always 512 bytes (0), up to 512 KiB (1) or up to 32 MiB (2), evenly spread over their logarithms.
pub(crate) fn of_thread(index: u32, pattern: u32) -> Vec<usize> {
    let octaves = match pattern {
        0 => 0.0,
        1 => 10.0,
        _ => 16.0,
    };
    let mut engine = Mt19937::new(index);
    (0..SIZES).map(|_| (512.0 * (engine.canonical() * octaves).exp2()) as usize).collect()
}
