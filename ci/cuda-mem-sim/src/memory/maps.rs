//! Which files the pages of the process come from.
//!
//! # Safety
//!
//! One system call fills in a struct, which is read only if the call succeeded.

use std::ffi::CString;
use std::fs;

/// File systems whose files are memory and nothing else.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x9584_58f6];

/// Whether a range has shared, writable pages of a file that the system writes back to a disk.
///
/// A kernel refuses to pin such pages for writing for any length of time, because it could not tell when a device has
/// changed them.
pub(super) fn has_written_back_file(start: u64, end: u64) -> bool {
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return false };
    maps.lines().filter_map(Mapping::parse).any(|mapping| {
        mapping.start < end && start < mapping.end && mapping.is_shared && !is_in_memory(mapping.path)
    })
}

/// One line of `/proc/self/maps`.
struct Mapping<'a> {
    start: u64,
    end: u64,
    is_shared: bool,
    path: &'a str,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let is_shared = fields.next()?.ends_with('s');
        let path = fields.nth(3).unwrap_or("").trim();
        let hex = |text| u64::from_str_radix(text, 16).ok();
        Some(Self { start: hex(start)?, end: hex(end)?, is_shared, path })
    }
}

/// Whether a file lies in memory. One that has lost its name is taken for a file in memory, as most of those are.
fn is_in_memory(path: &str) -> bool {
    if !path.starts_with('/') || path.ends_with(" (deleted)") {
        return true;
    }
    let Ok(path) = CString::new(path) else { return true };
    let mut about = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: a terminated path, and room for the result.
    if unsafe { libc::statfs(path.as_ptr(), about.as_mut_ptr()) } != 0 {
        return true;
    }
    // SAFETY: the call succeeded, so it has filled the result in.
    let about = unsafe { about.assume_init() };
    IN_MEMORY.contains(&about.f_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_map_are_understood() {
        let line = "7f10-7f20 rw-s 00001000 08:01 1234                       /a file with spaces";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!((mapping.start, mapping.end, mapping.is_shared), (0x7f10, 0x7f20, true));
        assert_eq!(mapping.path, "/a file with spaces");
        assert!(!Mapping::parse("1000-2000 rw-p 00000000 00:00 0 ").unwrap().is_shared);
    }
}
