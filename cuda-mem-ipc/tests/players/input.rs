//! Bytes as what to do.

use super::SEGMENT;
use crate::shared::wire::{LINES, RING_ENTRIES};

/// What is left of an input.
pub(super) struct Input<'i>(&'i [u8]);

/// Numbers at which something ends.
const ENDS: [u64; 14] = [
    0,
    1,
    RING_ENTRIES - 1,
    RING_ENTRIES,
    RING_ENTRIES + 1,
    SEGMENT as u64 - 16,
    SEGMENT as u64,
    (LINES as u64) << 32,
    1 << 32,
    // Poison begins behind it.
    1 << 62,
    (1 << 62) + 1,
    isize::MAX as u64,
    1 << 63,
    u64::MAX,
];

impl<'i> Input<'i> {
    pub(super) fn new(bytes: &'i [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    pub(super) fn bytes(&mut self, len: usize) -> Option<&'i [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    /// What a word becomes: seldom any number, for hardly one of these is believed.
    pub(super) fn number(&mut self, before: u64) -> Option<u64> {
        let how = self.byte()?;
        if how % 4 == 3 {
            return Some(u64::from_le_bytes(*self.bytes(8)?.first_chunk()?));
        }
        let byte = self.byte()?;
        Some(match how % 4 {
            0 => byte.into(),
            1 => before.wrapping_add_signed(byte.cast_signed().into()),
            _ => ENDS[usize::from(byte) % ENDS.len()],
        })
    }
}
