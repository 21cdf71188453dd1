//! Host memory that other processes map too.
//!
//! # Safety
//!
//! Relies on a memory file of sealed length: no page behind the mapping ever ends. The system may still have no page for an access, where
//! it gives out more memory than it has (overcommit, a limit of a control group) and somebody took the page out again: that ends the
//! process by SIGBUS, before anything is read. Other processes and devices write the bytes at any time, so they are only touched as whole
//! atomic words, and no slice of them exists.

#![allow(unsafe_code, reason = "maps a file and touches its words atomically")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::mapping::Mapped;
use super::memory::HostMemory;
use super::system::page_size;
use crate::error::{Error, Result};

/// Bytes of the words that memory is touched in.
const WORD: usize = 8;

/// The seals that keep a file as long as it is.
const LENGTH: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Plain host memory that other processes map too: a file in memory whose length cannot change. Clones are handles to the
/// same mapping.
///
/// It travels as a descriptor ([`AsFd`]), and is registered like any host memory
/// ([`Registered`](super::Registered)). Its bytes are copied in and out, word by word; other processes may change them meanwhile.
///
/// ```
/// use std::os::fd::AsFd;
///
/// use cuda_mem_core::host::SharedMapping;
///
/// let memory = SharedMapping::create(10_000)?;
/// memory.write(5000, b"hello")?;
///
/// // In the other process, which received the descriptor (here the same one).
/// let theirs = SharedMapping::open(memory.as_fd().try_clone_to_owned().expect("a descriptor"))?;
/// let mut bytes = [0; 5];
/// theirs.read(5000, &mut bytes)?;
/// assert_eq!(&bytes, b"hello");
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Clone)]
pub struct SharedMapping {
    file: Arc<OwnedFd>,
    mapped: Arc<Mapped>,
}

/// The pages of a [`SharedMapping`], which need no descriptor: it is closed with the last handle to the mapping, and the pages stay as
/// long as these.
///
/// For a registration ([`Registered`](super::Registered)), which may be undone long after its owner is gone
/// ([`Driver::registrations_left`](crate::Driver::registrations_left)).
///
/// ```
/// use cuda_mem_core::Driver;
/// use cuda_mem_core::host::{RegisterFlags, Registered, SharedMapping};
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let mapping = SharedMapping::create(10_000)?;
/// let flags = RegisterFlags::PORTABLE | RegisterFlags::MAPPED;
/// let registered = Registered::new(&context, mapping.pages(()), flags)?;
/// drop(mapping); // its descriptor is closed
/// assert!(registered.device_address()? > 0);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
pub struct SharedPages {
    mapped: Arc<Mapped>,
    /// Behind the pages.
    _guard: Box<dyn Send + Sync>,
}

impl SharedMapping {
    /// New memory of at least `bytes` bytes, whole pages, all zero. Its pages appear when they are first touched.
    ///
    /// Wraps [`memfd_create`](https://man7.org/linux/man-pages/man2/memfd_create.2.html), sealed against any other length, and
    /// [`mmap`](https://man7.org/linux/man-pages/man2/mmap.2.html). Makes no driver call.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`], [`Error::Io`].
    pub fn create(bytes: usize) -> Result<Self> {
        let too_large = Error::TooLarge { count: bytes, size: 1 };
        let whole = bytes.max(1).checked_next_multiple_of(page_size());
        let len = whole.and_then(|whole| libc::off_t::try_from(whole).ok()).ok_or(too_large)?;
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a terminated name and known flags.
        let file = unsafe { libc::memfd_create(c"cuda-mem".as_ptr(), flags) };
        if file < 0 {
            return Err(Error::last_os("memfd_create"));
        }
        // SAFETY: a descriptor that was just opened and that nobody else knows.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        // SAFETY: an open descriptor.
        if unsafe { libc::ftruncate(file.as_raw_fd(), len) } != 0 {
            return Err(Error::last_os("ftruncate"));
        }
        add_seals(file.as_fd(), LENGTH)?;
        Self::map(file)
    }

    /// The memory behind a descriptor that another process sent.
    ///
    /// Wraps [`fcntl`](https://man7.org/linux/man-pages/man2/F_GET_SEALS.2const.html) and
    /// [`mmap`](https://man7.org/linux/man-pages/man2/mmap.2.html). Makes no driver call.
    ///
    /// # Errors
    ///
    /// [`Error::NotShared`] for anything but a file in memory whose length is sealed; [`Error::TooLarge`], [`Error::Io`].
    pub fn open(descriptor: OwnedFd) -> Result<Self> {
        // SAFETY: an open descriptor; the command takes no argument, and files without seals refuse it.
        let seals = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 {
            return Err(Error::NotShared { why: "is no file in memory" });
        }
        if seals & LENGTH != LENGTH {
            return Err(Error::NotShared { why: "has a length that can change" });
        }
        // SAFETY: all of its fields may be zero.
        let mut system = unsafe { std::mem::zeroed::<libc::statfs>() };
        // SAFETY: an open descriptor, one structure to write.
        if unsafe { libc::fstatfs(descriptor.as_raw_fd(), &raw mut system) } != 0 {
            return Err(Error::last_os("fstatfs"));
        }
        // Those of a reserve of huge pages may run out, and raise SIGBUS then.
        if system.f_type != libc::TMPFS_MAGIC {
            return Err(Error::NotShared { why: "has pages from a reserve" });
        }
        Self::map(descriptor)
    }

    fn map(file: OwnedFd) -> Result<Self> {
        // SAFETY: all of its fields may be zero.
        let mut found = unsafe { std::mem::zeroed::<libc::stat>() };
        // SAFETY: an open descriptor, one structure to write.
        if unsafe { libc::fstat(file.as_raw_fd(), &raw mut found) } != 0 {
            return Err(Error::last_os("fstat"));
        }
        let bytes = usize::try_from(found.st_size).unwrap_or(usize::MAX);
        if isize::try_from(bytes).is_err() {
            return Err(Error::TooLarge { count: bytes, size: 1 });
        }
        if bytes == 0 || !bytes.is_multiple_of(page_size()) {
            return Err(Error::NotShared { why: "has no whole number of pages" });
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let mapped = Mapped::map("mmap", bytes, protection, libc::MAP_SHARED, file.as_raw_fd())?;
        Ok(Self { file: Arc::new(file), mapped: Arc::new(mapped) })
    }

    /// The pages without the descriptor. `guard` is dropped when they are: for memory that is registered, once that is undone, and never if
    /// the driver refuses to.
    #[must_use]
    pub fn pages(&self, guard: impl Send + Sync + 'static) -> SharedPages {
        SharedPages { mapped: Arc::clone(&self.mapped), _guard: Box::new(guard) }
    }

    /// Keeps all processes from mapping the memory for writing anew, and from taking pages out of it. Existing mappings stay.
    ///
    /// A peer that may take pages out can leave a device with other pages than the host has, so that the device sees no word that
    /// the host writes. So call this once all processes that are to write have mapped the memory.
    ///
    /// Wraps [`fcntl`](https://man7.org/linux/man-pages/man2/F_GET_SEALS.2const.html) with `F_SEAL_FUTURE_WRITE`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] on Linux before 5.1.
    pub fn seal(&self) -> Result<()> {
        add_seals(self.file.as_fd(), libc::F_SEAL_FUTURE_WRITE)
    }

    /// How many bytes there are: a multiple of the page size.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.mapped.len
    }

    /// Copies bytes out, from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.expect_inside(offset, into.len())?;
        self.each_word(offset, into.len(), |word, within, place| {
            let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            into[place].copy_from_slice(&bytes[within]);
        });
        Ok(())
    }

    /// Copies bytes in, from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.expect_inside(offset, from.len())?;
        self.each_word(offset, from.len(), |word, within, place| {
            let mut old = word.load(Ordering::Relaxed);
            loop {
                let mut bytes = old.to_ne_bytes();
                bytes[within.clone()].copy_from_slice(&from[place.clone()]);
                let new = u64::from_ne_bytes(bytes);
                if within.len() == WORD {
                    return word.store(new, Ordering::Relaxed);
                }
                // Others may have the rest of the word.
                match word.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => return,
                    Err(now) => old = now,
                }
            }
        });
        Ok(())
    }

    /// The word at `offset` bytes. What others write there is seen as any number.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], [`Error::Misaligned`] if `offset` is no multiple of 8.
    #[inline]
    pub fn word(&self, offset: usize) -> Result<&AtomicU64> {
        self.words(offset).map(|[word]| word)
    }

    /// So many words from `offset` bytes on, as [`SharedMapping::word`] gives each.
    ///
    /// Errors: as there.
    #[inline]
    pub fn words<const N: usize>(&self, offset: usize) -> Result<[&AtomicU64; N]> {
        self.expect_inside(offset, N * WORD)?;
        if !offset.is_multiple_of(WORD) {
            return Err(Error::Misaligned { address: offset as u64, align: WORD });
        }
        Ok(std::array::from_fn(|index| self.word_inside(offset + index * WORD)))
    }

    /// As [`SharedMapping::word`], of an offset that is known to be one's. Any other gives the first word.
    #[inline]
    pub(crate) fn word_inside(&self, offset: usize) -> &AtomicU64 {
        let is_one = offset.is_multiple_of(WORD) && offset < self.bytes();
        let word = self.mapped.address.raw().wrapping_add(if is_one { offset } else { 0 });
        // SAFETY: eight bytes inside the mapping, which is a whole number of pages and starts with one, so they are aligned;
        // they stay as long as `self`, and nobody in this process touches them but through such words.
        unsafe { AtomicU64::from_ptr(word.cast::<u64>()) }
    }

    /// Calls `each` for every word of a range, with the bytes in the word and those in the range that are the same.
    fn each_word(
        &self,
        offset: usize,
        len: usize,
        mut each: impl FnMut(&AtomicU64, std::ops::Range<usize>, std::ops::Range<usize>),
    ) {
        let mut done = 0;
        while done < len {
            let at = offset + done;
            let first = at % WORD;
            let count = (WORD - first).min(len - done);
            each(self.word_inside(at - first), first..first + count, done..done + count);
            done += count;
        }
    }

    #[inline]
    fn expect_inside(&self, offset: usize, len: usize) -> Result<()> {
        let end = offset.saturating_add(len);
        let len = self.bytes();
        if end > len { Err(Error::OutOfRange { range: offset..end, len }) } else { Ok(()) }
    }
}

fn add_seals(file: BorrowedFd<'_>, seals: libc::c_int) -> Result<()> {
    // SAFETY: an open descriptor and an integer argument, as the command takes.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
        return Err(Error::last_os("fcntl(F_ADD_SEALS)"));
    }
    Ok(())
}

impl AsFd for SharedMapping {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// What an owner of the pages says of them as host memory.
macro_rules! host_memory {
    ($owner:ty) => {
        // SAFETY: the pages stay mapped, and stay there, until the last handle is dropped. In this process they are only touched as atomic
        // words, as devices and other processes may change them at any time anyway.
        unsafe impl HostMemory for $owner {
            fn as_ptr(&self) -> *const u8 {
                self.mapped.address.raw()
            }

            fn byte_len(&self) -> usize {
                self.mapped.len
            }

            fn is_writable(&self) -> bool {
                true
            }

            fn is_shared(&self) -> bool {
                true
            }
        }
    };
}

host_memory!(SharedMapping);
host_memory!(SharedPages);

impl_debug!(SharedPages, |it| address: it.mapped.address.raw(), bytes: it.mapped.len);

impl_debug!(SharedMapping, |it| address: it.mapped.address.raw(), bytes: it.mapped.len);
