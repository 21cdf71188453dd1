//! NUMA nodes: which there are, and on which of them pages lie.
//!
//! # Safety
//!
//! Relies on `mbind` and `move_pages` as they are used here moving no page: the first sets where pages of a range will come
//! from, the second, without target nodes, only reports.

#![allow(unsafe_code, reason = "makes system calls")]

use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::fs;
use std::ops::Range;
use std::ptr;

use super::system::{self, page_size};
use crate::error::{Error, Result};

/// How many pages of a range are looked at: enough to see a wrong placement, a millisecond to ask for.
const SAMPLE: usize = 4096;

/// The nodes of this system that are online, in ascending order. A kernel without NUMA has node 0.
///
/// ```
/// let nodes = cuda_mem_core::host::numa::nodes()?;
/// assert!(!nodes.is_empty());
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Io`] if the list cannot be read.
pub fn nodes() -> Result<Vec<u32>> {
    match fs::read_to_string("/sys/devices/system/node/online") {
        Ok(list) => Ok(parse(&list)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(vec![0]),
        Err(error) => {
            Err(Error::Io { call: "read of /sys/devices/system/node/online", source: error.into() })
        }
    }
}

/// Numbers as the kernel lists them: `0-2,5`.
fn parse(list: &str) -> Vec<u32> {
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let span = |text: &str| match text.split_once('-') {
        Some((first, last)) => Some(number(first)?..=number(last)?),
        None => number(text).map(|only| only..=only),
    };
    list.split(',').filter_map(span).flatten().collect()
}

/// On which nodes pages lie.
///
/// ```
/// use cuda_mem_core::host::{HostMapping, HostMemory, MappingOptions, numa};
///
/// let memory = HostMapping::new(8 * 4096, &MappingOptions::new())?;
/// if let Ok(report) = numa::nodes_of_pages(memory.as_ptr(), memory.byte_len()) {
///     assert!(report.complete && report.pages.is_empty()); // none was touched yet: they are on no node
/// }
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeReport {
    /// Nodes, in ascending order, and how many of the pages that were looked at lie on each.
    pub pages: Vec<(u32, usize)>,
    /// How many pages were looked at. Those that are on no node are not there yet.
    pub asked: usize,
    /// Whether these were all, and not a sample of evenly spaced ones.
    pub complete: bool,
}

/// On which nodes the pages of `len` bytes from `start` lie. Of more than 4096 pages, 4096 evenly spaced ones are looked at.
///
/// Nothing is read or moved; addresses without pages count as such.
///
/// Wraps [`move_pages`](https://man7.org/linux/man-pages/man2/move_pages.2.html) without target nodes.
///
/// # Errors
///
/// [`Error::TooLarge`] if the range leaves the address space, [`Error::Io`] if the kernel has no NUMA or a container forbids
/// the call.
pub fn nodes_of_pages(start: *const u8, len: usize) -> Result<NodeReport> {
    let pages = system::pages_around(&system::range_of(start, len)?);
    let addresses = sample(&pages, page_size(), SAMPLE);
    let complete = addresses.len() == pages.len().div_ceil(page_size());
    let mut report = NodeReport { pages: Vec::new(), asked: addresses.len(), complete };
    let mut found = vec![-1; addresses.len()];
    query(&addresses, &mut found)?;
    for node in found.into_iter().filter_map(|status| u32::try_from(status).ok()) {
        match report.pages.binary_search_by_key(&node, |&(known, _)| known) {
            Ok(index) => report.pages[index].1 = report.pages[index].1.saturating_add(1),
            Err(index) => report.pages.insert(index, (node, 1)),
        }
    }
    Ok(report)
}

/// At most `most` pages of a range, evenly spaced from its first.
fn sample(range: &Range<usize>, page: usize, most: usize) -> Vec<*const c_void> {
    let pages = range.len().div_ceil(page.max(1));
    let step = pages.div_ceil(most.max(1)).max(1).saturating_mul(page).max(1);
    range.clone().step_by(step).map(ptr::without_provenance).collect()
}

/// The node of each page, or a negative error number.
fn query(addresses: &[*const c_void], found: &mut [c_int]) -> Result<()> {
    let count = addresses.len().min(found.len());
    let (nodes, flags): (*const c_int, c_int) = (ptr::null(), 0);
    // SAFETY: `count` addresses to read and as many results to write; no nodes, so nothing is moved.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            count as c_ulong,
            addresses.as_ptr(),
            nodes,
            found.as_mut_ptr(),
            flags,
        )
    };
    if result < 0 { Err(Error::last_os("move_pages")) } else { Ok(()) }
}

/// Refuses a node that does not exist.
pub(crate) fn expect(node: u32) -> Result<()> {
    let nodes = nodes()?;
    if nodes.contains(&node) { Ok(()) } else { Err(Error::NoSuchNumaNode { node, nodes }) }
}

/// Has all pages of a range that are not there yet come from one node.
pub(super) fn bind(pages: Range<usize>, node: u32) -> Result<()> {
    const BITS: usize = c_ulong::BITS as usize;
    let node = usize::try_from(node).unwrap_or(usize::MAX);
    let mut mask = vec![0 as c_ulong; node.div_euclid(BITS).saturating_add(1)];
    if let Some(word) = mask.last_mut() {
        *word = 1 << node.rem_euclid(BITS);
    }
    // The kernel takes one bit less than it is told of.
    let bits = mask.len().saturating_mul(BITS).saturating_add(1);
    let (start, mode, flags) = (pages.start as c_ulong, c_long::from(libc::MPOL_BIND), 0);
    // SAFETY: as many bits to read as are said; the call changes where the range's pages come from, not what they hold.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            start,
            pages.len() as c_ulong,
            mode,
            mask.as_ptr(),
            bits as c_ulong,
            flags,
        )
    };
    if result < 0 { Err(Error::last_os("mbind")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_understood() {
        assert_eq!(parse("0\n"), [0]);
        assert_eq!(parse("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(parse("\n"), []);
    }

    #[test]
    fn a_node_that_does_not_exist_is_an_error_that_lists_those_that_do() {
        let error = expect(4_000_000_000).unwrap_err();
        assert!(matches!(&error, Error::NoSuchNumaNode { nodes: known, .. } if *known == nodes().unwrap()));
        assert!(error.to_string().contains("4000000000"), "{error}");
        expect(nodes().unwrap()[0]).unwrap();
    }

    #[test]
    fn samples_are_evenly_spaced_and_few() {
        let all = |range: Range<usize>, most| {
            sample(&range, 10, most).into_iter().map(|page| page.addr()).collect::<Vec<_>>()
        };
        assert_eq!(all(100..140, 4), [100, 110, 120, 130]);
        assert_eq!(all(100..150, 4), [100, 120, 140]);
        assert_eq!(all(100..100, 4), []);
    }
}
