//! Bringing pages in, by several threads, before the driver pins them.
//!
//! The driver faults pages in one after the other; the zeroing of new pages is most of the time that a registration takes.
//! The threads here make no driver call, so captures do not notice them.
//!
//! # Safety
//!
//! `madvise` with the populating advices changes no byte of memory, whoever owns it. Population are touched only through an
//! address that the memory's owner gave for that, while the owner is borrowed mutably.

#![allow(unsafe_code, reason = "advises the kernel and touches pages")]

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use super::memory::HostMemory;
use super::options::{CancelToken, Progress, RegisterOptions};
use super::pieces::{Pieces, overlap};
use super::registered::RegisterFlags;
use super::system::{self, page_size};
use crate::error::{Error, Result};
use crate::handle::Handle;

/// What a thread takes at a time: a few milliseconds of zeroing, so that a cancellation is heard soon, and a whole number of
/// huge pages, so that two threads never wait for one page.
const PIECE: usize = 32 << 20;

/// More threads than this were not seen to bring pages in any faster: they wait for memory.
const MOST_THREADS: usize = 16;

/// When the registration starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Register {
    /// When all pieces are there.
    Afterwards,
    /// When so many eighths of the pieces were taken, beside the threads that bring the rest in: the driver goes through the
    /// pages in the order in which they come, and brings in itself what is not there yet.
    #[cfg_attr(not(test), expect(dead_code, reason = "which is faster is to be measured on hardware"))]
    Beside { eighths: usize },
}

const REGISTER: Register = Register::Afterwards;

/// The pages of some memory, and how to have them.
#[derive(Debug)]
pub(super) struct Population {
    /// The memory's own bytes.
    bytes: Range<usize>,
    pieces: Pieces,
    how: How,
}

#[derive(Debug, Clone, Copy)]
enum How {
    /// By this advice.
    Advice(libc::c_int),
    /// By a write to each, from this address on.
    Touch(Handle<u8>),
    /// Not at all: the driver does it.
    Leave,
}

impl Population {
    /// The pages of `memory`, to be brought in while it is borrowed.
    pub(super) fn of<M: HostMemory>(memory: &mut M, flags: RegisterFlags) -> Result<Self> {
        let bytes = system::range_of(memory.as_ptr(), memory.byte_len())?;
        // A shared file that is written would be written back, also if the driver then refuses its pages.
        let shared_file = memory.file().is_some() && !memory.is_copy_on_write();
        let write = memory.is_writable() && !flags.contains(RegisterFlags::READ_ONLY) && !shared_file;
        let how = if advice_is_known() {
            How::Advice(if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ })
        } else {
            // Linux before 5.14.
            memory.touch().filter(|_| write).map_or(How::Leave, |start| How::Touch(Handle::new(start)))
        };
        let pieces = Pieces::new(system::pages_around(&bytes), PIECE.max(memory.page_size()));
        Ok(Self { bytes, pieces, how })
    }

    /// The pages of a range of any owner's, if they are many, and all of them private and writable: what writing to others
    /// would do beyond bringing them in, is not known here.
    pub(super) fn of_private(bytes: &Range<usize>) -> Option<Self> {
        let pages = system::pages_around(bytes);
        let pieces = Pieces::new(pages.clone(), PIECE);
        let wanted = pieces.count() > 1 && advice_is_known() && system::is_private_and_writable(&pages);
        wanted.then(|| Self { bytes: bytes.clone(), pieces, how: How::Advice(libc::MADV_POPULATE_WRITE) })
    }

    /// Brings all pages in, and calls `register`.
    pub(super) fn populate_and(
        &self,
        options: &RegisterOptions<'_>,
        register: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        self.populate(options, REGISTER, register)
    }

    fn populate(
        &self,
        options: &RegisterOptions<'_>,
        when: Register,
        register: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let total = self.bytes.len();
        let team = Team::new(self, options.cancel);
        let threads = self.threads(options.threads);
        let eighth = self.pieces.count().div_ceil(8);
        // After how many pieces this thread leaves the rest to the others. It does not if there are none.
        let leave = match when {
            Register::Beside { eighths } if threads > 1 => Some(eighth.saturating_mul(eighths)),
            _ => None,
        };
        let register = || {
            team.result()?;
            options.tell(Progress::Registering);
            register()
        };
        thread::scope(|scope| {
            let _stop = Stop(&team);
            for _ in 1..threads {
                // A thread that the system does not give is one fewer.
                if thread::Builder::new().spawn_scoped(scope, || team.work(None, &|_| {})).is_err() {
                    break;
                }
            }
            team.work(leave, &|bytes| options.tell(Progress::Populating { bytes, total }));
            leave.map(|_| register())
        })
        .unwrap_or_else(|| {
            if team.result().is_ok() {
                options.tell(Progress::Populating { bytes: total, total });
            }
            register()
        })
    }

    /// How many threads have something to do.
    fn threads(&self, wanted: usize) -> usize {
        let cores = || thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        let wanted = if wanted == 0 { cores() } else { wanted };
        if matches!(self.how, How::Leave) { 1 } else { wanted.min(self.pieces.count()) }
    }

    fn bring_in(&self, piece: Range<usize>) -> Result<()> {
        match self.how {
            How::Advice(advice) => advise(&piece, advice, &self.bytes),
            How::Touch(start) => {
                touch(start, &self.bytes, &piece);
                Ok(())
            }
            How::Leave => Ok(()),
        }
    }
}

/// The threads that bring pages in, and what became of their work.
struct Team<'p> {
    pages: &'p Population,
    cancel: Option<&'p CancelToken>,
    /// The next piece to take. In ascending order, as the driver comes after.
    next: AtomicUsize,
    /// Bytes that are there.
    done: AtomicUsize,
    /// Set after the failure, if there is one.
    stop: AtomicBool,
    failure: Mutex<Option<Error>>,
}

impl<'p> Team<'p> {
    fn new(pages: &'p Population, cancel: Option<&'p CancelToken>) -> Self {
        Self {
            pages,
            cancel,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// Takes pieces until so many are taken, or all.
    fn work(&self, leave: Option<usize>, tell: &dyn Fn(usize)) {
        while !self.stop.load(Ordering::Acquire) && !self.is_cancelled() {
            if leave.is_some_and(|pieces| self.next.load(Ordering::Relaxed) >= pieces) {
                return;
            }
            let Some(piece) = self.pages.pieces.get(self.next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            let bytes = overlap(&piece, &self.pages.bytes).len();
            if let Err(error) = self.pages.bring_in(piece) {
                self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                self.stop.store(true, Ordering::Release);
                return;
            }
            let before = self.done.fetch_add(bytes, Ordering::Relaxed);
            tell(before.saturating_add(bytes));
        }
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(CancelToken::is_cancelled)
    }

    fn result(&self) -> Result<()> {
        match &*self.failure.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error.clone()),
            None if self.is_cancelled() => Err(Error::Cancelled),
            None => Ok(()),
        }
    }
}

/// Ends the work of the others with the calling thread's: no piece is left then, or all are registered, or it has panicked.
struct Stop<'t, 'p>(&'t Team<'p>);

impl Drop for Stop<'_, '_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
    }
}

/// Whether the kernel knows the populating advices; asked with an empty range, which any known advice is right for.
fn advice_is_known() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let start = std::ptr::without_provenance_mut(page_size());
        // SAFETY: no page is named.
        unsafe { libc::madvise(start, 0, libc::MADV_POPULATE_WRITE) == 0 }
    })
}

/// Gives the advice for some pages of a `whole`.
pub(super) fn advise(pages: &Range<usize>, advice: libc::c_int, whole: &Range<usize>) -> Result<()> {
    let start = std::ptr::without_provenance_mut(pages.start);
    loop {
        // SAFETY: these advices change no byte; addresses that are not mapped are an error.
        if unsafe { libc::madvise(start, pages.len(), advice) } == 0 {
            return Ok(());
        }
        let source = io::Error::last_os_error();
        match source.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // The access would have raised SIGBUS.
            Some(libc::EFAULT) => return Err(Error::NoPage { range: pages.clone() }),
            Some(libc::ENOMEM | libc::EHWPOISON) => {
                let failed = Error::Io { call: "madvise(MADV_POPULATE)", source: source.into() };
                let range = whole.clone();
                return Err(system::hole_in(whole).map_or(failed, |hole| Error::NotMapped { range, hole }));
            }
            // Pages of a device, say, which cannot be populated. What can be registered is the driver's to judge.
            _ => return Ok(()),
        }
    }
}

/// Writes one byte of each page of `piece` that lies in `bytes`, which start at `start`, with the value it has.
fn touch(start: Handle<u8>, bytes: &Range<usize>, piece: &Range<usize>) {
    let part = overlap(piece, bytes);
    let mut at = part.start;
    while at < part.end {
        let byte = start.raw().wrapping_add(at.wrapping_sub(bytes.start));
        // SAFETY: inside the memory, whose owner is borrowed mutably and gave the address to be read and written through.
        let value = unsafe { byte.read_volatile() };
        // SAFETY: as above; no other thread here has this page.
        unsafe { byte.write_volatile(value) };
        at = system::pages_around(&(at..at.saturating_add(1))).end;
    }
}

#[cfg(test)]
mod tests;
