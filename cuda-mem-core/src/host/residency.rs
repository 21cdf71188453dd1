//! Which pages of a mapping are there, and of what kind.
//!
//! # Safety
//!
//! Relies on the `PAGEMAP_SCAN` request writing at most as many regions as there is room for.

#![allow(unsafe_code, reason = "asks the kernel about pages")]

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

use super::numa::{self, NodeReport};
use super::system::{self, addresses};
use crate::error::{Error, Result};

/// The pages of a mapping, as they were found. Sizes are in bytes.
///
/// ```
/// use cuda_mem_core::host::{HostMapping, MappingOptions};
///
/// let mut memory = HostMapping::new(1 << 20, &MappingOptions::new())?;
/// assert_eq!(memory.residency()?.resident, 0); // nothing was touched yet
/// memory.as_mut_slice().fill(1);
/// let report = memory.residency()?;
/// assert_eq!((report.mapped, report.resident), (1 << 20, 1 << 20));
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageReport {
    /// Bytes of all its pages.
    pub mapped: usize,
    /// Bytes of those that are there.
    pub resident: usize,
    /// Bytes of those that are huge.
    pub huge: usize,
    /// On which NUMA nodes they lie; none if the system does not tell.
    pub nodes: Option<NodeReport>,
}

impl PageReport {
    /// About a range of whole pages. A kernel before Linux 6.7 counts whole mappings: of a larger one this is the most that the range can have.
    pub(super) fn of(pages: Range<usize>) -> Result<Self> {
        let (resident, huge) = if pages.is_empty() {
            (0, 0)
        } else {
            // Linux before 6.7 has no such request, and some containers hide the file.
            scan(&pages).or_else(|_| read_entry(&pages))?
        };
        let nodes = numa::nodes_of_pages(std::ptr::without_provenance(pages.start), pages.len()).ok();
        Ok(Self { mapped: pages.len(), resident, huge, nodes })
    }
}

/// `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_any_of_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of `linux/fs.h`.
#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

const PAGEMAP_SCAN: libc::Ioctl = libc::_IOWR::<Scan>(b'f' as u32, 16);
const PAGE_IS_PRESENT: u64 = 1 << 3;
/// The zero page, which costs no memory.
const PAGE_IS_PFNZERO: u64 = 1 << 5;
const PAGE_IS_HUGE: u64 = 1 << 6;

/// Bytes that are resident, and bytes of huge pages, in a range: one walk over its page tables and no other's.
fn scan(pages: &Range<usize>) -> Result<(usize, usize)> {
    let file = File::open("/proc/self/pagemap")
        .map_err(|error| Error::Io { call: "open of /proc/self/pagemap", source: error.into() })?;
    let mut regions = [Region::default(); 256];
    let (mut at, end) = (pages.start as u64, pages.end as u64);
    let (mut resident, mut huge) = (0_u64, 0_u64);
    while at < end {
        let mut request = Scan {
            size: size_of::<Scan>() as u64,
            start: at,
            end,
            regions: regions.as_mut_ptr().expose_provenance() as u64,
            regions_len: regions.len() as u64,
            category_inverted: PAGE_IS_PFNZERO,
            category_mask: PAGE_IS_PRESENT | PAGE_IS_PFNZERO,
            return_mask: PAGE_IS_PRESENT | PAGE_IS_HUGE,
            ..Scan::default()
        };
        // SAFETY: a request of the size that it says, with room for as many regions as it says.
        let found = unsafe { libc::ioctl(file.as_raw_fd(), PAGEMAP_SCAN, &raw mut request) };
        let found = usize::try_from(found).map_err(|_| Error::last_os("ioctl(PAGEMAP_SCAN)"))?;
        for region in regions.iter().take(found) {
            let bytes = region.end.saturating_sub(region.start);
            resident = resident.saturating_add(bytes);
            if region.categories & PAGE_IS_HUGE != 0 {
                huge = huge.saturating_add(bytes);
            }
        }
        if request.walk_end <= at {
            break;
        }
        at = request.walk_end;
    }
    Ok((usize::try_from(resident).unwrap_or(usize::MAX), usize::try_from(huge).unwrap_or(usize::MAX)))
}

/// The same from `/proc/self/smaps`, for which the kernel walks all memory of the process.
fn read_entry(pages: &Range<usize>) -> Result<(usize, usize)> {
    let smaps = system::read("/proc/self/smaps")
        .map_err(|error| Error::Io { call: "read of /proc/self/smaps", source: error.into() })?;
    Ok(sum(&smaps, pages))
}

fn sum(smaps: &str, pages: &Range<usize>) -> (usize, usize) {
    let (mut resident, mut huge) = (0_usize, 0_usize);
    let mut most = 0;
    for line in smaps.lines() {
        if let Some(entry) = addresses(line) {
            most = entry.end.min(pages.end).saturating_sub(entry.start.max(pages.start));
            continue;
        }
        let Some((name, value)) = line.split_once(':').filter(|_| most > 0) else { continue };
        let kibibytes = value.trim().strip_suffix(" kB").and_then(|value| value.parse::<usize>().ok());
        let bytes = kibibytes.unwrap_or(0).saturating_mul(1024).min(most);
        match name {
            "Rss" => resident = resident.saturating_add(bytes),
            "AnonHugePages" => huge = huge.saturating_add(bytes),
            // Not counted among the resident ones.
            "Private_Hugetlb" | "Shared_Hugetlb" => {
                resident = resident.saturating_add(bytes);
                huge = huge.saturating_add(bytes);
            }
            _ => {}
        }
    }
    (resident, huge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::system::page_size;
    use crate::host::{HostMapping, HostMemory, MappingOptions, Pages};

    /// Two huge pages and a bit.
    const LEN: usize = (4 << 20) + 12345;

    const SMAPS: &str = "\
1000-2000 rw-p 00000000 00:00 0
Rss:                   4 kB
AnonHugePages:         0 kB
2000-6000 rw-p 00000000 00:00 0   [heap]
Rss:                  12 kB
AnonHugePages:         8 kB
Private_Hugetlb:       4 kB
VmFlags: rd wr mr
6000-9000 rw-p 00000000 00:00 0
Rss:                  12 kB
";

    #[test]
    fn entries_inside_the_range_are_summed() {
        assert_eq!(sum(SMAPS, &(0x2000..0x6000)), (16 << 10, 12 << 10));
        assert_eq!(sum(SMAPS, &(0x1000..0x6000)), (20 << 10, 12 << 10));
        assert_eq!(sum(SMAPS, &(0x6000..0x7000)), (4 << 10, 0), "no more than it has pages");
    }

    #[test]
    fn both_ways_to_ask_agree() {
        for pages in [Pages::Default, Pages::Transparent] {
            let mut memory = HostMapping::new(LEN, &MappingOptions::new().pages(pages)).unwrap();
            let start = HostMemory::as_ptr(&memory).addr();
            let pages = start..start + LEN.next_multiple_of(page_size());
            assert_eq!(read_entry(&pages).unwrap(), (0, 0));
            memory.as_mut_slice()[100_000..200_000].fill(1);
            let (resident, huge) = read_entry(&pages).unwrap();
            assert!((100_000..LEN).contains(&resident) && huge <= resident, "{resident}, {huge}");
            // A kernel before Linux 6.7 knows one of the ways.
            if let Ok(scanned) = scan(&pages) {
                assert_eq!(scanned, (resident, huge));
            }
        }
    }
}
