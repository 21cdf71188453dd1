//! A file's pages in memory, and mapped addresses of any kind.
//!
//! # Safety
//!
//! Relies on `mmap` returning memory that stays mapped until `munmap`. What a page holds may change, and the page may vanish
//! when the file shrinks (the next touch raises SIGBUS), so no reference into a file's mapping is made here and the host never
//! touches it: the kernel's own copies, and devices, report an error instead.

#![allow(unsafe_code, reason = "maps files")]

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;

use super::memory::HostMemory;
use crate::driver::Handle;
use crate::error::{Error, Result};

/// A file mapped into memory, to be registered and copied from. Its bytes are never handed out as a slice.
///
/// ```
/// use cuda_mem_core::host::{FileMapping, HostMemory};
///
/// let mapping = FileMapping::read_only(&std::fs::File::open("Cargo.toml")?)?;
/// assert_eq!(mapping.byte_len() as u64, std::fs::metadata("Cargo.toml")?.len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FileMapping {
    /// Kept open for what must not be read through the mapping.
    file: File,
    mapped: Mapped,
    writable: bool,
    private: bool,
}

impl FileMapping {
    /// All of the file's pages, shared with the page cache, to read only.
    ///
    /// To be registered it needs a device that takes read-only host memory
    /// ([`RegisterFlags::READ_ONLY`](super::RegisterFlags::READ_ONLY)). An empty file gives an empty mapping.
    ///
    /// Wraps [`mmap`](https://man7.org/linux/man-pages/man2/mmap.2.html) with `MAP_SHARED` and `PROT_READ`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]: the file is not mappable (a directory, say) or its size is unknown, [`Error::TooLarge`].
    pub fn read_only(file: &File) -> Result<Self> {
        Self::map(file, libc::PROT_READ, libc::MAP_SHARED)
    }

    /// All of the file's pages, each copied when it is first written. Registering it copies all of them, and it cannot be
    /// registered with [`RegisterFlags::READ_ONLY`](super::RegisterFlags::READ_ONLY).
    ///
    /// Wraps [`mmap`](https://man7.org/linux/man-pages/man2/mmap.2.html) with `MAP_PRIVATE` and `PROT_READ | PROT_WRITE`.
    /// Errors: as [`FileMapping::read_only`].
    pub fn private(file: &File) -> Result<Self> {
        Self::map(file, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE)
    }

    /// All of the file's pages, shared with the page cache, to read and write.
    ///
    /// Whether the kernel lets them be registered depends on the file system: memory file systems do, most on disk do not.
    ///
    /// Wraps [`mmap`](https://man7.org/linux/man-pages/man2/mmap.2.html) with `MAP_SHARED` and `PROT_READ | PROT_WRITE`.
    ///
    /// # Errors
    ///
    /// As [`FileMapping::read_only`]; the file must be open for writing.
    pub fn shared(file: &File) -> Result<Self> {
        Self::map(file, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)
    }

    fn map(file: &File, protection: libc::c_int, flags: libc::c_int) -> Result<Self> {
        let file = file.try_clone().map_err(|error| Error::Io { call: "dup", source: error.into() })?;
        let metadata = file.metadata().map_err(|error| Error::Io { call: "fstat", source: error.into() })?;
        if metadata.is_dir() {
            let source = std::io::Error::from(std::io::ErrorKind::IsADirectory);
            return Err(Error::Io { call: "mmap", source: source.into() });
        }
        let too_large = Error::TooLarge { count: usize::MAX, size: 1 };
        let len = usize::try_from(metadata.len()).ok().filter(|len| isize::try_from(*len).is_ok());
        let len = len.ok_or(too_large)?;
        let writable = protection & libc::PROT_WRITE != 0;
        let private = flags & libc::MAP_PRIVATE != 0;
        let mapped = match len {
            0 => Mapped::NONE,
            _ => Mapped::map("mmap", len, protection, flags, file.as_raw_fd())?,
        };
        Ok(Self { file, mapped, writable, private })
    }
}

// SAFETY: the pages stay mapped until they are dropped. Nothing in this type reads or writes them.
unsafe impl HostMemory for FileMapping {
    fn as_ptr(&self) -> *const u8 {
        self.mapped.address.raw()
    }

    fn byte_len(&self) -> usize {
        self.mapped.len
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn file(&self) -> Option<(&File, usize)> {
        // Not registered, so whatever its size: the driver would stage it through the mapping.
        Some((&self.file, usize::MAX))
    }

    fn is_copy_on_write(&self) -> bool {
        self.private
    }
}

/// Addresses that were mapped, and are unmapped when this is dropped.
pub(super) struct Mapped {
    pub(super) address: Handle<u8>,
    pub(super) len: usize,
}

impl Mapped {
    pub(super) const NONE: Self = Self { address: Handle::new(ptr::null_mut()), len: 0 };

    /// Memory of no file.
    pub(super) fn anonymous(len: usize, protection: libc::c_int, flags: libc::c_int) -> Result<Self> {
        let call = if flags & libc::MAP_HUGETLB != 0 { "mmap(MAP_HUGETLB)" } else { "mmap" };
        Self::map(call, len, protection, flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// Memory of an open file, from its start; of none if that is -1. An error is `call`'s.
    pub(super) fn map(
        call: &'static str,
        len: usize,
        protection: libc::c_int,
        flags: libc::c_int,
        file: RawFd,
    ) -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, file, 0) };
        if address == libc::MAP_FAILED {
            return Err(Error::last_os(call));
        }
        Ok(Self { address: Handle::new(address.cast::<u8>()), len })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the mapping that `map` made, unmapped once, with its owner: no reference into it is left.
            let result = unsafe { libc::munmap(self.address.raw().cast(), self.len) };
            // It fails only for arguments that are no mapping.
            debug_assert_eq!(result, 0);
        }
    }
}

impl_debug!(FileMapping, |it| address: it.mapped.address.raw(), len: it.mapped.len, writable: it.writable, private: it.private);
