//! Memory of the process's own, straight from the system.
//!
//! # Safety
//!
//! Relies on `mmap` returning memory that stays mapped until `munmap`, that is zero, and that nobody else knows.

#![allow(unsafe_code, reason = "maps memory and hands out slices over it")]

use std::ops::Range;
use std::ptr;

use super::mapping::Mapped;
use super::memory::{HostElements, HostMemory};
use super::residency::PageReport;
use super::system::{huge_page_sizes, page_size, transparent_page_size};
use super::{numa, populate};
use crate::driver::Handle;
use crate::error::{Error, Result};

/// The pages that a [`HostMapping`] is to be made of. [`HostMapping`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Pages {
    /// What the system gives.
    #[default]
    Default,
    /// Huge pages, if the system gives them for the asking: it may be set never to, or have none in one piece. What became of
    /// it, [`HostMapping::residency`] tells.
    Transparent,
    /// Pages of this size from the system's reserve (`MAP_HUGETLB`).
    HugeTlb {
        /// Bytes of a page.
        size: usize,
    },
}

/// How a [`HostMapping`] is made. Without any setter: of the system's pages, wherever it puts them. [`HostMapping`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub struct MappingOptions {
    pages: Pages,
    numa_node: Option<u32>,
}

impl MappingOptions {
    /// The system's pages, wherever it puts them.
    pub fn new() -> Self {
        Self::default()
    }

    /// The pages that it is made of.
    pub fn pages(mut self, pages: Pages) -> Self {
        self.pages = pages;
        self
    }

    /// The NUMA node that all pages come from.
    pub fn numa_node(mut self, node: u32) -> Self {
        self.numa_node = Some(node);
        self
    }
}

/// Zeroed memory of exactly the length that was asked for, to be registered. Its pages appear when they are first touched,
/// or when [`Registered::with_options`](super::Registered::with_options) brings them in.
///
/// ```
/// use cuda_mem_core::host::{HostMapping, HostMemory, MappingOptions, Pages};
///
/// let mut memory = HostMapping::new(5_000_000, &MappingOptions::new().pages(Pages::Transparent))?;
/// memory.as_mut_slice()[0] = 1;
/// assert_eq!(memory.byte_len(), 5_000_000);
/// assert!(memory.residency()?.resident > 0);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
pub struct HostMapping {
    address: Handle<u8>,
    len: usize,
    page_size: usize,
    /// What was mapped: the pages around the bytes, and addresses without memory about them.
    _mapped: Mapped,
}

impl HostMapping {
    /// Maps `len` bytes, which are zero. They begin with a page, a huge one if it was asked for. No bytes are no mapping.
    ///
    /// Pages of a reserve that are bound to a NUMA node are brought in at once, because a node without free ones would answer
    /// a later touch with SIGBUS. Linux before 5.14 cannot do that: there the node must have enough of them.
    ///
    /// Wraps [`mmap`](https://man7.org/linux/man-pages/man2/mmap.2.html),
    /// [`madvise`](https://man7.org/linux/man-pages/man2/madvise.2.html) with `MADV_HUGEPAGE`, and
    /// [`mbind`](https://man7.org/linux/man-pages/man2/mbind.2.html) with `MPOL_BIND`. Makes no driver call.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`], [`Error::NoSuchNumaNode`], [`Error::NoSuchPageSize`], [`Error::NotWholePages`] for a length that is no
    /// multiple of the pages of a reserve, [`Error::NoPage`], and [`Error::Io`] if the system has no memory or refuses to
    /// bind it (containers may forbid `mbind`).
    pub fn new(len: usize, options: &MappingOptions) -> Result<Self> {
        let too_large = Error::TooLarge { count: len, size: 1 };
        if isize::try_from(len).is_err() {
            return Err(too_large);
        }
        if let Some(node) = options.numa_node {
            numa::expect(node)?;
        }
        let page_size = match options.pages {
            Pages::Default | Pages::Transparent => page_size(),
            Pages::HugeTlb { size } => reserved_page_size(size, len)?,
        };
        if len == 0 {
            // A slice of no bytes has an address too.
            let (address, mapped) = (Handle::new(ptr::without_provenance_mut(page_size)), Mapped::NONE);
            return Ok(Self { address, len, page_size, _mapped: mapped });
        }
        let pages = len.checked_next_multiple_of(page_size).ok_or(too_large)?;
        let (address, mapped) = match options.pages {
            Pages::HugeTlb { size } => of_reserve(pages, size)?,
            Pages::Default => aligned(pages, page_size)?,
            Pages::Transparent => aligned(pages, transparent_page_size())?,
        };
        if options.pages == Pages::Transparent {
            // SAFETY: pages of the mapping made above; the advice changes no byte. A kernel without huge pages refuses it,
            // which is no error: the report tells.
            unsafe { libc::madvise(address.raw().cast(), pages, libc::MADV_HUGEPAGE) };
        }
        let mapping = Self { address, len, page_size, _mapped: mapped };
        if let Some(node) = options.numa_node {
            numa::bind(mapping.pages(), node)?;
            if matches!(options.pages, Pages::HugeTlb { .. }) {
                populate::advise(&mapping.pages(), libc::MADV_POPULATE_WRITE, &mapping.pages())?;
            }
        }
        Ok(mapping)
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped and zeroed in `new`, at most `isize::MAX` bytes, borrowed with `self`. Not null, and aligned, if there are none.
        unsafe { std::slice::from_raw_parts(self.address.raw(), self.len) }
    }

    /// The bytes, to change.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.address.raw(), self.len) }
    }

    /// Which of its pages are there, which are huge, and on which NUMA nodes they lie: found, not assumed.
    ///
    /// Wraps [`PAGEMAP_SCAN`](https://man7.org/linux/man-pages/man2/PAGEMAP_SCAN.2const.html), or reads `/proc/self/smaps` where
    /// the kernel has no such request, and [`move_pages`](https://man7.org/linux/man-pages/man2/move_pages.2.html). Makes no
    /// driver call.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the system does not tell.
    pub fn residency(&self) -> Result<PageReport> {
        PageReport::of(self.pages())
    }

    /// The addresses of its pages.
    fn pages(&self) -> Range<usize> {
        let start = self.address.raw().addr();
        start..start.saturating_add(self.len.next_multiple_of(self.page_size))
    }
}

/// The size of the pages of a reserve, if there are any and `len` is a multiple of it.
fn reserved_page_size(size: usize, len: usize) -> Result<usize> {
    let sizes = huge_page_sizes();
    if !sizes.contains(&size) {
        return Err(Error::NoSuchPageSize { size, sizes });
    }
    if !len.is_multiple_of(size) {
        return Err(Error::NotWholePages { len, page_size: size });
    }
    Ok(size)
}

/// `len` bytes of pages whose start is a multiple of `align`, and a page without memory on either side at least: the
/// system then joins them with no neighbour, so what it says of the mapping is about these pages alone.
fn aligned(len: usize, align: usize) -> Result<(Handle<u8>, Mapped)> {
    let page = page_size();
    let room = len.checked_add(align).and_then(|room| room.checked_add(page));
    let room = room.ok_or(Error::TooLarge { count: len, size: 1 })?;
    let mapped = Mapped::anonymous(room, libc::PROT_NONE, 0)?;
    let start = mapped.address.raw();
    let skip = start.addr().wrapping_add(page).next_multiple_of(align).wrapping_sub(start.addr());
    let address = start.wrapping_add(skip);
    // SAFETY: pages inside the mapping made above, which nobody else knows: at most a page and `align` less a page are
    // skipped.
    if unsafe { libc::mprotect(address.cast(), len, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
        return Err(Error::last_os("mprotect"));
    }
    Ok((Handle::new(address), mapped))
}

/// `len` bytes of huge pages, which the system aligns by itself.
fn of_reserve(len: usize, size: usize) -> Result<(Handle<u8>, Mapped)> {
    let size = libc::c_int::try_from(size.trailing_zeros()).unwrap_or(0) << libc::MAP_HUGE_SHIFT;
    let mapped = Mapped::anonymous(len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_HUGETLB | size)?;
    Ok((mapped.address, mapped))
}

// SAFETY: the pages stay mapped until they are dropped, at one address. A slice of them takes a borrow of the owner, and
// whoever has `&HostMapping` cannot have a device write them: that takes `HostElements` and `&mut`.
unsafe impl HostMemory for HostMapping {
    fn as_ptr(&self) -> *const u8 {
        self.address.raw()
    }

    fn byte_len(&self) -> usize {
        self.len
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        self.page_size
    }

    fn touch(&mut self) -> Option<*mut u8> {
        Some(self.address.raw())
    }
}

// SAFETY: zeroed bytes that the mapping owns alone.
unsafe impl HostElements for HostMapping {
    type Element = u8;

    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.address.raw()
    }
}

impl_debug!(HostMapping, |it| address: it.address.raw(), len: it.len, page_size: it.page_size);
