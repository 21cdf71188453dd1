//! The few system calls that simulated memory is made of.
//!
//! # Safety
//!
//! Mappings are placed only over addresses that the simulator reserved itself, so none of them can take memory away from
//! the rest of the process. Memory that the process owns (registered and pageable host memory) is touched only through
//! `process_vm_readv` and `process_vm_writev`, where a page that is gone is an error and not a signal.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;

/// What the process or the simulator may do with mapped pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protection {
    Read,
    ReadWrite,
}

/// The size of a page of this machine.
pub(crate) fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: sysconf only reads a constant of the system.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).unwrap_or(4096)
    })
}

/// How many mappings of memory the system lets a process have.
pub(super) fn most_mappings() -> usize {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(65_530)
}

/// Reserves `len` addresses that nobody can read or write and that cost no memory.
pub(super) fn reserve(len: usize) -> io::Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at.expose_provenance()) }
}

/// Puts pages of `file` over reserved addresses, in one step: what was mapped there is replaced.
///
/// # Safety
///
/// `at .. at + len` lies in a range from [`reserve`] that still belongs to the caller, and whoever still uses pages that
/// are replaced only copies bytes through raw pointers, so that it sees either the old bytes or the new ones.
pub(super) unsafe fn map_over(
    at: usize,
    len: usize,
    file: BorrowedFd<'_>,
    offset: u64,
    protection: Protection,
) -> io::Result<()> {
    let protection = match protection {
        Protection::Read => libc::PROT_READ,
        Protection::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
    };
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    let place = ptr::with_exposed_provenance_mut(at);
    // SAFETY: the caller owns these addresses.
    let mapped = unsafe { libc::mmap(place, len, protection, flags, file.as_raw_fd(), offset) };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes reserved addresses unreadable again and drops what was mapped there.
///
/// # Safety
///
/// As for [`map_over`]; nobody may use the pages any more.
pub(super) unsafe fn close_over(at: usize, len: usize) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let place = ptr::with_exposed_provenance_mut(at);
    // SAFETY: the caller owns these addresses.
    let mapped = unsafe { libc::mmap(place, len, libc::PROT_NONE, flags, -1, 0) };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Gives a whole reservation back.
///
/// # Safety
///
/// `at` and `len` are those of one [`reserve`], and nobody uses an address in it any more.
pub(super) unsafe fn unreserve(at: usize, len: usize) {
    // SAFETY: the caller's promise; a failure leaves the addresses reserved, which is safe.
    unsafe { libc::munmap(ptr::with_exposed_provenance_mut(at), len) };
}

/// Keeps a mapping out of forked children: a driver's hidden memory is not theirs to read or write.
pub(super) fn keep_from_children(at: usize, len: usize) {
    // SAFETY: the advice changes what a later fork copies, not this process's memory.
    unsafe { libc::madvise(ptr::with_exposed_provenance_mut(at), len, libc::MADV_DONTFORK) };
}

/// A new file in memory that is empty and that no name leads to.
pub(super) fn new_file(name: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: a terminated name and known flags.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: memfd_create returned a descriptor that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A [new file](new_file) of `len` bytes and no other size; its pages exist once they are written.
pub(super) fn memory_file(name: &CStr, len: u64) -> io::Result<OwnedFd> {
    let file = new_file(name)?;
    let fd = file.as_raw_fd();
    let len = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: an open descriptor.
    if unsafe { libc::ftruncate(fd, len) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // A file whose size cannot change never turns an access to a mapping of it into a signal, whoever holds it.
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: an open descriptor and an integer argument, as the command takes.
    if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

/// Whether a descriptor is a memory file whose size is sealed.
pub(super) fn is_sealed(file: BorrowedFd<'_>) -> bool {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: the command takes no argument; descriptors that know no seals give -1.
    let found = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    found >= 0 && found & seals == seals
}

/// Locks one byte of a file for whoever opened it: until all descriptors that come of that opening are closed, at the latest when the process
/// ends or is another program. Waits, or fails, while another has it.
pub(super) fn lock_byte(file: BorrowedFd<'_>, byte: u64, wait: bool) -> io::Result<()> {
    let command = if wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
    loop {
        match byte_lock(file, command, libc::F_WRLCK, byte) {
            Err(error) if wait && error.kind() == io::ErrorKind::Interrupted => {}
            done => return done.map(drop),
        }
    }
}

/// Whether another opening of a file has a byte [locked](lock_byte).
pub(super) fn is_byte_locked(file: BorrowedFd<'_>, byte: u64) -> bool {
    !matches!(byte_lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, byte), Ok(libc::F_UNLCK))
}

/// A byte that is locked until this is dropped.
pub(super) struct Turn<'a>(BorrowedFd<'a>, u64);

impl<'a> Turn<'a> {
    pub(super) fn wait(file: BorrowedFd<'a>, byte: u64) -> io::Result<Self> {
        lock_byte(file, byte, true).map(|()| Self(file, byte))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let _ = byte_lock(self.0, libc::F_OFD_SETLK, libc::F_UNLCK, self.1);
    }
}

/// Asks for a lock of one byte, or about it; the kind that is there.
fn byte_lock(file: BorrowedFd<'_>, command: i32, kind: i32, byte: u64) -> io::Result<i32> {
    let start = libc::off_t::try_from(byte).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: numbers alone, of which all may be 0; so must that of the process.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_start, lock.l_len) = (kind as libc::c_short, start, 1);
    // SAFETY: an open descriptor, and a lock to read and write, as these commands take it.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } == 0 {
        return Ok(lock.l_type.into());
    }
    Err(io::Error::last_os_error())
}

/// How long a file is.
pub(super) fn len(file: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(std::fs::metadata(format!("/proc/self/fd/{}", file.as_raw_fd()))?.len())
}

/// Gives the pages of a range of a memory file back to the system: they read as zeros then.
pub(super) fn punch(file: BorrowedFd<'_>, offset: u64, len: u64) {
    let (Ok(offset), Ok(len)) = (offset.try_into(), len.try_into()) else { return };
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: an open descriptor; where this fails, the memory is only kept for longer.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) };
}

/// Makes every page of `at .. at + len` present, readable and, if `write`, writable, or says that it cannot be.
///
/// Both ends are multiples of the page size.
pub(super) fn populate(at: usize, len: usize, write: bool) -> io::Result<()> {
    static SUPPORTED: OnceLock<bool> = OnceLock::new();
    if !*SUPPORTED.get_or_init(populate_is_supported) {
        // Linux before 5.14: reading through the kernel tells at least whether the pages are there.
        return readable(at, len);
    }
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    loop {
        // SAFETY: populating changes no byte of memory; addresses that are not mapped are an error.
        if unsafe { libc::madvise(ptr::with_exposed_provenance_mut(at), len, advice) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) {
            return Err(error);
        }
    }
}

fn populate_is_supported() -> bool {
    let page = page_size();
    let Ok(at) = reserve(page) else { return false };
    // A page that exists but may not be read gives EFAULT or EINVAL either way; an empty range tells the two apart.
    // SAFETY: an empty range touches nothing.
    let known =
        unsafe { libc::madvise(ptr::with_exposed_provenance_mut(at), 0, libc::MADV_POPULATE_READ) } == 0;
    // SAFETY: the reservation made above, which nobody else knows.
    unsafe { unreserve(at, page) };
    known
}

fn readable(at: usize, len: usize) -> io::Result<()> {
    let mut byte = 0_u8;
    for page in (at..at + len).step_by(page_size()) {
        // SAFETY: one byte of a local variable is written.
        unsafe { read_process(page, &raw mut byte, 1) }?;
    }
    Ok(())
}

/// Copies `len` bytes of the process's memory from `from`; an address that cannot be read is an error.
///
/// # Safety
///
/// `to` is valid for writing `len` bytes that no reference covers.
pub(super) unsafe fn read_process(from: usize, to: *mut u8, len: usize) -> io::Result<()> {
    transfer(from, to, len, |local, remote| {
        // SAFETY: the kernel checks the remote addresses; the caller vouches for the local ones.
        unsafe { libc::process_vm_readv(own_process(), local, 1, remote, 1, 0) }
    })
}

/// Copies `len` bytes into the process's memory at `to`; an address that cannot be written is an error.
///
/// # Safety
///
/// `from` is valid for reading `len` bytes, and whoever made the process's memory at `to` known to the driver expects it
/// to be written now.
pub(super) unsafe fn write_process(to: usize, from: *const u8, len: usize) -> io::Result<()> {
    transfer(to, from.cast_mut(), len, |local, remote| {
        // SAFETY: the kernel checks the remote addresses; the caller vouches for the local ones, which are only read.
        unsafe { libc::process_vm_writev(own_process(), local, 1, remote, 1, 0) }
    })
}

fn own_process() -> libc::pid_t {
    std::process::id().cast_signed()
}

/// Moves bytes in pieces, because one call moves at most about 2 GiB and may move less than it was asked for.
fn transfer(
    remote: usize,
    local: *mut u8,
    len: usize,
    step: impl Fn(*const libc::iovec, *const libc::iovec) -> isize,
) -> io::Result<()> {
    const PIECE: usize = 64 << 20;
    let mut done = 0;
    while done < len {
        let size = PIECE.min(len - done);
        let near = libc::iovec { iov_base: local.wrapping_add(done).cast(), iov_len: size };
        let far = libc::iovec {
            iov_base: ptr::with_exposed_provenance_mut(remote.wrapping_add(done)),
            iov_len: size,
        };
        match usize::try_from(step(&raw const near, &raw const far)) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(moved) => done += moved,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}
