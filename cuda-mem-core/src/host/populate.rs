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
use super::options::{Progress, RegisterOptions};
use super::registered::RegisterFlags;
use super::system::{self, page_size};
use crate::error::{Error, Result};
use crate::handle::Handle;

/// What a thread takes at a time: a few milliseconds of zeroing, so that a cancellation is heard soon, and a whole number of
/// huge pages, so that two threads never wait for one page.
const PIECE: usize = 32 << 20;

/// More threads than this were not seen to bring pages in any faster: they wait for memory.
const MOST_THREADS: usize = 16;

/// Whether the registration starts when the last pieces were taken, or when they are there.
const REGISTER_BESIDE_THE_LAST_PIECES: bool = false;

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
    /// The pages of `memory`, which nobody else may touch while they are brought in.
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

    /// Brings all pages in, then calls `register`.
    pub(super) fn populate_and(
        &self,
        options: &RegisterOptions<'_>,
        register: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let team = Team::new(self, options);
        let registered = thread::scope(|scope| {
            let _stop = Stop(&team);
            for _ in 1..self.threads(options.threads) {
                // A thread that the system does not give is one fewer.
                if thread::Builder::new().spawn_scoped(scope, || team.work(&|_| {})).is_err() {
                    break;
                }
            }
            team.work(&|bytes| options.tell(Progress::Populating { bytes, total: self.bytes.len() }));
            let go = REGISTER_BESIDE_THE_LAST_PIECES && team.result(options).is_ok();
            go.then(|| {
                options.tell(Progress::Registering);
                register()
            })
        });
        registered.unwrap_or_else(|| {
            team.result(options)?;
            options.tell(Progress::Populating { bytes: self.bytes.len(), total: self.bytes.len() });
            options.tell(Progress::Registering);
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
            How::Advice(advice) => advise(piece, advice),
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
    cancel: Option<&'p super::CancelToken>,
    /// The next piece to take. In ascending order, as the driver comes after.
    next: AtomicUsize,
    /// Bytes that are there.
    done: AtomicUsize,
    stop: AtomicBool,
    failure: Mutex<Option<Error>>,
}

impl<'p> Team<'p> {
    fn new(pages: &'p Population, options: &RegisterOptions<'p>) -> Self {
        Self {
            pages,
            cancel: options.cancel,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// Takes pieces until there are none.
    fn work(&self, tell: &dyn Fn(usize)) {
        while !self.stop.load(Ordering::Relaxed) && !self.is_cancelled() {
            let Some(piece) = self.pages.pieces.get(self.next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            let bytes = overlap(&piece, &self.pages.bytes).len();
            if let Err(error) = self.pages.bring_in(piece) {
                self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                self.stop.store(true, Ordering::Relaxed);
                return;
            }
            let before = self.done.fetch_add(bytes, Ordering::Relaxed);
            tell(before.saturating_add(bytes));
        }
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(super::CancelToken::is_cancelled)
    }

    fn result(&self, options: &RegisterOptions<'_>) -> Result<()> {
        match self.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None if options.is_cancelled() => Err(Error::Cancelled),
            None => Ok(()),
        }
    }
}

/// Ends the work of the others when the calling thread's has ended: no piece is left then, or its callback has panicked.
struct Stop<'t, 'p>(&'t Team<'p>);

impl Drop for Stop<'_, '_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// A range of whole pages in pieces, cut where addresses are multiples of the pieces' size.
#[derive(Debug, Clone)]
struct Pieces {
    range: Range<usize>,
    size: usize,
}

impl Pieces {
    fn new(range: Range<usize>, size: usize) -> Self {
        Self { range, size: size.max(1) }
    }

    fn count(&self) -> usize {
        let Range { start, end } = self.range;
        if self.range.is_empty() {
            return 0;
        }
        end.div_ceil(self.size).saturating_sub(start.div_euclid(self.size))
    }

    fn get(&self, index: usize) -> Option<Range<usize>> {
        let number = self.range.start.div_euclid(self.size).checked_add(index)?;
        let start = number.checked_mul(self.size)?;
        let piece = overlap(&(start..start.saturating_add(self.size)), &self.range);
        (!piece.is_empty()).then_some(piece)
    }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    one.start.max(other.start)..one.end.min(other.end)
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

pub(super) fn advise(range: Range<usize>, advice: libc::c_int) -> Result<()> {
    let start = std::ptr::without_provenance_mut(range.start);
    loop {
        // SAFETY: these advices change no byte; addresses that are not mapped are an error.
        if unsafe { libc::madvise(start, range.len(), advice) } == 0 {
            return Ok(());
        }
        let source = io::Error::last_os_error();
        match source.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // The access would have raised SIGBUS.
            Some(libc::EFAULT) => return Err(Error::NoPage { range }),
            Some(libc::ENOMEM | libc::EHWPOISON) => {
                let failed = Error::Io { call: "madvise(MADV_POPULATE)", source: source.into() };
                return Err(system::hole_in(&range).map_or(failed, |hole| Error::NotMapped { range, hole }));
            }
            // Population of a device, say, which cannot be populated. What can be registered is the driver's to judge.
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
