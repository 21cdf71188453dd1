//! What the system says about memory: page sizes, what is mapped, what is locked.
//!
//! # Safety
//!
//! Relies on `sysconf` and `getrlimit` doing nothing but to answer.

#![allow(unsafe_code, reason = "asks the C library")]

use std::fs;
use std::io;
use std::ops::Range;
use std::sync::OnceLock;

use crate::error::{Error, Result};

/// What the kernel says in a file about this process. File names and thread names in it need not be UTF-8.
pub(super) fn read(path: &str) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The size of a page.
pub(super) fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: asks for a constant of the system.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).unwrap_or(4096)
    })
}

/// The addresses of `len` bytes.
pub(super) fn range_of(start: *const u8, len: usize) -> Result<Range<usize>> {
    let end = start.addr().checked_add(len).ok_or(Error::TooLarge { count: len, size: 1 })?;
    Ok(start.addr()..end)
}

/// The pages that `range` has bytes in.
pub(super) fn pages_around(range: &Range<usize>) -> Range<usize> {
    let mask = page_size().wrapping_sub(1);
    let end = range.end.saturating_add(mask) & !mask;
    range.start & !mask..end
}

/// The first addresses among the pages of `range` at which nothing is mapped, if there are any.
pub(super) fn hole_in(range: &Range<usize>) -> Option<Range<usize>> {
    first_hole(&read("/proc/self/maps").ok()?, &pages_around(range))
}

fn first_hole(maps: &str, range: &Range<usize>) -> Option<Range<usize>> {
    // Lines are in the order of addresses: all before `from` is mapped.
    let mut from = range.start;
    for mapping in maps.lines().filter_map(addresses) {
        if mapping.end <= from {
            continue;
        }
        if from < mapping.start {
            return (from < range.end).then(|| from..mapping.start.min(range.end));
        }
        from = mapping.end;
    }
    (from < range.end).then_some(from..range.end)
}

/// Whether all of `range` is mapped, for this process alone, to read and write.
pub(super) fn is_private_and_writable(range: &Range<usize>) -> bool {
    let Ok(maps) = read("/proc/self/maps") else { return false };
    let fitting: String = maps.split_inclusive('\n').filter(|line| has_private_writes(line)).collect();
    first_hole(&fitting, range).is_none()
}

fn has_private_writes(line: &str) -> bool {
    line.split(' ').nth(1).is_some_and(|access| access.starts_with("rw") && access.ends_with('p'))
}

/// The addresses that a line of `maps` or the first of an entry of `smaps` begins with.
pub(super) fn addresses(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let hex = |text| usize::from_str_radix(text, 16).ok();
    Some(hex(start)?..hex(end)?)
}

/// How much memory the process may lock, and how much it has locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Locks {
    pub(super) limit: u64,
    pub(super) locked: u64,
}

impl Locks {
    /// None if there is no limit, or the process is above it, or nothing is known.
    pub(super) fn of_the_process() -> Option<Self> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: one struct to write.
        if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } != 0
            || limit.rlim_cur == libc::RLIM_INFINITY
        {
            return None;
        }
        Self::from_status(&read("/proc/thread-self/status").ok()?, limit.rlim_cur)
    }

    fn from_status(status: &str, limit: u64) -> Option<Self> {
        /// `CAP_IPC_LOCK`, which no limit on locked memory holds for.
        const IPC_LOCK: u64 = 1 << 14;
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        if u64::from_str_radix(field("CapEff:")?, 16).ok()? & IPC_LOCK != 0 {
            return None;
        }
        let kibibytes = |name| field(name)?.strip_suffix(" kB")?.parse::<u64>().ok();
        let locked = kibibytes("VmLck:")?.checked_add(kibibytes("VmPin:")?)?.checked_mul(1024)?;
        Some(Self { limit, locked })
    }

    /// Whether so many bytes more are too many.
    pub(super) fn refuse(self, bytes: usize) -> bool {
        self.locked.saturating_add(bytes as u64) > self.limit
    }
}

/// How many bytes the system can give without swapping. None if it does not tell.
pub(super) fn available_memory() -> Option<usize> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// The sizes of huge pages that the system has, smallest first.
pub(super) fn huge_page_sizes() -> Vec<usize> {
    let Ok(folders) = fs::read_dir("/sys/kernel/mm/hugepages") else { return Vec::new() };
    let size = |name: &str| {
        name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<usize>().ok()?.checked_mul(1024)
    };
    let mut sizes: Vec<_> = folders.filter_map(|folder| size(folder.ok()?.file_name().to_str()?)).collect();
    sizes.sort_unstable();
    sizes
}

/// The size of a transparent huge page.
pub(super) fn transparent_page_size() -> usize {
    let read = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    let size = read.ok().and_then(|text| text.trim().parse::<usize>().ok());
    size.filter(|size| size.is_power_of_two()).unwrap_or(2 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "1000-3000 r--p 00000000 00:00 0\n3000-4000 rw-p 00000000 00:00 0 [heap]\n8000-9000 rw-s 0 0 0 /a b\n";

    #[test]
    fn the_first_hole_is_found() {
        for (range, hole) in [
            (0x1000..0x4000, None),
            (0x3000..0x4000, None),
            (0x0..0x2000, Some(0x0..0x1000)),
            (0x3000..0x9000, Some(0x4000..0x8000)),
            (0x5000..0x6000, Some(0x5000..0x6000)),
            (0x8000..0xb000, Some(0x9000..0xb000)),
            (0xa000..0xb000, Some(0xa000..0xb000)),
        ] {
            assert_eq!(first_hole(MAPS, &range), hole, "{range:x?}");
        }
        assert_eq!(first_hole("", &(0x1000..0x2000)), Some(0x1000..0x2000));
    }

    #[test]
    fn what_is_mapped_here_has_no_hole() {
        let bytes = vec![1u8; 100_000];
        assert_eq!(hole_in(&range_of(bytes.as_ptr(), bytes.len()).unwrap()), None);
        assert_eq!(hole_in(&(0..4096)), Some(0..4096));
    }

    #[test]
    fn a_mapped_file_whose_name_is_no_utf8_hides_nothing() {
        use std::os::unix::ffi::OsStrExt;
        let name = std::ffi::OsStr::from_bytes(b"cuda-mem-\xff-mapped");
        let path = std::env::temp_dir().join(name).with_extension(std::process::id().to_string());
        fs::write(&path, [1; 4096]).unwrap();
        let mapping = crate::host::FileMapping::read_only(&fs::File::open(&path).unwrap()).unwrap();
        fs::remove_file(&path).unwrap();
        let bytes = vec![1u8; 100_000];
        let range = range_of(bytes.as_ptr(), bytes.len()).unwrap();
        assert_eq!(hole_in(&(0..4096)), Some(0..4096));
        assert!(is_private_and_writable(&pages_around(&range)));
        drop(mapping);
    }

    #[test]
    fn only_private_writable_memory_is_taken_for_that() {
        let bytes = vec![1u8; 100_000];
        assert!(is_private_and_writable(&pages_around(&range_of(bytes.as_ptr(), bytes.len()).unwrap())));
        let constant = "of the program's text";
        assert!(!is_private_and_writable(&pages_around(&range_of(constant.as_ptr(), 1).unwrap())));
        assert!(has_private_writes("1000-2000 rw-p 0") && !has_private_writes("1000-2000 rw-s 0"));
    }

    #[test]
    fn the_lock_limit_is_blamed_only_where_the_numbers_say_so() {
        let status = |caps| format!("VmLck:\t     8 kB\nVmPin:\t     4 kB\nCapEff:\t{caps}\n");
        let locks = Locks::from_status(&status("0000000000000000"), 65536).unwrap();
        assert_eq!(locks, Locks { limit: 65536, locked: 12288 });
        assert!(!locks.refuse(65536 - 12288));
        assert!(locks.refuse(65536 - 12288 + 1));
        assert!(locks.refuse(usize::MAX));
        assert_eq!(Locks::from_status(&status("000001ffffffffff"), 65536), None, "privileged");
        assert_eq!(Locks::from_status("VmLck: 8 kB", 65536), None, "unknown");
    }

    #[test]
    fn pages_around_a_range() {
        let page = page_size();
        assert_eq!(pages_around(&(page + 1..2 * page + 1)), page..3 * page);
        assert_eq!(pages_around(&(page..2 * page)), page..2 * page);
    }
}
