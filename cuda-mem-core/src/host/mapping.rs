//! A file's pages in memory.
//!
//! # Safety
//!
//! Relies on `mmap` returning memory that stays mapped until `munmap`. What a page holds may change, and the page may vanish
//! when the file shrinks (the next touch raises SIGBUS), so no reference into the mapping is ever made and the host never
//! touches it: the kernel's own copies, and devices, report an error instead.

#![allow(unsafe_code, reason = "maps files")]

use std::fs::File;
use std::os::fd::AsRawFd;
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
    address: Handle<u8>,
    len: usize,
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
        if len == 0 {
            return Ok(Self { file, address: Handle::new(ptr::null_mut()), len, writable, private });
        }
        // SAFETY: a new mapping at an address of the kernel's choice, of an open file.
        let address = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(Error::last_os("mmap"));
        }
        Ok(Self { file, address: Handle::new(address.cast::<u8>()), len, writable, private })
    }
}

// SAFETY: the pages stay mapped until the drop below. Nothing in this type reads or writes them.
unsafe impl HostMemory for FileMapping {
    fn as_ptr(&self) -> *const u8 {
        self.address.raw()
    }

    fn byte_len(&self) -> usize {
        self.len
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

impl Drop for FileMapping {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the mapping that `map` made, unmapped once; no reference into it was ever made.
            let result = unsafe { libc::munmap(self.address.raw().cast(), self.len) };
            // It fails only for arguments that are no mapping.
            debug_assert_eq!(result, 0);
        }
    }
}

shown!(FileMapping, |it| address: it.address.raw(), len: it.len, writable: it.writable, private: it.private);
